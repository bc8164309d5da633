//! Generates random worlds, and checks rules after each event.
//!
//! [`RandomWorld::draw`] generates a world from a seed, and [`check`] runs it and checks the rules.
//! [`shrink`] minimizes a world that violates a rule.
//!
//! # Rules
//! * Each end of an exchange reads a prefix of the bytes that its peer wrote.
//! * Nothing follows RST or FIN on the wire. New bytes lie in the window that the peer advertised.
//! * Acknowledgements and the window's right edge never decrease. SACK blocks are valid.
//! * After each turn of a host, the rules of `Connection::audit` hold for its connections.
//! * An exchange completes. Failures are allowed only with long outages or stalls, or high loss.
//! * TCP reports no failure before R2 of RFC 9293 section 3.8.3.
//! * In the end no host has a socket, a 4-tuple, or a timer. No link has a packet, and the buffers
//!   of all packets are back in the pool.

mod scene;
mod shrink;

use std::net::SocketAddr;

use towpath_link::Loss;

use crate::scenario::{FlowPlan, Plan, Traffic, WayPlan};
use crate::traffic::{Tally, port_of};
use crate::watch::Watch;
use crate::world::World;

pub use crate::fault::RuleFault;
pub use scene::RandomWorld;
pub use shrink::{Shrunk, shrink};

/// Additional rules that a world is checked against.
#[derive(Debug, Clone, Copy, Default)]
pub struct ExtraRules {
    /// Maximum number of payload bytes that may arrive in a world: an artificial rule for tests of
    /// the shrinker.
    pub bytes_max: Option<u64>,
}

/// Totals of a world that violated no rule.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Outcome {
    /// Number of events of all links and hosts.
    pub events: u64,
    /// Number of payload bytes that all flows received.
    pub bytes: u64,
    /// Number of exchanges that completed at both ends.
    pub whole: u64,
    /// Number of ends of exchanges that failed where a failure is permitted.
    pub failed: u64,
}

/// Maximum number of events in a world. The bytes that a world transfers require thousands of times
/// fewer events.
const EVENTS_MAX: u64 = 2_000_000;

/// Maximum number of events at one point of virtual time. A host that exceeds it schedules itself
/// in an endless loop.
const MOMENT_EVENTS_MAX: u64 = 20_000;

/// Time in ns to wait for cleanup after the programs have ended. An orphaned connection takes
/// longest: its retransmission timeout doubles up to two minutes, and TIME-WAIT follows.
const AFTERMATH_NS: u64 = 3_600_000_000_000;

/// Total length in ns of outages and stalls that must not end a connection. Even an orphaned
/// connection survives them: eight doublings of its timeout of 200 ms take 102 s.
const HARMLESS_NS: u64 = 15_000_000_000;

/// Probability of survival below which a transfer may fail. At a loss rate of 25 %, nine losses in
/// a row happen once in 260,000 packets.
const SURVIVAL_MIN: f64 = 0.75;

/// Minimum of R2 for data: "SHOULD correspond to at least 100 seconds" (RFC 9293 section 3.8.3,
/// SHLD-11).
const R2_NS: u64 = 100_000_000_000;
/// Minimum of R2 for a SYN: "at least 3 minutes" (RFC 9293 section 3.8.3, MUST-23).
const R2_SYN_NS: u64 = 180_000_000_000;

/// Runs a world, and checks the rules after every step.
///
/// # Errors
/// Returns the first violation of a rule.
pub fn check(plan: &Plan, seed: u64, rules: ExtraRules) -> Result<Outcome, RuleFault> {
    let mut world = World::new(plan, seed, None);
    world.watch = Some(Watch::default());
    run(&mut world, plan.duration_ns)?;
    let outcome = verdict(plan, &mut world)?;
    if let Some(max) = rules.bytes_max.filter(|max| outcome.bytes > *max) {
        let what = format!("{} bytes arrived", outcome.bytes);
        return Err(RuleFault { rule: format!("no more than {max} bytes arrive"), what });
    }
    world.end_programs();
    run(&mut world, plan.duration_ns + AFTERMATH_NS)?;
    match world.leftovers() {
        None => Ok(Outcome { events: world.events, ..outcome }),
        Some(what) => Err(RuleFault { rule: "nothing is left when all is over".into(), what }),
    }
}

/// Handles the events of a world until the time `end`, or until the world is idle.
fn run(world: &mut World, end: u64) -> Result<(), RuleFault> {
    let (mut moment, mut events) = (world.now, world.events);
    while world.next_event().is_some_and(|at| at <= end) {
        world.step();
        if world.now != moment {
            (moment, events) = (world.now, world.events);
        } else if world.events - events > MOMENT_EVENTS_MAX {
            let what = format!("{MOMENT_EVENTS_MAX} events at {:.6} s", moment as f64 / 1e9);
            return Err(RuleFault { rule: "time goes on".into(), what });
        }
        if let Some(fault) = world.watch.as_mut().and_then(|watch| watch.fault.take()) {
            return Err(fault);
        }
        if world.events > EVENTS_MAX {
            let what = format!("{} events at {:.3} s", world.events, world.now as f64 / 1e9);
            return Err(RuleFault { rule: "a world comes to rest".into(), what });
        }
    }
    world.now = world.now.max(end);
    Ok(())
}

/// State of one end of an exchange at the end of a run.
#[derive(Debug, Default, Clone)]
struct EndState {
    bytes: u64,
    is_whole: bool,
    failure: Option<(String, u64)>,
    left_ns: Option<u64>,
    ended_early: Option<(u64, u64)>,
    wrong_bytes: Option<String>,
}

impl EndState {
    fn of(tally: &Tally) -> Self {
        let failed_ns = tally.failed_ns.unwrap_or_default();
        Self {
            bytes: tally.bytes,
            is_whole: tally.completed_ns.is_some(),
            failure: tally.failure.clone().map(|reason| (reason, failed_ns)),
            left_ns: tally.left_ns,
            ended_early: tally.ended_early,
            wrong_bytes: tally.wrong_bytes.clone(),
        }
    }
}

/// Checks the state of each flow at the end of a run.
fn verdict(plan: &Plan, world: &mut World) -> Result<Outcome, RuleFault> {
    let mut ends = vec![[EndState::default(), EndState::default()]; plan.flows.len()];
    world.each_tally(|flow, is_source, tally| {
        ends[flow][usize::from(!is_source)] = EndState::of(tally);
    });
    let mut outcome = Outcome::default();
    for (number, (flow, ends)) in plan.flows.iter().zip(&ends).enumerate() {
        outcome.bytes += ends.iter().map(|end| end.bytes).sum::<u64>();
        let fault = |rule: &str, what: String| {
            Err(RuleFault { rule: rule.to_owned(), what: format!("flow {}: {what}", flow.name) })
        };
        for end in ends {
            if let Some(wrong) = &end.wrong_bytes {
                return fault("what is received is a prefix of what was sent", wrong.clone());
            }
        }
        if !matches!(flow.traffic, Traffic::Exchange { .. }) {
            continue;
        }
        outcome.whole += u64::from(ends.iter().all(|end| end.is_whole));
        outcome.failed += ends.iter().filter(|end| end.failure.is_some()).count() as u64;
        if let Some((rule, what)) = judge(plan, world, number, ends) {
            return fault(rule, what);
        }
    }
    Ok(outcome)
}

/// Returns the rule that an exchange violates, with details. `None` if it violates no rule.
fn judge(
    plan: &Plan,
    world: &World,
    number: usize,
    ends: &[EndState; 2],
) -> Option<(&'static str, String)> {
    let flow = &plan.flows[number];
    let [from, to] = ends;
    let has_left = ends.iter().any(|end| end.left_ns.is_some());
    for (end, other) in [(from, to), (to, from)] {
        if let Some((got, all)) = end.ended_early
            && (got > all || other.left_ns.is_none())
        {
            let what = format!("the stream ends after {got} bytes of {all}");
            return Some(("a stream ends where its writer ended it", what));
        }
    }
    for (end, other, host) in [(from, to, flow.from), (to, from, flow.to)] {
        let Some((reason, at)) = &end.failure else { continue };
        let is_reset = matches!(reason.as_str(), "Reset" | "Refused");
        if is_reset
            && other.left_ns.is_none()
            && other.failure.is_none()
            && !is_disturbed(plan, flow)
        {
            return Some(("no peer resets without a reason", format!("{ends:?}")));
        }
        if is_reset || !matches!(reason.as_str(), "TimedOut" | "HostUnreachable") {
            continue;
        }
        let server = SocketAddr::from((plan.hosts[flow.to].address, port_of(number)));
        let watch = world.watch.as_ref()?;
        let heard = watch.last_heard(host, server, *at);
        // Allow a failure before R2 if ARP cannot resolve the host, because no segment was
        // answered.
        if heard.is_none() && reason == "HostUnreachable" {
            continue;
        }
        let (since, r2) = match heard {
            Some(heard) => (at - heard, R2_NS),
            None => (at - flow.start_ns, R2_SYN_NS),
        };
        if since < r2 {
            let what = format!("{reason} after {:.3} s of silence", since as f64 / 1e9);
            return Some(("no connection is given up before R2", what));
        }
    }
    if has_left || is_disturbed(plan, flow) {
        return None;
    }
    let reason = from.failure.as_ref().map(|(reason, _)| reason.as_str());
    let never_found = ends.iter().all(|end| end.bytes == 0)
        && matches!(reason, Some("HostUnreachable" | "TimedOut"));
    let is_whole = ends.iter().all(|end| end.is_whole);
    (!is_whole && !never_found)
        .then(|| ("an exchange that nothing disturbs arrives whole", format!("{ends:?}")))
}

/// Returns whether outages or stalls are long enough to end a connection of the flow.
fn is_disturbed(plan: &Plan, flow: &FlowPlan) -> bool {
    let ways = plan.links.iter().flat_map(|link| &link.ways);
    let outages = ways.flat_map(|way| &way.outages);
    let outages = outages.map(|outage| outage.until_ns.saturating_sub(outage.from_ns));
    let stalls = flow.stalls.iter().map(|stall| stall.until_ns - stall.from_ns);
    let length = outages.chain(stalls).fold(0, u64::saturating_add);
    length > HARMLESS_NS || survival(plan) < SURVIVAL_MIN
}

/// Returns the probability that a packet and its response both arrive, over all links. Burst losses
/// count as certain loss, because a burst may hit all eight retransmissions of an orphaned
/// connection.
fn survival(plan: &Plan) -> f64 {
    let ways = plan.links.iter().flat_map(|link| &link.ways);
    let of_way = |way: &WayPlan| {
        let loss = match way.config.loss {
            Loss::Random(chance) => chance.probability.value(),
            Loss::GilbertElliott { .. } | Loss::Numbered { .. } => 1.,
        };
        (1. - loss) * (1. - way.config.corrupt.probability.value())
    };
    ways.map(of_way).product()
}

/// Parses a scenario, and checks its first plan with the plan's own seed.
///
/// # Errors
/// Returns an error in the text, or the first violation of a rule.
pub fn check_text(text: &str, rules: ExtraRules) -> Result<Outcome, RuleFault> {
    let plans = crate::scenario::read(text).map_err(|error| RuleFault {
        rule: "the scenario is read".into(),
        what: error.to_string(),
    })?;
    let Some(plan) = plans.first() else { return Ok(Outcome::default()) };
    check(plan, plan.seed, rules)
}
