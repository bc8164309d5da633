//! Queries of other threads: a shard is asked, and answers in pieces.

use crate::mail::{Order, Query, Told};
use crate::net::Applied;
use crate::registry::Registry;
use crate::registry::pending::Asked;
use crate::remote::Wish;
use crate::report::{Counters, Left};

impl Registry {
    pub(crate) fn grant_wishes(&mut self) {
        for wish in self.remote.take() {
            match wish {
                Wish::Stop => {
                    // Data that programs have sent before goes out. All shards take part in the
                    // query, so that none ends before.
                    self.stopped = true;
                    self.query(Query::Nothing, Asked::Stop);
                }
                // The answer's sender is dropped, so its receiver learns that there is none.
                Wish::Attach(_) if self.stopped => {}
                Wish::Attach(answer) => match self.attach() {
                    Ok(theirs) => drop(answer.send(Ok(theirs))),
                    // Processes that have ended leave room for the new one, once the shards have
                    // done all earlier work.
                    Err(_) => self.query(Query::Nothing, Asked::Attach(answer)),
                },
                Wish::Sockets(answer) => {
                    self.query(Query::Sockets, Asked::Sockets(Vec::new(), answer));
                }
                Wish::Counters(answer) => {
                    self.query(Query::Counters, Asked::Counters(Counters::default(), answer));
                }
                Wish::Net(answer) => self.query(Query::Net, Asked::Net(None, Vec::new(), answer)),
                Wish::Apply(changes, answer) => {
                    let applied = Applied { changes: changes.len() };
                    let number = self.ask_of(1, Asked::Apply(applied, None, answer));
                    self.orders[0].push(Order::Apply(number, changes));
                }
                Wish::Rules(answer) => {
                    let number = self.ask_of(1, Asked::Rules(None, answer));
                    self.orders[0].push(Order::Rules(number));
                }
                Wish::SetRules(rules, answer) => {
                    let applied = Applied { changes: 1 };
                    let number = self.ask_of(1, Asked::Apply(applied, None, answer));
                    self.orders[0].push(Order::SetRules(number, rules));
                }
                Wish::Left(answer) => self.query(Query::Unsent, Asked::Left(0, answer)),
            }
        }
    }

    /// The shards end their loops.
    pub(crate) fn stop(&mut self) {
        self.stopped = true;
        self.tell_all(|| Order::Stop);
    }

    fn query(&mut self, query: Query, asked: Asked) {
        let number = self.ask_of(self.shards(), asked);
        self.tell_all(|| Order::Query(number, query));
    }

    /// The number under which so many shards will tell.
    fn ask_of(&mut self, shards: usize, asked: Asked) -> u64 {
        let number = self.queries.count;
        self.queries.count += 1;
        self.queries.asked.insert(number, (shards, asked));
        number
    }

    pub(crate) fn told(&mut self, number: u64, told: Told) {
        let Some((mut due, mut asked)) = self.queries.asked.remove(&number) else { return };
        due -= usize::from(!matches!(told, Told::Some(_)));
        match (&mut asked, told) {
            (Asked::Sockets(all, _), Told::Some(more) | Told::Last(more)) => all.extend(more),
            (Asked::Counters(all, _), Told::Counters(counters)) => all.add(*counters),
            (Asked::Left(all, _), Told::Unsent(unsent)) => *all += unsent,
            (Asked::Net(first, _, _), Told::Net(state)) => *first = Some(state),
            (Asked::Net(_, others, _), Told::Traffic(traffic)) => others.push(traffic),
            (Asked::Apply(_, refused, _), Told::Applied(result)) => *refused = result.err(),
            (Asked::Rules(set, _), Told::Rules(told)) => *set = told,
            (Asked::Attach(_) | Asked::Stop | Asked::Known(..), Told::Nothing) => {}
            (asked, told) => debug_assert!(false, "{told:?} is no answer to {asked:?}"),
        }
        if due > 0 {
            self.queries.asked.insert(number, (due, asked));
            return;
        }
        match asked {
            Asked::Sockets(all, to) => drop(to.send(all)),
            Asked::Counters(mut counters, to) => {
                self.add_counters(&mut counters);
                drop(to.send(counters));
            }
            Asked::Attach(_) if self.stopped => {}
            Asked::Attach(to) => {
                let attached = self.attach();
                self.counters.channels_refused += u64::from(attached.is_err());
                drop(to.send(attached));
            }
            Asked::Stop => self.stop(),
            Asked::Net(state, others, to) => {
                let Some(mut state) = state else { return };
                others.iter().for_each(|traffic| state.add(traffic));
                drop(to.send(*state));
            }
            Asked::Apply(_, Some(refused), to) => drop(to.send(Err(refused))),
            // A shard that has answered goes by what there was before it was asked.
            Asked::Apply(applied, None, to) => {
                self.query(Query::Nothing, Asked::Known(applied, to));
            }
            Asked::Rules(set, to) => drop(to.send(set)),
            Asked::Known(applied, to) => drop(to.send(Ok(applied))),
            Asked::Left(unsent, to) => drop(to.send(Left { processes: self.len(), unsent })),
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
