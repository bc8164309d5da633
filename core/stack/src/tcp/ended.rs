//! Connections that have ended, or that lost their socket.

use std::collections::BTreeMap;

use towpath_tcp::{Info, State};

/// Sockets without a connection, and connections without a socket.
#[derive(Debug, Default)]
pub(crate) struct EndedParts {
    /// Number of connections whose socket was closed.
    pub orphans: usize,
    /// Statistics of ended connections, by the index of their socket. As on Linux, TCP_INFO returns
    /// them until the program closes the socket.
    infos: BTreeMap<u32, Box<Info>>,
}

impl EndedParts {
    /// Stores the statistics of a connection that has just ended. Nothing is in flight any more.
    pub fn keep(&mut self, index: u32, info: Info) {
        let info =
            Info { state: State::Closed, unacked: 0, sacked: 0, lost: 0, retrans: 0, ..info };
        self.infos.insert(index, Box::new(info));
    }

    /// Returns the statistics of the last connection of a socket.
    pub fn info(&self, index: u32) -> Option<Info> {
        self.infos.get(&index).map(|info| **info)
    }

    /// Removes the statistics of a socket that is closed or used again.
    pub fn forget(&mut self, index: u32) {
        if !self.infos.is_empty() {
            self.infos.remove(&index);
        }
    }
}
