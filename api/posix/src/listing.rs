//! Reads the sockets, counters, routes and neighbours of the engine, which /proc/net and netlink
//! report.
//!
//! The functions allocate no memory, because a signal handler that interrupted malloc may call
//! open(2).

use towpath_shm::control::{
    ControlReply, DATA_MAX, Interface, NeighborRecord, Request, Route, SocketRow, Tally, Traffic,
    call,
};
use towpath_shm::layout::Plain;

use crate::{Posix, Result};

/// Maximum number of interfaces whose traffic counters fit in one reply of the engine.
pub(crate) const LINKS: usize = (DATA_MAX - size_of::<Tally>()) / size_of::<Traffic>();
/// The socket state TCP_LISTEN, with Linux's number.
pub(crate) const LISTEN: u32 = 10;
/// Maximum number of interfaces that fit in one reply of the engine.
pub(crate) const INTERFACES: usize = DATA_MAX / size_of::<Interface>();

/// Calls `each` for every socket of the run, and for every TIME-WAIT connection that no longer has
/// a socket.
pub(crate) fn sockets(
    posix: &'static Posix,
    mut each: impl FnMut(&SocketRow) -> Result<()>,
) -> Result<()> {
    let (mut a, mut b) = (0, 0);
    loop {
        let request = Request { call: call::SOCKET_ROWS, a, b, ..Request::default() };
        let reply = posix.call(&request)?;
        for row in entries::<SocketRow>(&reply, 0) {
            each(&row)?;
        }
        (a, b) = (reply.a, reply.b);
        if (a, b) == (0, 0) {
            return Ok(());
        }
    }
}

/// Calls `each` for every socket, as [`sockets`] does, but for listeners first, as Linux lists
/// them.
pub(crate) fn listeners_first(
    posix: &'static Posix,
    mut each: impl FnMut(&SocketRow) -> Result<()>,
) -> Result<()> {
    for listens in [true, false] {
        sockets(posix, |row| match (row.state == LISTEN) == listens {
            true => each(row),
            false => Ok(()),
        })?;
    }
    Ok(())
}

/// Requests the `struct tcp_info` of a socket from the engine, and the name of its congestion
/// control algorithm.
pub(crate) fn figures(posix: &'static Posix, slot: u32) -> Result<ControlReply> {
    posix.call(&Request { call: call::SOCKET_FIGURES, a: slot, ..Request::default() })
}

/// Calls `each` for every route, in the stack's order of preference.
pub(crate) fn routes(
    posix: &'static Posix,
    mut each: impl FnMut(&Route) -> Result<()>,
) -> Result<()> {
    in_portions(posix, call::ROUTES, |route| each(&route))
}

/// Calls `each` for every entry of the neighbour table.
pub(crate) fn neighbors(
    posix: &'static Posix,
    mut each: impl FnMut(&NeighborRecord) -> Result<()>,
) -> Result<()> {
    in_portions(posix, call::NEIGHBORS, |neighbor| each(&neighbor))
}

fn in_portions<T: Plain>(
    posix: &'static Posix,
    call: u32,
    mut each: impl FnMut(T) -> Result<()>,
) -> Result<()> {
    let mut next = 0;
    loop {
        let reply = posix.call(&Request { call, a: next, ..Request::default() })?;
        entries(&reply, 0).try_for_each(&mut each)?;
        next = reply.a;
        if next == 0 {
            return Ok(());
        }
    }
}

/// Counters of the engine: sums over all shards (event loops of the engine), and the traffic of
/// each interface.
#[derive(Debug, Default)]
pub(crate) struct ListedCounters {
    pub tally: Tally,
    pub links: [Traffic; LINKS],
}

/// Requests the counters of each shard (event loop of the engine), and returns the sums.
pub(crate) fn counted(posix: &'static Posix) -> Result<ListedCounters> {
    let mut all = ListedCounters::default();
    let mut next = 0;
    loop {
        let reply = posix.call(&Request { call: call::TALLY, a: next, ..Request::default() })?;
        let Some(own) = entries::<Tally>(&reply, 0).next() else { return Ok(all) };
        all.tally = sum(&all.tally, &own);
        let links = entries::<Traffic>(&reply, size_of::<Tally>());
        for (to, more) in all.links.iter_mut().zip(links) {
            *to = sum(to, &more);
        }
        next = reply.a;
        if next == 0 {
            return Ok(all);
        }
    }
}

impl ListedCounters {
    /// Returns the traffic counters of the interface with index `index`. Indices begin at 1.
    pub(crate) fn of(&self, index: u32) -> Traffic {
        let known = (index as usize).checked_sub(1).and_then(|at| self.links.get(at));
        known.copied().unwrap_or_default()
    }
}

/// Adds two structs that contain only 64-bit counters, counter by counter.
fn sum<T: Plain + Default>(one: &T, other: &T) -> T {
    let mut bytes = [0; DATA_MAX];
    let len = size_of::<T>();
    let pairs = one.as_bytes().chunks_exact(8).zip(other.as_bytes().chunks_exact(8));
    for (to, (one, other)) in bytes[..len].chunks_exact_mut(8).zip(pairs) {
        let [one, other] =
            [one, other].map(|part| part.first_chunk().map_or(0, |part| u64::from_ne_bytes(*part)));
        to.copy_from_slice(&one.wrapping_add(other).to_ne_bytes());
    }
    T::from_bytes(&bytes[..len])
}

fn entries<T: Plain>(reply: &ControlReply, from: usize) -> impl Iterator<Item = T> {
    let bytes = reply.payload().get(from..).unwrap_or_default();
    bytes.chunks_exact(size_of::<T>()).map(T::from_bytes)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn counters_of_shards_are_added() {
        let one = Traffic { rx_packets: 1, tx_dropped: u64::from(u32::MAX), ..Traffic::default() };
        let both = sum(&one, &one);
        assert_eq!((both.rx_packets, both.rx_bytes), (2, 0));
        assert_eq!(both.tx_dropped, 2 * u64::from(u32::MAX));
    }
}
