//! Devices that a privileged process opens for a process without privileges.
//!
//! ```text
//!   borrower ── LoanRequest: addresses of its hosts ──► lender
//!            ◄── LoanReply, descriptors of the device ──
//! ```
//!
//! Each message is a packet of JSON on a Unix socket. The lender keeps no descriptor of a lent
//! device, so that the device ends with the borrower.

use std::io::{self, ErrorKind, IoSlice, IoSliceMut};
use std::mem::MaybeUninit;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::os::unix::fs::FileTypeExt;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use rustix::fs::{AtFlags, CWD, Mode, Uid};
use rustix::io::Errno;
use rustix::net::{
    AddressFamily, RecvAncillaryBuffer, RecvAncillaryMessage, RecvFlags, SendAncillaryBuffer,
    SendAncillaryMessage, SendFlags, SocketAddrUnix, SocketFlags, SocketType, accept_with, bind,
    connect, listen, recvmsg, sendmsg, socket_with, sockopt,
};
use serde::{Deserialize, Serialize};
use towpath_pool::Port;
use towpath_shm::Fd;
use towpath_wire::Prefix;

use crate::counting::Tally;
use crate::device::driver::{
    DeviceRequest, DeviceUse, PackedDevice, ReceivedDevice, UnpackedDevice,
};
use crate::device::{DeviceSpec, unpacker};
use crate::remark::{Remark, Tell};

/// Maximum number of descriptors of a device: its own, and those of its claims (SCM_MAX_FD is 253).
const DESCRIPTORS_MAX: usize = 250;
/// Maximum length of a message in bytes; a request has 20 bytes for each address.
const MESSAGE_MAX: usize = 128 << 10;

/// Request for the device.
#[derive(Debug, Serialize, Deserialize)]
struct LoanRequest {
    /// Addresses of the hosts that will use the device.
    addresses: Vec<String>,
}

/// Reply to a request for a device.
#[derive(Debug, Serialize, Deserialize)]
enum LoanReply {
    /// The device was opened. Its descriptors are sent with this message.
    Lent(LoanTerms),
    /// Reason why no device was lent.
    Refused(String),
}

/// Properties of a lent device.
#[derive(Debug, Serialize, Deserialize)]
struct LoanTerms {
    driver: String,
    /// Name for messages, such as "the TAP device tw0".
    name: String,
    mac: [u8; 6],
    mtu: u32,
    state: serde_json::Value,
}

/// Server that opens a device, and passes it to one process of a given user.
pub struct Lender {
    listener: OwnedFd,
    path: PathBuf,
    device: DeviceSpec,
    user: u32,
}

/// A device that another process has opened.
pub struct BorrowedDevice {
    /// Port of the device.
    pub port: Box<dyn Port + Send>,
    /// Ethernet address of the stack.
    pub mac: [u8; 6],
    /// Maximum length of IP packets in bytes.
    pub mtu: u32,
}

impl Lender {
    /// Creates the socket `path`, at which the user may request the device.
    ///
    /// # Errors
    /// Fails if the device cannot be passed to another process or receives frames to one address
    /// alone (`Unsupported`), or if the socket cannot be created.
    pub fn listen(path: &Path, device: DeviceSpec, user: u32) -> io::Result<Self> {
        let driver = device.driver();
        if driver.pack.is_err() || !driver.traits.has_all_frames {
            let why = driver.pack.err().unwrap_or("it receives frames to one address alone");
            return Err(io::Error::new(ErrorKind::Unsupported, why));
        }
        let (listener, address) = (new_socket()?, SocketAddrUnix::new(path)?);
        // bind(2) creates the file with the mode of the socket. The owner of the folder could
        // replace the file by a link, so do not set the mode by name, and do not follow links.
        rustix::fs::fchmod(&listener, Mode::RUSR | Mode::WUSR)?;
        let mut bound = bind(&listener, &address);
        if bound == Err(Errno::ADDRINUSE) && is_abandoned(path, &address) {
            std::fs::remove_file(path)?;
            bound = bind(&listener, &address);
        }
        bound?;
        let lender = Self { listener, path: path.to_owned(), device, user };
        let owner = Some(Uid::from_raw(user));
        rustix::fs::chownat(CWD, path, owner, None, AtFlags::SYMLINK_NOFOLLOW)?;
        listen(&lender.listener, 1)?;
        Ok(lender)
    }

    /// Waits for a process of the user, and passes the device to it. Other users' processes are
    /// ignored.
    ///
    /// # Errors
    /// Fails if the device cannot be opened; the other process receives the reason as well.
    pub fn lend(&self, tell: &Tell) -> io::Result<()> {
        let (peer, request) = loop {
            let peer = accept_with(&self.listener, SocketFlags::CLOEXEC)?;
            let caller = sockopt::socket_peercred(&peer)?.uid.as_raw();
            if caller != self.user && caller != 0 {
                continue;
            }
            match receive(&peer) {
                Ok((request, _)) => break (peer, request),
                // The process has only checked whether there is a lender.
                Err(error) if error.kind() == ErrorKind::UnexpectedEof => {}
                Err(error) => return Err(error),
            }
        };
        let request: LoanRequest = serde_json::from_slice(&request)?;
        let parsed = request.addresses.iter().map(|text| text.parse());
        let addresses: Result<Vec<Prefix>, _> = parsed.collect();
        let addresses = addresses.map_err(|_| io::Error::from(ErrorKind::InvalidData))?;
        let counters = Arc::new(Tally::default());
        let request = DeviceRequest::new(DeviceUse::Bridge, &addresses, &counters, tell);
        let driver = self.device.driver();
        let pack = driver.pack.map_err(|why| io::Error::new(ErrorKind::Unsupported, why))?;
        match pack(self.device.parameters(), &request) {
            Ok(PackedDevice { site, state, descriptors }) => {
                let (name, mac, mtu) = (site.name, site.mac, site.mtu);
                let terms = LoanTerms { driver: driver.name.into(), name, mac, mtu, state };
                let all: Vec<_> = descriptors.iter().map(AsFd::as_fd).collect();
                send(&peer, &LoanReply::Lent(terms), &all)
            }
            Err(error) => {
                let reason = error.to_string();
                send(&peer, &LoanReply::Refused(reason.clone()), &[])?;
                Err(io::Error::other(reason))
            }
        }
    }
}

/// Removes the socket.
impl Drop for Lender {
    fn drop(&mut self) {
        // Ignore an error: the file may be gone already.
        let _ = std::fs::remove_file(&self.path);
    }
}

impl BorrowedDevice {
    /// Requests the device of the [`Lender`] at `path`, for hosts with these addresses.
    ///
    /// # Errors
    /// Fails if no lender listens at `path`, or if the lender refuses. The error message contains
    /// the lender's reason.
    pub fn request(
        path: &Path,
        addresses: &[Prefix],
        counters: &Arc<Tally>,
        tell: &Tell,
    ) -> io::Result<Self> {
        let socket = new_socket()?;
        connect(&socket, &SocketAddrUnix::new(path)?)?;
        let addresses = addresses.iter().map(Prefix::to_string).collect();
        send(&socket, &LoanRequest { addresses }, &[])?;
        let (reply, descriptors) = receive(&socket)?;
        let terms = match serde_json::from_slice(&reply)? {
            LoanReply::Lent(terms) => terms,
            LoanReply::Refused(reason) => return Err(io::Error::other(reason)),
        };
        let LoanTerms { driver, name, mac, mtu, state } = terms;
        let unpack = unpacker(&driver).ok_or(ErrorKind::InvalidData)?;
        let tell = tell.clone();
        let on_gone = Box::new(move || tell.remark(Remark::DeviceGone(name)));
        let device = unpack(ReceivedDevice { state, descriptors, counters, on_gone })?;
        let UnpackedDevice { port, .. } = device;
        Ok(Self { port, mac, mtu })
    }
}

fn new_socket() -> rustix::io::Result<OwnedFd> {
    socket_with(AddressFamily::UNIX, SocketType::SEQPACKET, SocketFlags::CLOEXEC, None)
}

/// Returns whether the file is a socket of a lender that was killed.
fn is_abandoned(path: &Path, address: &SocketAddrUnix) -> bool {
    let is_socket = std::fs::symlink_metadata(path).is_ok_and(|it| it.file_type().is_socket());
    let is_refused = |probe: OwnedFd| connect(&probe, address) == Err(Errno::CONNREFUSED);
    is_socket && new_socket().is_ok_and(is_refused)
}

fn send(
    socket: &OwnedFd,
    message: &impl Serialize,
    descriptors: &[BorrowedFd<'_>],
) -> io::Result<()> {
    let text = serde_json::to_vec(message)?;
    let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(DESCRIPTORS_MAX))];
    let mut ancillary = SendAncillaryBuffer::new(&mut space);
    if !descriptors.is_empty() && !ancillary.push(SendAncillaryMessage::ScmRights(descriptors)) {
        return Err(ErrorKind::InvalidInput.into());
    }
    sendmsg(socket, &[IoSlice::new(&text)], &mut ancillary, SendFlags::NOSIGNAL)?;
    Ok(())
}

fn receive(socket: &OwnedFd) -> io::Result<(Vec<u8>, Vec<Fd>)> {
    let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(DESCRIPTORS_MAX))];
    let mut ancillary = RecvAncillaryBuffer::new(&mut space);
    let mut text = vec![0; MESSAGE_MAX];
    let mut parts = [IoSliceMut::new(&mut text)];
    let received = recvmsg(socket, &mut parts, &mut ancillary, RecvFlags::CMSG_CLOEXEC)?;
    let mut descriptors = Vec::new();
    for message in ancillary.drain() {
        if let RecvAncillaryMessage::ScmRights(rights) = message {
            descriptors.extend(rights.map(Fd::from));
        }
    }
    if received.bytes == 0 {
        return Err(ErrorKind::UnexpectedEof.into());
    }
    text.truncate(received.bytes);
    Ok((text, descriptors))
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::PermissionsExt;

    use super::*;

    fn spec(words: &str) -> DeviceSpec {
        DeviceSpec::parse(words).expect(words)
    }

    fn path(name: &str) -> PathBuf {
        std::env::temp_dir().join(format!("towpath-lend-{name}-{}", std::process::id()))
    }

    #[test]
    fn devices_that_cannot_be_passed_on_are_refused() {
        for words in ["xdp:eth1", "dpdk:--no-huge"] {
            let error = Lender::listen(&path("xdp"), spec(words), 0).err().expect(words);
            assert_eq!(error.kind(), ErrorKind::Unsupported, "{words}");
        }
    }

    #[test]
    fn the_socket_of_a_killed_lender_is_replaced() {
        let path = path("stale");
        let user = rustix::process::geteuid().as_raw();
        let address = SocketAddrUnix::new(&path).expect("a short path");
        // The file remains when the socket is closed.
        bind(new_socket().expect("a socket"), &address).expect("a new path");
        let listen = || Lender::listen(&path, spec("packet:no-such-if"), user);
        let lender = listen().expect("the socket is abandoned");
        let mode = std::fs::metadata(&path).expect("the socket").permissions().mode();
        assert_eq!(mode & 0o777, 0o600);
        assert_eq!(listen().err().map(|error| error.kind()), Some(ErrorKind::AddrInUse));
        drop(lender);
        assert!(!path.exists());
    }

    #[test]
    fn the_borrower_receives_the_reason_of_a_refusal() {
        let path = path("refused");
        let user = rustix::process::geteuid().as_raw();
        let lender = Lender::listen(&path, spec("packet:no-such-if"), user).expect("a socket");
        std::thread::scope(|scope| {
            let lending = scope.spawn(|| lender.lend(&Tell::ignore()));
            let counters = Arc::new(Tally::default());
            let borrowed = BorrowedDevice::request(&path, &[], &counters, &Tell::ignore());
            let reason = borrowed.err().expect("there is no such interface").to_string();
            assert!(reason.contains("no-such-if"), "{reason}");
            let refused = lending.join().expect("no panic").expect_err("no interface");
            assert_eq!(refused.to_string(), reason);
        });
        drop(lender);
        assert!(!path.exists());
    }
}
