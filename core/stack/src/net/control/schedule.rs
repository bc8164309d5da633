//! Scheduled tasks of interfaces: solicitations, multicast reports, and the ends of lifetimes.

use core::net::{IpAddr, Ipv4Addr, Ipv6Addr};
use std::collections::BTreeMap;

use towpath_tcp::Instant;

use crate::net::iface::IfaceId;
use crate::net::limits::GROUP_REPORTS_MAX;

/// A task that runs on an interface at a scheduled time.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Task {
    /// Announce one of our own IPv4 addresses by ARP.
    Announce(Ipv4Addr),
    /// Continue duplicate address detection: `left` solicitations are still to be sent.
    Detect { addr: Ipv6Addr, left: u8 },
    /// Send a router solicitation; `left` solicitations are still to be sent.
    SolicitRouters { left: u8 },
    /// Report a multicast group that was joined or left, with its sources. The report is still to
    /// be sent `left` times.
    ReportGroup { group: IpAddr, left: u8 },
    /// Report a source that was added to or removed from a multicast group: `left` reports are
    /// still to be sent.
    ReportSource { group: IpAddr, source: IpAddr, left: u8 },
    /// Report all multicast groups of one IP version, because of a query, or because the interface
    /// now has a link-local address.
    AnswerAll { ipv6: bool },
    /// Report one multicast group, because of a query.
    AnswerGroup { group: IpAddr },
    /// Remove addresses and routes from router advertisements whose lifetime has ended.
    Lifetimes,
}

impl Task {
    /// Returns whether the task reports a change of a multicast group.
    fn is_report(&self) -> bool {
        matches!(self, Self::ReportGroup { .. } | Self::ReportSource { .. })
    }

    /// Returns whether the task reports a change of the multicast group `group`.
    pub(super) fn is_report_of(&self, group: IpAddr) -> bool {
        match self {
            Self::ReportGroup { group: of, .. } | Self::ReportSource { group: of, .. } => {
                *of == group
            }
            _ => false,
        }
    }
}

/// Scheduled tasks, sorted by time in descending order, so that the next task is last in the list.
/// The list is short: it has few tasks per address and group, and at most [`GROUP_REPORTS_MAX`] for
/// groups that were joined or left.
#[derive(Debug, Default)]
pub(super) struct TaskSchedule {
    tasks: Vec<(Instant, IfaceId, Task)>,
    /// Number of tasks that report a change of a multicast group.
    reports: usize,
}

impl TaskSchedule {
    pub(super) fn next(&self) -> Instant {
        self.tasks.last().map_or(Instant::FAR, |(at, ..)| *at)
    }

    /// Returns whether another report about a group change may be scheduled.
    pub(super) fn has_room_for_report(&self) -> bool {
        self.reports < GROUP_REPORTS_MAX
    }

    pub(super) fn add(&mut self, at: Instant, iface: IfaceId, task: Task) {
        self.reports += usize::from(task.is_report());
        let place = self.tasks.partition_point(|(other, ..)| *other > at);
        self.tasks.insert(place, (at, iface, task));
    }

    /// Schedules answers to queries about groups, each at the given time. If an answer about a
    /// group is already scheduled, the earlier time is kept. Takes a single pass over the tasks,
    /// regardless of the number of groups.
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
        // The list is in reverse order. Insert new tasks at the front, so that the stable sort
        // keeps them after earlier tasks with the same time.
        self.tasks.splice(..0, new);
        self.tasks.sort_by_key(|(at, ..)| core::cmp::Reverse(*at));
    }

    /// Removes the tasks of interface `iface` for which `gone` returns true.
    pub(super) fn cancel(&mut self, iface: IfaceId, gone: impl Fn(&Task) -> bool) {
        let reports = &mut self.reports;
        self.tasks.retain(|(_, on, task)| {
            let stays = *on != iface || !gone(task);
            *reports -= usize::from(!stays && task.is_report());
            stays
        });
    }

    /// Returns the time of the first task of interface `iface` for which `wanted` returns true.
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
