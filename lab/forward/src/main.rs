//! Measures a router on one core, with frames of 64 bytes on in-memory ports:
//!
//! ```sh
//! cargo run --release --manifest-path lab/Cargo.toml -p towpath-lab-forward -- 500 forward
//! cargo run --release --manifest-path lab/Cargo.toml -p towpath-lab-forward -- 200 look-ups
//! cargo run --release --manifest-path lab/Cargo.toml -p towpath-lab-forward -- 3000 updates
//! ```
//!
//! Reading order: `router` is measured, `port` has its links, `table` its routes, and `frames` the
//! packets. [`towpath_lab_measure`] describes the measurement. The first figure is in ns per packet
//! or lookup.
#![forbid(unsafe_code)]

mod frames;
mod lookups;
mod port;
mod router;
mod table;
mod updates;

use std::error::Error;
use std::io::Write;
use std::time::Duration;

use router::{BURST, EngineRouter, Router};
use towpath_filter::{Action, RuleList, Rules};
use towpath_lab_filter::shape::{PACKETS, Shape, iface};
use towpath_lab_measure::{Counting, Run};
use towpath_pool::{Batch, Pool, Port};
use towpath_wire::Prefix;

#[global_allocator]
static ALLOCATOR: Counting = Counting;

const ROUTES: [usize; 3] = [1, 100_000, 1_000_000];
/// Number of IPv4 routes per IPv6 route, about as in BGP tables.
const V6_PART: usize = 5;
const RULES: [u32; 3] = [10, 1000, 100_000];

fn main() -> Result<(), Box<dyn Error>> {
    let mut run = Run::from_arguments()?;
    ports_alone(&mut run)?;
    for count in ROUTES {
        let names = ["forward", "look-ups", "tree look-ups", "other look-ups", "updates"];
        let names = names.map(|verb| format!("{verb}, {count} routes"));
        if !names.iter().any(|name| run.wants(name)) {
            continue;
        }
        let routes = table::routes(count);
        let destinations = table::destinations(&routes);
        let [forward, look_ups, tree, other, updates] = names;
        if run.wants(&forward) {
            let mut router = Router::new(frames::datagrams(&destinations), &routes, None, BURST)?;
            measure(&mut run, &forward, &mut router)?;
        }
        if run.wants(&look_ups) || run.wants(&tree) {
            let (trie, flat) = lookups::ours(&routes);
            let each = destinations.len() as u64;
            run.measure_batches(each, || lookups::total_of_flat(&flat, &destinations));
            let sum = lookups::total_of_flat(&flat, &destinations);
            run.say(&look_ups, &format!("{} B, sum {sum}", flat.bytes()))?;
            run.measure_batches(each, || lookups::total_of_tree(&trie, &destinations));
            let sum = lookups::total_of_tree(&trie, &destinations);
            run.say(&tree, &format!("{} B, sum {sum}", trie.bytes()))?;
        }
        if run.wants(&other) {
            let map = lookups::other(&routes);
            let each = destinations.len() as u64;
            run.measure_batches(each, || lookups::total_of_other(&map, &destinations));
            let sum = lookups::total_of_other(&map, &destinations);
            run.say(&other, &format!("sum {sum}"))?;
        }
        if run.wants(&updates) && count > 1 {
            let mut routes = routes;
            routes.extend(table::routes_v6(count / V6_PART));
            let before = updates::resident_bytes()?;
            let mut router = Router::new(frames::datagrams(&destinations), &routes, None, BURST)?;
            let bytes = updates::resident_bytes()?.saturating_sub(before) / routes.len() as u64;
            let name = format!("{updates}, {} of IPv6, {bytes} B each", count / V6_PART);
            say_pauses(&run, &name, &mut router, &routes)?;
        }
    }
    bursts(&mut run)?;
    for len in RULES {
        for (count, name) in [(1, ""), (1_000_000, ", 1000000 routes")] {
            let name = format!("forward, {len} rules{name}");
            if run.wants(&name) && (count == 1 || len == 1000) {
                with_rules(&mut run, &name, len, count)?;
            }
        }
    }
    Ok(())
}

/// Measures the in-memory ports alone, whose cost all other figures include.
fn ports_alone(run: &mut Run) -> Result<(), Box<dyn Error>> {
    let name = "ports alone";
    if !run.wants(name) {
        return Ok(());
    }
    let destinations = table::destinations(&table::routes(1));
    let mut source = port::Source::new(frames::datagrams(&destinations));
    let (mut pool, mut batch) = (Pool::default(), Batch::new());
    run.measure_batches(BURST as u64, || {
        source.poll(0, &mut pool, &mut batch, BURST);
        port::Sink.submit(0, &mut pool, &mut batch)
    });
    run.say(name, "")
}

/// Measures the stack alone, and an engine around it. The packets of a turn share the cost of the
/// turn.
fn bursts(run: &mut Run) -> Result<(), Box<dyn Error>> {
    let routes = table::routes(1);
    let frames = frames::datagrams(&table::destinations(&routes));
    for burst in [1, 8, BURST] {
        let name = format!("stack, {burst} packets a turn");
        if run.wants(&name) {
            let mut router = Router::new(frames.clone(), &routes, None, burst)?;
            run.measure_batches(burst as u64, || router.turn());
            check(&name, router.counts())?;
            run.say(&name, "")?;
        }
        let name = format!("engine, {burst} packets a turn");
        if run.wants(&name) {
            let mut router = EngineRouter::new(frames.clone(), &routes, burst)?;
            run.measure_batches(burst as u64, || router.turn());
            check(&name, router.finish())?;
            run.say(&name, "")?;
        }
    }
    Ok(())
}

/// Measures a router with rules that accept all packets, with packets of which most match a rule.
fn with_rules(run: &mut Run, name: &str, len: u32, routes: usize) -> Result<(), Box<dyn Error>> {
    let shaped = Shape::Acl.list(len);
    let fields = Shape::Acl.packets(&shaped);
    debug_assert_eq!(fields.len(), PACKETS);
    let mut list = RuleList::new();
    for rule in shaped.iter() {
        let mut rule = rule.clone();
        rule.action = Action::Accept.into();
        list.insert(rule);
    }
    let rules = Rules::compile(&list, iface)?;
    let mut all = table::routes(routes);
    if routes > 1 {
        // Use a default route, because the addresses of the rules' packets are unrelated to the
        // routes.
        all.push((Prefix::ALL_V4, 0));
    }
    let mut router = Router::new(frames::with_fields(&fields), &all, Some(rules), BURST)?;
    measure(run, name, &mut router)
}

fn measure(run: &mut Run, name: &str, router: &mut Router) -> Result<(), Box<dyn Error>> {
    run.measure_batches(BURST as u64, || router.turn());
    check(name, router.counts())?;
    run.say(name, "")
}

fn check(name: &str, (forwarded, others): (u64, u64)) -> Result<(), Box<dyn Error>> {
    match others {
        0 => Ok(()),
        _ => Err(format!("{name}: {others} packets beside {forwarded} were not forwarded").into()),
    }
}

fn say_pauses(
    run: &Run,
    name: &str,
    router: &mut Router,
    routes: &[(Prefix, u32)],
) -> Result<(), Box<dyn Error>> {
    let time = run.time().unwrap_or(Duration::from_millis(1));
    for changing in [false, true] {
        let pauses = updates::run(router, routes, time, changing)?;
        writeln!(
            std::io::stdout(),
            "{name}\t{} changes: {:.2} Mpps, a turn took {:.0} µs of processor time at most, \
             {:.0} µs but for one in 10,000, {:.0} µs of the clock at most",
            pauses.changes,
            pauses.mpps,
            pauses.longest_us,
            pauses.most_us,
            pauses.clock_us
        )?;
    }
    Ok(())
}
