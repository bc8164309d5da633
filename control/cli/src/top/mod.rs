//! Implements `towpath top`: live rates, drops, shards and connections of a running stack.
//!
//! `app` has the state and the effect of keys, `figures` computes rates. `overview` and `detail`
//! draw the pages, `keys` reads the keyboard. A single thread waits for reports, keys and signals.

mod app;
mod detail;
mod figures;
mod keys;
mod overview;
#[cfg(test)]
mod samples;
mod values;

use std::os::fd::AsFd;
use std::sync::Arc;
use std::time::Duration;

use anyhow::{Context, Result};
use clap::Args;
use nix::sys::signal::Signal;
use rustix::event::{PollFd, PollFlags};
use rustix::termios::isatty;
use towpath_model::wait::wait;
use towpath_model::{
    Client, ConnectionName, Error, ReportTopic, Reports, RunKind, RunReport, Subscription,
    printable,
};

use crate::error::{ExitCode, Failure};
use crate::ip::WhichRun;
use crate::output;
use crate::screen::{Screen, ScreenStream};
use crate::signals::{self, Signals};

use app::{App, KeyEffect};
use keys::KeyReader;

/// Options of `towpath top`.
#[derive(Debug, Args)]
pub struct TopArgs {
    #[command(flatten)]
    pub which: WhichRun,
    /// Time between two samples in seconds, 0.1 to 3600
    #[arg(short, long, value_name = "SECONDS", default_value = "1", value_parser = parse_delay)]
    pub delay: Duration,
    /// Number of sockets to show, those with the highest rates; 256 at most
    #[arg(short, long, value_name = "COUNT", default_value_t = 100, value_parser = parse_rows())]
    pub rows: u32,
    /// Print one page as text, after the first period, and exit
    #[arg(long)]
    pub once: bool,
}

/// Text of `towpath top --help` before the options.
pub const ABOUT: &str = "\
Show live rates of a running stack: of interfaces, drops with their reasons, shards, and the \
sockets that carry most bytes.

Keys: Up and Down select a socket, and Enter shows the connection with plots of its congestion \
window, round-trip time and rate. s changes the order of the sockets: rate, RTT, retransmissions, \
congestion window. q leaves the page, and the command.";

/// Text of `towpath top --help` after the options.
pub const AFTER: &str = "\
Examples:
  towpath top
      Of the only run of this user
  towpath top --name web -d 0.5
      Two samples a second of the run that `towpath run --name web` began
  towpath top --once | head -20
      A page as text, for files and pipes

Exit status:
  0  ended by a key or a signal, or by the end of the run
  2  no terminal, no such run, or no answer";

/// Period of the samples of a connection on its page, unless --delay is shorter.
const DETAIL_PERIOD: Duration = Duration::from_millis(250);
/// Maximum number of reports that are handled before keys and signals. Otherwise a run of another
/// user that sends reports without a pause would hold the command.
const REPORTS_MAX: usize = 100;
/// Width in columns of a page that is printed as text.
const TEXT_WIDTH: u16 = 150;

fn parse_delay(text: &str) -> Result<Duration, String> {
    let seconds: Option<f64> = text.parse().ok();
    let seconds = seconds.filter(|seconds| (0.1..=3600.).contains(seconds));
    let wrong = || format!("{text:?} is not a number of seconds from 0.1 to 3600");
    seconds.map(Duration::from_secs_f64).ok_or_else(wrong)
}

fn parse_rows() -> clap::builder::RangedI64ValueParser<u32> {
    clap::value_parser!(u32).range(1..=i64::from(Subscription::SOCKETS_MAX))
}

/// Runs `towpath top`.
///
/// # Errors
/// Returns an error message for the user.
pub fn top(args: &TopArgs) -> Result<()> {
    if !args.once && !isatty(rustix::stdio::stdout()) {
        let message = "standard output is not a terminal: `towpath top --once` prints one page as \
                       text, and `towpath stats -w 1` the counters of each second";
        return Err(Failure::error(ExitCode::Usage, message));
    }
    let client = args.which.client_to_look().map_err(failure)?;
    let reports = client.subscribe(&subscription(args)).map_err(failure)?;
    let app = App::new(title(&reports), args.delay);
    if args.once {
        return once(app, reports);
    }
    // Block signals before the screen is shown, so that each signal restores the terminal.
    let signals = Signals::block()?;
    let screen = Screen::new(ScreenStream::Stdout);
    if !screen.enter(false) {
        let message = "the terminal cannot show a page, because TERM is not set or is \"dumb\", or \
                       towpath is in the background: try `towpath top --once`";
        return Err(Failure::error(ExitCode::Usage, message));
    }
    let (keys, watched) = (KeyReader::new(), None);
    let mut session = TopSession { client, screen, signals, app, reports, watched, keys };
    let ended = session.run();
    session.screen.leave();
    match ended? {
        TopEnd::Key => Ok(()),
        TopEnd::Signal(signal) => {
            signals::die(signal as i32);
            Ok(())
        }
        TopEnd::Run => output::write_text("the run has ended\n"),
    }
}

fn failure(error: Error) -> anyhow::Error {
    Failure::error(ExitCode::Usage, explained(&error))
}

fn explained(error: &Error) -> String {
    match error {
        Error::Refused(fault) => format!("the run {}", fault.message),
        error => error.to_string(),
    }
}

fn subscription(args: &TopArgs) -> Subscription {
    let topics =
        [ReportTopic::Traffic, ReportTopic::Counters, ReportTopic::Shards, ReportTopic::Sockets];
    Subscription {
        period_ms: args.delay.as_millis() as u32,
        sockets_max: args.rows,
        ..Subscription::to(&topics)
    }
}

/// Describes a run by its name, its process id and its program.
fn title(reports: &Reports) -> String {
    let reply = reports.reply();
    let kind = if reply.kind == RunKind::Router { "router" } else { "run" };
    let program = printable(&reply.program.join(" "));
    match &reply.name {
        Some(name) => format!("{name} ({kind} {}): {program}", reply.pid),
        None => format!("{kind} {}: {program}", reply.pid),
    }
}

/// Prints one page as text. The rates are those of the first period.
fn once(mut app: App, mut reports: Reports) -> Result<()> {
    loop {
        let report = reports.wait().map_err(failure)?;
        // Sockets are the last part of each sample, and the first one has no period.
        let is_complete = report.sockets.as_ref().is_some_and(|sample| sample.period_us > 0);
        app.figures.update(report);
        if is_complete {
            let height = overview::height(&app);
            let page = values::drawn(TEXT_WIDTH, height, |it| overview::draw(it, &app, false));
            return output::write_text(&page);
        }
    }
}

/// The command while it shows pages.
struct TopSession {
    client: Client,
    screen: Arc<Screen>,
    signals: Signals,
    app: App,
    reports: Reports,
    /// Samples of the connection whose page is shown.
    watched: Option<Reports>,
    keys: KeyReader,
}

/// Reason why the command ends.
enum TopEnd {
    Key,
    Signal(Signal),
    Run,
}

impl TopSession {
    /// Shows pages until a key, a signal or the end of the run.
    fn run(&mut self) -> Result<TopEnd> {
        loop {
            self.draw();
            let ready = self.wait()?;
            if let Some(end) = self.take_signals()? {
                return Ok(end);
            }
            let has_gone = ready.intersects(PollFlags::HUP | PollFlags::ERR | PollFlags::NVAL);
            if has_gone || (ready.contains(PollFlags::IN) && self.take_keys()?) {
                return Ok(TopEnd::Key);
            }
            if self.take_reports()? {
                return Ok(TopEnd::Run);
            }
        }
    }

    fn draw(&self) {
        self.screen.draw(|frame| match &self.app.detail {
            Some(connection) => detail::draw(frame, connection),
            None => overview::draw(frame, &self.app, true),
        });
    }

    /// Waits for a report, a key or a signal. Returns the events of the terminal.
    fn wait(&self) -> Result<PollFlags> {
        // In the background, a read would stop the process. A hang-up is always reported.
        let input = if self.screen.is_shown() { PollFlags::IN } else { PollFlags::empty() };
        let mut polls = vec![
            PollFd::from_borrowed_fd(self.keys.fd(), input),
            PollFd::new(&self.reports, PollFlags::IN),
            PollFd::from_borrowed_fd(self.signals.fd().as_fd(), PollFlags::IN),
        ];
        polls.extend(self.watched.iter().map(|reports| PollFd::new(reports, PollFlags::IN)));
        wait(&mut polls, None).context("poll")?;
        Ok(polls[0].revents())
    }

    /// Handles signals. Returns the reason to end, if a signal demands it.
    fn take_signals(&mut self) -> Result<Option<TopEnd>> {
        while let Some(arrived) = self.signals.next()? {
            match arrived.signal {
                signal if self.signals.is_ignored(signal) => {}
                // A new size of the terminal is noticed when the page is drawn.
                Signal::SIGWINCH => {}
                // Show the page again if the process was continued in the background before.
                Signal::SIGCONT => {
                    self.screen.enter(false);
                }
                // Leave the page while the process is stopped, until it is continued.
                signal @ Signal::SIGTSTP => {
                    self.screen.while_left(|| drop(signals::act(signal)));
                }
                Signal::SIGINT => return Ok(Some(TopEnd::Key)),
                signal => return Ok(Some(TopEnd::Signal(signal))),
            }
        }
        Ok(None)
    }

    /// Handles keys. Returns whether the command must end, also because the terminal was closed.
    fn take_keys(&mut self) -> Result<bool> {
        let Some(keys) = self.keys.read()? else { return Ok(true) };
        for key in keys {
            match self.app.press(key) {
                KeyEffect::Draw => {}
                KeyEffect::Quit => return Ok(true),
                KeyEffect::Watch(name) => self.watch(name),
                KeyEffect::Unwatch => self.watched = None,
            }
        }
        Ok(false)
    }

    /// Begins to sample a connection. If the run refuses, the page says why.
    fn watch(&mut self, name: ConnectionName) {
        let period = self.app.period.min(DETAIL_PERIOD);
        let subscription = Subscription {
            period_ms: period.as_millis() as u32,
            connection: Some(name),
            ..Subscription::to(&[ReportTopic::Sockets])
        };
        match (self.client.subscribe(&subscription), &mut self.app.detail) {
            (Ok(reports), _) => self.watched = Some(reports),
            (Err(error), Some(page)) => page.refusal = Some(explained(&error)),
            (Err(_), None) => {}
        }
    }

    /// Handles the reports that have arrived, at most [`REPORTS_MAX`]. Returns whether the run has
    /// ended.
    fn take_reports(&mut self) -> Result<bool> {
        for _ in 0..REPORTS_MAX {
            match arrived(&mut self.reports)? {
                NextReport::Report(report) => self.app.figures.update(*report),
                NextReport::Nothing => break,
                NextReport::Ended => return Ok(true),
            }
        }
        let (Some(watched), Some(page)) = (&mut self.watched, &mut self.app.detail) else {
            return Ok(false);
        };
        for _ in 0..REPORTS_MAX {
            match arrived(watched)? {
                NextReport::Report(report) => page.update(*report),
                NextReport::Nothing => break,
                // Poll no closed connection, which is always ready.
                NextReport::Ended => {
                    self.watched = None;
                    break;
                }
            }
        }
        Ok(false)
    }
}

/// Result of a look for a report.
enum NextReport {
    Report(Box<RunReport>),
    Nothing,
    Ended,
}

/// Returns a report that has arrived, without waiting.
fn arrived(reports: &mut Reports) -> Result<NextReport> {
    match reports.next_within(Duration::ZERO) {
        Ok(Some(report)) => Ok(NextReport::Report(Box::new(report))),
        Ok(None) => Ok(NextReport::Nothing),
        Err(Error::Ended(_)) => Ok(NextReport::Ended),
        Err(error) => Err(failure(error)),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_delay_has_limits() {
        assert_eq!(parse_delay("0.5"), Ok(Duration::from_millis(500)));
        for wrong in ["0", "0.09", "3601", "x", "-1", "NaN"] {
            assert!(parse_delay(wrong).unwrap_err().contains("from 0.1 to 3600"), "{wrong}");
        }
    }
}
