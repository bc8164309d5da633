//! Sends and receives messages on control sockets, without blocking.

use std::io::{IoSlice, IoSliceMut};
use std::mem::MaybeUninit;
use std::os::fd::BorrowedFd;
use towpath_shm::Fd;

use rustix::io::Errno;
use rustix::net::{
    RecvAncillaryBuffer, RecvAncillaryMessage, RecvFlags, SendAncillaryBuffer,
    SendAncillaryMessage, SendFlags, recvmsg, sendmsg,
};
use towpath_shm::control::{ControlReply, DESCRIPTORS_MAX, Request};
use towpath_shm::layout::Plain;

/// Maximum number of descriptors in a message (the kernel's SCM_MAX_FD).
pub(crate) const SENT_MAX: usize = 253;

/// A message received from a process's control socket.
#[derive(Debug)]
pub(crate) enum ControlMessage {
    /// A request. If the message was shorter than a request, the missing fields are zero.
    Request(Box<Request>),
    /// A message with descriptors, which correct programs never send. The descriptors must be
    /// closed on another thread, because closing may block.
    Descriptors(Vec<Fd>),
    /// No message is available at the moment.
    Nothing,
    /// The process has closed its end of the socket, usually because it has ended.
    End,
}

/// Receives the next message. Provides space for the maximum number of descriptors: the kernel
/// would close descriptors that do not fit on this thread, which may block.
pub(crate) fn receive(control: BorrowedFd<'_>) -> ControlMessage {
    let mut bytes = [0; size_of::<Request>()];
    let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(SENT_MAX))];
    let mut ancillary = RecvAncillaryBuffer::new(&mut space);
    let mut parts = [IoSliceMut::new(&mut bytes)];
    let flags = RecvFlags::DONTWAIT | RecvFlags::CMSG_CLOEXEC;
    let received = recvmsg(control, &mut parts, &mut ancillary, flags).map(|message| message.bytes);
    let mut descriptors = Vec::new();
    for message in ancillary.drain() {
        if let RecvAncillaryMessage::ScmRights(rights) = message {
            descriptors.extend(rights.map(Fd::from));
        }
    }
    match received {
        Ok(_) if !descriptors.is_empty() => ControlMessage::Descriptors(descriptors),
        Ok(0) => ControlMessage::End,
        Ok(n) => ControlMessage::Request(Box::new(Request::from_bytes(&bytes[..n]))),
        Err(Errno::AGAIN | Errno::INTR) => ControlMessage::Nothing,
        Err(_) => ControlMessage::End,
    }
}

/// Outcome of sending a reply.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Sent {
    /// The reply was sent.
    Yes,
    /// The reply was not sent, because too many descriptors of this user are in flight
    /// (ETOOMANYREFS). The program has not violated the protocol.
    TooMany,
    /// The reply was not sent, because the socket's buffer is full: the program does not read its
    /// replies.
    NotTaken,
    /// The process has ended, so no reply can be sent.
    Gone,
}

/// Sends a reply with descriptors on a control socket.
pub(crate) fn reply(
    control: BorrowedFd<'_>,
    reply: &ControlReply,
    descriptors: &[BorrowedFd<'_>],
) -> Sent {
    let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(DESCRIPTORS_MAX))];
    let mut ancillary = SendAncillaryBuffer::new(&mut space);
    if !descriptors.is_empty() && !ancillary.push(SendAncillaryMessage::ScmRights(descriptors)) {
        return Sent::NotTaken;
    }
    let parts = [IoSlice::new(reply.wire())];
    match sendmsg(control, &parts, &mut ancillary, SendFlags::DONTWAIT | SendFlags::NOSIGNAL) {
        Ok(_) => Sent::Yes,
        Err(Errno::TOOMANYREFS) => Sent::TooMany,
        Err(Errno::PIPE | Errno::CONNRESET) => Sent::Gone,
        Err(_) => Sent::NotTaken,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use rustix::net::{AddressFamily, SocketFlags, SocketType, socketpair};
    use std::os::fd::AsFd;

    /// Before Linux 6.16, a program can send descriptors to the engine, and the receiver must close
    /// them.
    #[test]
    fn descriptors_that_come_along_are_the_callers() {
        let flags = SocketFlags::CLOEXEC;
        let (ours, theirs) =
            socketpair(AddressFamily::UNIX, SocketType::SEQPACKET, flags, None).expect("a pair");
        let (end, other) = std::io::pipe().expect("a pipe");
        let mut space = vec![MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(SENT_MAX))];
        for (count, bytes) in [(1, &[0u8; 8][..]), (SENT_MAX, &[]), (SENT_MAX, &[1; 4])] {
            let mut ancillary = SendAncillaryBuffer::new(&mut space);
            let rights = vec![other.as_fd(); count];
            assert!(ancillary.push(SendAncillaryMessage::ScmRights(&rights)));
            let parts = [IoSlice::new(bytes)];
            sendmsg(&theirs, &parts, &mut ancillary, SendFlags::empty()).expect("room");
            match receive(ours.as_fd()) {
                ControlMessage::Descriptors(all) => assert_eq!(all.len(), count),
                other => panic!("{other:?}"),
            }
        }
        drop((end, other));
        assert!(matches!(receive(ours.as_fd()), ControlMessage::Nothing));
        drop(theirs);
        assert!(matches!(receive(ours.as_fd()), ControlMessage::End));
    }
}
