//! Progress on standard error: a view in a terminal, a line each second elsewhere.

mod lines;
mod screen;
mod view;

use std::sync::Arc;
use std::time::Duration;

use towpath_load::results::figures;
use towpath_load::{Plan, ReportSnapshot};

use super::args::When;
use crate::messages::Messages;

use lines::Lines;
pub use screen::Screen;
use view::LiveView;

/// Limits at which a run ends.
#[derive(Debug, Clone, Copy, Default)]
pub struct RunEnd {
    duration: Duration,
    requests: Option<u64>,
}

impl RunEnd {
    fn of(plan: &Plan) -> Self {
        Self { duration: plan.duration, requests: plan.requests }
    }

    /// Share of the run that is over, 0 to 1.
    fn share(self, now: &ReportSnapshot) -> f64 {
        let of_time = now.elapsed.as_secs_f64() / self.duration.as_secs_f64().max(1e-9);
        let of_requests = self.requests.map_or(0., |all| now.sent as f64 / all as f64);
        of_time.max(of_requests).min(1.)
    }
}

/// Words above the figures of a run.
#[derive(Debug, Clone)]
pub struct Heading {
    /// Server and protocol.
    pub server: String,
    /// Rule and pattern of the requests.
    pub load: String,
    /// Place among several runs; empty where there is one.
    pub step: String,
}

impl Heading {
    /// The heading of a plan's run.
    pub fn of(plan: &Plan, step: String) -> Self {
        Self {
            server: format!("{} by {}", plan.target.name, figures::protocol(plan)),
            load: format!("{}: {}", figures::arrivals(plan), figures::pattern(plan)),
            step,
        }
    }
}

/// Progress of the runs of a command.
pub enum Live {
    /// A view that is drawn anew for each snapshot.
    View(Box<LiveView>),
    /// A line for each second.
    Lines(Lines),
    /// Nothing.
    Silent,
}

impl Live {
    /// A view where the screen has one, and lines where it has not.
    pub fn new(when: When, screen: &Arc<Screen>, messages: &Messages) -> Self {
        if when == When::Never {
            Self::Silent
        } else if screen.enter(when == When::Always) {
            Self::View(Box::new(LiveView::new(Arc::clone(screen))))
        } else {
            Self::Lines(Lines::new(messages.clone()))
        }
    }

    /// Begins a run.
    pub fn begin(&mut self, heading: Heading, plan: &Plan) {
        match self {
            Self::View(view) => view.begin(heading, plan),
            Self::Lines(lines) => lines.begin(&heading, plan),
            Self::Silent => {}
        }
    }

    /// Takes figures in.
    pub fn show(&mut self, now: &ReportSnapshot) {
        match self {
            Self::View(view) => view.show(now),
            Self::Lines(lines) => lines.show(now),
            Self::Silent => {}
        }
    }

    /// Tells the result of a run among several.
    pub fn tell(&mut self, line: &str) {
        match self {
            Self::View(view) => view.tell(line),
            Self::Lines(lines) => lines.tell(line),
            Self::Silent => {}
        }
    }
}
