//! Handles requests of other threads of the engine's process: forwards queries to the shards, and
//! returns their answers.

use crate::mail::ShardCommand;
use crate::query::ShardJob;
use crate::registry::Registry;
use crate::remote::{RegistryState, RemoteRequest};

impl Registry {
    pub(crate) fn handle_remote_requests(&mut self) {
        for request in self.remote.take() {
            match request {
                RemoteRequest::Stop => self.begin_stop(),
                // Drop the sender without a reply. The thread that waits for the reply then gets an
                // error.
                RemoteRequest::Attach { .. } if self.stopped => {}
                RemoteRequest::Attach { is_last, answer } => {
                    let attached = self.attach();
                    self.counters.channels_refused += u64::from(is_last && attached.is_err());
                    drop(answer.send(attached));
                }
                RemoteRequest::Query(queries) => {
                    for (orders, query) in self.orders.iter_mut().zip(queries) {
                        orders.push(ShardCommand::Job(ShardJob::Ask(query)));
                    }
                }
                RemoteRequest::Work(work) => self.orders[0].push(ShardCommand::Work(work)),
                RemoteRequest::State(answer) => drop(answer.send(self.state())),
            }
        }
    }

    /// Makes all shards send the remaining data of programs before the engine stops. The shards run
    /// until the last one has sent its data.
    fn begin_stop(&mut self) {
        if std::mem::replace(&mut self.stopped, true) {
            return;
        }
        self.to_settle = self.shards();
        self.tell_all(|| ShardCommand::Job(ShardJob::Settle));
    }

    /// Ends the event loops of all shards.
    pub(crate) fn stop(&mut self) {
        self.stopped = true;
        self.tell_all(|| ShardCommand::Stop);
    }

    /// Records that a shard (event loop) has sent its remaining data. Stops all shards if it was
    /// the last one.
    pub(crate) fn on_settled(&mut self) {
        self.to_settle -= 1;
        if self.to_settle == 0 {
            self.stop();
        }
    }

    /// Returns the registry's part of an answer: processes and counters.
    pub(crate) fn state(&self) -> RegistryState {
        let (processes, closing) = (self.len(), self.closer.waiting() as u64);
        let own = [("channels", processes as u64), ("descriptors_to_close", closing)];
        let counters = self.counters.list().into_iter().chain(own).collect();
        RegistryState { processes, counters }
    }
}
