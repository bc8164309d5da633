//! Processes of a run, as a shard knows them. Each is identified by its channel.

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

use crate::config::ResolverConfig;
use crate::ids::ChannelId;
use crate::mail::ShardReport;
use crate::shard::processes::channels::Channels;
use crate::shard::processes::leaving::Leaving;
use crate::shard::processes::owners::Owners;

/// The processes of a run, and the sockets that each of them has.
#[derive(Debug, Default)]
pub(crate) struct Processes {
    /// Whether the engine has no programs, as in a router. Commands, descriptors and sockets of
    /// programs then need no checks.
    pub are_excluded: bool,
    pub channels: Channels,
    /// Checks and signals processes that own sockets (F_SETOWN of fcntl(2)) and may get SIGURG.
    pub owners: Owners,
    /// Total number of references that processes have to sockets. A socket counts once for each
    /// process that has it.
    pub holds: usize,
    /// Maximum number of references to sockets that queued batches may still add. The limit on
    /// references includes them already.
    pub promised: usize,
    /// Processes with an incomplete batch of work. A channel ID may have been reused, so processes
    /// without a batch are skipped.
    pub to_continue: VecDeque<ChannelId>,
    /// Clones (channels for new processes) whose processes have not begun, with their deadlines.
    /// After its deadline, a clone does not get further sockets that its parent opens.
    pub to_disinherit: VecDeque<(Instant, ChannelId)>,
    /// Channels of executed programs that have not sent HELLO, with their deadlines. After its
    /// deadline, a program keeps only the sockets that it inherited.
    pub to_restrict: VecDeque<(Instant, ChannelId)>,
    /// Reports to be sent to the registry, in order.
    pub notices: Vec<ShardReport>,
    pub departure: Departure,
    /// Nameserver that programs find in /etc/resolv.conf.
    pub resolver: Option<ResolverConfig>,
}

/// State of the wait until the data of ended processes is sent, before the engine ends.
#[derive(Debug, Default)]
pub(crate) struct Departure {
    /// Number of the registry's request to report when the data is sent. The registry sends it when
    /// no process is left, or when the process that contains the engine has ended. `None`: there is
    /// no wait.
    pub number: Option<u64>,
    /// Progress of sending the data. `None` before unsent data was first counted.
    pub progress: Option<Leaving>,
    /// Sockets whose data must be sent before the engine ends. `None`: all sockets.
    pub left_behind: Option<Vec<SocketId>>,
    /// Time without progress after which the unsent data of a stream is discarded.
    pub stalled: Duration,
}

impl Processes {
    /// Returns whether the next turn of the event loop has work for processes.
    pub fn has_more(&self) -> bool {
        !self.to_continue.is_empty() || !self.channels.to_cut_off.is_empty()
    }

    /// Returns the time of the earliest deadline of a process. `None`: there is none.
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
    /// Returns the time at which unsent data must be counted next. `None`: there is no wait.
    fn next_timeout(&self) -> Option<Instant> {
        self.number.and(self.progress).map(|leaving| leaving.next(self.stalled))
    }

    /// Cancels the wait for unsent data, because a process has attached again.
    pub fn cancel(&mut self) {
        (self.number, self.progress) = (None, None);
    }
}
