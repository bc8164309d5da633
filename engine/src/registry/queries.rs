//! Requests of other threads: queries are passed on to the shards, and their answers back.

use crate::mail::ShardCommand;
use crate::query::ShardJob;
use crate::registry::Registry;
use crate::remote::{RegistryState, RemoteRequest};

impl Registry {
    pub(crate) fn handle_remote_requests(&mut self) {
        for request in self.remote.take() {
            match request {
                RemoteRequest::Stop => self.begin_stop(),
                // The answer's sender is dropped, so that its receiver learns that there is none.
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

    /// Lets the shards send the data that programs have sent before. All shards take part, so that
    /// no shard ends before the last one has.
    fn begin_stop(&mut self) {
        if std::mem::replace(&mut self.stopped, true) {
            return;
        }
        self.to_settle = self.shards();
        self.tell_all(|| ShardCommand::Job(ShardJob::Settle));
    }

    /// The shards end their loops.
    pub(crate) fn stop(&mut self) {
        self.stopped = true;
        self.tell_all(|| ShardCommand::Stop);
    }

    /// Handles a job that a shard has done.
    pub(crate) fn on_job_done(&mut self, job: ShardJob) {
        match job {
            ShardJob::Ask(query) => query.deliver(),
            ShardJob::Settle => {
                self.to_settle -= 1;
                if self.to_settle == 0 {
                    self.stop();
                }
            }
        }
    }

    /// Returns what the registry adds to the answers of the shards.
    pub(crate) fn state(&self) -> RegistryState {
        let (processes, closing) = (self.len(), self.closer.waiting() as u64);
        let own = [("channels", processes as u64), ("descriptors_to_close", closing)];
        let counters = self.counters.list().into_iter().chain(own).collect();
        RegistryState { processes, counters }
    }
}
