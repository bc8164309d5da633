//! The future that runs the stack of an interceptor.

use std::future::Future;
use std::io;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll, Waker};
use std::time::Duration;

use tokio::time::{Instant as TokioInstant, Sleep};
use towpath_pool::Pool;
use towpath_uplink::now_ns;

use super::handle::SharedCore;
use super::source::StagedSource;

/// Maximum number of iterations of the stack's event loop in one poll. Afterwards the runner yields
/// to other tasks of the thread.
const TURNS_A_POLL: usize = 4;
/// Maximum time, in ns, that the runner sleeps before it reads its next timer again. Tokio's timers
/// reach at most about two years ahead.
const SLEEP_MAX_NS: u64 = 3_600_000_000_000;

/// Runs the stack of an interceptor, as a future to be spawned.
///
/// The future completes with `Ok` when the source of packets has ended, or when all other parts
/// were dropped and every connection has ended. The future completes with an error if the source
/// fails. Completing or dropping the future drops the source, and further calls of the sockets fail
/// with `NetworkDown`.
///
/// # Panics
/// Polling panics outside of a Tokio runtime with time and, for devices, I/O enabled.
#[must_use = "nothing is received or sent while the runner is not polled"]
pub struct InterceptRunner {
    shared: Arc<SharedCore>,
    /// Source of packets, lent to the stack (`Node`) for each iteration of its event loop; empty
    /// after the runner has ended.
    #[expect(clippy::vec_box, reason = "exchanged with the ports of the node")]
    ports: Vec<Box<StagedSource>>,
    /// Pool of packet buffers, exchanged with the pool of the stack (`Node`) in each iteration of
    /// its event loop. Buffers that the stack allocated return to it at the next exchange.
    pool: Pool,
    sleep: Option<Pin<Box<Sleep>>>,
    /// Time at which `sleep` wakes the task, in ns.
    sleep_ns: u64,
    /// Wakers to call without the lock. A field only to reuse its memory.
    due: Vec<Waker>,
}

/// Duration of the pause in which the program reads queued datagrams, in ns.
const CROWDED_NS: u64 = 1_000_000;

/// Result of the part of [`InterceptRunner::advance`] that runs with the lock held.
enum TurnOutcome {
    /// More work is pending, so start another iteration at once.
    More,
    /// Pause, so that the program can read queued datagrams.
    Pause,
    /// No work is pending. Sleep until the given time in ns, if any, or until the source is ready.
    Idle(Option<u64>),
    /// The program has dropped all parts of the interceptor, so the runner ends.
    Over,
}

/// Result of one iteration of the stack's event loop, run by the runner.
enum PollOutcome {
    /// More work is pending, so start another iteration at once.
    More,
    /// No work is pending. Sleep until the given time in ns, if any.
    Idle(Option<u64>),
    Ended(io::Result<()>),
}

impl std::fmt::Debug for InterceptRunner {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("InterceptRunner").field("shared", &self.shared).finish_non_exhaustive()
    }
}

impl InterceptRunner {
    pub(super) fn new(shared: Arc<SharedCore>) -> Self {
        let ports = std::mem::take(&mut shared.lock().node.ports);
        let (pool, due) = (Pool::default(), Vec::new());
        Self { shared, ports, pool, sleep: None, sleep_ns: u64::MAX, due }
    }

    /// Receives packets, runs one iteration of the stack's event loop, and sends packets. Holds the
    /// lock only while the event loop runs.
    fn advance(&mut self, cx: &mut Context<'_>) -> PollOutcome {
        let started_ns = now_ns();
        for source in &mut self.ports {
            source.receive(started_ns, &mut self.pool, cx);
        }
        let outcome = self.turn(cx);
        self.due.drain(..).for_each(Waker::wake);
        // `ports` contains the only source of packets while the event loop does not run. After the
        // end of the runner, `ports` is empty.
        let Some(source) = self.ports.first_mut() else { return PollOutcome::Ended(Ok(())) };
        source.send(started_ns, &mut self.pool);
        if let Some(result) = source.take_end() {
            return PollOutcome::Ended(result);
        }
        match outcome {
            TurnOutcome::Over => PollOutcome::Ended(Ok(())),
            TurnOutcome::More => PollOutcome::More,
            TurnOutcome::Pause => PollOutcome::Idle(Some(now_ns() + CROWDED_NS)),
            TurnOutcome::Idle(timeout) => match source.poll_ready(cx) {
                Poll::Ready(Err(error)) => PollOutcome::Ended(Err(error)),
                Poll::Ready(Ok(())) => PollOutcome::More,
                Poll::Pending => PollOutcome::Idle(timeout),
            },
        }
    }

    fn turn(&mut self, cx: &Context<'_>) -> TurnOutcome {
        let mut core = self.shared.lock();
        std::mem::swap(&mut core.node.ports, &mut self.ports);
        std::mem::swap(&mut core.node.pool, &mut self.pool);
        let more = core.turn();
        std::mem::swap(&mut core.node.ports, &mut self.ports);
        core.take_due(&mut self.due);
        if core.is_over() {
            return TurnOutcome::Over;
        }
        if core.pauses() {
            // Let a busy runner sleep, because the program needs the lock for each datagram that it
            // reads. Otherwise the runner would take the lock again at once. Packets wait in the
            // source meanwhile.
            core.sleep(cx);
            return TurnOutcome::Pause;
        }
        if more {
            return TurnOutcome::More;
        }
        // Register the waker before the lock is released, so that a later call of a socket wakes
        // the runner.
        core.sleep(cx);
        TurnOutcome::Idle(core.next_timeout_ns())
    }

    /// Returns whether the time `at_ns` has passed. Otherwise schedules the task to be woken then.
    fn poll_timer(&mut self, at_ns: u64, cx: &mut Context<'_>) -> bool {
        let now_ns = now_ns();
        if at_ns <= now_ns {
            return true;
        }
        // Set the timer only if the deadline moved to an earlier time. Each acknowledgement
        // postpones deadlines, and a timer that fires too early costs only one iteration of the
        // event loop.
        if at_ns < self.sleep_ns {
            self.sleep_ns = at_ns.min(now_ns + SLEEP_MAX_NS);
            let deadline = TokioInstant::now() + Duration::from_nanos(self.sleep_ns - now_ns);
            match &mut self.sleep {
                Some(sleep) => sleep.as_mut().reset(deadline),
                None => self.sleep = Some(Box::pin(tokio::time::sleep_until(deadline))),
            }
        }
        let is_due = self.sleep.as_mut().is_some_and(|sleep| sleep.as_mut().poll(cx).is_ready());
        if is_due {
            self.sleep_ns = u64::MAX;
        }
        is_due
    }

    fn end(&mut self) {
        let mut core = self.shared.lock();
        core.end();
        core.take_due(&mut self.due);
        drop(core);
        // Release the device or channels now, because the program may keep the completed future for
        // long.
        self.ports.clear();
        self.due.drain(..).for_each(Waker::wake);
    }
}

impl Future for InterceptRunner {
    type Output = io::Result<()>;

    fn poll(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        for _ in 0..TURNS_A_POLL {
            match self.advance(cx) {
                PollOutcome::More => {}
                PollOutcome::Ended(result) => {
                    self.end();
                    return Poll::Ready(result);
                }
                PollOutcome::Idle(None) => return Poll::Pending,
                PollOutcome::Idle(Some(at_ns)) => {
                    if !self.poll_timer(at_ns, cx) {
                        return Poll::Pending;
                    }
                }
            }
        }
        cx.waker().wake_by_ref();
        Poll::Pending
    }
}

impl Drop for InterceptRunner {
    fn drop(&mut self) {
        self.end();
    }
}
