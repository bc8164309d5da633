//! Deliveries that continue in later turns of the event loop, because socket filters have used up
//! the limit of instructions of one turn.

use towpath_pool::Pool;

use crate::cx::Cx;
use crate::drop::DropReason;
use crate::host::Host;
use crate::limits;
use crate::stack::Stack;
use crate::udp::deliveries::{ArrivedDatagrams, Delivery};

impl<H: Host> Stack<H> {
    /// Queues a packet whose delivery continues in a later turn of the event loop.
    #[cold]
    pub(crate) fn deliver_later(&mut self, cx: &mut Cx<'_, H>, mut delivery: Delivery) {
        self.counters.deliveries_put_off += 1;
        // Copy the packet out of the device's frame. The device has few frames, and the filter may
        // take a long time.
        delivery.local.packet.leave_frame(cx.pool);
        let payer = self.next_payer(cx.host, &delivery);
        if let Some(delivery) = self.datagrams.deliveries.push(payer, delivery) {
            self.drop_delivery(delivery, DropReason::UdpFilterBusy, cx.pool);
        }
    }

    /// Returns the number of the program to which the next receiver of a packet belongs.
    fn next_payer(&self, host: &H, delivery: &Delivery) -> u64 {
        let receivers = &delivery.receivers;
        let index = if receivers.is_known {
            receivers.list.get(receivers.next).and_then(|id| self.index(*id))
        } else {
            self.first_taker(&delivery.arrived(), receivers.hash)
        };
        index.and_then(|index| self.payer(host, index)).unwrap_or_default()
    }

    /// Continues the delivery of waiting packets. The queues of programs are served in turn, each
    /// for a limited number of filter instructions.
    pub(crate) fn deliver_waiting(&mut self, cx: &mut Cx<'_, H>) {
        let portion = |steps: usize| steps + limits::FILTER_STEPS_A_PORTION;
        let mut end = portion(self.datagrams.filter_steps);
        while self.datagrams.filter_steps <= limits::FILTER_STEPS_A_TURN {
            let Some((mut delivery, payer)) = self.datagrams.deliveries.pop() else { return };
            let steps_max = end.min(limits::FILTER_STEPS_A_TURN);
            if self.go_on_delivering(cx.host, &mut delivery, steps_max, payer) {
                self.end_delivery(delivery, cx.pool);
            } else {
                let next = self.next_payer(cx.host, &delivery);
                if next == payer {
                    self.datagrams.deliveries.put_back(payer, delivery);
                } else if let Some(delivery) = self.datagrams.deliveries.push(next, delivery) {
                    self.drop_delivery(delivery, DropReason::UdpFilterBusy, cx.pool);
                }
            }
            if self.datagrams.filter_steps > end {
                self.datagrams.deliveries.pass();
                end = portion(self.datagrams.filter_steps);
            }
        }
    }

    /// Continues to deliver a packet to its remaining receivers. Returns true if the packet was
    /// delivered to all of them.
    fn go_on_delivering(
        &mut self,
        host: &mut H,
        delivery: &mut Delivery,
        steps_max: usize,
        payer: u64,
    ) -> bool {
        let Delivery { local, meta, header_len, receivers } = delivery;
        let arrived = ArrivedDatagrams::new(local, *meta, *header_len);
        if !receivers.is_known {
            self.list_takers(&arrived, receivers.hash, &mut receivers.list);
            receivers.is_known = true;
        }
        self.give_on(host, &arrived, receivers, steps_max, Some(payer))
    }

    fn end_delivery(&mut self, delivery: Delivery, pool: &mut Pool) {
        let Delivery { local, receivers, .. } = delivery;
        self.datagrams.deliveries.give_list(receivers.list);
        match self.count_given(receivers.given) {
            Ok(()) => pool.give(local.packet),
            Err(reason) => self.drop_local(local, reason, pool),
        }
    }

    fn drop_delivery(&mut self, delivery: Delivery, reason: DropReason, pool: &mut Pool) {
        self.datagrams.deliveries.give_list(delivery.receivers.list);
        self.drop_local(delivery.local, reason, pool);
    }
}
