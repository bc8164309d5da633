//! Owner of a stack with one datagram socket.

use std::net::SocketAddr;

use towpath_lab_measure::ECHO_PAYLOAD;
use towpath_ring::{HeapRecv, HeapSend, Payload};
use towpath_stack::{DatagramMeta, Host, SocketEvent, SocketId};

/// Owner of the socket. Keeps received datagrams until they are answered.
#[derive(Default)]
pub struct Owner {
    pub received: Vec<(SocketAddr, [u8; ECHO_PAYLOAD])>,
}

impl Host for Owner {
    type Recv = HeapRecv;
    type Send = HeapSend;

    fn recv_room(&self, _: u32) -> u32 {
        0
    }

    fn accept(
        &mut self,
        _: u32,
        _: SocketId,
        _: SocketAddr,
        _: SocketAddr,
    ) -> Option<(u32, HeapRecv, HeapSend)> {
        None
    }

    fn datagram(&mut self, _: u32, meta: &DatagramMeta, payload: &Payload<'_>) -> bool {
        let mut bytes = [0; ECHO_PAYLOAD];
        if payload.len() as usize != bytes.len() {
            return false;
        }
        payload.copy_to(0, &mut bytes);
        self.received.push((meta.remote, bytes));
        true
    }

    fn event(&mut self, _: u32, _: SocketEvent) {}
}
