//! Writes bytes to a file on a separate thread.
//!
//! Writing may block (network file system, a FIFO without a reader). Packets are recorded by the
//! thread that handles all connections, which must not block. Therefore recording only appends to
//! memory, at most [`BACKLOG_MAX`] bytes. Packets beyond this limit are counted and not recorded.

use std::io::{self, Write};
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

/// Maximum number of bytes that wait for the writer thread. A fast disk writes 32 MiB in 0.1 s, so
/// pauses of the disk up to that time lose no packets.
pub(crate) const BACKLOG_MAX: usize = 32 << 20;
/// Interval between calls of `go_on` by a thread that waits for the writer thread.
const ASK_EVERY: Duration = Duration::from_millis(50);

/// Output whose bytes are written by a separate thread. When this value is dropped, the thread
/// writes the remaining bytes and ends.
#[derive(Debug)]
pub(crate) struct Spool {
    shared: Arc<Shared>,
}

/// Handle for waiting until the writer thread has written everything.
#[derive(Debug, Clone)]
pub(crate) struct SpoolProgress {
    shared: Arc<Shared>,
}

#[derive(Debug, Default)]
struct Shared {
    queue: Mutex<Queue>,
    changed: Condvar,
    /// Number of bytes not yet written, including those being written.
    backlog: AtomicUsize,
}

#[derive(Debug, Default)]
struct Queue {
    waiting: Vec<u8>,
    /// Whether the `Spool` was dropped, so that no more bytes will be appended.
    closed: bool,
    error: Option<io::Error>,
    failed: bool,
}

impl Spool {
    /// Starts the writer thread, which calls `failed` with the first error.
    pub fn start(
        out: Box<dyn Write + Send>,
        failed: impl FnOnce(&io::Error) + Send + 'static,
    ) -> io::Result<Self> {
        let shared = Arc::<Shared>::default();
        let of_thread = Arc::clone(&shared);
        std::thread::Builder::new()
            .name("towpath-pcap".into())
            .spawn(move || of_thread.write_all(out, failed))?;
        Ok(Self { shared })
    }

    /// Returns whether the next record may be appended. Check it once per record, because the
    /// writer must append records as a whole.
    pub fn has_room(&self) -> bool {
        self.shared.backlog.load(Ordering::Relaxed) < BACKLOG_MAX
    }

    pub fn progress(&self) -> SpoolProgress {
        SpoolProgress { shared: Arc::clone(&self.shared) }
    }
}

impl Write for Spool {
    /// Appends all bytes for the writer thread. Returns an error if an earlier write failed.
    fn write(&mut self, data: &[u8]) -> io::Result<usize> {
        let mut queue = self.shared.lock();
        if queue.failed {
            return Err(io::ErrorKind::BrokenPipe.into());
        }
        queue.waiting.extend_from_slice(data);
        self.shared.backlog.fetch_add(data.len(), Ordering::Relaxed);
        self.shared.changed.notify_all();
        Ok(data.len())
    }

    /// Does nothing, because the writer thread writes appended bytes as soon as possible.
    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

impl Drop for Spool {
    fn drop(&mut self) {
        self.shared.lock().closed = true;
        self.shared.changed.notify_all();
    }
}

impl SpoolProgress {
    /// Waits until all bytes are written, as long as `go_on` returns true.
    ///
    /// # Errors
    /// Returns the first write error, or `TimedOut` if `go_on` returned false.
    pub fn finish(&self, mut go_on: impl FnMut() -> bool) -> io::Result<()> {
        let mut queue = self.shared.lock();
        while !queue.failed && self.shared.backlog.load(Ordering::Relaxed) > 0 {
            if !go_on() {
                return Err(io::ErrorKind::TimedOut.into());
            }
            let waited = self.shared.changed.wait_timeout(queue, ASK_EVERY);
            queue = waited.unwrap_or_else(PoisonError::into_inner).0;
        }
        queue.error.take().map_or(Ok(()), Err)
    }
}

impl Shared {
    fn lock(&self) -> MutexGuard<'_, Queue> {
        // Ignore poisoning, because a panic cannot leave the queue inconsistent.
        self.queue.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Writes appended bytes until the capture has ended and all are written, or until the first
    /// error. Runs on the writer thread.
    fn write_all(&self, mut out: Box<dyn Write + Send>, failed: impl FnOnce(&io::Error)) {
        // Exchange the filled vector for an empty one, so that both allocations are reused.
        let mut writing = Vec::new();
        loop {
            let mut queue = self.lock();
            while queue.waiting.is_empty() {
                if queue.closed {
                    return;
                }
                queue = self.changed.wait(queue).unwrap_or_else(PoisonError::into_inner);
            }
            std::mem::swap(&mut writing, &mut queue.waiting);
            drop(queue);
            let result = out.write_all(&writing).and_then(|()| out.flush());
            if let Err(error) = result {
                failed(&error);
                let mut queue = self.lock();
                (queue.failed, queue.error) = (true, Some(error));
                self.changed.notify_all();
                return;
            }
            let _queue = self.lock();
            self.backlog.fetch_sub(writing.len(), Ordering::Relaxed);
            writing.clear();
            self.changed.notify_all();
        }
    }
}
