//! System calls of bpf(2).

use std::io;
use std::mem::size_of;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, FromRawFd, OwnedFd};

use libc::c_int;
use towpath_shm::Fd;

use crate::assembler::BpfInstruction;

// Constants of linux/bpf.h and linux/if_link.h.
const BPF_MAP_CREATE: c_int = 0;
const BPF_MAP_UPDATE_ELEM: c_int = 2;
const BPF_PROG_LOAD: c_int = 5;
const BPF_PROG_TEST_RUN: c_int = 10;
const BPF_LINK_CREATE: c_int = 28;
const BPF_MAP_TYPE_XSKMAP: u32 = 17;
const BPF_PROG_TYPE_SOCKET_FILTER: u32 = 1;
const BPF_PROG_TYPE_SCHED_CLS: u32 = 3;
const BPF_PROG_TYPE_XDP: u32 = 6;
const BPF_XDP: u32 = 37;
const BPF_TCX_INGRESS: u32 = 46;
const BPF_F_XDP_HAS_FRAGS: u32 = 1 << 5;
const BPF_F_TEST_XDP_LIVE_FRAMES: u32 = 1 << 1;
/// Number of frames that the kernel sends in one batch, as network drivers do (NAPI_POLL_WEIGHT).
const LIVE_BATCH: u32 = 64;
const XDP_FLAGS_SKB_MODE: u32 = 1 << 1;
const XDP_FLAGS_DRV_MODE: u32 = 1 << 2;

/// Type of a BPF program and its attach point, which determine what it may do.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Kind {
    /// Chooses a queue or a socket for a frame (a socket filter).
    SocketFilter,
    /// Decides whether the kernel processes a received frame (a tcx program).
    Ingress,
    /// Runs in the driver of an interface, on frames of any number of pages (XDP, Linux 5.18).
    Xdp,
}

/// Where the kernel runs an XDP program.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum XdpMode {
    /// In the network driver, before the kernel allocates a socket buffer for the frame.
    Driver,
    /// After the network driver, which is slower but supported on any interface.
    Generic,
}

/// The start of `union bpf_attr` for BPF_PROG_LOAD. The kernel treats the fields after it as zero.
#[derive(Default)]
#[repr(C)]
struct Load {
    kind: u32,
    count: u32,
    instructions: u64,
    license: u64,
    log_level: u32,
    log_size: u32,
    log: u64,
    kernel_version: u32,
    flags: u32,
    name: [u8; 16],
    interface: u32,
    attach_type: u32,
}

/// The start of `union bpf_attr` for BPF_MAP_CREATE.
#[repr(C)]
struct Create {
    kind: u32,
    key_len: u32,
    value_len: u32,
    entries_max: u32,
    flags: u32,
}

/// The start of `union bpf_attr` for BPF_MAP_UPDATE_ELEM.
#[repr(C)]
struct Update {
    map: u32,
    padding: u32,
    key: u64,
    value: u64,
    flags: u64,
}

/// The start of `union bpf_attr` for BPF_LINK_CREATE.
#[repr(C)]
struct Link {
    program: u32,
    interface: u32,
    attach_type: u32,
    flags: u32,
}

const _: () = {
    assert!(size_of::<Load>() == 72);
    assert!(size_of::<Update>() == 32);
};

/// Verifies and loads a program. The kernel keeps the program while its descriptor is open, or
/// while a device or socket uses it.
///
/// # Errors
/// Returns EPERM without CAP_BPF in the initial user namespace (XDP also needs CAP_NET_ADMIN).
/// Returns EINVAL or EACCES if the verifier rejects the program.
pub fn load(kind: Kind, instructions: &[BpfInstruction]) -> io::Result<Fd> {
    let (kind, flags, attach_type) = match kind {
        Kind::SocketFilter => (BPF_PROG_TYPE_SOCKET_FILTER, 0, 0),
        Kind::Ingress => (BPF_PROG_TYPE_SCHED_CLS, 0, BPF_TCX_INGRESS),
        Kind::Xdp => (BPF_PROG_TYPE_XDP, BPF_F_XDP_HAS_FRAGS, BPF_XDP),
    };
    let load = Load {
        kind,
        count: instructions.len() as u32,
        instructions: instructions.as_ptr() as u64,
        license: c"MIT".as_ptr() as u64,
        flags,
        attach_type,
        ..Load::default()
    };
    // SAFETY: bpf(2) reads `load` and the instructions, which both outlive the call. Without a log
    // buffer it writes nothing.
    unsafe { opened(BPF_PROG_LOAD, &load) }
}

/// A BPF map from the queues of an interface to XDP sockets (BPF_MAP_TYPE_XSKMAP).
#[derive(Debug)]
pub struct SocketMap(Fd);

impl SocketMap {
    /// Creates a map for `queues` queues.
    ///
    /// # Errors
    /// Returns EPERM without CAP_BPF.
    pub fn new(queues: u32) -> io::Result<Self> {
        let create = Create {
            kind: BPF_MAP_TYPE_XSKMAP,
            key_len: 4,
            value_len: 4,
            entries_max: queues,
            flags: 0,
        };
        // SAFETY: bpf(2) reads `create`, which outlives the call.
        Ok(Self(unsafe { opened(BPF_MAP_CREATE, &create) }?))
    }

    /// Maps a queue to the XDP socket bound to it. The kernel removes the socket when it is closed.
    ///
    /// # Errors
    /// Returns E2BIG if the map is too small for the queue.
    pub fn set(&self, queue: u32, socket: BorrowedFd<'_>) -> io::Result<()> {
        let value = socket.as_raw_fd() as u32;
        let update = Update {
            map: self.0.as_fd().as_raw_fd() as u32,
            padding: 0,
            key: (&raw const queue) as u64,
            value: (&raw const value) as u64,
            flags: 0,
        };
        // SAFETY: bpf(2) reads `update`, and 4 bytes each of key and value, which are locals.
        unsafe { call(BPF_MAP_UPDATE_ELEM, &update) }.map(drop)
    }
}

impl AsFd for SocketMap {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.0.as_fd()
    }
}

/// Attaches an XDP program to an interface while the returned descriptor is open. The kernel
/// detaches the program when the last process with the descriptor ends, for any reason.
///
/// # Errors
/// Returns EBUSY if another program is attached, and ERANGE or EOPNOTSUPP if the driver does not
/// support the program.
pub fn attach_xdp(program: BorrowedFd<'_>, interface: u32, mode: XdpMode) -> io::Result<Fd> {
    let flags = match mode {
        XdpMode::Driver => XDP_FLAGS_DRV_MODE,
        XdpMode::Generic => XDP_FLAGS_SKB_MODE,
    };
    attach(program, interface, BPF_XDP, flags)
}

/// Attaches a program that decides which received frames the kernel processes, while the returned
/// descriptor is open. Packet sockets receive frames before the program.
///
/// # Errors
/// Returns EINVAL before Linux 6.6, which does not support such programs.
pub fn attach_ingress(program: BorrowedFd<'_>, interface: u32) -> io::Result<Fd> {
    attach(program, interface, BPF_TCX_INGRESS, 0)
}

fn attach(program: BorrowedFd<'_>, interface: u32, attach_type: u32, flags: u32) -> io::Result<Fd> {
    let program = program.as_raw_fd() as u32;
    let link = Link { program, interface, attach_type, flags };
    // SAFETY: bpf(2) reads `link`, which outlives the call.
    unsafe { opened(BPF_LINK_CREATE, &link) }
}

/// Executes a bpf(2) command that returns a descriptor.
///
/// # Safety
/// The requirements of [`call`] apply.
unsafe fn opened<T>(command: c_int, attributes: &T) -> io::Result<Fd> {
    // SAFETY: `attributes` is valid for the command, by the contract of `opened`.
    let fd = unsafe { call(command, attributes) }?;
    // SAFETY: the descriptor is new, so this is its only owner. The kernel sets its close-on-exec
    // flag.
    Ok(unsafe { OwnedFd::from_raw_fd(fd) }.into())
}

/// # Safety
/// `attributes` must be the start of `union bpf_attr` for the command, and its pointers must be
/// valid for the command.
unsafe fn call<T>(command: c_int, attributes: &T) -> io::Result<c_int> {
    let attributes = std::ptr::from_ref(attributes);
    // SAFETY: `attributes` is valid for the command, by the contract of `call`.
    let result = unsafe { libc::syscall(libc::SYS_bpf, command, attributes, size_of::<T>()) };
    if result < 0 { Err(io::Error::last_os_error()) } else { Ok(result as c_int) }
}

/// The start of `union bpf_attr` for BPF_PROG_TEST_RUN.
#[derive(Default)]
#[repr(C)]
struct Run {
    program: u32,
    result: u32,
    len_in: u32,
    len_out: u32,
    bytes_in: u64,
    bytes_out: u64,
    repeat: u32,
    duration: u32,
    context_len_in: u32,
    context_len_out: u32,
    context_in: u64,
    context_out: u64,
    flags: u32,
    cpu: u32,
    batch: u32,
    padding: u32,
}

const _: () = assert!(size_of::<Run>() == 80);

/// Runs an XDP program on copies of a frame, and applies the program's result to each copy
/// (BPF_F_TEST_XDP_LIVE_FRAMES, Linux 5.18).
pub(crate) fn run_live(program: BorrowedFd<'_>, frame: &[u8], count: u32) -> io::Result<()> {
    let mut run = Run {
        program: program.as_raw_fd() as u32,
        len_in: frame.len() as u32,
        bytes_in: frame.as_ptr() as u64,
        repeat: count,
        flags: BPF_F_TEST_XDP_LIVE_FRAMES,
        batch: LIVE_BATCH,
        ..Run::default()
    };
    // SAFETY: bpf(2) reads the frame and writes to `run`, which both outlive the call.
    unsafe { run_program(&mut run) }
}

/// Runs a program on a frame, and returns the program's result.
#[cfg(test)]
pub fn run(program: BorrowedFd<'_>, frame: &[u8]) -> io::Result<u32> {
    let mut run = Run {
        program: program.as_raw_fd() as u32,
        len_in: frame.len() as u32,
        bytes_in: frame.as_ptr() as u64,
        repeat: 1,
        ..Run::default()
    };
    // SAFETY: bpf(2) reads the frame and writes to `run`, which both outlive the call.
    unsafe { run_program(&mut run) }?;
    Ok(run.result)
}

/// # Safety
/// `run` must reference a frame of the given length, and no output buffers.
unsafe fn run_program(run: &mut Run) -> io::Result<()> {
    let run = std::ptr::from_mut(run);
    // SAFETY: `run` references a valid frame, by the contract of `run_program`.
    let result = unsafe { libc::syscall(libc::SYS_bpf, BPF_PROG_TEST_RUN, run, size_of::<Run>()) };
    if result < 0 { Err(io::Error::last_os_error()) } else { Ok(()) }
}
