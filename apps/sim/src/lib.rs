//! A network simulator with the stack that ships, in virtual time.
//!
//! A scenario says which hosts, switches and links there are, and which flows go over them. Each
//! host is a [`towpath_direct::Node`], each direction of a link a [`towpath_link::Link`] with a
//! discipline of [`towpath_qdisc`] in front. Each world has one thread; time is a number that the
//! event loop moves, so that the same seed gives the same bytes.
//!
//! # Reading order
//! `scenario` makes a [`Plan`] of a file, with `units` and `queue` for its values. `world` is the
//! event loop over a `schedule`, with `wire` and `packet` for what moves and `traffic` for the
//! programs of the hosts. `trace` and `capture` look on. `run` samples a world, `batch` has
//! several, `result` is what they find, and `output` shows it. `explore` makes random worlds and
//! holds each step against rules.
//!
//! # Example
//! ```
//! use towpath_sim::{BatchOptions, read, run_all};
//!
//! let plans = read(r#"
//!     title = "A transfer"
//!     duration = "2s"
//!     topology = { kind = "pair", rate = "10mbit", delay = "10ms" }
//!     flow = [{ kind = "bulk", from = "a", to = "b", bytes = "1MB" }]
//! "#)?;
//! let options =
//!     BatchOptions { seed: None, runs: 1, captures: None, traces: false, threads: 1 };
//! let report = run_all(&plans, options, &|_| {})?;
//! let flow = &report.runs[0].flows[0];
//! assert_eq!(flow.bytes, 1_000_000);
//! assert!((0.8..1.1).contains(&flow.completion_s.unwrap()));
//! # Ok::<(), Box<dyn std::error::Error>>(())
//! ```

#![forbid(unsafe_code)]
#![warn(missing_docs)]

mod batch;
mod capture;
mod examples;
pub mod explore;
mod fault;
mod histogram;
mod output;
mod packet;
mod queue;
mod result;
mod run;
mod scenario;
mod schedule;
mod trace;
mod traffic;
mod units;
mod watch;
mod wire;
mod world;

pub use batch::{BatchOptions, RUNS_MAX, run_all};
pub use examples::{
    Bql, CardOptions, EchoReply, Example, ExampleReport, Latency, Load, LoadTransport,
    OnOffOptions, PingOptions, SendMode, SendOptions, TcOptions, text,
};
pub use output::{csv, html, json, series, svg, table};
pub use queue::qdisc_words;
pub use result::{
    DeviceResult, DeviceSeries, Figure, FlowResult, FlowSeries, LinkResult, LinkSeries, Report,
    RunResult, Summary, TimeDistribution,
};
pub use scenario::{Plan, ScenarioError, read};
pub use units::{Rate, Time};
