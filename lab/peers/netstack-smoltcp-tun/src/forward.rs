//! Connections and datagrams that go on by sockets of this host: what the crate is made for.

use std::collections::HashMap;
use std::io::{Error, Result};
use std::net::SocketAddr;

use futures::{SinkExt, StreamExt};
use netstack_smoltcp::{TcpListener, TcpStream, UdpSocket};
use tokio::io::copy_bidirectional_with_sizes;
use tokio::sync::mpsc::{Receiver, Sender, channel};
use tokio::time::timeout;

use crate::streams::CHUNK;

/// Datagrams that wait for a socket, or for the stack. More are lost.
const WAITING: usize = 1024;
/// Bytes of the longest datagram.
const LONGEST: usize = 65_535;
/// Idle time of a flow of datagrams.
const IDLE: std::time::Duration = std::time::Duration::from_secs(60);

/// A datagram, its source and its destination: as the stack has them.
type Datagram = (Vec<u8>, SocketAddr, SocketAddr);

/// The stack has accepted already when the host begins to connect.
pub async fn connections(mut listener: TcpListener) {
    while let Some((stream, _, to)) = listener.next().await {
        tokio::spawn(connection(stream, to));
    }
}

async fn connection(mut stream: TcpStream, to: SocketAddr) -> Result<()> {
    let mut host = tokio::net::TcpStream::connect(to).await?;
    host.set_nodelay(true)?;
    copy_bidirectional_with_sizes(&mut stream, &mut host, CHUNK, CHUNK).await.map(drop)
}

/// A socket for each pair of a client's address and a destination.
pub async fn datagrams(socket: UdpSocket) -> Result<()> {
    let (mut come, mut go) = socket.split();
    let (back, mut returned) = channel::<Datagram>(WAITING);
    let mut flows: HashMap<(SocketAddr, SocketAddr), Sender<Vec<u8>>> = HashMap::new();
    loop {
        tokio::select! {
            Some(datagram) = returned.recv() => go.send(datagram).await?,
            came = come.next() => {
                let Some((bytes, from, to)) = came else { return Ok(()) };
                let flow = flows.entry((from, to)).or_insert_with(|| flow(from, to, &back));
                if flow.is_closed() {
                    *flow = self::flow(from, to, &back);
                }
                // A full queue loses datagrams, as a socket does.
                let _ = flow.try_send(bytes);
            }
        }
    }
}

fn flow(from: SocketAddr, to: SocketAddr, back: &Sender<Datagram>) -> Sender<Vec<u8>> {
    let (sender, bytes) = channel(WAITING);
    tokio::spawn(carry(from, to, bytes, back.clone()));
    sender
}

async fn carry(
    from: SocketAddr,
    to: SocketAddr,
    mut bytes: Receiver<Vec<u8>>,
    back: Sender<Datagram>,
) -> Result<()> {
    let socket = tokio::net::UdpSocket::bind(("0.0.0.0", 0)).await?;
    socket.connect(to).await?;
    let mut room = vec![0; LONGEST];
    loop {
        tokio::select! {
            next = bytes.recv() => match next {
                Some(next) => drop(socket.send(&next).await?),
                None => return Ok(()),
            },
            answer = timeout(IDLE, socket.recv(&mut room)) => {
                let len = answer.map_err(|_| Error::from(std::io::ErrorKind::TimedOut))??;
                let _ = back.try_send((room[..len].to_vec(), to, from));
            }
        }
    }
}
