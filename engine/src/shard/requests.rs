//! Handles commands and requests of programs, and queries of other threads.

pub(crate) mod commands;
mod diag;
pub(crate) mod listings;
mod ordering;
mod queries;
pub(crate) mod rounds;
mod socket_requests;

use std::collections::VecDeque;
use std::sync::Arc;

use crate::query::{ShardJob, ShardQuery};
use crate::shard::net::Net;
use crate::shard::peers::ShardPeers;
use crate::shard::processes::Processes;
use crate::shard::processes::channels::Channels;
use crate::shard::requests::rounds::Rounds;
use crate::shard::sockets::Sockets;

/// Requests that are not answered yet, and data for answers.
#[derive(Debug, Default)]
pub(crate) struct Requests {
    pub rounds: Rounds,
    /// Jobs to run after the next iteration of the stack.
    pub jobs: VecDeque<ShardJob>,
    /// Queries that need more iterations of the event loop, such as long listings.
    pub unfinished: VecDeque<Box<dyn ShardQuery>>,
    /// First slot of the next shard (event loop), where a program that lists all sockets continues.
    /// `None` for the last shard.
    pub next_shard: Option<u32>,
    /// Host names that programs can resolve, see [`crate::EngineConfig::names`].
    pub names: Arc<str>,
}

/// The parts of a shard (event loop) that are needed to handle requests.
pub(crate) struct RequestCx<'a> {
    pub net: &'a mut Net,
    pub sockets: &'a mut Sockets,
    pub processes: &'a mut Processes,
    pub peers: &'a ShardPeers,
}

/// The parts of a shard (event loop) that are read to list sockets and counters.
#[derive(Clone, Copy)]
pub(crate) struct ShardView<'a> {
    pub net: &'a Net,
    pub sockets: &'a Sockets,
    pub channels: &'a Channels,
}

impl Requests {
    /// Returns whether the next turn of the event loop has requests to handle.
    pub fn has_more(&self) -> bool {
        self.rounds.has_work() || !self.jobs.is_empty() || !self.unfinished.is_empty()
    }
}

impl RequestCx<'_> {
    pub fn view(&self) -> ShardView<'_> {
        ShardView { net: self.net, sockets: self.sockets, channels: &self.processes.channels }
    }
}
