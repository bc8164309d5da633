//! Shows the progress of the runs on standard error.

use std::io::IsTerminal;
use std::sync::{Mutex, PoisonError};
use std::time::{Duration, Instant};

use towpath_sim::Report;

use crate::messages;

/// Shows how much of the simulation is done. On a terminal, one line is updated in place; otherwise
/// a new line is printed from time to time.
pub(super) struct Progress {
    start: Instant,
    every: Duration,
    is_terminal: bool,
    is_quiet: bool,
    told: Mutex<Instant>,
}

/// Minimum interval between updates: on a terminal, and otherwise.
const EVERY: [Duration; 2] = [Duration::from_millis(200), Duration::from_secs(10)];

impl Progress {
    pub fn start(is_quiet: bool) -> Self {
        let (start, is_terminal) = (Instant::now(), std::io::stderr().is_terminal());
        let every = EVERY[usize::from(!is_terminal)];
        Self { start, every, is_terminal, is_quiet, told: Mutex::new(start) }
    }

    /// Shows the completed fraction of all runs, from 0 to 1.
    pub fn at(&self, share: f64) {
        let now = Instant::now();
        let mut told = self.told.lock().unwrap_or_else(PoisonError::into_inner);
        if self.is_quiet || now - *told < self.every {
            return;
        }
        *told = now;
        let text = line(share, now - self.start);
        if self.is_terminal {
            messages::write(&format!("\r\x1b[K{text}"));
        } else {
            messages::write(&format!("towpath: {text}\n"));
        }
    }

    /// Reports the speed of the completed runs.
    pub fn tell_speed(&self, report: &Report) {
        if !self.is_quiet {
            messages::write(&format!("towpath: {}\n", speed(report, self.start.elapsed())));
        }
    }

    /// Clears the progress line on a terminal.
    pub fn end(&self) {
        if self.is_terminal && !self.is_quiet {
            messages::write("\r\x1b[K");
        }
    }
}

/// Formats the number of events and of simulated seconds, each with its rate per second of real
/// time.
fn speed(report: &Report, passed: Duration) -> String {
    let events: u64 = report.runs.iter().map(|run| run.events).sum();
    let (passed_s, runs) = (passed.as_secs_f64().max(1e-3), report.runs.len());
    let simulated_s = report.duration_s * runs as f64;
    format!(
        "{events} events in {passed_s:.2} s: {:.0} events and {:.1} simulated seconds a second",
        events as f64 / passed_s,
        simulated_s / passed_s
    )
}

fn line(share: f64, passed: Duration) -> String {
    let left = passed.as_secs_f64() * (1. - share) / share.max(1e-6);
    let left = left.min(86_400. * 365.).ceil() as u64;
    let left = match (left / 60, left % 60) {
        (0, seconds) => format!("{seconds} s"),
        (minutes, seconds) => format!("{minutes} min {seconds} s"),
    };
    format!("{:.0} % done, about {left} left", share * 100.)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_time_left_follows_from_the_share() {
        assert_eq!(line(0.25, Duration::from_secs(10)), "25 % done, about 30 s left");
        assert_eq!(line(0.1, Duration::from_secs(10)), "10 % done, about 1 min 30 s left");
        assert_eq!(line(1., Duration::from_secs(10)), "100 % done, about 0 s left");
        assert!(line(0., Duration::from_secs(1)).starts_with("0 % done"));
    }
}
