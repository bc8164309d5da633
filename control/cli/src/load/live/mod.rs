//! Shows progress on standard error: as a full-screen view on a terminal, otherwise by one line per
//! second.

mod lines;
mod view;

use std::sync::Arc;
use std::time::Duration;

use towpath_load::results::figures;
use towpath_load::{Plan, ReportSnapshot};

use super::args::When;
use crate::messages::Messages;
use crate::screen::Screen;

use lines::Lines;
use view::LiveView;

/// Limits at which a load test run ends.
#[derive(Debug, Clone, Copy, Default)]
pub struct RunEnd {
    duration: Duration,
    requests: Option<u64>,
}

impl RunEnd {
    fn of(plan: &Plan) -> Self {
        Self { duration: plan.duration, requests: plan.requests }
    }

    /// Returns the completed fraction of the run, from 0 to 1.
    fn share(self, now: &ReportSnapshot) -> f64 {
        let of_time = now.elapsed.as_secs_f64() / self.duration.as_secs_f64().max(1e-9);
        let of_requests = self.requests.map_or(0., |all| now.sent as f64 / all as f64);
        of_time.max(of_requests).min(1.)
    }
}

/// Heading of a load test run.
#[derive(Debug, Clone)]
pub struct Heading {
    /// Name of the server, and the protocol.
    pub server: String,
    /// Description of the arrivals and the traffic pattern.
    pub load: String,
    /// Number of this run among several; empty for a single run.
    pub step: String,
}

impl Heading {
    /// Creates the heading for a run of this plan.
    pub fn of(plan: &Plan, step: String) -> Self {
        Self {
            server: format!("{} by {}", plan.target.name, figures::protocol(plan)),
            load: format!("{}: {}", figures::arrivals(plan), figures::pattern(plan)),
            step,
        }
    }
}

/// Progress display of the command `towpath load`.
pub enum Live {
    /// Full-screen view, redrawn for each snapshot.
    View(Box<LiveView>),
    /// A line per second.
    Lines(Lines),
    /// No progress display.
    Silent,
}

impl Live {
    /// Creates a view if the terminal supports it and `when` allows it; otherwise lines.
    pub fn new(when: When, screen: &Arc<Screen>, messages: &Messages) -> Self {
        if when == When::Never {
            Self::Silent
        } else if screen.enter(when == When::Always) {
            Self::View(Box::new(LiveView::new(Arc::clone(screen))))
        } else {
            Self::Lines(Lines::new(messages.clone()))
        }
    }

    /// Starts to show the progress of a run.
    pub fn begin(&mut self, heading: Heading, plan: &Plan) {
        match self {
            Self::View(view) => view.begin(heading, plan),
            Self::Lines(lines) => lines.begin(&heading, plan),
            Self::Silent => {}
        }
    }

    /// Shows a snapshot of the current results.
    pub fn show(&mut self, now: &ReportSnapshot) {
        match self {
            Self::View(view) => view.show(now),
            Self::Lines(lines) => lines.show(now),
            Self::Silent => {}
        }
    }

    /// Shows the result of one of several runs.
    pub fn tell(&mut self, line: &str) {
        match self {
            Self::View(view) => view.tell(line),
            Self::Lines(lines) => lines.tell(line),
            Self::Silent => {}
        }
    }
}
