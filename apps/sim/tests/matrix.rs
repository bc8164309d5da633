//! Goodput and fairness of each congestion control algorithm, as tables of tests/golden.
//!
//! `TOWPATH_GOLDEN=write` updates the files. Review the differences before you commit.

use std::fmt::Write;
use std::path::Path;

use towpath_sim::{BatchOptions, RunResult, read, run_all};

const CONTROLS: [&str; 5] = ["reno", "cubic", "vegas", "bbr", "dctcp"];
/// Rate of the bottleneck in Mbit/s.
const RATE: f64 = 20.0;
/// Minimum queue of the bottleneck, in packets.
const QUEUE_MIN: usize = 4;

/// A path with a bottleneck.
#[derive(Debug, Clone, Copy)]
struct MatrixPath {
    rtt_ms: u32,
    /// Queue in percent of the bandwidth-delay product.
    queue_percent: u32,
    reorder_percent: f64,
    loss_percent: f64,
}

impl MatrixPath {
    /// Returns the queue in packets of 1500 bytes.
    fn queue(self) -> usize {
        let bdp = RATE * 1e6 / 8.0 * f64::from(self.rtt_ms) / 1e3;
        let packets = bdp * f64::from(self.queue_percent) / 100.0 / 1500.0;
        (packets.round() as usize).max(QUEUE_MIN)
    }

    /// Returns the duration of a run: time enough for some losses in congestion avoidance.
    fn seconds(self) -> u32 {
        match self.rtt_ms {
            ..10 => 3,
            10..50 => 8,
            _ => 20,
        }
    }

    fn scenario(self) -> String {
        let mut text = format!(
            "title = \"goodput\"\nduration = \"{}s\"\n[topology]\nkind = \"dumbbell\"\n\
             rate = \"{RATE}mbit\"\ndelay = \"{}us\"\nloss = \"{}%\"\nreorder = \"{}%\"\n\
             qdisc = \"pfifo limit {}\"\nback = {{ loss = \"0%\", reorder = \"0%\" }}\n\
             [[flow]]\nname = \"flow\"\nkind = \"bulk\"\nfrom = \"left1\"\nto = \"right1\"\n",
            self.seconds(),
            self.rtt_ms * 500,
            self.loss_percent,
            self.reorder_percent,
            self.queue(),
        );
        for control in CONTROLS {
            let set = format!("set = {{ \"flow.flow.congestion\" = \"{control}\" }}");
            writeln!(text, "[[variant]]\nname = \"{control}\"\n{set}").expect("a string");
        }
        text
    }

    /// Returns a line of the table: goodput in Mbit/s of each algorithm in the second half of the
    /// run.
    fn line(self) -> String {
        let order = if self.reorder_percent > 0.0 { "overtaking" } else { "in order" };
        let mut line = format!(
            "{:3} ms  {:4} packets  {order:10}  {:3} %",
            self.rtt_ms,
            self.queue(),
            self.loss_percent
        );
        for run in run(&self.scenario()) {
            write!(line, "  {:6.2}", late_goodputs(&run)[0]).expect("a string");
        }
        line + "\n"
    }
}

fn run(text: &str) -> Vec<RunResult> {
    let plans = read(text).unwrap_or_else(|error| panic!("{text}\n{error}"));
    let options = BatchOptions { seed: None, runs: 1, captures: None, traces: false, threads: 2 };
    run_all(&plans, options, &|_| {}).expect("no limit is reached").runs
}

/// Returns the goodput of each flow in the second half of a run, in Mbit/s.
fn late_goodputs(run: &RunResult) -> Vec<f64> {
    let late = |samples: &[f64]| {
        let late = &samples[samples.len() / 2..];
        late.iter().sum::<f64>() / late.len() as f64 / 1e6
    };
    run.flows.iter().map(|flow| late(&flow.series.goodput_bps)).collect()
}

fn check(name: &str, found: &str) {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join(format!("tests/golden/{name}.txt"));
    if std::env::var_os("TOWPATH_GOLDEN").is_some_and(|what| what == "write") {
        std::fs::write(&path, found).expect("the golden file");
    }
    let wanted = std::fs::read_to_string(&path).unwrap_or_default();
    assert!(found == wanted, "{name} gave\n{wanted}\nand gives now\n{found}");
}

fn check_matrix(name: &str, paths: impl Iterator<Item = MatrixPath>) {
    let mut table = format!(
        "Goodput in Mbit/s of one flow over {RATE} Mbit/s\n\n{:6}  {:12}  {:10}  {:5}",
        "RTT", "queue", "", "loss"
    );
    for control in CONTROLS {
        write!(table, "  {control:>6}").expect("a string");
    }
    table.push('\n');
    table.extend(paths.map(MatrixPath::line));
    check(name, &table);
}

fn paths(reorder_percent: f64) -> impl Iterator<Item = MatrixPath> {
    let losses = [0.0, 0.1, 1.0, 5.0];
    [1, 20, 100].into_iter().flat_map(move |rtt_ms| {
        [25, 100].into_iter().flat_map(move |queue_percent| {
            losses.into_iter().map(move |loss_percent| MatrixPath {
                rtt_ms,
                queue_percent,
                reorder_percent,
                loss_percent,
            })
        })
    })
}

#[test]
fn goodput_is_that_of_the_table() {
    let in_order = paths(0.0).filter(|it| it.queue_percent == 100 || it.rtt_ms == 20);
    let overtaking = paths(1.0).filter(|it| it.queue_percent == 100 && it.rtt_ms == 20);
    check_matrix("goodput", in_order.chain(overtaking));
}

mod nightly {
    use super::*;

    #[test]
    fn goodput_is_that_of_the_full_table() {
        check_matrix("goodput-full", paths(0.0).chain(paths(1.0)));
    }
}

/// Flows that share a bottleneck, by their algorithms and the delays of their first links.
struct Sharing {
    name: &'static str,
    flows: &'static [(&'static str, u32)],
}

const SHARINGS: &[Sharing] = &[
    Sharing { name: "2 reno", flows: &[("reno", 0), ("reno", 0)] },
    Sharing { name: "2 cubic", flows: &[("cubic", 0), ("cubic", 0)] },
    Sharing { name: "2 vegas", flows: &[("vegas", 0), ("vegas", 0)] },
    Sharing { name: "2 bbr", flows: &[("bbr", 0), ("bbr", 0)] },
    Sharing { name: "2 dctcp", flows: &[("dctcp", 0), ("dctcp", 0)] },
    Sharing { name: "4 reno", flows: &[("reno", 0), ("reno", 0), ("reno", 0), ("reno", 0)] },
    Sharing { name: "4 cubic", flows: &[("cubic", 0), ("cubic", 0), ("cubic", 0), ("cubic", 0)] },
    Sharing { name: "4 bbr", flows: &[("bbr", 0), ("bbr", 0), ("bbr", 0), ("bbr", 0)] },
    Sharing { name: "reno, cubic", flows: &[("reno", 0), ("cubic", 0)] },
    Sharing { name: "cubic, vegas", flows: &[("cubic", 0), ("vegas", 0)] },
    Sharing { name: "cubic, bbr", flows: &[("cubic", 0), ("bbr", 0)] },
    Sharing {
        name: "2 cubic, 2 bbr",
        flows: &[("cubic", 0), ("cubic", 0), ("bbr", 0), ("bbr", 0)],
    },
    Sharing { name: "reno, RTT x 4", flows: &[("reno", 0), ("reno", 30)] },
    Sharing { name: "cubic, RTT x 4", flows: &[("cubic", 0), ("cubic", 30)] },
    Sharing { name: "vegas, RTT x 4", flows: &[("vegas", 0), ("vegas", 30)] },
    Sharing { name: "bbr, RTT x 4", flows: &[("bbr", 0), ("bbr", 30)] },
];

impl Sharing {
    /// Returns a scenario with round trips of 20 ms plus twice the delay of the first link.
    fn scenario(&self) -> String {
        let is_dctcp = self.flows[0].0 == "dctcp";
        // DCTCP needs early marks.
        let queue = match is_dctcp {
            true => "red limit 150kb min 15kb max 60kb avpkt 1500 bandwidth 20mbit ecn",
            false => "pfifo limit 33",
        };
        let mut text = format!(
            "title = \"fairness\"\nduration = \"20s\"\n[[switch]]\nname = \"west\"\n[[switch]]\n\
             name = \"east\"\n[[link]]\nname = \"bottleneck\"\nbetween = [\"west\", \"east\"]\n\
             rate = \"{RATE}mbit\"\ndelay = \"10ms\"\nqdisc = \"{queue}\"\n"
        );
        for (at, (control, delay)) in self.flows.iter().enumerate() {
            for (side, switch, delay) in [("left", "west", *delay), ("right", "east", 0)] {
                let tcp = if is_dctcp { "tcp = \"ecn=on\"\n" } else { "" };
                write!(
                    text,
                    "[[host]]\nname = \"{side}{at}\"\n{tcp}[[link]]\nbetween = [\"{side}{at}\", \
                     \"{switch}\"]\nrate = \"1gbit\"\ndelay = \"{delay}ms\"\n"
                )
                .expect("a string");
            }
            write!(
                text,
                "[[flow]]\nkind = \"bulk\"\nfrom = \"left{at}\"\nto = \"right{at}\"\n\
                 start = \"{}ms\"\ncongestion = \"{control}\"\n",
                at * 100
            )
            .expect("a string");
        }
        text
    }

    fn line(&self) -> String {
        let runs = run(&self.scenario());
        let goodputs = late_goodputs(&runs[0]);
        let squares: f64 = goodputs.iter().map(|it| it * it).sum();
        let jain = goodputs.iter().sum::<f64>().powi(2) / squares / goodputs.len() as f64;
        let wait = runs[0].links.iter().map(|link| link.sojourn.mean_s * 1e3).fold(0.0, f64::max);
        let mut line = format!("{:16}  {jain:5.3}  {wait:4.1} ms ", self.name);
        goodputs.iter().for_each(|it| write!(line, "  {it:5.2}").expect("a string"));
        line + "\n"
    }
}

#[test]
fn flows_share_as_in_the_table() {
    let mut table =
        format!("Jain's index, mean wait, and goodput in Mbit/s of flows over {RATE} Mbit/s\n\n");
    table.extend(SHARINGS.iter().map(Sharing::line));
    check("fairness", &table);
}
