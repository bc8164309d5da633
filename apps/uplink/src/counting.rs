//! Counters of a stack's ports, collected for reports.

use std::sync::atomic::{AtomicU64, Ordering::Relaxed};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use serde::{Deserialize, Serialize};
use towpath_engine::Counters;
use towpath_pool::{Batch, Pool, Port, PortCounters};

/// Names and values of the counters of one layer.
type List = Vec<(&'static str, u64)>;

/// A layer of a run (such as the engine or a port), with its counters.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Layer {
    /// Name of the layer.
    pub name: String,
    /// Names and values of the counters.
    pub counters: Vec<(String, u64)>,
}

/// Returns all counters of a run by layer.
pub fn layers(counters: &Counters, ports: &PortCounters) -> Vec<Layer> {
    let Counters { engine, sockets, net, drops } = counters;
    let stack = [("engine", engine), ("sockets", sockets), ("net", net), ("drops", drops)];
    let all = stack.into_iter().chain(ports.iter().map(|(name, list)| (*name, list)));
    let named =
        |list: &List| list.iter().map(|(name, value)| ((*name).to_owned(), *value)).collect();
    all.map(|(name, list)| Layer { name: name.to_owned(), counters: named(list) }).collect()
}

/// Adds the counters of a port to the sums for its kind of port.
fn add(all: &mut PortCounters, kind: &'static str, list: List) {
    let Some((_, sums)) = all.iter_mut().find(|(known, _)| *known == kind) else {
        return all.push((kind, list));
    };
    for ((_, sum), (_, value)) in sums.iter_mut().zip(list) {
        *sum += value;
    }
}

/// Counters of several ports, which can be read on any thread.
///
/// A port writes its counters here in the first iteration of its event loop after [`Tally::ask`],
/// and when it is dropped.
#[derive(Debug, Default)]
pub struct Tally {
    /// Number of requests for current counters so far.
    asked: AtomicU64,
    ports: Mutex<Vec<PortReport>>,
}

/// Counters that one port has reported.
#[derive(Debug)]
struct PortReport {
    device: Option<String>,
    counters: PortCounters,
    /// Number of the last request ([`Tally::asked`]) that the port has answered. `u64::MAX` after
    /// the port was dropped.
    answers: u64,
}

impl Tally {
    /// Requests current counters. Each port reports them in the next iteration of its event loop.
    /// Returns the number of the request, which is an argument of [`Self::is_told`].
    pub fn ask(&self) -> u64 {
        self.asked.fetch_add(1, Relaxed) + 1
    }

    /// Returns whether each port has reported its counters since the request with the number
    /// `asked`.
    pub fn is_told(&self, asked: u64) -> bool {
        self.ports().iter().all(|told| told.answers >= asked)
    }

    /// Returns the counters of all ports, summed for each kind of port.
    pub fn counted(&self) -> PortCounters {
        let mut all = Vec::new();
        let ports = self.ports();
        let told = ports.iter().flat_map(|told| &told.counters);
        told.for_each(|(kind, list)| add(&mut all, kind, list.clone()));
        all
    }

    /// Returns the name of the first port's device on the host, if a port has one.
    pub fn device(&self) -> Option<String> {
        self.ports().iter().find_map(|told| told.device.clone())
    }

    fn ports(&self) -> MutexGuard<'_, Vec<PortReport>> {
        self.ports.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// A port that reports its counters to a [`Tally`]. Needed because the engine owns its ports and
/// does not return them.
pub struct Counting<P: Port> {
    port: P,
    to: Arc<Tally>,
    /// Index of this port in the tally.
    place: usize,
    /// Number of the request ([`Tally::asked`]) at the port's last report.
    told: u64,
}

impl<P: Port> Counting<P> {
    /// Wraps `port`. The port writes its counters to `to` on request, and when it is dropped.
    pub fn new(port: P, to: &Arc<Tally>) -> Self {
        let told = PortReport { device: port.device(), counters: port.counters(), answers: 0 };
        let mut ports = to.ports();
        ports.push(told);
        let place = ports.len() - 1;
        Self { port, to: Arc::clone(to), place, told: 0 }
    }

    fn tell(&self, answers: u64) {
        let told = &mut self.to.ports()[self.place];
        told.counters = self.port.counters();
        told.answers = answers;
    }
}

impl<P: Port> Drop for Counting<P> {
    fn drop(&mut self) {
        self.tell(u64::MAX);
    }
}

impl<P: Port> Port for Counting<P> {
    fn poll(&mut self, now_ns: u64, pool: &mut Pool, out: &mut Batch, max: usize) -> usize {
        let asked = self.to.asked.load(Relaxed);
        if asked != self.told {
            self.told = asked;
            self.tell(asked);
        }
        self.port.poll(now_ns, pool, out, max)
    }

    towpath_pool::forward_port!(port: submit, offloads, link_type, wake_fd, looked, blocked);
    towpath_pool::forward_port!(port: is_gone, next_timeout_ns, undelivered, undelivered_of_ended);
    towpath_pool::forward_port!(port: unsent_bytes);
}

#[cfg(test)]
mod tests {
    use std::os::fd::BorrowedFd;

    use towpath_pool::{LinkType, Offloads};

    use super::*;

    /// Counters of two shards' ports are summed, because the ports are of the same kind.
    #[test]
    fn ports_of_one_kind_are_summed() {
        let mut all = vec![("tap", vec![("rx_frames", 1), ("tx_frames", 2)])];
        add(&mut all, "gateway", vec![("udp_flows", 4)]);
        add(&mut all, "tap", vec![("rx_frames", 10), ("tx_frames", 20)]);
        let sums = vec![("rx_frames", 11), ("tx_frames", 22)];
        assert_eq!(all, [("tap", sums), ("gateway", vec![("udp_flows", 4)])]);
    }

    /// A port for tests that counts how often it was polled.
    struct Polled(u64);

    impl Port for Polled {
        fn poll(&mut self, _: u64, _: &mut Pool, _: &mut Batch, _: usize) -> usize {
            self.0 += 1;
            0
        }

        fn submit(&mut self, _: u64, _: &mut Pool, _: &mut Batch) -> usize {
            0
        }

        fn offloads(&self) -> Offloads {
            Offloads::default()
        }

        fn link_type(&self) -> LinkType {
            LinkType::Ip
        }

        fn wake_fd(&self) -> Option<BorrowedFd<'_>> {
            None
        }

        fn counters(&self) -> PortCounters {
            vec![("polled", vec![("polls", self.0)])]
        }

        fn device(&self) -> Option<String> {
            Some("veth0".to_owned())
        }
    }

    #[test]
    fn counters_are_told_when_asked_and_in_the_end() {
        let tally = Arc::new(Tally::default());
        let (mut pool, mut out) = (Pool::default(), Batch::new());
        let mut ports = [Counting::new(Polled(1), &tally), Counting::new(Polled(10), &tally)];
        let mut poll = |port: &mut Counting<Polled>| port.poll(0, &mut pool, &mut out, 1);
        let sum = |polls| vec![("polled", vec![("polls", polls)])];
        assert_eq!((tally.counted(), tally.device()), (sum(11), Some("veth0".to_owned())));
        ports.iter_mut().for_each(|port| assert_eq!(poll(port), 0));
        assert_eq!(tally.counted(), sum(11), "nobody asked");
        let asked = tally.ask();
        assert_eq!(poll(&mut ports[0]), 0);
        assert_eq!(tally.counted(), sum(12), "before the second poll of the first");
        assert!(!tally.is_told(asked), "the second has not told");
        drop(ports);
        assert!(tally.is_told(asked));
        assert_eq!(tally.counted(), sum(14), "three polls were counted");
    }
}
