//! Byte FIFOs in private memory, for users in the same process and thread as the network stack: the
//! gateway, and tests.

use std::io;
use std::os::fd::{AsRawFd, BorrowedFd};
use std::sync::Arc;
use std::sync::atomic::{Ordering, fence};

use towpath_shm::syscall::syscall;
use towpath_shm::{Fragments, Mapping, Stretch};

use crate::buffer::{Payload, RecvBuffer, SendBuffer};
use crate::fifo::{Geometry, there};

/// Memory of a FIFO. Memory is allocated when the first byte arrives, grows, and is released when
/// the connection is idle.
#[derive(Debug, Default)]
struct Memory {
    mapping: Option<Arc<Mapping>>,
    shift: u32,
    /// Number of bytes at the start of the memory that have ever been written. Only these have
    /// pages.
    touched: u32,
}

impl Memory {
    fn geometry(&self) -> Geometry {
        let cap = self.mapping.as_ref().map_or(0, |mapping| mapping.len() as u32);
        Geometry { base: 0, cap, shift: self.shift }
    }

    /// Ensures a capacity of `bytes`, and keeps the `used` bytes from position `head` on. Returns
    /// false if no memory is available.
    fn ensure(&mut self, bytes: u32, head: u32, used: u32) -> bool {
        let old = self.geometry();
        if old.cap >= bytes && old.cap > 0 {
            return true;
        }
        let Ok(new) = Mapping::private(bytes.max(FIRST).next_power_of_two() as usize) else {
            return false;
        };
        if let Some(mapping) = &self.mapping {
            let mut to = 0;
            for (from, len) in old.stretches(head, used) {
                new.copy_from(to, mapping, from, len as usize);
                to += len as usize;
            }
        }
        self.touched = used;
        // Fragments that refer to the old mapping keep it alive.
        self.mapping = Some(Arc::new(new));
        self.shift = 0u32.wrapping_sub(head);
        true
    }

    /// Returns address and length of the two ranges that contain `n` bytes at `position`. An empty
    /// range is `None`.
    fn places(&self, position: u32, n: u32) -> [Option<(*mut u8, usize)>; 2] {
        let Some(mapping) = self.mapping.as_ref().filter(|_| n > 0) else { return [None; 2] };
        let place = |(at, len)| (mapping.at(at, len as usize), len as usize);
        self.geometry().stretches(position, n).map(|it| (it.1 > 0).then(|| place(it)))
    }

    /// Returns whether fragments refer to the memory.
    fn is_lent(&self) -> bool {
        let lent = self.mapping.as_ref().is_some_and(|mapping| Arc::strong_count(mapping) > 1);
        // Pairs with the drop of the last fragment: its reads must happen before the memory is
        // overwritten.
        fence(Ordering::Acquire);
        lent
    }

    /// Moves the `used` bytes from position `head` on to new memory. The fragments keep the old
    /// memory. Returns false if no memory is available.
    fn leave(&mut self, head: u32, used: u32) -> bool {
        let old = std::mem::take(self);
        let moved = self.ensure(old.geometry().cap, head, 0);
        match (moved, &old.mapping, &self.mapping) {
            (true, Some(from), Some(to)) => {
                let mut at = 0;
                for (offset, len) in old.geometry().stretches(head, used) {
                    to.copy_from(at, from, offset, len as usize);
                    at += len as usize;
                }
                self.touched = used;
            }
            _ => *self = old,
        }
        moved
    }

    fn fragments(&self, position: u32, n: u32) -> Fragments {
        let Some(mapping) = self.mapping.as_ref().filter(|_| n > 0) else {
            return Fragments::empty();
        };
        let [(a, a_len), (b, b_len)] = self.geometry().stretches(position, n);
        let second = (b_len > 0).then(|| Stretch::new(mapping, b, b_len));
        Fragments::new(Stretch::new(mapping, a, a_len), second)
    }

    fn write(&mut self, position: u32, data: &Payload<'_>) {
        let stretches = self.geometry().stretches(position, data.len());
        let Some(mapping) = &self.mapping else {
            return;
        };
        data.write_to_stretches(mapping, stretches);
        for (at, len) in stretches.into_iter().filter(|(_, len)| *len > 0) {
            self.touched = self.touched.max(at as u32 + len);
        }
    }

    /// Counts the pages of bytes that were written into the memory directly.
    fn touch(&mut self, position: u32, n: u32) {
        for (at, len) in self.geometry().stretches(position, n) {
            if len > 0 {
                self.touched = self.touched.max(at as u32 + len);
            }
        }
    }

    fn give_back(&mut self) {
        self.mapping = None;
        self.touched = 0;
    }
}

/// Converts fragments to a list of iovecs for a system call.
fn iovecs(fragments: &Fragments) -> ([libc::iovec; 2], usize) {
    let mut out = [libc::iovec { iov_base: std::ptr::null_mut(), iov_len: 0 }; 2];
    let mut n = 0;
    for (iovec, stretch) in out.iter_mut().zip(fragments.iter()) {
        *iovec = libc::iovec {
            iov_base: stretch.as_ptr().cast_mut().cast(),
            iov_len: stretch.len() as usize,
        };
        n += 1;
    }
    (out, n)
}

/// Calls sendmsg(2) or recvmsg(2) by system call number `call`, and returns the number of bytes
/// transferred.
///
/// # Safety
/// The message must refer to memory that is valid during the call, and writable for recvmsg(2).
unsafe fn transfer(
    call: libc::c_long,
    socket: BorrowedFd<'_>,
    message: *const libc::msghdr,
    flags: libc::c_int,
) -> io::Result<u32> {
    let args = [socket.as_raw_fd() as usize, message.expose_provenance(), flags as usize, 0, 0, 0];
    // SAFETY: the memory to which the message refers is valid, by the contract of `transfer`.
    let n = unsafe { syscall(call as usize, args) };
    // The number fits, because system calls transfer at most MAX_RW_COUNT bytes.
    n.map(|n| n as u32).map_err(io::Error::from_raw_os_error)
}

fn message(iovecs: &mut ([libc::iovec; 2], usize)) -> libc::msghdr {
    // SAFETY: `msghdr` with all zeros is valid: no name, no control data.
    let mut message: libc::msghdr = unsafe { std::mem::zeroed() };
    message.msg_iov = iovecs.0.as_mut_ptr();
    message.msg_iovlen = iovecs.1 as _;
    message
}

/// Minimum size of an allocation in bytes.
const FIRST: u32 = 16 << 10;

/// A receive FIFO in private memory, which its user reads directly. Memory is allocated when the
/// first byte arrives.
///
/// ```
/// use towpath_ring::{HeapRecv, Payload, RecvBuffer};
/// use towpath_shm::Fragments;
///
/// let payload = |bytes| Payload::new(bytes, Fragments::empty());
/// let mut recv = HeapRecv::new(16 << 10, 1 << 20);
/// // The second segment arrives first: it is stored at its offset, but cannot be read yet.
/// assert!(recv.write_at(5, &payload(b"towpath")));
/// assert_eq!(recv.unread(), 0);
/// assert!(recv.write_at(0, &payload(b"down ")));
/// recv.commit(12);
///
/// let mut bytes = [0; 12];
/// recv.peek().copy_to(0, &mut bytes);
/// assert_eq!(&bytes, b"down towpath");
/// assert_eq!(recv.slices().concat(), b"down towpath");
/// assert_eq!(recv.take(5), Some([&b"down "[..], b""]));
/// recv.consume(7);
/// assert!(recv.peek().is_empty());
/// ```
#[derive(Debug)]
pub struct HeapRecv {
    memory: Memory,
    head: u32,
    tail: u32,
    /// Position before which bytes may be overwritten. [`KeptBytes`] may refer to bytes from here
    /// to `head`.
    free: u32,
    ahead: u32,
    nominal: u32,
    nominal_max: u32,
}

impl HeapRecv {
    /// Creates a FIFO that holds `nominal` bytes. The FIFO grows to `nominal_max` (at most 1 GiB)
    /// if the connection needs it.
    pub fn new(nominal: u32, nominal_max: u32) -> Self {
        let nominal_max = nominal_max.min(1 << 30);
        let nominal = nominal.min(nominal_max);
        let memory = Memory::default();
        Self { memory, head: 0, tail: 0, free: 0, ahead: 0, nominal, nominal_max }
    }

    /// Raises the maximum size to which the FIFO may grow, up to 1 GiB. The maximum is never
    /// reduced, because the peer may have been offered the space.
    pub fn raise_max(&mut self, nominal_max: u32) {
        self.nominal_max = self.nominal_max.max(nominal_max.min(1 << 30));
    }

    /// Returns all unread bytes as references, without copying or removing them.
    pub fn peek(&self) -> Fragments {
        self.memory.fragments(self.head, self.unread())
    }

    /// Returns all unread bytes as two slices: up to the end of the circular buffer, and from its
    /// start.
    pub fn slices(&mut self) -> [&[u8]; 2] {
        self.memory.places(self.head, self.unread()).map(|place| match place {
            None => &[][..],
            // SAFETY: the bytes are in a private mapping, which is initialized with zeros and lives
            // as long as `self`. Only methods of `self` write to it, and `self` is borrowed
            // exclusively.
            Some((start, len)) => unsafe { std::slice::from_raw_parts(start, len) },
        })
    }

    /// Removes `n` unread bytes from the front, and returns them as two slices. Returns `None` if
    /// there are fewer unread bytes.
    pub fn take(&mut self, n: u32) -> Option<[&[u8]; 2]> {
        if n > self.unread() {
            return None;
        }
        let places = self.memory.places(self.head, n);
        self.consume(n);
        Some(places.map(|place| match place {
            None => &[][..],
            // SAFETY: as for `slices`. The removed bytes are not overwritten while `self` is
            // borrowed.
            Some((start, len)) => unsafe { std::slice::from_raw_parts(start, len) },
        }))
    }

    /// Removes up to `n` unread bytes from the front, and returns them without copying. While the
    /// result exists, it keeps the FIFO's whole buffer, and new bytes go to another buffer. Copy a
    /// few bytes instead if you keep them for long.
    pub fn keep(&mut self, n: u32) -> KeptBytes {
        let n = n.min(self.unread());
        let fragments = self.memory.fragments(self.head, n);
        self.head = self.head.wrapping_add(n);
        KeptBytes { fragments }
    }

    /// Removes up to `n` unread bytes from the front of the FIFO.
    pub fn consume(&mut self, n: u32) {
        let nothing_kept = self.free == self.head;
        self.head = self.head.wrapping_add(n.min(self.unread()));
        if nothing_kept {
            self.free = self.head;
            if self.unread() == 0 && self.ahead == 0 {
                // The FIFO is empty. Restart at the beginning of the buffer, whose pages are
                // already allocated.
                self.memory.shift = 0u32.wrapping_sub(self.tail);
            }
        }
    }

    /// Allocates memory for bytes up to `end`, counted from `head`, without overwriting
    /// [kept](Self::keep) bytes. Returns false if no memory is available.
    fn ensure(&mut self, end: u32) -> bool {
        let used = self.unread() + self.ahead;
        // Allocate the full capacity at once, because the kernel allocates a page only when it is
        // written.
        if !self.memory.ensure(self.nominal, self.head, used) {
            return false;
        }
        let kept = self.head.wrapping_sub(self.free);
        if kept == 0 || end <= self.memory.geometry().cap.saturating_sub(kept) {
            return true;
        }
        if self.memory.is_lent() && !self.memory.leave(self.head, used) {
            return false;
        }
        self.free = self.head;
        true
    }

    /// Sends unread bytes on a socket of the kernel and removes them. Returns the number of bytes,
    /// which is 0 if none are unread. Never blocks, and raises no SIGPIPE.
    ///
    /// # Errors
    /// Returns errors of send(2): `WouldBlock` if the socket's buffer is full, `BrokenPipe` or
    /// `ConnectionReset` if the peer has closed the connection. No bytes are removed then.
    pub fn drain(&mut self, socket: BorrowedFd<'_>) -> io::Result<u32> {
        let fragments = self.peek();
        if fragments.is_empty() {
            return Ok(0);
        }
        let mut places = iovecs(&fragments);
        let message = message(&mut places);
        let flags = libc::MSG_DONTWAIT | libc::MSG_NOSIGNAL;
        // SAFETY: the iovecs point into memory that `fragments` keeps alive during the call.
        let n = unsafe { transfer(libc::SYS_sendmsg, socket, &raw const message, flags) }?;
        self.consume(n);
        Ok(n)
    }

    /// Releases the memory if the FIFO is empty. Call this when the connection has been idle for a
    /// while.
    pub fn release_idle(&mut self) {
        if self.unread() == 0 && self.ahead == 0 {
            self.memory.give_back();
            self.free = self.head;
        }
    }

    /// Returns the number of bytes of the FIFO's memory that have pages.
    pub fn memory_bytes(&self) -> u32 {
        self.memory.touched
    }
}

/// Bytes that were removed from a [`HeapRecv`] without copying. Another thread may read the bytes.
///
/// ```
/// use towpath_ring::{HeapRecv, Payload, RecvBuffer};
/// use towpath_shm::Fragments;
///
/// let mut recv = HeapRecv::new(16 << 10, 16 << 10);
/// assert!(recv.write_at(0, &Payload::new(b"down the towpath", Fragments::empty())));
/// recv.commit(16);
/// let kept = recv.keep(8);
/// assert_eq!(kept.slices(), [&b"down the"[..], b""]);
/// assert_eq!(recv.unread(), 8);
/// ```
#[derive(Debug)]
pub struct KeptBytes {
    fragments: Fragments,
}

impl KeptBytes {
    /// Returns the number of bytes.
    pub fn len(&self) -> usize {
        self.fragments.len() as usize
    }

    /// Returns whether there are no bytes.
    pub fn is_empty(&self) -> bool {
        self.fragments.is_empty()
    }

    /// Returns the bytes in order, as two slices. The second slice is empty unless the bytes
    /// wrapped around the end of the memory.
    pub fn slices(&self) -> [&[u8]; 2] {
        let mut slices = [&[][..]; 2];
        for (slice, part) in slices.iter_mut().zip(self.fragments.iter()) {
            // SAFETY: the bytes are in a private mapping, which `fragments` keeps.
            // `HeapRecv::ensure` moves the FIFO to new memory before it would overwrite them.
            *slice = unsafe { std::slice::from_raw_parts(part.as_ptr(), part.len() as usize) };
        }
        slices
    }
}

impl RecvBuffer for HeapRecv {
    fn capacity(&self) -> u32 {
        self.nominal
    }

    fn unread(&self) -> u32 {
        self.tail.wrapping_sub(self.head)
    }

    fn reserve(&mut self, n: u32) -> bool {
        self.ensure(self.unread() + n.min(self.free()))
    }

    fn write_at(&mut self, offset: u32, data: &Payload<'_>) -> bool {
        let Some(end) = offset.checked_add(data.len()).filter(|end| *end <= self.free()) else {
            return false;
        };
        if !self.ensure(self.unread() + end) {
            return false;
        }
        self.memory.write(self.tail.wrapping_add(offset), data);
        self.ahead = self.ahead.max(end);
        true
    }

    fn commit(&mut self, n: u32) {
        debug_assert!(n <= self.ahead, "{n} bytes, of which {} were stored", self.ahead);
        let n = n.min(self.ahead);
        self.tail = self.tail.wrapping_add(n);
        self.ahead -= n;
    }

    fn want_capacity(&mut self, bytes: u32) {
        self.nominal = self.nominal.max(bytes.min(self.nominal_max));
    }
}

/// A transmit FIFO in private memory, for a stack in the same process. The first write allocates
/// the memory.
///
/// Acknowledged bytes are not overwritten while fragments refer to them; instead, the queued bytes
/// move to new memory. Moves are rare: they happen if bytes are acknowledged while their
/// retransmission still waits for the device.
///
/// ```
/// use towpath_ring::{HeapSend, Payload, SendBuffer};
/// use towpath_shm::Fragments;
///
/// let mut send = HeapSend::new(8, 1 << 20);
/// let payload = Payload::new(b"down the towpath", Fragments::empty());
/// assert_eq!(send.write(&payload), 8);
/// assert_eq!(send.room(), 0);
///
/// // Five bytes are acknowledged, and the connection allows more to be queued.
/// send.release(5);
/// send.want_capacity(64);
/// assert_eq!(send.write(&payload.slice(8, 8)), 8);
/// let mut bytes = [0; 11];
/// send.peek(0, 11).copy_to(0, &mut bytes);
/// assert_eq!(&bytes, b"the towpath");
/// ```
#[derive(Debug)]
pub struct HeapSend {
    memory: Memory,
    head: u32,
    tail: u32,
    /// Position before which bytes may be overwritten. Fragments may refer to bytes from here to
    /// `head`.
    free: u32,
    limit: u32,
    limit_max: u32,
}

impl HeapSend {
    /// Creates a FIFO that holds `limit` bytes. The FIFO grows to `limit_max` (at most 1 GiB) if
    /// the connection needs it.
    pub fn new(limit: u32, limit_max: u32) -> Self {
        let limit_max = limit_max.min(1 << 30);
        let (memory, limit) = (Memory::default(), limit.min(limit_max));
        Self { memory, head: 0, tail: 0, free: 0, limit, limit_max }
    }

    /// Raises the maximum size to which the FIFO may grow, up to 1 GiB.
    pub fn raise_max(&mut self, limit_max: u32) {
        self.limit_max = self.limit_max.max(limit_max.min(1 << 30));
    }

    /// Returns the number of bytes that can be written if memory is available.
    pub fn room(&self) -> u32 {
        self.limit.saturating_sub(self.len())
    }

    /// Appends as many bytes of `data` as fit, and returns their number. Returns 0 if no memory is
    /// available.
    pub fn write(&mut self, data: &Payload<'_>) -> u32 {
        let n = data.len().min(self.room());
        if n == 0 || !self.ensure() {
            return 0;
        }
        self.memory.write(self.tail, &data.slice(0, n));
        self.tail = self.tail.wrapping_add(n);
        n
    }

    /// Returns the free space, into which a system call can write. The result is empty if the FIFO
    /// is full or no memory is available.
    fn spare(&mut self) -> Fragments {
        let n = self.room();
        if n == 0 || !self.ensure() {
            return Fragments::empty();
        }
        self.memory.fragments(self.tail, n)
    }

    /// Returns the free space as two slices to write into. Call [`HeapSend::commit`] with the
    /// number of bytes afterwards. The slices are empty if the FIFO is full or no memory is
    /// available. The slices contain bytes of earlier data.
    ///
    /// ```
    /// let mut send = towpath_ring::HeapSend::new(16, 16);
    /// let [space, _] = send.spare_slices();
    /// space[..5].copy_from_slice(b"ahoy!");
    /// send.commit(5);
    /// assert_eq!(send.room(), 11);
    /// ```
    pub fn spare_slices(&mut self) -> [&mut [u8]; 2] {
        let n = self.room();
        if n == 0 || !self.ensure() {
            return [&mut [], &mut []];
        }
        self.memory.places(self.tail, n).map(|place| match place {
            None => &mut [][..],
            // SAFETY: the bytes are in a private mapping, which is initialized with zeros and lives
            // as long as `self`, which is borrowed exclusively. The two ranges do not overlap.
            // Fragments refer only to queued bytes, because `ensure` moves the FIFO to new memory
            // otherwise.
            Some((start, len)) => unsafe { std::slice::from_raw_parts_mut(start, len) },
        })
    }

    /// Ensures that no fragment refers to the memory after the queued bytes. Returns false if no
    /// memory is available.
    fn ensure(&mut self) -> bool {
        if !self.memory.ensure(self.limit, self.head, self.len()) {
            return false;
        }
        if self.free != self.head
            && self.memory.is_lent()
            && !self.memory.leave(self.head, self.len())
        {
            return false;
        }
        self.free = self.head;
        true
    }

    /// Receives from a socket of the kernel directly into the FIFO, and returns the number of
    /// bytes. Returns 0 if the peer has closed its direction, if [`HeapSend::room`] is 0, or if no
    /// memory is available. Never blocks.
    ///
    /// # Errors
    /// Returns errors of recv(2): `WouldBlock` if no bytes are available, `ConnectionReset` and
    /// further errors of the connection.
    pub fn fill(&mut self, socket: BorrowedFd<'_>) -> io::Result<u32> {
        let fragments = self.spare();
        if fragments.is_empty() {
            return Ok(0);
        }
        let mut places = iovecs(&fragments);
        let mut message = message(&mut places);
        // SAFETY: the iovecs point into memory that `fragments` keeps alive during the call. The
        // memory is accessed only by copying, never through a reference.
        let n =
            unsafe { transfer(libc::SYS_recvmsg, socket, &raw mut message, libc::MSG_DONTWAIT) }?;
        self.commit(n);
        Ok(n)
    }

    /// Releases the memory if the FIFO is empty. Call this when the connection has been idle for a
    /// while.
    pub fn release_idle(&mut self) {
        if self.is_empty() {
            self.memory.give_back();
        }
    }

    /// Returns the number of bytes of the FIFO's memory that have pages.
    pub fn memory_bytes(&self) -> u32 {
        self.memory.touched
    }

    /// Enlarges an empty FIFO so that it has [room](HeapSend::room) for `n` bytes, up to its
    /// maximum size.
    pub fn want_room(&mut self, n: u32) {
        if self.is_empty() {
            self.want_capacity(n);
        }
    }

    /// Queues the first `n` bytes of [`HeapSend::spare_slices`], which the caller has written.
    pub fn commit(&mut self, n: u32) {
        let n = n.min(self.room());
        self.memory.touch(self.tail, n);
        self.tail = self.tail.wrapping_add(n);
    }
}

impl SendBuffer for HeapSend {
    fn len(&self) -> u32 {
        self.tail.wrapping_sub(self.head)
    }

    fn capacity(&self) -> u32 {
        self.limit
    }

    fn peek(&mut self, offset: u32, n: u32) -> Fragments {
        self.memory.fragments(self.head.wrapping_add(offset), there(offset, n, self.len()))
    }

    fn read(&self, offset: u32, to: &mut [u8]) -> bool {
        let n = to.len() as u32;
        let whole = there(offset, n, self.len()) == n;
        if whole {
            self.memory.fragments(self.head.wrapping_add(offset), n).copy_to(0, to);
        }
        whole
    }

    fn release(&mut self, n: u32) {
        debug_assert!(n <= self.len());
        let n = n.min(self.len());
        self.head = self.head.wrapping_add(n);
        if self.is_empty() && !self.memory.is_lent() {
            // The FIFO is empty. Restart at the beginning of the buffer, whose pages are already
            // allocated.
            self.memory.shift = 0u32.wrapping_sub(self.tail);
            self.free = self.head;
        }
    }

    fn want_capacity(&mut self, bytes: u32) {
        self.limit = self.limit.max(bytes.min(self.limit_max));
    }
}

#[cfg(all(test, not(loom)))]
mod tests {
    use super::*;
    use std::os::fd::AsFd;

    fn payload(bytes: &[u8]) -> Payload<'_> {
        Payload::new(bytes, Fragments::empty())
    }

    fn bytes(fragments: &Fragments) -> Vec<u8> {
        let mut out = vec![0; fragments.len() as usize];
        fragments.copy_to(0, &mut out);
        out
    }

    #[test]
    fn holes_are_filled_and_wrap() {
        let mut recv = HeapRecv::new(16 << 10, 16 << 10);
        for round in 0..20u8 {
            let data: Vec<u8> = (0..9000u32).map(|i| i as u8 ^ round).collect();
            assert!(recv.write_at(4000, &payload(&data[4000..])));
            assert_eq!(recv.unread(), 0);
            assert!(recv.write_at(0, &payload(&data[..4000])));
            recv.commit(9000);
            assert!(recv.write_at(0, &payload(&[7; 100])));
            recv.commit(100);
            assert_eq!(bytes(&recv.peek().slice(0, 9000)), data);
            recv.consume(9000);
            assert_eq!(bytes(&recv.peek()), [7; 100]);
            recv.consume(100);
        }
        assert!(!recv.write_at(16 << 10, &payload(b"x")));
        recv.release_idle();
        assert!(recv.memory.mapping.is_none());
    }

    #[test]
    fn memory_counts_once_it_was_written_to() {
        let mut recv = HeapRecv::new(64 << 10, 64 << 10);
        assert_eq!(recv.memory_bytes(), 0);
        for _ in 0..3 {
            // If each read empties the FIFO, the next write reuses the start of the memory.
            assert!(recv.write_at(0, &payload(&[1; 1000])));
            recv.commit(1000);
            assert_eq!(recv.memory_bytes(), 1000);
            recv.consume(1000);
        }
        assert!(recv.write_at(5000, &payload(&[1; 1000])));
        assert_eq!(recv.memory_bytes(), 6000);

        let mut send = HeapSend::new(16 << 10, 1 << 20);
        let spare = send.spare();
        drop(spare);
        assert_eq!(send.memory_bytes(), 0);
        send.commit(3000);
        assert_eq!(send.write(&payload(&[1; 1000])), 1000);
        assert_eq!(send.memory_bytes(), 4000);
        // The larger memory contains only the queued bytes, not those released.
        send.release(1500);
        send.want_capacity(100_000);
        assert_eq!(send.write(&payload(&[1; 500])), 500);
        assert_eq!(send.memory_bytes(), 3000);
        send.release(3000);
        send.release_idle();
        assert_eq!(send.memory_bytes(), 0);
    }

    #[test]
    fn growing_keeps_what_is_queued() {
        let mut send = HeapSend::new(16 << 10, 1 << 20);
        let data: Vec<u8> = (0..60_000u32).map(|i| (i * 7) as u8).collect();
        assert_eq!(send.write(&payload(&data)), 16 << 10);
        send.release(1000);
        assert_eq!(send.write(&payload(&data[16 << 10..])), 1000);
        send.want_capacity(100_000);
        let at = 1000 + send.len() as usize;
        assert_eq!(send.write(&payload(&data[at..])) as usize, data.len() - at);
        assert_eq!(bytes(&send.peek(0, send.len())), data[1000..]);
    }

    #[test]
    fn released_bytes_stay_while_fragments_point_to_them() {
        let mut send = HeapSend::new(16 << 10, 16 << 10);
        let mut lent = Vec::new();
        let mut written = 0u32;
        for round in 0..100u32 {
            let data: Vec<u8> = (written..written + 9000).map(|i| (i / 3) as u8).collect();
            written += send.write(&payload(&data));
            let n = send.len();
            lent.push((send.peek(n / 3, n / 2), bytes(&send.peek(n / 3, n / 2))));
            // Release all bytes from time to time, so that the next bytes are written to the start
            // of the memory.
            send.release(if round % 5 == 0 { n } else { n / 2 });
            if round % 3 == 0 {
                lent.remove(round as usize / 3 % lent.len());
            }
            assert!(lent.iter().all(|(fragments, before)| bytes(fragments) == *before), "{round}");
        }
        let rest = send.len();
        let expected: Vec<u8> = (written - rest..written).map(|i| (i / 3) as u8).collect();
        assert_eq!(bytes(&send.peek(0, rest)), expected);
    }

    #[test]
    fn nothing_is_seen_beyond_what_was_written() {
        let mut send = HeapSend::new(16 << 10, 16 << 10);
        assert!(send.peek(0, 1).is_empty());
        assert_eq!(send.write(&payload(b"ours")), 4);
        let far = [0, 1, 4, 5, (16 << 10) - 1, 16 << 10, (16 << 10) + 1, 1 << 31, u32::MAX];
        for offset in far {
            for n in far {
                let there = &b"ours"[(offset as usize).min(4)..];
                let there = &there[..there.len().min(n as usize)];
                assert_eq!(bytes(&send.peek(offset, n)), there, "{n} bytes from {offset} on");
            }
        }
    }

    #[test]
    fn kept_bytes_stay_while_the_fifo_wraps() {
        let mut recv = HeapRecv::new(16 << 10, 16 << 10);
        let (mut kept, mut unread) = (Vec::new(), Vec::new());
        for round in 0..60u8 {
            let data: Vec<u8> = (0..5000u32).map(|i| (i / 3) as u8 ^ round).collect();
            // The second half of the data arrives first.
            assert!(recv.write_at(2500, &payload(&data[2500..])), "{round}");
            assert!(recv.write_at(0, &payload(&data[..2500])));
            recv.commit(5000);
            unread.extend_from_slice(&data);
            assert_eq!(recv.slices().concat(), unread);
            let n = 1000 + usize::from(round) * 70;
            let expected: Vec<u8> = unread.drain(..n).collect();
            match round % 3 {
                // Sometimes remove the bytes without keeping a reference to them.
                0 => recv.consume(n as u32),
                1 => drop(recv.keep(n as u32)),
                _ => kept.push((recv.keep(n as u32), expected)),
            }
            if unread.len() > 9000 {
                recv.consume(unread.len() as u32);
                unread.clear();
            }
            for (kept, expected) in &kept {
                assert_eq!(
                    (kept.len(), kept.slices().concat()),
                    (expected.len(), expected.clone())
                );
            }
        }
        assert!(kept.iter().any(|(kept, _)| !kept.slices()[1].is_empty()), "one wraps");
        recv.consume(unread.len() as u32);
        recv.release_idle();
        assert!(kept.iter().all(|(kept, expected)| kept.slices().concat() == *expected));
    }

    #[test]
    fn reserved_space_wraps_and_spares_packets_in_flight() {
        let mut send = HeapSend::new(16 << 10, 16 << 10);
        let (mut queued, mut lent) = (Vec::new(), Vec::new());
        for round in 0..50u8 {
            let mut left = 6000.min(send.room() as usize);
            for space in send.spare_slices() {
                let n = space.len().min(left);
                space[..n].fill(round);
                left -= n;
                queued.extend(std::iter::repeat_n(round, n));
            }
            assert_eq!(left, 0);
            send.commit(6000.min(send.room()));
            assert_eq!(bytes(&send.peek(0, send.len())), queued, "{round}");
            let packet = send.peek(0, 4000);
            lent.push((bytes(&packet), packet));
            let n = if round % 7 == 0 { send.len() } else { 5000.min(send.len()) };
            send.release(n);
            queued.drain(..n as usize);
            assert!(lent.iter().all(|(expected, packet)| bytes(packet) == *expected), "{round}");
            lent.truncate(3);
        }
        send.release(send.len());
        send.want_room(20_000);
        assert_eq!(send.room(), 16 << 10, "its maximum");
    }

    #[test]
    fn goes_straight_through_a_socket() {
        let (a, b) = std::os::unix::net::UnixStream::pair().unwrap();
        let mut recv = HeapRecv::new(64 << 10, 64 << 10);
        assert!(recv.write_at(0, &payload(b"straight through")));
        recv.commit(16);
        assert_eq!(recv.drain(a.as_fd()).unwrap(), 16);
        assert_eq!(recv.unread(), 0);
        let mut send = HeapSend::new(8, 64);
        assert_eq!(send.fill(b.as_fd()).unwrap(), 8);
        assert_eq!(send.room(), 0);
        send.want_capacity(64);
        assert_eq!(send.fill(b.as_fd()).unwrap(), 8);
        assert_eq!(bytes(&send.peek(0, 16)), b"straight through");
        assert_eq!(send.fill(b.as_fd()).unwrap_err().kind(), io::ErrorKind::WouldBlock);
        drop(a);
        assert_eq!(send.fill(b.as_fd()).unwrap(), 0);
    }
}
