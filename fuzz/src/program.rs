//! A program's side of a channel, which can be used correctly or not. No function waits, because
//! the same thread runs the engine's turns.

use std::collections::VecDeque;
use std::io::{IoSlice, IoSliceMut};
use std::mem::MaybeUninit;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};

use rustix::io::Errno;
use rustix::net::{
    RecvAncillaryBuffer, RecvAncillaryMessage, RecvFlags, SendAncillaryBuffer,
    SendAncillaryMessage, SendFlags, recvmsg, sendmsg,
};
use towpath_ring::{Channel, Region, answer_to, ask, push_command};
use towpath_shm::control::{ControlReply, Request, TOKENS_MAX, call, goes_by_socket};
use towpath_shm::layout::{Command, Plain, Slot};

/// Maximum descriptors of one reply.
const ANSWER_FDS: usize = TOKENS_MAX;
/// Maximum descriptors of one message (the kernel's SCM_MAX_FD).
pub(crate) const SENT_MAX: usize = 253;

/// A socket from the view of a program.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Handle {
    /// Index of the socket's slot in the region.
    pub slot: u32,
    /// Generation of the slot; the engine refuses any other.
    pub generation: u32,
}

/// A process from the view of the engine.
#[derive(Debug)]
pub(crate) struct Program {
    pub control: OwnedFd,
    /// None before HELLO.
    pub link: Option<Link>,
    /// Number of the process's channel, after HELLO or the CLONE that created it.
    pub number: u32,
    /// Calls on the control socket without a reply so far, oldest first.
    asked: VecDeque<u32>,
    /// Number and call of the request in the request slot that has no reply yet.
    in_cell: Option<(u32, u32)>,
    /// Sockets that the process holds or has held.
    pub handles: Vec<Handle>,
    /// The engine has disconnected the process.
    pub is_gone: bool,
}

/// Memory and descriptors from the reply to HELLO or CLONE.
#[derive(Debug)]
pub(crate) struct Link {
    pub region: Region,
    pub channel: Channel,
    pub engine_bell: OwnedFd,
    pub bell: OwnedFd,
}

/// Message of an engine.
#[derive(Debug)]
pub(crate) enum Heard {
    /// Reply to the call in the request slot, or to the oldest call on the control socket.
    Answer(u32, Box<ControlReply>, Vec<OwnedFd>),
    /// Nothing now.
    Nothing,
    /// The engine has disconnected the program.
    Gone,
}

impl Program {
    /// Creates a program that has sent nothing.
    pub fn new(control: OwnedFd) -> Self {
        Self {
            control,
            link: None,
            number: 0,
            asked: VecDeque::new(),
            in_cell: None,
            handles: Vec::new(),
            is_gone: false,
        }
    }

    /// Creates the child of this program that the reply to a CLONE describes.
    pub fn child(&self, reply: &ControlReply, descriptors: Vec<OwnedFd>) -> Option<Self> {
        let [control, channel, bell, engine_bell] = descriptors.try_into().ok()?;
        let region = self.link.as_ref()?.region.clone();
        let link = Link { region, channel: Channel::map(channel).ok()?, engine_bell, bell };
        let handles = self.handles.clone();
        Some(Self {
            control,
            link: Some(link),
            number: reply.b,
            asked: VecDeque::new(),
            in_cell: None,
            handles,
            is_gone: false,
        })
    }

    /// Handles the reply to a HELLO.
    pub fn begin(&mut self, reply: &ControlReply, descriptors: Vec<OwnedFd>) {
        let Ok([region, _status, channel, bell, _blank, engine_bell]) =
            <[OwnedFd; 6]>::try_from(descriptors)
        else {
            return;
        };
        let region = Region::map(region).expect("the engine's region");
        let channel = Channel::map(channel).expect("the engine's channel");
        self.link = Some(Link { region, channel, engine_bell, bell });
        self.in_cell = None;
        self.number = reply.b;
    }

    /// Makes a request in the request slot or on the control socket, as required. If the slot is in
    /// use, always uses the socket. Returns false if it could not be sent.
    pub fn say(&mut self, request: &Request) -> bool {
        if self.in_cell.is_some() || self.link.is_none() || goes_by_socket(request.call) {
            self.say_with(request.wire(), request.call, &[])
        } else {
            self.say_in_cell(request);
            true
        }
    }

    /// Makes a request in the request slot, even if the previous one has no reply yet.
    pub fn say_in_cell(&mut self, request: &Request) {
        if let Some(link) = &self.link {
            self.in_cell = Some((ask(&link.channel, request), request.call));
        }
    }

    /// Returns the channel if the request in its slot has no known reply yet.
    pub fn awaits_cell(&self) -> Option<&Channel> {
        self.link.as_ref().filter(|_| self.in_cell.is_some()).map(|link| &link.channel)
    }

    /// Sends arbitrary bytes and descriptors on the control socket. If the engine replies, the
    /// reply counts for `call`.
    pub fn say_with(&mut self, bytes: &[u8], call: u32, descriptors: &[BorrowedFd<'_>]) -> bool {
        let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(SENT_MAX))];
        let mut ancillary = SendAncillaryBuffer::new(&mut space);
        if !descriptors.is_empty() {
            assert!(ancillary.push(SendAncillaryMessage::ScmRights(descriptors)));
        }
        let flags = SendFlags::DONTWAIT | SendFlags::NOSIGNAL;
        let sent = sendmsg(&self.control, &[IoSlice::new(bytes)], &mut ancillary, flags).is_ok();
        if sent {
            self.asked.push_back(call);
        }
        sent
    }

    /// Returns whether the request slot contains a reply.
    pub fn is_answered(&self) -> bool {
        let cell = self.link.as_ref().zip(self.in_cell);
        cell.is_some_and(|(link, (number, _))| answer_to(&link.channel, number).is_some())
    }

    /// Reads a reply, if there is one.
    pub fn hear(&mut self) -> Heard {
        if let (Some(link), Some((number, call))) = (&self.link, self.in_cell)
            && let Some(reply) = answer_to(&link.channel, number)
        {
            self.in_cell = None;
            return Heard::Answer(call, Box::new(reply), Vec::new());
        }
        let mut bytes = [0; size_of::<ControlReply>()];
        let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(ANSWER_FDS))];
        let mut ancillary = RecvAncillaryBuffer::new(&mut space);
        let mut parts = [IoSliceMut::new(&mut bytes)];
        let flags = RecvFlags::DONTWAIT | RecvFlags::CMSG_CLOEXEC;
        let n = match recvmsg(&self.control, &mut parts, &mut ancillary, flags) {
            Ok(message) => message.bytes,
            Err(Errno::AGAIN) => return Heard::Nothing,
            Err(_) => 0,
        };
        let mut descriptors = Vec::new();
        for part in ancillary.drain() {
            if let RecvAncillaryMessage::ScmRights(rights) = part {
                descriptors.extend(rights);
            }
        }
        if n == 0 {
            return Heard::Gone;
        }
        let call = self.asked.pop_front().unwrap_or(0);
        Heard::Answer(call, Box::new(ControlReply::from_bytes(&bytes[..n])), descriptors)
    }

    /// Creates a request about a socket.
    pub fn about(call: u32, handle: Handle) -> Request {
        Request { call, slot: handle.slot, generation: handle.generation, ..Request::default() }
    }

    /// Creates a HELLO that lists the sockets that the process holds.
    pub fn hello(held: &[Handle]) -> Request {
        let mut request =
            Request { call: call::HELLO, a: 1, len: held.len() as u32 * 8, ..Request::default() };
        for (at, handle) in request.data.chunks_exact_mut(8).zip(held) {
            at[..4].copy_from_slice(&handle.slot.to_ne_bytes());
            at[4..].copy_from_slice(&handle.generation.to_ne_bytes());
        }
        request
    }

    /// Pushes a command correctly. Returns false if the ring is full, or the program has no
    /// channel.
    pub fn command(&self, command: &Command) -> bool {
        self.link.as_ref().is_some_and(|link| push_command(&link.channel, command).is_ok())
    }

    /// Returns the slot of a socket.
    pub fn slot(&self, slot: u32) -> Option<&Slot> {
        self.link.as_ref()?.region.slot(slot)
    }

    pub fn engine_bell(&self) -> Option<BorrowedFd<'_>> {
        self.link.as_ref().map(|link| link.engine_bell.as_fd())
    }
}
