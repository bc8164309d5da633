//! What is due: the tasks of `schedule`, neighbours that are asked again or have not answered, and what expires.

use core::net::IpAddr;

use towpath_pool::Pool;
use towpath_tcp::Instant;

use super::iface::IfaceId;
use super::layer::Net;
use super::neighbor::{Event, Solicit};
use super::schedule::Task;

impl Net {
    /// When [`Net::on_timeout`] wants to be called next.
    pub fn next_timeout(&self) -> Option<Instant> {
        let next = self
            .schedule
            .next()
            .min(self.neighbors.next_timeout())
            .min(self.reassembly.next_timeout())
            .min(self.mtus.next_timeout());
        (next != Instant::FAR).then_some(next)
    }

    /// Does everything that is due at `now`.
    pub fn on_timeout(&mut self, now: Instant, pool: &mut Pool) {
        // A confirmation that was told before ends a probe that is due.
        self.exchange(now, pool);
        while let Some((iface, task)) = self.schedule.pop_due(now) {
            self.run(now, iface, task, pool);
        }
        for event in self.neighbors.on_timeout(now) {
            match event {
                Event::Solicit(solicit) => self.solicit(now, solicit, pool),
                Event::Failed(key) => {
                    self.counters.neighbors_failed += 1;
                    self.routes.on_hop_failed(now, &key);
                }
            }
        }
        for expired in self.reassembly.on_timeout(now) {
            self.on_reassembly_expired(now, expired, pool);
        }
        self.mtus.expire(now);
        self.exchange(now, pool);
    }

    fn run(&mut self, now: Instant, iface: IfaceId, task: Task, pool: &mut Pool) {
        match task {
            Task::Announce(addr) => self.announce(iface, addr, pool),
            Task::Detect { addr, left } => self.detect(now, iface, addr, left, pool),
            Task::SolicitRouters { left } => self.solicit_routers(now, iface, left, pool),
            Task::ReportGroup { group, left } => self.report_group(now, iface, (group, left), pool),
            Task::ReportSource { group, source, left } => {
                self.report_source(now, iface, (group, source, left), pool);
            }
            Task::AnswerAll { ipv6 } => self.answer_all(now, iface, ipv6, pool),
            Task::AnswerGroup { group } => self.answer_group(now, iface, group, pool),
            Task::Lifetimes => self.end_lifetimes(now, iface),
        }
    }

    /// Asks where a neighbour is.
    pub(super) fn solicit(&mut self, now: Instant, solicit: Solicit, pool: &mut Pool) {
        let (iface, target) = solicit.key;
        let asked = match target {
            IpAddr::V4(target) => self.ask_arp(iface, target, solicit.to, pool),
            IpAddr::V6(target) => self.ask_ndp(now, iface, target, solicit.to, pool),
        };
        self.counters.solicits_sent += u64::from(asked);
    }
}
