//! Sockets that the engine (the network stack) opens in advance. A request for a socket wakes two
//! threads, which takes longer than the rest of socket(2). Therefore a program that opens many
//! sockets requests several at once.
//!
//! The number of sockets per request grows with the number of sockets that the process has opened.
//! At most [`AT_ONCE`] minus one sockets are unused, for each kind of socket and each shard (engine
//! thread). Unused sockets are closed when the process ends or spawns a program, because a spawned
//! program may hold its parent's sockets for some seconds. Taking a socket needs no lock, because a
//! signal handler may open sockets.

use std::sync::atomic::Ordering::{Acquire, Relaxed, Release};
use std::sync::atomic::{AtomicU32, AtomicU64};

use towpath_shm::control::SOCKETS_MAX;

use crate::Socket;

/// Maximum number of sockets that the engine opens for a request.
const AT_ONCE: u32 = 16;
/// Number of sockets that a process must have opened before its requests are for several sockets.
const FREQUENT: u32 = 8;
const _: () = assert!(AT_ONCE as usize <= SOCKETS_MAX);

/// Unused sockets that one shard (engine thread) has opened in advance.
#[derive(Debug, Default)]
pub(crate) struct Ahead([Shelf; 4]);

/// Unused sockets of one kind that were opened in advance.
#[derive(Debug, Default)]
struct Shelf {
    /// Kind of the sockets: address family in the upper half, protocol in the lower half. 0 if this
    /// entry is unused. Set only once.
    kind: AtomicU64,
    opened: AtomicU32,
    /// Sockets: generation in the upper half, slot number in the lower half; 0 for an empty place.
    sockets: [AtomicU64; AT_ONCE as usize - 1],
}

impl Ahead {
    /// Removes and returns an unused socket of a kind. Returns `None` if there is none.
    pub fn take(&self, family: u32, protocol: u32) -> Option<Socket> {
        let shelf = self.shelf(family, protocol)?;
        let mut filled = shelf.sockets.iter().filter(|cell| cell.load(Relaxed) != 0);
        let taken = filled.find_map(|cell| match cell.swap(0, Acquire) {
            0 => None,
            socket => Some(unpacked(socket)),
        })?;
        shelf.opened.fetch_add(1, Relaxed);
        Some(taken)
    }

    /// Removes and returns all unused sockets, so that the caller can close them.
    pub fn take_all(&self) -> impl Iterator<Item = Socket> {
        let cells = self.0.iter().flat_map(|shelf| &shelf.sockets);
        cells.filter_map(|cell| match cell.swap(0, Acquire) {
            0 => None,
            socket => Some(unpacked(socket)),
        })
    }

    /// Returns how many sockets to request from the engine at once, after [`Self::take`] has
    /// returned `None`.
    pub fn wanted(&self, family: u32, protocol: u32) -> u32 {
        self.shelf(family, protocol).map_or(1, |shelf| {
            let opened = shelf.opened.fetch_add(1, Relaxed);
            (opened / FREQUENT * 2).clamp(1, AT_ONCE)
        })
    }

    /// Adds an unused socket. Returns the socket as an error if there is no space, because several
    /// threads have requested sockets at the same time.
    pub fn put(&self, family: u32, protocol: u32, socket: Socket) -> Result<(), Socket> {
        let shelf = self.shelf(family, protocol).ok_or(socket)?;
        let is_in =
            |cell: &AtomicU64| cell.compare_exchange(0, packed(socket), Release, Relaxed).is_ok();
        if shelf.sockets.iter().any(is_in) { Ok(()) } else { Err(socket) }
    }

    /// Returns the list of unused sockets of this kind; `None` if all lists are used for other
    /// kinds.
    fn shelf(&self, family: u32, protocol: u32) -> Option<&Shelf> {
        let kind = u64::from(family) << 32 | u64::from(protocol);
        self.0.iter().find(|shelf| match shelf.kind.load(Relaxed) {
            0 => shelf
                .kind
                .compare_exchange(0, kind, Relaxed, Relaxed)
                .map_or_else(|other| other == kind, |_| true),
            known => known == kind,
        })
    }
}

/// Packs a socket's generation and slot number into one word. The word is not 0, because the
/// generation of an open socket is odd.
fn packed(socket: Socket) -> u64 {
    u64::from(socket.generation) << 32 | u64::from(socket.slot)
}

fn unpacked(packed: u64) -> Socket {
    Socket { slot: packed as u32, generation: (packed >> 32) as u32 }
}

#[cfg(test)]
mod tests {
    use super::*;

    const STREAM: (u32, u32) = (2, 6);

    #[test]
    fn requests_few_sockets_one_by_one() {
        let ahead = Ahead::default();
        let wanted: Vec<u32> = (0..80).map(|_| ahead.wanted(STREAM.0, STREAM.1)).collect();
        assert!(wanted[..FREQUENT as usize].iter().all(|wanted| *wanted == 1));
        assert!(wanted.is_sorted());
        assert_eq!(wanted.last(), Some(&AT_ONCE));
    }

    #[test]
    fn returns_each_socket_once_and_by_its_kind() {
        let ahead = Ahead::default();
        let socket = |slot| Socket { slot, generation: 1 };
        for slot in 0..AT_ONCE - 1 {
            assert_eq!(ahead.put(2, 6, socket(slot)), Ok(()));
        }
        assert_eq!(ahead.put(2, 6, socket(99)), Err(socket(99)), "there is no room");
        assert_eq!(ahead.take(10, 6), None, "it is another kind");
        let mut taken: Vec<_> = std::iter::from_fn(|| ahead.take(2, 6)).collect();
        taken.sort();
        assert_eq!(taken, (0..AT_ONCE - 1).map(socket).collect::<Vec<_>>());
        for kind in [(2, 6), (10, 17)] {
            assert_eq!(ahead.put(kind.0, kind.1, socket(1)), Ok(()));
        }
        assert_eq!(ahead.take_all().count(), 2);
        assert_eq!(ahead.take(2, 6), None);
    }

    #[test]
    fn keeps_no_sockets_of_a_fifth_kind() {
        let ahead = Ahead::default();
        let all = [(2, 6), (10, 6), (2, 17), (10, 17)];
        assert!(all.iter().all(|(family, protocol)| ahead.wanted(*family, *protocol) == 1));
        let socket = Socket { slot: 1, generation: 1 };
        assert_eq!(ahead.put(2, 1, socket), Err(socket));
        assert_eq!(ahead.take(2, 1), None);
        assert!((0..99).all(|_| ahead.wanted(2, 1) == 1));
    }
}
