//! Requests over the control socket, whose answers may contain descriptors.

use std::io::IoSliceMut;
use std::mem::MaybeUninit;
use std::os::fd::{AsRawFd, BorrowedFd, FromRawFd, OwnedFd};

use rustix::io::Errno;
use rustix::net::{
    RecvAncillaryBuffer, RecvAncillaryMessage, RecvFlags, SendFlags, recv, recvmsg, send,
};
use towpath_shm::Fd;
use towpath_shm::control::{ControlReply, DATA_MAX, DESCRIPTORS_MAX, Request, TOKENS_MAX, call};
use towpath_shm::layout::{Plain, VERSION};

use super::{Client, Cloned, PROTOCOL};
use crate::driver::Who;
use crate::{Error, HighFd, Socket};

/// Result of [`Client::tokens`]: kernel descriptors that contain the names of sockets.
#[derive(Debug)]
pub struct Tokens {
    /// Kernel descriptors that contain the names of sockets, each with the socket's index in the
    /// request. Sockets without such a descriptor are omitted.
    pub tokens: Vec<(usize, Fd)>,
    /// Number of sockets at the start of the request that need not be requested again.
    pub dealt_with: usize,
}

impl Client {
    /// Tells the engine that this process uses a socket, whose descriptor it has received by
    /// SCM_RIGHTS.
    ///
    /// # Errors
    /// `Dead` if the engine has ended. If the socket was closed, returns no error; later calls on
    /// the socket will fail.
    pub fn adopt(&self, socket: Socket) -> Result<(), Error> {
        let (slot, generation) = (socket.slot, socket.generation);
        let request = Request { call: call::ADOPT, slot, generation, ..Request::default() };
        match self.call(&request) {
            Err(Error::Refused(_)) | Ok(_) => Ok(()),
            Err(error) => Err(error),
        }
    }

    /// Creates a channel to the engine for another process, such as a forked child
    /// ([`towpath_shm::control::purpose`]). The engine copies this process's list of sockets for
    /// the new channel, which takes time in proportion to their number.
    ///
    /// # Errors
    /// As for [`Self::call`]. `Refused` with EAGAIN, as for fork(2), if the engine has too many
    /// processes, or too many are being created.
    pub fn clone_channel(&self, purpose: u32) -> Result<Cloned, Error> {
        let request = Request { call: call::CLONE, a: purpose, ..Request::default() };
        let (reply, fds) = self.call_with_descriptors(&request)?;
        let mut fds = fds.into_iter();
        let mut next = || fds.next().ok_or(PROTOCOL);
        let number = reply.b;
        let control = HighFd::new(next()?, &self.process.descriptors);
        let (channels, notifier) = (next()?, next()?);
        let engine_notifiers = self.links.iter().map(|_| next()).collect::<Result<Vec<_>, _>>()?;
        Ok(Cloned { control, number, channels, engine_notifiers, notifier })
    }

    /// Requests kernel descriptors that contain the names of sockets
    /// ([tokens](towpath_shm::token)). Covers the first [`TOKENS_MAX`] sockets.
    ///
    /// # Errors
    /// As for [`Self::call`]; `Refused` with EMFILE if the process has no free descriptor.
    pub fn tokens(&self, sockets: impl Iterator<Item = Socket>) -> Result<Tokens, Error> {
        let mut request = Request { call: call::TOKENS, ..Request::default() };
        list(&mut request, sockets.take(TOKENS_MAX));
        let (reply, fds) = self.call_with_descriptors(&request)?;
        let (dealt_with, count) = (reply.a as usize, reply.b.count_ones() as usize);
        let named = (0..TOKENS_MAX).filter(|n| reply.b >> n & 1 == 1);
        let are_all = fds.len() == count;
        let tokens: Vec<(usize, Fd)> = named.zip(fds).collect();
        // Fewer descriptors arrived than the engine sent, because this process has too few free
        // numbers. Only the sockets up to the last one that arrived are done.
        let dealt_with =
            if are_all { dealt_with } else { tokens.last().map_or(0, |last| last.0 + 1) };
        if dealt_with == 0 {
            return Err(Error::Refused(Errno::MFILE.raw_os_error()));
        }
        Ok(Tokens { tokens, dealt_with })
    }

    /// Frees the descriptor number reserved for [`Self::tokens`]. Called if the process has no
    /// other free number.
    pub fn use_spare(&self) {
        self.spare.close();
    }

    /// Reserves a descriptor number for [`Self::tokens`] again, after the previous one was used and
    /// closed. Called by one thread at a time.
    pub fn spare_again(&self) {
        self.spare.renew(&self.blank);
    }

    pub(super) fn call_with_descriptors(
        &self,
        request: &Request,
    ) -> Result<(ControlReply, Vec<Fd>), Error> {
        let mut fds = Vec::new();
        let reply = self.exclusively(&self.links[0], || {
            send_request(&self.control, request)?;
            self.turn_until_answered();
            recv_reply(&self.control, &mut fds)
        })?;
        Ok((reply, fds))
    }

    /// Runs the event loop of an engine in this process until the reply has arrived, unless another
    /// thread runs it. Otherwise this thread would wait until the stand-by thread runs the engine.
    fn turn_until_answered(&self) {
        if let Some(driver_lock) = self.driver().and_then(|driver| driver.take(Who::Asks)) {
            let control = self.control.get();
            driver_lock.drive_blocked(Some(control), || is_readable(self.control.borrow()));
        }
    }
}

/// Sends the request HELLO to the engine, with a list of the sockets that this program inherited at
/// exec.
pub(super) fn hello(control: &HighFd, held: &[Socket]) -> Result<(ControlReply, Vec<Fd>), Error> {
    const AT_ONCE: usize = DATA_MAX / 8;
    let pid = rustix::process::getpid().as_raw_nonzero().get().unsigned_abs();
    let mut left = held;
    loop {
        let (now, rest) = left.split_at(left.len().min(AT_ONCE));
        left = rest;
        let (a, b) = (pid, u32::from(!rest.is_empty()));
        let mut request = Request { call: call::HELLO, a, b, ..Request::default() };
        list(&mut request, now.iter().copied());
        let (reply, fds) = exchange(control, &request)?;
        if rest.is_empty() {
            return Ok((reply, fds));
        }
    }
}

/// Writes slot number and generation of each socket to the data of a request.
fn list(request: &mut Request, sockets: impl Iterator<Item = Socket>) {
    for (to, socket) in request.data.chunks_exact_mut(8).zip(sockets) {
        to[..4].copy_from_slice(&socket.slot.to_ne_bytes());
        to[4..].copy_from_slice(&socket.generation.to_ne_bytes());
        request.len += 8;
    }
}

/// Makes a request over a control socket, before a [`Client`] exists. Returns the reply and its
/// descriptors.
pub(super) fn exchange(
    control: &HighFd,
    request: &Request,
) -> Result<(ControlReply, Vec<Fd>), Error> {
    let mut fds = Vec::new();
    send_request(control, request)?;
    let reply = recv_reply(control, &mut fds)?;
    match reply.errno {
        0 if request.call == call::REGION && reply.a != VERSION => Err(PROTOCOL),
        0 => Ok((reply, fds)),
        errno => Err(Error::Refused(errno)),
    }
}

fn send_request(control: &HighFd, request: &Request) -> Result<(), Error> {
    loop {
        match send(control.borrow(), request.wire(), SendFlags::NOSIGNAL) {
            Ok(_) => return Ok(()),
            Err(Errno::INTR) => {}
            Err(_) => return Err(Error::Dead),
        }
    }
}

fn recv_reply(control: &HighFd, fds: &mut Vec<Fd>) -> Result<ControlReply, Error> {
    let mut bytes = [0; size_of::<ControlReply>()];
    // Provide space for the maximum number of descriptors in a reply. The kernel closes descriptors
    // that do not fit.
    let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(DESCRIPTORS_MAX))];
    let received = loop {
        let mut ancillary = RecvAncillaryBuffer::new(&mut space);
        let mut parts = [IoSliceMut::new(&mut bytes)];
        match recvmsg(control.borrow(), &mut parts, &mut ancillary, RecvFlags::CMSG_CLOEXEC) {
            Ok(message) => {
                for part in ancillary.drain() {
                    if let RecvAncillaryMessage::ScmRights(rights) = part {
                        fds.extend(rights.map(Fd::from));
                    }
                }
                break message.bytes;
            }
            Err(Errno::INTR) => {}
            Err(_) => return Err(Error::Dead),
        }
    };
    if received == 0 {
        return Err(Error::Dead);
    }
    Ok(ControlReply::from_bytes(&bytes[..received.min(size_of::<ControlReply>())]))
}

/// Returns whether a message can be received from the control socket, or the engine has closed its
/// end.
fn is_readable(control: BorrowedFd<'_>) -> bool {
    let mut byte = [MaybeUninit::uninit(); 1];
    let flags = RecvFlags::PEEK | RecvFlags::DONTWAIT;
    !matches!(recv(control, &mut byte, flags), Err(Errno::AGAIN | Errno::INTR))
}

/// Returns the control socket with this descriptor number, which comes from the environment.
/// Returns `None` if the descriptor is not a SOCK_SEQPACKET socket.
///
/// # Safety
/// The descriptor must have no other owner.
pub unsafe fn control_from_number(number: i32) -> Option<Fd> {
    // SAFETY: the descriptor is only borrowed for the check, which fails if it is not open.
    let borrowed = unsafe { BorrowedFd::borrow_raw(number) };
    let is_packet_socket =
        rustix::net::sockopt::socket_type(borrowed) == Ok(rustix::net::SocketType::SEQPACKET);
    // SAFETY: the descriptor is open, and has no other owner by the contract of this function.
    is_packet_socket.then(|| unsafe { OwnedFd::from_raw_fd(borrowed.as_raw_fd()) }.into())
}
