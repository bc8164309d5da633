//! What was counted, as tables of Markdown or as JSON.

use std::collections::BTreeMap;

use serde_json::{Value, json};

use super::expected::Counted;
use super::names::name;
use super::workloads::{Cost, Costs, Unit, Workload};
use crate::bench::sides::Side;
use crate::figures::Figure;

/// Calls that are rarer are not listed in a table.
const LISTED_MIN: f64 = 0.05;

/// What one process, or all of a program's, did for each request, connection or MiB.
pub struct Row {
    work: &'static str,
    unit: &'static str,
    side: String,
    process: &'static str,
    calls: f64,
    /// By name, the most frequent first.
    by_name: Vec<(String, f64)>,
    voluntary: f64,
    involuntary: f64,
    faults: f64,
}

impl Row {
    /// The engine's, if it has a process, and the program's.
    pub fn of(work: &Workload, side: Side, costs: &Costs) -> Vec<Self> {
        let row = |process, cost: &Cost| {
            let each = |count: u64| count as f64 / f64::from(costs.count);
            let mut by_number = BTreeMap::<i64, u64>::new();
            for (&(_, number), count) in &cost.calls {
                *by_number.entry(number).or_default() += count;
            }
            let mut by_name: Vec<_> =
                by_number.iter().map(|(&number, &count)| (name(number), each(count))).collect();
            by_name.sort_by(|a, b| b.1.total_cmp(&a.1));
            Self {
                work: work.name,
                unit: work.unit.name(),
                side: side.to_string(),
                process,
                calls: each(by_number.values().sum()),
                by_name,
                voluntary: each(cost.scheduled.voluntary),
                involuntary: each(cost.scheduled.involuntary),
                faults: each(cost.scheduled.faults),
            }
        };
        let engine = costs.engine.iter().map(|cost| row("engine", cost));
        engine.chain([row("program", &costs.program)]).collect()
    }

    /// What is held to a number: system calls and sleeps.
    pub fn asserted(&self, unit: Unit) -> [Counted; 2] {
        let Self { work, side, process, .. } = self;
        [("system calls", self.calls), ("sleeps", self.voluntary)].map(|(count, each)| Counted {
            what: format!("{work}, {side}, {process}, {count}"),
            each,
            unit,
        })
    }

    fn json(&self) -> Value {
        json!({
            "work": self.work, "unit": self.unit, "side": self.side, "process": self.process,
            "system_calls": self.calls, "by_name": self.by_name.iter().cloned().collect::<BTreeMap<_, _>>(),
            "sleeps": self.voluntary, "preemptions": self.involuntary, "page_faults": self.faults,
        })
    }
}

impl Unit {
    const fn name(self) -> &'static str {
        match self {
            Self::Request => "request",
            Self::Connection => "connection",
            Self::Mib => "MiB",
            Self::Packet => "packet",
        }
    }
}

/// The report as it comes.
pub struct Rows {
    is_json: bool,
    rows: Vec<Value>,
    instructions: Value,
}

impl Rows {
    pub fn new(is_json: bool) -> Self {
        Self { is_json, rows: Vec::new(), instructions: Value::Null }
    }

    /// Those of one workload and side.
    pub fn add(&mut self, rows: Vec<Row>) {
        if !self.is_json && self.rows.is_empty() {
            println!(
                "| work | each | side | process | system calls | sleeps | preempted | page faults | calls by name |"
            );
            println!("|---|---|---|---|---|---|---|---|---|");
        }
        for row in rows {
            // Towpath's own process has nothing to do where the program has the engine.
            if !self.is_json && row.calls > 0. {
                let often = row.by_name.iter().filter(|(_, each)| *each >= LISTED_MIN);
                let names: Vec<String> =
                    often.map(|(name, each)| format!("{name} {each:.2}")).collect();
                let Row { work, unit, side, process, calls, .. } = &row;
                let Row { voluntary, involuntary, faults, .. } = &row;
                println!(
                    "| {work} | {unit} | {side} | {process} | {calls:.2} | {voluntary:.2} | {involuntary:.2} | {faults:.2} | {} |",
                    names.join(", ")
                );
            }
            self.rows.push(row.json());
        }
    }

    /// Of the stack alone, by kind of work.
    pub fn add_instructions(&mut self, all: &[(&'static str, f64)]) {
        if !self.is_json {
            println!("\n| work | instructions a packet |\n|---|---|");
            all.iter().for_each(|(work, each)| println!("| {work} | {} |", Figure(*each)));
        }
        self.instructions =
            all.iter().map(|&(work, each)| (work.to_owned(), json!(each))).collect();
    }

    pub fn end(self) {
        if self.is_json {
            let Self { rows, instructions, .. } = self;
            println!("{:#}", json!({ "rows": rows, "instructions_a_packet": instructions }));
        }
    }
}
