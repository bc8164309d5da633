//! A direction of a link: frames on their way, and the bell of their receiver.

use std::collections::VecDeque;
use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::sync::{Mutex, MutexGuard, PoisonError};

use rustix::event::{EventfdFlags, eventfd};
use towpath_pool::Meta;

/// Frames that a direction holds: a power of two near the queue of a TAP device, which Linux
/// makes 1000 frames long (txqueuelen).
pub const FRAMES_MAX: usize = 1024;
/// Bytes that a direction holds: two of the largest windows that a stack gives a connection
/// unasked. A frame that is longer on its own finds room in an empty direction.
pub const BYTES_MAX: usize = 8 << 20;
/// Empty buffers that a direction keeps for further frames: more are allocated and freed, as
/// under a burst.
const SPARE_MAX: usize = 64;

/// A frame outside any pool.
#[derive(Debug)]
pub(crate) struct Frame {
    pub bytes: Vec<u8>,
    pub meta: Meta,
}

/// A direction, which both ends have.
#[derive(Debug)]
pub(crate) struct Way {
    queue: Mutex<Queue>,
    /// Readable when the receiver is to look: see [`Queue::is_rung`].
    bell: OwnedFd,
}

#[derive(Debug, Default)]
struct Queue {
    frames: VecDeque<Frame>,
    bytes: usize,
    spare: Vec<Vec<u8>>,
    /// The bell has been rung, and the receiver has not cleared it. Changed with the bell, under
    /// the lock: a bell that is rung twice is cleared once.
    is_rung: bool,
    /// The sender was refused, and waits until the direction is half empty.
    sender_waits: bool,
    sender_gone: bool,
    receiver_gone: bool,
    /// Frames that the receiver left when it was dropped.
    left: u64,
}

/// A direction that takes a frame of so many bytes.
pub(crate) struct Room<'a>(MutexGuard<'a, Queue>);

/// Why a direction takes no frame.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Refusal {
    /// Not now: the sender's bell rings when there is room.
    Full,
    /// The receiver was dropped.
    Gone,
}

impl Way {
    /// An empty direction.
    ///
    /// # Errors
    /// The errors of eventfd(2): no descriptors are left.
    pub fn new() -> io::Result<Self> {
        let bell = eventfd(0, EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK)?;
        Ok(Self { queue: Mutex::default(), bell })
    }

    fn lock(&self) -> MutexGuard<'_, Queue> {
        // No method leaves the queue half changed.
        self.queue.lock().unwrap_or_else(PoisonError::into_inner)
    }

    pub fn notifier(&self) -> BorrowedFd<'_> {
        self.bell.as_fd()
    }

    /// Room for a frame of `len` bytes.
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

    /// Wakes the receiver.
    pub fn ring(&self) {
        self.ring_locked(&mut self.lock());
    }

    fn ring_locked(&self, queue: &mut Queue) {
        if !std::mem::replace(&mut queue.is_rung, true) {
            // The counter takes 2^64 rings.
            let _ = rustix::io::write(&self.bell, &1u64.to_ne_bytes());
        }
    }

    /// Gives the frames at the front to `take`, at most `max`. True: the sender waits for the
    /// room that came of it, and is to be woken.
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
            // The bell does not block, and cannot fail: it was rung.
            let _ = rustix::io::read(&self.bell, &mut [0u8; 8]);
        }
        let has_room = queue.frames.len() <= FRAMES_MAX / 2 && queue.bytes <= BYTES_MAX / 2;
        has_room && std::mem::take(&mut queue.sender_waits)
    }

    /// The sender sends no more.
    pub fn end(&self) {
        let mut queue = self.lock();
        queue.sender_gone = true;
        self.ring_locked(&mut queue);
    }

    /// The receiver takes no more.
    pub fn abandon(&self) {
        let mut queue = self.lock();
        queue.receiver_gone = true;
        queue.left = queue.frames.len() as u64;
        (queue.frames, queue.spare, queue.bytes) = (VecDeque::new(), Vec::new(), 0);
    }

    /// Whether nothing comes any more.
    pub fn has_ended(&self) -> bool {
        let queue = self.lock();
        queue.sender_gone && queue.frames.is_empty()
    }

    /// Whether there are frames.
    pub fn has_frames(&self) -> bool {
        !self.lock().frames.is_empty()
    }

    /// Frames that the receiver left when it was dropped.
    pub fn left(&self) -> u64 {
        self.lock().left
    }
}

impl Room<'_> {
    /// Puts a frame into the direction, whose bytes `fill` writes.
    pub fn put(mut self, len: usize, meta: Meta, fill: impl FnOnce(&mut [u8])) {
        let queue = &mut *self.0;
        let mut bytes = queue.spare.pop().unwrap_or_default();
        bytes.resize(len, 0);
        fill(&mut bytes);
        queue.bytes += len;
        queue.frames.push_back(Frame { bytes, meta });
    }
}
