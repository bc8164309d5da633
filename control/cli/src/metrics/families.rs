//! Converts the samples of runs to metrics: names, types, help texts and labels.

use std::collections::BTreeMap;

use towpath_model::{Interface, Layer, Reply, RunKind, ShardSample};

/// Help texts of the counters of all layers, one on each line: `LAYER.COUNTER TEXT`.
const HELP: &str = include_str!("help.txt");

/// Counters that can also decrease, or that are maxima.
const GAUGES: [&str; 22] = [
    "engine.work_turn_max",
    "engine.events_turn_max",
    "engine.sockets",
    "engine.channels",
    "engine.descriptors_to_close",
    "engine.events_lost",
    "engine.memory_touched",
    "engine.memory_kept",
    "engine.memory_returning",
    "engine.memory_limit",
    "engine.windows_assigned",
    "engine.slots_awaited",
    "engine.packets_allocated",
    "engine.output_packets",
    "engine.output_bytes",
    "dns.cache_entries",
    "dns.cache_bytes",
    "dns.waiting",
    "dns.servers",
    "dns.servers_failed",
    "dns.listening",
    "dns.tcp_clients",
];

/// Maximum number of samples of one metric. A router may have some 100,000 rules, and Prometheus
/// keeps each sample in memory as a time series.
const FAMILY_SAMPLES_MAX: usize = 10_000;

/// Name of the metric that counts samples beyond [`FAMILY_SAMPLES_MAX`].
const LEFT_OUT: &str = "samples_left_out";

/// Name of the metric that describes each run.
const RUN_INFO: &str = "run_info";

/// Type of a metric.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum MetricKind {
    /// The value only increases while the run exists.
    Counter,
    /// The value can decrease.
    Gauge,
}

/// Samples of one metric, with the type and help text that they share.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct MetricFamily {
    /// Text that explains the metric.
    pub help: String,
    /// Type of the metric.
    pub kind: MetricKind,
    /// Values with their labels.
    pub samples: Vec<(Labels, u64)>,
}

/// Names and values of labels.
pub type Labels = Vec<(&'static str, String)>;

/// Metrics of all runs, by name without prefix and suffix, and by whether their values are bytes.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Families(pub BTreeMap<(String, bool), MetricFamily>);

/// Samples of one run.
#[derive(Debug, Default)]
pub struct RunSample {
    /// Description of the run.
    pub reply: Reply,
    /// Interfaces with their traffic.
    pub interfaces: Vec<Interface>,
    /// Counters of all layers.
    pub layers: Vec<Layer>,
    /// Counters of the shards.
    pub shards: Vec<ShardSample>,
    /// Number of sockets.
    pub sockets: u64,
}

/// A metric whose samples are being added.
#[derive(Clone, Copy)]
struct Metric<'a> {
    name: &'a str,
    help: &'a str,
    kind: MetricKind,
    is_bytes: bool,
}

impl<'a> Metric<'a> {
    fn counter(name: &'a str, help: &'a str) -> Self {
        Self { name, help, kind: MetricKind::Counter, is_bytes: false }
    }

    fn gauge(name: &'a str, help: &'a str) -> Self {
        Self { kind: MetricKind::Gauge, ..Self::counter(name, help) }
    }

    fn bytes(self) -> Self {
        Self { is_bytes: true, ..self }
    }
}

impl Families {
    /// Adds the number of runs that did not answer.
    pub fn add_silent_runs(&mut self, count: u64) {
        let metric = Metric::gauge("runs_silent", "Runs that did not answer the latest request.");
        self.add(metric, Vec::new(), count);
    }

    /// Adds the metrics of a run.
    pub fn add_run(&mut self, sample: &RunSample) {
        let run = self.unique(run_label(&sample.reply));
        self.add_info(sample, &run);
        sample.interfaces.iter().for_each(|it| self.add_interface(it, &run));
        sample.shards.iter().for_each(|it| self.add_shard(it, &run));
        sample.layers.iter().for_each(|it| self.add_layer(it, &run));
    }

    /// Appends a number to the label of a run if another run already has the label. Otherwise two
    /// samples could have equal labels, and Prometheus would refuse all of them.
    fn unique(&self, label: String) -> String {
        let info = self.0.get(&(RUN_INFO.to_owned(), false));
        let infos = info.map(|family| &family.samples[..]).unwrap_or_default();
        let is_used = |label: &str| {
            let is_run = |(name, value): &(&str, String)| *name == "run" && value == label;
            infos.iter().any(|(labels, _)| labels.iter().any(is_run))
        };
        if !is_used(&label) {
            return label;
        }
        let mut numbered = (2u32..).map(|number| format!("{label}-{number}"));
        numbered.find(|it| !is_used(it)).unwrap_or_else(|| label.clone())
    }

    fn add(&mut self, metric: Metric<'_>, labels: Labels, value: u64) {
        let key = (metric.name.to_owned(), metric.is_bytes);
        let family = self.0.entry(key).or_insert_with(|| MetricFamily {
            help: metric.help.to_owned(),
            kind: metric.kind,
            samples: Vec::new(),
        });
        if family.samples.len() < FAMILY_SAMPLES_MAX {
            family.samples.push((labels, value));
        } else {
            self.count_left_out();
        }
    }

    fn count_left_out(&mut self) {
        let family = self.0.entry((LEFT_OUT.to_owned(), false)).or_insert_with(|| MetricFamily {
            help: "Samples left out because their metric has too many.".to_owned(),
            kind: MetricKind::Gauge,
            samples: vec![(Vec::new(), 0)],
        });
        family.samples.iter_mut().for_each(|(_, count)| *count += 1);
    }

    fn add_info(&mut self, sample: &RunSample, run: &str) {
        let Reply { pid, kind, program, .. } = &sample.reply;
        let kind = match kind {
            RunKind::Run => "run",
            RunKind::Router => "router",
            RunKind::Proxy => "proxy",
        };
        let labels = vec![
            ("run", run.to_owned()),
            ("pid", pid.to_string()),
            ("kind", kind.to_owned()),
            ("program", program.first().cloned().unwrap_or_default()),
        ];
        let info = Metric::gauge(RUN_INFO, "Constant 1 with the description of a run as labels.");
        self.add(info, labels, 1);
        let sockets = Metric::gauge("sockets_open", "Sockets and connections of the run.");
        self.add(sockets, vec![("run", run.to_owned())], sample.sockets);
    }

    fn add_interface(&mut self, interface: &Interface, run: &str) {
        let traffic = interface.traffic;
        let counter = Metric::counter;
        let counters = [
            (
                counter("interface_receive_packets", "Packets received from the device."),
                traffic.rx_packets,
            ),
            (
                counter("interface_receive", "Bytes received from the device.").bytes(),
                traffic.rx_bytes,
            ),
            (
                counter("interface_receive_drops", "Received packets that were dropped."),
                traffic.rx_dropped,
            ),
            (
                counter("interface_transmit_packets", "Packets sent to the device."),
                traffic.tx_packets,
            ),
            (counter("interface_transmit", "Bytes sent to the device.").bytes(), traffic.tx_bytes),
            (
                counter("interface_transmit_drops", "Packets dropped before they were sent."),
                traffic.tx_dropped,
            ),
            (
                Metric::gauge("interface_up", "Whether the interface is administratively up."),
                interface.up.into(),
            ),
            (
                Metric::gauge("interface_mtu", "Maximum length of an IP packet.").bytes(),
                interface.mtu.into(),
            ),
        ];
        let labels = vec![("run", run.to_owned()), ("interface", interface.name.to_string())];
        for (metric, value) in counters {
            self.add(metric, labels.clone(), value);
        }
        if let Some(carrier) = interface.carrier {
            let metric = Metric::gauge("interface_carrier", "Whether the device has a link.");
            self.add(metric, labels, carrier.into());
        }
    }

    fn add_shard(&mut self, shard: &ShardSample, run: &str) {
        let counter = Metric::counter;
        let counters = [
            (counter("shard_turns", "Iterations of the shard's event loop."), shard.turns),
            (counter("shard_sleeps", "Times that the shard's event loop slept."), shard.sleeps),
            (counter("shard_work", "Work steps for programs, each about 100 ns."), shard.work),
            (
                counter("shard_receive_packets", "Packets that the shard received from devices."),
                shard.rx_packets,
            ),
            (
                counter("shard_transmit_packets", "Packets that the shard sent to devices."),
                shard.tx_packets,
            ),
            (counter("shard_drops", "Packets that the shard dropped."), shard.drops),
        ];
        let labels = vec![("run", run.to_owned()), ("shard", shard.number.to_string())];
        for (metric, value) in counters {
            self.add(metric, labels.clone(), value);
        }
    }

    fn add_layer(&mut self, layer: &Layer, run: &str) {
        let run = || ("run", run.to_owned());
        for (counter, value) in &layer.counters {
            let (layer, counter) = (layer.name.as_str(), counter.as_str());
            let key = format!("{layer}.{counter}");
            if layer == "drops" {
                let metric = Metric::counter("dropped_packets", "Packets dropped, by reason.");
                self.add(metric, vec![run(), ("reason", counter.to_owned())], *value);
            } else if let Some(class) = counter.strip_prefix("flows_").filter(|_| is_flows(layer)) {
                let metric = Metric::gauge("conntrack_flows", "Tracked flows, by class.");
                self.add(metric, vec![run(), ("class", class.to_owned())], *value);
            } else if let (true, Some((rule, unit))) = (layer == "rules", counter.rsplit_once('.'))
            {
                let labels = vec![run(), ("rule", rule.to_owned())];
                let packets = Metric::counter("rule_packets", "Packets that matched the rule.");
                let bytes = Metric::counter("rule", "Bytes of the packets that matched the rule.");
                self.add(if unit == "bytes" { bytes.bytes() } else { packets }, labels, *value);
            } else if let Some(help) = help_of(&key) {
                let is_gauge = GAUGES.contains(&key.as_str());
                let (name, is_bytes) = metric_name(layer, counter);
                let kind = if is_gauge { MetricKind::Gauge } else { MetricKind::Counter };
                self.add(Metric { name: &name, help, kind, is_bytes }, vec![run()], *value);
            } else if key != "conntrack.flows" {
                let help = "Counters of devices and gateways, by the names of `towpath stats`.";
                let labels =
                    vec![run(), ("layer", layer.to_owned()), ("counter", counter.to_owned())];
                self.add(Metric::gauge("device_value", help), labels, *value);
            }
        }
    }
}

fn is_flows(layer: &str) -> bool {
    layer == "conntrack"
}

/// Returns the label of a run: its name, or its process id.
fn run_label(reply: &Reply) -> String {
    reply.name.as_ref().map_or_else(|| reply.pid.to_string(), |name| name.to_string())
}

/// Returns the help text of a counter; `None` if it is a counter of a device.
fn help_of(key: &str) -> Option<&'static str> {
    let mut rows = HELP.lines().filter_map(|line| line.split_once(' '));
    rows.find(|(known, _)| *known == key).map(|(_, help)| help)
}

/// Returns the name of a counter's metric, and whether its values are bytes. The unit is left out
/// of the name, because it is appended as a suffix.
fn metric_name(layer: &str, counter: &str) -> (String, bool) {
    let name = |counter: &str| format!("{layer}_{counter}");
    let is_memory = ["touched", "kept", "returning", "limit"]
        .iter()
        .any(|end| counter.strip_prefix("memory_") == Some(end));
    if is_memory {
        return (name(counter), true);
    }
    if let Some(rest) = counter.strip_suffix("_bytes") {
        return (name(rest), true);
    }
    match counter.strip_prefix("tcp_bytes_") {
        Some(rest) => (name(&format!("tcp_{rest}_payload")), true),
        None => (name(counter), false),
    }
}

#[cfg(test)]
mod tests {
    use towpath_engine::{Counters, Engine, EngineConfig};
    use towpath_model::{Kind, Traffic, Word};

    use super::*;

    fn layer(name: &'static str, counters: &[(&'static str, u64)]) -> Layer {
        let counters = counters.iter().map(|(name, value)| (Word::known(name), *value));
        Layer { name: Word::known(name), counters: counters.collect() }
    }

    fn sample() -> RunSample {
        let interface = Interface {
            index: 1,
            name: Word::known("lo"),
            kind: Kind::Loopback,
            mac: None,
            mtu: 65_536,
            up: true,
            carrier: None,
            addresses: Vec::new(),
            traffic: Traffic { rx_bytes: 7, ..Traffic::default() },
        };
        let mut reply = Reply::new(RunKind::Router, vec!["a \"b\"\n\\".to_owned()]);
        reply.name = Some(Word::known("web"));
        RunSample {
            reply,
            interfaces: vec![interface],
            layers: vec![
                layer("drops", &[("no_route", 3)]),
                layer("net", &[("received", 5), ("received_bytes", 600)]),
                layer("sockets", &[("tcp_bytes_sent", 9)]),
                layer("dns", &[("cache_bytes", 40)]),
                layer("rules", &[("10.drop.packets", 1), ("10.drop.bytes", 60)]),
                layer("conntrack", &[("flows", 2), ("flows_tcp_opening", 2), ("created", 4)]),
                layer("tap", &[("rx_frames", 8)]),
            ],
            shards: vec![ShardSample { turns: 11, ..ShardSample::default() }],
            sockets: 12,
        }
    }

    #[test]
    fn each_counter_has_one_metric_with_unit_and_labels() {
        let mut families = Families::default();
        families.add_run(&sample());
        families.add_silent_runs(0);
        for (name, kind, is_bytes, value) in [
            ("dropped_packets", MetricKind::Counter, false, 3),
            ("net_received", MetricKind::Counter, false, 5),
            ("net_received", MetricKind::Counter, true, 600),
            ("sockets_tcp_sent_payload", MetricKind::Counter, true, 9),
            ("dns_cache", MetricKind::Gauge, true, 40),
            ("rule_packets", MetricKind::Counter, false, 1),
            ("rule", MetricKind::Counter, true, 60),
            ("conntrack_flows", MetricKind::Gauge, false, 2),
            ("conntrack_created", MetricKind::Counter, false, 4),
            ("device_value", MetricKind::Gauge, false, 8),
            ("interface_receive", MetricKind::Counter, true, 7),
            ("shard_turns", MetricKind::Counter, false, 11),
            ("sockets_open", MetricKind::Gauge, false, 12),
            ("runs_silent", MetricKind::Gauge, false, 0),
        ] {
            let family = &families.0[&(name.to_owned(), is_bytes)];
            assert_eq!(family.kind, kind, "{name}");
            assert_eq!(family.samples.len(), 1, "{name}");
            assert_eq!(family.samples[0].1, value, "{name}");
            let has_run = family.samples[0].0.contains(&("run", "web".to_owned()));
            assert_eq!(has_run, name != "runs_silent", "{name}");
        }
    }

    #[test]
    fn samples_of_a_metric_are_limited() {
        let counter = |n| (Word::try_from(format!("{n}.accept.packets")).unwrap(), 1);
        let counters = (0..FAMILY_SAMPLES_MAX + 3).map(counter).collect();
        let layers = vec![Layer { name: Word::known("rules"), counters }];
        let mut families = Families::default();
        families.add_run(&RunSample { layers, ..sample() });
        let samples = |name: &str| &families.0[&(name.to_owned(), false)].samples;
        assert_eq!(samples("rule_packets").len(), FAMILY_SAMPLES_MAX);
        assert_eq!(samples(LEFT_OUT)[..], [(Vec::new(), 3)]);
    }

    #[test]
    fn runs_with_equal_process_ids_have_different_labels() {
        let mut families = Families::default();
        let sample = || RunSample { reply: Reply::new(RunKind::Run, Vec::new()), ..sample() };
        (0..3).for_each(|_| families.add_run(&sample()));
        let family = &families.0[&("sockets_open".to_owned(), false)];
        let labels = family.samples.iter().map(|(labels, _)| &labels[0].1);
        let pid = std::process::id();
        let wanted = [format!("{pid}"), format!("{pid}-2"), format!("{pid}-3")];
        assert!(labels.eq(&wanted), "{family:?}");
    }

    /// Fails if a counter of the engine or the stack has no line in `help.txt`, or if a line has no
    /// counter any more.
    #[test]
    fn each_counter_of_a_stack_has_a_help_text() {
        let engine = Engine::new(EngineConfig::default(), Vec::new(), [7; 32]).unwrap();
        let remote = engine.remote();
        let thread = std::thread::spawn(|| engine.run());
        let Counters { engine, sockets, net, .. } = remote.counters().unwrap();
        remote.stop();
        thread.join().unwrap();
        let mut known: Vec<_> = HELP.lines().filter_map(|line| line.split_once(' ')).collect();
        for (layer, list) in [("engine", engine), ("sockets", sockets), ("net", net)] {
            for (counter, _) in list {
                let key = format!("{layer}.{counter}");
                assert!(help_of(&key).is_some(), "{key} is missing in metrics/help.txt");
                known.retain(|(other, _)| *other != key);
            }
        }
        let of_routers = |key: &str| key.starts_with("dns.") || key.starts_with("conntrack.");
        known.retain(|(key, _)| !of_routers(key));
        assert!(known.is_empty(), "no such counters: {known:?}");
    }
}
