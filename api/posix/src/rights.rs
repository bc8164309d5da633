//! Passes sockets to other programs: over exec, posix_spawn, or SCM_RIGHTS.
//!
//! A socket of the stack has a kernel descriptor that has no function, called token
//! ([`towpath_shm::token`]). Before it is passed to another program, the token is replaced by one
//! from which the other program can read which socket it is. Other threads see no difference, so
//! the replacement stays if the descriptor is not passed after all.

use std::os::fd::{AsRawFd, BorrowedFd};
use std::sync::atomic::Ordering::Acquire;

use towpath_client::descriptors::{self, DESCRIPTORS_MAX};
use towpath_client::syscall::SignalsBlocked;
use towpath_client::{Client, Error, Region, Socket, Tokens, in_flight};
use towpath_shm::control::TOKENS_MAX;
use towpath_shm::token::{self, Name, Run};

use crate::{Posix, table};

/// A descriptor received from another program, and the socket that is named in its token. The name
/// is not verified yet.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct TokenClaim {
    fd: i32,
    run: Run,
    socket: Socket,
}

/// Returns the inherited descriptors of this program whose tokens contain names of sockets.
pub fn inherited() -> Vec<TokenClaim> {
    match listed() {
        Some(numbers) => numbers.into_iter().filter_map(claim).collect(),
        // If /proc is not mounted, as in a chroot, check every descriptor number that can be in
        // use.
        None => (0..limit()).filter_map(claim).collect(),
    }
}

/// Returns the descriptor numbers in /proc/self/fd. Does not use std, which would call functions
/// that this library replaces.
fn listed() -> Option<Vec<i32>> {
    use rustix::fs::{Mode, OFlags, RawDir, open};
    let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::CLOEXEC;
    let folder = towpath_shm::Fd::from(open(c"/proc/self/fd", flags, Mode::empty()).ok()?);
    let mut numbers = Vec::new();
    let mut buffer = Vec::with_capacity(4096);
    let mut entries = RawDir::new(&*folder, buffer.spare_capacity_mut());
    while let Some(entry) = entries.next() {
        // Skip "." and "..", which do not parse as numbers.
        numbers.extend(entry.ok()?.file_name().to_str().ok()?.parse::<i32>().ok());
    }
    numbers.retain(|&number| number != folder.as_raw_fd());
    Some(numbers)
}

/// Returns the exclusive upper bound of the numbers that descriptors of the stack can have.
fn limit() -> i32 {
    let soft = rustix::process::getrlimit(rustix::process::Resource::Nofile).current;
    soft.unwrap_or(u64::MAX).min(DESCRIPTORS_MAX as u64) as i32
}

/// Returns whether the kernel descriptor `fd` of a socket does not contain the socket's name yet.
/// Returns false if the number is no longer a socket, because libc may replace descriptors
/// internally, as login_tty(3) does.
fn is_blank(client: &Client, fd: i32) -> bool {
    // SAFETY: the descriptor is borrowed for one call, which fails if the descriptor is not open.
    token::is_same(unsafe { BorrowedFd::borrow_raw(fd) }, client.blank().borrow())
}

/// Replaces the kernel descriptors (tokens) of sockets by ones that contain the sockets' names, so
/// that they can be passed to another program. A request to the engine covers up to [`TOKENS_MAX`]
/// descriptors.
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

/// Stores names in the first of at most [`TOKENS_MAX`] descriptors. Returns how many descriptors
/// were handled, at least one.
fn name_some(posix: &'static Posix, client: &Client, wanted: &[(i32, Socket)]) -> usize {
    let sockets = || wanted.iter().map(|&(_, socket)| socket);
    let mut given = client.tokens(sockets());
    let in_need = matches!(given, Err(Error::Refused(libc::EMFILE)));
    if in_need {
        client.use_spare();
    }
    if given.is_err() {
        // Request a single token, which may succeed although a request for many did not.
        given = client.tokens(sockets().take(1));
    }
    let _signals = SignalsBlocked::new();
    let table = table::lock(posix);
    // Skip a descriptor that got no token. The engine has ended or has no free descriptor, or other
    // threads took all free numbers. A socket that the engine has closed gets no token, because it
    // would be useless to the other program.
    let mut named = 1;
    if let Ok(Tokens { tokens, dealt_with }) = given {
        for (n, token) in &tokens {
            let (fd, socket) = wanted[*n];
            if is_blank(client, fd) {
                // Ignore an error: `exchange` fails if the program has closed the descriptor
                // without this library.
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

/// Takes over a descriptor received by SCM_RIGHTS, if its token contains the name of a socket of
/// the stack.
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
        // Replace the token by the process's token without a name. A token with a name takes more
        // kernel memory than a connection, and is not needed any more.
        let _ = table::lock(posix).exchange(fd, socket, client.blank().get());
        in_flight::landed(client, socket);
    }
}

/// Prepares a descriptor for sending it by SCM_RIGHTS: stores the socket's name in its token, and
/// counts the socket as in flight.
pub fn sent(posix: &'static Posix, fd: i32) {
    if let (Ok(client), Some(socket)) = (posix.client(), posix.process.descriptors.socket(fd)) {
        name(posix, client, std::iter::once((fd, socket)));
        in_flight::sent(client, socket);
    }
}

/// Undoes [`sent`], because the message with the descriptor could not be sent.
pub fn not_sent(posix: &'static Posix, fd: i32) {
    if let (Ok(client), Some(socket)) = (posix.client(), posix.process.descriptors.socket(fd)) {
        in_flight::landed(client, socket);
    }
}

impl TokenClaim {
    /// Returns the number of the descriptor.
    pub fn fd(&self) -> i32 {
        self.fd
    }

    /// Returns the socket, if it belongs to run `run` and still exists: its slot must have the
    /// generation in the name.
    pub fn resolve(&self, region: &Region, run: Run) -> Option<Socket> {
        let generation = region.slot(self.socket.slot)?.generation.load(Acquire);
        // A slot is in use if its generation is odd, and has a new socket if the generation has
        // changed.
        let is_its = generation & 1 == 1 && generation == self.socket.generation;
        (is_its && run == self.run).then_some(self.socket)
    }
}

fn claim(fd: i32) -> Option<TokenClaim> {
    // SAFETY: the descriptor is borrowed for one call, which fails if the descriptor is not open.
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
