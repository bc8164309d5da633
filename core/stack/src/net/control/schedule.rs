//! Tasks of interfaces for a later time: solicitations, reports, ends of lifetimes.

use core::net::{IpAddr, Ipv4Addr, Ipv6Addr};
use std::collections::BTreeMap;

use towpath_tcp::Instant;

use crate::net::iface::IfaceId;
use crate::net::limits::GROUP_REPORTS_MAX;

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
    /// Report all groups of a family: a querier asked, or there was no address to report from
    /// before.
    AnswerAll { ipv6: bool },
    /// Report one group, for which a querier asked.
    AnswerGroup { group: IpAddr },
    /// Let addresses and routes that a router gave grow old.
    Lifetimes,
}

impl Task {
    /// Whether it reports a change of some group.
    fn is_report(&self) -> bool {
        matches!(self, Self::ReportGroup { .. } | Self::ReportSource { .. })
    }

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

/// Tasks by time, the next one last. There are few: some for each address and group, and at most
/// [`GROUP_REPORTS_MAX`] of groups that programs joined and left.
#[derive(Debug, Default)]
pub(super) struct TaskSchedule {
    tasks: Vec<(Instant, IfaceId, Task)>,
    /// How many of them report a change of a group.
    reports: usize,
}

impl TaskSchedule {
    pub(super) fn next(&self) -> Instant {
        self.tasks.last().map_or(Instant::FAR, |(at, ..)| *at)
    }

    /// Whether one more change of a group may be reported.
    pub(super) fn has_room_for_report(&self) -> bool {
        self.reports < GROUP_REPORTS_MAX
    }

    pub(super) fn add(&mut self, at: Instant, iface: IfaceId, task: Task) {
        self.reports += usize::from(task.is_report());
        let place = self.tasks.partition_point(|(other, ..)| *other > at);
        self.tasks.insert(place, (at, iface, task));
    }

    /// Adds the answers about groups that are planned, at the times given, but for those that are
    /// pending for an earlier time: these stay. A later one gives way. A single pass, however many
    /// groups and tasks there are.
    pub(super) fn plan_answers(&mut self, iface: IfaceId, mut planned: BTreeMap<IpAddr, Instant>) {
        self.tasks.retain(|(pending, on, task)| match task {
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
        // The sort is stable: before those of the same time that were added earlier, for the last
        // one is first.
        self.tasks.splice(..0, new);
        self.tasks.sort_by_key(|(at, ..)| core::cmp::Reverse(*at));
    }

    /// Removes the tasks of `iface` for which `gone` is true.
    pub(super) fn cancel(&mut self, iface: IfaceId, gone: impl Fn(&Task) -> bool) {
        let reports = &mut self.reports;
        self.tasks.retain(|(_, on, task)| {
            let stays = *on != iface || !gone(task);
            *reports -= usize::from(!stays && task.is_report());
            stays
        });
    }

    /// When the first such task of `iface` is due.
    pub(super) fn when(&self, iface: IfaceId, wanted: impl Fn(&Task) -> bool) -> Option<Instant> {
        let found = self.tasks.iter().rev().find(|(_, on, task)| *on == iface && wanted(task));
        found.map(|(at, ..)| *at)
    }

    pub(super) fn pop_due(&mut self, now: Instant) -> Option<(IfaceId, Task)> {
        let (_, iface, task) = self.tasks.pop_if(|(at, ..)| *at <= now)?;
        self.reports -= usize::from(task.is_report());
        Some((iface, task))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn tasks_come_in_order_of_time_and_equal_times_in_order_of_adding() {
        let mut schedule = TaskSchedule::default();
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
        let mut schedule = TaskSchedule::default();
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
