//! Executes a run: its threads and phases.

use std::net::SocketAddr;
use std::panic::resume_unwind;
use std::sync::atomic::Ordering::{Relaxed, Release};
use std::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize};
use std::thread::{self, ScopedJoinHandle};
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use crate::alarm::RunClock;
use crate::error::Error;
use crate::machine::{self, MachineUsage};
use crate::moments::{Moments, Quota};
use crate::plan::{Plan, Protocol, Shape};
use crate::report::{Ended, FellBehind, Generator, Period, Report, ReportSnapshot, RunPhase};
use crate::sockets;
use crate::tally::{Tally, ThreadReports};
use crate::worker::{LoadWorker, Post, Remains};

/// Executes `plan` in its own threads, and returns the figures.
///
/// Calls `watch` once per [`Plan::period`] on the calling thread, which sends no requests. Setting
/// `stop` ends the measurement within some 20 ms. The run then waits for outstanding answers as
/// usual, at most for [`Plan::grace`]. Raises the process's soft limit on file descriptors to the
/// hard limit.
///
/// # Errors
/// Returns an [`Error`] if the run could not start. Failures of connections are part of the report.
///
/// # Panics
/// Panics if `watch` panics.
pub fn run(
    plan: &Plan,
    stop: &AtomicBool,
    watch: &mut dyn FnMut(&ReportSnapshot),
) -> Result<Report, Error> {
    plan.check()?;
    let threads = plan.threads.min(plan.users);
    sockets::allow_descriptors(plan.users, threads)?;
    plan.local_addresses.iter().try_for_each(|&it| sockets::check_local(it))?;
    let posts = (0..threads).map(|_| Post::new()).collect::<Result<Vec<_>, _>>()?;
    let wakers: Vec<_> = posts.iter().map(|it| it.waker.clone()).collect();
    let desks: Vec<ThreadReports> = (0..threads).map(|_| ThreadReports::default()).collect();
    let started = SystemTime::now().duration_since(UNIX_EPOCH).map_or(0, |it| it.as_secs());
    let address = match plan.protocol {
        Protocol::Udp => plan.target.addresses[0],
        _ => sockets::accepting(&plan.target.addresses, plan.connect_timeout),
    };
    let moments = Moments {
        clock: RunClock::start(),
        traffic: AtomicU64::new(u64::MAX),
        end: AtomicU64::new(u64::MAX),
        drained: AtomicU64::new(u64::MAX),
        quota: plan.requests.map(Quota::new),
    };
    thread::scope(|scope| {
        let conductor =
            Conductor { plan, stop, moments: &moments, desks: &desks, wakers: &wakers, address };
        let reporter = thread::current();
        let mut handles = Vec::with_capacity(threads);
        for (thread, (post, desk)) in posts.into_iter().zip(&desks).enumerate() {
            let place = (thread, threads);
            let reporter = reporter.clone();
            let worker = LoadWorker::new(plan, &moments, desk, reporter, post, address, place)?;
            let name = format!("load {thread}");
            let handle = thread::Builder::new().name(name).spawn_scoped(scope, || worker.run());
            handles.push(handle.map_err(Error::system("start a thread"))?);
        }
        conductor.conduct(handles, started, watch)
    })
}

/// Ends the threads in all cases, even after a panic of `watch`, because the scope waits for their
/// end.
impl Drop for Conductor<'_> {
    fn drop(&mut self) {
        self.moments.end.store(0, Release);
        self.moments.drained.store(0, Release);
        // Start the traffic as well, because a thread checks for the end only after the traffic has
        // started.
        self.moments.traffic.fetch_min(0, Release);
        self.wake();
    }
}

/// Interval at which the value of `stop` is checked.
const LOOK: Duration = Duration::from_millis(20);
/// Maximum time to wait until a thread hands over its tally, the measurements since the last
/// hand-over. After a timeout, the thread is asked again in the next period.
const HAND_OVER: Duration = Duration::from_millis(200);

/// State of the reporting thread, which controls the phases of the run and adds up the figures.
struct Conductor<'a> {
    plan: &'a Plan,
    stop: &'a AtomicBool,
    moments: &'a Moments,
    desks: &'a [ThreadReports],
    wakers: &'a [std::sync::Arc<mio::Waker>],
    address: SocketAddr,
}

/// Sums of the figures over the whole run, and over the current period.
struct PeriodSums {
    total: Tally,
    period: Tally,
    periods: Vec<Period>,
    /// End of the last period, relative to the start of the measurement.
    until: Duration,
    ended: Ended,
    /// Time at which the traffic started, in ns of the run's clock.
    connecting: u64,
    before: Option<MachineUsage>,
}

impl Conductor<'_> {
    fn conduct(
        &self,
        handles: Vec<ScopedJoinHandle<'_, Result<Remains, Error>>>,
        started: u64,
        watch: &mut dyn FnMut(&ReportSnapshot),
    ) -> Result<Report, Error> {
        let mut sums = PeriodSums {
            total: Tally::default(),
            period: Tally::default(),
            periods: Vec::new(),
            until: Duration::ZERO,
            ended: Ended::Duration,
            connecting: 0,
            before: None,
        };
        self.connect(&handles, &mut sums, watch);
        self.measure(&handles, &mut sums, watch);
        let mut remains = Vec::with_capacity(handles.len());
        for handle in handles {
            remains.push(handle.join().unwrap_or_else(|panic| resume_unwind(panic))?);
        }
        Ok(self.report(sums, remains, started))
    }

    /// Waits until each user has a connection or a failure, or until no more users make progress.
    fn connect(
        &self,
        handles: &[ScopedJoinHandle<'_, Result<Remains, Error>>],
        sums: &mut PeriodSums,
        watch: &mut dyn FnMut(&ReportSnapshot),
    ) {
        let (mut most, mut last) = (0, self.now());
        let mut next = last + self.period();
        let is_each = self.plan.shape == Shape::ConnectEach;
        loop {
            let now = self.now();
            let settled = self.sum(|it| &it.settled);
            let connected = self.sum(|it| &it.connected);
            if connected > most {
                (most, last) = (connected, now);
            }
            // Stop waiting if there is no progress. An address that drops SYNs would delay
            // thousands of users, one batch after the other.
            let patience = (self.plan.connect_timeout + LOOK * 10).as_nanos() as u64;
            if is_each || settled >= self.plan.users || now - last > patience {
                break;
            }
            if self.stop.load(Relaxed) || handles.iter().any(ScopedJoinHandle::is_finished) {
                break;
            }
            if now >= next {
                next += self.period();
                self.gather(sums);
                sums.period.clear();
                watch(&self.snapshot(sums, RunPhase::Connecting));
            }
            // Check often, because connecting usually takes only milliseconds.
            thread::park_timeout(Duration::from_millis(1));
        }
        sums.connecting = self.now();
        let is_hopeless = !is_each && self.sum(|it| &it.connected) == 0;
        if self.stop.load(Relaxed) {
            sums.ended = Ended::Stopped;
            self.begin(0, 0);
        } else if is_hopeless {
            sums.ended = Ended::NoConnection;
            self.begin(0, 0);
        } else {
            let length = self.plan.warmup + self.plan.duration;
            self.begin(length.as_nanos() as u64, self.plan.grace.as_nanos() as u64);
        }
    }

    /// Sets the start and the end of the traffic, and the maximum time to wait for answers
    /// afterwards.
    fn begin(&self, length: u64, grace: u64) {
        let traffic = self.now();
        self.moments.end.store(traffic + length, Release);
        self.moments.drained.store(traffic + length + grace, Release);
        self.moments.traffic.store(traffic, Release);
        self.wake();
    }

    fn measure(
        &self,
        handles: &[ScopedJoinHandle<'_, Result<Remains, Error>>],
        sums: &mut PeriodSums,
        watch: &mut dyn FnMut(&ReportSnapshot),
    ) {
        let traffic = self.moments.traffic.load(Relaxed);
        let start = traffic + self.plan.warmup.as_nanos() as u64;
        let mut next = (traffic + self.period()).min(start);
        while !handles.iter().all(ScopedJoinHandle::is_finished) {
            let now = self.now();
            let end = self.moments.end.load(Relaxed);
            if self.stop.load(Relaxed) && sums.ended == Ended::Duration && now < end {
                sums.ended = Ended::Stopped;
                self.stop_at(now);
            } else if self.quota_over() <= now && sums.ended == Ended::Duration && now < end {
                sums.ended = Ended::Requests;
                self.stop_at(now);
            } else if now >= next && now < end {
                if now < start {
                    self.gather(sums);
                    sums.period.clear();
                    watch(&self.snapshot(sums, RunPhase::WarmingUp));
                    next = (next + self.period()).min(start);
                } else if sums.before.is_none() {
                    sums.before = Some(machine::usage());
                    next = start + self.period();
                } else {
                    self.gather(sums);
                    self.end_period(sums, Duration::from_nanos(now - start));
                    watch(&self.snapshot(sums, RunPhase::Measuring));
                    next += self.period();
                }
            }
            let until = next.max(now).min(end.max(now)) - now;
            let look = Duration::from_nanos(until).min(LOOK).max(Duration::from_millis(1));
            thread::park_timeout(look);
        }
    }

    fn stop_at(&self, now: u64) {
        self.moments.drained.store(now + self.plan.grace.as_nanos() as u64, Release);
        self.moments.end.store(now, Release);
        self.wake();
    }

    /// Returns the time at which the last request of a quota was answered or lost, or `u64::MAX`
    /// before that.
    fn quota_over(&self) -> u64 {
        self.moments.quota.as_ref().map_or(u64::MAX, |it| it.over.load(Relaxed))
    }

    /// Collects the tallies of all threads and adds them to the sums.
    fn gather(&self, sums: &mut PeriodSums) {
        self.desks.iter().for_each(ThreadReports::want);
        self.wake();
        let limit = self.now() + HAND_OVER.as_nanos() as u64;
        while self.desks.iter().any(ThreadReports::is_wanted) && self.now() < limit {
            thread::park_timeout(Duration::from_millis(1));
        }
        for desk in self.desks {
            desk.collect([&mut sums.total, &mut sums.period]);
        }
    }

    /// Appends a period with the figures since the end of the last period.
    fn end_period(&self, sums: &mut PeriodSums, at: Duration) {
        let it = &sums.period;
        sums.periods.push(Period {
            at,
            length: at.saturating_sub(sums.until),
            sent: it.sent,
            received: it.received,
            failed: it.failures.total(),
            bytes_sent: it.bytes_sent,
            bytes_received: it.bytes_received,
            connected: self.sum(|it| &it.connected),
            p50: it.response.quantile(0.5),
            p90: it.response.quantile(0.9),
            p99: it.response.quantile(0.99),
            max: it.response.max(),
        });
        sums.until = at;
        sums.period.clear();
    }

    fn snapshot(&self, sums: &PeriodSums, phase: RunPhase) -> ReportSnapshot {
        let behind = self.desks.iter().map(|it| it.behind_ns.load(Relaxed)).max();
        ReportSnapshot {
            phase,
            since_start: Duration::from_nanos(self.now()),
            elapsed: sums.until,
            users: self.plan.users,
            connected: self.sum(|it| &it.connected),
            connecting: self.sum(|it| &it.connecting),
            sent: sums.total.sent,
            received: sums.total.received,
            bytes_sent: sums.total.bytes_sent,
            bytes_received: sums.total.bytes_received,
            failures: sums.total.failures.clone(),
            response: sums.total.response.clone(),
            service: sums.total.service.clone(),
            behind: Duration::from_nanos(behind.unwrap_or(0)),
            period: sums.periods.last().cloned(),
        }
    }

    fn report(&self, mut sums: PeriodSums, remains: Vec<Remains>, started_unix_s: u64) -> Report {
        self.desks.iter().for_each(|it| it.collect([&mut sums.total, &mut sums.period]));
        for it in &remains {
            sums.total.merge(&it.tally);
            sums.period.merge(&it.tally);
        }
        let duration = self.duration(&remains);
        if duration > sums.until {
            self.end_period(&mut sums, duration);
        }
        let after = machine::usage();
        let before = sums.before.unwrap_or(after);
        let retransmits = after.retransmits.zip(before.retransmits);
        let mut unsent: u64 = remains.iter().map(|it| it.unsent).sum();
        if let Some(requests) = self.plan.requests {
            // Subtract the requests in the schedule that exceed the plan's number of requests.
            unsent = unsent.min(requests.saturating_sub(sums.total.sent));
        }
        let slept = remains.iter().map(|it| it.slept).min().unwrap_or(0) as f64;
        let total = sums.total;
        let generator = Generator {
            lateness: total.lateness,
            waited_for_user: total.waited_for_user,
            unsent,
            busy: (1. - slept / duration.as_nanos().max(1) as f64).clamp(0., 1.),
        };
        let scheduled = total.sent + unsent;
        Report {
            plan: self.plan.clone(),
            address: self.address,
            started_unix_s,
            ended: sums.ended,
            connecting: Duration::from_nanos(sums.connecting),
            duration,
            connected: remains.iter().map(|it| it.connected).sum(),
            scheduled,
            sent: total.sent,
            received: total.received,
            bytes_sent: total.bytes_sent,
            bytes_received: total.bytes_received,
            failures: total.failures,
            reconnects: total.reconnects,
            closed_idle: total.closed_idle,
            late_answers: total.late_answers,
            response: total.response,
            service: total.service,
            connect: total.connect,
            lost: total.lost,
            fell_behind: FellBehind::of(&generator, scheduled),
            generator,
            periods: sums.periods,
            cpu: after.cpu.saturating_sub(before.cpu),
            memory_bytes_max: machine::memory_max(),
            retransmits: retransmits.map(|(after, before)| after.saturating_sub(before)),
        }
    }

    /// Returns the duration of the measurement. An upload stream ends when the server has closed
    /// it, because only then have all bytes arrived.
    fn duration(&self, remains: &[Remains]) -> Duration {
        let start = self.moments.traffic.load(Relaxed) + self.plan.warmup.as_nanos() as u64;
        let end = remains.iter().map(|it| it.end.max(it.last_end)).max().unwrap_or(0);
        let end = end.min(self.quota_over());
        Duration::from_nanos(end.saturating_sub(start))
    }

    fn sum(&self, gauge: fn(&ThreadReports) -> &AtomicUsize) -> usize {
        self.desks.iter().map(|it| gauge(it).load(Relaxed)).sum()
    }

    fn now(&self) -> u64 {
        self.moments.clock.now()
    }

    fn period(&self) -> u64 {
        self.plan.period.as_nanos() as u64
    }

    fn wake(&self) {
        // Ignore errors: the thread then wakes at its next deadline.
        self.wakers.iter().for_each(|it| drop(it.wake()));
    }
}
