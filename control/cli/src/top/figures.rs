//! Rates and counts that `towpath top` shows, computed from the samples of a run.

use std::collections::HashMap;
use std::net::SocketAddr;

use towpath_model::{
    Interface, Layer, Proto, RunReport, SampledSocket, ShardSample, SocketsSample,
};

/// Computes the rates of counters from consecutive samples.
#[derive(Debug, Default)]
struct Meter {
    /// Time of the latest sample in microseconds.
    at_us: Option<u64>,
    values: HashMap<String, u64>,
    /// Increase per second between the latest two samples.
    rates: HashMap<String, f64>,
}

impl Meter {
    fn sample(&mut self, at_us: u64, values: HashMap<String, u64>) {
        let before = self.at_us.replace(at_us);
        let seconds = before.map(|before| at_us.saturating_sub(before) as f64 / 1e6);
        self.rates.clear();
        if let Some(seconds) = seconds.filter(|seconds| *seconds > 0.) {
            for (name, value) in &values {
                // A counter that was not there before began at zero.
                let old = self.values.get(name).copied().unwrap_or(0);
                self.rates.insert(name.clone(), value.saturating_sub(old) as f64 / seconds);
            }
        }
        self.values = values;
    }

    fn rate(&self, name: &str) -> f64 {
        self.rates.get(name).copied().unwrap_or(0.)
    }
}

/// Rates of an interface.
#[derive(Debug, Clone, PartialEq)]
pub struct InterfaceRates {
    /// Name of the interface.
    pub name: String,
    /// Received bits per second.
    pub bits_in: f64,
    /// Sent bits per second.
    pub bits_out: f64,
    /// Received packets per second.
    pub packets_in: f64,
    /// Sent packets per second.
    pub packets_out: f64,
    /// Packets dropped per second, in both directions.
    pub drops: f64,
}

/// Packets that were dropped for one reason.
#[derive(Debug, Clone, PartialEq)]
pub struct DropRate {
    /// Name of the reason.
    pub reason: String,
    /// Packets per second.
    pub rate: f64,
    /// Packets since the start of the run.
    pub total: u64,
}

/// Rates of a shard, per second.
#[derive(Debug, Clone, PartialEq)]
pub struct ShardRates {
    /// Number of the shard.
    pub number: u32,
    /// Iterations of the event loop.
    pub turns: f64,
    /// Sleeps of the event loop.
    pub sleeps: f64,
    /// Received packets.
    pub packets_in: f64,
    /// Sent packets.
    pub packets_out: f64,
    /// Dropped packets.
    pub drops: f64,
}

/// The latest figures of a run.
#[derive(Debug, Default)]
pub struct RunFigures {
    /// Rates of each interface.
    pub interfaces: Vec<InterfaceRates>,
    /// Reasons for which packets were dropped, the most frequent one first.
    pub drops: Vec<DropRate>,
    /// Rates of each shard.
    pub shards: Vec<ShardRates>,
    /// Sockets that have carried most bytes.
    pub sockets: SocketsSample,
    /// Number of reports that were lost, because they were not read in time.
    pub lost: u64,
    traffic_meter: Meter,
    drop_meter: Meter,
    shard_meter: Meter,
}

impl RunFigures {
    /// Updates the figures by a report.
    pub fn update(&mut self, report: RunReport) {
        self.lost = self.lost.saturating_add(report.lost.unwrap_or(0));
        let at_us = report.time_us;
        if let Some(interfaces) = report.traffic {
            self.set_interfaces(at_us, &interfaces);
        }
        if let Some(layers) = report.counters {
            self.set_drops(at_us, &layers);
        }
        if let Some(shards) = report.shards {
            self.set_shards(at_us, &shards);
        }
        if let Some(sockets) = report.sockets {
            self.sockets = sockets;
        }
    }

    fn set_interfaces(&mut self, at_us: u64, interfaces: &[Interface]) {
        let counters = interfaces.iter().flat_map(|interface| {
            let traffic = interface.traffic;
            let counters = [
                ("rx_bytes", traffic.rx_bytes),
                ("tx_bytes", traffic.tx_bytes),
                ("rx_packets", traffic.rx_packets),
                ("tx_packets", traffic.tx_packets),
                ("drops", traffic.rx_dropped.saturating_add(traffic.tx_dropped)),
            ];
            counters.map(|(counter, value)| (format!("{}.{counter}", interface.name), value))
        });
        self.traffic_meter.sample(at_us, counters.collect());
        let rates = interfaces.iter().map(|interface| {
            let name = interface.name.to_string();
            let rate = |counter: &str| self.traffic_meter.rate(&format!("{name}.{counter}"));
            InterfaceRates {
                bits_in: rate("rx_bytes") * 8.,
                bits_out: rate("tx_bytes") * 8.,
                packets_in: rate("rx_packets"),
                packets_out: rate("tx_packets"),
                drops: rate("drops"),
                name,
            }
        });
        self.interfaces = rates.collect();
    }

    fn set_drops(&mut self, at_us: u64, layers: &[Layer]) {
        let layer = layers.iter().find(|layer| layer.name.as_str() == "drops");
        let counters = layer.map(|layer| &layer.counters[..]).unwrap_or_default();
        let values = counters.iter().map(|(name, value)| (name.to_string(), *value));
        self.drop_meter.sample(at_us, values.collect());
        let drops = counters.iter().filter(|(_, total)| *total > 0).map(|(name, total)| {
            let reason = name.to_string();
            DropRate { rate: self.drop_meter.rate(&reason), reason, total: *total }
        });
        self.drops = drops.collect();
        self.drops.sort_by(|one, other| {
            other.rate.total_cmp(&one.rate).then(other.total.cmp(&one.total))
        });
    }

    fn set_shards(&mut self, at_us: u64, shards: &[ShardSample]) {
        let counters = shards.iter().flat_map(|shard| {
            let counters = [
                ("turns", shard.turns),
                ("sleeps", shard.sleeps),
                ("rx", shard.rx_packets),
                ("tx", shard.tx_packets),
                ("drops", shard.drops),
            ];
            counters.map(|(counter, value)| (format!("{}.{counter}", shard.number), value))
        });
        self.shard_meter.sample(at_us, counters.collect());
        let rates = shards.iter().map(|shard| {
            let rate =
                |counter: &str| self.shard_meter.rate(&format!("{}.{counter}", shard.number));
            ShardRates {
                number: shard.number,
                turns: rate("turns"),
                sleeps: rate("sleeps"),
                packets_in: rate("rx"),
                packets_out: rate("tx"),
                drops: rate("drops"),
            }
        });
        self.shards = rates.collect();
    }
}

/// Received and sent bits per second of a sampled socket.
pub fn bit_rates(socket: &SampledSocket, period_us: u64) -> (f64, f64) {
    let rate = |bytes: u64| match period_us {
        0 => 0.,
        us => bytes as f64 * 8e6 / us as f64,
    };
    (rate(socket.period_bytes_received), rate(socket.period_bytes_acked))
}

/// Order in which sockets are listed.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub enum SocketOrder {
    /// By the bytes that were carried in the period.
    #[default]
    Rate,
    /// By the smoothed round-trip time.
    Rtt,
    /// By the number of retransmitted segments.
    Retransmissions,
    /// By the congestion window.
    Window,
}

impl SocketOrder {
    /// Returns the order that follows this one.
    pub fn next(self) -> Self {
        match self {
            Self::Rate => Self::Rtt,
            Self::Rtt => Self::Retransmissions,
            Self::Retransmissions => Self::Window,
            Self::Window => Self::Rate,
        }
    }

    /// Returns the name of the column by which sockets are sorted.
    pub fn name(self) -> &'static str {
        match self {
            Self::Rate => "rate",
            Self::Rtt => "RTT",
            Self::Retransmissions => "retransmissions",
            Self::Window => "cwnd",
        }
    }

    /// Sorts sockets in this order, those with the highest value first.
    pub fn sort(self, sockets: &mut [&SampledSocket]) {
        sockets.sort_by_key(|it| {
            std::cmp::Reverse(match self {
                Self::Rate => it.period_bytes_acked.saturating_add(it.period_bytes_received),
                Self::Rtt => it.socket.rtt_us.into(),
                Self::Retransmissions => {
                    it.socket.tcp.as_ref().map_or(0, |tcp| tcp.retrans_total.into())
                }
                Self::Window => it.socket.cwnd.into(),
            })
        });
    }
}

/// Identity of a socket in consecutive samples.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct SocketName {
    /// Transport protocol of the socket.
    pub proto: Proto,
    /// Local address; `None` if the socket is not bound.
    pub local: Option<SocketAddr>,
    /// Remote address; `None` if the socket is not connected.
    pub remote: Option<SocketAddr>,
    /// Slot of the socket; `None` if it has none.
    pub slot: Option<u32>,
}

impl SocketName {
    /// Returns the identity of a sampled socket.
    pub fn of(sampled: &SampledSocket) -> Self {
        let socket = &sampled.socket;
        let (proto, slot) = (socket.proto, socket.slot);
        Self { proto, local: socket.local, remote: socket.remote, slot }
    }
}

#[cfg(test)]
mod tests {
    use towpath_model::Word;

    use super::*;

    #[test]
    fn counters_of_a_hostile_run_do_not_overflow() {
        let mut figures = RunFigures::default();
        let traffic = towpath_model::Traffic {
            rx_dropped: u64::MAX,
            tx_dropped: u64::MAX,
            ..towpath_model::Traffic::default()
        };
        let interface = Interface {
            index: 1,
            name: Word::known("lo"),
            kind: towpath_model::Kind::Loopback,
            mac: None,
            mtu: 65_536,
            up: true,
            carrier: None,
            addresses: Vec::new(),
            traffic,
        };
        for lost in [None, Some(u64::MAX), Some(1)] {
            let traffic = Some(vec![interface.clone()]);
            figures.update(RunReport { traffic, lost, ..RunReport::default() });
        }
        assert_eq!(figures.lost, u64::MAX);
    }

    #[test]
    fn rates_are_differences_of_two_samples() {
        let mut figures = RunFigures::default();
        let drops = |time_us, count| {
            let counters = vec![(Word::known("no_route"), count), (Word::known("tcp_closed"), 9)];
            let layer = Layer { name: Word::known("drops"), counters };
            RunReport { time_us, counters: Some(vec![layer]), ..RunReport::default() }
        };
        figures.update(drops(1_000_000, 5));
        assert!(figures.drops.iter().all(|drop| drop.rate == 0.), "one sample has no rate");
        figures.update(drops(3_000_000, 25));
        let wanted = [("no_route", 10., 25), ("tcp_closed", 0., 9)];
        let found = figures.drops.iter().map(|it| (it.reason.as_str(), it.rate, it.total));
        assert_eq!(found.collect::<Vec<_>>(), wanted);
        let shard = |time_us, turns| {
            let shard = ShardSample { turns, ..ShardSample::default() };
            RunReport { time_us, shards: Some(vec![shard]), ..RunReport::default() }
        };
        figures.update(shard(0, 100));
        figures.update(shard(500_000, 150));
        assert_eq!(figures.shards[0].turns, 100.);
        figures.update(RunReport { lost: Some(3), ..RunReport::default() });
        assert_eq!(figures.lost, 3);
    }
}
