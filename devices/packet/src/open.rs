//! Opening an interface.

use std::cell::Cell;
use std::io;
use std::os::fd::{AsFd, BorrowedFd};

use rustix::net::{AddressFamily, SocketFlags, SocketType};
use towpath_pool::{Batch, LinkType, Offloads, Packet, Pool, Port};
use towpath_shm::Fd;

use crate::filter;
use crate::interface::Interface;
use crate::sys::{self, Receiver, Sender};

/// An Ethernet interface beside the kernel, for a stack with an address of its own.
pub struct PacketSocket {
    pub(crate) fd: Fd,
    pub(crate) interface: Interface,
    pub(crate) receiver: Receiver,
    pub(crate) sender: Sender,
    /// Large packets that the next call reads into.
    pub(crate) spare: Vec<Packet>,
    pub(crate) blocked: bool,
    pub(crate) gone: bool,
    on_gone: Option<Box<dyn FnOnce() + Send>>,
    pub(crate) counters: Counters,
    /// Frames that the kernel dropped, as far as [`PacketSocket::counters`] has asked.
    missed: Cell<u64>,
}

towpath_pool::counters! {
    /// Frames, and the losses among them.
    pub struct Counters {
        /// Frames received, merged ones as one.
        rx_frames,
        /// Bytes of received frames.
        rx_bytes,
        /// Drops by the kernel, because the socket's queue was full.
        rx_missed,
        /// Drops of frames whose virtio header contradicts itself or the frame.
        rx_malformed,
        /// Drops of frames that are longer than any buffer.
        rx_too_long,
        /// Reads that failed, as while the interface is down.
        rx_errors,
        /// Frames sent, those to be segmented as one.
        tx_frames,
        /// Bytes of sent frames.
        tx_bytes,
        /// Drops of frames that the kernel refused: the interface is down, or memory is short.
        tx_refused,
        /// Drops of frames to be segmented whose checksum is complete.
        tx_malformed,
        /// Calls after which the socket took no more for now.
        tx_blocked,
    }
}

/// Why an interface could not be opened, and what helps.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum OpenError {
    /// The process has no CAP_NET_RAW.
    #[error(
        "a packet socket on {name} needs CAP_NET_RAW: run with sudo, or give towpath the right \
         once with `sudo setcap cap_net_raw+ep $(command -v towpath)`"
    )]
    NotPermitted {
        /// The interface that was asked for.
        name: String,
    },
    /// The network namespace has no such interface.
    #[error("there is no interface {name:?}: `ip link` lists those of this machine")]
    NoInterface {
        /// The interface that was asked for.
        name: String,
    },
    /// The interface has another link header than Ethernet's.
    #[error("{name} is not an Ethernet interface: choose a network card, a veth or a bridge")]
    NotEthernet {
        /// The interface that was asked for.
        name: String,
    },
    /// The interface is down.
    #[error("{name} is down: set it up with `sudo ip link set {name} up`")]
    Down {
        /// The interface that was asked for.
        name: String,
    },
    /// The system refused a step.
    #[error("cannot {step} on {name}: {source}")]
    Io {
        /// The interface that was asked for.
        name: String,
        /// The step.
        step: &'static str,
        /// The error of the system.
        source: io::Error,
    },
}

/// Bytes that the kernel queues for the socket each way, where it may. Segments of 64 KiB count
/// some 100 KiB each, so that its default of 208 KiB holds two.
const QUEUE_BYTES: u32 = 8 << 20;

impl PacketSocket {
    /// Opens the interface `name` for a stack with the Ethernet address `mac`, which no other host
    /// of the network should have.
    ///
    /// # Errors
    /// See [`OpenError`]. The interface is then as it was.
    pub fn open(name: &str, mac: [u8; 6]) -> Result<Self, OpenError> {
        let flags = SocketFlags::NONBLOCK | SocketFlags::CLOEXEC;
        // Protocol 0: nothing is received before `bind`, when all options are set.
        let socket = rustix::net::socket_with(AddressFamily::PACKET, SocketType::RAW, flags, None);
        let fd: Fd = match socket {
            Ok(fd) => fd.into(),
            Err(rustix::io::Errno::PERM) => {
                return Err(OpenError::NotPermitted { name: name.into() });
            }
            Err(errno) => {
                let (name, source) = (name.into(), errno.into());
                return Err(OpenError::Io { name, step: "open a packet socket", source });
            }
        };
        let interface = Interface::find(fd.as_fd(), name)?;
        let io = |step| move |source| OpenError::Io { name: name.into(), step, source };
        let socket = fd.as_fd();
        sys::set_virtio_headers(socket).map_err(io("use virtio-net headers"))?;
        sys::set_auxiliary_data(socket).map_err(io("ask for VLAN tags"))?;
        sys::ignore_outgoing(socket).map_err(io("leave out frames that this host sends"))?;
        sys::set_filter(socket, &filter::frames_to(mac)).map_err(io("set a filter"))?;
        sys::set_queues(socket, QUEUE_BYTES);
        sys::bind(socket, interface.index).map_err(io("bind a packet socket"))?;
        sys::receive_all(socket, interface.index).map_err(io("set promiscuous mode"))?;
        Ok(Self::from_parts(fd, interface))
    }

    /// Takes a socket apart, to be driven by another process.
    pub fn into_parts(self) -> (Fd, Interface) {
        (self.fd, self.interface)
    }

    /// A socket that was set up, perhaps by another process.
    pub fn from_parts(fd: Fd, interface: Interface) -> Self {
        Self {
            fd,
            interface,
            receiver: Receiver::default(),
            sender: Sender::default(),
            spare: Vec::new(),
            blocked: false,
            gone: false,
            on_gone: None,
            counters: Counters::default(),
            missed: Cell::new(0),
        }
    }

    /// The interface below.
    pub fn interface(&self) -> &Interface {
        &self.interface
    }

    /// Calls `tell` once when the interface is found removed, on the thread that drives it.
    pub fn on_gone(&mut self, tell: impl FnOnce() + Send + 'static) {
        self.on_gone = Some(Box::new(tell));
    }

    /// Counters up to now.
    pub fn counters(&self) -> Counters {
        self.missed.set(self.missed.get() + u64::from(sys::missed(self.fd.as_fd())));
        Counters { rx_missed: self.missed.get(), ..self.counters }
    }

    /// The kernel says that the interface is down: notes whether it was removed, for good.
    pub(crate) fn look_whether_gone(&mut self) {
        if !self.gone && !sys::exists(self.fd.as_fd(), self.interface.index) {
            self.gone = true;
            if let Some(tell) = self.on_gone.take() {
                tell();
            }
        }
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
        self.receive(now_ns, pool, out, max)
    }

    fn submit(&mut self, _now_ns: u64, pool: &mut Pool, batch: &mut Batch) -> usize {
        self.transmit(pool, batch)
    }

    fn offloads(&self) -> Offloads {
        // The kernel does in software what the interface cannot. UDP segments (USO) came with
        // Linux 6.2 for packet sockets, which has no way to ask for that.
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
        self.gone
    }
}
