//! Figures of one thread, and their transfer to the reporting thread.

use std::sync::Mutex;
use std::sync::atomic::Ordering::{Acquire, Release};
use std::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize};
use std::thread::Thread;

use crate::failure::Failures;
use crate::histogram::Histogram;

/// Figures of a thread since they were last handed over.
#[derive(Default)]
pub struct Tally {
    pub sent: u64,
    pub received: u64,
    pub bytes_sent: u64,
    pub bytes_received: u64,
    pub reconnects: u64,
    pub closed_idle: u64,
    pub late_answers: u64,
    pub waited_for_user: u64,
    pub failures: Failures,
    pub response: Histogram,
    pub service: Histogram,
    pub connect: Histogram,
    pub lateness: Histogram,
    pub lost: Histogram,
}

impl Tally {
    pub fn merge(&mut self, other: &Self) {
        let Self {
            sent,
            received,
            bytes_sent,
            bytes_received,
            reconnects,
            closed_idle,
            late_answers,
            waited_for_user,
            failures,
            response,
            service,
            connect,
            lateness,
            lost,
        } = other;
        self.sent += sent;
        self.received += received;
        self.bytes_sent += bytes_sent;
        self.bytes_received += bytes_received;
        self.reconnects += reconnects;
        self.closed_idle += closed_idle;
        self.late_answers += late_answers;
        self.waited_for_user += waited_for_user;
        self.failures.merge(failures);
        self.response.merge(response);
        self.service.merge(service);
        self.connect.merge(connect);
        self.lateness.merge(lateness);
        self.lost.merge(lost);
    }

    /// Resets all figures, but keeps the memory of the histograms.
    pub fn clear(&mut self) {
        let histograms = [
            &mut self.response,
            &mut self.service,
            &mut self.connect,
            &mut self.lateness,
            &mut self.lost,
        ];
        histograms.into_iter().filter(|it| !it.is_empty()).for_each(Histogram::clear);
        self.failures.clear();
        self.sent = 0;
        self.received = 0;
        self.bytes_sent = 0;
        self.bytes_received = 0;
        self.reconnects = 0;
        self.closed_idle = 0;
        self.late_answers = 0;
        self.waited_for_user = 0;
    }
}

/// Slot in which a thread hands over its tally (its measurements), and current values of the
/// thread.
///
/// At the reporter's request the thread swaps its tally with the empty one in the slot. The
/// reporter merges the histograms, because merging takes longer than an answer.
#[derive(Default)]
pub struct ThreadReports {
    tally: Mutex<Tally>,
    is_wanted: AtomicBool,
    /// Number of users with a connection.
    pub connected: AtomicUsize,
    /// Number of connects in progress.
    pub connecting: AtomicUsize,
    /// Number of users that have had a connection or a failure.
    pub settled: AtomicUsize,
    /// Delay of the oldest request that is due and not sent yet, in ns.
    pub behind_ns: AtomicU64,
}

impl ThreadReports {
    /// Requests the tally of the thread. The caller must wake the thread afterwards.
    pub fn want(&self) {
        self.is_wanted.store(true, Release);
    }

    pub fn is_wanted(&self) -> bool {
        self.is_wanted.load(Acquire)
    }

    /// Exchanges the tally of the thread for the empty one in the slot, if the reporter has
    /// requested it.
    pub fn hand_over(&self, tally: &mut Tally, reporter: &Thread) {
        if self.is_wanted() {
            let mut place = self.tally.lock().expect("the reporter does not panic");
            std::mem::swap(&mut *place, tally);
            drop(place);
            self.is_wanted.store(false, Release);
            reporter.unpark();
        }
    }

    /// Merges the tally in the slot into each element of `sums`.
    pub fn collect<const N: usize>(&self, sums: [&mut Tally; N]) {
        let mut place = self.tally.lock().expect("the thread does not panic meanwhile");
        sums.into_iter().for_each(|it| it.merge(&place));
        place.clear();
    }
}
