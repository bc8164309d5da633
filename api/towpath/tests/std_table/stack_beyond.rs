//! Options that std has no stable methods for, on ours.

use std::io;
use std::time::Duration;

use towpath::net::{TcpStream, UdpSocket};

pub fn set_linger(stream: &TcpStream, linger: Option<Duration>) -> io::Result<()> {
    stream.set_linger(linger)
}

pub fn linger(stream: &TcpStream) -> io::Result<Option<Duration>> {
    stream.linger()
}

/// Idle, interval and probes, where keepalive is on.
pub type KeepAlive = Option<(Duration, Duration, u32)>;

pub fn set_keepalive(stream: &TcpStream, to: KeepAlive) -> io::Result<()> {
    let new = towpath::net::KeepAlive::new();
    stream.set_keepalive(
        to.map(|(idle, interval, probes)| new.idle(idle).interval(interval).probes(probes)),
    )
}

pub fn keepalive(stream: &TcpStream) -> io::Result<KeepAlive> {
    let times = stream.keepalive()?;
    Ok(times.map(|times| (times.idle, times.interval, times.probes)))
}

pub fn set_congestion(stream: &TcpStream, name: &str) -> io::Result<()> {
    stream.set_congestion(name)
}

pub fn congestion(stream: &TcpStream) -> io::Result<String> {
    stream.congestion()
}

/// Sizes of the receive and of the send buffer, after both were set to `bytes`.
pub fn buffer_sizes(socket: &impl Buffered, bytes: usize) -> io::Result<(usize, usize)> {
    socket.resize(bytes)
}

pub trait Buffered {
    fn resize(&self, bytes: usize) -> io::Result<(usize, usize)>;
}

impl Buffered for TcpStream {
    fn resize(&self, bytes: usize) -> io::Result<(usize, usize)> {
        self.set_recv_buffer_size(bytes)?;
        self.set_send_buffer_size(bytes)?;
        Ok((self.recv_buffer_size()?, self.send_buffer_size()?))
    }
}

impl Buffered for UdpSocket {
    fn resize(&self, bytes: usize) -> io::Result<(usize, usize)> {
        self.set_recv_buffer_size(bytes)?;
        self.set_send_buffer_size(bytes)?;
        Ok((self.recv_buffer_size()?, self.send_buffer_size()?))
    }
}
