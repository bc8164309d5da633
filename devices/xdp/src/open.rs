//! Opens an Ethernet interface by an XDP socket.

use std::io;
use std::os::fd::{AsFd, BorrowedFd};

use rustix::net::{AddressFamily, SocketFlags, SocketType};
use serde::{Deserialize, Serialize};
use towpath_bpf::{Claim, Kind, SocketMap, XdpMode};
use towpath_interface::{Interface, InterfaceError, Presence, Rights};
use towpath_pool::{Batch, LinkType, Offloads, Pool, Port, PortCounters};
use towpath_shm::{Fd, Mapping};

use crate::beside::{Beside, Received};
use crate::chunks::{CHUNK, Chunks};
use crate::queue::Queue;
use crate::ring::Ring;
use crate::sys;

/// XDP socket on an Ethernet interface that the kernel uses as well. A BPF program redirects frames
/// for this stack to the socket.
#[derive(Debug)]
pub struct XdpSocket {
    fd: Fd,
    queue: Queue,
    /// Descriptor that attaches the BPF program to the interface, and further descriptors to be
    /// closed with the socket.
    _guards: Vec<Fd>,
    beside: Beside,
    facts: XdpProperties,
    blocked: bool,
    /// Whether the transmit ring has frames that the kernel has not sent yet.
    is_behind: bool,
    /// Number of polls of the XDP socket until the packet socket is polled as well; 0 or 1 for the
    /// next poll.
    polls_to_copies: u32,
    presence: Presence,
    now_ns: u64,
}

/// Properties of an open XDP socket.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub struct XdpProperties {
    /// Interface to which the socket is bound.
    pub interface: Interface,
    /// How the kernel delivers frames to the socket.
    pub mode: Mode,
    /// Maximum MTU in bytes: the smaller of the interface's MTU and `frame_mtu`.
    pub mtu_max: u32,
    /// Maximum IP packet length in bytes that the socket supports, regardless of the interface.
    pub frame_mtu: u32,
}

/// How the kernel delivers frames to the socket.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub struct Mode {
    /// Whether the BPF program runs in the network driver (native mode), not after it (generic
    /// mode).
    pub in_driver: bool,
    /// Whether the driver reads and writes the socket's memory itself (zero-copy mode).
    pub zero_copy: bool,
}

/// A configured XDP socket in parts, which can be passed to another process.
#[derive(Debug)]
pub struct Parts {
    /// File descriptors: the XDP socket, its memory, the link of the BPF program, and the packet
    /// socket. Closing the last two detaches the program and ends promiscuous mode. Further
    /// descriptors are kept open as long as the socket.
    pub descriptors: Vec<Fd>,
    /// Properties of the XDP socket.
    pub facts: XdpProperties,
}

towpath_pool::counters! {
    /// Frame counters of an XDP socket.
    pub struct Counters {
        /// Frames received by the XDP socket.
        rx_frames,
        /// Total length of received frames in bytes.
        rx_bytes,
        /// Received frames that the kernel receives, too: multicast and broadcast frames, or ARP
        /// and NDP answers and ICMP errors.
        rx_copies,
        /// Frames dropped by the kernel because the receive ring was full.
        rx_missed,
        /// Received frames dropped because their descriptor does not refer to a chunk that the
        /// kernel owns.
        rx_malformed,
        /// Frames dropped because they exceed the maximum length.
        rx_too_long,
        /// Frames passed to the kernel for transmission.
        tx_frames,
        /// Total length of frames passed to the kernel, in bytes.
        tx_bytes,
        /// Total length of frames that the kernel has finished sending, in bytes. `tx_bytes` minus
        /// this number is still queued in the kernel.
        tx_completed_bytes,
        /// Frames dropped because they exceed the kernel's maximum length.
        tx_too_long,
        /// Entries of the completion ring that do not refer to a frame being sent.
        tx_malformed,
        /// Number of send calls after which the transmit ring was full.
        tx_blocked,
        /// 1 if the driver accesses frames without copies (zero-copy mode), 0 if the kernel copies
        /// them.
        zero_copy,
        /// 1 if the BPF program runs in the driver (native mode), 0 if it runs after the driver
        /// (generic mode).
        in_driver,
    }
}

/// Error returned when an XDP socket cannot be opened. The message tells the user what to do.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum OpenError {
    /// The process lacks a Linux capability.
    #[error("an XDP socket on {name} needs {RIGHTS}: {}", RIGHTS.advice())]
    NotPermitted {
        /// Name of the interface.
        name: String,
    },
    /// The interface does not exist or cannot be used.
    #[error(transparent)]
    Interface(#[from] InterfaceError),
    /// The kernel does not support XDP sockets.
    #[error("this kernel has no XDP sockets (CONFIG_XDP_SOCKETS): use --packet {name}")]
    NoSockets {
        /// Name of the interface.
        name: String,
    },
    /// The interface has several receive queues, but an XDP socket receives from only one.
    #[error(
        "{name} receives by {queues} queues, and an XDP socket has one: \
         `sudo ethtool -L {name} combined 1`"
    )]
    SeveralQueues {
        /// Name of the interface.
        name: String,
        /// Number of receive queues of the interface.
        queues: u32,
    },
    /// Another XDP program is attached to the interface.
    #[error(
        "{name} has an XDP program already (`ip link show dev {name}`): end the run that has it, \
         or remove it with `sudo ip link set dev {name} xdp off`"
    )]
    Taken {
        /// Name of the interface.
        name: String,
    },
    /// The limit of locked memory is too low for the socket's frames.
    #[error(
        "the limit of locked memory is too low for {bytes} bytes of frames: raise it with `ulimit \
         -l unlimited`, or have CAP_IPC_LOCK as well: {}",
        RIGHTS.advice()
    )]
    LockedMemory {
        /// Number of bytes to be locked.
        bytes: usize,
    },
    /// A system call failed.
    #[error("cannot {step} on {name}: {source}")]
    Io {
        /// Name of the interface.
        name: String,
        /// Description of what failed.
        step: &'static str,
        /// Error returned by the kernel.
        source: io::Error,
    },
}

/// Linux capabilities for the BPF program, the packet socket, and locked memory. IPC_LOCK lifts
/// RLIMIT_MEMLOCK, which is 8 MiB for most users.
const RIGHTS: Rights = Rights(&["NET_ADMIN", "NET_RAW", "BPF", "IPC_LOCK"]);
/// Numbers of entries of the rings: receive, transmit, fill, completion. The receive ring has room
/// for the 2800 frames that a TCP peer sends in a window of 4 MiB.
const SIZES: [u32; 4] = [4096, 2048, 4096, 2048];
/// Numbers of chunks for receiving and for sending.
const RECEIVE: usize = SIZES[2] as usize;
const SEND: usize = SIZES[1] as usize;
/// Maximum number of bytes of this socket in the device's transmit queue.
const QUEUE_BYTES: u32 = 8 << 20;
/// Number of bytes in a chunk before a received frame (XDP_PACKET_HEADROOM).
const HEADROOM: usize = 256;
/// Maximum length in bytes of an IP packet in a frame with several chunks.
const FRAME_MTU: u32 = 65_535;
/// Length in bytes of an Ethernet header with a VLAN tag.
const LINK_LEN: usize = 18;
/// Maximum number of system calls per `submit` that make the kernel send. The kernel sends 32
/// frames per call.
const WAKEUPS_MAX: u32 = SIZES[1] / 32;
/// Number of polls of the XDP socket per poll of the packet socket, which takes a system call and
/// rarely has frames. The packet socket is polled at once if the epoll descriptor is ready but the
/// receive ring is empty.
const POLLS_TO_COPIES: u32 = 16;
/// Index of the packet socket in [`Parts::descriptors`].
const PACKET_SOCKET: usize = 3;
/// Time in nanoseconds after which sending is tried again if the kernel did not accept frames.
const RETRY_NS: u64 = 1_000_000;

/// Binds the socket to the first queue of the interface. Returns whether a frame may have several
/// chunks.
fn bind(socket: BorrowedFd<'_>, interface: &Interface) -> Result<bool, OpenError> {
    if sys::bind(socket, interface.index, 0, true).is_ok() {
        return Ok(true);
    }
    // Bind without frames of several chunks, which need Linux 6.6 and support by the driver.
    let bound = sys::bind(socket, interface.index, 0, false);
    bound.map(|()| false).map_err(|source| match source.raw_os_error() {
        Some(libc::EBUSY) => OpenError::Taken { name: interface.name.clone() },
        _ => named(&interface.name, "bind an XDP socket", source),
    })
}

/// Attaches the BPF program to the interface. Returns the descriptor of the link, and whether
/// native mode is used.
fn attach(program: BorrowedFd<'_>, interface: &Interface) -> Result<(Fd, bool), OpenError> {
    let attach = |mode| towpath_bpf::attach_xdp(program, interface.index, mode);
    match attach(XdpMode::Driver) {
        Ok(link) => Ok((link, true)),
        Err(error) if error.raw_os_error() == Some(libc::EBUSY) => {
            Err(OpenError::Taken { name: interface.name.clone() })
        }
        // If the driver does not support XDP, or not with this MTU, use generic mode.
        Err(_) => match attach(XdpMode::Generic) {
            Ok(link) => Ok((link, false)),
            Err(source) => Err(named(&interface.name, "attach an XDP program", source)),
        },
    }
}

impl Parts {
    /// Returns the packet socket that is bound to the same interface.
    pub fn packet_socket(&self) -> BorrowedFd<'_> {
        self.descriptors[PACKET_SOCKET].as_fd()
    }
}

impl XdpSocket {
    /// Opens the interface `name` for a network stack. `claim` returns which frames of the
    /// interface are for the stack. If the stack has its own Ethernet address, promiscuous mode is
    /// enabled.
    ///
    /// # Errors
    /// See [`OpenError`]. The interface is unchanged after an error.
    pub fn open(name: &str, claim: impl FnOnce(&Interface) -> Claim) -> Result<Parts, OpenError> {
        let failed = |step| move |source: io::Error| named(name, step, source);
        let packets = rustix::net::socket_with(
            AddressFamily::PACKET,
            SocketType::RAW,
            SocketFlags::CLOEXEC | SocketFlags::NONBLOCK,
            None,
        );
        let packets = packets.map_err(|errno| failed("open a packet socket")(errno.into()))?;
        let interface = Interface::find(packets.as_fd(), name)?;
        if interface.queues > 1 {
            let queues = interface.queues;
            return Err(OpenError::SeveralQueues { name: name.into(), queues });
        }
        let fd = sys::open().map_err(|source| match source.raw_os_error() {
            Some(libc::EAFNOSUPPORT) => OpenError::NoSockets { name: name.into() },
            _ => named(name, "open an XDP socket", source),
        })?;
        let bytes = Chunks::len(RECEIVE, SEND);
        let memory = Mapping::shared("towpath-xdp", bytes).map_err(failed("allocate frames"))?;
        sys::set_up(fd.as_fd(), &memory, SIZES).map_err(|source| match source.raw_os_error() {
            Some(libc::ENOBUFS) => OpenError::LockedMemory { bytes },
            _ => named(name, "give frames to an XDP socket", source),
        })?;
        sys::set_send_queue(fd.as_fd(), QUEUE_BYTES);
        let several = bind(fd.as_fd(), &interface)?;
        let map = SocketMap::new(1).map_err(failed("make a map of sockets"))?;
        map.set(0, fd.as_fd()).map_err(failed("put a socket into its map"))?;
        let claim = claim(&interface);
        let program = towpath_bpf::load(Kind::Xdp, &claim.redirect(&map));
        let program = program.map_err(failed("load an XDP program"))?;
        let (link, in_driver) = attach(program.as_fd(), &interface)?;
        let copies = match claim {
            Claim::Station { .. } => {
                let received = towpath_interface::receive_all(packets.as_fd(), interface.index);
                received.map_err(failed("set promiscuous mode"))?;
                Claim::groups()
            }
            Claim::Ports { .. } => Claim::copies(),
        };
        let program = towpath_bpf::load(Kind::SocketFilter, &copies);
        let program = program.map_err(failed("load a filter"))?;
        sys::copy_to(packets.as_fd(), interface.index, program.as_fd())
            .map_err(failed("bind a packet socket"))?;
        let zero_copy = sys::is_zero_copy(fd.as_fd());
        let in_chunk = (CHUNK - HEADROOM - LINK_LEN) as u32;
        let frame_mtu = if several { FRAME_MTU } else { in_chunk };
        let mtu_max = interface.mtu.min(frame_mtu);
        let mode = Mode { in_driver, zero_copy };
        let facts = XdpProperties { interface, mode, mtu_max, frame_mtu };
        // Pass the file of the memory, which the process that uses the socket maps.
        let file = memory.file().expect("a shared mapping has a file");
        let file = rustix::io::fcntl_dupfd_cloexec(file, 0);
        let file = file.map_err(|errno| failed("keep the frames")(errno.into()))?;
        Ok(Parts { descriptors: vec![fd, file.into(), link, packets.into()], facts })
    }

    /// Creates the port from a socket that was configured, possibly by another process, and has not
    /// been used yet.
    ///
    /// # Errors
    /// Returns an error if descriptors are missing or memory cannot be mapped.
    pub fn from_parts(parts: Parts) -> io::Result<Self> {
        let Parts { descriptors, facts } = parts;
        let mut descriptors = descriptors.into_iter();
        let mut next = || descriptors.next().ok_or(io::ErrorKind::InvalidData);
        let (fd, memory) = (next()?, next()?);
        let memory = Mapping::from_file(memory, Chunks::len(RECEIVE, SEND))?;
        let layouts = sys::layouts(fd.as_fd())?;
        let mut rings = Vec::with_capacity(4);
        for (n, (layout, size)) in layouts.iter().zip(SIZES).enumerate() {
            let len = Ring::bytes(layout, size, n < 2);
            let memory = Mapping::of_device(&*fd, sys::RING_PLACES[n], len)?;
            rings.push(Ring::new(memory, layout, size));
        }
        let rings: [Ring; 4] = rings.try_into().expect("there are four layouts");
        let from_here = facts.interface.driver == "veth";
        let (link, packets) = (next()?, next()?);
        let beside = Beside::new(packets, fd.as_fd(), from_here)?;
        Ok(Self {
            fd,
            queue: Queue::new(memory, Chunks::new(RECEIVE, SEND), rings, from_here),
            _guards: std::iter::once(link).chain(descriptors).collect(),
            beside,
            presence: Presence::new(facts.interface.index),
            facts,
            blocked: false,
            is_behind: false,
            polls_to_copies: 0,
            now_ns: 0,
        })
    }

    /// Returns the interface to which the socket is bound.
    pub fn interface(&self) -> &Interface {
        &self.facts.interface
    }

    /// Calls `tell` once after the interface was removed, on the thread that polls the socket.
    pub fn on_gone(&mut self, tell: impl FnOnce() + Send + 'static) {
        self.presence.on_gone(tell);
    }

    /// Returns the frame counters of this socket.
    pub fn counters(&self) -> Counters {
        let lost = sys::statistics(self.fd.as_fd());
        let Mode { in_driver, zero_copy } = self.facts.mode;
        Counters {
            rx_missed: lost.dropped + lost.ring_full + lost.fill_ring_empty,
            zero_copy: zero_copy.into(),
            in_driver: in_driver.into(),
            ..self.queue.counters()
        }
    }

    /// Checks whether the interface was removed. Called when the kernel has returned an error.
    fn look_whether_gone(&mut self) {
        self.presence.look(self.now_ns, self.beside.socket());
    }

    /// Receives frames from the packet socket. Returns the number of packets added to `out`.
    fn receive_copies(&mut self, pool: &mut Pool, out: &mut Batch, max: usize) -> usize {
        let Received { count, too_long, failed } = self.beside.receive(self.now_ns, pool, out, max);
        if failed {
            self.look_whether_gone();
        }
        self.queue.counters.rx_copies += count as u64;
        self.queue.counters.rx_too_long += too_long;
        count
    }

    /// Makes the kernel send the frames in the transmit ring.
    fn wake_sender(&mut self) {
        self.is_behind = false;
        for _ in 0..WAKEUPS_MAX {
            let before = self.queue.unsent();
            if before == 0 || !self.queue.sender_sleeps() {
                return;
            }
            match sys::wake_sender(self.fd.as_fd()) {
                Ok(()) | Err(libc::EINTR | libc::EAGAIN) => {}
                // EBUSY, ENOBUFS: the transmit queue of the device is full. ENETDOWN: the interface
                // is down.
                Err(error) => {
                    if matches!(error, libc::ENETDOWN | libc::ENXIO) {
                        self.look_whether_gone();
                    }
                    break;
                }
            }
            self.queue.reclaim();
            if self.queue.unsent() == before {
                break;
            }
        }
        self.is_behind = self.queue.unsent() > 0;
    }
}

/// Creates the error for a system call that failed.
fn named(name: &str, step: &'static str, source: io::Error) -> OpenError {
    match source.raw_os_error() {
        Some(libc::EPERM | libc::EACCES) => OpenError::NotPermitted { name: name.into() },
        _ => OpenError::Io { name: name.into(), step, source },
    }
}

impl Port for XdpSocket {
    fn poll(&mut self, now_ns: u64, pool: &mut Pool, out: &mut Batch, max: usize) -> usize {
        self.now_ns = now_ns;
        self.presence.again(now_ns, self.beside.socket());
        if self.presence.is_gone() {
            return 0;
        }
        if self.is_behind {
            self.wake_sender();
        }
        let mut count = self.queue.receive(now_ns, pool, out, max);
        self.polls_to_copies = self.polls_to_copies.saturating_sub(1);
        if self.polls_to_copies == 0 {
            self.polls_to_copies = POLLS_TO_COPIES;
            count += self.receive_copies(pool, out, max - count);
        }
        if self.queue.receiver_sleeps() {
            sys::wake_receiver(self.fd.as_fd());
        }
        count
    }

    fn submit(&mut self, now_ns: u64, pool: &mut Pool, batch: &mut Batch) -> usize {
        self.now_ns = now_ns;
        let mut taken = 0;
        self.blocked = false;
        while !batch.is_empty() {
            if self.presence.is_gone() {
                taken += batch.len();
                batch.drain(..).for_each(|packet| pool.give(packet));
                break;
            }
            let count = self.queue.send(pool, batch);
            taken += count;
            self.wake_sender();
            if count == 0 && !batch.is_empty() && !self.presence.is_gone() {
                self.blocked = true;
                self.queue.counters.tx_blocked += 1;
                break;
            }
        }
        self.beside.await_room(self.fd.as_fd(), self.blocked);
        taken
    }

    fn offloads(&self) -> Offloads {
        Offloads::default()
    }

    fn link_type(&self) -> LinkType {
        LinkType::Ethernet
    }

    fn wake_fd(&self) -> Option<BorrowedFd<'_>> {
        Some(self.beside.ready())
    }

    fn looked(&mut self, ready: bool) {
        if ready && self.queue.is_idle() {
            self.polls_to_copies = 0;
        }
    }

    fn is_gone(&self) -> bool {
        self.presence.is_gone()
    }

    fn next_timeout_ns(&self) -> Option<u64> {
        let retry = (self.is_behind || self.blocked).then_some(self.now_ns + RETRY_NS);
        retry.into_iter().chain(self.presence.due_ns()).min()
    }

    /// Returns the bytes that the completion ring does not list yet.
    fn unsent_bytes(&mut self) -> Option<u64> {
        self.queue.reclaim();
        let counters = self.queue.counters();
        Some(counters.tx_bytes.saturating_sub(counters.tx_completed_bytes))
    }

    fn counters(&self) -> PortCounters {
        vec![("xdp", self.counters().iter().collect())]
    }

    fn device(&self) -> Option<String> {
        Some(self.interface().name.clone())
    }
}
