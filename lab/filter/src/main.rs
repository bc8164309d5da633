//! Measures the cost of evaluating an access list for a packet, and of compiling the list:
//!
//! ```sh
//! cargo run --release --manifest-path lab/Cargo.toml -p towpath-lab-filter -- 200 judge
//! cargo run --release --manifest-path lab/Cargo.toml -p towpath-lab-filter -- 1x compile
//! ```
//!
//! Reading order: `shape` generates rules and packets; `tuples` is another data structure, for
//! comparison. [`towpath_lab_measure`] describes the measurement. The last column has the size of
//! the compiled form in bytes, and the share of packets that a rule matched.
#![forbid(unsafe_code)]

mod tuples;

use std::error::Error;

use towpath_filter::{Fields, Rules};
use towpath_lab_filter::shape::{PACKETS, Shape, iface};
use towpath_lab_measure::{Counting, Run};
use tuples::Tuples;

#[global_allocator]
static ALLOCATOR: Counting = Counting;

const LENS: [u32; 3] = [10, 1000, 100_000];

fn main() -> Result<(), Box<dyn Error>> {
    let mut run = Run::from_arguments()?;
    for shape in Shape::ALL {
        for len in LENS {
            measure(&mut run, shape, len)?;
        }
    }
    Ok(())
}

fn measure(run: &mut Run, shape: Shape, len: u32) -> Result<(), Box<dyn Error>> {
    let case = |verb: &str| format!("{verb} {} {len}", shape.name());
    let verbs = ["compile", "judge", "linear", "tuples"].map(case);
    if !verbs.iter().any(|name| run.wants(name)) {
        return Ok(());
    }
    let list = shape.list(len);
    let compile = || Rules::compile(&list, iface).expect("all interfaces are known");
    let [compiling, judging, linear, tuples] = verbs;
    let rules = compile();
    let packets = shape.packets(&list);
    let matched = packets.iter().filter(|fields| rules.judge(fields).rule.is_some()).count();
    let made = made(&rules, &packets, matched);
    if run.wants(&compiling) {
        run.measure(compile);
        run.say(&compiling, &made)?;
    }
    if run.wants(&judging) {
        run.measure_batches(PACKETS as u64, || total(&packets, |fields| rules.judge(fields).rule));
        run.say(&judging, &made)?;
    }
    if run.wants(&linear) && len <= 1000 {
        let judge = |fields: &Fields| rules.judge_linear(fields).rule;
        run.measure_batches(PACKETS as u64, || total(&packets, judge));
        run.say(&linear, &made)?;
    }
    if run.wants(&tuples) {
        let other = Tuples::new(&list);
        let is_same = |fields: &Fields| other.find(fields) == rules.judge(fields).rule;
        assert!(packets.iter().all(is_same), "{tuples}: the structures do not agree");
        run.measure_batches(PACKETS as u64, || total(&packets, |fields| other.find(fields)));
        run.say(&tuples, &format!("{} tuples", other.len()))?;
    }
    Ok(())
}

/// Formats the size of the compiled form, the mean and maximum steps of an evaluation, and the
/// share of packets that match a rule.
fn made(rules: &Rules, packets: &[Fields], matched: usize) -> String {
    let efforts = || packets.iter().map(|fields| rules.effort(fields));
    let mean = |all: u32| f64::from(all) / PACKETS as f64;
    let nodes = mean(efforts().map(|effort| effort.nodes).sum());
    let compared = mean(efforts().map(|effort| effort.rules).sum());
    let nodes_max = efforts().map(|effort| effort.nodes).max().unwrap_or_default();
    let compared_max = efforts().map(|effort| effort.rules).max().unwrap_or_default();
    let bytes = rules.compiled_bytes();
    format!(
        "{bytes} B, nodes {nodes:.1} (at most {nodes_max}), rules {compared:.1} (at most \
         {compared_max}), {matched} of {PACKETS} match"
    )
}

/// Returns the sum of the matching rules' indices, so that the compiler cannot remove the lookups.
fn total(packets: &[Fields], find: impl Fn(&Fields) -> Option<u32>) -> u64 {
    packets.iter().map(|fields| find(fields).map_or(0, u64::from)).sum()
}
