//! Accounts of programs, by which the stack schedules long work fairly.

use crate::ids::{ChannelId, Family};

/// Accounts of programs. Forked processes share an account, because a program must not get more of
/// the engine's time by creating processes.
#[derive(Debug, Default)]
pub(crate) struct Payers(Vec<u64>);

impl Payers {
    /// Sets the account of a channel.
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

    /// Returns the account of a channel.
    pub fn of(&self, id: ChannelId) -> u64 {
        self.0.get(id.0 as usize).copied().unwrap_or(0)
    }
}
