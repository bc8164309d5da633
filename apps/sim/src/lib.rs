//! A network simulator that runs the production stack in virtual time.
//!
//! A scenario describes hosts, switches, links, and the flows between hosts. Each host is a
//! [`towpath_direct::Node`]. Each direction of a link is a [`towpath_link::Link`] behind a queueing
//! discipline of [`towpath_qdisc`]. A world runs on one thread, and its event loop advances the
//! time, so that equal seeds give identical results.
//!
//! # Reading order
//! `scenario` parses a file into a [`Plan`], with `units` and `queue` for its values. `world` is
//! the event loop over a `schedule`. `wire` and `packet` model links and packets, `traffic` the
//! programs on the hosts. `trace` and `capture` record packets. `run` samples a world, `batch`
//! executes several runs, `result` has their figures, and `output` formats these. `explore`
//! generates random worlds and checks rules after each step.
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
mod clock;
mod examples;
mod exit;
pub mod explore;
mod fault;
mod histogram;
mod host;
mod output;
mod packet;
mod queue;
mod realtime;
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
    OnOffOptions, PingOptions, RealCard, SendMode, SendOptions, TcOptions, text,
};
pub use output::{csv, html, json, series, svg, table};
pub use queue::qdisc_words;
pub use realtime::{
    MAX_LAG, PROGRAM, RealPort, RealPorts, RealtimeOptions, Through, UPLINK, device_words,
    run_in_real_time,
};
pub use result::{
    DeviceResult, DeviceSeries, Figure, FlowResult, FlowSeries, LagBucket, LinkResult, LinkSeries,
    RealtimeResult, Report, RunResult, Summary, TimeDistribution,
};
pub use scenario::{HostDevice, Plan, ScenarioError, read};
pub use units::{Rate, Time};
