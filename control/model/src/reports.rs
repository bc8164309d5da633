//! The client's end of a subscription.

use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::time::{Duration, Instant};

use rustix::event::{PollFd, PollFlags};
use rustix::io::Errno;

use crate::ask::{NoAnswer, Run};
use crate::client::{Error, reply_of};
use crate::request::Reply;
use crate::server::PATIENCE;
use crate::subscription::RunReport;
use crate::wait::wait;

/// Maximum length of a report in bytes. The run may belong to another user.
const REPORT_LEN_MAX: usize = 8 << 20;
/// Maximum number of bytes read at a time.
const CHUNK: usize = 64 << 10;

/// Reports of a run, received over one connection. Dropping this value ends the subscription.
#[derive(Debug)]
pub struct Reports {
    run: Run,
    socket: OwnedFd,
    reply: Reply,
    lines: ReceivedLines,
}

impl Reports {
    /// Waits for the run's answer to a subscription.
    pub(crate) fn new(run: Run, socket: OwnedFd) -> Result<Self, Error> {
        let mut lines = ReceivedLines::default();
        let until = Instant::now() + PATIENCE;
        loop {
            if let Some(line) = lines.take(&run)? {
                let reply = reply_of(&run, &line)?;
                return Ok(Self { run, socket, reply, lines });
            }
            let left = until.saturating_duration_since(Instant::now());
            if left.is_zero() {
                return Err(Error::NoAnswer(run, NoAnswer::Silent));
            }
            lines.fill(&run, &socket, Some(left))?;
        }
    }

    /// Returns the run's answer to the subscription, which describes the run.
    #[must_use]
    pub fn reply(&self) -> &Reply {
        &self.reply
    }

    /// Returns the next report. `None` if none arrives within `left`.
    ///
    /// # Errors
    /// Fails with [`Error::Ended`] if the run has ended.
    pub fn next_within(&mut self, left: Duration) -> Result<Option<RunReport>, Error> {
        self.next(Some(left))
    }

    /// Waits for the next report.
    ///
    /// # Errors
    /// Fails with [`Error::Ended`] if the run has ended.
    pub fn wait(&mut self) -> Result<RunReport, Error> {
        loop {
            if let Some(report) = self.next(None)? {
                return Ok(report);
            }
        }
    }

    fn next(&mut self, left: Option<Duration>) -> Result<Option<RunReport>, Error> {
        let until = left.map(|left| Instant::now() + left);
        let mut is_late = false;
        loop {
            if let Some(line) = self.lines.take(&self.run)? {
                let report = serde_json::from_slice(&line);
                return report.map(Some).map_err(|_| Error::Unreadable(self.run.clone()));
            }
            if is_late {
                return Ok(None);
            }
            let left = until.map(|until| until.saturating_duration_since(Instant::now()));
            self.lines.fill(&self.run, &self.socket, left)?;
            // The time is over even if bytes have arrived. Otherwise a run of another user could
            // hold the caller by a line that it sends byte by byte.
            is_late = until.is_some_and(|until| until <= Instant::now());
        }
    }
}

/// Returns the descriptor that becomes readable when a report arrives.
impl AsFd for Reports {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.socket.as_fd()
    }
}

/// Received bytes that were not returned yet.
#[derive(Debug, Default)]
struct ReceivedLines {
    bytes: Vec<u8>,
    /// Number of bytes at the beginning that contain no line break.
    searched: usize,
}

impl ReceivedLines {
    /// Removes and returns the first complete line.
    fn take(&mut self, run: &Run) -> Result<Option<Vec<u8>>, Error> {
        let end = self.bytes[self.searched..].iter().position(|byte| *byte == b'\n');
        let Some(end) = end.map(|end| self.searched + end) else {
            self.searched = self.bytes.len();
            let is_too_long = self.searched > REPORT_LEN_MAX;
            let too_long = || NoAnswer::TooLong(REPORT_LEN_MAX);
            return if is_too_long {
                Err(Error::NoAnswer(run.clone(), too_long()))
            } else {
                Ok(None)
            };
        };
        self.searched = 0;
        let line = self.bytes.drain(..=end).take(end).collect();
        Ok(Some(line))
    }

    /// Reads available bytes. Waits for them at most for `left`.
    fn fill(&mut self, run: &Run, socket: &OwnedFd, left: Option<Duration>) -> Result<(), Error> {
        let failed = |errno: Errno| Error::NoAnswer(run.clone(), errno.into());
        wait(&mut [PollFd::new(socket, PollFlags::IN)], left).map_err(failed)?;
        let before = self.bytes.len();
        self.bytes.resize(before + CHUNK, 0);
        let result = rustix::io::read(socket, &mut self.bytes[before..]);
        self.bytes.truncate(before + *result.as_ref().unwrap_or(&0));
        match result {
            Ok(0) | Err(Errno::CONNRESET) => Err(Error::Ended(run.clone())),
            Ok(_) | Err(Errno::AGAIN | Errno::INTR) => Ok(()),
            Err(error) => Err(failed(error)),
        }
    }
}
