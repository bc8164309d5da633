//! Netlink sockets for dumps and for changes.

use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};

use rustix::io::Errno;
use rustix::net::netlink::SocketAddrNetlink;
use rustix::net::sockopt::{set_socket_recv_buffer_size, set_socket_recv_buffer_size_force};
use rustix::net::{
    AddressFamily, RecvFlags, SendFlags, SocketFlags, SocketType, bind, recv, sendto, socket_with,
};

use crate::attributes::{messages, u32_at};
use crate::message::KernelMessage;
use crate::request::DumpRequest;
use crate::sys;

/// Length of the receive buffer in bytes. The kernel fills at most 32 KiB per read of a dump.
const BUFFER_LEN: usize = 64 << 10;
/// Limit on changes waiting in the kernel, in bytes: some 20,000 changes of routes. A daemon that
/// changes more while they wait causes a dump.
const WAITING_BYTES_MAX: usize = 16 << 20;

// Groups of linux/rtnetlink.h, as bits of bind(2).
const RTMGRP_LINK: u32 = 1;
const RTMGRP_NEIGH: u32 = 4;
const RTMGRP_IPV4_IFADDR: u32 = 0x10;
const RTMGRP_IPV4_ROUTE: u32 = 0x40;
const RTMGRP_IPV6_IFADDR: u32 = 0x100;
const RTMGRP_IPV6_ROUTE: u32 = 0x400;
/// RTNLGRP_NEXTHOP, number 32.
const RTMGRP_NEXTHOP: u32 = 1 << 31;
const CHANGES: u32 = RTMGRP_LINK
    | RTMGRP_NEIGH
    | RTMGRP_IPV4_IFADDR
    | RTMGRP_IPV4_ROUTE
    | RTMGRP_IPV6_IFADDR
    | RTMGRP_IPV6_ROUTE
    | RTMGRP_NEXTHOP;

// From linux/netlink.h.
const NLMSG_ERROR: u16 = 2;
const NLMSG_DONE: u16 = 3;
const NLM_F_DUMP_INTR: u16 = 0x10;

/// Netlink socket in the network namespace in which it was opened.
#[derive(Debug)]
pub struct KernelSocket {
    socket: OwnedFd,
    sequence: u32,
    buffer: Vec<u8>,
}

/// Reason why a dump is incomplete.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum DumpError {
    /// Objects changed during the dump, so some may be missing. Repeat the dump.
    #[error("the kernel's state changed during a dump")]
    Interrupted,
    /// The kernel refused the request, or the socket failed.
    #[error(transparent)]
    Io(#[from] io::Error),
}

impl KernelSocket {
    /// Opens a socket for dumps.
    ///
    /// # Errors
    /// Errors of socket(2).
    pub fn open() -> io::Result<Self> {
        let opened = Self::bound(SocketFlags::empty(), 0)?;
        // Before Linux 4.20, all tables are dumped; the caller ignores the others.
        let _ = sys::set_strict(opened.socket.as_fd());
        Ok(opened)
    }

    /// Opens a nonblocking socket that receives changes from now on.
    ///
    /// # Errors
    /// Errors of socket(2) and bind(2).
    pub fn subscribe() -> io::Result<Self> {
        let opened = Self::bound(SocketFlags::NONBLOCK, CHANGES)?;
        // Without CAP_NET_ADMIN the limit of the system applies.
        if set_socket_recv_buffer_size_force(&opened.socket, WAITING_BYTES_MAX).is_err() {
            set_socket_recv_buffer_size(&opened.socket, WAITING_BYTES_MAX)?;
        }
        Ok(opened)
    }

    fn bound(flags: SocketFlags, groups: u32) -> io::Result<Self> {
        let flags = flags | SocketFlags::CLOEXEC;
        // Protocol 0 is NETLINK_ROUTE.
        let socket = socket_with(AddressFamily::NETLINK, SocketType::RAW, flags, None)?;
        bind(&socket, &SocketAddrNetlink::new(0, groups))?;
        Ok(Self { socket, sequence: 0, buffer: vec![0; BUFFER_LEN] })
    }

    /// Dumps all objects of a kind, and calls `to` for each.
    ///
    /// # Errors
    /// See [`DumpError`]; `to` may have been called for some objects.
    pub fn dump(
        &mut self,
        request: DumpRequest,
        mut to: impl FnMut(KernelMessage),
    ) -> Result<(), DumpError> {
        self.sequence += 1;
        let bytes = request.encode(self.sequence);
        sendto(&self.socket, &bytes, SendFlags::empty(), &SocketAddrNetlink::new(0, 0))
            .map_err(io::Error::from)?;
        let mut is_interrupted = false;
        loop {
            let len = match recv(&self.socket, &mut self.buffer[..], RecvFlags::empty()) {
                Ok((_, len)) => len.min(BUFFER_LEN),
                Err(Errno::INTR) => continue,
                Err(error) => return Err(io::Error::from(error).into()),
            };
            for raw in messages(&self.buffer[..len]) {
                if raw.sequence != self.sequence {
                    continue;
                }
                is_interrupted |= raw.flags & NLM_F_DUMP_INTR != 0;
                match raw.kind {
                    NLMSG_ERROR | NLMSG_DONE => {
                        let code = u32_at(raw.body, 0).unwrap_or(0) as i32;
                        return finish(request, code, is_interrupted);
                    }
                    _ => KernelMessage::parse(&raw).into_iter().for_each(&mut to),
                }
            }
        }
    }

    /// Calls `to` for each change since the last call.
    ///
    /// # Errors
    /// ENOBUFS if changes were lost; dump all objects again. The next call continues.
    pub fn read(&mut self, mut to: impl FnMut(KernelMessage)) -> io::Result<()> {
        let mut result = Ok(());
        loop {
            match recv(&self.socket, &mut self.buffer[..], RecvFlags::DONTWAIT) {
                Ok((_, len)) => {
                    let all = messages(&self.buffer[..len.min(BUFFER_LEN)]);
                    all.filter_map(|raw| KernelMessage::parse(&raw)).for_each(&mut to);
                }
                Err(Errno::INTR) => {}
                Err(Errno::AGAIN) => return result,
                // ENOBUFS: the kernel lost change notifications. Read the queued ones before a
                // dump: they are older than the lost ones, and the kernel queues no new ones until
                // then.
                Err(Errno::NOBUFS) => result = Err(Errno::NOBUFS.into()),
                Err(error) => return Err(error.into()),
            }
        }
    }
}

/// Returns the result of a dump that ended with `code`, which is 0 or a negative errno.
fn finish(request: DumpRequest, code: i32, is_interrupted: bool) -> Result<(), DumpError> {
    match code {
        code if code < 0 && request.is_absent(-code) => Ok(()),
        code if code < 0 => Err(io::Error::from_raw_os_error(-code).into()),
        _ if is_interrupted => Err(DumpError::Interrupted),
        _ => Ok(()),
    }
}

impl AsFd for KernelSocket {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.socket.as_fd()
    }
}
