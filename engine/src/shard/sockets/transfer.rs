//! Bytes that a program wrote or read, and shutdown(2).

use std::sync::atomic::Ordering::Relaxed;

use towpath_ring::SocketSend;
use towpath_shm::layout::{Kind, event, flags, shut};

use crate::shard::net::Net;
use crate::shard::sockets::Sockets;

impl Sockets {
    /// Sends new bytes or datagrams of the transmit FIFO.
    pub(crate) fn transmit(&mut self, net: &mut Net, slot: u32) {
        let Some(entry) = self.slots.get(slot) else { return };
        if entry.is_datagram() {
            self.send_datagrams(net, slot);
        } else if let Some(id) = entry.id
            && let Some(send) = net.stack.send_buffer(id).and_then(SocketSend::slot)
            && send.pull()
        {
            net.stack.send_ready(id);
        }
    }

    /// Handles the notification that a program has read.
    pub(crate) fn received(&mut self, net: &mut Net, slot: u32) {
        let now = self.now;
        let Some(entry) = self.slots.get(slot) else { return };
        if entry.kind != Kind::Stream {
            return;
        }
        if let Some(id) = entry.id {
            net.stack.recv_taken(now, id);
        }
    }

    /// shutdown(2).
    pub(crate) fn shut_down(&mut self, net: &mut Net, slot: u32, how: u32) {
        let Some(entry) = self.slots.get(slot) else { return };
        let (kind, id) = (entry.kind, entry.id);
        if how & shut::WRITE != 0 && kind == Kind::Stream {
            self.transmit(net, slot);
            if let Some(id) = id {
                net.stack.shutdown_send(id);
            }
            self.slots.set_flags(slot, flags::TX_CLOSED, 0);
            self.slots.post(slot, event::TX);
            self.telling.to_publish.push(slot);
        }
        if how & shut::READ != 0 {
            // The other threads and processes at this socket see the program's own word for it.
            self.slots.post(slot, event::RX | event::RDHUP);
        }
        // READ and WRITE, shut one after the other, are as good as both at once. (`shut` is the
        // program's word, and wakes holders of the socket alone.)
        let both = shut::READ | shut::WRITE;
        if (how | self.slots.shared(slot).shut.load(Relaxed)) & both == both {
            self.slots.post(slot, event::HUP);
        }
    }
}
