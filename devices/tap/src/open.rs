//! Making or taking over a device.

use std::io;
use std::os::fd::{AsFd, BorrowedFd};
use towpath_shm::Fd;

use towpath_pool::{Batch, LinkType, Offloads, Packet, Pool, Port, PortCounters};

use crate::host::NET_ADMIN;
use crate::kind::Kind;
use crate::pace::TapPace;
use crate::sys;

/// A TAP or TUN device, non-persistent unless somebody else made it so: it vanishes with this
/// value, also when the process is killed.
#[derive(Debug)]
pub struct Tap {
    pub(crate) fd: Fd,
    name: String,
    kind: Kind,
    pub(crate) udp_segmentation: bool,
    /// Large packet for the next read.
    pub(crate) spare: Option<Packet>,
    pub(crate) pace: TapPace,
    pub(crate) blocked: bool,
    pub(crate) gone: bool,
    on_gone: OnGone,
    pub(crate) counters: Counters,
}

/// Function that is called when the device has gone.
struct OnGone(Option<Box<dyn FnOnce() + Send>>);

impl std::fmt::Debug for OnGone {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_tuple("OnGone").field(&self.0.is_some()).finish()
    }
}

/// How to open one.
#[derive(Debug, Clone, Default)]
pub struct Options {
    /// Name of the interface. None: `towpath%d` with the first free number.
    pub name: Option<String>,
}

towpath_pool::counters! {
    /// Counters of frames, and of those that were lost.
    pub struct Counters {
        /// Frames read. Merged frames count once.
        rx_frames,
        /// Bytes of frames read.
        rx_bytes,
        /// Frames dropped because their virtio header is inconsistent.
        rx_malformed,
        /// Frames dropped because they exceed the largest buffer.
        rx_too_long,
        /// Failed reads.
        rx_errors,
        /// Frames written. Frames to be segmented count once.
        tx_frames,
        /// Bytes of frames written.
        tx_bytes,
        /// Frames dropped because the kernel refused them: link down, or no memory.
        tx_refused,
        /// Frames to be segmented that were dropped because their checksum is already complete.
        tx_malformed,
        /// Times that the device accepted no more frames.
        tx_blocked,
    }
}

/// Why a device could not be opened, and what helps.
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
    /// The device file may not be opened.
    #[error(
        "no permission to open {path}: `sudo chmod 666 {path}` is the usual mode",
        path = sys::TUN_PATH
    )]
    TunForbidden,
    /// The process lacks CAP_NET_ADMIN, and no such device was created for this user.
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
        /// Kind of the requested device.
        kind: Kind,
        /// Mode as spelled in ip-tuntap(8).
        mode: &'static str,
    },
    /// The device has a single queue, but more were requested.
    #[error(
        "the TAP device {name} has one queue, where {queues} are needed: have it made with \
         `sudo ip tuntap add dev {name} mode {mode} user $USER`",
        mode = Kind::Tap.mode(true)
    )]
    OneQueue {
        /// Name of the requested device.
        name: String,
        /// Number of requested queues.
        queues: usize,
    },
    /// Another process uses the device.
    #[error("the {kind} device {name} is in use by another process; choose another name")]
    Busy {
        /// Kind of the requested device.
        kind: Kind,
        /// Name of the requested device.
        name: String,
    },
    /// Another interface has this name.
    #[error("{name} exists and is not a {kind} device; choose another name")]
    NotTap {
        /// Kind of the requested device.
        kind: Kind,
        /// Name of the requested device.
        name: String,
    },
    /// The name is not valid for an interface.
    #[error(
        "{name:?} is no interface name: 1 to {max} characters without space, '/' or ':'",
        max = sys::NAME_MAX
    )]
    BadName {
        /// The invalid name.
        name: String,
    },
    /// The given descriptor is not a device of this kind, or cannot be used.
    #[error("the descriptor is not a {kind} device that can be used: {why}")]
    Descriptor {
        /// Expected kind.
        kind: Kind,
        /// Reason.
        why: &'static str,
    },
    /// Another system call failed.
    #[error("cannot set up the {kind} device {name}: {step}")]
    Io {
        /// Kind of the requested device.
        kind: Kind,
        /// Name of the requested device.
        name: String,
        /// Description of the failed step.
        step: &'static str,
        /// Error of the kernel.
        source: io::Error,
    },
}

impl Tap {
    /// Makes the device, or takes over an existing one that belongs to this user and is not in use.
    pub fn open(options: &Options) -> Result<Self, OpenError> {
        Self::open_kind(Kind::Tap, options)
    }

    /// The same for a device of another kind, with one queue.
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

    /// Tells the kernel which frames are taken on a queue that is attached.
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

    /// A device that is set up.
    pub(crate) fn over(fd: Fd, kind: Kind, name: String, udp_segmentation: bool) -> Self {
        Self {
            fd,
            name,
            kind,
            udp_segmentation,
            spare: None,
            pace: TapPace::default(),
            blocked: false,
            gone: false,
            on_gone: OnGone(None),
            counters: Counters::default(),
        }
    }

    /// Its interface name.
    pub fn name(&self) -> &str {
        &self.name
    }

    /// Its kind.
    pub fn kind(&self) -> Kind {
        self.kind
    }

    /// Whether it stays when this process ends, as a device does that an administrator made.
    pub fn is_persistent(&self) -> bool {
        // Assume a persistent device on an error, so that no setting is left behind in it.
        sys::is_persistent(self.fd.as_fd()).unwrap_or(true)
    }

    /// Calls `tell` once when the device is found deleted, on the thread that drives it.
    pub fn on_gone(&mut self, tell: impl FnOnce() + Send + 'static) {
        self.on_gone.0 = Some(Box::new(tell));
    }

    /// The device was deleted under us, for good.
    pub(crate) fn vanish(&mut self) {
        self.gone = true;
        if let Some(tell) = self.on_gone.0.take() {
            tell();
        }
    }

    /// Counters since the device was opened.
    pub fn counters(&self) -> &Counters {
        &self.counters
    }
}

/// The name of a device whose user has none in mind.
pub(crate) const NAME_UNLESS_GIVEN: &str = "towpath%d";

/// Checks that an interface may have a name.
///
/// # Errors
/// The name is not one that Linux allows.
pub fn check_name(name: &str) -> Result<(), OpenError> {
    let usable = |c: char| c.is_ascii_graphic() && c != '/' && c != ':';
    let reserved = name == "." || name == "..";
    if name.is_empty() || name.len() > sys::NAME_MAX || reserved || !name.chars().all(usable) {
        return Err(OpenError::BadName { name: name.into() });
    }
    Ok(())
}

/// Opens a descriptor that becomes a queue of a device.
pub(crate) fn open_tun(kind: Kind, name: &str) -> Result<Fd, OpenError> {
    sys::open_tun().map_err(|source| match source.raw_os_error() {
        Some(libc::ENOENT | libc::ENODEV | libc::ENXIO) => OpenError::NoTun,
        Some(libc::EACCES | libc::EPERM) => OpenError::TunForbidden,
        _ => OpenError::Io { kind, name: name.into(), step: "open /dev/net/tun", source },
    })
}

fn attach(fd: BorrowedFd<'_>, kind: Kind, name: &str) -> Result<String, OpenError> {
    let mut result = sys::set_iff(fd, kind, name, false);
    // A device created with `multi_queue` can only be attached with the same flag.
    if result.as_ref().is_err_and(|e| e.raw_os_error() == Some(libc::EINVAL)) {
        let single = result;
        result = sys::set_iff(fd, kind, name, true).or(single);
    }
    result.map_err(|source| not_attached((kind, false), name, source))
}

/// Why the device cannot be had.
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
        Offloads { checksum: true, tcp_segmentation: true, udp_segmentation: self.udp_segmentation }
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
