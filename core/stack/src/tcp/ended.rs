//! TCP connections that have ended, or whose socket was closed.

use std::collections::BTreeMap;

use towpath_tcp::{Info, State};

/// Number of connections whose socket was closed, and statistics of connections that have ended.
#[derive(Debug, Default)]
pub(crate) struct EndedParts {
    /// Number of connections whose socket the program has closed.
    pub orphans: usize,
    /// Statistics of connections that have ended, by the index of their socket. As on Linux,
    /// TCP_INFO returns them until the program closes the socket.
    infos: BTreeMap<u32, Box<Info>>,
}

impl EndedParts {
    /// Stores the statistics of a connection that has just ended. All counts of segments in flight
    /// are set to 0.
    pub fn keep(&mut self, index: u32, info: Info) {
        let info =
            Info { state: State::Closed, unacked: 0, sacked: 0, lost: 0, retrans: 0, ..info };
        self.infos.insert(index, Box::new(info));
    }

    /// Returns the statistics of a socket's last connection, if it has ended.
    pub fn info(&self, index: u32) -> Option<Info> {
        self.infos.get(&index).map(|info| **info)
    }

    /// Removes the statistics of a socket that was closed or has a new connection.
    pub fn forget(&mut self, index: u32) {
        if !self.infos.is_empty() {
            self.infos.remove(&index);
        }
    }
}
