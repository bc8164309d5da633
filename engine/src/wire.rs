//! Messages on control sockets. Nothing here ever blocks.

use std::io::IoSlice;
use std::mem::MaybeUninit;
use std::os::fd::BorrowedFd;

use rustix::io::Errno;
use rustix::net::{RecvFlags, SendAncillaryBuffer, SendAncillaryMessage, SendFlags, recv, sendmsg};
use towpath_shm::control::{Reply, Request};
use towpath_shm::layout::Plain;

/// Descriptors of one reply, at most.
pub(crate) const DESCRIPTORS_MAX: usize = 4;

/// What was on the socket.
#[derive(Debug)]
pub(crate) enum Received {
    /// A request; what it did not send is zero.
    Request(Box<Request>),
    /// Nothing now.
    Nothing,
    /// The process is gone.
    End,
}

/// Takes the next request. Descriptors that a program sends along are closed by the kernel.
pub(crate) fn receive(control: BorrowedFd<'_>) -> Received {
    let mut bytes = [0; size_of::<Request>()];
    match recv(control, &mut bytes, RecvFlags::DONTWAIT) {
        Ok((_, 0)) => Received::End,
        Ok((n, _)) => Received::Request(Box::new(Request::from_bytes(&bytes[..n]))),
        Err(Errno::AGAIN | Errno::INTR) => Received::Nothing,
        Err(_) => Received::End,
    }
}

/// Sends a reply. False: the program does not take it, or is gone.
pub(crate) fn reply(
    control: BorrowedFd<'_>,
    reply: &Reply,
    descriptors: &[BorrowedFd<'_>],
) -> bool {
    let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(DESCRIPTORS_MAX))];
    let mut ancillary = SendAncillaryBuffer::new(&mut space);
    if !descriptors.is_empty() && !ancillary.push(SendAncillaryMessage::ScmRights(descriptors)) {
        return false;
    }
    let parts = [IoSlice::new(reply.wire())];
    sendmsg(control, &parts, &mut ancillary, SendFlags::DONTWAIT | SendFlags::NOSIGNAL).is_ok()
}
