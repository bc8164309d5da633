//! A host in memory, whose packets an interceptor takes from channels.

use std::collections::VecDeque;
use std::net::{IpAddr, SocketAddr};
use std::os::fd::BorrowedFd;
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant as StdInstant};

use bytes::Bytes;
use tokio::sync::mpsc::{Receiver, Sender, channel};
use towpath::intercept::{TcpListener, TcpStream};
use towpath_direct::{Node, NodeConfig, NodeEvent, SocketHandle};
use towpath_stack::Instant;
use towpath_stack::net::InterfaceConfig;
use towpath_wire::MacAddr;

use crate::PATIENCE;

pub const ADDR: [u8; 4] = [10, 0, 0, 1];
pub const ADDR_V6: [u16; 8] = [0xfd00, 0, 0, 0, 0, 0, 0, 1];
/// Packets of each channel.
const CHANNEL: usize = 32;

type Queue = Arc<Mutex<VecDeque<Bytes>>>;

/// Port between the node and the channels.
pub struct QueuePort {
    incoming: Queue,
    outgoing: Queue,
}

pub struct Client {
    pub node: Node<QueuePort>,
    started: StdInstant,
    incoming: Queue,
    outgoing: Queue,
    pub from: Receiver<Bytes>,
    pub to: Sender<Bytes>,
    pub events: Vec<NodeEvent>,
}

impl Client {
    /// Creates a host, and the ends of the channels for an interceptor.
    pub fn new() -> (Self, Receiver<Bytes>, Sender<Bytes>) {
        let (to, receiver) = channel(CHANNEL);
        let (sender, from) = channel(CHANNEL);
        let (incoming, outgoing) = (Queue::default(), Queue::default());
        let now = Instant(1_000_000_000);
        let mut node = Node::new(NodeConfig::default(), [3; 32], now);
        let port = QueuePort { incoming: incoming.clone(), outgoing: outgoing.clone() };
        let host = |ip: IpAddr, len| towpath_wire::Prefix::new(ip, len).expect("a prefix");
        let config = InterfaceConfig {
            name: "eth0".into(),
            link: towpath_pool::LinkType::Ip,
            mac: MacAddr([0; 6]),
            mtu: 1500,
            offloads: towpath_pool::Offloads::default(),
            addresses: vec![host(ADDR.into(), 24), host(ADDR_V6.into(), 64)],
            slaac: false,
            any_address: false,
            kernel_cuts: false,
            in_process: false,
        };
        let iface = node.add_interface(config, Box::new(port));
        for all in ["0.0.0.0/0", "::/0"] {
            node.stack.net.add_route(all.parse().expect("a prefix"), None, iface, 0);
        }
        let started = StdInstant::now();
        (Self { node, started, incoming, outgoing, from, to, events: Vec::new() }, receiver, sender)
    }

    /// Runs the host until `done` returns a value.
    pub async fn until<T>(&mut self, mut done: impl FnMut(&mut Self) -> Option<T>) -> T {
        let deadline = StdInstant::now() + PATIENCE;
        loop {
            self.turn();
            if let Some(out) = done(self) {
                self.turn();
                return out;
            }
            assert!(StdInstant::now() < deadline, "not in time; events: {:?}", self.events);
            tokio::time::sleep(Duration::from_micros(200)).await;
        }
    }

    /// Runs the host for some time.
    pub async fn run_for(&mut self, time: Duration) {
        let end = StdInstant::now() + time;
        self.until(|_| (StdInstant::now() >= end).then_some(())).await;
    }

    /// Connects to `to`, and accepts the connection.
    pub async fn connected(
        &mut self,
        tcp: &TcpListener,
        to: SocketAddr,
    ) -> (SocketHandle, TcpStream) {
        let socket = self.node.connect(to).unwrap();
        self.until(|_| Some(())).await;
        let accepted = async { tcp.accept().await.unwrap().accept().await.unwrap() };
        let (_, stream) = tokio::join!(self.event(NodeEvent::Connected(socket)), accepted);
        (socket, stream)
    }

    pub async fn event(&mut self, wanted: NodeEvent) {
        self.until(|client| client.events.contains(&wanted).then_some(())).await;
    }

    /// Waits until `bytes` bytes were received on a connection.
    pub async fn recv_exact(&mut self, socket: SocketHandle, bytes: usize) -> Vec<u8> {
        let mut out = Vec::new();
        self.until(|client| {
            let mut chunk = vec![0; bytes - out.len()];
            if let Ok(n) = client.node.recv(socket, &mut chunk) {
                out.extend_from_slice(&chunk[..n]);
            }
            (out.len() == bytes).then_some(())
        })
        .await;
        out
    }

    pub async fn send_all(&mut self, socket: SocketHandle, bytes: &[u8]) {
        let mut sent = 0;
        self.until(|client| {
            sent += client.node.send(socket, &bytes[sent..]).unwrap_or(0);
            (sent == bytes.len()).then_some(())
        })
        .await;
    }

    fn turn(&mut self) {
        while let Ok(packet) = self.from.try_recv() {
            self.incoming.lock().expect("no panic").push_back(packet);
        }
        let now = Instant(1_000_000_001 + self.started.elapsed().as_nanos() as u64);
        while self.node.turn(now).more {}
        self.events.extend(std::iter::from_fn(|| self.node.poll_event()));
        let mut outgoing = self.outgoing.lock().expect("no panic");
        while let Some(packet) = outgoing.pop_front() {
            if let Err(error) = self.to.try_send(packet) {
                let (tokio::sync::mpsc::error::TrySendError::Full(packet)
                | tokio::sync::mpsc::error::TrySendError::Closed(packet)) = error;
                outgoing.push_front(packet);
                break;
            }
        }
    }
}

impl towpath_pool::Port for QueuePort {
    fn poll(
        &mut self,
        _now_ns: u64,
        pool: &mut towpath_pool::Pool,
        out: &mut towpath_pool::Batch,
        max: usize,
    ) -> usize {
        let mut incoming = self.incoming.lock().expect("no panic");
        let count = incoming.len().min(max);
        for bytes in incoming.drain(..count) {
            assert!(bytes.len() <= 1500, "a packet of {} bytes", bytes.len());
            let mut packet = pool.take(bytes.len());
            packet.push_back(bytes.len()).expect("taken with room").copy_from_slice(&bytes);
            out.push_back(packet);
        }
        count
    }

    fn submit(
        &mut self,
        _now_ns: u64,
        pool: &mut towpath_pool::Pool,
        batch: &mut towpath_pool::Batch,
    ) -> usize {
        let count = batch.len();
        for mut packet in batch.drain(..) {
            packet.linearize(pool);
            self.outgoing
                .lock()
                .expect("no panic")
                .push_back(Bytes::copy_from_slice(packet.linear()));
            pool.give(packet);
        }
        count
    }

    fn offloads(&self) -> towpath_pool::Offloads {
        towpath_pool::Offloads::default()
    }

    fn link_type(&self) -> towpath_pool::LinkType {
        towpath_pool::LinkType::Ip
    }

    fn wake_fd(&self) -> Option<BorrowedFd<'_>> {
        None
    }
}
