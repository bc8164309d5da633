//! Processes of a run, identified by their channels.

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

/// Processes, and the sockets that each of them holds.
#[derive(Debug, Default)]
pub(crate) struct Processes {
    /// Whether the engine has no programs. Then commands, descriptors and sockets need no checks.
    pub are_excluded: bool,
    pub channels: Channels,
    /// Processes that own sockets (F_SETOWN of fcntl(2)), and may get SIGURG.
    pub owners: Owners,
    /// Total number of holds: each socket counts once per holder.
    pub holds: usize,
    /// Upper bound on the holds that queued batches may still add. The limit on holds includes them
    /// already.
    pub promised: usize,
    /// Processes with an incomplete batch. Ids are reused, so ids whose process has no batch are
    /// skipped.
    pub to_continue: VecDeque<ChannelId>,
    /// Clones whose processes have not begun, with their deadlines. After its deadline, a clone no
    /// longer receives the sockets that its parent opens.
    pub to_disinherit: VecDeque<(Instant, ChannelId)>,
    /// Channels of running programs that have not sent HELLO, with their deadlines. After its
    /// deadline, a program keeps only the sockets that it inherited.
    pub to_restrict: VecDeque<(Instant, ChannelId)>,
    /// Reports to the registry, in order.
    pub notices: Vec<ShardReport>,
    pub departure: Departure,
    /// Nameserver that programs find in /etc/resolv.conf.
    pub resolver: Option<ResolverConfig>,
}

/// State of waiting until the data of ended processes is sent.
#[derive(Debug, Default)]
pub(crate) struct Departure {
    /// Number of the registry's request that this shard answers when the data is sent. A run waits
    /// when no process is left, or when the process that ends the engine has ended.
    pub number: Option<u64>,
    /// Progress of sending; `None` before the first count.
    pub progress: Option<Leaving>,
    /// Sockets whose data has to be sent. `None`: all sockets.
    pub left_behind: Option<Vec<SocketId>>,
    /// Time without progress after which the data of a stream is discarded.
    pub stalled: Duration,
}

impl Processes {
    /// Returns whether the next turn has work.
    pub fn has_more(&self) -> bool {
        !self.to_continue.is_empty() || !self.channels.to_cut_off.is_empty()
    }

    /// Returns the time of the earliest deadline.
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
    /// Returns the time at which unsent data is counted next.
    fn next_timeout(&self) -> Option<Instant> {
        self.number.and(self.progress).map(|leaving| leaving.next(self.stalled))
    }

    /// Cancels the wait, because a process has attached again.
    pub fn cancel(&mut self) {
        (self.number, self.progress) = (None, None);
    }
}
