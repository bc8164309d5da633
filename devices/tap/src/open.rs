//! Opens a TAP or TUN device, and creates it if needed.

use std::io;
use std::os::fd::{AsFd, BorrowedFd};
use std::sync::{Arc, Weak};
use towpath_shm::Fd;

use towpath_pool::{Batch, LinkType, Offloads, Packet, Pool, Port, PortCounters};

use crate::host::NET_ADMIN;
use crate::kind::Kind;
use crate::pace::TapPace;
use crate::sys;

/// A TAP or TUN device. The kernel removes the device when this value is dropped or the process
/// ends, unless another program has made it persistent.
#[derive(Debug)]
pub struct Tap {
    pub(crate) fd: Fd,
    name: String,
    kind: Kind,
    pub(crate) udp_segmentation: bool,
    /// Whether each frame is preceded by a virtio header.
    pub(crate) has_header: bool,
    /// Large packet buffer, allocated for the next read.
    pub(crate) spare: Option<Packet>,
    pub(crate) pace: TapPace,
    pub(crate) blocked: bool,
    pub(crate) gone: bool,
    on_gone: OnGone,
    /// Copy of the descriptor for [`TapCarrier`], which turns the carrier on and off.
    switched: Option<Arc<Fd>>,
    pub(crate) counters: Counters,
}

/// Switch for the carrier of the kernel's end of a device. The switch does not keep the device
/// open.
#[derive(Debug, Clone)]
pub struct TapCarrier(Weak<Fd>);

impl TapCarrier {
    /// Sets whether the kernel's end has a carrier. Ignored after the device was closed.
    ///
    /// # Errors
    /// Errors of ioctl(2).
    pub fn set(&self, carrier: bool) -> io::Result<()> {
        self.0.upgrade().map_or(Ok(()), |fd| sys::set_carrier(fd.as_fd(), carrier))
    }
}

/// Function to be called once after the device was deleted.
struct OnGone(Option<Box<dyn FnOnce() + Send>>);

impl std::fmt::Debug for OnGone {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_tuple("OnGone").field(&self.0.is_some()).finish()
    }
}

/// Options for opening a TAP or TUN device.
#[derive(Debug, Clone, Default)]
pub struct Options {
    /// Name of the network interface. With `None` it is `towpath%d`, in which the kernel replaces
    /// `%d` by the first free number.
    pub name: Option<String>,
}

towpath_pool::counters! {
    /// Frame counters of a TAP or TUN device.
    pub struct Counters {
        /// Frames received. Frames that the kernel has merged count as one.
        rx_frames,
        /// Total length of received frames in bytes.
        rx_bytes,
        /// Frames dropped because their virtio header is inconsistent.
        rx_malformed,
        /// Frames dropped because they exceed the largest receive buffer.
        rx_too_long,
        /// Number of failed reads from the device.
        rx_errors,
        /// Frames sent. A frame that is to be segmented counts as one.
        tx_frames,
        /// Total length of sent frames in bytes.
        tx_bytes,
        /// Frames dropped because the kernel rejected them: the interface is down, or kernel memory
        /// is exhausted.
        tx_refused,
        /// Frames dropped because the kernel should segment them, but their checksum is already
        /// complete.
        tx_malformed,
        /// Number of times that the device accepted no more frames.
        tx_blocked,
    }
}

/// Error returned when a TAP or TUN device cannot be opened. The message tells the user what to do.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum OpenError {
    /// The kernel has no TUN/TAP support, or the container hides the device file.
    #[error(
        "{path} is missing: load the module (`sudo modprobe tun`), or give the container the \
         device (`--device /dev/net/tun`)",
        path = sys::TUN_PATH
    )]
    NoTun,
    /// The process has no permission to open the device file of the TUN/TAP driver.
    #[error(
        "no permission to open {path}: `sudo chmod 666 {path}` is the usual mode",
        path = sys::TUN_PATH
    )]
    TunForbidden,
    /// The process lacks CAP_NET_ADMIN, and no device with this name was created for its user.
    #[error(
        "making the {kind} device {name} needs {NET_ADMIN}: {}",
        NET_ADMIN.advice_or(&format!(
            "run with sudo, or have it made for this user once with `sudo ip tuntap add dev {name} \
             mode {mode} user $USER`"
        ))
    )]
    NotPermitted {
        /// Name of the requested device.
        name: String,
        /// Kind of the requested device, TAP or TUN.
        kind: Kind,
        /// Mode of the device in the spelling of ip-tuntap(8).
        mode: &'static str,
    },
    /// The device has one queue, but more were requested.
    #[error(
        "the TAP device {name} has one queue, where {queues} are needed: have it made with \
         `sudo ip tuntap add dev {name} mode {mode} user $USER`",
        mode = Kind::Tap.mode(true)
    )]
    OneQueue {
        /// Name of the requested device.
        name: String,
        /// Number of queues requested by the user.
        queues: usize,
    },
    /// Another process has the device open.
    #[error("the {kind} device {name} is in use by another process; choose another name")]
    Busy {
        /// Kind of the requested device, TAP or TUN.
        kind: Kind,
        /// Name of the requested device.
        name: String,
    },
    /// An interface with this name exists, but is not a device of this kind.
    #[error("{name} exists and is not a {kind} device; choose another name")]
    NotTap {
        /// Kind of the requested device, TAP or TUN.
        kind: Kind,
        /// Name of the requested device.
        name: String,
    },
    /// The name is not valid for a network interface.
    #[error(
        "{name:?} is no interface name: 1 to {max} characters without space, '/' or ':'",
        max = sys::NAME_MAX
    )]
    BadName {
        /// Name that is not a valid interface name.
        name: String,
    },
    /// The file descriptor given by the user is not a device of this kind, or cannot be used.
    #[error("the descriptor is not a {kind} device that can be used: {why}")]
    Descriptor {
        /// Kind of device that was expected.
        kind: Kind,
        /// Reason why the descriptor cannot be used.
        why: &'static str,
    },
    /// A system call failed.
    #[error("cannot set up the {kind} device {name}: {step}")]
    Io {
        /// Kind of the requested device, TAP or TUN.
        kind: Kind,
        /// Name of the requested device.
        name: String,
        /// Description of what failed.
        step: &'static str,
        /// Error returned by the kernel.
        source: io::Error,
    },
}

impl Tap {
    /// Creates a TAP device, or opens an existing one that belongs to this user and is not in use.
    pub fn open(options: &Options) -> Result<Self, OpenError> {
        Self::open_kind(Kind::Tap, options)
    }

    /// Creates or opens a device of the given kind, with one queue, like [`Self::open`].
    ///
    /// # Errors
    /// See [`OpenError`].
    pub fn open_kind(kind: Kind, options: &Options) -> Result<Self, OpenError> {
        let name = options.name.as_deref().unwrap_or(NAME_UNLESS_GIVEN);
        check_name(name)?;
        let fd = open_tun(kind, name)?;
        let name = attach(fd.as_fd(), kind, name)?;
        Self::set_up(fd, kind, name)
    }

    /// Sets the virtio header length and the offloads of a device. If the kernel rejects UDP
    /// segmentation, enables the remaining offloads only.
    pub(crate) fn set_up(fd: Fd, kind: Kind, name: String) -> Result<Self, OpenError> {
        let io = |step| {
            let name = name.clone();
            move |source| OpenError::Io { kind, name, step, source }
        };
        sys::set_header_len(fd.as_fd()).map_err(io("set the virtio header length"))?;
        let udp_segmentation = sys::set_offloads(fd.as_fd(), true).is_ok();
        if !udp_segmentation {
            sys::set_offloads(fd.as_fd(), false).map_err(io("set offloads"))?;
        }
        Ok(Self::over(fd, kind, name, udp_segmentation))
    }

    /// Creates the port for a device whose header length and offloads are set.
    pub(crate) fn over(fd: Fd, kind: Kind, name: String, udp_segmentation: bool) -> Self {
        Self {
            fd,
            name,
            kind,
            udp_segmentation,
            has_header: true,
            spare: None,
            pace: TapPace::default(),
            blocked: false,
            gone: false,
            on_gone: OnGone(None),
            switched: None,
            counters: Counters::default(),
        }
    }

    /// Returns the name of the network interface.
    pub fn name(&self) -> &str {
        &self.name
    }

    /// Returns the kind of the device, TAP or TUN.
    pub fn kind(&self) -> Kind {
        self.kind
    }

    /// Returns whether another program has made the device persistent, so that it continues to
    /// exist when this process ends.
    pub fn is_persistent(&self) -> bool {
        // If the query fails, treat the device as persistent. Settings are then removed instead of
        // left behind in a persistent device.
        sys::is_persistent(self.fd.as_fd()).unwrap_or(true)
    }

    /// Makes the kernel complete checksums and segmentation itself, for a receiver that passes
    /// frames on to devices without offloads.
    ///
    /// # Errors
    /// Errors of ioctl(2).
    pub fn clear_offloads(&self) -> io::Result<()> {
        sys::clear_offloads(self.fd.as_fd())
    }

    /// Sets the Ethernet address of the kernel's end.
    ///
    /// # Errors
    /// EPERM without CAP_NET_ADMIN in the namespace of the device.
    pub fn set_mac(&self, mac: [u8; 6]) -> io::Result<()> {
        sys::set_mac(self.fd.as_fd(), mac)
    }

    /// Returns a switch for the carrier of the kernel's end.
    ///
    /// # Errors
    /// Fails if no descriptor is available.
    pub fn carrier(&mut self) -> io::Result<TapCarrier> {
        let fd = Arc::new(Fd::from(rustix::io::fcntl_dupfd_cloexec(&self.fd, 0)?));
        let switch = TapCarrier(Arc::downgrade(&fd));
        self.switched = Some(fd);
        Ok(switch)
    }

    /// Calls `tell` once after the device was deleted, on the thread that polls the port.
    pub fn on_gone(&mut self, tell: impl FnOnce() + Send + 'static) {
        self.on_gone.0 = Some(Box::new(tell));
    }

    /// Records that the device was deleted, and calls the function of [`Self::on_gone`].
    pub(crate) fn vanish(&mut self) {
        self.gone = true;
        if let Some(tell) = self.on_gone.0.take() {
            tell();
        }
    }

    /// Returns the counters since the device was opened.
    pub fn counters(&self) -> &Counters {
        &self.counters
    }
}

/// Name of the interface if the user gives none.
pub(crate) const NAME_UNLESS_GIVEN: &str = "towpath%d";

/// Checks that Linux allows a name for a network interface.
///
/// # Errors
/// Returns [`OpenError`] if Linux does not allow the name.
pub fn check_name(name: &str) -> Result<(), OpenError> {
    let usable = |c: char| c.is_ascii_graphic() && c != '/' && c != ':';
    let reserved = name == "." || name == "..";
    if name.is_empty() || name.len() > sys::NAME_MAX || reserved || !name.chars().all(usable) {
        return Err(OpenError::BadName { name: name.into() });
    }
    Ok(())
}

/// Opens a descriptor of the TUN/TAP driver. [`attach`] attaches it to a queue of a device.
pub(crate) fn open_tun(kind: Kind, name: &str) -> Result<Fd, OpenError> {
    sys::open_tun().map_err(|source| match source.raw_os_error() {
        Some(libc::ENOENT | libc::ENODEV | libc::ENXIO) => OpenError::NoTun,
        Some(libc::EACCES | libc::EPERM) => OpenError::TunForbidden,
        _ => OpenError::Io { kind, name: name.into(), step: "open /dev/net/tun", source },
    })
}

fn attach(fd: BorrowedFd<'_>, kind: Kind, name: &str) -> Result<String, OpenError> {
    let mut result = sys::set_iff(fd, kind, name, false);
    // EINVAL may mean that the device was created with the flag `multi_queue`, so try again with
    // this flag.
    if result.as_ref().is_err_and(|e| e.raw_os_error() == Some(libc::EINVAL)) {
        let single = result;
        result = sys::set_iff(fd, kind, name, true).or(single);
    }
    result.map_err(|source| not_attached((kind, false), name, source))
}

/// Returns the error that explains why the descriptor could not be attached to the device.
pub(crate) fn not_attached(
    (kind, multi_queue): (Kind, bool),
    name: &str,
    source: io::Error,
) -> OpenError {
    let mode = kind.mode(multi_queue);
    let name = name.replace("%d", "0");
    match source.raw_os_error() {
        Some(libc::EPERM | libc::EACCES) => OpenError::NotPermitted { kind, name, mode },
        Some(libc::EBUSY) => OpenError::Busy { kind, name },
        Some(libc::EINVAL) => OpenError::NotTap { kind, name },
        _ => OpenError::Io { kind, name, step: "attach", source },
    }
}

impl Port for Tap {
    fn poll(&mut self, now_ns: u64, pool: &mut Pool, out: &mut Batch, max: usize) -> usize {
        self.receive(now_ns, pool, out, max)
    }

    fn submit(&mut self, _now_ns: u64, pool: &mut Pool, batch: &mut Batch) -> usize {
        self.transmit(pool, batch)
    }

    fn offloads(&self) -> Offloads {
        // Offloads require the virtio header, which describes them to the kernel.
        Offloads {
            checksum: self.has_header,
            tcp_segmentation: self.has_header,
            udp_segmentation: self.udp_segmentation,
        }
    }

    fn link_type(&self) -> LinkType {
        self.kind.link_type()
    }

    fn wake_fd(&self) -> Option<BorrowedFd<'_>> {
        Some(self.fd.as_fd())
    }

    fn looked(&mut self, ready: bool) {
        self.pace.looked(ready);
    }

    fn is_gone(&self) -> bool {
        self.gone
    }

    fn blocked(&self) -> bool {
        self.blocked
    }

    fn counters(&self) -> PortCounters {
        let name = match self.kind() {
            Kind::Tap => "tap",
            Kind::Tun => "tun",
        };
        vec![(name, self.counters().iter().collect())]
    }

    fn device(&self) -> Option<String> {
        Some(self.name().to_owned())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names() {
        for good in ["tap0", "towpath%d", "a", "exactly15chars_"] {
            assert!(check_name(good).is_ok(), "{good}");
        }
        for bad in ["", "sixteen_chars_ab", "a b", "a/b", "a:b", ".", "..", "täp"] {
            assert!(matches!(check_name(bad), Err(OpenError::BadName { .. })), "{bad}");
        }
    }
}
