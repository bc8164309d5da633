//! Opens an Ethernet interface by a packet socket.

use std::cell::Cell;
use std::io;
use std::os::fd::{AsFd, BorrowedFd};

use rustix::net::{AddressFamily, SocketFlags, SocketType};
use towpath_bpf::{Claim, Kind, Place, Steering};
use towpath_interface::{Interface, InterfaceError, Presence, Rights};
use towpath_pool::{Batch, LinkType, Offloads, Packet, Pool, Port, PortCounters};
use towpath_shm::Fd;

use crate::filter;
use crate::sys::{self, RecvMemory, SendMemory};
use crate::tx::SentLengths;

/// A configured packet socket in parts, which can be passed to another process.
#[derive(Debug)]
pub struct Parts {
    /// File descriptors: the socket first, then those of BPF programs. The kernel detaches a
    /// program when its descriptor is closed.
    pub descriptors: Vec<Fd>,
    /// The interface to which the socket is bound.
    pub interface: Interface,
}

/// A packet socket on an Ethernet interface that the kernel uses as well. Several sockets of an
/// interface can form a group that shares its frames.
pub struct PacketSocket {
    pub(crate) fd: Fd,
    /// File descriptors that are closed together with the socket, for example of the BPF program
    /// that hides the stack's frames from the kernel.
    guards: Vec<Fd>,
    pub(crate) interface: Interface,
    pub(crate) receiver: RecvMemory,
    pub(crate) sender: SendMemory,
    /// Large packet buffers, allocated for the next call that receives frames.
    pub(crate) spare: Vec<Packet>,
    pub(crate) blocked: bool,
    /// Whether the kernel has reported since the last poll that the socket has no frames.
    pub(crate) is_empty: bool,
    /// Lengths of the last frames sent.
    pub(crate) sent: SentLengths,
    pub(crate) presence: Presence,
    pub(crate) counters: Counters,
    /// Number of frames dropped by the kernel, up to the last call of [`PacketSocket::counters`].
    missed: Cell<u64>,
}

towpath_pool::counters! {
    /// Frame counters of a packet socket.
    pub struct Counters {
        /// Frames received. Frames that the kernel has merged count as one.
        rx_frames,
        /// Total length of received frames in bytes.
        rx_bytes,
        /// Frames dropped by the kernel because the socket's queue was full.
        rx_missed,
        /// Frames dropped because their virtio header is inconsistent.
        rx_malformed,
        /// Frames dropped because their VLAN tag is not an 802.1Q tag, for example an 802.1ad tag
        /// (0x88a8).
        rx_foreign_tag,
        /// Frames dropped because they exceed the largest receive buffer.
        rx_too_long,
        /// Number of failed receive calls, for example while the interface is down.
        rx_errors,
        /// Frames sent. A frame that is to be segmented counts as one.
        tx_frames,
        /// Total length of sent frames in bytes.
        tx_bytes,
        /// Frames dropped because the kernel rejected them: the interface is down, or kernel memory
        /// is exhausted.
        tx_refused,
        /// Frames dropped because the device should segment them, but their checksum is already
        /// complete.
        tx_malformed,
        /// Number of send calls after which the socket's queue was full.
        tx_blocked,
    }
}

/// Error returned when a packet socket cannot be opened. The message tells the user what to do.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum OpenError {
    /// The process lacks a Linux capability.
    #[error("a packet socket on {name} needs {rights}: {}", .rights.advice())]
    NotPermitted {
        /// Name of the requested interface.
        name: String,
        /// Capabilities that the process lacks.
        rights: Rights,
    },
    /// The interface does not exist or cannot be used.
    #[error(transparent)]
    Interface(#[from] InterfaceError),
    /// The kernel cannot be prevented from answering on the ports of the stack.
    #[error(
        "ports of the kernel's own addresses on {name} need Linux 6.6, CAP_BPF and CAP_NET_ADMIN \
         ({source}): run with sudo, use --xdp, or give the stack an address of its own"
    )]
    NotWithheld {
        /// Name of the requested interface.
        name: String,
        /// Error returned by the kernel.
        source: io::Error,
    },
    /// The kernel cannot distribute flows among several packet sockets.
    #[error(
        "several shards on {name} need CAP_BPF and Linux 4.3 ({source}): run with sudo, or use \
         --shards 1"
    )]
    NotSteered {
        /// Name of the requested interface.
        name: String,
        /// Error returned by the kernel.
        source: io::Error,
    },
    /// A system call failed.
    #[error("cannot {step} on {name}: {source}")]
    Io {
        /// Name of the requested interface.
        name: String,
        /// Description of what failed.
        step: &'static str,
        /// Error returned by the kernel.
        source: io::Error,
    },
}

/// Send and receive buffer size of the socket in bytes, if the kernel's limits permit. A segment of
/// 64 KiB uses about 100 KiB, so the default of 208 KiB would hold only two.
const QUEUE_BYTES: u32 = 8 << 20;

/// Sets the options of a packet socket that is not bound yet.
fn prepare(socket: BorrowedFd<'_>, name: &str) -> Result<(), OpenError> {
    let io = |step| move |source| OpenError::Io { name: name.into(), step, source };
    sys::set_virtio_headers(socket).map_err(io("use virtio-net headers"))?;
    sys::set_auxiliary_data(socket).map_err(io("ask for VLAN tags"))?;
    sys::ignore_outgoing(socket).map_err(io("leave out frames that this host sends"))?;
    sys::set_queues(socket, QUEUE_BYTES);
    Ok(())
}

impl PacketSocket {
    /// Opens the interface `name` for a network stack. `claim` selects the interface's frames that
    /// are for the stack. If the stack has its own Ethernet address, it must be unique in the
    /// network.
    ///
    /// # Errors
    /// See [`OpenError`]. The interface is unchanged after an error.
    pub fn open(name: &str, claim: impl FnOnce(&Interface) -> Claim) -> Result<Self, OpenError> {
        let mut sockets = Self::open_group(name, claim, None)?;
        Ok(sockets.pop().expect("a group has a socket"))
    }

    /// Opens the interface `name` for a bridge, which receives all frames. The kernel receives them
    /// as well, so it should have no IP addresses on this interface.
    ///
    /// # Errors
    /// See [`OpenError`]. The interface is unchanged after an error.
    pub fn open_bridged(name: &str) -> Result<Self, OpenError> {
        let fd = open_socket(name)?;
        let interface = Interface::find(fd.as_fd(), name)?;
        prepare(fd.as_fd(), name)?;
        let io = |step| move |source| OpenError::Io { name: name.into(), step, source };
        sys::bind(fd.as_fd(), interface.index).map_err(io("bind a packet socket"))?;
        let received = towpath_interface::receive_all(fd.as_fd(), interface.index);
        received.map_err(io("set promiscuous mode"))?;
        Ok(Self::from_parts(Parts { descriptors: vec![fd], interface }))
    }

    /// Opens an interface like [`PacketSocket::open`], with one socket for each queue of `steering`
    /// (the program that distributes flows).
    ///
    /// # Errors
    /// See [`OpenError`]. The interface is unchanged after an error.
    pub fn open_group(
        name: &str,
        claim: impl FnOnce(&Interface) -> Claim,
        steering: Option<&Steering>,
    ) -> Result<Vec<Self>, OpenError> {
        let first = open_socket(name)?;
        let interface = Interface::find(first.as_fd(), name)?;
        let claim = claim(&interface);
        let io = |step| move |source| OpenError::Io { name: name.into(), step, source };
        let withheld = |source| OpenError::NotWithheld { name: name.into(), source };
        let steered = |source| OpenError::NotSteered { name: name.into(), source };
        let mut guards = Vec::new();
        let mut chosen = None;
        if let Claim::Ports { .. } = claim {
            let load = |kind, program: &[_]| towpath_bpf::load(kind, program).map_err(withheld);
            let program = load(Kind::Ingress, &claim.withhold())?;
            let link = towpath_bpf::attach_ingress(program.as_fd(), interface.index);
            guards.push(link.map_err(withheld)?);
            chosen = Some(load(Kind::SocketFilter, &claim.filter())?);
        }
        let count = steering.map_or(1, |steering| steering.queues);
        let mut all = Vec::with_capacity(count as usize);
        let mut group = None;
        let mut first = Some(first);
        for _ in 0..count {
            let fd = first.take().map_or_else(|| open_socket(name), Ok)?;
            let socket = fd.as_fd();
            prepare(socket, name)?;
            let filtered = match (&chosen, &claim) {
                (None, Claim::Station { mac, .. }) => {
                    sys::set_filter(socket, &filter::frames_to(*mac))
                }
                (Some(program), _) => sys::set_program(socket, program.as_fd()),
                (None, Claim::Ports { .. }) => unreachable!("ports have a program"),
            };
            filtered.map_err(io("set a filter"))?;
            sys::bind(socket, interface.index).map_err(io("bind a packet socket"))?;
            if steering.is_some() {
                group = Some(sys::join(socket, group).map_err(steered)?);
            }
            if let Claim::Station { .. } = claim {
                let received = towpath_interface::receive_all(socket, interface.index);
                received.map_err(io("set promiscuous mode"))?;
            }
            let fds = vec![fd];
            all.push(Self::from_parts(Parts { descriptors: fds, interface: interface.clone() }));
        }
        if let (Some(steering), [socket, ..]) = (steering, &all[..]) {
            let program = steering.program(Place::Network);
            let program = towpath_bpf::load(Kind::SocketFilter, &program).map_err(steered)?;
            sys::steer(socket.fd.as_fd(), program.as_fd()).map_err(steered)?;
        }
        let socket = all.first_mut().expect("a group has a socket");
        socket.guards = guards;
        Ok(all)
    }

    /// Keeps these descriptors open until the socket is closed.
    pub fn keep(&mut self, descriptors: Vec<Fd>) {
        self.guards.extend(descriptors);
    }

    /// Converts the socket to parts that can be passed to another process.
    pub fn into_parts(self) -> Parts {
        let mut descriptors = vec![self.fd];
        descriptors.extend(self.guards);
        Parts { descriptors, interface: self.interface }
    }

    /// Creates the port from the parts of a configured socket, which may come from another process.
    ///
    /// # Panics
    /// Panics if `parts` has no descriptor.
    pub fn from_parts(parts: Parts) -> Self {
        let Parts { descriptors, interface } = parts;
        let mut descriptors = descriptors.into_iter();
        Self {
            fd: descriptors.next().expect("a socket has a descriptor"),
            guards: descriptors.collect(),
            presence: Presence::new(interface.index),
            interface,
            receiver: RecvMemory::default(),
            sender: SendMemory::default(),
            spare: Vec::new(),
            blocked: false,
            is_empty: false,
            sent: SentLengths::default(),
            counters: Counters::default(),
            missed: Cell::new(0),
        }
    }

    /// Returns the interface to which the socket is bound.
    pub fn interface(&self) -> &Interface {
        &self.interface
    }

    /// Calls `tell` once after the interface was removed, on the thread that polls the socket.
    pub fn on_gone(&mut self, tell: impl FnOnce() + Send + 'static) {
        self.presence.on_gone(tell);
    }

    /// Returns the frame counters of this socket.
    pub fn counters(&self) -> Counters {
        self.missed.set(self.missed.get() + u64::from(sys::missed(self.fd.as_fd())));
        Counters { rx_missed: self.missed.get(), ..self.counters }
    }

    /// Checks whether the interface was removed. Called when the kernel has reported that the
    /// interface is down.
    pub(crate) fn look_whether_gone(&mut self, now_ns: u64) {
        self.presence.look(now_ns, self.fd.as_fd());
    }
}

/// Creates a packet socket of protocol 0, which receives no frames until `bind`. The caller must
/// set all options before it calls `bind`.
fn open_socket(name: &str) -> Result<Fd, OpenError> {
    let flags = SocketFlags::NONBLOCK | SocketFlags::CLOEXEC;
    match rustix::net::socket_with(AddressFamily::PACKET, SocketType::RAW, flags, None) {
        Ok(fd) => Ok(fd.into()),
        Err(rustix::io::Errno::PERM) => {
            let (name, rights) = (name.into(), Rights(&["NET_RAW"]));
            Err(OpenError::NotPermitted { name, rights })
        }
        Err(errno) => {
            let (name, source) = (name.into(), errno.into());
            Err(OpenError::Io { name, step: "open a packet socket", source })
        }
    }
}

impl OpenError {
    /// If a capability is missing, returns the error that names all capabilities in `rights`.
    /// Otherwise a user would learn about them one by one.
    #[must_use]
    pub fn naming(self, rights: Rights) -> Self {
        let is_missing = |source: &io::Error| source.raw_os_error() == Some(libc::EPERM);
        match self {
            Self::NotPermitted { name, .. } => Self::NotPermitted { name, rights },
            Self::NotWithheld { name, source } | Self::NotSteered { name, source }
                if is_missing(&source) =>
            {
                Self::NotPermitted { name, rights }
            }
            other => other,
        }
    }
}

impl AsFd for PacketSocket {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.fd.as_fd()
    }
}

impl std::fmt::Debug for PacketSocket {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let mut out = f.debug_struct("PacketSocket");
        out.field("interface", &self.interface).finish_non_exhaustive()
    }
}

impl Port for PacketSocket {
    fn poll(&mut self, now_ns: u64, pool: &mut Pool, out: &mut Batch, max: usize) -> usize {
        self.presence.again(now_ns, self.fd.as_fd());
        self.receive(now_ns, pool, out, max)
    }

    fn submit(&mut self, now_ns: u64, pool: &mut Pool, batch: &mut Batch) -> usize {
        self.transmit(now_ns, pool, batch)
    }

    fn offloads(&self) -> Offloads {
        // The kernel segments TCP in software if the interface cannot. UDP segmentation (USO)
        // requires Linux 6.2, and cannot be queried by packet sockets.
        Offloads { checksum: true, tcp_segmentation: true, udp_segmentation: false }
    }

    fn link_type(&self) -> LinkType {
        LinkType::Ethernet
    }

    fn wake_fd(&self) -> Option<BorrowedFd<'_>> {
        Some(self.fd.as_fd())
    }

    fn looked(&mut self, ready: bool) {
        self.is_empty = !ready;
    }

    fn blocked(&self) -> bool {
        self.blocked
    }

    fn is_gone(&self) -> bool {
        self.presence.is_gone()
    }

    fn next_timeout_ns(&self) -> Option<u64> {
        self.presence.due_ns()
    }

    fn unsent_bytes(&mut self) -> Option<u64> {
        Some(self.unsent())
    }

    fn counters(&self) -> PortCounters {
        vec![("packet", self.counters().iter().collect())]
    }

    fn device(&self) -> Option<String> {
        Some(self.interface().name.clone())
    }
}
