//! The connections of a handler, with their timers.

use std::time::Duration;

use towpath_direct::{PrivateSockets, SocketHandle};
use towpath_ring::{RecvBuffer, SendBuffer};
use towpath_stack::{Instant, TimerId, TimerWheel};

/// Number of timers that are moved or fire in a turn. Later ones wait for the next turn.
const TIMERS_A_TURN: usize = 1024;
/// Time after which an idle connection frees its buffers, up to twice as long.
const IDLE: Duration = Duration::from_secs(5);
/// Number of connections that are examined in a turn for whether they are idle.
const EXAMINED_A_TURN: usize = 256;

/// Calls for which a connection waits.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum CallGate {
    /// The handshake of an outgoing connection is not complete.
    Connecting,
    Open,
    AwaitsRoom,
    Paused,
}

/// Bytes that were searched without success, counted from the first unread byte.
#[derive(Debug, Clone, Copy, Default)]
pub(super) struct Searched {
    byte: u8,
    len: u32,
}

impl Searched {
    /// Returns where to begin to search for `byte`.
    pub fn begin(&mut self, byte: u8) -> usize {
        if byte != self.byte {
            *self = Self { byte, len: 0 };
        }
        self.len as usize
    }

    /// Records that the first `n` unread bytes do not contain the byte.
    pub fn until(&mut self, n: usize) {
        self.len = n as u32;
    }

    /// Accounts for the removal of `n` bytes.
    pub fn forget(&mut self, n: usize) {
        self.len = self.len.saturating_sub(n.min(u32::MAX as usize) as u32);
    }
}

/// A connection of a handler.
#[derive(Debug)]
pub(super) struct ConnEntry {
    pub handle: SocketHandle,
    pub gate: CallGate,
    pub searched: Searched,
    timer: TimerId,
    /// Time at which the timer fires; `None` if it is not set.
    deadline: Option<Instant>,
    /// Whether the connection was used since it was last examined.
    is_active: bool,
}

/// All connections, by the index of their handle.
#[derive(Debug)]
pub(super) struct ConnTable {
    entries: Vec<Option<ConnEntry>>,
    count: usize,
    wheel: TimerWheel<u32>,
    /// Time of the next examination, if a connection may have buffers to free.
    examine_at: Option<Instant>,
    /// Next index to examine.
    examined: usize,
    /// Whether a connection was found active, or with bytes in its buffers, in this round.
    found_active: bool,
}

impl ConnTable {
    pub fn new(now: Instant) -> Self {
        Self {
            entries: Vec::new(),
            count: 0,
            wheel: TimerWheel::new(now),
            examine_at: None,
            examined: 0,
            found_active: false,
        }
    }

    pub fn len(&self) -> usize {
        self.count
    }

    pub fn insert(&mut self, handle: SocketHandle, gate: CallGate) {
        let index = handle.index();
        if index >= self.entries.len() {
            self.entries.resize_with(index + 1, || None);
        }
        let (timer, searched) = (TimerId::NONE, Searched::default());
        let entry = ConnEntry { handle, gate, searched, timer, deadline: None, is_active: true };
        debug_assert!(self.entries[index].is_none(), "the last connection has ended");
        self.entries[index] = Some(entry);
        self.count += 1;
    }

    pub fn get(&self, handle: SocketHandle) -> Option<&ConnEntry> {
        self.entries.get(handle.index())?.as_ref().filter(|entry| entry.handle == handle)
    }

    pub fn get_mut(&mut self, handle: SocketHandle) -> Option<&mut ConnEntry> {
        self.entries.get_mut(handle.index())?.as_mut().filter(|entry| entry.handle == handle)
    }

    /// Removes a connection and its timer. Returns whether it was there.
    pub fn remove(&mut self, handle: SocketHandle) -> bool {
        let Some(entry) = self.get_mut(handle) else { return false };
        let mut timer = entry.timer;
        self.wheel.cancel(&mut timer);
        self.entries[handle.index()] = None;
        self.count -= 1;
        true
    }

    /// Marks a connection as active, so that it keeps its buffers.
    pub fn touch(&mut self, handle: SocketHandle, now: Instant) {
        if let Some(entry) = self.get_mut(handle) {
            entry.is_active = true;
            self.examine_at.get_or_insert(now + IDLE);
        }
    }

    /// Sets or clears the timer of a connection.
    pub fn set_timer(&mut self, handle: SocketHandle, deadline: Option<Instant>) {
        let Self { entries, wheel, .. } = self;
        let Some(Some(entry)) = entries.get_mut(handle.index()) else { return };
        if entry.handle == handle {
            entry.deadline = deadline;
            wheel.set(&mut entry.timer, deadline, handle.index() as u32);
        }
    }

    /// Returns the next connection whose timer has fired. `moves` limits the work.
    pub fn next_fired(&mut self, now: Instant, moves: &mut usize) -> Option<SocketHandle> {
        while *moves > 0
            && let Some(index) = self.wheel.pop(now, moves)
        {
            *moves = moves.saturating_sub(1);
            let Some(Some(entry)) = self.entries.get_mut(index as usize) else { continue };
            entry.timer = TimerId::NONE;
            match entry.deadline {
                Some(deadline) if deadline <= now => {
                    entry.deadline = None;
                    return Some(entry.handle);
                }
                // The timer was set to a later time after it was armed.
                later => self.wheel.set(&mut entry.timer, later, index),
            }
        }
        None
    }

    /// Returns the limit for [`Self::next_fired`] in one turn.
    pub fn timer_budget() -> usize {
        TIMERS_A_TURN
    }

    /// Frees the buffers of idle connections, a part in each turn.
    pub fn release_idle(&mut self, now: Instant, sockets: &mut dyn PrivateSockets) {
        if self.examine_at.is_none_or(|at| at > now) {
            return;
        }
        let end = (self.examined + EXAMINED_A_TURN).min(self.entries.len());
        for entry in self.entries[self.examined.min(end)..end].iter_mut().flatten() {
            self.found_active |= entry.is_active;
            if !std::mem::take(&mut entry.is_active) {
                sockets.release_idle(entry.handle);
                let buffers = sockets.buffers(entry.handle);
                self.found_active |=
                    buffers.is_some_and(|(recv, send)| recv.unread() > 0 || !send.is_empty());
            }
        }
        self.examined = end;
        self.examine_at = Some(now);
        if end == self.entries.len() {
            // After a round without active connections, no buffers are left.
            self.examine_at = self.found_active.then(|| now + IDLE);
            (self.examined, self.found_active) = (0, false);
        }
    }

    pub fn next_timeout(&self) -> Option<Instant> {
        self.wheel.next_timeout().into_iter().chain(self.examine_at).min()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const START: Instant = Instant(1_000_000_000);

    fn handles(count: usize) -> Vec<SocketHandle> {
        let mut direct: towpath_direct::Node =
            towpath_direct::Node::new(towpath_direct::NodeConfig::default(), [7; 32], START);
        let open = |_| direct.udp("127.0.0.1:0".parse().expect("an address")).expect("a port");
        (0..count).map(open).collect()
    }

    fn fired(table: &mut ConnTable, now: Instant) -> Vec<usize> {
        let mut moves = ConnTable::timer_budget();
        std::iter::from_fn(|| table.next_fired(now, &mut moves)).map(SocketHandle::index).collect()
    }

    #[test]
    fn timers_fire_at_their_latest_deadline_and_not_after_the_end() {
        let ms = |n| Duration::from_millis(n);
        let mut table = ConnTable::new(START);
        let handles = handles(4);
        handles.iter().for_each(|handle| table.insert(*handle, CallGate::Open));
        for handle in &handles {
            table.set_timer(*handle, Some(START + ms(10)));
        }
        table.set_timer(handles[1], Some(START + ms(30)));
        table.set_timer(handles[2], None);
        assert!(table.remove(handles[3]) && !table.remove(handles[3]));
        assert_eq!(fired(&mut table, START + ms(9)), [0; 0]);
        assert_eq!(fired(&mut table, START + ms(11)), [handles[0].index()]);
        assert_eq!(fired(&mut table, START + ms(29)), [0; 0]);
        assert_eq!(fired(&mut table, START + ms(31)), [handles[1].index()]);
        assert_eq!(fired(&mut table, START + ms(1000)), [0; 0]);
        assert_eq!(table.next_timeout(), None);
        // An earlier time replaces a later one.
        table.set_timer(handles[0], Some(START + ms(5000)));
        table.set_timer(handles[0], Some(START + ms(2000)));
        assert_eq!(fired(&mut table, START + ms(2001)), [handles[0].index()]);
    }

    #[test]
    fn searches_continue_where_they_ended() {
        let mut searched = Searched::default();
        assert_eq!(searched.begin(b'\n'), 0);
        searched.until(100);
        searched.forget(30);
        assert_eq!(searched.begin(b'\n'), 70);
        assert_eq!(searched.begin(b' '), 0);
        searched.until(5);
        searched.forget(usize::MAX);
        assert_eq!(searched.begin(b' '), 0);
    }
}
