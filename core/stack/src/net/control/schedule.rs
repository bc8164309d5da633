//! Timed tasks of interfaces: solicitations, reports, ends of lifetimes.

use core::net::{IpAddr, Ipv4Addr, Ipv6Addr};
use std::collections::BTreeMap;

use towpath_tcp::Instant;

use crate::net::iface::IfaceId;
use crate::net::limits::GROUP_REPORTS_MAX;

/// Task to run on an interface.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Task {
    /// Announce an own IPv4 address.
    Announce(Ipv4Addr),
    /// Continue duplicate address detection; `left` solicitations remain.
    Detect { addr: Ipv6Addr, left: u8 },
    /// Solicit routers; `left` solicitations remain.
    SolicitRouters { left: u8 },
    /// Report a joined or left group with its sources; `left` reports remain.
    ReportGroup { group: IpAddr, left: u8 },
    /// Report an added or removed source of a group; `left` reports remain.
    ReportSource { group: IpAddr, source: IpAddr, left: u8 },
    /// Report all groups of a family, because of a query or because a link-local address has become
    /// available.
    AnswerAll { ipv6: bool },
    /// Report one group, because of a query.
    AnswerGroup { group: IpAddr },
    /// Expire addresses and routes that routers advertised.
    Lifetimes,
}

impl Task {
    /// Returns whether the task reports a change of a group.
    fn is_report(&self) -> bool {
        matches!(self, Self::ReportGroup { .. } | Self::ReportSource { .. })
    }

    /// Returns whether the task reports a change of `group`.
    pub(super) fn is_report_of(&self, group: IpAddr) -> bool {
        match self {
            Self::ReportGroup { group: of, .. } | Self::ReportSource { group: of, .. } => {
                *of == group
            }
            _ => false,
        }
    }
}

/// Tasks sorted by time, the next one last. Their number is small: a few per address and group, and
/// at most [`GROUP_REPORTS_MAX`] for joined and left groups.
#[derive(Debug, Default)]
pub(super) struct TaskSchedule {
    tasks: Vec<(Instant, IfaceId, Task)>,
    /// Number of tasks that report a change of a group.
    reports: usize,
}

impl TaskSchedule {
    pub(super) fn next(&self) -> Instant {
        self.tasks.last().map_or(Instant::FAR, |(at, ..)| *at)
    }

    /// Returns whether another report of a group change may be scheduled.
    pub(super) fn has_room_for_report(&self) -> bool {
        self.reports < GROUP_REPORTS_MAX
    }

    pub(super) fn add(&mut self, at: Instant, iface: IfaceId, task: Task) {
        self.reports += usize::from(task.is_report());
        let place = self.tasks.partition_point(|(other, ..)| *other > at);
        self.tasks.insert(place, (at, iface, task));
    }

    /// Schedules the planned answers about groups. An answer that is pending for an earlier time is
    /// kept, a later one is replaced. Takes a single pass for any number of groups and tasks.
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
        // The list is in reverse order, so new tasks go first: the stable sort keeps them behind
        // earlier tasks of the same time.
        self.tasks.splice(..0, new);
        self.tasks.sort_by_key(|(at, ..)| core::cmp::Reverse(*at));
    }

    /// Removes the tasks of `iface` for which `gone` returns true.
    pub(super) fn cancel(&mut self, iface: IfaceId, gone: impl Fn(&Task) -> bool) {
        let reports = &mut self.reports;
        self.tasks.retain(|(_, on, task)| {
            let stays = *on != iface || !gone(task);
            *reports -= usize::from(!stays && task.is_report());
            stays
        });
    }

    /// Returns the time of the first task of `iface` for which `wanted` returns true.
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
