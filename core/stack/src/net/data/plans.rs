//! Plans for the packets of a batch, made ahead of their departure.

use core::net::IpAddr;
use std::collections::VecDeque;

use crate::net::fib::Choice;
use crate::net::iface::IfaceId;

/// Source and destination of a packet, and the route that was looked up for them.
pub(super) type Looked = ((IpAddr, IpAddr), Option<Choice>);

/// Plans for the packets of a batch.
#[derive(Debug, Default)]
pub(super) struct Plans {
    list: Vec<TransitPlan>,
    /// Packets of the batch that are dealt with.
    next: usize,
    /// Routes of the packets with the plan [`TransitPlan::Receive`], looked up ahead.
    looked: VecDeque<Option<Looked>>,
}

/// Intention for one packet of a batch.
#[derive(Debug, Clone, Copy)]
pub(super) enum TransitPlan {
    /// `receive` decides.
    Receive,
    /// The packet leaves by this interface and router, with `len` bytes of IP.
    Pass { out: IfaceId, len: u16, router: u32 },
}

impl Plans {
    /// Forgets all plans, since another snapshot may contradict them.
    #[inline]
    pub(super) fn clear(&mut self) {
        self.list.clear();
        self.next = 0;
        self.looked.clear();
    }

    /// Adds the plan for the next packet of the batch. `looked` is its route if `receive` decides.
    #[inline]
    pub(super) fn push(&mut self, plan: TransitPlan, looked: impl FnOnce() -> Option<Looked>) {
        if let TransitPlan::Receive = plan {
            self.looked.push_back(looked());
        }
        self.list.push(plan);
    }

    /// The plan for the packet at the front of the batch.
    #[inline]
    pub(super) fn front(&self) -> Option<TransitPlan> {
        self.list.get(self.next).copied()
    }

    /// Goes on to the next packet, after one that left as planned.
    #[inline]
    pub(super) fn advance(&mut self) {
        self.next += 1;
    }

    /// Goes on to the next packet, after one that `receive` gets. Returns its route, if that was
    /// looked up.
    pub(super) fn pass_over(&mut self) -> Option<Looked> {
        let plan = self.front();
        self.advance();
        match plan {
            Some(TransitPlan::Receive) => self.looked.pop_front().flatten(),
            Some(TransitPlan::Pass { .. }) | None => None,
        }
    }
}
