//! Plans for forwarding the packets of a batch, made before the packets are processed.

use core::net::IpAddr;
use std::collections::VecDeque;

use crate::net::fib::Choice;
use crate::net::iface::IfaceId;

/// Source and destination address of a packet, and the route that was looked up for them.
pub(super) type Looked = ((IpAddr, IpAddr), Option<Choice>);

/// Plans for the packets of a batch, in their order.
#[derive(Debug, Default)]
pub(super) struct Plans {
    list: Vec<TransitPlan>,
    /// Index in the batch of the packet that is processed next.
    next: usize,
    /// Routes that were looked up for packets with the plan [`TransitPlan::Receive`]; `None` for a
    /// packet whose route was not looked up.
    looked: VecDeque<Option<Looked>>,
    /// Route of the packet that is passed to `receive` next.
    current: Option<Looked>,
}

/// Plan for one packet of a batch: forward it at once, or pass it to the normal receive path.
#[derive(Debug, Clone, Copy)]
pub(super) enum TransitPlan {
    /// Pass the packet to `receive`, because it is not a simple case of forwarding.
    Receive,
    /// Forward the packet, an IP packet of `len` bytes, by the interface `out` to the next hop with
    /// the IPv4 address `router`.
    Pass { out: IfaceId, len: u16, router: u32 },
}

impl Plans {
    /// Removes all plans, because a new snapshot of the configuration invalidates them.
    #[inline]
    pub(super) fn clear(&mut self) {
        self.list.clear();
        self.next = 0;
        self.looked.clear();
        self.current = None;
    }

    /// Appends the plan for the next packet of the batch. `looked` returns the packet's route, if
    /// the plan is to pass it to `receive`.
    #[inline]
    pub(super) fn push(&mut self, plan: TransitPlan, looked: impl FnOnce() -> Option<Looked>) {
        if let TransitPlan::Receive = plan {
            self.looked.push_back(looked());
        }
        self.list.push(plan);
    }

    /// Returns the plan for the packet at the front of the batch.
    #[inline]
    pub(super) fn front(&self) -> Option<TransitPlan> {
        self.list.get(self.next).copied()
    }

    /// Removes the plan of a packet that was forwarded.
    #[inline]
    pub(super) fn advance(&mut self) {
        self.next += 1;
    }

    /// Removes the plan of a packet that is passed to `receive`. If the route of the packet was
    /// looked up, [`take_route`](Self::take_route) then returns it.
    pub(super) fn pass_over(&mut self) {
        let plan = self.front();
        self.advance();
        self.current = match plan {
            Some(TransitPlan::Receive) => self.looked.pop_front().flatten(),
            Some(TransitPlan::Pass { .. }) | None => None,
        };
    }

    /// Removes and returns the route of the packet that is being received, if it was looked up.
    #[inline]
    pub(super) fn take_route(&mut self) -> Option<Looked> {
        self.current.take()
    }
}
