//! The socket between `towpath run` and the engine in PROGRAM's process.
//!
//! ```text
//!           ◄── Begins ─────────────────────── PROGRAM's process, as it starts
//!   towpath ── launch spec, descriptors ──────►
//!           ◄── Ready, or why not ────────────
//!           ── Asked ─────────────────────────►
//!           ◄── Said ─────────────────────────   until that process ends, or executes another
//!                                                 program, which begins again
//! ```
//!
//! Each message is a packet that contains JSON. The launch spec may be long, so it is passed as a
//! memory file (memfd_create(2)). Calls of libc are avoided here, because in PROGRAM's process the
//! preloaded library replaces its functions.

use std::ffi::OsString;
use std::io::{self, ErrorKind, IoSlice, IoSliceMut};
use std::mem::MaybeUninit;
use std::net::IpAddr;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::sync::Arc;

use rustix::fs::{MemfdFlags, memfd_create};
use rustix::io::Errno;
use rustix::net::{
    AddressFamily, RecvAncillaryBuffer, RecvAncillaryMessage, RecvFlags, SendAncillaryBuffer,
    SendAncillaryMessage, SendFlags, SocketFlags, SocketType, recv, recvmsg, send, sendmsg,
    socketpair,
};
use serde::de::DeserializeOwned;
use serde::{Deserialize, Serialize};
use towpath_gateway::Notice;
use towpath_shm::Fd;

use crate::counting::Layer;
use crate::shape::{PackedLink, Shape};

/// Maximum number of descriptors in one packet. The kernel's limit, SCM_MAX_FD, is 253.
const PASSED_MAX: usize = 250;
/// Maximum length of a packet in bytes. A packet must fit into a socket's default send buffer of
/// 212,992 bytes (net.core.wmem_default).
const PACKET_MAX: usize = 160 << 10;

/// Launch spec: description of an engine that is created in PROGRAM's process. Two kinds of
/// descriptors are sent with it: the read end of the run's parent-death pipe, and those of the
/// link.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub struct LaunchSpec {
    /// Configuration of the stack on its link.
    pub shape: Shape,
    /// Configuration of the stack's link.
    pub link: PackedLink,
    /// Whether executing a program fails if the program would use the host's sockets instead of the
    /// stack.
    pub strict: bool,
    /// Path of the library that is preloaded into programs that PROGRAM executes.
    pub library: OsString,
}

/// Request from `towpath run` to the engine in PROGRAM's process.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub enum LaunchMessage {
    /// Requests the list of sockets ([`Said::Sockets`]).
    Sockets,
    /// Requests the number of undelivered bytes ([`Said::Unsent`]).
    Unsent,
    /// Sets the MTU of the stack's interface, in bytes.
    SetMtu(u32),
    /// Stops the engine. Undelivered bytes are discarded.
    Stop,
}

/// Message from PROGRAM's process to `towpath run`.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub enum Said {
    /// PROGRAM starts, and requests a launch spec.
    Begins,
    /// The stack was created.
    Ready,
    /// The stack could not be created, for this reason.
    Failed(String),
    /// Notice for the user from the gateway.
    Notice(Notice),
    /// The TAP device was deleted.
    DeviceGone,
    /// Another host uses an address of the stack.
    Conflict {
        /// Address that both hosts use.
        addr: IpAddr,
        /// Ethernet address of the other host; `None` if it is unknown.
        mac: Option<[u8; 6]>,
        /// Whether the stack has stopped using the address.
        is_given_up: bool,
    },
    /// The replay of a capture has delivered all packets. Contains a message for the user.
    ReplayEnded(String),
    /// A program is about to be executed whose sockets are those of the kernel, for example because
    /// it is statically linked.
    Outsider {
        /// Id of the process that executes the program.
        pid: u32,
        /// Path of the program's file.
        path: Vec<u8>,
        /// Reason, as a number defined in `towpath_shm::image::Outside`.
        why: u32,
    },
    /// Part of the reply to [`LaunchMessage::Sockets`]: entries serialized from
    /// `towpath_engine::SocketEntry`.
    Sockets {
        /// Entries of this part, one for each socket.
        entries: Vec<serde_json::Value>,
        /// Whether this is the last part of the list.
        last: bool,
    },
    /// PROGRAM has called exit(3). Its process delivers remaining bytes, and then ends.
    Leaves,
    /// Reply to [`LaunchMessage::Unsent`]: number of undelivered bytes. Each undelivered FIN counts
    /// as one.
    Unsent(u64),
    /// Final counters, sent when the engine ends.
    Counters(Vec<Layer>),
}

/// End of the socket between `towpath run` and PROGRAM's process.
#[derive(Debug, Clone)]
pub struct LaunchSocket(Arc<Fd>);

impl LaunchSocket {
    /// Creates the socket: towpath's end, and the descriptor for PROGRAM's process.
    ///
    /// # Errors
    /// Returns errors of socketpair(2).
    pub fn pair() -> io::Result<(Self, OwnedFd)> {
        let flags = SocketFlags::CLOEXEC;
        let (own, its) = socketpair(AddressFamily::UNIX, SocketType::SEQPACKET, flags, None)?;
        Ok((Self::over(own.into()), its))
    }

    /// Wraps the end of the launch socket that this process has inherited from `towpath run`.
    pub fn over(socket: Fd) -> Self {
        Self(Arc::new(socket))
    }

    /// Sends a launch spec, with these descriptors, to PROGRAM's process.
    ///
    /// # Errors
    /// Fails if there is no memory, or if too many descriptors are in flight (ETOOMANYREFS).
    pub fn equip(&self, spec: &LaunchSpec, descriptors: &[BorrowedFd<'_>]) -> io::Result<()> {
        let text = serde_json::to_vec(spec)?;
        let memory = memfd_create("launch-spec", MemfdFlags::CLOEXEC)?;
        let mut rest = &text[..];
        while !rest.is_empty() {
            let written = rustix::io::write(&memory, rest)?;
            rest = &rest[written..];
        }
        let count = u32::try_from(descriptors.len()).map_err(|_| ErrorKind::InvalidInput)?;
        let number = count.to_ne_bytes();
        let all: Vec<_> =
            std::iter::once(memory.as_fd()).chain(descriptors.iter().copied()).collect();
        for part in all.chunks(PASSED_MAX) {
            let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(PASSED_MAX))];
            let mut ancillary = SendAncillaryBuffer::new(&mut space);
            ancillary.push(SendAncillaryMessage::ScmRights(part));
            let parts = [IoSlice::new(&number)];
            sendmsg(&**self.0, &parts, &mut ancillary, SendFlags::NOSIGNAL)?;
        }
        Ok(())
    }

    /// Requests the launch spec, and receives it. Called in PROGRAM's process.
    ///
    /// # Errors
    /// Fails if the message is not a launch spec.
    pub fn unpack(&self) -> io::Result<(LaunchSpec, Vec<Fd>)> {
        self.say(&Said::Begins)?;
        let mut descriptors: Vec<Fd> = Vec::new();
        loop {
            let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(PASSED_MAX))];
            let mut ancillary = RecvAncillaryBuffer::new(&mut space);
            let mut count = [0; size_of::<u32>()];
            let mut parts = [IoSliceMut::new(&mut count)];
            let received = recvmsg(&**self.0, &mut parts, &mut ancillary, RecvFlags::CMSG_CLOEXEC)?;
            for message in ancillary.drain() {
                if let RecvAncillaryMessage::ScmRights(rights) = message {
                    descriptors.extend(rights.map(Fd::from));
                }
            }
            if received.bytes == 0 {
                return Err(ErrorKind::UnexpectedEof.into());
            }
            // Skip a request without descriptors. The request was sent for the program that this
            // process executed before.
            if descriptors.is_empty() {
                continue;
            }
            if descriptors.len() > u32::from_ne_bytes(count) as usize {
                break;
            }
        }
        let memory = descriptors.remove(0);
        let mut text = Vec::new();
        let mut part = vec![0; 64 << 10];
        loop {
            match rustix::io::pread(&*memory, &mut part, text.len() as u64)? {
                0 => break,
                len => text.extend_from_slice(&part[..len]),
            }
        }
        Ok((serde_json::from_slice(&text)?, descriptors))
    }

    /// Sends a message without blocking. Drops the message if the socket buffer has no room.
    pub fn mention(&self, what: &impl Serialize) {
        let text = serde_json::to_vec(what).unwrap_or_default();
        let _ = send(&**self.0, &text, SendFlags::NOSIGNAL | SendFlags::DONTWAIT);
    }

    /// Sends a message. Blocks until the socket buffer has room.
    ///
    /// # Errors
    /// Fails if the other end is closed, or if the message is too long.
    pub fn say(&self, what: &impl Serialize) -> io::Result<()> {
        let text = serde_json::to_vec(what)?;
        loop {
            match send(&**self.0, &text, SendFlags::NOSIGNAL) {
                Ok(_) => return Ok(()),
                Err(Errno::INTR) => {}
                Err(error) => return Err(error.into()),
            }
        }
    }

    /// Sends the list of all sockets, divided into as many packets as necessary.
    ///
    /// # Errors
    /// Returns the errors of [`Self::say`].
    pub fn say_sockets(&self, all: &[impl Serialize]) -> io::Result<()> {
        /// Maximum number of sockets in one packet. Each entry has addresses and about sixty
        /// numbers.
        const ENTRIES: usize = 50;
        let mut parts = all.chunks(ENTRIES).peekable();
        loop {
            let entries = parts.next().unwrap_or_default().iter().map(serde_json::to_value);
            let entries = entries.collect::<Result<_, _>>()?;
            let last = parts.peek().is_none();
            self.say(&Said::Sockets { entries, last })?;
            if last {
                return Ok(());
            }
        }
    }

    /// Receives the next message; `None` if the other end is closed.
    ///
    /// # Errors
    /// Fails if the message is malformed.
    pub fn hear<T: DeserializeOwned>(&self) -> io::Result<Option<T>> {
        let mut packet = vec![0; PACKET_MAX];
        loop {
            match recv(&**self.0, &mut packet[..], RecvFlags::empty()) {
                Ok((0, _)) | Err(Errno::CONNRESET) => return Ok(None),
                Ok((len, _)) => return Ok(Some(serde_json::from_slice(&packet[..len])?)),
                Err(Errno::INTR) => {}
                Err(error) => return Err(error.into()),
            }
        }
    }
}

impl AsFd for LaunchSocket {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.0.as_fd()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use towpath_gateway::{Forward, ForwardProtocol, GatewayConfig};
    use towpath_tcp::{CongestionKind, TcpDefaults};

    fn launch_spec(ports: u16) -> LaunchSpec {
        let forward = |port| {
            let host = std::net::SocketAddr::from(([127, 0, 0, 1], port));
            (Forward { host, port, protocol: ForwardProtocol::Tcp }, host)
        };
        let addresses = vec!["10.0.2.15/24".parse().expect("a prefix")];
        let routes = Shape::default_routes(&addresses, towpath_pool::LinkType::Ip, |_| None);
        let (mac, mtu, congestion) = ([2, 0, 0, 0, 0, 1], 1500, CongestionKind::NewReno);
        let tcp = TcpDefaults { congestion, ..TcpDefaults::default() };
        let words = |words: &str| Some(words.to_owned());
        let netem = Some(crate::NetemSpec {
            egress: words("delay 50ms"),
            ingress: words("loss 1%"),
            seed: u64::MAX,
        });
        let shape = Shape {
            mac,
            addresses,
            mtu,
            routes,
            resolver: None,
            names: "web\n10.0.2.15\tweb\n".into(),
            tcp,
            busy_poll_us: 20,
            local_ports: (20_000, 30_000),
            netem,
            in_process: true,
        };
        let forwards = (1..=ports).map(forward).collect();
        let link =
            PackedLink::Gateway { config: Box::new(GatewayConfig::default()), forwards, passed: 0 };
        LaunchSpec { shape, link, strict: true, library: "/lib.so".into() }
    }

    #[test]
    fn a_launch_spec_arrives_with_its_descriptors() {
        for ports in [0, 3, 600] {
            let (ours, theirs) = LaunchSocket::pair().expect("descriptors");
            let sent = launch_spec(ports);
            let (read, _write) = io::pipe().expect("a pipe");
            let descriptors = vec![read.as_fd(); usize::from(ports) + 1];
            // The first request is meant for the program that the process executed before, and must
            // be ignored.
            ours.say(&LaunchMessage::Sockets).expect("room");
            ours.equip(&sent, &descriptors).expect("it is taken");
            let (received, descriptors) =
                LaunchSocket::over(theirs.into()).unpack().expect("a launch spec");
            assert_eq!(format!("{received:?}"), format!("{sent:?}"));
            assert_eq!(descriptors.len(), usize::from(ports) + 1);
        }
    }

    #[test]
    fn what_is_said_is_heard_until_the_end() {
        let (ours, theirs) = LaunchSocket::pair().expect("descriptors");
        let theirs = LaunchSocket::over(theirs.into());
        theirs.say(&Said::Ready).expect("room");
        theirs.mention(&Said::Outsider { pid: 7, path: vec![0xff], why: 2 });
        let entries: Vec<_> = (0..120).collect();
        theirs.say_sockets(&entries).expect("room");
        drop(theirs);
        assert_eq!(ours.hear().expect("JSON"), Some(Said::Ready));
        let outsider = Said::Outsider { pid: 7, path: vec![0xff], why: 2 };
        assert_eq!(ours.hear().expect("JSON"), Some(outsider));
        let mut count = 0;
        while let Some(Said::Sockets { entries, last }) = ours.hear().expect("JSON") {
            count += entries.len();
            assert_eq!(last, count == 120);
        }
        assert_eq!(count, 120);
        ours.say(&LaunchMessage::Stop).expect_err("nobody is there");
    }

    #[test]
    fn unpacking_fails_after_towpath_has_ended() {
        let (ours, theirs) = LaunchSocket::pair().expect("descriptors");
        ours.equip(&launch_spec(1), &[]).expect("room");
        ours.say(&LaunchMessage::Stop).expect("room");
        drop(ours);
        let error = LaunchSocket::over(theirs.into()).unpack().expect_err("nobody is there");
        assert_eq!(error.kind(), ErrorKind::BrokenPipe);
    }
}
