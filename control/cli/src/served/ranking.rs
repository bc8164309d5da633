//! Samples of sockets: finds those that have carried most bytes since the previous sample.

use std::cmp::Reverse;
use std::collections::HashMap;
use std::hash::{BuildHasher, RandomState};
use std::time::Instant;

use towpath_engine::SocketEntry;
use towpath_model::{ConnectionName, SampledSocket, SocketsSample, Subscription};

use super::convert::socket;

/// Identity of a socket: its slot, and a hash of its addresses. A slot is reused after its socket
/// was closed, but rarely for the same pair of addresses. Every subscriber has an entry for each
/// connection, so the addresses themselves would take much memory.
type SocketKey = (u32, u64);

/// Bytes of a connection that its peer has acknowledged, and bytes that it has received.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
struct CarriedBytes {
    acked: u64,
    received: u64,
}

impl CarriedBytes {
    fn of(entry: &SocketEntry) -> Self {
        let carried = |tcp: &towpath_engine::TcpFigures| Self {
            acked: tcp.bytes_acked,
            received: tcp.bytes_received,
        };
        entry.tcp.as_ref().map(carried).unwrap_or_default()
    }

    fn since(self, before: Self) -> Self {
        Self {
            acked: self.acked.saturating_sub(before.acked),
            received: self.received.saturating_sub(before.received),
        }
    }

    fn total(self) -> u64 {
        self.acked.saturating_add(self.received)
    }
}

/// Bytes that each connection had carried at the previous sample.
#[derive(Debug, Default)]
pub struct SocketRanking {
    before: HashMap<SocketKey, CarriedBytes>,
    hasher: RandomState,
    sampled_at: Option<Instant>,
}

impl SocketRanking {
    /// Returns a sample of the sockets, limited by the subscription.
    pub fn sample(
        &mut self,
        entries: Vec<SocketEntry>,
        now: Instant,
        wanted: &Subscription,
    ) -> SocketsSample {
        let is_somewhere = |it: &SocketEntry| it.local.is_some() || it.remote.is_some();
        let entries: Vec<_> = entries.into_iter().filter(is_somewhere).collect();
        let (total, is_first) = (entries.len() as u64, self.sampled_at.is_none());
        let mut carried = HashMap::new();
        let mut ranked = Vec::new();
        let is_wanted = |entry: &SocketEntry| {
            wanted.sockets_max > 0
                && wanted.connection.is_none_or(|only| is_connection(entry, only))
        };
        for entry in entries.into_iter().filter(is_wanted) {
            let now = CarriedBytes::of(&entry);
            let key = (entry.slot, self.hasher.hash_one((&entry.local, &entry.remote)));
            // A connection that was not there before has carried all its bytes in the period.
            let before = self.before.get(&key).copied().unwrap_or_default();
            let period = if is_first { CarriedBytes::default() } else { now.since(before) };
            if entry.tcp.is_some() {
                carried.insert(key, now);
            }
            ranked.push((period, now, entry));
        }
        self.before = carried;
        ranked.sort_by_key(|(period, now, _)| Reverse((period.total(), now.total())));
        ranked.truncate(wanted.sockets_max as usize);
        let list = ranked.iter().filter_map(|(period, _, entry)| {
            Some(SampledSocket {
                period_bytes_acked: period.acked,
                period_bytes_received: period.received,
                socket: socket(entry)?,
            })
        });
        let list = list.collect();
        let before = self.sampled_at.replace(now);
        let period = before.map(|before| now.saturating_duration_since(before));
        let period_us = period.map_or(0, |period| period.as_micros() as u64);
        SocketsSample { total, period_us, list }
    }
}

fn is_connection(entry: &SocketEntry, only: ConnectionName) -> bool {
    let is = |text: &Option<String>, wanted| {
        text.as_ref().and_then(|text| text.parse().ok()) == Some(wanted)
    };
    is(&entry.local, only.local) && is(&entry.remote, only.remote)
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use towpath_model::ReportTopic;

    use super::*;

    fn entry(slot: u32, remote: &str, acked: u64) -> SocketEntry {
        let tcp = crate::ss::samples::figures();
        SocketEntry {
            proto: "tcp",
            state: "ESTAB",
            recv_q: 0,
            send_q: 0,
            local: Some("10.0.0.1:80".to_owned()),
            remote: Some(remote.to_owned()),
            cwnd: 10,
            rtt_us: 100,
            congestion: None,
            tcp: Some(towpath_engine::TcpFigures { bytes_acked: acked, ..tcp }),
            pids: Vec::new(),
            recv_buffer: 0,
            send_buffer: 0,
            v6_only: false,
            device: None,
            slot,
        }
    }

    fn carried(sample: &SocketsSample) -> Vec<(u32, u64)> {
        let one = |it: &SampledSocket| (it.socket.slot.unwrap_or(u32::MAX), it.period_bytes_acked);
        sample.list.iter().map(one).collect()
    }

    #[test]
    fn the_busiest_connections_of_the_period_come_first() {
        let (mut ranking, start) = (SocketRanking::default(), Instant::now());
        let mut wanted = Subscription::to(&[ReportTopic::Sockets]);
        wanted.sockets_max = 2;
        let first = vec![entry(1, "10.0.0.2:1", 500), entry(2, "10.0.0.2:2", 900)];
        let sample = ranking.sample(first, start, &wanted);
        assert_eq!((carried(&sample), sample.period_us), (vec![(2, 0), (1, 0)], 0));
        let second = vec![
            entry(1, "10.0.0.2:1", 800),
            entry(2, "10.0.0.2:2", 1000),
            entry(3, "10.0.0.2:3", 200),
        ];
        let sample = ranking.sample(second, start + Duration::from_secs(1), &wanted);
        assert_eq!(carried(&sample), [(1, 300), (3, 200)], "a new connection counts as well");
        assert_eq!((sample.total, sample.period_us), (3, 1_000_000));
        // The slot of a closed connection was reused by a new one.
        let third = vec![entry(1, "10.0.0.2:9", 700)];
        let sample = ranking.sample(third, start + Duration::from_secs(2), &wanted);
        assert_eq!(carried(&sample), [(1, 700)]);
    }

    #[test]
    fn a_subscription_to_one_connection_has_no_other() {
        let (mut ranking, start) = (SocketRanking::default(), Instant::now());
        let local = "10.0.0.1:80".parse().unwrap();
        let remote = "10.0.0.2:2".parse().unwrap();
        let connection = Some(ConnectionName { local, remote });
        let wanted = Subscription { connection, ..Subscription::to(&[ReportTopic::Sockets]) };
        let entries = vec![entry(1, "10.0.0.2:1", 500), entry(2, "10.0.0.2:2", 900)];
        let sample = ranking.sample(entries, start, &wanted);
        assert_eq!((carried(&sample), sample.total), (vec![(2, 0)], 2));
        assert_eq!(ranking.before.len(), 1);
    }

    #[test]
    fn a_subscription_to_no_socket_only_counts_them() {
        let mut ranking = SocketRanking::default();
        let mut wanted = Subscription::to(&[ReportTopic::Sockets]);
        wanted.sockets_max = 0;
        let sample = ranking.sample(vec![entry(1, "10.0.0.2:1", 500)], Instant::now(), &wanted);
        assert_eq!((sample.list.len(), sample.total), (0, 1));
        assert!(ranking.before.is_empty());
    }
}
