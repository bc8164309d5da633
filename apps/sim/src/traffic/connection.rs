//! Functions with which programs connect, listen, write to a connection, and leave it.

use std::net::SocketAddr;

use towpath_direct::{SocketHandle, StreamOptions};
use towpath_tcp::CongestionKind;

use super::program::{ProgramContext, Tally};
use crate::scenario::{FlowPlan, LeaveKind};

/// Byte pattern that flows send repeatedly, so that the receiver can verify the data.
pub(super) static PATTERN: [u8; 65_536] = {
    let mut bytes = [0; 65_536];
    let mut at = 0;
    while at < bytes.len() {
        // Use Knuth's multiplicative hash, so that no part of the pattern equals another one.
        bytes[at] = ((at as u32).wrapping_mul(2_654_435_761) >> 24) as u8;
        at += 1;
    }
    bytes
};

impl ProgramContext<'_> {
    /// Opens a connection from the program to the destination of its flow.
    pub(super) fn connect(
        &mut self,
        remote: SocketAddr,
        congestion: CongestionKind,
    ) -> Result<SocketHandle, String> {
        let connection = self.node.connect_with(remote, &options(congestion));
        self.owned(connection.map_err(|error| error.to_string()))
    }

    /// Opens a listener for the connection of one flow.
    pub(super) fn listen(
        &mut self,
        local: SocketAddr,
        congestion: CongestionKind,
    ) -> Result<SocketHandle, String> {
        let listener = self.node.listen_with(local, BACKLOG, &options(congestion));
        self.owned(listener.map_err(|error| error.to_string()))
    }

    /// Accepts the next connection of a listener. `None` if there is none.
    pub(super) fn accept(&mut self, listener: SocketHandle) -> Option<SocketHandle> {
        let child = self.node.accept(listener)?;
        self.own(child);
        Some(child)
    }

    /// Writes up to `left` bytes to a connection. Returns the number of bytes that the connection
    /// accepted.
    pub(super) fn write(&mut self, connection: SocketHandle, left: u64) -> u64 {
        let mut done = 0;
        while done < left {
            let n = (left - done).min(PATTERN.len() as u64) as usize;
            let Ok(written) = self.node.send(connection, &PATTERN[..n]) else { break };
            done += written as u64;
        }
        done
    }

    /// Closes or resets a connection. The tally keeps the last TCP state of the connection.
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

/// Backlog of a listener. Each flow has only one connection.
const BACKLOG: u32 = 16;

fn options(congestion: CongestionKind) -> StreamOptions {
    StreamOptions { congestion: Some(congestion), ..StreamOptions::default() }
}

/// Listener at the destination of a flow, created before the first SYN arrives.
pub(super) struct FarEnd {
    local: SocketAddr,
    congestion: CongestionKind,
    due: u64,
}

impl FarEnd {
    pub fn new(flow: &FlowPlan, local: SocketAddr) -> Self {
        Self { local, congestion: flow.congestion, due: 0 }
    }

    /// Opens the listener. Called at the time returned by [`FarEnd::due`].
    pub fn on_timeout(&mut self, cx: &mut ProgramContext<'_>, tally: &mut Tally) {
        self.due = u64::MAX;
        tally.failure = cx.listen(self.local, self.congestion).err();
    }

    pub fn due(&self) -> u64 {
        self.due
    }
}
