//! Socket filters (classic BPF), which the engine (the network stack) validates and runs. A filter
//! that exceeds the length of a request is sent to the engine in parts.

use towpath_shm::control::FILTER_PART_HEADER;

use super::form::int_of;
use super::place::{engine_get_part, engine_set};
use crate::errno::fail;
use crate::handle::OpenSocket;
use crate::{Errno, Result};

/// Maximum number of instructions in a filter (BPF_MAXINSNS).
const INSTRUCTIONS_MAX: u16 = 4096;
/// Length in bytes of an instruction (`struct sock_filter`).
const INSTRUCTION: usize = size_of::<libc::sock_filter>();
/// Size in bytes of the first page of address space, which no program maps. A pointer into it is
/// invalid.
const PAGE: usize = 4096;
/// Maximum number of filter instructions in one request to the engine.
const PART: usize = (towpath_shm::control::DATA_MAX - FILTER_PART_HEADER) / INSTRUCTION;

/// Attaches a filter to a socket (SO_ATTACH_FILTER). `bytes` is a `struct sock_fprog`.
pub(super) fn attach(handle: &OpenSocket, bytes: &[u8]) -> Result<()> {
    let program = program_at(bytes)?;
    let all = (program.len() / INSTRUCTION) as u16;
    for (number, part) in program.chunks(PART * INSTRUCTION).enumerate() {
        let first = (number * PART) as u16;
        let part = [&all.to_ne_bytes()[..], &first.to_ne_bytes(), part].concat();
        engine_set(handle, libc::SOL_SOCKET, libc::SO_ATTACH_FILTER, &part)?;
    }
    Ok(())
}

/// Returns a copy of the instructions to which a `struct sock_fprog` points.
fn program_at(bytes: &[u8]) -> Result<Vec<u8>> {
    const LEN: usize = size_of::<libc::sock_fprog>();
    let Ok(fprog) = <[u8; LEN]>::try_from(bytes) else { return fail(libc::EINVAL) };
    let [a, b, _, _, _, _, _, _, at @ ..] = fprog;
    let (len, at) = (u16::from_ne_bytes([a, b]), usize::from_ne_bytes(at));
    if len == 0 || len > INSTRUCTIONS_MAX || at == 0 {
        return fail(libc::EINVAL);
    }
    if at < PAGE {
        return fail(libc::EFAULT);
    }
    let at = std::ptr::with_exposed_provenance::<u8>(at);
    // SAFETY: the caller of setsockopt ensures that the `sock_fprog` is valid, and that it points
    // to this many instructions.
    let program = unsafe { std::slice::from_raw_parts(at, usize::from(len) * INSTRUCTION) };
    Ok(program.to_vec())
}

/// Refuses SO_ATTACH_BPF and SO_ATTACH_REUSEPORT_EBPF, because the stack cannot run eBPF programs
/// of the kernel. Fails as for a descriptor that is not an eBPF program (`bpf_prog_get_type`).
pub(super) fn attach_kernels(bytes: &[u8]) -> Result<()> {
    let Ok(fd) = <[u8; 4]>::try_from(bytes) else { return fail(libc::EINVAL) };
    let fd = i32::from_ne_bytes(fd) as usize;
    // SAFETY: this command of fcntl(2) takes integers only.
    let flags = unsafe {
        towpath_client::syscall::syscall(
            libc::SYS_fcntl as usize,
            [fd, libc::F_GETFD as usize, 0, 0, 0, 0],
        )
    };
    fail(if flags.is_err() { libc::EBADF } else { libc::EINVAL })
}

/// Sets SO_DETACH_FILTER or SO_LOCK_FILTER.
pub(super) fn set_int(handle: &OpenSocket, name: i32, bytes: &[u8]) -> Result<()> {
    let value = int_of(libc::SOL_SOCKET, bytes)?;
    engine_set(handle, libc::SOL_SOCKET, name, &value.to_ne_bytes())
}

/// Implements SO_GET_FILTER, which has the same number as SO_ATTACH_FILTER. As in Linux's
/// `sk_get_filter`, lengths are numbers of instructions. With `room` 0, returns only the filter's
/// length.
///
/// # Safety
/// `value` must have room for `room` instructions.
pub(super) unsafe fn get(handle: &OpenSocket, value: *mut u8, room: u32) -> Result<u32> {
    let mut told = Vec::new();
    loop {
        let first = (told.len() / INSTRUCTION) as u32;
        let reply = engine_get_part(handle, libc::SOL_SOCKET, libc::SO_ATTACH_FILTER, first)?;
        told.extend_from_slice(reply.payload());
        let all = reply.a;
        if room == 0 || all == 0 {
            return Ok(all);
        }
        if room < all {
            return fail(libc::EINVAL);
        }
        if told.len() >= all as usize * INSTRUCTION {
            // SAFETY: `value` has room for `room` instructions, and `told` contains at most that
            // many.
            unsafe { std::ptr::copy_nonoverlapping(told.as_ptr(), value, told.len()) };
            return Ok(all);
        }
        // An empty part means that the filter was replaced while its parts were being read.
        if reply.payload().is_empty() {
            return Err(Errno(libc::EAGAIN));
        }
    }
}
