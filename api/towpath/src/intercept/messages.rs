//! Queue of echo requests, or of ICMP errors about datagrams, until the program reads them.

use std::collections::VecDeque;
use std::net::IpAddr;

use super::client::{ClientKey, ClientShares};
use super::counters::InterceptCounters;
use super::limits::InterceptLimits;

/// Queue of messages, with a limit in total and for each source.
#[derive(Debug)]
pub(super) struct MessageQueue<T> {
    queue: VecDeque<(ClientKey, T)>,
    per_client: ClientShares,
}

impl<T> Default for MessageQueue<T> {
    fn default() -> Self {
        Self { queue: VecDeque::new(), per_client: ClientShares::default() }
    }
}

impl<T> MessageQueue<T> {
    /// Queues a message. If a limit is reached, drops and counts it.
    pub(super) fn push(
        &mut self,
        source: IpAddr,
        message: T,
        limits: &InterceptLimits,
        counters: &mut InterceptCounters,
    ) {
        let client = ClientKey::of(source);
        if self.queue.len() >= limits.messages {
            counters.over_messages += 1;
        } else if self.per_client.used(client) >= limits.messages_per_source {
            counters.over_messages_per_source += 1;
        } else {
            self.per_client.add(client, 1);
            self.queue.push_back((client, message));
        }
    }

    pub(super) fn pop(&mut self) -> Option<T> {
        let (client, message) = self.queue.pop_front()?;
        self.per_client.sub(client, 1);
        Some(message)
    }

    pub(super) fn is_empty(&self) -> bool {
        self.queue.is_empty()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_source_leaves_messages_for_others() {
        let limits =
            InterceptLimits { messages: 5, messages_per_source: 3, ..InterceptLimits::default() };
        let (mut queue, mut counters) = (MessageQueue::default(), InterceptCounters::default());
        for source in [1, 2] {
            for number in 0..4 {
                queue.push([192, 0, 2, source].into(), (source, number), &limits, &mut counters);
            }
        }
        assert_eq!((counters.over_messages_per_source, counters.over_messages), (1, 2));
        let taken: Vec<_> = std::iter::from_fn(|| queue.pop()).collect();
        assert_eq!(taken, [(1, 0), (1, 1), (1, 2), (2, 0), (2, 1)]);
        queue.push([192, 0, 2, 1].into(), (1, 4), &limits, &mut counters);
        assert_eq!(queue.pop(), Some((1, 4)));
    }
}
