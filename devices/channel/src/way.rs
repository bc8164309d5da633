//! A direction of an in-memory link: the queued frames, and the receiver's eventfd.

use std::collections::VecDeque;
use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::sync::{Mutex, MutexGuard, PoisonError};

use rustix::event::{EventfdFlags, eventfd};
use towpath_pool::Meta;

/// Maximum number of queued frames per direction: a power of two close to a TAP device's queue,
/// 1000 frames on Linux (txqueuelen).
pub const FRAMES_MAX: usize = 1024;
/// Maximum number of queued bytes per direction. The value is twice the largest window that
/// connections have by default. A longer frame is accepted if the queue is empty.
pub const BYTES_MAX: usize = 8 << 20;
/// Maximum number of empty buffers that each direction keeps for reuse. Further buffers are freed.
const SPARE_MAX: usize = 64;

/// A queued frame. Its bytes are a copy, outside of any packet pool.
#[derive(Debug)]
pub(crate) struct Frame {
    pub bytes: Vec<u8>,
    pub meta: Meta,
}

/// A direction of an in-memory link, shared by both ends.
#[derive(Debug)]
pub(crate) struct Way {
    queue: Mutex<Queue>,
    /// Eventfd that is readable if the receiver must poll: see [`Queue::is_rung`].
    bell: OwnedFd,
}

#[derive(Debug, Default)]
struct Queue {
    frames: VecDeque<Frame>,
    bytes: usize,
    spare: Vec<Vec<u8>>,
    /// Whether the eventfd is signalled. The flag and the eventfd change together under the lock,
    /// so that the eventfd is written and read only when its state changes.
    is_rung: bool,
    /// Whether a frame of the sender was refused, so that the sender must be woken once the queue
    /// is half empty.
    sender_waits: bool,
    sender_gone: bool,
    receiver_gone: bool,
    /// Number of frames still queued when the receiver was dropped.
    left: u64,
}

/// A locked queue that has space for at least one frame.
pub(crate) struct Room<'a>(MutexGuard<'a, Queue>);

/// Reason why the link does not accept a frame.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Refusal {
    /// The queue is full. The sender is woken when the queue has space again.
    Full,
    /// The receiver was dropped.
    Gone,
}

impl Way {
    /// Creates one direction of a link, with an empty queue.
    ///
    /// # Errors
    /// Returns errors of eventfd(2) if no descriptors are available.
    pub fn new() -> io::Result<Self> {
        let bell = eventfd(0, EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK)?;
        Ok(Self { queue: Mutex::default(), bell })
    }

    fn lock(&self) -> MutexGuard<'_, Queue> {
        // Ignore poisoning, because a panic of the other thread cannot leave the queue
        // inconsistent.
        self.queue.lock().unwrap_or_else(PoisonError::into_inner)
    }

    pub fn notifier(&self) -> BorrowedFd<'_> {
        self.bell.as_fd()
    }

    /// Locks the queue if it has space for a frame of `len` bytes.
    pub fn room(&self, len: usize) -> Result<Room<'_>, Refusal> {
        let mut queue = self.lock();
        if queue.receiver_gone {
            return Err(Refusal::Gone);
        }
        let fits = queue.frames.len() < FRAMES_MAX && queue.bytes + len <= BYTES_MAX;
        if !fits && !queue.frames.is_empty() {
            queue.sender_waits = true;
            return Err(Refusal::Full);
        }
        Ok(Room(queue))
    }

    /// Wakes the receiver by its eventfd.
    pub fn ring(&self) {
        self.ring_locked(&mut self.lock());
    }

    fn ring_locked(&self, queue: &mut Queue) {
        if !std::mem::replace(&mut queue.is_rung, true) {
            // The write cannot fail, because the eventfd's counter is 0.
            let _ = rustix::io::write(&self.bell, &1u64.to_ne_bytes());
        }
    }

    /// Passes up to `max` queued frames to `take`. Returns true if the sender waits for space and
    /// must be woken, because the queue is now at most half full.
    pub fn drain(&self, max: usize, mut take: impl FnMut(&Frame)) -> bool {
        let mut queue = self.lock();
        for _ in 0..max {
            let Some(mut frame) = queue.frames.pop_front() else { break };
            take(&frame);
            queue.bytes -= frame.bytes.len();
            if queue.spare.len() < SPARE_MAX {
                frame.bytes.clear();
                queue.spare.push(frame.bytes);
            }
        }
        if queue.frames.is_empty() && queue.is_rung {
            queue.is_rung = false;
            // The read cannot block or fail, because the eventfd is signalled here.
            let _ = rustix::io::read(&self.bell, &mut [0u8; 8]);
        }
        let has_room = queue.frames.len() <= FRAMES_MAX / 2 && queue.bytes <= BYTES_MAX / 2;
        has_room && std::mem::take(&mut queue.sender_waits)
    }

    /// Marks the sending end of the link as dropped.
    pub fn end(&self) {
        let mut queue = self.lock();
        queue.sender_gone = true;
        self.ring_locked(&mut queue);
    }

    /// Marks the receiving end of the link as dropped, and discards the queued frames.
    pub fn abandon(&self) {
        let mut queue = self.lock();
        queue.receiver_gone = true;
        queue.left = queue.frames.len() as u64;
        (queue.frames, queue.spare, queue.bytes) = (VecDeque::new(), Vec::new(), 0);
    }

    /// Returns whether the sender was dropped and the receiver has taken all frames.
    pub fn has_ended(&self) -> bool {
        let queue = self.lock();
        queue.sender_gone && queue.frames.is_empty()
    }

    /// Returns whether frames are queued for the receiver.
    pub fn has_frames(&self) -> bool {
        !self.lock().frames.is_empty()
    }

    /// Returns the number of frames still queued when the receiver was dropped.
    pub fn left(&self) -> u64 {
        self.lock().left
    }
}

impl Room<'_> {
    /// Queues a frame of `len` bytes, which `fill` writes.
    pub fn put(mut self, len: usize, meta: Meta, fill: impl FnOnce(&mut [u8])) {
        let queue = &mut *self.0;
        let mut bytes = queue.spare.pop().unwrap_or_default();
        bytes.resize(len, 0);
        fill(&mut bytes);
        queue.bytes += len;
        queue.frames.push_back(Frame { bytes, meta });
    }
}
