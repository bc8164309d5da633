//! Sends datagrams that programs have queued, and fills the error queues of their sockets.

use std::net::{IpAddr, SocketAddr};
use std::sync::atomic::Ordering::Release;

use towpath_ring::{EngineSend, Payload, SendBuffer, take_tx_wanted};
use towpath_shm::control::{COPIED_REPORT, ControlReply, LOCAL_REPORT, Request};
use towpath_shm::layout::{DatagramHeader, Plain, RawAddr, event, flags};
use towpath_stack::net::IfaceId;
use towpath_stack::{DatagramOut, Linger, Message, SendError, SocketError, SocketId};

use crate::errno::{EAGAIN, EINVAL, Errno};
use crate::shard::net::Net;
use crate::shard::sockets::Sockets;
use crate::shard::sockets::children::fits;
use crate::shard::sockets::slots::{Owned, present, present_on};

const HEADER: u32 = size_of::<DatagramHeader>() as u32;
/// Maximum number of datagrams that are sent for one socket in one iteration of the event loop.
const DATAGRAMS_A_TURN: u32 = 64;
/// Maximum number of sockets in the queue `to_send` that are served in one iteration of the event
/// loop. Together they may send as many packets as all connections together.
const BACKLOG_A_TURN: usize = 4;
/// Length in bytes of the beginning of an error report: address and scope id of the host that
/// reported the error.
const REPORTER: usize = 16 + 4;

impl Sockets {
    /// Sends the datagrams that a program has queued in its socket's send buffer.
    pub(crate) fn send_datagrams(&mut self, net: &mut Net, slot: u32) {
        let Some(entry) = self.slots.get_mut(slot) else { return };
        let Some(owned) = entry.owned.as_deref_mut() else { return };
        let Some(tx) = &mut owned.tx else { return };
        // Do not send here for a socket in `to_send`, which is served from that queue. Otherwise a
        // program could send more than others by extra notifications.
        if tx.pull() && !owned.backlogged && self.send_some(net, slot, true) {
            self.put_off(slot);
        }
    }

    /// Adds a socket to the queue `to_send`, to be served in the next iteration of the event loop.
    /// A socket is in the queue at most once, so that extra notifications have no effect.
    pub(crate) fn put_off(&mut self, slot: u32) {
        let Some(entry) = self.slots.get_mut(slot) else { return };
        if !std::mem::replace(&mut entry.owned().backlogged, true) {
            self.outgoing.to_send.push_back(slot);
        }
    }

    pub(crate) fn is_put_off(&mut self, slot: u32) -> Option<&mut bool> {
        let owned = self.slots.get_mut(slot)?.owned.as_deref_mut()?;
        Some(&mut owned.backlogged).filter(|backlogged| **backlogged)
    }

    /// Continues to send datagrams of the sockets in the queue `to_send`, in order.
    pub(crate) fn send_put_off(&mut self, net: &mut Net) {
        for _ in 0..self.outgoing.to_send.len().min(BACKLOG_A_TURN) {
            let Some(slot) = self.outgoing.to_send.pop_front() else { return };
            // The entry is outdated if the slot was reused for another socket.
            let Some(backlogged) = self.is_put_off(slot) else { continue };
            *backlogged = false;
            let is_closing = self.slots.get(slot).is_some_and(|entry| entry.closing);
            if self.send_some(net, slot, !is_closing) {
                self.put_off(slot);
            } else if is_closing {
                self.end_of_closing(net, slot, Linger::Default);
            }
        }
    }

    /// Sends the queued datagrams of a socket that is about to be closed. Returns false if some are
    /// left; the socket is then closed after the last one in a later iteration. Drops datagrams
    /// that do not fit in a device's queue.
    pub(crate) fn flush_datagrams(&mut self, net: &mut Net, slot: u32) -> bool {
        self.send_datagrams(net, slot);
        if self.is_put_off(slot).is_none() && self.send_some(net, slot, false) {
            self.put_off(slot);
        }
        self.is_put_off(slot).is_none()
    }

    /// Adds sockets to the queue `to_send` again, because devices have space in their queues.
    fn resume_senders(&mut self) {
        for slot in std::mem::take(&mut self.outgoing.to_resume) {
            // If the slot was reused, the call is harmless, because the new socket has no datagrams
            // to send.
            self.put_off(slot);
        }
    }

    /// Checks whether a datagram is too long to be sent. Answers a request of send(2), which does
    /// not wait until a queued datagram is sent.
    pub(crate) fn check_length(
        &mut self,
        net: &mut Net,

        slot: u32,
        request: &Request,
    ) -> Result<ControlReply, Errno> {
        let now = self.now;
        let entry = self.slots.get(slot).ok_or(Errno(EINVAL))?;
        let (family, id) = (entry.family, entry.id.ok_or(Errno(EINVAL))?);
        if !entry.is_datagram() || request.payload().len() < HEADER as usize {
            return Err(Errno(EINVAL));
        }
        let header = DatagramHeader::from_bytes(request.payload());
        let out = out(family, &header).ok_or(Errno(EINVAL))?;
        let checked = net.stack.check_datagram(now, id, &out, header.len);
        // Move pending errors to the socket's error queue before the reply is sent, because the
        // program reads the queue next.
        net.stack.tell(self);
        checked?;
        Ok(ControlReply::default())
    }

    /// Removes and returns the oldest report of a socket's error queue. As on Linux, the error of
    /// the next report becomes the socket's pending error if it came from the network. Errors of
    /// this host do not, because the failing call has already returned them.
    pub(crate) fn take_report(&mut self, net: &mut Net, slot: u32) -> Result<ControlReply, Errno> {
        let entry = self.slots.get_mut(slot).ok_or(Errno(EAGAIN))?;
        let family = entry.family;
        let errors = entry.owned.as_deref_mut().map(|owned| &mut owned.errors);
        let popped = errors.and_then(|errors| Some((errors.pop_front()?, errors)));
        let Some((report, errors)) = popped else {
            // Return timestamps only after all error reports.
            let stamp = self.take_stamp(slot);
            self.look_for_reports(slot);
            return stamp.map_or_else(|| self.take_copied(slot), Ok);
        };
        let next = errors.front().filter(|next| next.message.is_some());
        let pending = next.map(|next| Errno::from(next.reason).0);
        let pending = pending.or(report.message.is_some().then_some(0));
        self.look_for_reports(slot);
        if let Some(errno) = pending {
            self.slots.shared(slot).error.store(errno, Release);
        }
        let mut reply = ControlReply {
            a: Errno::from(report.reason).0 as u32,
            b: report.message.map_or(LOCAL_REPORT, |message| {
                u32::from(message.kind) << 8 | u32::from(message.code)
            }),
            addr: present(family, report.remote),
            ..ControlReply::default()
        };
        // Set the scope id only for errors from the network. Errors found on this host have none,
        // as on Linux.
        let scope_on = |message: &Message, addr: SocketAddr| {
            let iface = net.stack.net.link_of(message.iface, addr.ip());
            present_on(family, addr, Some(iface)).scope
        };
        reply.addr.scope = report.message.map_or(0, |message| scope_on(&message, report.remote));
        if let SocketError::MessageTooBig(mtu) = report.reason {
            reply.slot = mtu;
        }
        let scope = report
            .message
            .map_or(0, |message| scope_on(&message, SocketAddr::new(message.from, 0)));
        let (from, payload) = reply.data.split_at_mut(REPORTER);
        from[16..].copy_from_slice(&scope.to_ne_bytes());
        match report.message.map(|message| message.from) {
            Some(IpAddr::V4(v4)) => from[..4].copy_from_slice(&v4.octets()),
            Some(IpAddr::V6(v6)) => from[..16].copy_from_slice(&v6.octets()),
            None => {}
        }
        let n = report.payload.len().min(payload.len());
        payload[..n].copy_from_slice(&report.payload[..n]);
        reply.len = (REPORTER + n) as u32;
        Ok(reply)
    }

    /// Returns one completion report for all MSG_ZEROCOPY sends that were not reported yet, as
    /// Linux's `skb_zerocopy_notify_extend` does.
    fn take_copied(&mut self, slot: u32) -> Result<ControlReply, Errno> {
        let entry = self.slots.get_mut(slot).ok_or(Errno(EAGAIN))?;
        let (first, next) = entry.rare().zero_copied;
        if first == next {
            return Err(Errno(EAGAIN));
        }
        entry.set_rare(|rare| rare.zero_copied.0 = next);
        self.look_for_reports(slot);
        let last = next.wrapping_sub(1);
        Ok(ControlReply { a: last, b: COPIED_REPORT, slot: first, ..ControlReply::default() })
    }

    /// Counts a MSG_ZEROCOPY send, whose completion is reported later. The send is complete at
    /// once, because the data was copied to the FIFO.
    pub(crate) fn note_copied(&mut self, slot: u32) {
        let Some(entry) = self.slots.get_mut(slot) else { return };
        entry.set_rare(|rare| rare.zero_copied.1 = rare.zero_copied.1.wrapping_add(1));
        self.slots.set_flags(slot, flags::ERRORS, 0);
        self.slots.post(slot, event::ERROR);
    }

    /// Clears the flag `ERRORS` of a socket if its error queue is empty.
    fn look_for_reports(&mut self, slot: u32) {
        let Some(entry) = self.slots.get(slot) else { return };
        let queued = |owned: &Owned| !owned.errors.is_empty() || !owned.sent.is_empty();
        let rare = entry.rare();
        let (first, next) = rare.zero_copied;
        let stamped = rare.stamps.as_ref().is_some_and(|stamps| !stamps.unread.is_empty());
        if first == next && !stamped && !entry.owned.as_deref().is_some_and(queued) {
            self.slots.set_flags(slot, 0, flags::ERRORS);
        }
    }

    /// Drops all reports in a socket's error queue, because IP_RECVERR was disabled.
    pub(crate) fn forget_reports(&mut self, slot: u32) {
        let owned = self.slots.get_mut(slot).and_then(|entry| entry.owned.as_deref_mut());
        if let Some(owned) = owned {
            owned.errors.clear();
            self.look_for_reports(slot);
        }
    }

    /// Frees bytes in datagram send buffers to which packets of this iteration referred. Queues
    /// sockets that waited for space in a device's queue.
    pub(crate) fn return_lent(&mut self) {
        self.resume_senders();
        for slot in std::mem::take(&mut self.outgoing.to_return) {
            let Some(entry) = self.slots.get_mut(slot) else { continue };
            let Some(owned) = entry.owned.as_deref_mut() else { continue };
            let n = std::mem::take(&mut owned.tx_lent);
            if let Some(tx) = &mut owned.tx {
                tx.release(n);
            }
            if take_tx_wanted(self.slots.shared(slot)) {
                self.slots.post(slot, event::TX);
            }
        }
    }

    /// Sends up to [`DATAGRAMS_A_TURN`] datagrams of a socket. Returns true if more are queued.
    /// With `may_wait`, datagrams that exceed the socket's limit in the device's queue stay in the
    /// send buffer until `SocketEvent::Writable`.
    fn send_some(&mut self, net: &mut Net, slot: u32, may_wait: bool) -> bool {
        let now = self.now;
        for _ in 0..DATAGRAMS_A_TURN {
            let Some(entry) = self.slots.get_mut(slot) else { return false };
            let (family, Some(id), false) = (entry.family, entry.id, entry.hostile) else {
                return false;
            };
            let Some(owned) = entry.owned.as_deref_mut() else { return false };
            let Some(tx) = &mut owned.tx else { return false };
            let (header, len) = match next(tx, owned.tx_lent) {
                NextDatagram::Datagram(header, len) => (header, len),
                NextDatagram::None => return false,
                NextDatagram::Nonsense => {
                    self.reset_socket(net, slot);
                    return false;
                }
            };
            if may_wait && net.stack.datagram_waits(id) {
                return false;
            }
            let payload = Payload::new(&[], tx.peek(owned.tx_lent + HEADER, header.len));
            self.counters.work(1);
            if owned.tx_lent == 0 {
                self.outgoing.to_return.push(slot);
            }
            owned.tx_lent += len;
            let sent = match out(family, &header) {
                Some(out) => net.stack.send_datagram(now, id, &out, &payload, &mut net.pool),
                None => Err(SendError::Invalid),
            };
            self.after_send(net, slot, id, sent);
        }
        true
    }

    fn after_send(&mut self, net: &mut Net, slot: u32, id: SocketId, sent: Result<(), SendError>) {
        match sent {
            Ok(()) => self.note_sent(slot),
            Err(error) => {
                self.counters.datagrams_refused += 1;
                self.set_error(slot, Errno::from(error));
            }
        }
        if self.slots.get(slot).is_some_and(|entry| entry.flags & flags::BOUND == 0) {
            self.publish_local(net, slot, id);
        }
    }

    /// Publishes the local address of a socket to programs. Sets the flag `BOUND` only if there is
    /// a local port.
    pub(crate) fn publish_local(&mut self, net: &mut Net, slot: u32, id: SocketId) {
        let now = self.now;
        let Some(entry) = self.slots.get(slot) else { return };
        let local = net.stack.info(now, id).and_then(|info| info.local);
        let local = local.map_or(RawAddr::default(), |local| net.present_own(entry.family, local));
        self.slots.shared(slot).local.store(&local);
        let (set, clear) = if local.port == 0 { (0, flags::BOUND) } else { (flags::BOUND, 0) };
        self.slots.set_flags(slot, set, clear);
    }
}

enum NextDatagram {
    Datagram(DatagramHeader, u32),
    None,
    Nonsense,
}

/// Reads a datagram's header, `skip` bytes after the start of the send buffer, and determines the
/// length of the whole record.
fn next(tx: &EngineSend, skip: u32) -> NextDatagram {
    let queued = tx.len().saturating_sub(skip);
    if queued == 0 {
        return NextDatagram::None;
    }
    if queued < HEADER {
        return NextDatagram::Nonsense;
    }
    let mut bytes = [0; HEADER as usize];
    if !tx.read(skip, &mut bytes) {
        return NextDatagram::Nonsense;
    }
    let header = DatagramHeader::from_bytes(&bytes);
    let len = header.len.checked_add(HEADER).and_then(|len| len.checked_next_multiple_of(8));
    match len {
        Some(len) if header.len <= 65_535 && len <= queued => NextDatagram::Datagram(header, len),
        _ => NextDatagram::Nonsense,
    }
}

/// Returns a datagram's destination and options for the stack. `None` if an address is invalid.
fn out(family: u32, header: &DatagramHeader) -> Option<DatagramOut> {
    let remote = match header.remote.to_socket_addr() {
        None if header.remote.family != 0 => return None,
        Some(remote) if !fits(family, &remote) => return None,
        remote => remote,
    };
    let local = header
        .local
        .to_socket_addr()
        .map(|addr| addr.ip())
        .filter(|ip: &IpAddr| !ip.is_unspecified());
    let iface = match header.ifindex {
        0 => None,
        index => Some(IfaceId(u16::try_from(index - 1).ok()?)),
    };
    // A value above 255 selects the default (`DatagramHeader::DEFAULT`).
    let or_default = |value: u16| u8::try_from(value).ok();
    Some(DatagramOut {
        remote,
        local,
        iface,
        ttl: or_default(header.ttl),
        tos: or_default(header.tos),
        segment_size: (header.segment_size != 0).then_some(header.segment_size),
    })
}

#[cfg(test)]
mod tests {
    use crate::shard::sockets::slots::AF_INET;
    use crate::{Engine, EngineConfig};
    use towpath_shm::layout::Kind;

    #[test]
    fn a_socket_is_put_off_once() {
        let mut engine = Engine::new(EngineConfig::default(), Vec::new(), [7; 32]).expect("memory");
        let now = engine.shard.sockets.now;
        let slot = engine.shard.sockets.slots.allocate(Kind::Datagram, AF_INET, 17).expect("room");
        (0..3).for_each(|_| engine.shard.sockets.put_off(slot));
        assert_eq!(engine.shard.sockets.outgoing.to_send, [slot]);
        engine.shard.send_put_off(now);
        assert!(
            engine.shard.sockets.outgoing.to_send.is_empty()
                && engine.shard.sockets.is_put_off(slot).is_none()
        );
        assert!(engine.shard.flush_datagrams(now, slot));
        // Close the socket while it is queued for sending. The slot must be freed only after its
        // last datagram is sent.
        engine.shard.sockets.put_off(slot);
        assert!(!engine.shard.flush_datagrams(now, slot));
        engine.shard.sockets.slots.get_mut(slot).expect("it is there").closing = true;
        assert!(engine.shard.sockets.released.to_free.is_empty());
        engine.shard.send_put_off(now);
        assert!(
            engine.shard.sockets.outgoing.to_send.is_empty()
                && engine.shard.sockets.is_put_off(slot).is_none()
        );
        assert_eq!(engine.shard.sockets.released.to_free, [slot]);
    }
}
