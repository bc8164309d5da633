//! Passes datagrams received by host sockets to the program.

use towpath_ring::Payload;
use towpath_shm::Fragments;
use towpath_stack::{DatagramFrom, Host};

use crate::context::Context;
use crate::siblings::SiblingEnds;
use crate::sys::Received;

/// Sends a datagram, or several coalesced ones, to the program.
pub(super) fn to_program(
    cx: &mut Context<'_, impl Host>,
    key: &SiblingEnds,
    bytes: &[u8],
    received: &Received,
) {
    let Received { segment, ttl, tos, .. } = *received;
    let out = DatagramFrom { local: key.peer, remote: key.program, ttl, tos };
    let size = segment.map_or(bytes.len(), usize::from).max(1);
    // An empty datagram must be passed on, too, so run the loop at least once.
    let mut rest = Some(bytes);
    while let Some(bytes) = rest {
        let (one, left) = bytes.split_at(size.min(bytes.len()));
        rest = Some(left).filter(|left| !left.is_empty());
        let payload = Payload::new(one, Fragments::empty());
        match cx.stack.send_datagram_from(cx.now, &out, &payload, cx.pool) {
            Ok(_) => cx.shared.counters.udp_to_program += 1,
            Err(_) => cx.shared.counters.udp_dropped += 1,
        }
    }
    cx.touched = true;
}
