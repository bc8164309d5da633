//! When the packets of a capture begin to come.

use towpath_replay::Start;
use towpath_stack::{ReceiverChange, ReceiverWatch};

/// Starts a replay with the first socket that its packets can reach. A program takes a moment to
/// start, and packets that come before are lost on it.
#[derive(Debug)]
pub(crate) struct StartWatch(pub Start);

impl ReceiverWatch for StartWatch {
    fn on_change(&self, change: &ReceiverChange) {
        if change.takes.is_some_and(|at| !at.is_loopback()) {
            self.0.start();
        }
    }
}
