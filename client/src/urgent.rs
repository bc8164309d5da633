//! Sends and receives urgent data (MSG_OOB), and reads streams that have an urgent mark.

use std::sync::atomic::Ordering::{Acquire, Relaxed};

use rustix::io::Errno;
use towpath_ring::program_fifo;
use towpath_ring::urgent::{self, Reach, UrgentByte};
use towpath_shm::layout::{Command, Slot, flags, op, setting, shut};

use crate::access::lock_input;
use crate::buffer::peek;
use crate::{Buffer, Client, Error, Socket, stream};

/// Where a read stores the bytes.
#[derive(Debug, Clone, Copy)]
pub(crate) enum ReadTarget<'a> {
    Buffers(&'a [Buffer]),
    Nowhere(usize),
}

/// Reads from a stream that has or had an urgent mark, without waiting. The caller must hold the
/// receive lock. A read ends before the urgent byte, or begins at it. If `keep` is set, the bytes
/// stay unread, and the first `keep` bytes are skipped. Returns the number of bytes, and whether
/// the engine needs the command RX_SPACE.
///
/// # Safety
/// The buffers must be valid for writes.
#[cold]
pub(crate) unsafe fn recv_marked(
    client: &Client,
    slot: &Slot,
    target: ReadTarget<'_>,
    keep: Option<u32>,
) -> (usize, bool) {
    let mut tell = false;
    let wanted = match target {
        ReadTarget::Buffers(buffers) => Buffer::total(buffers),
        ReadTarget::Nowhere(n) => n,
    };
    if wanted == 0 {
        return (0, false);
    }
    loop {
        let start = program_fifo::start(slot);
        let before = keep.unwrap_or(0);
        let Reach { passed, most } = urgent::reach(slot, start, before);
        let skip = before.saturating_add(passed);
        let n = match target {
            // SAFETY: the buffers are valid for writes, by the contract of this function.
            ReadTarget::Buffers(to) => unsafe { peek(client, slot, skip, most as usize, to) },
            ReadTarget::Nowhere(n) => {
                let there = program_fifo::unread(slot).saturating_sub(skip).min(most);
                n.min(there as usize)
            }
        };
        let taken = match keep {
            Some(_) => program_fifo::peeked_from(slot, start),
            None => program_fifo::consume_from(slot, start, passed.saturating_add(n as u32)),
        };
        // `None`: a signal handler has read these bytes after they were copied, so try again.
        let Some(wants) = taken else { continue };
        tell |= wants;
        if keep.is_none() {
            urgent::settle(slot);
        }
        // As on Linux, the read moves past the urgent byte even if it returns no other byte.
        return (n, tell);
    }
}

/// Reads the urgent byte (MSG_OOB) without waiting. If `keep` is true, the byte can be read again.
/// Returns `None` at the end of file.
///
/// # Errors
/// - `Refused` with EINVAL: there is no urgent byte, it was already read, or it is delivered
///   in-line (SO_OOBINLINE);
/// - `NotConnected`: the connection was cut before the peer's FIN;
/// - `WouldBlock`: the byte was announced but has not arrived. Even blocking calls do not wait for
///   it;
/// - `Dead`: the engine (the network stack) has ended, or another thread has closed the socket.
pub fn recv(client: &Client, socket: Socket, keep: bool) -> Result<Option<u8>, Error> {
    if client.is_dead() {
        return Err(Error::Dead);
    }
    let slot = client.slot(socket).ok_or(Error::Dead)?;
    let _guard = lock_input(client, socket, slot).ok_or(Error::Dead)?;
    let seen = slot.flags.load(Acquire);
    // As in Linux's `tcp_recv_urg`, the urgent byte of a reset connection is lost, unless it was
    // announced before the peer's FIN.
    let is_cut = seen & flags::DEAD != 0 && seen & flags::RX_EOF == 0;
    match urgent::take(slot, keep || is_cut) {
        UrgentByte::None => Err(Error::Refused(Errno::INVAL.raw_os_error())),
        _ if is_cut => Err(Error::NotConnected),
        UrgentByte::Byte(byte) => Ok(Some(byte)),
        UrgentByte::At(offset) => {
            let mut byte = [0];
            let n = program_fifo::peek(client.region(), slot, offset, &mut byte);
            if n == 1 { Ok(Some(byte[0])) } else { Err(Error::WouldBlock) }
        }
        UrgentByte::NotYet => {
            let ended = seen & (flags::RX_EOF | flags::DEAD) != 0;
            let shut = slot.shut.load(Relaxed) & shut::READ != 0;
            if ended || shut { Ok(None) } else { Err(Error::WouldBlock) }
        }
    }
}

/// Returns whether the next byte is the urgent one (SIOCATMARK, sockatmark(3)).
///
//= https://www.rfc-editor.org/rfc/rfc9293#section-3.8.5
//# The TCP implementation MUST (MUST-33) provide a way for the application to learn how much
//# urgent data remains to be read from the connection, or at least to determine whether more
//# urgent data remains to be read [19].
pub fn is_at_mark(client: &Client, socket: Socket) -> bool {
    stops_at(client, socket, 0)
}

/// Returns whether a read of `skip` bytes must stop, because the urgent byte follows.
pub fn stops_at(client: &Client, socket: Socket, skip: u32) -> bool {
    client.slot(socket).is_some_and(|slot| urgent::is_marked(slot) && urgent::is_mark(slot, skip))
}

/// Queues bytes as [`crate::stream::send`] does, the last of which is urgent (MSG_OOB). Waits until
/// the engine has recorded the position of the urgent byte, which it must know before it sees the
/// bytes.
///
/// # Errors
/// As for [`crate::stream::send`].
///
/// # Safety
/// The buffers must be valid for reads.
pub unsafe fn send(
    client: &Client,
    socket: Socket,
    buffers: &[Buffer],
    skip: usize,
) -> Result<usize, Error> {
    let note = |_: &Slot, at: u32, n: u32| {
        client.command_answered(&Command {
            op: op::SETTING,
            slot: socket.slot,
            generation: socket.generation,
            a: setting::URGENT,
            b: at.wrapping_add(n).into(),
            c: 0,
        });
    };
    // SAFETY: the buffers are valid for reads, by the contract of this function.
    unsafe { stream::queue(client, socket, buffers, skip, note) }
}
