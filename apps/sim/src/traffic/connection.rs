//! Connections of programs: how they begin and end, and the bytes that they carry.

use std::net::SocketAddr;

use towpath_direct::{SocketHandle, StreamOptions};
use towpath_tcp::CongestionKind;

use super::program::{ProgramContext, Tally};
use crate::scenario::{FlowPlan, LeaveKind};

/// Bytes that flows send, over and over: the other end compares.
pub(super) static PATTERN: [u8; 65_536] = {
    let mut bytes = [0; 65_536];
    let mut at = 0;
    while at < bytes.len() {
        // Knuth's multiplicative hash: no part looks like another one.
        bytes[at] = ((at as u32).wrapping_mul(2_654_435_761) >> 24) as u8;
        at += 1;
    }
    bytes
};

impl ProgramContext<'_> {
    /// A connection of the program to the far end of its flow.
    pub(super) fn connect(
        &mut self,
        remote: SocketAddr,
        congestion: CongestionKind,
    ) -> Result<SocketHandle, String> {
        let connection = self.node.connect_with(remote, &options(congestion));
        self.owned(connection.map_err(|error| error.to_string()))
    }

    /// A listener of the program, for one flow.
    pub(super) fn listen(
        &mut self,
        local: SocketAddr,
        congestion: CongestionKind,
    ) -> Result<SocketHandle, String> {
        let listener = self.node.listen_with(local, BACKLOG, &options(congestion));
        self.owned(listener.map_err(|error| error.to_string()))
    }

    /// The next connection of a listener.
    pub(super) fn accept(&mut self, listener: SocketHandle) -> Option<SocketHandle> {
        let child = self.node.accept(listener)?;
        self.own(child);
        Some(child)
    }

    /// Writes up to `left` bytes; returns how many the connection took.
    pub(super) fn write(&mut self, connection: SocketHandle, left: u64) -> u64 {
        let mut done = 0;
        while done < left {
            let n = (left - done).min(PATTERN.len() as u64) as usize;
            let Ok(written) = self.node.send(connection, &PATTERN[..n]) else { break };
            done += written as u64;
        }
        done
    }

    /// Ends a connection, whose figures stay in the tally.
    pub(super) fn leave(&mut self, tally: &mut Tally, connection: SocketHandle, how: LeaveKind) {
        tally.tcp = self.node.info(connection).and_then(|info| info.tcp).or(tally.tcp);
        match how {
            LeaveKind::Close => self.node.close(connection),
            LeaveKind::Reset => self.node.abort(connection),
        }
    }

    fn owned(&mut self, made: Result<SocketHandle, String>) -> Result<SocketHandle, String> {
        if let Ok(handle) = made {
            self.own(handle);
        }
        made
    }
}

/// Connections that may wait at a listener: a flow has one.
const BACKLOG: u32 = 16;

fn options(congestion: CongestionKind) -> StreamOptions {
    StreamOptions { congestion: Some(congestion), ..StreamOptions::default() }
}

/// The listener at the far end of a flow, which is there before the first SYN.
pub(super) struct FarEnd {
    local: SocketAddr,
    congestion: CongestionKind,
    due: u64,
}

impl FarEnd {
    pub fn new(flow: &FlowPlan, local: SocketAddr) -> Self {
        Self { local, congestion: flow.congestion, due: 0 }
    }

    /// Listens, when the time of [`FarEnd::due`] has come.
    pub fn on_timeout(&mut self, cx: &mut ProgramContext<'_>, tally: &mut Tally) {
        self.due = u64::MAX;
        tally.failure = cx.listen(self.local, self.congestion).err();
    }

    pub fn due(&self) -> u64 {
        self.due
    }
}
