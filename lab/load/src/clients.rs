//! Clients: plans of the load tester, and the figures of its reports that benchmarks read.

use std::net::{Ipv4Addr, SocketAddr, UdpSocket};
use std::str::FromStr;
use std::sync::atomic::AtomicBool;
use std::time::Duration;

use anyhow::{Context, Result, bail, ensure};
use serde_json::{Value, json};
use towpath_load::{Failure, Plan, Protocol, Report, Shape, Target};

use crate::tally;

/// Measures requests on `count` connections: each sends `bytes`, waits for their echo, and repeats.
pub fn ask(to: SocketAddr, count: usize, bytes: usize, time: Duration) -> Result<Value> {
    let report = whole(&plan(to, count, bytes, time))?;
    Ok(tally::json(&report.response, report.duration))
}

/// Measures connections of `count` clients: each connects, sends `bytes`, waits for their echo,
/// closes, and repeats. Times include the connect.
pub fn churn(to: SocketAddr, count: usize, bytes: usize, time: Duration) -> Result<Value> {
    let mut plan = plan(to, count, bytes, time);
    plan.shape = Shape::ConnectEach;
    let report = whole(&plan)?;
    Ok(tally::json(&report.response, report.duration))
}

/// Measures `count` users that each send `bytes` once per `every` at a random phase, regardless of
/// answers. Times start when a request is due.
pub fn users(
    to: SocketAddr,
    count: usize,
    bytes: usize,
    every: Duration,
    time: Duration,
) -> Result<Value> {
    // Maximum number of requests in flight per user, more than a server leaves unanswered.
    const DEPTH: usize = 1024;
    let mut plan = plan(to, count, bytes, time);
    plan.shape = Shape::Idle { heartbeat: every };
    plan.depth = DEPTH;
    let report = run(&plan)?;
    expect_only(&report, Failure::Unanswered)?;
    // Include the ages of unanswered requests as lower bounds of their times. Otherwise the slowest
    // stack would look best.
    let mut times = report.response.clone();
    times.merge(&report.lost);
    let mut said = tally::json(&times, report.duration);
    said["unanswered"] = report.failures.count(Failure::Unanswered).into();
    // Requests that were due just before the end, when this process was not scheduled.
    said["unsent"] = report.generator.unsent.into();
    Ok(said)
}

/// Direction of a bulk transfer.
#[derive(Clone, Copy, PartialEq, Eq)]
pub enum Way {
    In,
    Out,
    Both,
}

impl FromStr for Way {
    type Err = anyhow::Error;

    fn from_str(word: &str) -> Result<Self> {
        Ok(match word {
            "in" => Self::In,
            "out" => Self::Out,
            "both" => Self::Both,
            _ => bail!("\"{word}\" is not a direction: expected in, out or both"),
        })
    }
}

/// Measures bulk transfer over `flows` connections per requested direction, with a thread per flow.
/// Counts only bytes that have arrived, because the server closes after receiving all.
pub fn bulk(to: SocketAddr, way: Way, flows: usize, time: Duration) -> Result<Value> {
    // Length in bytes of the pattern that a stream repeats.
    const PATTERN: usize = 1024;
    let stream = |offset: u16, shape: Shape| {
        let to = SocketAddr::new(to.ip(), to.port() + offset);
        let mut plan = plan(to, flows, PATTERN, time);
        plan.shape = shape;
        plan.threads = flows;
        plan.grace = PATIENCE;
        whole(&plan)
    };
    let (into, from) = std::thread::scope(|scope| {
        let into = scope.spawn(|| match way {
            Way::Out => Ok(0.),
            _ => stream(1, Shape::StreamUp).map(|report| report.bits_sent()),
        });
        let from = match way {
            Way::In => Ok(0.),
            _ => stream(2, Shape::StreamDown).map(|report| report.bits_received()),
        };
        (into.join().expect("a thread of ours"), from)
    });
    let (into, from) = (into?, from?);
    Ok(json!({ "in": into, "out": from, "both": into + from }))
}

/// Measures echoes of datagrams: `window` are in flight, and each returned or lost one is replaced.
pub fn echo(to: SocketAddr, window: usize, len: usize, time: Duration) -> Result<Value> {
    let mut plan = plan(to, 1, len, time);
    plan.protocol = Protocol::Udp;
    plan.numbered = true;
    plan.depth = window;
    plan.timeout = LOST;
    let report = run(&plan)?;
    expect_only(&report, Failure::NoAnswer)?;
    let mut said = tally::json(&report.response, report.duration);
    said["lost"] = report.failures.count(Failure::NoAnswer).into();
    Ok(said)
}

/// Sends datagrams as fast as possible; the server counts those that arrive.
pub fn cast(to: SocketAddr, len: usize, time: Duration) -> Result<Value> {
    ensure!(len > 1, "a datagram of {len} byte asks for the count; expected at least 2 bytes");
    let to = SocketAddr::new(to.ip(), to.port() + 1);
    let socket = UdpSocket::bind((Ipv4Addr::UNSPECIFIED, 0))?;
    socket.connect(to)?;
    socket.set_read_timeout(Some(LOST))?;
    let before = counted(&socket)?;
    let mut plan = plan(to, 1, len, time);
    plan.protocol = Protocol::Udp;
    plan.shape = Shape::StreamUp;
    let report = whole(&plan)?;
    let received = counted(&socket)? - before;
    let a_second = |count: u64| count as f64 / report.duration.as_secs_f64();
    Ok(json!({ "received": a_second(received), "sent": a_second(report.sent) }))
}

/// Time after which a datagram counts as lost, longer than transit through one machine takes.
const LOST: Duration = Duration::from_millis(100);
/// Timeout of connects, and of the close of streams.
const PATIENCE: Duration = Duration::from_secs(30);

fn plan(to: SocketAddr, users: usize, bytes: usize, time: Duration) -> Plan {
    let mut plan = Plan::new(Target::from(to));
    plan.users = users;
    plan.message = vec![0; bytes];
    plan.duration = time;
    plan.connect_timeout = PATIENCE;
    plan
}

fn run(plan: &Plan) -> Result<Report> {
    Ok(towpath_load::run(plan, &AtomicBool::new(false), &mut |_| {})?)
}

/// Runs a plan, and fails if the report has any failure.
fn whole(plan: &Plan) -> Result<Report> {
    let report = run(plan)?;
    if let Some(it) = report.failures.iter().next() {
        bail!("{}: {} times: {}", it.kind, it.count, it.example);
    }
    Ok(report)
}

fn expect_only(report: &Report, kind: Failure) -> Result<()> {
    match report.failures.iter().find(|it| it.kind != kind) {
        Some(other) => bail!("{}: {} times: {}", other.kind, other.count, other.example),
        None => Ok(()),
    }
}

/// Queries the number of datagrams that the server has received.
fn counted(socket: &UdpSocket) -> Result<u64> {
    const TIMES: u32 = 50;
    let mut count = [0; 8];
    for _ in 0..TIMES {
        // Ignore an error. The query is repeated, as one that was lost.
        let _ = socket.send(&[0]);
        if socket.recv(&mut count).is_ok_and(|len| len == count.len()) {
            return Ok(u64::from_be_bytes(count));
        }
    }
    Err(anyhow::Error::msg("no answer in 5 s")).context("ask the server for its count")
}
