//! Runs the scheduled tasks that are due, and handles the deadlines of neighbours.

use towpath_pool::Pool;
use towpath_tcp::Instant;

use super::neighbor::Event;
use super::schedule::Task;
use super::tables::Control;
use crate::net::iface::IfaceId;
use crate::net::limits::TASKS_A_TURN;

impl Control {
    /// Returns the time at which [`on_timeout`](Self::on_timeout) must be called.
    pub(in crate::net) fn next_timeout(&self) -> Instant {
        self.schedule.next().min(self.neighbors.next_timeout())
    }

    /// Runs the tasks that are due at `now`, but at most `TASKS_A_TURN` of them. If some remain,
    /// [`next_timeout`](Self::next_timeout) is in the past.
    pub(in crate::net) fn on_timeout(&mut self, now: Instant, pool: &mut Pool) {
        for _ in 0..TASKS_A_TURN {
            let Some((iface, task)) = self.schedule.pop_due(now) else { break };
            self.run(now, iface, task, pool);
        }
        for event in self.neighbors.on_timeout(now) {
            match event {
                Event::Solicit(solicit) => self.solicit(solicit, pool),
                Event::Failed(key) => {
                    self.counters.neighbors_failed += 1;
                    self.routes.on_hop_failed(now, &key);
                }
            }
        }
        self.publish();
    }

    fn run(&mut self, now: Instant, iface: IfaceId, task: Task, pool: &mut Pool) {
        match task {
            Task::Announce(addr) => self.announce(iface, addr, pool),
            Task::Detect { addr, left } => self.detect(now, iface, addr, left, pool),
            Task::SolicitRouters { left } => self.solicit_routers(now, iface, left, pool),
            Task::ReportGroup { group, left } => self.report_group(now, iface, group, left, pool),
            Task::ReportSource { group, source, left } => {
                self.report_source(now, iface, group, source, left, pool);
            }
            Task::AnswerAll { ipv6 } => self.answer_all(iface, ipv6, pool),
            Task::AnswerGroup { group } => self.answer_group(now, iface, group, pool),
            Task::Lifetimes => self.end_lifetimes(now, iface),
        }
    }
}
