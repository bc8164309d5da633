//! TAP devices in other network namespaces, without offloads.

use std::fs::File;
use std::io;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd};
use std::path::Path;

use anyhow::{Context, Result, ensure};
use rustix::fs::{Mode, OFlags};
use rustix::io::Errno;
use rustix::thread::{LinkNameSpaceType, move_into_link_name_space};

/// Directory in which ip-netns(8) stores namespaces.
const NAMESPACES: &str = "/run/netns";

/// An end of the link.
pub struct Tap {
    fd: OwnedFd,
    namespace: File,
    name: String,
    refused: u64,
}

impl Tap {
    /// Opens a device, or creates it. Moves the calling thread into the namespace.
    pub fn open(namespace: &str, name: &str) -> Result<Self> {
        let path = Path::new(NAMESPACES).join(namespace);
        let namespace = File::open(&path).with_context(|| path.display().to_string())?;
        enter(&namespace).with_context(|| path.display().to_string())?;
        let flags = OFlags::RDWR | OFlags::NONBLOCK | OFlags::CLOEXEC;
        // The device belongs to the namespace in which this file is opened.
        let path = "/dev/net/tun";
        let fd = rustix::fs::open(path, flags, Mode::empty()).context(path)?;
        ensure!(name.len() < libc::IFNAMSIZ, "{name}: too long for the name of a device");
        attach(fd.as_fd(), name).with_context(|| format!("the TAP device {name}"))?;
        Ok(Self { fd, namespace, name: name.to_owned(), refused: 0 })
    }

    /// Returns the length of the next frame that the kernel sent, if there is one.
    pub fn read(&self, buffer: &mut [u8]) -> Result<Option<usize>> {
        loop {
            match rustix::io::read(&self.fd, &mut *buffer) {
                Ok(len) => return Ok(Some(len)),
                Err(Errno::AGAIN) => return Ok(None),
                Err(Errno::INTR) => {}
                Err(error) => return Err(error).with_context(|| self.name.clone()),
            }
        }
    }

    /// Passes a frame to the kernel. Counts the frame if the kernel refuses it, because the device
    /// is down.
    pub fn write(&mut self, frame: &[u8]) {
        if rustix::io::write(&self.fd, frame) != Ok(frame.len()) {
            self.refused += 1;
        }
    }

    /// Returns the number of lost frames: refused by the kernel, or dropped by the device because
    /// they were not read in time.
    pub fn dropped(&self) -> Result<u64> {
        enter(&self.namespace)?;
        let path = "/proc/thread-self/net/dev";
        let text = std::fs::read_to_string(path).context(path)?;
        let dropped = dropped(&text, &self.name);
        Ok(self.refused + dropped.with_context(|| format!("{} is not in {path}", self.name))?)
    }
}

impl AsFd for Tap {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.fd.as_fd()
    }
}

fn enter(namespace: &File) -> Result<()> {
    let kind = Some(LinkNameSpaceType::Network);
    move_into_link_name_space(namespace.as_fd(), kind).context("setns (root is needed)")
}

/// Makes the descriptor a TAP device whose frames have no virtio header, so that the kernel
/// segments and computes checksums itself.
fn attach(fd: BorrowedFd<'_>, name: &str) -> io::Result<()> {
    // SAFETY: ifreq has only integers and unions of integers, for which zero is valid.
    let mut request: libc::ifreq = unsafe { std::mem::zeroed() };
    for (to, from) in request.ifr_name.iter_mut().zip(name.bytes()) {
        *to = from as libc::c_char;
    }
    request.ifr_ifru.ifru_flags = (libc::IFF_TAP | libc::IFF_NO_PI) as libc::c_short;
    // SAFETY: TUNSETIFF reads and writes one ifreq, which outlives the call.
    let status = unsafe { libc::ioctl(fd.as_raw_fd(), libc::TUNSETIFF as _, &raw mut request) };
    if status < 0 { Err(io::Error::last_os_error()) } else { Ok(()) }
}

/// Returns the number of frames sent by the kernel that a device dropped: the twelfth number in its
/// line of /proc/net/dev.
fn dropped(text: &str, name: &str) -> Option<u64> {
    let lines = text.lines().filter_map(|line| line.split_once(':'));
    let mut numbers = lines.filter(|(device, _)| device.trim() == name).map(|(_, numbers)| numbers);
    numbers.next()?.split_whitespace().nth(11)?.parse().ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_a_device_dropped_is_found_among_others() {
        let text = "Inter-|   Receive                  |  Transmit\n face |bytes packets\n\
                    \x20   lo: 1 2 3 4 5 6 7 8 9 10 11 12 13 14 15 16\n\
                    \x20   l0: 0 0 0 5 0 0 0 0 0 0 0 42 0 0 0 0\n";
        assert_eq!(dropped(text, "l0"), Some(42));
        assert_eq!(dropped(text, "lo"), Some(12));
        assert_eq!(dropped(text, "l"), None);
    }
}
