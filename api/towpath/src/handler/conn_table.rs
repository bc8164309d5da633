//! The connections of a handler, with their timers.

use std::time::Duration;

use towpath_direct::{PrivateSockets, SocketHandle};
use towpath_ring::{RecvBuffer, SendBuffer};
use towpath_stack::{Instant, TimerId, TimerWheel};

/// Maximum number of timers that fire or are moved within the timer wheel in one iteration of the
/// stack's event loop. Further timers wait for the next iteration.
const TIMERS_A_TURN: usize = 1024;
/// Minimum time after which an idle connection frees its buffers. May take up to twice as long.
const IDLE: Duration = Duration::from_secs(5);
/// Maximum number of connections that one iteration of the stack's event loop checks for idleness.
const EXAMINED_A_TURN: usize = 256;

/// State that decides which calls of the handler a connection currently gets.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum CallGate {
    /// The handshake of an outgoing connection is not complete, so no call is allowed yet.
    Connecting,
    Open,
    AwaitsRoom,
    Paused,
}

/// Result of an unsuccessful search for a byte: how many unread bytes, from the first one, do not
/// contain it.
#[derive(Debug, Clone, Copy, Default)]
pub(super) struct Searched {
    byte: u8,
    len: u32,
}

impl Searched {
    /// Returns the offset among the unread bytes at which a search for `byte` must begin.
    pub fn begin(&mut self, byte: u8) -> usize {
        if byte != self.byte {
            *self = Self { byte, len: 0 };
        }
        self.len as usize
    }

    /// Records that the first `n` unread bytes do not contain the searched byte.
    pub fn until(&mut self, n: usize) {
        self.len = n as u32;
    }

    /// Adjusts the offset after the first `n` unread bytes were removed from the buffer.
    pub fn forget(&mut self, n: usize) {
        self.len = self.len.saturating_sub(n.min(u32::MAX as usize) as u32);
    }
}

/// Entry of a connection in [`ConnTable`].
#[derive(Debug)]
pub(super) struct ConnEntry {
    pub handle: SocketHandle,
    pub gate: CallGate,
    pub searched: Searched,
    timer: TimerId,
    /// Time at which the connection's timer fires; `None` if it is not set.
    deadline: Option<Instant>,
    /// Whether the connection was used since the last examination for idleness.
    is_active: bool,
}

/// All connections of a handler on one thread, by the index of their socket handle.
#[derive(Debug)]
pub(super) struct ConnTable {
    entries: Vec<Option<ConnEntry>>,
    count: usize,
    wheel: TimerWheel<u32>,
    /// Time at which the next examination for idle connections begins; `None` if no connection has
    /// buffers to free.
    examine_at: Option<Instant>,
    /// Index of the connection that is examined for idleness next.
    examined: usize,
    /// Whether the current pass over all connections found one that is active, or has bytes in its
    /// buffers.
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

    /// Removes a connection and its timer. Returns whether the table contained the connection.
    pub fn remove(&mut self, handle: SocketHandle) -> bool {
        let Some(entry) = self.get_mut(handle) else { return false };
        let mut timer = entry.timer;
        self.wheel.cancel(&mut timer);
        self.entries[handle.index()] = None;
        self.count -= 1;
        true
    }

    /// Marks a connection as active, so that it keeps its buffers in the next examination.
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

    /// Returns the next connection whose timer has fired. Each timer that is moved in the timer
    /// wheel decrements `moves`, which limits the work per call.
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
                // The deadline was postponed after the timer was armed, so arm it again.
                later => self.wheel.set(&mut entry.timer, later, index),
            }
        }
        None
    }

    /// Returns the maximum number of timers that [`Self::next_fired`] handles in one iteration of
    /// the event loop.
    pub fn timer_budget() -> usize {
        TIMERS_A_TURN
    }

    /// Frees the buffers of idle connections. Each call examines only some of the connections.
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
            // If a pass found no active connection, all buffers are free, and no further pass is
            // needed.
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
        // Setting an earlier deadline replaces a later one.
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
