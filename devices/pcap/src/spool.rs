//! Bytes on their way to a file, written by a thread of their own.
//!
//! A write may take long (a network file system, a FIFO that nobody reads). Packets are recorded on
//! the engine's thread, on which all connections live. So recording only appends to memory, at most
//! [`BACKLOG_MAX`] of it. A packet that finds no room is not recorded, and counted.

use std::io::{self, Write};
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

/// Most bytes that wait to be written: a tenth of a second of what a fast disk takes. Any other
/// pause of a disk is shorter.
pub(crate) const BACKLOG_MAX: usize = 32 << 20;
/// How often a thread that waits for the end asks whether to go on.
const ASK_EVERY: Duration = Duration::from_millis(50);

/// Where to write; the bytes arrive later. Dropping it lets the thread end when all is written.
#[derive(Debug)]
pub(crate) struct Spool {
    shared: Arc<Shared>,
}

/// How far the writing is.
#[derive(Debug, Clone)]
pub(crate) struct SpoolProgress {
    shared: Arc<Shared>,
}

#[derive(Debug, Default)]
struct Shared {
    queue: Mutex<Queue>,
    changed: Condvar,
    /// Bytes that wait, those that are being written among them.
    backlog: AtomicUsize,
}

#[derive(Debug, Default)]
struct Queue {
    waiting: Vec<u8>,
    /// Nothing more will come.
    closed: bool,
    error: Option<io::Error>,
    failed: bool,
}

impl Spool {
    /// Starts the thread. `failed` hears of the first error at once, on that thread.
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

    /// Whether what comes next may be appended. Asked once for each record, so that none is torn.
    pub fn has_room(&self) -> bool {
        self.shared.backlog.load(Ordering::Relaxed) < BACKLOG_MAX
    }

    pub fn progress(&self) -> SpoolProgress {
        SpoolProgress { shared: Arc::clone(&self.shared) }
    }
}

impl Write for Spool {
    /// Takes all of it; the error is that of an earlier write.
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

    /// The thread writes appended bytes as soon as it can, in any case.
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
    /// Waits until everything is written, as long as `go_on` says so, and tells the first error.
    ///
    /// # Errors
    /// The error of a write; `TimedOut` when it was not waited for.
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
        // The queue is whole between any two statements that change it.
        self.queue.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// The thread: ends after the last byte, or with the first error.
    fn write_all(&self, mut out: Box<dyn Write + Send>, failed: impl FnOnce(&io::Error)) {
        // The two vectors change places, so that none is allocated again.
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
