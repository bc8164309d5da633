//! Forwards the TCP and UDP traffic of a TUN device by the kernel's sockets. The sockets are bound
//! to an interface, so that their packets do not return to the device:
//!
//! ```text
//! sudo ip route add 10.9.0.0/16 via 192.168.1.1 dev eth0 metric 100
//! sudo cargo run -p towpath --features intercept --example intercept_forward tw0 10.9.0.0/16 eth0
//! ```

use std::collections::HashMap;
use std::error::Error;
use std::io::{self, ErrorKind};
use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;

use tokio::io::copy_bidirectional_with_sizes;
use tokio::net::{TcpSocket, TcpStream, UdpSocket};
use towpath::intercept::{IncomingConnection, Intercepted, Interceptor, Refusal, UdpFlow};

/// Length of buffers in bytes; fits every datagram.
const BUFFER_LEN: usize = 64 << 10;
const UDP_IDLE: Duration = Duration::from_secs(60);
const UDP_MAX: usize = 1024;

#[tokio::main]
async fn main() -> Result<(), Box<dyn Error>> {
    let words: Vec<String> = std::env::args().skip(1).collect();
    let [tun, network, interface] = &words[..] else {
        return Err("usage: intercept_forward TUN NETWORK INTERFACE".into());
    };
    run(tun, network, interface).await
}

pub async fn run(tun: &str, network: &str, interface: &str) -> Result<(), Box<dyn Error>> {
    let (ip, len) = network.split_once('/').ok_or("the network has no prefix length")?;
    let builder = Interceptor::builder().tun(tun).route(ip.parse()?, len.parse()?);
    let Intercepted { runner, tcp, udp, .. } = builder.build()?;
    let interface: Arc<[u8]> = interface.as_bytes().into();
    tokio::spawn(forward_datagrams(udp, interface.clone()));
    tokio::spawn(async move {
        while let Ok(incoming) = tcp.accept().await {
            tokio::spawn(forward(incoming, interface.clone()));
        }
    });
    Ok(tokio::spawn(runner).await??)
}

async fn forward(incoming: IncomingConnection, interface: Arc<[u8]>) -> io::Result<()> {
    let mut server = match connect(incoming.destination(), &interface).await {
        Ok(server) => server,
        Err(error) => {
            let is_refused = error.kind() == ErrorKind::ConnectionRefused;
            incoming.refuse(if is_refused { Refusal::Reset } else { Refusal::HostUnreachable });
            return Ok(());
        }
    };
    let mut client = incoming.accept().await?;
    let len = BUFFER_LEN;
    if copy_bidirectional_with_sizes(&mut client, &mut server, len, len).await.is_err() {
        client.reset();
    }
    Ok(())
}

async fn connect(to: SocketAddr, interface: &[u8]) -> io::Result<TcpStream> {
    let socket = if to.is_ipv4() { TcpSocket::new_v4()? } else { TcpSocket::new_v6()? };
    socket.bind_device(Some(interface))?;
    socket.set_nodelay(true)?;
    socket.connect(to).await
}

/// Sends the datagrams of each source by a socket of its own.
async fn forward_datagrams(udp: towpath::intercept::UdpSocket, interface: Arc<[u8]>) {
    let mut sockets: HashMap<SocketAddr, Arc<UdpSocket>> = HashMap::new();
    let mut buf = vec![0; BUFFER_LEN];
    while let Ok((len, UdpFlow { source, destination, .. })) = udp.recv(&mut buf).await {
        // The task of an unused socket has ended, and dropped its reference.
        if sockets.get(&source).is_none_or(|socket| Arc::strong_count(socket) == 1) {
            sockets.retain(|_, socket| Arc::strong_count(socket) > 1);
            let any = if source.is_ipv4() { "0.0.0.0:0" } else { "[::]:0" };
            let Ok(socket) = UdpSocket::bind(any).await.map(Arc::new) else { continue };
            if sockets.len() < UDP_MAX && socket.bind_device(Some(&interface)).is_ok() {
                tokio::spawn(answer(udp.clone(), socket.clone(), source));
                sockets.insert(source, socket);
            }
        }
        // An error loses the datagram, as networks do.
        let Some(socket) = sockets.get(&source) else { continue };
        let _ = socket.send_to(&buf[..len], destination).await;
    }
}

/// Passes datagrams from any peer to the program at `source`.
async fn answer(udp: towpath::intercept::UdpSocket, socket: Arc<UdpSocket>, source: SocketAddr) {
    let mut buf = vec![0; BUFFER_LEN];
    while let Ok(received) = tokio::time::timeout(UDP_IDLE, socket.recv_from(&mut buf)).await {
        let Ok((len, peer)) = received else { continue };
        let _ = udp.send(&buf[..len], &UdpFlow::new(peer, source)).await;
    }
}
