//! What ports count.

use std::sync::{Arc, Mutex, PoisonError};

use serde::{Deserialize, Serialize};
use towpath_engine::Counters;
use towpath_pool::Port;
use towpath_shape::Shaped;

/// Names and values of one layer.
type List = Vec<(&'static str, u64)>;

/// What the ports counted, by kind of port.
pub type PortCounters = Vec<(&'static str, List)>;

/// A layer of a run, and what it counted.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Layer {
    /// Its name.
    pub name: String,
    /// Names and values.
    pub counters: Vec<(String, u64)>,
}

/// All counters of a run, layer by layer.
pub fn layers(counters: &Counters, ports: &PortCounters) -> Vec<Layer> {
    let Counters { engine, sockets, net, drops } = counters;
    let stack = [("engine", engine), ("sockets", sockets), ("net", net), ("drops", drops)];
    let all = stack.into_iter().chain(ports.iter().map(|(name, list)| (*name, list)));
    let named =
        |list: &List| list.iter().map(|(name, value)| ((*name).to_owned(), *value)).collect();
    all.map(|(name, list)| Layer { name: name.to_owned(), counters: named(list) }).collect()
}

/// A port with counters.
pub trait Counted: Send {
    /// Kinds of counters, and what was counted.
    fn counted(&self) -> Vec<(&'static str, List)>;
}

impl Counted for towpath_gateway::Gateway {
    fn counted(&self) -> Vec<(&'static str, List)> {
        vec![("gateway", self.counters().iter().collect())]
    }
}

impl Counted for towpath_tap::Tap {
    fn counted(&self) -> Vec<(&'static str, List)> {
        let name = match self.kind() {
            towpath_tap::Kind::Tap => "tap",
            towpath_tap::Kind::Tun => "tun",
        };
        vec![(name, self.counters().iter().collect())]
    }
}

impl Counted for towpath_packet::PacketSocket {
    fn counted(&self) -> Vec<(&'static str, List)> {
        vec![("packet", self.counters().iter().collect())]
    }
}

impl<P: Port + Send> Counted for towpath_vlan::VlanPort<P> {
    fn counted(&self) -> Vec<(&'static str, List)> {
        vec![("vlan", self.counters().iter().collect())]
    }
}

impl Counted for towpath_bridge::Bridge {
    fn counted(&self) -> Vec<(&'static str, List)> {
        vec![("bridge", self.stats().counters().iter().collect())]
    }
}

impl Counted for towpath_xdp::XdpSocket {
    fn counted(&self) -> Vec<(&'static str, List)> {
        vec![("xdp", self.counters().iter().collect())]
    }
}

#[cfg(feature = "dpdk")]
impl Counted for towpath_dpdk::Queue {
    fn counted(&self) -> Vec<(&'static str, List)> {
        let mut all = vec![("dpdk", self.counters().iter().collect())];
        // Names come from the driver, once in a run.
        let name = |name: String| -> &'static str { name.leak() };
        let port: List =
            self.driver_counters().into_iter().map(|(key, value)| (name(key), value)).collect();
        if !port.is_empty() {
            all.push(("dpdk_port", port));
        }
        all
    }
}

impl Counted for towpath_replay::Replay {
    fn counted(&self) -> Vec<(&'static str, List)> {
        vec![("replay", self.stats().counters().iter().collect())]
    }
}

impl<P: Port + Send> Counted for Shaped<P> {
    fn counted(&self) -> Vec<(&'static str, List)> {
        let [egress, ingress] = self.stats();
        vec![("netem_egress", egress.iter().collect()), ("netem_ingress", ingress.iter().collect())]
    }
}

/// Adds what a port counted to what others of its kind did.
fn add(all: &mut PortCounters, (kind, list): (&'static str, List)) {
    let Some((_, sums)) = all.iter_mut().find(|(known, _)| *known == kind) else {
        return all.push((kind, list));
    };
    for ((_, sum), (_, value)) in sums.iter_mut().zip(list) {
        *sum += value;
    }
}

/// A port that leaves its counters behind: the engine takes ports and never gives them back.
pub struct Counting<P: Counted> {
    port: P,
    to: Arc<Mutex<PortCounters>>,
}

impl<P: Counted> Counting<P> {
    /// Writes the counters of `port` to `to` in the end.
    pub fn new(port: P, to: &Arc<Mutex<PortCounters>>) -> Self {
        Self { port, to: Arc::clone(to) }
    }
}

impl<P: Counted> Drop for Counting<P> {
    fn drop(&mut self) {
        let mut all = self.to.lock().unwrap_or_else(PoisonError::into_inner);
        self.port.counted().into_iter().for_each(|counted| add(&mut all, counted));
    }
}

impl<P: Port + Counted> Port for Counting<P> {
    towpath_pool::forward_port!(port: poll, submit, offloads, link_type, wake_fd, looked, blocked);
    towpath_pool::forward_port!(port: is_gone, next_timeout_ns, undelivered, undelivered_of_ended);
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Each shard has a port.
    #[test]
    fn ports_of_one_kind_are_summed() {
        let mut all = vec![("tap", vec![("rx_frames", 1), ("tx_frames", 2)])];
        add(&mut all, ("gateway", vec![("udp_flows", 4)]));
        add(&mut all, ("tap", vec![("rx_frames", 10), ("tx_frames", 20)]));
        let sums = vec![("rx_frames", 11), ("tx_frames", 22)];
        assert_eq!(all, [("tap", sums), ("gateway", vec![("udp_flows", 4)])]);
    }
}
