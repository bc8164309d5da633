//! What other threads want to know: a shard is asked, and tells in pieces.

use crate::mail::{Order, Query, Told};
use crate::registry::Registry;
use crate::registry::pending::Asked;
use crate::remote::Wish;
use crate::report::{Counters, Left};

impl Registry {
    pub(crate) fn grant_wishes(&mut self) {
        for wish in self.remote.take() {
            match wish {
                Wish::Stop => self.stop(),
                Wish::Attach(answer) => drop(answer.send(self.attach())),
                Wish::Sockets(answer) => {
                    self.query(Query::Sockets, Asked::Sockets(Vec::new(), answer));
                }
                Wish::Counters(answer) => self.query(Query::Counters, Asked::Counters(answer)),
                Wish::Left(answer) => self.query(Query::Unsent, Asked::Left(answer)),
            }
        }
    }

    /// The shard ends its loop.
    pub(crate) fn stop(&mut self) {
        self.stopped = true;
        self.orders.push(Order::Stop);
    }

    fn query(&mut self, query: Query, asked: Asked) {
        let number = self.queries.count;
        self.queries.count += 1;
        self.queries.asked.insert(number, asked);
        self.orders.push(Order::Query(number, query));
    }

    pub(crate) fn told(&mut self, number: u64, told: Told) {
        let Some(asked) = self.queries.asked.remove(&number) else { return };
        match (asked, told) {
            (Asked::Sockets(mut all, to), Told::Some(some)) => {
                all.extend(some);
                self.queries.asked.insert(number, Asked::Sockets(all, to));
            }
            (Asked::Sockets(mut all, to), Told::Last(rest)) => {
                all.extend(rest);
                let _ = to.send(all);
            }
            (Asked::Counters(to), Told::Counters(mut counters)) => {
                self.add_counters(&mut counters);
                let _ = to.send(*counters);
            }
            (Asked::Left(to), Told::Unsent(unsent)) => {
                let _ = to.send(Left { processes: self.len(), unsent });
            }
            (asked, told) => debug_assert!(false, "{told:?} is no answer to {asked:?}"),
        }
    }

    /// Adds the registry's to a shard's.
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
