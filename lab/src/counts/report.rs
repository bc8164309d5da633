//! Formats counts as Markdown tables or as JSON.

use std::collections::BTreeMap;

use serde_json::{Value, json};

use super::copies::{self, Copied};
use super::names::name;
use super::workloads::{Cost, Costs, Unit, Workload};
use crate::bench::sides::Side;
use crate::figures::Figure;

/// Minimum number of calls per unit that a table lists.
const LISTED_MIN: f64 = 0.05;
/// Minimum fraction of all copied bytes from which code is listed.
const COPIED_MIN: f64 = 0.01;

/// A count, with a description of what was counted.
pub struct Counted {
    pub what: String,
    pub each: f64,
}

/// Counts of one process, or of all processes of a program, per request, connection or MiB.
pub struct Row {
    work: &'static str,
    unit: &'static str,
    side: String,
    process: &'static str,
    calls: f64,
    /// Calls by name, the most frequent first.
    by_name: Vec<(String, f64)>,
    voluntary: f64,
    involuntary: f64,
    faults: f64,
    copied: Option<Copies>,
}

/// Copies per request, connection or MiB.
struct Copies {
    copies: f64,
    kib: f64,
    /// KiB by call site, the largest first.
    by_place: Vec<(String, f64)>,
}

impl Copies {
    fn of(all: &[Copied], each: impl Fn(u64) -> f64) -> Self {
        let mut by_place = BTreeMap::<&str, u64>::new();
        for it in all {
            *by_place.entry(&it.place).or_default() += it.bytes;
        }
        let kib = |bytes: u64| each(bytes) / 1024.;
        let mut by_place: Vec<_> =
            by_place.into_iter().map(|(place, bytes)| (place.to_owned(), kib(bytes))).collect();
        by_place.sort_by(|a, b| b.1.total_cmp(&a.1));
        Self {
            copies: each(all.iter().map(|it| it.copies).sum()),
            kib: kib(all.iter().map(|it| it.bytes).sum()),
            by_place,
        }
    }

    /// Formats lines that name the copying code.
    fn lines(&self) -> Vec<String> {
        let mut by_name = BTreeMap::<String, f64>::new();
        for (place, kib) in &self.by_place {
            *by_name.entry(copies::name(place)).or_default() += kib;
        }
        by_name.retain(|_, kib| *kib >= self.kib * COPIED_MIN);
        let mut by_name: Vec<_> = by_name.into_iter().collect();
        by_name.sort_by(|a, b| b.1.total_cmp(&a.1));
        by_name.iter().map(|(name, kib)| format!("  {kib:10.2} KiB  {name}")).collect()
    }
}

impl Row {
    /// Creates the rows of the engine, if it has its own process, and of the program.
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
                copied: cost.copied.as_ref().map(|all| Copies::of(all, each)),
            }
        };
        let engine = costs.engine.iter().map(|cost| row("engine", cost));
        engine.chain([row("program", &costs.program)]).collect()
    }

    /// Returns the counts to compare: system calls, context switches, and copies if they were
    /// counted.
    pub fn counted(&self) -> Vec<Counted> {
        let Self { work, side, process, .. } = self;
        let mut all = vec![("system calls", self.calls), ("sleeps", self.voluntary)];
        if let Some(copied) = &self.copied {
            all.extend([("copies", copied.copies), ("KiB copied", copied.kib)]);
        }
        let counted =
            |(count, each)| Counted { what: format!("{work}, {side}, {process}, {count}"), each };
        all.into_iter().map(counted).collect()
    }

    fn line(&self) -> String {
        let Self { work, unit, side, process, calls, .. } = self;
        let Self { voluntary, involuntary, faults, .. } = self;
        let often = self.by_name.iter().filter(|(_, each)| *each >= LISTED_MIN);
        let names: Vec<String> = often.map(|(name, each)| format!("{name} {each:.2}")).collect();
        let copied = match &self.copied {
            Some(Copies { copies, kib, .. }) => format!("{copies:.2} | {kib:.2}"),
            None => "missing | missing".to_owned(),
        };
        format!(
            "| {work} | {unit} | {side} | {process} | {calls:.2} | {voluntary:.2} | {copied} | \
             {involuntary:.2} | {faults:.2} | {} |",
            names.join(", ")
        )
    }

    fn json(&self) -> Value {
        let copied = self.copied.as_ref();
        json!({
            "work": self.work, "unit": self.unit, "side": self.side, "process": self.process,
            "system_calls": self.calls,
            "by_name": self.by_name.iter().cloned().collect::<BTreeMap<_, _>>(),
            "sleeps": self.voluntary, "preemptions": self.involuntary, "page_faults": self.faults,
            "copies": copied.map(|it| it.copies), "kib_copied": copied.map(|it| it.kib),
            "kib_copied_by_place": copied
                .map(|it| it.by_place.iter().cloned().collect::<BTreeMap<_, _>>()),
        })
    }
}

impl Unit {
    const fn name(self) -> &'static str {
        match self {
            Self::Request => "request",
            Self::Connection => "connection",
            Self::Mib => "MiB",
        }
    }
}

/// Report, printed incrementally.
pub struct Rows {
    is_json: bool,
    /// Whether copying code is listed.
    has_places: bool,
    rows: Vec<Value>,
    instructions: Value,
}

impl Rows {
    pub fn new(is_json: bool, has_places: bool) -> Self {
        Self { is_json, has_places, rows: Vec::new(), instructions: Value::Null }
    }

    /// Adds the rows of one workload and side.
    pub fn add(&mut self, rows: Vec<Row>) {
        if !self.is_json && self.rows.is_empty() {
            println!(
                "| work | each | side | process | system calls | sleeps | copies | KiB copied | \
                 preempted | page faults | calls by name |"
            );
            println!("|{}", "---|".repeat(11));
        }
        for row in rows {
            // Omit towpath's own process if the engine is in the program, because it does nothing.
            if !self.is_json && row.calls > 0. {
                println!("{}", row.line());
                if let Some(copied) = row.copied.as_ref().filter(|_| self.has_places) {
                    copied.lines().iter().for_each(|line| println!("{line}"));
                }
            }
            self.rows.push(row.json());
        }
    }

    /// Adds the counts of the stack's own instructions, by kind of work.
    pub fn add_instructions(&mut self, all: &[(&'static str, f64)]) {
        if !self.is_json {
            println!("\n| work | instructions a packet |\n|---|---|");
            all.iter().for_each(|(work, each)| println!("| {work} | {} |", Figure(*each)));
        }
        self.instructions =
            all.iter().map(|&(work, each)| (work.to_owned(), json!(each))).collect();
    }

    /// Ends the report with the comparison with another build, or null.
    pub fn end(self, beside: Value) {
        if self.is_json {
            let Self { rows, instructions, .. } = self;
            let all =
                json!({ "rows": rows, "instructions_a_packet": instructions, "beside": beside });
            println!("{all:#}");
        }
    }
}
