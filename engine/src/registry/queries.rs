//! Queries of other threads: a shard is asked, and answers in pieces.

use crate::mail::{Query, QueryReply, ShardCommand};
use crate::net::Applied;
use crate::registry::Registry;
use crate::registry::pending::PendingQuery;
use crate::remote::RemoteRequest;
use crate::report::{Counters, Left};

impl Registry {
    pub(crate) fn grant_wishes(&mut self) {
        for wish in self.remote.take() {
            match wish {
                RemoteRequest::Stop => {
                    // Data that programs have sent before goes out. All shards take part in the
                    // query, so that none ends before.
                    self.stopped = true;
                    self.query(Query::Nothing, PendingQuery::Stop);
                }
                // The answer's sender is dropped, so its receiver learns that there is none.
                RemoteRequest::Attach(_) if self.stopped => {}
                RemoteRequest::Attach(answer) => match self.attach() {
                    Ok(theirs) => drop(answer.send(Ok(theirs))),
                    // Processes that have ended leave room for the new one, once the shards have
                    // done all earlier work.
                    Err(_) => self.query(Query::Nothing, PendingQuery::Attach(answer)),
                },
                RemoteRequest::Sockets(answer) => {
                    self.query(Query::Sockets, PendingQuery::Sockets(Vec::new(), answer));
                }
                RemoteRequest::Counters(answer) => {
                    self.query(
                        Query::Counters,
                        PendingQuery::Counters(Counters::default(), answer),
                    );
                }
                RemoteRequest::Net(answer) => {
                    self.query(Query::Net, PendingQuery::Net(None, Vec::new(), answer))
                }
                RemoteRequest::Apply(changes, answer) => {
                    let applied = Applied { changes: changes.len() };
                    let number = self.ask_of(1, PendingQuery::Apply(applied, None, answer));
                    self.orders[0].push(ShardCommand::Apply(number, changes));
                }
                RemoteRequest::Rules(answer) => {
                    let number = self.ask_of(1, PendingQuery::Rules(None, answer));
                    self.orders[0].push(ShardCommand::Rules(number));
                }
                RemoteRequest::SetRules(rules, answer) => {
                    let applied = Applied { changes: 1 };
                    let number = self.ask_of(1, PendingQuery::Apply(applied, None, answer));
                    self.orders[0].push(ShardCommand::SetRules(number, rules));
                }
                RemoteRequest::Left(answer) => {
                    self.query(Query::Unsent, PendingQuery::Left(0, answer))
                }
            }
        }
    }

    /// The shards end their loops.
    pub(crate) fn stop(&mut self) {
        self.stopped = true;
        self.tell_all(|| ShardCommand::Stop);
    }

    fn query(&mut self, query: Query, asked: PendingQuery) {
        let number = self.ask_of(self.shards(), asked);
        self.tell_all(|| ShardCommand::Query(number, query));
    }

    /// The number under which so many shards will tell.
    fn ask_of(&mut self, shards: usize, asked: PendingQuery) -> u64 {
        let number = self.queries.count;
        self.queries.count += 1;
        self.queries.asked.insert(number, (shards, asked));
        number
    }

    pub(crate) fn told(&mut self, number: u64, told: QueryReply) {
        let Some((mut due, mut asked)) = self.queries.asked.remove(&number) else { return };
        due -= usize::from(!matches!(told, QueryReply::Some(_)));
        match (&mut asked, told) {
            (PendingQuery::Sockets(all, _), QueryReply::Some(more) | QueryReply::Last(more)) => {
                all.extend(more)
            }
            (PendingQuery::Counters(all, _), QueryReply::Counters(counters)) => all.add(*counters),
            (PendingQuery::Left(all, _), QueryReply::Unsent(unsent)) => *all += unsent,
            (PendingQuery::Net(first, _, _), QueryReply::Net(state)) => *first = Some(state),
            (PendingQuery::Net(_, others, _), QueryReply::Traffic(traffic)) => others.push(traffic),
            (PendingQuery::Apply(_, refused, _), QueryReply::Applied(result)) => {
                *refused = result.err()
            }
            (PendingQuery::Rules(set, _), QueryReply::Rules(told)) => *set = told,
            (
                PendingQuery::Attach(_) | PendingQuery::Stop | PendingQuery::Known(..),
                QueryReply::Nothing,
            ) => {}
            (asked, told) => debug_assert!(false, "{told:?} is no answer to {asked:?}"),
        }
        if due > 0 {
            self.queries.asked.insert(number, (due, asked));
            return;
        }
        match asked {
            PendingQuery::Sockets(all, to) => drop(to.send(all)),
            PendingQuery::Counters(mut counters, to) => {
                self.add_counters(&mut counters);
                drop(to.send(counters));
            }
            PendingQuery::Attach(_) if self.stopped => {}
            PendingQuery::Attach(to) => {
                let attached = self.attach();
                self.counters.channels_refused += u64::from(attached.is_err());
                drop(to.send(attached));
            }
            PendingQuery::Stop => self.stop(),
            PendingQuery::Net(state, others, to) => {
                let Some(mut state) = state else { return };
                others.iter().for_each(|traffic| state.add(traffic));
                drop(to.send(*state));
            }
            PendingQuery::Apply(_, Some(refused), to) => drop(to.send(Err(refused))),
            // A shard that has answered goes by what there was before it was asked.
            PendingQuery::Apply(applied, None, to) => {
                self.query(Query::Nothing, PendingQuery::Known(applied, to));
            }
            PendingQuery::Rules(set, to) => drop(to.send(set)),
            PendingQuery::Known(applied, to) => drop(to.send(Ok(applied))),
            PendingQuery::Left(unsent, to) => drop(to.send(Left { processes: self.len(), unsent })),
        }
    }

    /// Adds the registry's to those of the shards.
    pub(crate) fn add_counters(&self, to: &mut Counters) {
        let (processes, closing) = (self.len() as u64, self.closer.waiting() as u64);
        let own = [("channels", processes), ("descriptors_to_close", closing)];
        for (name, value) in self.counters.list().into_iter().chain(own) {
            if let Some((_, sum)) = to.engine.iter_mut().find(|(known, _)| *known == name) {
                *sum += value;
            }
        }
    }
}
