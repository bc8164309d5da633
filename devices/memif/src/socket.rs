//! Sends and receives messages on the control channel, a socket of type SOCK_SEQPACKET.

use std::io::{self, IoSlice, IoSliceMut};
use std::mem::MaybeUninit;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd};

use rustix::event::{EventfdFlags, eventfd};
use rustix::fs::{OFlags, fcntl_getfl, fcntl_setfl};
use rustix::io::Errno;
use rustix::net::{
    RecvAncillaryBuffer, RecvAncillaryMessage, RecvFlags, ReturnFlags, SendAncillaryBuffer,
    SendAncillaryMessage, SendFlags, recvmsg, sendmsg,
};
use towpath_shm::Fd;

use crate::error::LinkError;
use crate::message::{MESSAGE_LEN, MemifMessage};

/// Maximum number of descriptors with a message.
const DESCRIPTORS_MAX: usize = 1;

/// A received message, with the descriptor that was sent with it.
#[derive(Debug)]
pub(crate) struct ReceivedMessage {
    pub(crate) message: MemifMessage,
    pub(crate) descriptor: Option<OwnedFd>,
}

/// Receives the next message. Returns `None` if there is none.
pub(crate) fn receive(socket: impl AsFd) -> Result<Option<ReceivedMessage>, LinkError> {
    // A longer message is recognized by one more byte.
    let mut bytes = [0; MESSAGE_LEN + 1];
    let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(DESCRIPTORS_MAX))];
    let mut ancillary = RecvAncillaryBuffer::new(&mut space);
    let mut parts = [IoSliceMut::new(&mut bytes)];
    let flags = RecvFlags::CMSG_CLOEXEC | RecvFlags::DONTWAIT;
    let received = loop {
        match recvmsg(&socket, &mut parts, &mut ancillary, flags) {
            Err(Errno::INTR) => {}
            Err(Errno::AGAIN) => return Ok(None),
            // The peer has closed the socket, and has not read all messages before.
            Err(Errno::CONNRESET) => return Err(LinkError::Closed),
            received => break received.map_err(io::Error::from)?,
        }
    };
    let mut descriptors = Vec::new();
    for message in ancillary.drain() {
        if let RecvAncillaryMessage::ScmRights(rights) = message {
            descriptors.extend(rights);
        }
    }
    // The kernel closes descriptors that exceed the space.
    if received.flags.contains(ReturnFlags::CTRUNC) || descriptors.len() > DESCRIPTORS_MAX {
        return Err(LinkError::Descriptors);
    }
    match (received.bytes, bytes.first_chunk()) {
        (0, _) => Err(LinkError::Closed),
        (MESSAGE_LEN, Some(bytes)) => {
            let message = MemifMessage::parse(bytes).ok_or(LinkError::Unknown)?;
            Ok(Some(ReceivedMessage { message, descriptor: descriptors.pop() }))
        }
        (len, _) => Err(LinkError::Length(len)),
    }
}

/// Sends a message.
///
/// # Errors
/// Returns an error if the socket does not take the message at once. The peer then does not read
/// its messages, or has closed the socket.
pub(crate) fn send(
    socket: impl AsFd,
    message: &MemifMessage,
    descriptor: Option<BorrowedFd<'_>>,
) -> Result<(), LinkError> {
    let bytes = message.bytes();
    let descriptors: Vec<_> = descriptor.into_iter().collect();
    let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(DESCRIPTORS_MAX))];
    let mut ancillary = SendAncillaryBuffer::new(&mut space);
    if !descriptors.is_empty() {
        ancillary.push(SendAncillaryMessage::ScmRights(&descriptors));
    }
    let flags = SendFlags::NOSIGNAL | SendFlags::DONTWAIT;
    match sendmsg(socket, &[IoSlice::new(&bytes)], &mut ancillary, flags) {
        Ok(_) => Ok(()),
        Err(Errno::PIPE | Errno::CONNRESET) => Err(LinkError::Closed),
        Err(error) => Err(LinkError::Io(error.into())),
    }
}

/// Creates an eventfd for notifications of a ring.
pub(crate) fn new_event() -> io::Result<Fd> {
    Ok(eventfd(0, EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK)?.into())
}

/// Checks that a descriptor of the peer is an eventfd.
///
/// O_NONBLOCK is set, so that a full counter does not block the stack. The flag belongs to the open
/// file that the peer shares, so a hostile peer could clear it again.
pub(crate) fn peer_event(descriptor: Option<OwnedFd>) -> Result<Fd, LinkError> {
    let fd = descriptor.ok_or(LinkError::Descriptors)?;
    let link = std::fs::read_link(format!("/proc/self/fd/{}", fd.as_raw_fd()));
    // Without /proc, the type is unknown.
    if link.is_ok_and(|link| link.as_os_str() != "anon_inode:[eventfd]") {
        return Err(LinkError::NoEventfd);
    }
    let flags = fcntl_getfl(&fd).map_err(io::Error::from)?;
    if !flags.contains(OFlags::NONBLOCK) {
        fcntl_setfl(&fd, flags | OFlags::NONBLOCK).map_err(io::Error::from)?;
    }
    Ok(fd.into())
}

/// Signals an eventfd.
pub(crate) fn signal(event: &Fd) {
    // Ignore errors: if the counter is at its maximum, the peer is already notified.
    let _ = rustix::io::write(event.as_fd(), &1u64.to_ne_bytes());
}
