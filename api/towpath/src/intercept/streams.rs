//! Accepted connections: their waiting tasks, memory and activity.

use std::task::{Context, Waker};
use std::time::Duration;

use towpath_direct::{BufferSizes, SocketHandle};

use super::client::{ClientKey, ClientShares};
use super::limits::InterceptLimits;
use super::wakers::register_one;

/// Initial and maximum memory of each buffer of a connection in bytes. The initial receive window
/// allows a peer to send one large segment at first.
const BUFFER_INITIAL: u32 = 64 << 10;
const BUFFER_MAX: u32 = 4 << 20;
/// Number of transferred bytes after which the buffers of a connection may grow.
const GROW_AFTER: u64 = 128 << 10;
/// A growing connection may reserve at most this fraction (1/64) of the free memory, so that many
/// connections can grow.
const GROW_PART: u64 = 64;
/// Time in ns without a received or sent byte after which a connection's unused memory is released.
const RELEASE_AFTER_NS: u64 = 2_000_000_000;
/// Minimum time in ns between two passes over the connections that look for idle ones. Otherwise an
/// idle limit of zero would keep the runner busy.
const SWEEP_MIN_NS: u64 = 1_000_000;
/// Maximum number of connections that one call of `sweep` examines, which takes about 10 µs.
const SWEEP_MAX: usize = 256;
/// Minimum free space of a send buffer in bytes at which a waiting writer is woken. With a lower
/// limit, each acknowledgement would wake the writer.
const WAKE_ROOM: usize = 32 << 10;

/// State of an accepted connection in [`StreamTable`].
#[derive(Debug)]
pub(super) struct StreamEntry {
    pub(super) handle: SocketHandle,
    client: ClientKey,
    reserved: u64,
    reader: Option<Waker>,
    /// Task that waits for the completion of the handshake, or for room in the send buffer.
    writer: Option<Waker>,
    pub(super) is_connected: bool,
    /// Whether the program has dropped the connection. Then only TCP's timeouts end it, not the
    /// idle limit.
    is_dropped: bool,
    /// Number of bytes transferred in both directions.
    moved: u64,
    /// Whether the buffers have already grown, or could not grow for lack of memory.
    has_grown: bool,
    /// Time at which the last byte was sent or received, in ns.
    active_ns: u64,
    /// Whether the unused memory was released since the last byte was sent or received.
    is_released: bool,
}

/// Maximum memory in bytes that connections may reserve, in total and for each source.
#[derive(Debug, Clone, Copy)]
pub(super) struct MemoryLimits {
    pub(super) total: u64,
    pub(super) per_source: u64,
}

/// Times in ns without a byte in either direction after which connections are reset.
#[derive(Debug, Clone, Copy)]
pub(super) struct IdleLimits {
    idle_ns: u64,
    /// Idle limit in ns that applies to a source with `per_source` connections, and to all sources
    /// if there are `connections` connections.
    at_limit_ns: u64,
    connections: usize,
    per_source: usize,
}

impl IdleLimits {
    pub(super) fn new(limits: &InterceptLimits) -> Self {
        let ns = |time: Duration| u64::try_from(time.as_nanos()).unwrap_or(u64::MAX);
        Self {
            idle_ns: ns(limits.idle),
            at_limit_ns: ns(limits.idle_at_limit).min(ns(limits.idle)),
            connections: limits.connections,
            per_source: limits.connections_per_source,
        }
    }
}

/// Action that is needed for an idle connection.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum SweepStep {
    Release(SocketHandle),
    Reset(SocketHandle),
    /// Resets an idle connection because a limit on the number of connections was reached.
    ResetAtLimit(SocketHandle),
}

/// Accepted connections, by the index of their socket handle.
#[derive(Debug, Default)]
pub(super) struct StreamTable {
    entries: Vec<Option<StreamEntry>>,
    count: usize,
    reserved: u64,
    per_client: ClientShares,
    /// Buffer memory that each source has reserved, in bytes.
    memory_per_client: ClientShares,
    /// Index of the next entry to examine for idleness.
    sweep_at: usize,
    /// Time at which the next pass over all connections begins, in ns.
    sweep_ns: u64,
}

impl StreamTable {
    pub(super) fn len(&self) -> usize {
        self.count
    }

    /// Returns the buffer memory that all connections have reserved, in bytes.
    pub(super) fn reserved(&self) -> u64 {
        self.reserved
    }

    pub(super) fn count_of(&self, client: ClientKey) -> usize {
        self.per_client.used(client)
    }

    /// Returns the initial buffer sizes of a new connection. Returns `None` if they would exceed
    /// the total limit of `memory` bytes.
    pub(super) fn sizes(&self, memory: u64) -> Option<BufferSizes> {
        let max = BUFFER_INITIAL;
        let is_free = self.reserved + 2 * u64::from(max) <= memory;
        is_free.then_some(BufferSizes { recv: max, recv_max: max, send: max, send_max: max })
    }

    /// Returns whether a further connection of the client would exceed its limit of `memory` bytes.
    pub(super) fn has_spent(&self, client: ClientKey, memory: u64) -> bool {
        self.memory_of(client) + 2 * u64::from(BUFFER_INITIAL) > memory
    }

    /// Returns the buffer memory in bytes that the connections of a source have reserved.
    fn memory_of(&self, client: ClientKey) -> u64 {
        self.memory_per_client.used(client) as u64
    }

    /// Adds a connection whose buffers have the sizes of [`Self::sizes`].
    pub(super) fn insert(&mut self, handle: SocketHandle, client: ClientKey, now_ns: u64) {
        let reserved = 2 * u64::from(BUFFER_INITIAL);
        if self.entries.len() <= handle.index() {
            self.entries.resize_with(handle.index() + 1, || None);
        }
        self.entries[handle.index()] = Some(StreamEntry {
            handle,
            client,
            reserved,
            reader: None,
            writer: None,
            is_connected: false,
            is_dropped: false,
            moved: 0,
            has_grown: false,
            active_ns: now_ns,
            is_released: true,
        });
        self.count += 1;
        self.reserved += reserved;
        self.per_client.add(client, 1);
        self.memory_per_client.add(client, reserved as usize);
    }

    pub(super) fn remove(&mut self, handle: SocketHandle) {
        if self.get(handle).is_none() {
            return;
        }
        let entry = self.entries.get_mut(handle.index()).and_then(Option::take);
        if let Some(entry) = entry {
            self.count -= 1;
            self.reserved -= entry.reserved;
            self.per_client.sub(entry.client, 1);
            self.memory_per_client.sub(entry.client, entry.reserved as usize);
        }
    }

    pub(super) fn get(&mut self, handle: SocketHandle) -> Option<&mut StreamEntry> {
        let entry = self.entries.get_mut(handle.index())?.as_mut()?;
        (entry.handle == handle).then_some(entry)
    }

    /// Registers the task that waits for received bytes.
    pub(super) fn wait_to_read(&mut self, handle: SocketHandle, cx: &Context<'_>) {
        if let Some(entry) = self.get(handle) {
            register_one(&mut entry.reader, cx);
        }
    }

    /// Registers the task that waits for room in the send buffer, or for the handshake.
    pub(super) fn wait_to_write(&mut self, handle: SocketHandle, cx: &Context<'_>) {
        if let Some(entry) = self.get(handle) {
            register_one(&mut entry.writer, cx);
        }
    }

    /// Records that bytes were transferred. Returns the new maximum size of each buffer if the
    /// buffers may grow within the limits of `memory`.
    pub(super) fn touch(
        &mut self,
        handle: SocketHandle,
        bytes: usize,
        now_ns: u64,
        memory: MemoryLimits,
    ) -> Option<u32> {
        let entry = self.get(handle)?;
        entry.active_ns = now_ns;
        entry.is_released = false;
        entry.moved += bytes as u64;
        if entry.has_grown || entry.moved < GROW_AFTER {
            return None;
        }
        entry.has_grown = true;
        let client = entry.client;
        let left = memory.per_source.saturating_sub(self.memory_of(client));
        let left = left.min(memory.total.saturating_sub(self.reserved));
        let each = (left / GROW_PART / 2).min(u64::from(BUFFER_MAX)) as u32;
        if each <= BUFFER_INITIAL {
            return None;
        }
        let added = 2 * u64::from(each - BUFFER_INITIAL);
        self.get(handle)?.reserved += added;
        self.reserved += added;
        self.memory_per_client.add(client, added as usize);
        Some(each)
    }

    /// Records the time at which bytes, or acknowledgements of bytes, arrived from the peer.
    pub(super) fn note_arrival(&mut self, handle: SocketHandle, now_ns: u64) {
        if let Some(entry) = self.get(handle) {
            entry.active_ns = now_ns;
            entry.is_released = false;
        }
    }

    /// Records that the handshake is complete, and wakes the waiting task.
    pub(super) fn connect(&mut self, handle: SocketHandle, due: &mut Vec<Waker>) {
        if let Some(entry) = self.get(handle) {
            entry.is_connected = true;
            due.extend(entry.writer.take());
        }
    }

    /// Records that the program has dropped the connection.
    pub(super) fn note_drop(&mut self, handle: SocketHandle) {
        if let Some(entry) = self.get(handle) {
            entry.is_dropped = true;
        }
    }

    pub(super) fn wake_reader(&mut self, handle: SocketHandle, due: &mut Vec<Waker>) {
        if let Some(entry) = self.get(handle) {
            due.extend(entry.reader.take());
        }
    }

    /// Wakes the task that waits to write, if the send buffer has enough space. `room` is this
    /// space, in bytes.
    pub(super) fn wake_writer(&mut self, handle: SocketHandle, room: usize, due: &mut Vec<Waker>) {
        if let Some(entry) = self.get(handle)
            && room >= WAKE_ROOM
        {
            due.extend(entry.writer.take());
        }
    }

    pub(super) fn wake_both(&mut self, handle: SocketHandle, due: &mut Vec<Waker>) {
        if let Some(entry) = self.get(handle) {
            due.extend(entry.reader.take());
            due.extend(entry.writer.take());
        }
    }

    pub(super) fn wake_all(&mut self, due: &mut Vec<Waker>) {
        for entry in self.entries.iter_mut().flatten() {
            due.extend(entry.reader.take());
            due.extend(entry.writer.take());
        }
    }

    /// Returns the time in ns at which [`Self::sweep`] must be called next; `None` without
    /// connections.
    pub(super) fn next_sweep_ns(&self) -> Option<u64> {
        (self.count > 0).then_some(self.sweep_ns)
    }

    /// Examines some connections for idleness. Appends a step to `steps` for each connection that
    /// must release memory or be reset.
    pub(super) fn sweep(&mut self, now_ns: u64, limits: &IdleLimits, steps: &mut Vec<SweepStep>) {
        if self.count == 0 || now_ns < self.sweep_ns {
            return;
        }
        let end = self.entries.len().min(self.sweep_at + SWEEP_MAX);
        let is_full = self.count >= limits.connections;
        let entries = self.entries[self.sweep_at..end].iter_mut().flatten();
        for entry in entries.filter(|entry| !entry.is_dropped) {
            let quiet_ns = now_ns.saturating_sub(entry.active_ns);
            let is_at_limit = || is_full || self.per_client.used(entry.client) >= limits.per_source;
            if quiet_ns >= limits.idle_ns {
                entry.active_ns = now_ns;
                steps.push(SweepStep::Reset(entry.handle));
            } else if quiet_ns >= limits.at_limit_ns && is_at_limit() {
                entry.active_ns = now_ns;
                steps.push(SweepStep::ResetAtLimit(entry.handle));
            } else if quiet_ns >= RELEASE_AFTER_NS && !entry.is_released {
                entry.is_released = true;
                steps.push(SweepStep::Release(entry.handle));
            }
        }
        self.sweep_at = end;
        if end == self.entries.len() {
            self.sweep_at = 0;
            // Start the next pass so early that an idle connection is found within an eighth of its
            // time limit.
            self.sweep_ns = now_ns + (limits.at_limit_ns / 8).clamp(SWEEP_MIN_NS, RELEASE_AFTER_NS);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const CLIENT: [u8; 4] = [192, 0, 2, 1];

    #[test]
    fn memory_is_divided_until_it_is_exhausted() {
        let mut table = StreamTable::default();
        let memory = 16 << 20;
        let limits = MemoryLimits { total: memory, per_source: memory };
        let (mut node, mut grown) = (handles(), 0);
        while table.sizes(memory).is_some() {
            let handle = node();
            table.insert(handle, ClientKey::of(CLIENT.into()), 1);
            assert_eq!(table.touch(handle, GROW_AFTER as usize - 1, 1, limits), None);
            // Only every fourth connection transfers enough bytes to let its buffers grow.
            if table.len() % 4 == 0 {
                grown += usize::from(table.touch(handle, 1, 1, limits).is_some());
                assert_eq!(table.touch(handle, 1 << 20, 1, limits), None, "grows once");
            }
            assert!(table.reserved() <= memory);
        }
        assert!(memory - table.reserved() < 2 * u64::from(BUFFER_INITIAL));
        assert!(table.len() > 100, "{}", table.len());
        assert!(grown > 5, "{grown}");
    }

    #[test]
    fn a_source_leaves_memory_for_others() {
        let mut table = StreamTable::default();
        let limits = MemoryLimits { total: 64 << 20, per_source: 16 << 20 };
        let (client, mut node) = (ClientKey::of(CLIENT.into()), handles());
        while !table.has_spent(client, limits.per_source) {
            let handle = node();
            table.insert(handle, client, 1);
            table.touch(handle, GROW_AFTER as usize, 1, limits);
            assert!(table.reserved() <= limits.per_source);
        }
        let other = ClientKey::of([192, 0, 2, 2].into());
        assert!(!table.has_spent(other, limits.per_source));
        assert!(table.sizes(limits.total).is_some());
    }

    #[test]
    fn idle_connections_are_released_and_then_reset_once() {
        let mut table = StreamTable::default();
        let handle = handles()();
        table.insert(handle, ClientKey::of(CLIENT.into()), 1);
        table.touch(handle, 1, 1, MemoryLimits { total: 1 << 30, per_source: 1 << 30 });
        let idle_ns = 60_000_000_000;
        let sweep = |table: &mut StreamTable, now_ns| {
            let mut steps = Vec::new();
            table.sweep(now_ns, &idle(60, 60), &mut steps);
            steps
        };
        assert_eq!(sweep(&mut table, 1_000_000_000), []);
        assert_eq!(sweep(&mut table, 4_000_000_000), [SweepStep::Release(handle)]);
        assert_eq!(sweep(&mut table, 10_000_000_000), []);
        assert_eq!(sweep(&mut table, 1 + idle_ns), [SweepStep::Reset(handle)]);
        table.note_drop(handle);
        assert_eq!(sweep(&mut table, 1 + 3 * idle_ns), [], "cannot be reset any more");
        table.remove(handle);
        assert_eq!((table.len(), table.reserved()), (0, 0));
        assert_eq!(table.next_sweep_ns(), None);
    }

    #[test]
    fn a_slow_peer_is_not_idle() {
        let mut table = StreamTable::default();
        let handle = handles()();
        table.insert(handle, ClientKey::of(CLIENT.into()), 1);
        table.note_arrival(handle, 50_000_000_000);
        let mut steps = Vec::new();
        table.sweep(70_000_000_000, &idle(60, 60), &mut steps);
        assert_eq!(steps, [SweepStep::Release(handle)]);
    }

    #[test]
    fn a_source_at_its_limit_loses_its_idle_connections_only() {
        let (mut table, mut node) = (StreamTable::default(), handles());
        let crowd = [node(), node()];
        for handle in crowd {
            table.insert(handle, ClientKey::of(CLIENT.into()), 1);
        }
        table.insert(node(), ClientKey::of([192, 0, 2, 2].into()), 1);
        table.note_arrival(crowd[1], 25_000_000_000);
        let mut steps = Vec::new();
        table.sweep(31_000_000_000, &idle(60, 30), &mut steps);
        let resets: Vec<_> =
            steps.iter().filter(|step| !matches!(step, SweepStep::Release(_))).collect();
        assert_eq!(resets, [&SweepStep::ResetAtLimit(crowd[0])]);
        // After one removal, the source is below its limit of connections.
        table.remove(crowd[0]);
        steps.clear();
        table.sweep(58_000_000_000, &idle(60, 30), &mut steps);
        assert!(!steps.iter().any(|step| matches!(step, SweepStep::ResetAtLimit(_))), "{steps:?}");
    }

    #[test]
    fn a_limit_of_zero_does_not_keep_the_runner_busy() {
        let mut table = StreamTable::default();
        table.insert(handles()(), ClientKey::of(CLIENT.into()), 1);
        table.sweep(1000, &idle(60, 0), &mut Vec::new());
        assert!(table.next_sweep_ns() > Some(1000));
    }

    /// Returns idle limits in seconds, which apply to sources with two connections.
    fn idle(idle: u64, at_limit: u64) -> IdleLimits {
        IdleLimits::new(&InterceptLimits {
            idle: Duration::from_secs(idle),
            idle_at_limit: Duration::from_secs(at_limit),
            connections_per_source: 2,
            ..InterceptLimits::default()
        })
    }

    /// Returns a function that creates socket handles, from a stack without ports.
    fn handles() -> impl FnMut() -> SocketHandle {
        let mut node: towpath_direct::Node = towpath_direct::Node::new(
            towpath_direct::NodeConfig::default(),
            [1; 32],
            towpath_stack::Instant(1),
        );
        let mut port = 0;
        move || {
            port += 1;
            node.udp(([127, 0, 0, 1], port).into()).expect("a free port")
        }
    }
}
