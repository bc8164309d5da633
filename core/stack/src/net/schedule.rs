//! What interfaces have to do at some later time: solicitations, reports, the end of lifetimes.

use core::net::{IpAddr, Ipv4Addr, Ipv6Addr};
use std::collections::BTreeMap;

use towpath_pool::Pool;
use towpath_tcp::Instant;

use super::Net;
use super::iface::IfaceId;
use super::limits::ERRORS_MAX;
use super::neighbor::{Event, Key, Solicit, Waiting};
use crate::drop::DropReason;

/// Something to be done on an interface.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Task {
    /// Tell the link that an IPv4 address is ours.
    Announce(Ipv4Addr),
    /// Go on with duplicate address detection; solicitations left to send.
    Detect { addr: Ipv6Addr, left: u8 },
    /// Ask for routers; how often still.
    SolicitRouters { left: u8 },
    /// Report that a group was joined or left, or for which sources; how often still.
    ReportGroup { group: IpAddr, left: u8 },
    /// Report that a source of a group is wanted or no longer; how often still.
    ReportSource { group: IpAddr, source: IpAddr, left: u8 },
    /// Tell about all groups of a family: somebody asked, or can be told only now.
    AnswerAll { ipv6: bool },
    /// Tell about one group, for which somebody asked.
    AnswerGroup { group: IpAddr },
    /// Let addresses and routes that a router gave grow old.
    Lifetimes,
}

impl Task {
    /// Whether it reports a change of `group`.
    pub(super) fn is_report_of(&self, group: IpAddr) -> bool {
        match self {
            Self::ReportGroup { group: of, .. } | Self::ReportSource { group: of, .. } => {
                *of == group
            }
            _ => false,
        }
    }
}

/// Tasks by time, the next one last. There are few: some for each address and group.
#[derive(Debug, Default)]
pub(super) struct Schedule(Vec<(Instant, IfaceId, Task)>);

impl Schedule {
    pub(super) fn next(&self) -> Instant {
        self.0.last().map_or(Instant::FAR, |(at, ..)| *at)
    }

    pub(super) fn add(&mut self, at: Instant, iface: IfaceId, task: Task) {
        let place = self.0.partition_point(|(other, ..)| *other > at);
        self.0.insert(place, (at, iface, task));
    }

    /// Adds the answers about groups that are planned, at the times given, but for those that are pending for an
    /// earlier time: these stay. A later one gives way. One pass, however many groups and tasks there are.
    pub(super) fn plan_answers(&mut self, iface: IfaceId, mut planned: BTreeMap<IpAddr, Instant>) {
        self.0.retain(|(pending, on, task)| match task {
            Task::AnswerGroup { group } if *on == iface => {
                let sooner = planned.get(group).is_none_or(|at| *pending <= *at);
                if sooner {
                    planned.remove(group);
                }
                sooner
            }
            _ => true,
        });
        let new = planned.into_iter().map(|(group, at)| (at, iface, Task::AnswerGroup { group }));
        // The sort is stable: before those of the same time that were added earlier, for the last one is first.
        self.0.splice(..0, new);
        self.0.sort_by_key(|(at, ..)| core::cmp::Reverse(*at));
    }

    /// Removes the tasks of `iface` for which `gone` is true.
    pub(super) fn cancel(&mut self, iface: IfaceId, gone: impl Fn(&Task) -> bool) {
        self.0.retain(|(_, on, task)| *on != iface || !gone(task));
    }

    /// When the first such task of `iface` is due.
    pub(super) fn when(&self, iface: IfaceId, wanted: impl Fn(&Task) -> bool) -> Option<Instant> {
        let found = self.0.iter().rev().find(|(_, on, task)| *on == iface && wanted(task));
        found.map(|(at, ..)| *at)
    }

    pub(super) fn pop_due(&mut self, now: Instant) -> Option<(IfaceId, Task)> {
        self.0.pop_if(|(at, ..)| *at <= now).map(|(_, iface, task)| (iface, task))
    }
}

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
        while let Some((iface, task)) = self.schedule.pop_due(now) {
            self.run(now, iface, task, pool);
        }
        for event in self.neighbors.on_timeout(now) {
            match event {
                Event::Solicit(solicit) => self.solicit(now, solicit, pool),
                Event::Failed(key, waiting) => self.on_neighbor_failed(now, key, waiting, pool),
            }
        }
        for expired in self.reassembly.on_timeout(now) {
            self.on_reassembly_expired(now, expired, pool);
        }
        self.mtus.expire(now);
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

    //= https://www.rfc-editor.org/rfc/rfc1122#section-2.3.2.1
    //# If the address resolution fails, it SHOULD be reported
    fn on_neighbor_failed(
        &mut self,
        now: Instant,
        key: Key,
        waiting: Vec<Waiting>,
        pool: &mut Pool,
    ) {
        self.counters.neighbors_failed += 1;
        self.routes.on_hop_failed(now, &key);
        let iface = key.0;
        for Waiting { packet, .. } in waiting {
            let error = self.error_about_own(iface, &packet);
            self.errors.extend(error.filter(|_| self.errors.len() < ERRORS_MAX));
            self.drop(iface, packet, DropReason::NeighborUnreachable, pool);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn tasks_come_in_order_of_time_and_equal_times_in_order_of_adding() {
        let mut schedule = Schedule::default();
        let task = |left| Task::SolicitRouters { left };
        for (at, left) in [(5, 1), (3, 2), (5, 3), (9, 4)] {
            schedule.add(Instant(at), IfaceId(1), task(left));
        }
        schedule.cancel(IfaceId(1), |t| *t == task(4));
        assert_eq!(schedule.next(), Instant(3));
        let order: Vec<_> = std::iter::from_fn(|| schedule.pop_due(Instant(5))).collect();
        assert_eq!(order, [2, 1, 3].map(|left| (IfaceId(1), task(left))));
        assert_eq!(schedule.next(), Instant::FAR);
    }

    #[test]
    fn an_answer_that_comes_sooner_stays_and_a_later_one_gives_way() {
        let mut schedule = Schedule::default();
        let group = |n: u8| IpAddr::from([239, 0, 0, n]);
        let answer = |n| Task::AnswerGroup { group: group(n) };
        let solicit = Task::SolicitRouters { left: 1 };
        schedule.add(Instant(4), IfaceId(1), answer(1));
        schedule.add(Instant(9), IfaceId(1), answer(2));
        schedule.add(Instant(6), IfaceId(1), solicit);
        schedule.add(Instant(9), IfaceId(2), answer(2));
        let planned = [(1, 6), (2, 6), (3, 5)].map(|(n, at)| (group(n), Instant(at)));
        schedule.plan_answers(IfaceId(1), planned.into());
        let order: Vec<_> = std::iter::from_fn(|| schedule.pop_due(Instant(9))).collect();
        let (one, other) = (IfaceId(1), IfaceId(2));
        let expected = [
            (one, answer(1)),
            (one, answer(3)),
            (one, solicit),
            (one, answer(2)),
            (other, answer(2)),
        ];
        assert_eq!(order, expected);
    }
}
