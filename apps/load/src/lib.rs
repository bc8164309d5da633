//! A load tester: closed and open loop, over TCP, UDP, HTTP/1.1 and the redis protocol.
//!
//! [`run`] executes a [`Plan`] against a server, passes a [`ReportSnapshot`] to a callback once per
//! period, and returns a [`Report`]:
//!
//! ```no_run
//! use std::sync::atomic::AtomicBool;
//! use std::time::Duration;
//! use towpath_load::{Plan, Target, run};
//!
//! let mut plan = Plan::new(Target::resolve("127.0.0.1:7")?);
//! plan.users = 50;
//! plan.duration = Duration::from_secs(3);
//! plan.interval = Duration::from_millis(10);
//! let report = run(&plan, &AtomicBool::new(false), &mut |now| eprintln!("{}", now.sent))?;
//! println!("{} answers, p99 {:?}", report.received, report.response.quantile(0.99));
//! # Ok::<(), towpath_load::Error>(())
//! ```
//!
//! Two times of each request are recorded in histograms of three digits:
//!
//! ```text
//!   intended          sent              answered
//!      |----lateness----|-----service-----|
//!      |-------------response-------------|
//! ```
//!
//! In an open loop ([`Arrivals::Open`]) the intended time comes from a schedule that the server
//! cannot delay. A stall of the server then increases the response time of every request that was
//! due during the stall. A closed loop would count such a stall once. Neither histogram is
//! corrected for coordinated omission.
//!
//! Reading order:
//!
//! - `plan` and `report`: input and output;
//! - `run`: threads and phases; `worker`: the loop of a thread;
//! - `pace`, using `schedule`: when requests are due;
//! - `crowd`: a thread's users; `user`: a connection and its requests; `stream`: bulk transfer;
//! - `request`: HTTP requests; `answer` with `response` and `redis`: the end of an answer;
//! - `verdict`: outcome of an answer;
//! - `sockets`, `alarm` and `machine`: access to the kernel;
//! - `tally`: counters; `moments`: state shared by all threads;
//! - [`results`]: output formats of reports.

#![forbid(unsafe_code)]
#![warn(missing_docs)]

mod alarm;
mod answer;
mod crowd;
mod error;
mod failure;
mod histogram;
mod machine;
mod moments;
mod pace;
mod plan;
mod redis;
mod report;
mod request;
mod response;
pub mod results;
mod run;
mod schedule;
mod sockets;
mod stream;
mod tally;
mod user;
mod verdict;
mod worker;

pub use error::Error;
pub use failure::{Failure, FailureCount, Failures};
pub use histogram::{Bucket, Histogram};
pub use plan::{
    Arrivals, LoadPlanError, Plan, PlannedAnswer, Protocol, RANDOM, Shape, Spacing, Target,
};
pub use report::{Ended, FellBehind, Generator, Period, Report, ReportSnapshot, RunPhase};
pub use request::{Header, HttpRequest, HttpUrl};
pub use run::run;
