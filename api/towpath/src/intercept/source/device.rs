//! TUN and TAP devices as sources of packets.

use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::task::{Context, Poll};

use rustix::event::{PollFd, PollFlags, Timespec};
use tokio::io::unix::AsyncFd;
use towpath_pool::{Batch, LinkType, Offloads, Pool, Port, PortCounters};
use towpath_tap::Tap;

/// A TUN or TAP device, registered with the Tokio runtime that polls the runner.
pub(crate) struct DeviceSource {
    tap: Tap,
    /// Duplicate of the device's descriptor, registered with Tokio by the first poll.
    watch: Option<AsyncFd<OwnedFd>>,
}

impl DeviceSource {
    pub(crate) fn new(tap: Tap) -> Self {
        Self { tap, watch: None }
    }

    /// Returns ready if the device has packets, or accepts packets again after its queue was full.
    pub(crate) fn poll_ready(&mut self, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        if self.watch.is_none() {
            let fd = self.tap.wake_fd().ok_or(io::ErrorKind::NotFound)?.try_clone_to_owned()?;
            // SAFETY: `AsyncFd` owns the descriptor, which is open until `watch` is dropped.
            self.watch = Some(unsafe { AsyncFd::register(fd) }?);
        }
        let Some(watch) = &self.watch else { return Poll::Pending };
        let may_send = self.tap.blocked() && is_ready(cx, watch, PollFlags::OUT)?;
        let may_receive = is_ready(cx, watch, PollFlags::IN)?;
        let is_ready = may_send || may_receive || is_deleted(cx, watch)?;
        self.tap.looked(is_ready);
        if is_ready { Poll::Ready(Ok(())) } else { Poll::Pending }
    }
}

/// Returns whether the descriptor is ready for reading or for writing, by `flag`. If not, the task
/// is woken when it becomes ready.
///
/// Tokio reports only changes of readiness, but the runner may leave packets in the device.
/// Therefore we query the kernel by poll(2), and clear the readiness stored by Tokio only if it is
/// outdated.
fn is_ready(cx: &mut Context<'_>, watch: &AsyncFd<OwnedFd>, flag: PollFlags) -> io::Result<bool> {
    loop {
        let stored = match flag {
            PollFlags::IN => watch.poll_read_ready(cx),
            _ => watch.poll_write_ready(cx),
        };
        let Poll::Ready(stored) = stored else { return Ok(false) };
        let mut stored = stored?;
        if is_ready_now(watch.get_ref().as_fd(), flag)? {
            return Ok(true);
        }
        stored.clear_ready();
    }
}

/// Returns whether the device was deleted. The kernel then reports an error, which tokio stores as
/// the end of writing. The next read returns the error.
fn is_deleted(cx: &mut Context<'_>, watch: &AsyncFd<OwnedFd>) -> io::Result<bool> {
    while let Poll::Ready(stored) = watch.poll_write_ready(cx) {
        let mut stored = stored?;
        if stored.ready().is_write_closed() {
            return Ok(true);
        }
        stored.clear_ready();
    }
    Ok(false)
}

fn is_ready_now(fd: BorrowedFd<'_>, flag: PollFlags) -> io::Result<bool> {
    let mut fds = [PollFd::from_borrowed_fd(fd, flag)];
    let at_once = Timespec { tv_sec: 0, tv_nsec: 0 };
    match rustix::event::poll(&mut fds, Some(&at_once)) {
        // Also ready on an error (POLLERR), which the next read then returns.
        Ok(count) => Ok(count > 0),
        Err(rustix::io::Errno::INTR) => Ok(true),
        Err(errno) => Err(errno.into()),
    }
}

impl Port for DeviceSource {
    fn poll(&mut self, now_ns: u64, pool: &mut Pool, out: &mut Batch, max: usize) -> usize {
        self.tap.poll(now_ns, pool, out, max)
    }

    fn submit(&mut self, now_ns: u64, pool: &mut Pool, batch: &mut Batch) -> usize {
        self.tap.submit(now_ns, pool, batch)
    }

    fn offloads(&self) -> Offloads {
        self.tap.offloads()
    }

    fn link_type(&self) -> LinkType {
        self.tap.link_type()
    }

    fn wake_fd(&self) -> Option<BorrowedFd<'_>> {
        self.tap.wake_fd()
    }

    fn is_gone(&self) -> bool {
        self.tap.is_gone()
    }

    fn counters(&self) -> PortCounters {
        Port::counters(&self.tap)
    }
}
