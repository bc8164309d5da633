//! Types of the control protocol for subscriptions: a client keeps its connection, and receives a
//! report for each change and for each sample.

use std::net::SocketAddr;

use serde::{Deserialize, Serialize};

use crate::bounded;
use crate::net::{Address, Interface, Neighbor, Route};
use crate::request::{Layer, RequestFault};
use crate::sockets::{ShownSocket, Word};

/// Subject of reports.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
#[non_exhaustive]
pub enum ReportTopic {
    /// Reports each change of an interface.
    Links,
    /// Reports each change of an address.
    Addresses,
    /// Reports each change of a route.
    Routes,
    /// Reports each change of an entry of the neighbor table.
    Neighbors,
    /// Reports the traffic counters of all interfaces in each period.
    Traffic,
    /// Reports the counters of all layers in each period.
    Counters,
    /// Reports the sockets that have carried most bytes in each period.
    Sockets,
    /// Reports the counters of all shards in each period.
    Shards,
}

/// Subjects of which a client wants reports, and the period of samples.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Subscription {
    /// Subjects of the reports.
    pub topics: Vec<ReportTopic>,
    /// Period of the samples in milliseconds.
    #[serde(default = "default_period_ms")]
    pub period_ms: u32,
    /// Maximum number of sockets in a sample.
    #[serde(default = "default_sockets_max")]
    pub sockets_max: u32,
    /// Addresses of the only connection of which samples are wanted; `None` for all sockets.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub connection: Option<ConnectionName>,
}

/// Local and remote address of a connection.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct ConnectionName {
    /// Local address of the connection.
    pub local: SocketAddr,
    /// Remote address of the connection.
    pub remote: SocketAddr,
}

fn default_period_ms() -> u32 {
    1000
}

fn default_sockets_max() -> u32 {
    100
}

impl Subscription {
    /// Minimum period of samples in milliseconds, because each sample costs turns of the engine.
    pub const PERIOD_MS_MIN: u32 = 100;
    /// Maximum period of samples in milliseconds: an hour.
    pub const PERIOD_MS_MAX: u32 = 3_600_000;
    /// Maximum number of sockets in a sample. Each takes some 1500 bytes, and the sample must fit
    /// into the memory for a client's unsent reports.
    pub const SOCKETS_MAX: u32 = 256;

    /// Creates a subscription with the default period and number of sockets.
    #[must_use]
    pub fn to(topics: &[ReportTopic]) -> Self {
        Self {
            topics: topics.to_vec(),
            period_ms: default_period_ms(),
            sockets_max: default_sockets_max(),
            connection: None,
        }
    }

    /// Returns whether the client wants reports about `topic`.
    #[must_use]
    pub fn has(&self, topic: ReportTopic) -> bool {
        self.topics.contains(&topic)
    }

    /// Returns an error if a value is out of its range.
    pub(crate) fn check(&self) -> Result<(), RequestFault> {
        let fault = |why: String| Err(RequestFault::new("request", why));
        let (least, most) = (Self::PERIOD_MS_MIN, Self::PERIOD_MS_MAX);
        if self.topics.is_empty() {
            return fault("the subscription has no topics".to_owned());
        }
        if !(least..=most).contains(&self.period_ms) {
            let period = self.period_ms;
            return fault(format!("period_ms {period}: expected {least} to {most}"));
        }
        if self.sockets_max > Self::SOCKETS_MAX {
            let (count, most) = (self.sockets_max, Self::SOCKETS_MAX);
            return fault(format!("sockets_max {count}: expected at most {most}"));
        }
        Ok(())
    }
}

/// Report to a subscriber, sent as one line of JSON. Exactly one of the optional fields is set.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
pub struct RunReport {
    /// Time of the report in microseconds since the run opened its control socket.
    pub time_us: u64,
    /// Whether the link, address, route or neighbor was deleted.
    #[serde(default, skip_serializing_if = "is_false")]
    pub deleted: bool,
    /// Interface that was added, changed or deleted.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub link: Option<Interface>,
    /// Address that was added, changed or deleted.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub address: Option<InterfaceAddress>,
    /// Next hops of a route that was added, changed or deleted. A route has several next hops if
    /// flows are distributed among them.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub route: Option<Vec<Route>>,
    /// Entry of the neighbor table that was added, changed or deleted.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub neighbor: Option<Neighbor>,
    /// Interfaces with their traffic counters.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub traffic: Option<Vec<Interface>>,
    /// Counters of all layers.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub counters: Option<Vec<Layer>>,
    /// Sockets that have carried most bytes.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub sockets: Option<SocketsSample>,
    /// Counters of the shards.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub shards: Option<Vec<ShardSample>>,
    /// Number of reports that were dropped before this one, because the client had not read earlier
    /// ones.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub lost: Option<u64>,
}

#[allow(clippy::trivially_copy_pass_by_ref, reason = "serde passes a reference")]
fn is_false(value: &bool) -> bool {
    !value
}

/// Address with the interface to which it belongs.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct InterfaceAddress {
    /// Number of the interface, counted from 1.
    pub index: u32,
    /// Name of the interface.
    pub dev: Word,
    /// The address.
    pub address: Address,
}

/// Sample of the sockets of a run.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
pub struct SocketsSample {
    /// Number of all sockets of the run.
    pub total: u64,
    /// Time in microseconds since the previous sample; 0 for the first one.
    pub period_us: u64,
    /// Sockets that have carried most bytes in the period, the busiest one first.
    #[serde(deserialize_with = "bounded::elements")]
    pub list: Vec<SampledSocket>,
}

/// A socket with the bytes that it has carried in a period.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct SampledSocket {
    /// Payload bytes that the peer has acknowledged in the period.
    pub period_bytes_acked: u64,
    /// Payload bytes that were received in the period.
    pub period_bytes_received: u64,
    /// The socket.
    #[serde(flatten)]
    pub socket: ShownSocket,
}

/// Counters of a shard since the start of the run.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct ShardSample {
    /// Number of the shard, counted from 0.
    pub number: u32,
    /// Iterations of the shard's event loop.
    pub turns: u64,
    /// Times that the shard slept.
    pub sleeps: u64,
    /// Work steps for programs, each about 100 ns.
    pub work: u64,
    /// Packets received from devices.
    pub rx_packets: u64,
    /// Packets sent to devices.
    pub tx_packets: u64,
    /// Packets that the shard dropped.
    pub drops: u64,
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::request::Call;

    fn parse(subscription: &str) -> Result<Call, RequestFault> {
        let line =
            format!("{{\"version\":1,\"request\":\"subscribe\",\"subscription\":{subscription}}}");
        Call::parse(line.as_bytes())
    }

    #[test]
    fn a_subscription_has_defaults_and_limits() {
        let wanted = Subscription::to(&[ReportTopic::Links, ReportTopic::Sockets]);
        let parsed = parse("{\"topics\":[\"links\",\"sockets\"]}").unwrap();
        assert_eq!(parsed, Call::Subscribe { subscription: wanted });
        for (wrong, words) in [
            ("{\"topics\":[]}", "no topics"),
            ("{\"topics\":[\"link\"]}", "unknown variant `link`"),
            ("{\"topics\":[\"links\"],\"period_ms\":99}", "expected 100 to 3600000"),
            ("{\"topics\":[\"links\"],\"period_ms\":3600001}", "period_ms 3600001"),
            ("{\"topics\":[\"sockets\"],\"sockets_max\":257}", "expected at most 256"),
            ("{\"topics\":[\"links\"],\"period\":1}", "unknown field `period`"),
        ] {
            let fault = parse(wrong).unwrap_err();
            assert!(fault.message.contains(words), "{wrong}: {}", fault.message);
        }
    }

    #[test]
    fn a_report_has_only_its_own_field() {
        let report = RunReport { time_us: 7, lost: Some(3), ..RunReport::default() };
        let json = serde_json::to_string(&report).unwrap();
        assert_eq!(json, "{\"time_us\":7,\"lost\":3}");
        assert_eq!(serde_json::from_str::<RunReport>(&json).unwrap(), report);
    }
}
