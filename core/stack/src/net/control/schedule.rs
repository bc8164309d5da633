//! What interfaces have to do at some later time: solicitations, reports, the end of lifetimes.

use core::net::{IpAddr, Ipv4Addr, Ipv6Addr};
use std::collections::BTreeMap;

use towpath_tcp::Instant;

use crate::net::iface::IfaceId;

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
