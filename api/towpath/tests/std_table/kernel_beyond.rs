//! Options that std has no stable methods for, on the kernel's sockets.

use std::io;
use std::net::TcpStream;
use std::time::Duration;

use rustix::net::sockopt;

pub fn set_linger(stream: &TcpStream, linger: Option<Duration>) -> io::Result<()> {
    Ok(sockopt::set_socket_linger(stream, linger)?)
}

pub fn linger(stream: &TcpStream) -> io::Result<Option<Duration>> {
    Ok(sockopt::socket_linger(stream)?)
}

/// Idle, interval and probes, where keepalive is on.
pub type KeepAlive = Option<(Duration, Duration, u32)>;

pub fn set_keepalive(stream: &TcpStream, to: KeepAlive) -> io::Result<()> {
    if let Some((idle, interval, probes)) = to {
        sockopt::set_tcp_keepidle(stream, idle)?;
        sockopt::set_tcp_keepintvl(stream, interval)?;
        sockopt::set_tcp_keepcnt(stream, probes)?;
    }
    Ok(sockopt::set_socket_keepalive(stream, to.is_some())?)
}

pub fn keepalive(stream: &TcpStream) -> io::Result<KeepAlive> {
    let idle = sockopt::tcp_keepidle(stream)?;
    let interval = sockopt::tcp_keepintvl(stream)?;
    let probes = sockopt::tcp_keepcnt(stream)?;
    Ok(sockopt::socket_keepalive(stream)?.then_some((idle, interval, probes)))
}

pub fn set_congestion(stream: &TcpStream, name: &str) -> io::Result<()> {
    Ok(sockopt::set_tcp_congestion(stream, name)?)
}

pub fn congestion(stream: &TcpStream) -> io::Result<String> {
    Ok(sockopt::tcp_congestion(stream)?)
}

/// Sizes of the receive and of the send buffer, after both were set to `bytes`.
pub fn buffer_sizes(socket: &impl std::os::fd::AsFd, bytes: usize) -> io::Result<(usize, usize)> {
    sockopt::set_socket_recv_buffer_size(socket, bytes)?;
    sockopt::set_socket_send_buffer_size(socket, bytes)?;
    Ok((sockopt::socket_recv_buffer_size(socket)?, sockopt::socket_send_buffer_size(socket)?))
}
