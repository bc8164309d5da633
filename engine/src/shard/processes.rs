//! The processes of a run as a shard knows them: by their channels.

pub(crate) mod batches;
pub(crate) mod channels;
mod ending;
mod fork_exec;
mod holds;
pub(crate) mod leaving;
mod linking;
pub(crate) mod owners;
mod signals;
mod wants;

use std::collections::VecDeque;
use std::time::Duration;

use towpath_stack::SocketId;
use towpath_tcp::Instant;

use crate::ids::ChannelId;
use crate::mail::ShardReport;
use crate::shard::processes::channels::Channels;
use crate::shard::processes::leaving::Leaving;
use crate::shard::processes::owners::Owners;

/// Processes, and the sockets that each of them holds.
#[derive(Debug, Default)]
pub(crate) struct Processes {
    /// The engine has no programs: there are no commands, descriptors or sockets to look at.
    pub are_excluded: bool,
    pub channels: Channels,
    /// Processes that may get SIGURG.
    pub owners: Owners,
    /// Number of holds of all processes: each socket counts as often as it has holders.
    pub holds: usize,
    /// Upper bound on holds that the queued batches may add; counts against the limit.
    pub promised: usize,
    /// Processes with a batch that is not complete. Ids are reused: one without a batch is skipped.
    pub to_continue: VecDeque<ChannelId>,
    /// Clones by the time until which their processes have to begin: after that they are no longer
    /// given the sockets that their parents open.
    pub to_disinherit: VecDeque<(Instant, ChannelId)>,
    /// Channels of programs that run and have not said HELLO, by the time until which they may:
    /// after that they hold what they inherit.
    pub to_restrict: VecDeque<(Instant, ChannelId)>,
    /// Notices for the registry, in order.
    pub notices: Vec<ShardReport>,
    pub departure: Departure,
}

/// The wait of a run for the data of processes that are gone.
#[derive(Debug, Default)]
pub(crate) struct Departure {
    /// Number under which the registry waits for the end of sending: there are no processes, or the
    /// engine ends with one that is gone.
    pub number: Option<u64>,
    /// State of the sending; `None` before the first count.
    pub progress: Option<Leaving>,
    /// The sockets that are waited for. `None`: all sockets.
    pub left_behind: Option<Vec<SocketId>>,
    /// Time after which a stream without progress is given up.
    pub stalled: Duration,
}

impl Processes {
    /// Whether the next turn has something to do.
    pub fn has_more(&self) -> bool {
        !self.to_continue.is_empty() || !self.channels.to_cut_off.is_empty()
    }

    /// Time of the earliest deadline.
    pub fn next_timeout(&self) -> Option<Instant> {
        let own = [
            self.to_disinherit.front().map(|(until, _)| *until),
            self.to_restrict.front().map(|(until, _)| *until),
            self.departure.next_timeout(),
        ];
        own.into_iter().flatten().min()
    }
}

impl Departure {
    /// Time at which the unsent data is counted next.
    fn next_timeout(&self) -> Option<Instant> {
        self.number.and(self.progress).map(|leaving| leaving.next(self.stalled))
    }

    /// Ends the wait: there is a process again.
    pub fn cancel(&mut self) {
        (self.number, self.progress) = (None, None);
    }
}
