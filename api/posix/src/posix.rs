//! State that the calls of this crate keep from one to the next.
//!
//! There is one [`Posix`] a process, and no other variable of a process in this crate. Functions
//! that need it get it as `posix` or in their handle, and pass it on. The library that is loaded
//! into a program has it in a static, which handlers of signals and of fork reach as all calls do.
//! So each call shows the dependencies of its function, and a test has as many processes as it
//! likes. (A symbol that the library defines and this crate names would be shorter, but still be
//! one for everything that is linked together.) To the calls that move bytes it is an address in a
//! register.
//!
//! A part that is no plain lock or number has a type in its own file, which names neither this file
//! nor the calls. Functions of one part are its methods; a call is a function of the whole.

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
    /// Descriptors of the stack, and the reactor that threads wait with.
    pub process: Process,
    pub(crate) attachment: ProcessAttachment,
    /// Taken for each change of our descriptors; see [`crate::table`].
    pub(crate) changes: ProcessLock<()>,
    /// The device of all sockets, 0 before it was asked for.
    pub(crate) device: AtomicU64,
    pub(crate) library: Library,
    pub(crate) spawns: Spawns,
    /// The thread in exit(3), by its number; 0: none.
    ends: AtomicU32,
    pub(crate) lowered: Lowered,
    pub(crate) engine_memory: EngineMemory,
    pub(crate) handlers: Handlers,
    pub(crate) remembered: Remembered,
    pub(crate) cork: Cork,
    pub(crate) known: KnownInterfaces,
    pub(crate) machine_name: MachineName,
    /// Numbers that were given to netlink sockets that show the stack. The kernel says whether they
    /// still are.
    pub(crate) netlink: Numbers,
    /// The numbers in `netlink` that are of NETLINK_SOCK_DIAG.
    pub(crate) diag: Numbers,
    pub(crate) groups: NetlinkGroups,
    /// Numbers that were given to files of /proc/net; see [`crate::proc_net::reread`].
    pub(crate) shown: Numbers,
    /// Socket that answers netlink sockets. Locked during an answer: a netlink socket has one peer.
    pub(crate) answering: ProcessLock<Option<HighFd>>,
}

/// Every call reads where the attachment is: not in the line of cache that threads write which
/// accept and close.
const _: () = assert!(offset_of!(Posix, attachment) / 64 != offset_of!(Posix, changes) / 64);

impl Posix {
    /// The state of a process without an attachment. All of it is zeroed memory, as in
    /// [`Process::new`]: a single other byte would put the whole static into the library's file.
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

    /// The attachment.
    ///
    /// # Errors
    /// ENETDOWN when there was to be one and it did not come about: nothing falls back to the
    /// kernel in silence.
    #[inline]
    pub fn client(&self) -> Result<&'static Client> {
        self.attachment.client()
    }

    /// Asks the engine.
    pub(crate) fn call(&self, request: &Request) -> Result<ControlReply> {
        let client = self.client()?;
        match client.call(request) {
            // A handler forked before it was asked, and this is the child.
            Err(Error::Forked) => match self.client()? {
                own if !ptr::eq(own, client) => self.call(request),
                _ => fail(libc::ENETDOWN),
            },
            result => Ok(result?),
        }
    }

    /// Whether AF_INET and AF_INET6 sockets are the engine's. Also where attaching to it failed,
    /// and every call gives ENETDOWN.
    #[inline]
    pub fn is_active(&self) -> bool {
        self.attachment.is_active()
    }

    /// Lets a call wait before it tells that the engine has gone, if it has.
    ///
    /// A server that logs an error of accept(2) and calls it again would otherwise fill a disk: no
    /// call of it helps, or blocks. A program that was never attached does not wait.
    pub fn rest_when_engine_is_gone(&self) {
        let gone = self.is_active() && self.client().is_ok_and(|client| !client.check_alive());
        if gone {
            rest();
        }
    }

    /// Before a call returns: lets the thread wait while another one ends the process
    /// ([`Self::begins_to_end`]).
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

    /// From now on until [`Self::ends_no_more`] the calling thread ends the process, which has left
    /// its engine. Other threads do not return from their calls meanwhile. In a process that ends
    /// at once they would see no error, and a thread that gives up could end it with another
    /// status.
    pub fn begins_to_end(&self) {
        self.ends.store(thread_id(), Relaxed);
    }

    /// Lets the other threads go on: a process that does not end after all may need them.
    pub fn ends_no_more(&self) {
        self.ends.store(0, Relaxed);
    }
}

fn rest() {
    let pause = rustix::time::Timespec { tv_sec: 0, tv_nsec: REST_NS };
    // A signal may end it early.
    let _ = rustix::thread::nanosleep(&pause);
}

/// Ten errors per second and thread: some 100 MB of messages in a day.
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
        // SAFETY: bytes that are there.
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
