//! Detects loops: packets of the gateway's own host sockets that the host's routes lead back into
//! the gateway's device.
//!
//! Otherwise each flow would create another flow, until the process runs out of descriptors. The
//! kernel delivers the first packet of such a flow to the device within the system call that sends
//! it. Therefore it suffices to remember the most recent flows.

use std::collections::{HashSet, VecDeque};
use std::net::{IpAddr, SocketAddr};

use rustix::net::getsockname;
use towpath_shm::Fd;

use crate::limits::LOOPS_REMEMBERED_MAX;

/// Addresses of the most recent connections of the gateway's host sockets.
#[derive(Debug, Default)]
pub(crate) struct Loops {
    /// Whether flows are recorded. Not needed if the program's stack is in this process, because
    /// the host then has no route to it.
    on: bool,
    order: VecDeque<Pair>,
    known: HashSet<Pair>,
}

/// Local and peer address of a host socket.
type Pair = (SocketAddr, SocketAddr);

impl Loops {
    pub(crate) fn new(on: bool) -> Self {
        Self { on, ..Self::default() }
    }

    /// Records a host socket that is connected or connecting to `to`.
    pub(crate) fn note(&mut self, host: &Fd, to: SocketAddr) {
        if !self.on {
            return;
        }
        let local = getsockname(host).ok().and_then(|addr| SocketAddr::try_from(addr).ok());
        if let Some(local) = local {
            self.remember((local, to));
        }
    }

    /// Records a host socket that sends echo requests. The ICMP identifier is recorded in place of
    /// the local port. For a raw socket, `raw` is the identifier. The peer's port is recorded as 0.
    pub(crate) fn note_echo(&mut self, host: &Fd, to: IpAddr, raw: Option<u16>) {
        let local = getsockname(host).ok().and_then(|addr| SocketAddr::try_from(addr).ok());
        if let Some(mut local) = local.filter(|_| self.on) {
            local.set_port(raw.unwrap_or(local.port()));
            self.remember((local, SocketAddr::new(to, 0)));
        }
    }

    fn remember(&mut self, pair: Pair) {
        if self.order.len() >= LOOPS_REMEMBERED_MAX
            && let Some(oldest) = self.order.pop_front()
        {
            self.known.remove(&oldest);
        }
        if self.known.insert(pair) {
            self.order.push_back(pair);
        }
    }

    /// Returns whether a flow from `from` to `to` was sent by one of the gateway's own host
    /// sockets.
    pub(crate) fn has(&self, from: SocketAddr, to: SocketAddr) -> bool {
        self.on && self.known.contains(&(from, to))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn pair(n: usize) -> Pair {
        let addr = |port| SocketAddr::from(([10, 0, (n >> 8) as u8, n as u8], port));
        (addr(4000), addr(80))
    }

    #[test]
    fn the_newest_flows_are_known() {
        let mut loops = Loops::new(true);
        for n in 0..=LOOPS_REMEMBERED_MAX {
            loops.remember(pair(n));
        }
        let has = |n| loops.has(pair(n).0, pair(n).1);
        assert!(!has(0));
        assert!(has(1) && has(LOOPS_REMEMBERED_MAX));
        let (from, to) = pair(1);
        assert!(!loops.has(to, from));
        assert_eq!(loops.order.len(), loops.known.len());
    }

    #[test]
    fn a_flow_that_is_remembered_twice_leaves_no_trace() {
        let mut loops = Loops::new(true);
        loops.remember(pair(1));
        for n in 1..=LOOPS_REMEMBERED_MAX + 1 {
            loops.remember(pair(n));
        }
        assert!(!loops.has(pair(1).0, pair(1).1));
        assert!(loops.order.len() <= LOOPS_REMEMBERED_MAX);
        assert_eq!(loops.order.len(), loops.known.len());
    }
}
