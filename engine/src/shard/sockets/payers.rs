//! Accounts of programs, with which the stack distributes processor time for long work fairly.

use crate::ids::{ChannelId, Family};

/// Account of each process, by channel, to which the engine charges its work for the process.
/// Forked processes share the account of their parent, so a program does not get more processor
/// time by forking.
#[derive(Debug, Default)]
pub(crate) struct Payers(Vec<u64>);

impl Payers {
    /// Sets the account to which the work for a channel's process is charged.
    pub fn set(&mut self, id: ChannelId, family: Option<Family>) {
        let index = id.0 as usize;
        if index >= self.0.len() {
            self.0.resize(index + 1, 0);
        }
        self.0[index] = match family {
            Some(Family(number)) => number << 1 | 1,
            None => u64::from(id.number()) << 1,
        };
    }

    /// Returns the account to which the work for a channel's process is charged.
    pub fn of(&self, id: ChannelId) -> u64 {
        self.0.get(id.0 as usize).copied().unwrap_or(0)
    }
}
