//! Requests that are not answered yet: what they wait for.

use std::collections::VecDeque;
use std::os::fd::OwnedFd;

use towpath_shm::control::Request;
use towpath_tcp::Instant;

use crate::ids::ChannelId;

/// How a request came, and its answer goes.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum By {
    /// The channel's cell.
    Cell,
    /// The control socket.
    Socket,
}

/// The source of a request.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Asker {
    /// A process that has a [request](crate::shard::channels::Attached::request), by its channel and that one's
    /// [serial number](crate::shard::channels::Attached::serial).
    Process(ChannelId, u64),
    /// Another thread of this process: `towpath ss`, for one.
    Remote,
}

/// Sources of requests that have not been answered, each of them once.
#[derive(Debug, Default)]
pub(crate) struct Rounds {
    /// Processes that may have asked, each of them once.
    pub heard: VecDeque<ChannelId>,
    /// Those of this round.
    pub now: VecDeque<Asker>,
    /// It has begun; it does not before the descriptors were looked at.
    pub has_begun: bool,
    /// Those that came later.
    pub next: VecDeque<Asker>,
    /// What [`Ends::begun`](crate::shard::ends::Ends::begun) was when this round began: the number of ends that have to be
    /// done before it is answered.
    pub ends: u64,
    /// [`Asker::Remote`] is in `now` or `next`.
    pub remote: bool,
}

impl Rounds {
    pub fn is_empty(&self) -> bool {
        self.heard.is_empty() && self.now.is_empty() && self.next.is_empty()
    }

    /// A round is to begin, before which the descriptors have to be looked at.
    pub fn is_due(&self) -> bool {
        let asks = !self.now.is_empty() || !self.next.is_empty();
        asks && !self.has_begun
    }

    /// The descriptors are about to be looked at: a round of those who have asked by now may begin afterwards. Who has
    /// ended before they asked is found then.
    pub fn gather(&mut self) {
        if !self.has_begun {
            self.now.append(&mut self.next);
        }
    }
}

/// Processes whose requests wait for descriptors.
#[derive(Debug, Default)]
pub(crate) struct Waiting {
    /// With the time at which it is looked no longer whether there are some. Numbers of channels are used
    /// again: see [`Asking::until`].
    pub channels: Vec<(Instant, ChannelId)>,
    pub look_at: Option<Instant>,
}

/// A request that waits for descriptors.
#[derive(Debug)]
pub(crate) struct Asking {
    pub request: Box<Request>,
    pub until: Instant,
}

impl Waiting {
    /// When it is looked again whether there are descriptors.
    pub fn next(&self) -> Option<Instant> {
        self.look_at
    }
}

/// A request that is not answered before all sockets of its process were dealt with.
#[derive(Debug)]
pub(crate) enum Lengthy {
    Clone(Cloning),
    /// The process's end of the bell that we ring.
    Hello(OwnedFd),
}

/// A channel that is given what its parent holds.
#[derive(Debug)]
pub(crate) struct Cloning {
    pub clone: ChannelId,
    /// The clone's end of its control socket.
    pub control: OwnedFd,
    /// Its end of the bell that we ring.
    pub bell: OwnedFd,
    /// Holds that it may bring about.
    pub holds: usize,
}

/// Requests that go on.
#[derive(Debug, Default)]
pub(crate) struct LengthyRequests {
    /// Whose. Ids are used again: a process without such a request is passed over.
    pub queue: VecDeque<ChannelId>,
    /// Holds that all of them may bring about.
    pub holds: usize,
}

impl LengthyRequests {
    pub fn is_empty(&self) -> bool {
        self.queue.is_empty()
    }

    /// Holds that those which go on may bring about: some of them are there already.
    pub fn holds(&self) -> usize {
        self.holds
    }
}

impl Lengthy {
    /// Holds that it may bring about.
    pub fn holds(&self) -> usize {
        match self {
            Self::Clone(cloning) => cloning.holds,
            Self::Hello(_) => 0,
        }
    }
}
