//! Subscribers of a run: clients that receive reports until they close their connection.
//!
//! Memory for unsent reports is limited. If a client reads too slowly, further reports are dropped.
//! Their number is sent before the next report that fits, or when the client has received all
//! earlier reports.

use std::io::{self, Read, Write};
use std::os::unix::net::UnixStream;
use std::time::Instant;

use rustix::event::PollFlags;

use crate::subscription::RunReport;

/// Maximum number of bytes of a client's unsent reports. The largest sample of sockets fits four
/// times.
pub(crate) const UNSENT_REPORTS_LEN_MAX: usize = 2 << 20;

/// Makes the reports for a subscription.
pub trait ReportSource {
    /// Returns the time of the next report, or at which to look for changes.
    fn due(&self) -> Instant;

    /// Requests to look for changes at once, because a request has just changed the run.
    fn hurry(&mut self);

    /// Returns the reports that are due. `None` if the run has ended.
    fn collect(&mut self, now: Instant) -> Option<Vec<RunReport>>;
}

/// Unsent reports of a client.
#[derive(Debug, Default)]
struct UnsentReports {
    bytes: Vec<u8>,
    sent: usize,
    /// Number of reports that were dropped since the last one was stored.
    lost: u64,
    /// Time of the latest dropped report in microseconds, as in [`RunReport::time_us`].
    lost_at_us: u64,
}

impl UnsentReports {
    fn unsent(&self) -> &[u8] {
        &self.bytes[self.sent..]
    }

    /// Stores a report, or drops it if the client has too many unsent ones.
    fn push(&mut self, report: &RunReport) {
        let mut line = Vec::new();
        if self.lost > 0 {
            put_lost(&mut line, self.lost, report.time_us);
        }
        put_line(&mut line, report);
        if self.unsent().len() + line.len() > UNSENT_REPORTS_LEN_MAX {
            // A source may report a number of reports that it has not even made.
            self.lost = self.lost.saturating_add(report.lost.unwrap_or(1));
            self.lost_at_us = report.time_us;
            // A report that never fits is followed by no confirmation if it is the only one.
            self.confirm(0);
            return;
        }
        self.lost = 0;
        self.bytes.drain(..std::mem::take(&mut self.sent));
        self.bytes.append(&mut line);
    }

    /// Counts bytes that the socket has accepted. If the client has then received all reports but
    /// those that were dropped, stores their number. Otherwise a client could believe an outdated
    /// state until the next change.
    fn confirm(&mut self, len: usize) {
        self.sent += len;
        if self.lost > 0 && self.unsent().is_empty() {
            (self.bytes, self.sent) = (Vec::new(), 0);
            put_lost(&mut self.bytes, std::mem::take(&mut self.lost), self.lost_at_us);
        }
    }
}

fn put_lost(to: &mut Vec<u8>, lost: u64, time_us: u64) {
    put_line(to, &RunReport { time_us, lost: Some(lost), ..RunReport::default() });
}

fn put_line(to: &mut Vec<u8>, report: &RunReport) {
    // Serialization cannot fail, because a report contains only numbers, strings and addresses.
    to.extend(serde_json::to_vec(report).unwrap_or_default());
    to.push(b'\n');
}

/// A client that receives reports.
pub(crate) struct Subscriber {
    source: Box<dyn ReportSource>,
    outbox: UnsentReports,
    /// Whether the client has shut down its sending direction.
    is_half_closed: bool,
}

impl Subscriber {
    /// Creates a subscriber, which receives `first` before the reports.
    pub fn new(source: Box<dyn ReportSource>, mut first: Vec<u8>) -> Self {
        first.push(b'\n');
        let outbox = UnsentReports { bytes: first, ..UnsentReports::default() };
        Self { source, outbox, is_half_closed: false }
    }

    /// Returns the time at which [`Self::collect`] must be called.
    pub fn due(&self) -> Instant {
        self.source.due()
    }

    pub fn hurry(&mut self) {
        self.source.hurry();
    }

    /// Returns the number of unsent bytes.
    pub fn unsent(&self) -> usize {
        self.outbox.unsent().len()
    }

    /// Stores the reports that are due. Returns false if the run has ended.
    pub fn collect(&mut self, now: Instant) -> bool {
        let reports = self.source.collect(now);
        reports.iter().flatten().for_each(|report| self.outbox.push(report));
        reports.is_some()
    }

    /// Returns the events of the socket for which to wait. A closed connection is always reported.
    pub fn wanted(&self) -> PollFlags {
        let reads = if self.is_half_closed { PollFlags::empty() } else { PollFlags::IN };
        let writes = if self.unsent() > 0 { PollFlags::OUT } else { PollFlags::empty() };
        reads | writes
    }

    /// Sends as much as the socket accepts, and discards received bytes. Returns false if the
    /// client has closed the connection.
    pub fn go_on(&mut self, stream: &mut UnixStream, ready: PollFlags, chunk: &mut [u8]) -> bool {
        if ready.intersects(PollFlags::HUP | PollFlags::ERR) {
            return false;
        }
        if ready.contains(PollFlags::IN) {
            match stream.read(chunk) {
                Ok(0) => self.is_half_closed = true,
                Ok(_) => {}
                Err(error) if is_later(&error) => {}
                Err(_) => return false,
            }
        }
        self.write(stream)
    }

    /// Sends as much as the socket accepts. Returns false if the client has closed the connection.
    pub fn write(&mut self, stream: &mut UnixStream) -> bool {
        if self.unsent() == 0 {
            return true;
        }
        match stream.write(self.outbox.unsent()) {
            Ok(len) => self.outbox.confirm(len),
            Err(error) if is_later(&error) => {}
            Err(_) => return false,
        }
        true
    }
}

/// Returns whether the call would have blocked, or was interrupted.
pub(crate) fn is_later(error: &io::Error) -> bool {
    matches!(error.kind(), io::ErrorKind::WouldBlock | io::ErrorKind::Interrupted)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::request::Layer;
    use crate::sockets::Word;

    /// Returns a report of about `len` bytes.
    fn report(time_us: u64, len: usize) -> RunReport {
        let counter = (Word::known("a"), 1);
        let counters = vec![counter; len / 8];
        let layer = Layer { name: Word::known("layer"), counters };
        RunReport { time_us, counters: Some(vec![layer]), ..RunReport::default() }
    }

    fn received(outbox: &UnsentReports) -> Vec<RunReport> {
        let lines = outbox.unsent().split(|byte| *byte == b'\n').filter(|line| !line.is_empty());
        lines.map(|line| serde_json::from_slice(line).unwrap()).collect()
    }

    #[test]
    fn a_slow_client_is_told_how_many_reports_it_lost() {
        let mut outbox = UnsentReports::default();
        let len = UNSENT_REPORTS_LEN_MAX / 4;
        (0..10).for_each(|n| outbox.push(&report(n, len)));
        assert!(outbox.unsent().len() <= UNSENT_REPORTS_LEN_MAX);
        let first = received(&outbox);
        assert!(first.len() >= 3 && first.iter().all(|report| report.lost.is_none()));
        let dropped = 10 - first.len() as u64;
        // The client reads so much that the next reports fit.
        let read = outbox.unsent().len() - 1;
        outbox.confirm(read);
        outbox.push(&report(10, len));
        outbox.push(&report(11, len));
        let later = received(&outbox);
        assert_eq!(later.iter().map(|it| it.time_us).collect::<Vec<_>>(), [10, 10, 11]);
        assert_eq!(later.iter().map(|it| it.lost).collect::<Vec<_>>(), [Some(dropped), None, None]);
    }

    #[test]
    fn a_report_that_never_fits_is_counted() {
        let mut outbox = UnsentReports::default();
        outbox.push(&report(1, 2 * UNSENT_REPORTS_LEN_MAX));
        assert_eq!(received(&outbox)[0].lost, Some(1));
        outbox.push(&report(2, 8));
        let lost: Vec<_> = received(&outbox).iter().map(|report| report.lost).collect();
        assert_eq!(lost, [Some(1), None]);
    }

    #[test]
    fn a_client_that_catches_up_is_told_without_a_further_report() {
        let mut outbox = UnsentReports::default();
        outbox.push(&report(1, 8));
        outbox.push(&report(2, 2 * UNSENT_REPORTS_LEN_MAX));
        outbox.push(&RunReport { time_us: 3, lost: Some(5), ..report(3, UNSENT_REPORTS_LEN_MAX) });
        let all = outbox.unsent().len();
        outbox.confirm(all - 1);
        assert_eq!(outbox.unsent(), b"\n", "the client has not received all yet");
        outbox.confirm(1);
        let told = received(&outbox);
        assert_eq!((told.len(), told[0].time_us, told[0].lost), (1, 3, Some(6)));
        let all = outbox.unsent().len();
        outbox.confirm(all);
        assert!(outbox.unsent().is_empty());
    }
}
