//! The command ring and the event ring between a program and the engine, with both sides of each.

use std::os::fd::BorrowedFd;
use std::sync::atomic::Ordering;

use towpath_shm::control::{ControlReply, Request};
use towpath_shm::layout::{COMMANDS_MAX, Command, EVENTS_MAX, event};

use crate::call::{self, Calls};
use crate::notification;
use crate::protocol::{self, BadPosition};
use crate::region::Channel;

/// Error: the command ring is full. The program should notify the engine, and try again.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Full;

impl std::fmt::Display for Full {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("the command ring is full")
    }
}

impl std::error::Error for Full {}

/// Adds a program's command to the command ring, from which the engine (the network stack) reads
/// it. The caller must hold its process's lock of the ring. Then it must call
/// [`crate::ring_engine`] to wake the engine.
///
/// # Errors
/// Returns [`Full`] if [`COMMANDS_MAX`] commands wait, or if this process has overwritten the
/// ring's positions. If the positions are invalid, the engine stops serving the channel; see
/// [`has_ended`].
pub fn push_command(channel: &Channel, command: &Command) -> Result<(), Full> {
    let header = channel.header();
    let at = header.command_tail.load(Ordering::Relaxed);
    let write = |index| channel.write_command(index, command);
    match protocol::produce(&header.command_head, &header.command_tail, at, COMMANDS_MAX, write) {
        Ok(true) => Ok(()),
        _ => Err(Full),
    }
}

/// Takes the program's next event: the index of a socket's slot, and bits of
/// [`towpath_shm::layout::event`]. The caller must hold its process's lock of the event ring.
pub fn pop_event(channel: &Channel) -> Option<(u32, u8)> {
    let header = channel.header();
    let at = header.event_head.load(Ordering::Relaxed);
    let read = |index| protocol::take(channel.event(index));
    let (head, tail) = (&header.event_head, &header.event_tail);
    let entry = protocol::consume(head, tail, at, EVENTS_MAX, read).ok()??;
    Some(event::parts(entry))
}

/// Returns whether events for the program were lost since the last call because the ring was full.
/// If so, the program must check all of its sockets.
pub fn take_events_lost(channel: &Channel) -> bool {
    let lost = &channel.header().events_lost;
    lost.load(Ordering::Relaxed) != 0 && lost.swap(0, Ordering::AcqRel) != 0
}

/// Returns whether there are events for the program, or events were lost.
pub fn events_waiting(channel: &Channel) -> bool {
    let header = channel.header();
    header.event_tail.load(Ordering::Acquire) != header.event_head.load(Ordering::Relaxed)
        || header.events_lost.load(Ordering::Relaxed) != 0
}

/// Announces that the program is about to sleep until its notification descriptor is readable.
/// Returns false, and revokes the announcement, if there are events. Call [`cancel_sleep`] after
/// the sleep.
pub fn prepare_sleep(channel: &Channel) -> bool {
    protocol::doze(&channel.header().sleeping, || !events_waiting(channel))
}

/// Ends a program's sleep. The engine sends no further notification.
pub fn cancel_sleep(channel: &Channel) {
    channel.header().sleeping.store(0, Ordering::Relaxed);
}

/// Returns whether the engine no longer serves this channel. Called by programs.
#[inline]
pub fn has_ended(channel: &Channel) -> bool {
    channel.header().ended.load(Ordering::Acquire) != 0
}

/// Error: the program wrote an invalid ring position. The engine cannot use the channel any more.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct ChannelError;

impl std::fmt::Display for ChannelError {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("a program wrote an impossible ring position")
    }
}

impl std::error::Error for ChannelError {}

impl From<BadPosition> for ChannelError {
    fn from(_: BadPosition) -> Self {
        Self
    }
}

/// Position in a program's event ring of a slot's last event. The default means that the slot had
/// no event.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct LastEvent(u32);

/// The engine's side of a channel: it reads commands and writes events. Its own positions in the
/// rings are in private memory.
///
/// ```
/// use towpath_ring::{Channel, EngineChannel, LastEvent, pop_event, push_command};
/// use towpath_shm::layout::{Command, event, op};
///
/// let channel = Channel::create()?;
/// let mut engine = EngineChannel::new(channel.clone());
/// push_command(&channel, &Command { op: op::TX, slot: 7, ..Command::default() })?;
/// assert_eq!(engine.pop_command()?.map(|command| command.slot), Some(7));
/// assert_eq!(engine.pop_command()?, None);
///
/// // Events of a socket that the program has not taken yet are merged.
/// let mut last = LastEvent::default();
/// engine.push_event(7, event::RX, &mut last)?;
/// engine.push_event(7, event::TX, &mut last)?;
/// assert_eq!(pop_event(&channel), Some((7, event::RX | event::TX)));
/// assert_eq!(pop_event(&channel), None);
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[derive(Debug)]
pub struct EngineChannel {
    channel: Channel,
    command_head: u32,
    event_tail: u32,
    lost: u64,
    /// Number of commands that were in the ring at the last [`EngineChannel::mark`] and are not yet
    /// taken. The field is a count because a position would be reached again after 2^32 commands.
    before_mark: u32,
    calls: Calls,
}

impl EngineChannel {
    /// Creates the engine's side of a channel. The channel must be unused, because positions start
    /// at 0.
    pub fn new(channel: Channel) -> Self {
        let calls = Calls::default();
        Self { channel, command_head: 0, event_tail: 0, lost: 0, before_mark: 0, calls }
    }

    /// Returns the channel.
    pub fn channel(&self) -> &Channel {
        &self.channel
    }

    /// Returns whether the ring has commands. Also returns true for invalid positions, which
    /// [`EngineChannel::pop_command`] reports.
    pub fn has_commands(&self) -> bool {
        self.channel.header().command_tail.load(Ordering::Acquire) != self.command_head
    }

    /// Returns whether there is a new request. Returns false while the previous one is not
    /// answered. Commands that the program sent before the request are already in the ring.
    pub fn is_asked(&self) -> bool {
        self.calls.is_asked(&self.channel)
    }

    /// Copies the program's request. The caller must validate it.
    pub fn take_request(&mut self) -> Option<Box<Request>> {
        self.calls.take(&self.channel)
    }

    /// Writes the reply to the last request, unless it is already answered.
    pub fn answer(&mut self, reply: &ControlReply) {
        self.calls.answer(&self.channel, reply);
    }

    /// Tells the program that the engine does not serve it any more. Commands up to the last
    /// [`EngineChannel::mark`] may still be processed. Dropping this value has the same effect.
    pub fn end(&self) {
        self.channel.header().ended.store(1, Ordering::Release);
        call::wake(self.channel.request_slot());
    }

    /// Records the current end of the command ring. The reply to a request may have to wait until
    /// all commands up to there are processed.
    pub fn mark(&mut self) {
        let end = self.channel.header().command_tail.load(Ordering::Acquire);
        let left = end.wrapping_sub(self.command_head);
        self.before_mark = if left <= COMMANDS_MAX { left } else { 0 };
    }

    /// Returns whether commands that were in the ring at the last [`EngineChannel::mark`] are not
    /// yet taken. [`EngineChannel::pop_command`] reports invalid positions.
    pub fn is_behind_mark(&self) -> bool {
        self.before_mark != 0
    }

    /// Copies the next command; `None` if there is none. The caller must validate it, because the
    /// program may have written any bytes.
    ///
    /// # Errors
    /// Returns [`ChannelError`] if the program's position is invalid: more than [`COMMANDS_MAX`]
    /// commands wait, or fewer than [`EngineChannel::mark`] has recorded.
    pub fn pop_command(&mut self) -> Result<Option<Command>, ChannelError> {
        let header = self.channel.header();
        let (head, tail) = (&header.command_head, &header.command_tail);
        let read = |index| self.channel.read_command(index);
        let command = protocol::consume(head, tail, self.command_head, COMMANDS_MAX, read)?;
        match command {
            Some(_) => {
                self.command_head = self.command_head.wrapping_add(1);
                self.before_mark = self.before_mark.saturating_sub(1);
            }
            None if self.is_behind_mark() => return Err(ChannelError),
            None => {}
        }
        Ok(command)
    }

    /// Reports an event of a slot (below [`SLOTS_MAX`](towpath_shm::layout::SLOTS_MAX)) to the
    /// program. `bits` are defined in [`towpath_shm::layout::event`]. If the slot's last event is
    /// still in the ring, the bits are added to it. `last` is the position of this event, which the
    /// caller keeps per slot and program. If the ring is full, the event is dropped, and the
    /// program has to check all of its sockets ([`take_events_lost`]). Call [`EngineChannel::ring`]
    /// once after all events.
    ///
    /// # Errors
    /// Returns [`ChannelError`] if the program's position is invalid, so that more than
    /// [`EVENTS_MAX`] events would be in the ring.
    pub fn push_event(
        &mut self,
        slot: u32,
        bits: u8,
        last: &mut LastEvent,
    ) -> Result<(), ChannelError> {
        let header = self.channel.header();
        let (head, tail) = (&header.event_head, &header.event_tail);
        let entry = event::entry(slot, bits);
        if self.is_waiting(*last) {
            let place = self.channel.event(last.0 & (EVENTS_MAX - 1));
            let is_it = |there| there != 0 && event::parts(there).0 == slot;
            if protocol::amend(place, is_it, entry) {
                return Ok(());
            }
        }
        let write = |index| self.channel.event(index).store(entry, Ordering::Relaxed);
        if protocol::produce(head, tail, self.event_tail, EVENTS_MAX, write)? {
            *last = LastEvent(self.event_tail);
            self.event_tail = self.event_tail.wrapping_add(1);
        } else {
            header.events_lost.store(1, Ordering::Release);
            self.lost += 1;
        }
        Ok(())
    }

    /// Returns whether an event is probably still in the ring. The program may be taking it
    /// concurrently, so only the entry itself shows this with certainty. False avoids reading the
    /// entry's cache line.
    #[inline]
    fn is_waiting(&self, last: LastEvent) -> bool {
        let head = self.channel.header().event_head.load(Ordering::Relaxed);
        let before = self.event_tail.wrapping_sub(1);
        before.wrapping_sub(last.0) < self.event_tail.wrapping_sub(head)
    }

    /// Wakes the program if it sleeps. Call it once after adding events.
    pub fn ring(&self, doorbell: BorrowedFd<'_>) {
        if protocol::rouse(&self.channel.header().sleeping) {
            notification::toll(doorbell);
        }
    }

    /// Returns the number of events that were lost because the ring was full.
    pub fn events_lost(&self) -> u64 {
        self.lost
    }
}

impl Drop for EngineChannel {
    fn drop(&mut self) {
        self.end();
    }
}

#[cfg(all(test, not(loom)))]
mod tests {
    use super::*;

    fn command(n: u32) -> Command {
        Command { op: 1, slot: n, ..Command::default() }
    }

    #[test]
    fn commands_arrive_in_order_and_the_ring_fills() {
        let channel = Channel::create().unwrap();
        let mut engine = EngineChannel::new(channel.clone());
        for round in 0..3 {
            for n in 0..COMMANDS_MAX {
                push_command(&channel, &command(n + round)).unwrap();
            }
            assert_eq!(push_command(&channel, &command(0)), Err(Full));
            for n in 0..COMMANDS_MAX {
                assert_eq!(engine.pop_command().unwrap().unwrap().slot, n + round);
            }
            assert_eq!(engine.pop_command(), Ok(None));
            assert!(!engine.has_commands());
        }
    }

    #[test]
    fn impossible_positions_are_noticed() {
        let channel = Channel::create().unwrap();
        let mut engine = EngineChannel::new(channel.clone());
        channel.header().command_tail.store(COMMANDS_MAX + 1, Ordering::Relaxed);
        assert_eq!(engine.pop_command(), Err(ChannelError));
        channel.header().command_tail.store(u32::MAX, Ordering::Relaxed);
        assert_eq!(engine.pop_command(), Err(ChannelError));
        channel.header().event_head.store(1, Ordering::Relaxed);
        assert_eq!(engine.push_event(3, 1, &mut LastEvent::default()), Err(ChannelError));
    }

    #[test]
    fn commands_that_are_taken_back_are_noticed() {
        let channel = Channel::create().unwrap();
        let mut engine = EngineChannel::new(channel.clone());
        (0..3).for_each(|n| push_command(&channel, &command(n)).unwrap());
        engine.mark();
        channel.header().command_tail.store(1, Ordering::Relaxed);
        assert_eq!(engine.pop_command().map(|command| command.map(|it| it.slot)), Ok(Some(0)));
        assert!(engine.is_behind_mark());
        assert_eq!(engine.pop_command(), Err(ChannelError));
    }

    #[test]
    fn a_mark_that_was_passed_is_no_mark_when_positions_come_again() {
        let channel = Channel::create().unwrap();
        let mut engine = EngineChannel::new(channel.clone());
        push_command(&channel, &command(0)).unwrap();
        engine.mark();
        assert!(engine.pop_command().unwrap().is_some());
        // Simulate that almost 2^32 commands were taken in between.
        engine.command_head = 0u32.wrapping_sub(500);
        channel.header().command_tail.store(engine.command_head, Ordering::Relaxed);
        assert!(!engine.is_behind_mark());
        assert_eq!(engine.pop_command(), Ok(None));
    }

    #[test]
    fn events_coalesce_and_losses_are_told() {
        let channel = Channel::create().unwrap();
        let mut engine = EngineChannel::new(channel.clone());
        let mut last = [LastEvent::default(); 3];
        engine.push_event(5, 1, &mut last[0]).unwrap();
        engine.push_event(6, 2, &mut last[1]).unwrap();
        engine.push_event(5, 4, &mut last[0]).unwrap();
        assert_eq!(pop_event(&channel), Some((5, 5)));
        engine.push_event(5, 8, &mut last[0]).unwrap();
        engine.push_event(6, 4, &mut last[1]).unwrap();
        assert_eq!(pop_event(&channel), Some((6, 6)));
        assert_eq!(pop_event(&channel), Some((5, 8)));
        assert_eq!(pop_event(&channel), None);
        for slot in 0..=EVENTS_MAX {
            engine.push_event(slot, 1, &mut last[2]).unwrap();
        }
        assert_eq!(engine.events_lost(), 1);
        assert!(take_events_lost(&channel) && !take_events_lost(&channel));
        assert_eq!(std::iter::from_fn(|| pop_event(&channel)).count() as u32, EVENTS_MAX);
        // The event that did not fit can be reported again.
        engine.push_event(EVENTS_MAX, 2, &mut last[2]).unwrap();
        assert_eq!(pop_event(&channel), Some((EVENTS_MAX, 2)));
    }

    /// Tests that a newer event in the same place of the ring is not mistaken for a slot's last
    /// event. Tests also the event at the same position, 2^32 events later.
    #[test]
    fn an_event_is_not_taken_for_another_one_at_its_place() {
        let channel = Channel::create().unwrap();
        let mut engine = EngineChannel::new(channel.clone());
        let mut last = [LastEvent::default(); 2];
        engine.push_event(9, 1, &mut last[0]).unwrap();
        assert_eq!(pop_event(&channel), Some((9, 1)));
        for slot in 10..10 + EVENTS_MAX {
            engine.push_event(slot, 2, &mut last[1]).unwrap();
        }
        // The entry of the first event now contains another slot's event, although the position of
        // the first event seems to be current.
        engine.event_tail = EVENTS_MAX;
        channel.header().event_tail.store(EVENTS_MAX, Ordering::Relaxed);
        channel.header().event_head.store(0, Ordering::Relaxed);
        assert!(engine.is_waiting(last[0]));
        engine.push_event(9, 4, &mut last[0]).unwrap();
        assert_eq!(engine.events_lost(), 1);
        let all = std::iter::from_fn(|| pop_event(&channel));
        assert!(all.into_iter().all(|(slot, bits)| slot >= 10 && bits == 2));
    }

    #[test]
    fn only_a_sleeper_is_rung() {
        let channel = Channel::create().unwrap();
        let mut engine = EngineChannel::new(channel.clone());
        let (ours, theirs) = notification::pair().unwrap();
        let (ours, theirs) = (std::os::fd::AsFd::as_fd(&ours), std::os::fd::AsFd::as_fd(&theirs));
        engine.push_event(1, 1, &mut LastEvent::default()).unwrap();
        engine.ring(ours);
        assert!(!notification::clear(theirs));
        assert!(!prepare_sleep(&channel));
        pop_event(&channel);
        assert!(prepare_sleep(&channel));
        engine.push_event(1, 1, &mut LastEvent::default()).unwrap();
        engine.ring(ours);
        assert!(notification::clear(theirs));
    }
}
