//! Random worlds. A world is generated from a seed, stored as parts that the shrinker can remove,
//! and written as a scenario for [`read`](crate::read).

use std::fmt::Write as _;

use towpath_link::Dice;

/// Random world: hosts and switches connected by links, and the flows between the hosts.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct RandomWorld {
    /// Seed of the world, and of the random decisions when it runs.
    pub seed: u64,
    /// Hosts of the world. Their numbers are part of their names.
    pub(super) hosts: Vec<SceneHost>,
    /// Names of the switches in the world.
    pub(super) switches: Vec<String>,
    pub(super) links: Vec<SceneLink>,
    pub(super) flows: Vec<SceneFlow>,
}

/// Host of a random world, with its keys in TOML syntax.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct SceneHost {
    pub name: String,
    pub keys: Keys,
}

/// Link between two hosts or switches of a random world.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct SceneLink {
    pub ends: [String; 2],
    /// Keys for the impairments of both directions.
    pub keys: Keys,
    /// Keys for the impairments of the backward direction only.
    pub back: Keys,
}

/// Flow between two hosts of a random world.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct SceneFlow {
    pub name: String,
    pub kind: &'static str,
    pub ends: [String; 2],
    /// Keys with sizes in bytes, which the shrinker halves.
    pub sizes: Vec<(&'static str, u64)>,
    pub keys: Keys,
}

/// Optional keys of a part of the scenario, such as a link, with their values in TOML syntax.
pub(super) type Keys = Vec<(&'static str, String)>;

/// Duration of each world. Most programs end long before. Programs that still run at this time are
/// reset.
pub(super) const DURATION: &str = "4h";

/// Random generator for the parts of a world.
struct Draw(Dice);

impl Draw {
    /// Returns one of the values, each with equal probability.
    fn pick<T: Copy>(&mut self, from: &[T]) -> T {
        from[self.0.below(from.len() as u64) as usize]
    }

    /// Adds a key with one of the values to `keys`. Omits the key if the chosen value is empty.
    fn key(&mut self, keys: &mut Keys, key: &'static str, values: &[&str]) {
        let value = self.pick(values);
        if !value.is_empty() {
            keys.push((key, value.to_owned()));
        }
    }

    fn falls(&mut self, probability: f64) -> bool {
        self.0.falls(probability)
    }
}

impl RandomWorld {
    /// Generates the world that belongs to a seed.
    pub fn draw(seed: u64) -> Self {
        let mut draw = Draw(Dice::new(seed, 0));
        let mut scene = Self {
            seed,
            hosts: Vec::new(),
            switches: Vec::new(),
            links: Vec::new(),
            flows: Vec::new(),
        };
        scene.draw_network(&mut draw);
        let flows = draw.pick(&[1, 1, 2, 2, 3, 5, 8]);
        for number in 1..=flows {
            let flow = scene.draw_flow(&mut draw, number);
            scene.flows.push(flow);
        }
        scene
    }

    /// Generates a tree of switches with hosts as leaves, or two hosts that are linked directly.
    fn draw_network(&mut self, draw: &mut Draw) {
        let switches = draw.pick(&[0, 0, 1, 1, 2, 2, 3, 5]);
        let hosts = if switches == 0 { 2 } else { draw.pick(&[2, 2, 3, 4, 6]) };
        // Usually impair only one link, because impairments on every link would leave no traffic.
        let bad = draw.0.below(1 + switches + hosts) as usize;
        let is_bad_everywhere = draw.falls(0.15);
        for number in 1..=switches {
            let name = format!("s{number}");
            if number > 1 {
                let other = format!("s{}", 1 + draw.0.below(number - 1));
                let is_bad = is_bad_everywhere || self.links.len() == bad;
                let link = link(draw, [other, name.clone()], is_bad);
                self.links.push(link);
            }
            self.switches.push(name);
        }
        for number in 1..=hosts {
            let name = format!("h{number}");
            let mut keys = Keys::new();
            let (small, usual) = (draw.falls(0.3), &["", "", "65536"][..]);
            let sizes =
                if small { &["512", "1000", "2920", "4096", "10000", "30000"][..] } else { usual };
            draw.key(&mut keys, "recv_buffer", sizes);
            if draw.falls(0.3) && !keys.is_empty() {
                draw.key(&mut keys, "recv_buffer_max", &["65536", "1MiB", "6MiB"]);
            }
            let sizes = if small { &["512", "1000", "3000", "20000"][..] } else { usual };
            draw.key(&mut keys, "send_buffer", sizes);
            draw.key(&mut keys, "initial_window", &["", "", "", "1", "3", "40"]);
            draw.key(&mut keys, "delayed_ack", &["", "", "", "\"0\"", "\"5ms\"", "\"499ms\""]);
            for (key, value) in &mut keys {
                if key.ends_with("buffer_max") {
                    *value = format!("\"{value}\"");
                }
            }
            if switches > 0 {
                let switch = format!("s{}", 1 + draw.0.below(switches));
                let is_bad = is_bad_everywhere || self.links.len() == bad;
                let link = link(draw, [name.clone(), switch], is_bad);
                self.links.push(link);
            }
            self.hosts.push(SceneHost { name, keys });
        }
        if switches == 0 {
            self.links.push(link(draw, ["h1".into(), "h2".into()], true));
        }
        self.keep_one_corruption();
    }

    /// Removes corruption from all links but one. Two flipped bits at the same position of two
    /// words can leave TCP's checksum unchanged (RFC 1071).
    fn keep_one_corruption(&mut self) {
        let is_corrupt = |link: &SceneLink| link.keys.iter().any(|(key, _)| *key == "corrupt");
        let first = self.links.iter().position(is_corrupt);
        for (at, link) in self.links.iter_mut().enumerate() {
            if Some(at) != first {
                link.keys.retain(|(key, _)| *key != "corrupt");
            }
        }
    }

    fn draw_flow(&mut self, draw: &mut Draw, number: usize) -> SceneFlow {
        let hosts = self.hosts.len() as u64;
        let from = draw.0.below(hosts);
        let to = (from + 1 + draw.0.below(hosts - 1)) % hosts;
        let name = |at: u64| self.hosts[at as usize].name.clone();
        let ends = [name(from), name(to)];
        let other = draw.pick(&["bulk", "request", "cbr", "ping"]);
        let kind = if draw.falls(0.8) { "exchange" } else { other };
        let (mut sizes, mut keys) = (Vec::new(), Keys::new());
        draw.key(&mut keys, "start", &["", "", "\"1ms\"", "\"300ms\"", "\"2s\"", "\"20s\""]);
        match kind {
            "exchange" => {
                sizes.push(("bytes", draw.pick(&[1, 100, 1_460, 9_000, 40_000, 300_000])));
                sizes.push(("back", draw.pick(&[0, 0, 1, 700, 20_000, 200_000])));
                draw.key(&mut keys, "read_rate", &["", "", "", "\"100kbit\"", "\"2mbit\""]);
                draw_stalls(draw, &mut keys);
            }
            "bulk" => sizes.push(("bytes", draw.pick(&[1, 3_000, 100_000]))),
            "request" => {
                sizes.push(("response", draw.pick(&[1, 5_000, 50_000])));
                draw.key(&mut keys, "think", &["\"50ms\"", "\"3s\""]);
                keys.push(("stop", "\"60s\"".into()));
            }
            "cbr" => {
                draw.key(&mut keys, "rate", &["\"50kbit\"", "\"1mbit\""]);
                keys.push(("stop", "\"30s\"".into()));
            }
            _ => keys.push(("stop", "\"60s\"".into())),
        }
        if matches!(kind, "exchange" | "bulk" | "request") {
            draw.key(&mut keys, "congestion", &["", "\"reno\""]);
        }
        SceneFlow { name: format!("f{number}"), kind, ends, sizes, keys }
    }

    /// Formats the world as the text of a scenario file.
    pub fn to_toml(&self) -> String {
        let mut text = format!(
            "title = \"World {0}\"\nduration = \"{DURATION}\"\nsample = \"1min\"\nseed = {0}\n",
            self.seed
        );
        for host in &self.hosts {
            let _ = writeln!(text, "\n[[host]]\nname = \"{}\"", host.name);
            write_keys(&mut text, &host.keys);
        }
        for switch in &self.switches {
            let _ = writeln!(text, "\n[[switch]]\nname = \"{switch}\"");
        }
        for link in &self.links {
            let [a, b] = &link.ends;
            let _ = writeln!(text, "\n[[link]]\nbetween = [\"{a}\", \"{b}\"]");
            write_keys(&mut text, &link.keys);
            if !link.back.is_empty() {
                let back: Vec<String> =
                    link.back.iter().map(|(key, value)| format!("{key} = {value}")).collect();
                let _ = writeln!(text, "back = {{ {} }}", back.join(", "));
            }
        }
        for flow in &self.flows {
            let [from, to] = &flow.ends;
            let _ = writeln!(
                text,
                "\n[[flow]]\nname = \"{}\"\nkind = \"{}\"\nfrom = \"{from}\"\nto = \"{to}\"",
                flow.name, flow.kind
            );
            for (key, size) in &flow.sizes {
                let _ = writeln!(text, "{key} = {size}");
            }
            write_keys(&mut text, &flow.keys);
        }
        text
    }
}

fn write_keys(text: &mut String, keys: &Keys) {
    for (key, value) in keys {
        let _ = writeln!(text, "{key} = {value}");
    }
}

/// Generates a link with random properties. `is_bad` adds impairments.
fn link(draw: &mut Draw, ends: [String; 2], is_bad: bool) -> SceneLink {
    let mut keys = Keys::new();
    draw.key(&mut keys, "rate", &["\"100mbit\"", "\"1gbit\"", "\"1mbit\"", "\"8mbit\"", ""]);
    draw.key(&mut keys, "delay", &["", "\"1ms\"", "\"5ms\"", "\"40ms\""]);
    let has_rate = keys.iter().any(|(key, _)| *key == "rate");
    if !is_bad {
        return SceneLink { ends, keys, back: Keys::new() };
    }
    if has_rate {
        draw.key(&mut keys, "qdisc", QDISCS);
    }
    draw.key(&mut keys, "jitter", &["", "", "\"1ms\"", "\"20ms\""]);
    draw.key(&mut keys, "loss", &["", "", "\"0.5%\"", "\"3%\"", "\"12%\""]);
    draw.key(&mut keys, "reorder", &["", "", "\"1%\"", "\"20%\""]);
    draw.key(&mut keys, "duplicate", &["", "", "\"1%\"", "\"20%\""]);
    draw.key(&mut keys, "corrupt", &["", "", "\"0.5%\"", "\"4%\""]);
    draw.key(&mut keys, "burst", BURSTS);
    draw.key(&mut keys, "down", OUTAGES);
    let mut back = Keys::new();
    if draw.falls(0.3) {
        draw.key(&mut back, "loss", &["", "\"0%\"", "\"20%\""]);
        draw.key(&mut back, "delay", &["", "\"150ms\""]);
        draw.key(&mut back, "down", OUTAGES);
    }
    SceneLink { ends, keys, back }
}

const QDISCS: &[&str] = &[
    "",
    "\"pfifo limit 2\"",
    "\"pfifo limit 20\"",
    "\"bfifo limit 9kb\"",
    "\"codel\"",
    "\"fq_codel flows 8\"",
    "\"pie\"",
    "\"cobalt\"",
    "\"red limit 60kb min 10kb max 30kb\"",
    "\"tbf rate 4mbit burst 5kb limit 20kb\"",
];

const BURSTS: &[&str] = &[
    "",
    "",
    "",
    "{ enter = \"0.5%\", leave = \"30%\" }",
    "{ enter = \"2%\", leave = \"20%\", lost = \"80%\" }",
];

/// Outages of a link, one of which is chosen: none, short, long, repeated, or permanent.
const OUTAGES: &[&str] = &[
    "",
    "",
    "",
    "",
    "",
    "[{ at = \"400ms\", for = \"300ms\" }]",
    "[{ at = \"100ms\", for = \"5s\" }]",
    "[{ at = \"1s\", for = \"45s\" }]",
    "[{ at = \"200ms\", for = \"1s\" }, { at = \"2s\", for = \"4s\" }]",
    "[{ at = \"500ms\", for = \"20min\" }]",
    "[{ at = \"700ms\" }]",
];

/// Adds random stalls of programs to a flow, and sometimes an early leave.
fn draw_stalls(draw: &mut Draw, keys: &mut Keys) {
    if draw.falls(0.3) {
        let stalls: Vec<String> = (0..draw.pick(&[1, 1, 2, 4]))
            .map(|_| {
                let (end, what) =
                    (draw.pick(&["from", "to"]), draw.pick(&["read", "read", "write"]));
                let at = draw.pick(&["0", "50ms", "400ms", "2s", "15s"]);
                let length = draw.pick(&["10ms", "1s", "6s", "6s", "90s", "15min"]);
                format!(
                    "{{ end = \"{end}\", what = \"{what}\", at = \"{at}\", for = \"{length}\" }}"
                )
            })
            .collect();
        keys.push(("stall", format!("[{}]", stalls.join(", "))));
    }
    if draw.falls(0.2) {
        let (end, how) = (draw.pick(&["from", "to"]), draw.pick(&["close", "reset"]));
        let at = draw.pick(&["60ms", "310ms", "500ms", "1s", "4s", "22s", "2min"]);
        keys.push(("leave", format!("[{{ end = \"{end}\", how = \"{how}\", at = \"{at}\" }}]")));
    }
}
