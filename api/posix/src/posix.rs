//! State that the calls of this crate keep between calls.
//!
//! Each process has one [`Posix`], and this crate has no other variable. Functions that need it get
//! it as `posix` or in their handle, and pass it on. The library that is loaded into a program has
//! it in a static, which signal handlers and fork handlers use as well. So the arguments of a
//! function show its dependencies, and a test can have several processes. (A symbol defined by the
//! library and used in this crate would be shorter. But only one could exist among all code that is
//! linked together.) Passing it costs the calls that move bytes only a register.
//!
//! A part of the state that is more than a lock or number has a type in a file of its own. The file
//! depends neither on this file nor on the calls. Functions of one part are methods of its type; a
//! call is a function of the whole state.

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

/// State that the socket calls of a process keep.
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
    /// Descriptors of the stack, and the reactor with which threads wait.
    pub process: Process,
    pub(crate) attachment: ProcessAttachment,
    /// Lock for changes of the stack's descriptors; see [`crate::table`].
    pub(crate) changes: ProcessLock<()>,
    /// Device number of all sockets (see [`crate::identity`]); 0 until it is first needed.
    pub(crate) device: AtomicU64,
    pub(crate) library: Library,
    pub(crate) spawns: Spawns,
    /// Thread ID of the thread that is in exit(3); 0: none.
    ends: AtomicU32,
    pub(crate) lowered: Lowered,
    pub(crate) engine_memory: EngineMemory,
    pub(crate) handlers: Handlers,
    pub(crate) remembered: Remembered,
    pub(crate) cork: Cork,
    pub(crate) known: KnownInterfaces,
    pub(crate) machine_name: MachineName,
    /// Descriptor numbers of netlink sockets that show the stack. A number may belong to another
    /// file by now, which `netlink::is_ours` checks.
    pub(crate) netlink: Numbers,
    /// Subset of `netlink`: the numbers whose sockets have the protocol NETLINK_SOCK_DIAG.
    pub(crate) diag: Numbers,
    pub(crate) groups: NetlinkGroups,
    /// Descriptor numbers of files of /proc/net that show the stack; see
    /// [`crate::proc_net::reread`].
    pub(crate) shown: Numbers,
    /// Library's socket that sends answers to netlink sockets. Locked during an answer, because the
    /// socket has one peer at a time.
    pub(crate) answering: ProcessLock<Option<HighFd>>,
}

/// Every call reads `attachment`, so it must not share a cache line with `changes`, which accept
/// and close write.
const _: () = assert!(offset_of!(Posix, attachment) / 64 != offset_of!(Posix, changes) / 64);

impl Posix {
    /// Creates the state of a process without an attachment. The value is all zeros, as in
    /// [`Process::new`]: a single other byte would store the whole static in the library's file.
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

    /// Returns the attachment of this process to its engine.
    ///
    /// # Errors
    /// ENETDOWN if this process should have an attachment but attaching failed. Calls do not fall
    /// back to the kernel, because the user would not notice.
    #[inline]
    pub fn client(&self) -> Result<&'static Client> {
        self.attachment.client()
    }

    /// Sends a request to the engine, and waits for the answer.
    pub(crate) fn call(&self, request: &Request) -> Result<ControlReply> {
        let client = self.client()?;
        match client.call(request) {
            // A signal handler forked before the engine got the request, and this is the child: use
            // the child's own attachment.
            Err(Error::Forked) => match self.client()? {
                own if !ptr::eq(own, client) => self.call(request),
                _ => fail(libc::ENETDOWN),
            },
            result => Ok(result?),
        }
    }

    /// Returns whether AF_INET and AF_INET6 sockets are the engine's. True even if attaching
    /// failed, and every call returns ENETDOWN.
    #[inline]
    pub fn is_active(&self) -> bool {
        self.attachment.is_active()
    }

    /// Delays a call briefly if the engine has ended, before the call returns its error.
    ///
    /// Otherwise a server that logs an error of accept(2) and calls it again would fill the disk,
    /// because its calls neither succeed nor block. A program that was never attached is not
    /// delayed.
    pub fn rest_when_engine_is_gone(&self) {
        let gone = self.is_active() && self.client().is_ok_and(|client| !client.check_alive());
        if gone {
            rest();
        }
    }

    /// Waits while another thread ends the process ([`Self::begins_to_end`]). Called before a call
    /// returns.
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

    /// Declares that the calling thread ends the process, which has already left its engine. Until
    /// [`Self::ends_no_more`], other threads do not return from their calls. If they returned an
    /// error, such a thread could give up and end the process with a different status.
    pub fn begins_to_end(&self) {
        self.ends.store(thread_id(), Relaxed);
    }

    /// Lets the other threads return from their calls, because the process does not end after all.
    pub fn ends_no_more(&self) {
        self.ends.store(0, Relaxed);
    }
}

fn rest() {
    let pause = rustix::time::Timespec { tv_sec: 0, tv_nsec: REST_NS };
    // A signal may end the pause early, which does no harm.
    let _ = rustix::thread::nanosleep(&pause);
}

/// Pause in nanoseconds: ten errors per second and thread, which is some 100 MB of log messages in
/// a day.
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
