//! Changes of routes while packets are forwarded: measures the longest time between two bursts.

use std::error::Error;
use std::time::{Duration, Instant};

use rustix::time::{ClockId, clock_gettime};
use towpath_stack::net::{Change, RouteSpec};
use towpath_wire::Prefix;

use crate::router::{Router, route};

/// Number of changes per second, and number of changes applied at once.
const CHANGES_PER_SECOND: u64 = 10_000;
const CHANGES_AT_ONCE: u64 = 10;

/// Durations of turns in a router's loop.
pub struct Pauses {
    /// Maximum CPU time of a turn with the changes before it, in µs. Excludes the time in which the
    /// thread is not scheduled.
    pub longest_us: f64,
    /// Maximum duration of a turn in µs, including the time in which the thread is not scheduled.
    pub clock_us: f64,
    /// CPU time of a turn in µs that only one of 10,000 turns exceeds.
    pub most_us: f64,
    /// Packets forwarded, million per second.
    pub mpps: f64,
    /// Changes made.
    pub changes: u64,
}

/// Forwards packets for `time`, with changes of routes if `changing`.
pub fn run(
    router: &mut Router,
    routes: &[(Prefix, u32)],
    time: Duration,
    changing: bool,
) -> Result<Pauses, Box<dyn Error>> {
    let start = Instant::now();
    let interval = Duration::from_secs(1) * CHANGES_AT_ONCE as u32 / CHANGES_PER_SECOND as u32;
    let (mut last, mut due, mut changes, before) = (start, start, 0, router.counts().0);
    let mut took = Vec::with_capacity(1 << 22);
    let (mut used_last, mut clock) = (processor_ns(), Duration::ZERO);
    while last.duration_since(start) < time {
        if changing && last >= due {
            due += interval;
            // Remove a route, and add it again through another router.
            let change = |n: u64| {
                let (prefix, hop) = routes[((n / 2 * 7919) % routes.len() as u64) as usize];
                match n % 2 {
                    0 => Change::RemoveRoute(RouteSpec::to(prefix)),
                    _ => route((prefix, hop + (n / 2) as u32)),
                }
            };
            router.change((changes..changes + CHANGES_AT_ONCE).map(change))?;
            changes += CHANGES_AT_ONCE;
        }
        router.turn();
        let (now, used) = (Instant::now(), processor_ns());
        clock = clock.max(now.duration_since(last));
        took.push(used - used_last);
        (last, used_last) = (now, used);
    }
    took.sort_unstable();
    let at = |part: usize| took[took.len() - 1 - part] as f64 / 1e3;
    let packets = router.counts().0 - before;
    Ok(Pauses {
        longest_us: at(0),
        most_us: at(took.len() / 10_000),
        clock_us: clock.as_secs_f64() * 1e6,
        mpps: packets as f64 / start.elapsed().as_secs_f64() / 1e6,
        changes,
    })
}

/// Returns the CPU time of this thread in ns.
fn processor_ns() -> u64 {
    let time = clock_gettime(ClockId::ThreadCPUTime);
    time.tv_sec as u64 * 1_000_000_000 + time.tv_nsec as u64
}

/// Returns the resident memory of this process in bytes.
pub fn resident_bytes() -> Result<u64, Box<dyn Error>> {
    let statm = std::fs::read_to_string("/proc/self/statm")?;
    let pages = statm.split(' ').nth(1).ok_or("/proc/self/statm is short")?.parse::<u64>()?;
    Ok(pages * rustix::param::page_size() as u64)
}
