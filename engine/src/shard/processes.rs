//! The processes that use the engine, as recorded in a shard. Each is identified by its channel
//! (connection to the engine).

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

/// The processes that use the engine, with the sockets that each has open.
#[derive(Debug, Default)]
pub(crate) struct Processes {
    /// Whether the engine has no programs, as in a router. Commands, descriptors and sockets of
    /// programs then need no checks.
    pub are_excluded: bool,
    pub channels: Channels,
    /// Sends SIGURG to the owners of sockets (F_SETOWN of fcntl(2)), after checking that they may
    /// get it.
    pub owners: Owners,
    /// Total number of references from processes to sockets: a socket counts once for each process
    /// that has it open.
    pub holds: usize,
    /// Maximum number of socket references that unfinished CLONE requests may still add. The limit
    /// on references already includes them.
    pub promised: usize,
    /// Processes with an unfinished batch of work. Skip a process without one, because a channel ID
    /// may have been reused.
    pub to_continue: VecDeque<ChannelId>,
    /// Channels of new processes that have not begun, with deadlines. After the deadline, the new
    /// process gets no more sockets that its parent opens.
    pub to_disinherit: VecDeque<(Instant, ChannelId)>,
    /// Channels of executed programs that have not sent HELLO (first request of a program), with
    /// deadlines. After the deadline, such a program keeps only the sockets that it inherited.
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
    /// Number of the registry's request to report when the remaining data is sent. The registry
    /// (process manager) sends it when no process is left, or when the process that contains the
    /// engine has ended. `None` without such a request.
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
