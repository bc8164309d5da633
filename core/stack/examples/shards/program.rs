//! The program of a shard: uses its sockets and takes its events.

use std::net::SocketAddr;

use towpath_pool::{Fragments, Pool};
use towpath_ring::{HeapRecv, HeapSend, Payload, RecvBuffer};
use towpath_stack::{
    ChildElsewhere, DatagramMeta, DatagramOut, Elsewhere, Host, Instant, SocketEvent, SocketId,
    Stack,
};

use crate::peer::{ASKED, Work};

/// User numbers per shard. User numbers are unique across shards, because a listener's shard also
/// gets the users of children in peer shards.
const USERS: usize = 1 << 16;
/// Bytes of a write.
const CHUNK: [u8; 16 * 1024] = [7; 16 * 1024];

/// Program of a shard. Depending on `work`, it answers requests, reads, or writes while there is
/// room.
pub struct Program {
    work: Work,
    /// User number of the first connection.
    first: usize,
    connections: Vec<SocketId>,
    events: Vec<(u32, SocketEvent)>,
    asked: Vec<SocketAddr>,
    /// Number of children in the accept queue, which have to be taken out of it.
    pub queued: u32,
    pub datagram_socket: Option<SocketId>,
    /// Payload that was read.
    pub bytes: u64,
}

impl Program {
    pub fn new(work: Work, shard: usize) -> Self {
        Self {
            work,
            first: shard * USERS,
            connections: Vec::new(),
            events: Vec::new(),
            asked: Vec::new(),
            queued: 0,
            datagram_socket: None,
            bytes: 0,
        }
    }

    fn adopt(&mut self, child: SocketId) -> (u32, HeapRecv, HeapSend) {
        let user = (self.first + self.connections.len()) as u32;
        self.connections.push(child);
        let room = self.work.room();
        // Queue the first event, so that a writing program begins.
        self.events.push((user, SocketEvent::Writable));
        (user, HeapRecv::new(room, room), HeapSend::new(room, room))
    }

    /// Handles the events of a turn.
    pub fn run(&mut self, now: Instant, stack: &mut Stack<Self>, pool: &mut Pool) {
        let mut events = std::mem::take(&mut self.events);
        for (user, event) in events.drain(..) {
            let connection = (user as usize).checked_sub(self.first);
            let Some(&id) = connection.and_then(|n| self.connections.get(n)) else { continue };
            match (self.work, event) {
                (Work::Requests, SocketEvent::Readable) => self.answer(now, id, stack),
                (Work::Receive, SocketEvent::Readable) => drop(self.read(now, id, stack)),
                (Work::Send, SocketEvent::Writable) => fill(id, stack),
                (_, SocketEvent::Error(error)) => panic!("a connection failed: {error:?}"),
                _ => {}
            }
        }
        self.events = events;
        let mut asked = std::mem::take(&mut self.asked);
        for remote in asked.drain(..) {
            let Some(socket) = self.datagram_socket else { break };
            let out = DatagramOut { remote: Some(remote), ..Default::default() };
            let answer = Payload::new(&CHUNK[..ASKED], Fragments::empty());
            stack.send_datagram(now, socket, &out, &answer, pool).expect("the device takes all");
        }
        self.asked = asked;
    }

    fn read(&mut self, now: Instant, id: SocketId, stack: &mut Stack<Self>) -> usize {
        let Some(recv) = stack.recv_buffer(id) else { return 0 };
        let unread = recv.unread();
        recv.consume(unread);
        stack.recv_taken(now, id);
        self.bytes += u64::from(unread);
        unread as usize
    }

    fn answer(&mut self, now: Instant, id: SocketId, stack: &mut Stack<Self>) {
        let requests = self.read(now, id, stack) / ASKED;
        if let Some(send) = stack.send_buffer(id).filter(|_| requests > 0) {
            for _ in 0..requests {
                send.write(&Payload::new(&CHUNK[..ASKED], Fragments::empty()));
            }
            stack.send_ready(id);
        }
    }
}

fn fill(id: SocketId, stack: &mut Stack<Program>) {
    let Some(send) = stack.send_buffer(id) else { return };
    while send.write(&Payload::new(&CHUNK, Fragments::empty())) > 0 {}
    stack.send_ready(id);
}

impl Host for Program {
    type Recv = HeapRecv;
    type Send = HeapSend;

    fn recv_room(&self, _: u32) -> u32 {
        self.work.room()
    }

    fn accept(
        &mut self,
        _: u32,
        child: SocketId,
        _: SocketAddr,
        _: SocketAddr,
    ) -> Option<(u32, HeapRecv, HeapSend)> {
        self.queued += 1;
        Some(self.adopt(child))
    }

    fn accept_for(
        &mut self,
        _: &Elsewhere,
        child: SocketId,
        _: SocketAddr,
        _: SocketAddr,
    ) -> Option<ChildElsewhere<HeapRecv, HeapSend>> {
        let (user, recv, send) = self.adopt(child);
        Some(ChildElsewhere { user, tag: 0, recv, send, waits: false })
    }

    fn enqueue(&mut self, _: u32, _: (u32, u32), _: SocketAddr, _: SocketAddr) -> bool {
        self.queued += 1;
        true
    }

    fn event(&mut self, user: u32, event: SocketEvent) {
        self.events.push((user, event));
    }

    fn datagram(&mut self, _: u32, meta: &DatagramMeta, _: &Payload<'_>) -> bool {
        self.asked.push(meta.remote);
        true
    }
}
