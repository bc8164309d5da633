//! Forwards connections and datagrams through sockets of this host, as the crate is intended for.

use std::collections::HashMap;
use std::io::{Error, Result};
use std::net::SocketAddr;

use futures::{SinkExt, StreamExt};
use netstack_smoltcp::{TcpListener, TcpStream, UdpSocket};
use tokio::io::copy_bidirectional_with_sizes;
use tokio::sync::mpsc::{Receiver, Sender, channel};
use tokio::time::timeout;

use crate::streams::CHUNK;

/// Maximum number of datagrams queued for a socket or for the stack; further ones are dropped.
const WAITING: usize = 1024;
/// Maximum length of a datagram in bytes.
const LONGEST: usize = 65_535;
/// Idle timeout of a datagram flow.
const IDLE: std::time::Duration = std::time::Duration::from_secs(60);

/// A datagram, its source and its destination, in the order that the stack uses.
type Datagram = (Vec<u8>, SocketAddr, SocketAddr);

/// Forwards connections. The stack accepts each connection before the host connects.
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

/// Forwards datagrams, with a socket for each pair of client address and destination.
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
                // Drop the datagram if the queue is full, as a socket does.
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
