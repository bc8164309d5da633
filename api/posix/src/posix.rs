//! State that the socket calls of a process keep between calls.
//!
//! Each process has one [`Posix`], and this crate has no other global state. Functions take it as
//! the argument `posix` or in their handle. The library that is loaded into a program stores it in
//! a static variable, which signal handlers and fork handlers use as well. Passing it as an
//! argument shows the dependencies of a function, and allows tests to have several instances. The
//! cost is one register.
//!
//! Parts of the state that are more than a lock or a number have their own types in separate files.
//! The files depend neither on this file nor on the socket calls.

use std::mem::offset_of;
use std::ptr;
use std::sync::atomic::{AtomicU32, AtomicU64, Ordering::Relaxed};

use towpath_client::{Client, Error, HighFd, Process, ProcessLock, thread_id};
use towpath_shm::control::{ControlReply, Request};

use crate::Result;
use crate::attachment::ProcessAttachment;
use crate::cork::Cork;
use crate::errno::fail;
use crate::handlers::Handlers;
use crate::interface::known::KnownInterfaces;
use crate::library::Library;
use crate::limit::Lowered;
use crate::machine_name::MachineName;
use crate::memory_lock::EngineMemory;
use crate::netlink::groups::NetlinkGroups;
use crate::numbers::Numbers;
use crate::option::remembered::Remembered;
use crate::spawns::Spawns;

/// State that the socket calls of a process keep between calls.
///
/// ```
/// static POSIX: towpath_posix::Posix = towpath_posix::Posix::new();
/// assert!(!POSIX.is_active());
/// let closed = towpath_posix::descriptor::close(&POSIX, 3);
/// assert_eq!(closed, Err(towpath_posix::Errno(libc::EBADF)), "it is not a socket of ours");
/// ```
#[derive(Debug)]
#[repr(align(64))]
pub struct Posix {
    /// Table of the stack's descriptors, and the reactor in which threads wait for events.
    pub process: Process,
    pub(crate) attachment: ProcessAttachment,
    /// Lock held while descriptors of the stack are opened, duplicated or closed; see
    /// [`crate::table`].
    pub(crate) changes: ProcessLock<()>,
    /// Device number that fstat(2) returns for all sockets (see [`crate::identity`]); 0 until it is
    /// first needed.
    pub(crate) device: AtomicU64,
    pub(crate) library: Library,
    pub(crate) spawns: Spawns,
    /// ID of the thread that is ending the process with exit(3). 0: none.
    ends: AtomicU32,
    pub(crate) lowered: Lowered,
    pub(crate) engine_memory: EngineMemory,
    pub(crate) handlers: Handlers,
    pub(crate) remembered: Remembered,
    pub(crate) cork: Cork,
    pub(crate) known: KnownInterfaces,
    pub(crate) machine_name: MachineName,
    /// Descriptor numbers of netlink sockets that describe the stack. A number may be reused for
    /// another file; `netlink::is_ours` checks this.
    pub(crate) netlink: Numbers,
    /// Subset of `netlink`: descriptor numbers of sockets with the protocol NETLINK_SOCK_DIAG.
    pub(crate) diag: Numbers,
    pub(crate) groups: NetlinkGroups,
    /// Descriptor numbers of files that replace those in /proc/net; see
    /// [`crate::proc_net::reread`].
    pub(crate) shown: Numbers,
    /// Socket of this library, from which answers are sent to the program's netlink sockets. Locked
    /// while an answer is sent, because it is connected to one socket at a time.
    pub(crate) answering: ProcessLock<Option<HighFd>>,
}

/// `attachment` and `changes` must not share a cache line: every call reads `attachment`, and
/// accept and close write `changes`.
const _: () = assert!(offset_of!(Posix, attachment) / 64 != offset_of!(Posix, changes) / 64);

impl Posix {
    /// Creates the state of a process without an attachment. The value is all zeros, as in
    /// [`Process::new`]. With a single non-zero byte, the linker would store the whole static in
    /// the library's file.
    #[expect(clippy::new_without_default, reason = "it would be built on the stack")]
    pub const fn new() -> Self {
        Self {
            process: Process::new(),
            attachment: ProcessAttachment::new(),
            changes: ProcessLock::new(()),
            device: AtomicU64::new(0),
            library: Library::new(),
            spawns: Spawns::new(),
            ends: AtomicU32::new(0),
            lowered: Lowered::new(),
            engine_memory: EngineMemory::new(),
            handlers: Handlers::new(),
            remembered: Remembered::new(),
            cork: Cork::new(),
            known: KnownInterfaces::new(),
            machine_name: MachineName::new(),
            netlink: Numbers::new(),
            diag: Numbers::new(),
            groups: NetlinkGroups::new(),
            shown: Numbers::new(),
            answering: ProcessLock::new(None),
        }
    }

    /// Returns the connection of this process to its engine (the network stack).
    ///
    /// # Errors
    /// ENETDOWN if this process could not connect to its engine. Calls do not use the kernel's
    /// sockets instead, because the user would not notice this.
    #[inline]
    pub fn client(&self) -> Result<&'static Client> {
        self.attachment.client()
    }

    /// Sends a request to the engine, and waits for the answer.
    pub(crate) fn call(&self, request: &Request) -> Result<ControlReply> {
        let client = self.client()?;
        match client.call(request) {
            // A signal handler has forked before the engine got the request, and this is the child.
            // Repeat the request over the child's own connection to the engine.
            Err(Error::Forked) => match self.client()? {
                own if !ptr::eq(own, client) => self.call(request),
                _ => fail(libc::ENETDOWN),
            },
            result => Ok(result?),
        }
    }

    /// Returns whether AF_INET and AF_INET6 sockets of this process are those of the stack. Also
    /// true if the process could not connect to the engine; every call then returns ENETDOWN.
    #[inline]
    pub fn is_active(&self) -> bool {
        self.attachment.is_active()
    }

    /// Delays a call that failed by a short pause, if the engine (the network stack) has ended.
    ///
    /// Otherwise a server that logs errors of accept(2) and retries in a loop would fill the disk
    /// with messages. A program that never used the stack is not delayed.
    pub fn rest_when_engine_is_gone(&self) {
        let gone = self.is_active() && self.client().is_ok_and(|client| !client.check_alive());
        if gone {
            rest();
        }
    }

    /// Blocks the calling thread while another thread ends the process ([`Self::begins_to_end`]).
    /// Called at the end of each socket call.
    #[inline]
    pub fn wait_while_it_ends(&self) {
        if self.ends.load(Relaxed) != 0 {
            self.wait_for_end();
        }
    }

    #[cold]
    fn wait_for_end(&self) {
        while ![0, thread_id()].contains(&self.ends.load(Relaxed)) {
            rest();
        }
    }

    /// Declares that the calling thread ends the process, which has already closed its connection
    /// to the engine. Until [`Self::ends_no_more`], socket calls of other threads do not return.
    /// Otherwise such a thread could get an error, and end the process with a different exit
    /// status.
    pub fn begins_to_end(&self) {
        self.ends.store(thread_id(), Relaxed);
    }

    /// Allows socket calls of other threads to return again, because the process continues to run.
    pub fn ends_no_more(&self) {
        self.ends.store(0, Relaxed);
    }
}

fn rest() {
    let pause = rustix::time::Timespec { tv_sec: 0, tv_nsec: REST_NS };
    // Ignore an early end of the pause by a signal, which does no harm.
    let _ = rustix::thread::nanosleep(&pause);
}

/// Length of the pause in nanoseconds. The pause allows ten errors per second and thread, which a
/// server logs in about 100 MB a day.
const REST_NS: i64 = 100_000_000;

#[cfg(test)]
mod tests {
    use towpath_client::{Buffer, Socket};
    use towpath_shm::layout::DatagramHeader;

    use super::*;
    use crate::handle::OpenSocket;
    use crate::{Errno, descriptor, netlink, socket};

    #[test]
    fn two_processes_know_nothing_of_each_other() {
        static ONE: Posix = Posix::new();
        static OTHER: Posix = Posix::new();
        let its = Socket { slot: 7, generation: 1 };
        ONE.attachment.activate();
        ONE.process.descriptors.set_socket(5, its);
        ONE.remembered.set(its, libc::IPPROTO_IP, libc::IP_FREEBIND, 1);
        let begin = || Ok(DatagramHeader::default());
        let part = Buffer { at: b"part".as_ptr().cast_mut(), len: 4 };
        // SAFETY: `part` describes a static string, which is only read.
        let whole = unsafe { ONE.cork.append(its, begin, &[part], true, |_| 100) };
        assert!(whole.is_ok_and(|whole| whole.is_none()));
        assert!(ONE.netlink.add(6));
        let of = |posix: &'static Posix| {
            let begun = posix.cork.is_begun(its);
            let free = posix.remembered.may_use_any_address(its);
            let wanted = netlink::is_wanted(posix, libc::AF_NETLINK, libc::NETLINK_ROUTE);
            let made = [socket::is_ours(posix, libc::AF_INET), wanted];
            let sockets = [descriptor::is_socket(posix, 5), posix.netlink.has(6)];
            (begun, free, made, sockets, OpenSocket::new(posix, 5).unwrap_err())
        };
        assert_eq!(of(&ONE), (true, true, [true; 2], [true; 2], Errno(libc::ENETDOWN)));
        assert_eq!(of(&OTHER), (false, false, [false; 2], [false; 2], Errno(libc::EBADF)));
    }
}
