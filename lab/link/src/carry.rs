//! Moves frames from the devices into the two directions of the link, and out of these when they
//! are due.

use std::os::fd::AsFd;
use std::time::{Duration, Instant};

use anyhow::Result;
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::io::Errno;
use serde_json::{Value, json};

use crate::tap::Tap;
use crate::way::Way;

/// Maximum number of frames of one direction before the other one is served.
const BATCH: usize = 64;
/// Maximum length of a frame in bytes, larger than that of any MTU.
const FRAME_MAX: usize = 1 << 16;

/// Carries frames until `end` is readable or closed. Returns the counts: `there` is the direction
/// from the first device to the second. `dropped_by_devices` counts frames lost before or after
/// both directions.
pub fn run(mut ends: [Tap; 2], mut ways: [Way; 2], end: impl AsFd) -> Result<Value> {
    // Otherwise the kernel delays wake-ups by up to 50 µs (PR_SET_TIMERSLACK).
    rustix::thread::set_current_timer_slack(std::num::NonZeroU64::new(1))?;
    let start = Instant::now();
    let now = || start.elapsed().as_nanos() as u64;
    let mut buffer = vec![0; FRAME_MAX];
    loop {
        for (way, other) in ways.iter_mut().zip(ends.iter_mut().rev()) {
            deliver(way, other, now());
        }
        let due = ways.iter().filter_map(Way::next_timeout).min();
        let [first, second, has_ended] =
            wait(&ends, &end, due.map(|due| due.saturating_sub(now())))?;
        if has_ended {
            break;
        }
        for ((way, tap), is_readable) in ways.iter_mut().zip(&ends).zip([first, second]) {
            if is_readable {
                accept(way, tap, &mut buffer, now)?;
            }
        }
    }
    let [there, back] = ways.map(|way| way.counts());
    let dropped = ends[0].dropped()? + ends[1].dropped()?;
    Ok(json!({ "there": there, "back": back, "dropped_by_devices": dropped }))
}

fn deliver(way: &mut Way, to: &mut Tap, now: u64) {
    for _ in 0..BATCH {
        let Some(frame) = way.poll_frame(now) else { return };
        to.write(frame);
    }
}

fn accept(way: &mut Way, from: &Tap, buffer: &mut [u8], now: impl Fn() -> u64) -> Result<()> {
    for _ in 0..BATCH {
        let Some(len) = from.read(buffer)? else { return Ok(()) };
        way.on_frame(now(), &buffer[..len]);
    }
    Ok(())
}

/// Sleeps until a descriptor is readable, or `ns` have passed if given. Returns which are readable.
fn wait(ends: &[Tap; 2], end: &impl AsFd, ns: Option<u64>) -> Result<[bool; 3]> {
    let timeout = ns.map(|ns| Timespec::try_from(Duration::from_nanos(ns))).transpose()?;
    let watch = |fd| PollFd::from_borrowed_fd(fd, PollFlags::IN);
    let mut fds = [watch(ends[0].as_fd()), watch(ends[1].as_fd()), watch(end.as_fd())];
    match poll(&mut fds, timeout.as_ref()) {
        Ok(_) | Err(Errno::INTR) => Ok(fds.map(|fd| !fd.revents().is_empty())),
        Err(error) => Err(error.into()),
    }
}
