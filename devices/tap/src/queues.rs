//! TAP devices with several queues, each of which is a port of its own.

use std::io;
use std::os::fd::AsFd;

use towpath_bpf::{Place, Steering};

use crate::host;
use crate::kind::Kind;
use crate::open::{NAME_UNLESS_GIVEN, OpenError, Options, Tap, check_name, not_attached, open_tun};
use crate::sys;

impl Tap {
    /// Creates a TAP device with `count` queues. An existing device is used if it was created with
    /// `multi_queue`, belongs to this user and is not in use. The queues are in the order of the
    /// kernel's queue numbers.
    ///
    /// With `count` 1, this is the same as [`Tap::open`].
    ///
    /// # Errors
    /// See [`OpenError`].
    pub fn open_queues(options: &Options, count: usize) -> Result<Vec<Self>, OpenError> {
        if count == 1 {
            return Ok(vec![Self::open(options)?]);
        }
        let mut name = options.name.as_deref().unwrap_or(NAME_UNLESS_GIVEN).to_owned();
        check_name(&name)?;
        let mut queues = Vec::with_capacity(count);
        let kind = Kind::Tap;
        for _ in 0..count {
            let fd = open_tun(kind, &name)?;
            let attached = sys::set_iff(fd.as_fd(), kind, &name, true);
            name = attached.map_err(|source| refused(kind, &name, count, source))?;
            queues.push(Self::set_up(fd, kind, name.clone())?);
        }
        // If there are more queues, another process has the device open. Ignore an unknown number
        // of queues.
        match host::open_queues(&name) {
            Ok(Some(open)) if open as usize != count => Err(OpenError::Busy { kind, name }),
            _ => Ok(queues),
        }
    }

    /// Makes the kernel distribute frames among the queues of the device by `steering`; `None`
    /// restores the kernel's own distribution. Applies to all queues of the device, and stays in
    /// effect if the device is persistent.
    ///
    /// # Errors
    /// Returns EPERM without CAP_BPF or CAP_SYS_ADMIN in the initial user namespace. Returns EINVAL
    /// or ENOSYS before Linux 4.16, which does not support steering.
    pub fn steer(&self, steering: Option<&Steering>) -> io::Result<()> {
        let load = |steering: &Steering| {
            towpath_bpf::load(towpath_bpf::Kind::SocketFilter, &steering.program(Place::Link))
        };
        let program = steering.map(load).transpose()?;
        sys::set_steering(self.fd.as_fd(), program.as_ref().map(AsFd::as_fd))
    }
}

/// Returns the error for a queue that could not be attached. The kernel returns EINVAL both for a
/// device with a single queue and for other interfaces.
fn refused(kind: Kind, name: &str, queues: usize, source: io::Error) -> OpenError {
    let is_invalid = source.raw_os_error() == Some(libc::EINVAL);
    if is_invalid && open_tun(kind, name).is_ok_and(|fd| has_one_queue(fd.as_fd(), kind, name)) {
        return OpenError::OneQueue { name: name.into(), queues };
    }
    not_attached((kind, true), name, source)
}

/// Returns whether the interface is a TAP device with one queue, in use or not.
fn has_one_queue(fd: std::os::fd::BorrowedFd<'_>, kind: Kind, name: &str) -> bool {
    match sys::set_iff(fd, kind, name, false) {
        Ok(_) => true,
        Err(error) => error.raw_os_error() == Some(libc::EBUSY),
    }
}
