//! Opens an interface.

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

/// A configured socket, to be driven by this process or another one.
#[derive(Debug)]
pub struct Parts {
    /// Descriptors: the socket first, then those of BPF programs, which the kernel detaches when
    /// they are closed.
    pub descriptors: Vec<Fd>,
    /// The interface to which the socket is bound.
    pub interface: Interface,
}

/// A packet socket on an Ethernet interface that the kernel also uses; or one of several such
/// sockets on the interface.
pub struct PacketSocket {
    pub(crate) fd: Fd,
    /// Descriptors to close together with the socket, for example that of the BPF program that
    /// hides the stack's frames from the kernel.
    guards: Vec<Fd>,
    pub(crate) interface: Interface,
    pub(crate) receiver: RecvMemory,
    pub(crate) sender: SendMemory,
    /// Large packet buffers for the next read.
    pub(crate) spare: Vec<Packet>,
    pub(crate) blocked: bool,
    pub(crate) presence: Presence,
    pub(crate) counters: Counters,
    /// Frames dropped by the kernel, as of the last call of [`PacketSocket::counters`].
    missed: Cell<u64>,
}

towpath_pool::counters! {
    /// Frame counters of a packet socket.
    pub struct Counters {
        /// Frames received. Merged frames count once.
        rx_frames,
        /// Bytes of received frames.
        rx_bytes,
        /// Frames dropped by the kernel because the socket's queue was full.
        rx_missed,
        /// Frames dropped because their virtio header is inconsistent.
        rx_malformed,
        /// Frames dropped because their VLAN tag is not an 802.1Q tag, for example an 802.1ad tag
        /// (0x88a8).
        rx_foreign_tag,
        /// Frames dropped because they exceed the largest buffer.
        rx_too_long,
        /// Failed reads, for example while the interface is down.
        rx_errors,
        /// Frames sent. Frames to be segmented count once.
        tx_frames,
        /// Bytes of sent frames.
        tx_bytes,
        /// Frames dropped because the kernel refused them: the interface is down, or memory is
        /// short.
        tx_refused,
        /// Frames to be segmented that were dropped because their checksum is already complete.
        tx_malformed,
        /// Calls after which the socket's queue was full.
        tx_blocked,
    }
}

/// Error of opening an interface, with a remedy.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum OpenError {
    /// The process lacks a capability.
    #[error("a packet socket on {name} needs {rights}: {}", .rights.advice())]
    NotPermitted {
        /// Name of the requested interface.
        name: String,
        /// Missing capabilities.
        rights: Rights,
    },
    /// The interface is unsuitable.
    #[error(transparent)]
    Interface(#[from] InterfaceError),
    /// The kernel cannot be prevented from answering on the stack's ports.
    #[error(
        "ports of the kernel's own addresses on {name} need Linux 6.6, CAP_BPF and CAP_NET_ADMIN \
         ({source}): run with sudo, use --xdp, or give the stack an address of its own"
    )]
    NotWithheld {
        /// Name of the requested interface.
        name: String,
        /// Error of the system call.
        source: io::Error,
    },
    /// The kernel cannot distribute flows among several sockets.
    #[error(
        "several shards on {name} need CAP_BPF and Linux 4.3 ({source}): run with sudo, or use \
         --shards 1"
    )]
    NotSteered {
        /// Name of the requested interface.
        name: String,
        /// Error of the system call.
        source: io::Error,
    },
    /// A system call failed.
    #[error("cannot {step} on {name}: {source}")]
    Io {
        /// Name of the requested interface.
        name: String,
        /// Description of the failed step.
        step: &'static str,
        /// Error of the system call.
        source: io::Error,
    },
}

/// Maximum bytes that the kernel queues for the socket in each direction, if the limits allow that
/// many. A segment of 64 KiB counts some 100 KiB, so the kernel's default of 208 KiB holds only
/// two.
const QUEUE_BYTES: u32 = 8 << 20;

/// Configures a socket that is not bound yet.
fn prepare(socket: BorrowedFd<'_>, name: &str) -> Result<(), OpenError> {
    let io = |step| move |source| OpenError::Io { name: name.into(), step, source };
    sys::set_virtio_headers(socket).map_err(io("use virtio-net headers"))?;
    sys::set_auxiliary_data(socket).map_err(io("ask for VLAN tags"))?;
    sys::ignore_outgoing(socket).map_err(io("leave out frames that this host sends"))?;
    sys::set_queues(socket, QUEUE_BYTES);
    Ok(())
}

impl PacketSocket {
    /// Opens the interface `name` for a stack. `claim` returns the selection of the stack's frames
    /// for the interface that was found. No other host of the network should have the Ethernet
    /// address of a station.
    ///
    /// # Errors
    /// See [`OpenError`]. The interface is then as it was.
    pub fn open(name: &str, claim: impl FnOnce(&Interface) -> Claim) -> Result<Self, OpenError> {
        let mut sockets = Self::open_group(name, claim, None)?;
        Ok(sockets.pop().expect("a group has a socket"))
    }

    /// Opens the interface `name` for a bridge, which receives all frames. The kernel receives all
    /// frames as well, so it should have no addresses on the interface of a bridge.
    ///
    /// # Errors
    /// See [`OpenError`]. The interface is then as it was.
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

    /// Opens an interface like [`PacketSocket::open`], with one socket for each queue of
    /// `steering`, in the order of the queues.
    ///
    /// # Errors
    /// See [`OpenError`]. The interface is then as it was.
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

    /// Keeps the descriptors open while the socket is open.
    pub fn keep(&mut self, descriptors: Vec<Fd>) {
        self.guards.extend(descriptors);
    }

    /// Converts the socket to parts, so that another process can drive it.
    pub fn into_parts(self) -> Parts {
        let mut descriptors = vec![self.fd];
        descriptors.extend(self.guards);
        Parts { descriptors, interface: self.interface }
    }

    /// Creates the port from a socket that was configured, possibly by another process.
    ///
    /// # Panics
    /// If there is no descriptor.
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
            counters: Counters::default(),
            missed: Cell::new(0),
        }
    }

    /// Returns the interface of the socket.
    pub fn interface(&self) -> &Interface {
        &self.interface
    }

    /// Calls `tell` once after the interface was removed, on the thread that drives the socket.
    pub fn on_gone(&mut self, tell: impl FnOnce() + Send + 'static) {
        self.presence.on_gone(tell);
    }

    /// Returns the current counters.
    pub fn counters(&self) -> Counters {
        self.missed.set(self.missed.get() + u64::from(sys::missed(self.fd.as_fd())));
        Counters { rx_missed: self.missed.get(), ..self.counters }
    }

    /// Checks whether the interface was removed, after the kernel has reported that it is down.
    pub(crate) fn look_whether_gone(&mut self, now_ns: u64) {
        self.presence.look(now_ns, self.fd.as_fd());
    }
}

/// Creates a packet socket of protocol 0, which receives nothing before `bind`. The caller sets all
/// options before it calls `bind`.
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
    /// Returns the error with all capabilities that the caller needs, if a capability is missing.
    /// Otherwise a user would learn of the missing capabilities one by one.
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
        // The kernel segments in software if the interface cannot. UDP segmentation (USO) is
        // supported since Linux 6.2, but packet sockets cannot query it.
        Offloads { checksum: true, tcp_segmentation: true, udp_segmentation: false }
    }

    fn link_type(&self) -> LinkType {
        LinkType::Ethernet
    }

    fn wake_fd(&self) -> Option<BorrowedFd<'_>> {
        Some(self.fd.as_fd())
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

    fn counters(&self) -> PortCounters {
        vec![("packet", self.counters().iter().collect())]
    }

    fn device(&self) -> Option<String> {
        Some(self.interface().name.clone())
    }
}
