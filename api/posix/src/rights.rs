//! Sockets on their way between programs: over exec, posix_spawn, or SCM_RIGHTS.
//!
//! Before a descriptor is passed, its token is exchanged in place for one with the socket's name
//! ([`towpath_shm::token`]). Other threads see no difference, so nothing must be undone if the
//! descriptor stays after all. The receiving program reads the name.

use std::os::fd::{AsRawFd, BorrowedFd};
use std::sync::atomic::Ordering::Acquire;

use towpath_client::descriptors::{self, DESCRIPTORS_MAX};
use towpath_client::syscall::SignalsBlocked;
use towpath_client::{Client, Error, Region, Socket, Tokens, in_flight};
use towpath_shm::control::TOKENS_MAX;
use towpath_shm::token::{self, Name, Run};

use crate::{Posix, table};

/// A descriptor's claim to a socket, read from its token.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct TokenClaim {
    fd: i32,
    run: Run,
    socket: Socket,
}

/// The descriptors of a fresh process image that claim to be sockets of ours.
pub fn inherited() -> Vec<TokenClaim> {
    match listed() {
        Some(numbers) => numbers.into_iter().filter_map(claim).collect(),
        // Without /proc, as in a chroot, every number that can be in use is asked.
        None => (0..limit()).filter_map(claim).collect(),
    }
}

/// The descriptors of this process as /proc has them. (Not by std: its functions call libc's, and
/// so ours.)
fn listed() -> Option<Vec<i32>> {
    use rustix::fs::{Mode, OFlags, RawDir, open};
    let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::CLOEXEC;
    let folder = towpath_shm::Fd::from(open(c"/proc/self/fd", flags, Mode::empty()).ok()?);
    let mut numbers = Vec::new();
    let mut buffer = Vec::with_capacity(4096);
    let mut entries = RawDir::new(&*folder, buffer.spare_capacity_mut());
    while let Some(entry) = entries.next() {
        // "." and ".." are no numbers.
        numbers.extend(entry.ok()?.file_name().to_str().ok()?.parse::<i32>().ok());
    }
    numbers.retain(|&number| number != folder.as_raw_fd());
    Some(numbers)
}

/// Bound above the numbers that a descriptor of the stack can have.
fn limit() -> i32 {
    let soft = rustix::process::getrlimit(rustix::process::Resource::Nofile).current;
    soft.unwrap_or(u64::MAX).min(DESCRIPTORS_MAX as u64) as i32
}

/// Whether a descriptor of a socket has no name. Otherwise it has its name already, or is no socket
/// any more. Functions of libc replace descriptors without this library, as login_tty(3) does
/// standard input.
fn is_blank(client: &Client, fd: i32) -> bool {
    // SAFETY: borrowed for the time of one call, which says so if it is not open.
    token::is_same(unsafe { BorrowedFd::borrow_raw(fd) }, client.blank().borrow())
}

/// Gives descriptors that may go to another program their sockets' names, many with one question to
/// the engine.
pub(crate) fn name(
    posix: &'static Posix,
    client: &Client,
    may_go: impl Iterator<Item = (i32, Socket)>,
) {
    let mut blank = may_go.filter(|&(fd, _)| is_blank(client, fd));
    let mut wanted: Vec<(i32, Socket)> = Vec::new();
    loop {
        wanted.extend(blank.by_ref().take(TOKENS_MAX - wanted.len()));
        if wanted.is_empty() {
            return;
        }
        let named = name_some(posix, client, &wanted);
        wanted.drain(..named);
    }
}

/// Names the first ones of at most [`TOKENS_MAX`]; how many, at least one.
fn name_some(posix: &'static Posix, client: &Client, wanted: &[(i32, Socket)]) -> usize {
    let sockets = || wanted.iter().map(|&(_, socket)| socket);
    let mut given = client.tokens(sockets());
    let in_need = matches!(given, Err(Error::Refused(libc::EMFILE)));
    if in_need {
        client.use_spare();
    }
    if given.is_err() {
        // A single token may come through where many do not.
        given = client.tokens(sockets().take(1));
    }
    let _signals = SignalsBlocked::new();
    let table = table::lock(posix);
    // Otherwise the engine is gone, or has no descriptor left; or other threads took all numbers
    // that came free. A socket that the engine has ended has no token, and would be of no use to
    // the other program.
    let mut named = 1;
    if let Ok(Tokens { tokens, dealt_with }) = given {
        for (n, token) in &tokens {
            let (fd, socket) = wanted[*n];
            if is_blank(client, fd) {
                // `exchange` fails if the program closed the number without this library.
                let _ = table.exchange(fd, socket, token.as_raw_fd());
            }
        }
        named = dealt_with;
    }
    if in_need {
        client.spare_again();
    }
    named.min(wanted.len())
}

/// A descriptor that arrived by SCM_RIGHTS: if it is a socket of ours, it becomes one here too.
pub fn received(posix: &'static Posix, fd: i32) {
    let Ok(client) = posix.client() else {
        return;
    };
    if let Some(socket) = claim(fd).and_then(|claim| claim.resolve(client.region(), client.run()))
        && client.adopt(socket).is_ok()
        && descriptors::fits(fd)
    {
        posix.process.descriptors.set_socket(fd, socket);
        let _signals = SignalsBlocked::new();
        // The object with the name has done its work, and is larger than a connection.
        let _ = table::lock(posix).exchange(fd, socket, client.blank().get());
        in_flight::landed(client, socket);
    }
}

/// A descriptor is about to be sent away by SCM_RIGHTS.
pub fn sent(posix: &'static Posix, fd: i32) {
    if let (Ok(client), Some(socket)) = (posix.client(), posix.process.descriptors.socket(fd)) {
        name(posix, client, std::iter::once((fd, socket)));
        in_flight::sent(client, socket);
    }
}

/// After [`sent`]: the message was refused.
pub fn not_sent(posix: &'static Posix, fd: i32) {
    if let (Ok(client), Some(socket)) = (posix.client(), posix.process.descriptors.socket(fd)) {
        in_flight::landed(client, socket);
    }
}

impl TokenClaim {
    /// The number.
    pub fn fd(&self) -> i32 {
        self.fd
    }

    /// The socket, if it is one of this run and the slot still is what the claim says.
    pub fn resolve(&self, region: &Region, run: Run) -> Option<Socket> {
        let generation = region.slot(self.socket.slot)?.generation.load(Acquire);
        // Odd: in use.
        let is_its = generation & 1 == 1 && generation == self.socket.generation;
        (is_its && run == self.run).then_some(self.socket)
    }
}

fn claim(fd: i32) -> Option<TokenClaim> {
    // SAFETY: borrowed for the time of one call, which says so if it is not open.
    let Name { run, slot, generation } = token::read(unsafe { BorrowedFd::borrow_raw(fd) })?;
    Some(TokenClaim { fd, run, socket: Socket { slot, generation } })
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::os::fd::IntoRawFd;

    #[test]
    fn tokens_are_found() {
        let run = Run::random().unwrap();
        let named = token::named(Name { run, slot: 77, generation: 5 }).unwrap();
        let fd = named.as_raw_fd();
        let claimed = TokenClaim { fd, run, socket: Socket { slot: 77, generation: 5 } };
        assert_eq!(claim(fd), Some(claimed));
        assert!(inherited().contains(&claimed));
        let region = Region::create().unwrap();
        region.slot(77).unwrap().generation.store(5, std::sync::atomic::Ordering::Relaxed);
        assert_eq!(claimed.resolve(&region, run), Some(claimed.socket));
        assert_eq!(claimed.resolve(&region, Run::random().unwrap()), None, "of another run");
        assert!(fd < limit(), "where it is looked for without /proc");
        let blank = token::blank().unwrap();
        assert_eq!(claim(blank.as_raw_fd()), None);
        let closed = blank.into_owned().into_raw_fd();
        towpath_client::syscall::close(closed);
        assert_eq!(claim(closed), None);
    }
}
