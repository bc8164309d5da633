//! Full-screen view of a load test run, redrawn for each snapshot of the results.

use std::sync::Arc;
use std::time::Duration;

use ratatui::Frame;
use ratatui::layout::{Constraint, Layout, Rect};
use ratatui::style::{Color, Modifier, Style};
use ratatui::text::{Line, Span};
use ratatui::widgets::{Paragraph, Sparkline};
use towpath_load::results::distribution::{self, Bin};
use towpath_load::results::figures::{self, QUANTILES};
use towpath_load::results::text::quantile;
use towpath_load::{Histogram, Plan, ReportSnapshot, RunPhase};
use towpath_model::printable;

use super::{Heading, RunEnd};
use crate::screen::Screen;

/// Maximum number of rates that are kept for the curve, more than the columns of wide terminals.
const RATES_MAX: usize = 1000;
/// Maximum number of earlier runs whose results are shown.
const TOLD_MAX: usize = 4;
/// Width in columns of a label and its value before a bar.
const LABEL: usize = 16;
/// Characters that fill 0 to 7 eighths of a cell, for the end of a bar.
const EIGHTHS: [&str; 8] = ["", "▏", "▎", "▍", "▌", "▋", "▊", "▉"];

const ACCENT: Color = Color::Cyan;
const WARNING: Color = Color::Yellow;

/// State of the full-screen view.
pub struct LiveView {
    screen: Arc<Screen>,
    scene: FrameScene,
}

/// Data that is shown in addition to the current snapshot.
struct FrameScene {
    heading: Heading,
    end: RunEnd,
    is_open: bool,
    is_stream: bool,
    /// Rate in each period so far: answers per second, or bits per second for a stream.
    rates: Vec<u64>,
    /// Results of earlier runs, one line for each.
    told: Vec<String>,
}

impl LiveView {
    /// Creates the view on a terminal that [`Screen::enter`] has prepared.
    pub fn new(screen: Arc<Screen>) -> Self {
        let heading = Heading { server: String::new(), load: String::new(), step: String::new() };
        let scene = FrameScene {
            heading,
            end: RunEnd::default(),
            is_open: false,
            is_stream: false,
            rates: Vec::new(),
            told: Vec::new(),
        };
        Self { screen, scene }
    }

    /// Starts to show a run.
    pub fn begin(&mut self, heading: Heading, plan: &Plan) {
        self.scene.heading = heading;
        self.scene.end = RunEnd::of(plan);
        self.scene.is_open = figures::is_open(plan);
        self.scene.is_stream = plan.shape.is_stream();
        self.scene.rates.clear();
        self.screen.draw(|frame| self.scene.begin(frame));
    }

    /// Draws the current results.
    pub fn show(&mut self, now: &ReportSnapshot) {
        self.scene.note(now);
        self.screen.draw(|frame| self.scene.draw(frame, now));
    }

    /// Stores the result of a completed run, to be shown during the next run.
    pub fn tell(&mut self, line: &str) {
        self.scene.told.push(line.to_owned());
    }
}

impl FrameScene {
    /// Appends the rate of the last period to the curve.
    fn note(&mut self, now: &ReportSnapshot) {
        let Some(period) = &now.period else { return };
        if now.phase != RunPhase::Measuring {
            return;
        }
        let count = if self.is_stream {
            (period.bytes_sent + period.bytes_received) * 8
        } else {
            period.received
        };
        let rate = count as f64 / period.length.as_secs_f64().max(1e-9);
        if self.rates.len() == RATES_MAX {
            self.rates.remove(0);
        }
        self.rates.push(rate as u64);
    }

    /// Draws the frame that is shown before the first results arrive.
    fn begin(&self, frame: &mut Frame<'_>) {
        let mut lines = self.title();
        lines.push(Line::from(" connecting…"));
        frame.render_widget(Paragraph::new(lines), frame.area());
    }

    fn draw(&self, frame: &mut Frame<'_>, now: &ReportSnapshot) {
        let failures = now.failures.iter().count() as u16;
        let told = self.told.len().min(TOLD_MAX) as u16;
        let areas = Layout::vertical([
            Constraint::Length(3),
            Constraint::Length(2),
            Constraint::Length(5),
            Constraint::Length(1 + QUANTILES.len() as u16 + 1),
            Constraint::Fill(1),
            Constraint::Length(failures.min(4) + u16::from(failures > 0)),
            Constraint::Length(told + u16::from(told > 0)),
            Constraint::Length(1),
        ]);
        let [title, progress, figures, times, bins, failed, earlier, foot] =
            areas.areas(frame.area());
        frame.render_widget(Paragraph::new(self.title()), title);
        frame.render_widget(Paragraph::new(self.progress(now, progress.width)), progress);
        self.figures(frame, now, figures);
        let response = if self.is_open { &now.response } else { &now.service };
        if !self.is_stream {
            self.times(frame, response, times);
            draw_bins(frame, response, bins);
        }
        frame.render_widget(Paragraph::new(failure_lines(now)), failed);
        let recent = &self.told[self.told.len() - usize::from(told)..];
        let recent = recent.iter().map(|line| Line::from(format!(" {}", printable(line))));
        frame.render_widget(Paragraph::new(recent.collect::<Vec<_>>()), earlier);
        let hint = " Ctrl-C ends the run with the figures so far";
        frame.render_widget(Paragraph::new(Line::styled(hint, faint())), foot);
    }

    fn title(&self) -> Vec<Line<'static>> {
        let bold = Style::new().add_modifier(Modifier::BOLD);
        let mut first = vec![
            Span::styled(" towpath load  ", bold.fg(ACCENT)),
            Span::styled(printable(&self.heading.server), bold),
        ];
        if !self.heading.step.is_empty() {
            first.push(Span::raw(format!("   {}", self.heading.step)));
        }
        vec![Line::from(first), Line::styled(format!(" {}", self.heading.load), faint())]
    }

    /// Formats a progress bar with the remaining time. `width` is in columns.
    fn progress(&self, now: &ReportSnapshot, width: u16) -> Line<'static> {
        let (share, words) = match now.phase {
            RunPhase::Connecting => {
                let share = now.connected as f64 / now.users.max(1) as f64;
                (share, format!("connecting {} of {}", now.connected, now.users))
            }
            RunPhase::WarmingUp => (0., "warming up".to_owned()),
            RunPhase::Draining => (1., "waiting for the last answers".to_owned()),
            RunPhase::Measuring => {
                let left = match self.end.requests {
                    Some(all) => format!("{} requests", all.saturating_sub(now.sent)),
                    None => figures::whole_seconds(self.end.duration.saturating_sub(now.elapsed)),
                };
                let elapsed = figures::whole_seconds(now.elapsed);
                (self.end.share(now), format!("{elapsed} measured, {left} left"))
            }
        };
        let room = usize::from(width).saturating_sub(words.chars().count() + 5);
        let bar = bar(share.min(1.), room);
        let rest = " ".repeat(room.saturating_sub(bar.chars().count()));
        Line::from(vec![
            Span::raw(" "),
            Span::styled(bar, Style::new().fg(ACCENT)),
            Span::styled(rest, Style::new().bg(Color::DarkGray)),
            Span::raw(format!("  {words}")),
        ])
    }

    /// Draws the rates and counts on the left, and the curve of the rate on the right.
    fn figures(&self, frame: &mut Frame<'_>, now: &ReportSnapshot, area: Rect) {
        let [left, right] =
            Layout::horizontal([Constraint::Length(54), Constraint::Fill(1)]).areas(area);
        let seconds = now.elapsed.as_secs_f64().max(1e-9);
        let period = now.period.as_ref();
        let last = |count: fn(&towpath_load::Period) -> u64| {
            period.map_or(0., |it| count(it) as f64 / it.length.as_secs_f64().max(1e-9))
        };
        let row = |name: &str, a: String, b: String| {
            Line::from(vec![
                Span::styled(format!(" {name:<11}"), faint()),
                Span::raw(format!("{a:<21}{b}")),
            ])
        };
        let mut lines = Vec::new();
        if !self.is_stream {
            let average = figures::rate(now.received as f64 / seconds);
            let rate = figures::rate(last(|it| it.received));
            lines.push(row("answers", rate, format!("average {average}")));
            let received = format!("received {}", now.received);
            lines.push(row("requests", format!("sent {}", now.sent), received));
        }
        let out = figures::bits(last(|it| it.bytes_sent) * 8.);
        let back = figures::bits(last(|it| it.bytes_received) * 8.);
        lines.push(row("traffic", format!("{out} out"), format!("{back} in")));
        let connecting = match now.connecting {
            0 => String::new(),
            count => format!("{count} connecting"),
        };
        let connected = format!("{} of {}", now.connected, now.users);
        lines.push(row("connected", connected, connecting));
        if now.behind > towpath_load::FellBehind::LATE {
            let behind =
                format!(" the tester is {} behind its schedule", figures::time(now.behind));
            lines.push(Line::styled(behind, Style::new().fg(WARNING)));
        }
        frame.render_widget(Paragraph::new(lines), left);
        let room = usize::from(right.width.saturating_sub(1));
        let recent = &self.rates[self.rates.len().saturating_sub(room)..];
        let curve = Sparkline::default().data(recent).style(Style::new().fg(ACCENT));
        let height = right.height.saturating_sub(1);
        frame.render_widget(curve, Rect { height, ..right });
    }

    /// Draws percentiles of the response times as bars on a logarithmic scale.
    fn times(&self, frame: &mut Frame<'_>, times: &Histogram, area: Rect) {
        let name = if self.is_open { "response time" } else { "service time" };
        let mut lines = vec![Line::styled(format!(" {name} so far"), faint())];
        let scale = LogScale::of(times);
        let room = usize::from(area.width).saturating_sub(LABEL + 2);
        for (name, share) in QUANTILES {
            if times.is_empty() {
                break;
            }
            let time = quantile(times, share);
            let label = format!(" {name:<6} {:>7}  ", figures::time(time));
            let bar = bar(scale.share(time), room);
            let style = Style::new().fg(ACCENT);
            lines.push(Line::from(vec![Span::raw(label), Span::styled(bar, style)]));
        }
        frame.render_widget(Paragraph::new(lines), area);
    }
}

/// Draws the distribution of response times as bars, as many as fit into the area.
fn draw_bins(frame: &mut Frame<'_>, times: &Histogram, area: Rect) {
    let rows = usize::from(area.height.saturating_sub(2));
    if rows < 3 || times.is_empty() {
        return;
    }
    let bins = distribution::bins(times, rows);
    let most = bins.iter().map(|bin| bin.count).max().unwrap_or(0).max(1);
    let room = usize::from(area.width).saturating_sub(LABEL + 10);
    let mut lines = vec![Line::styled(" distribution", faint())];
    for Bin { to, count, .. } in bins {
        let bar = bar(count as f64 / most as f64, room);
        lines.push(Line::from(vec![
            Span::raw(format!("    to {:>7}  ", figures::time(to))),
            Span::styled(bar, Style::new().fg(ACCENT)),
            Span::styled(format!(" {count}"), faint()),
        ]));
    }
    frame.render_widget(Paragraph::new(lines), area);
}

fn failure_lines(now: &ReportSnapshot) -> Vec<Line<'static>> {
    let lines = now.failures.iter().map(|it| {
        let text = format!(" {} × {}: {}", it.count, it.kind, printable(&it.example));
        Line::styled(text, Style::new().fg(WARNING))
    });
    lines.collect()
}

/// Formats a bar whose length is the fraction `share` of `width` columns.
fn bar(share: f64, width: usize) -> String {
    let eighths = (share.clamp(0., 1.) * width as f64 * 8.).round() as usize;
    format!("{}{}", "█".repeat(eighths / 8), EIGHTHS[eighths % 8])
}

fn faint() -> Style {
    Style::new().add_modifier(Modifier::DIM)
}

/// Logarithmic scale of the bars, from the shortest to the longest time.
struct LogScale {
    from: f64,
    to: f64,
}

impl LogScale {
    fn of(times: &Histogram) -> Self {
        let log = |time: Duration| (time.as_nanos().max(1) as f64).ln();
        // Begin at half of the shortest time, so that the bar for this time is visible.
        Self { from: log(times.min() / 2), to: log(times.max()) }
    }

    fn share(&self, time: Duration) -> f64 {
        let at = (time.as_nanos().max(1) as f64).ln();
        (at - self.from) / (self.to - self.from).max(1e-9)
    }
}

#[cfg(test)]
mod tests {
    use ratatui::Terminal;
    use ratatui::backend::TestBackend;

    use super::*;
    use towpath_load::results::samples;

    fn scene() -> FrameScene {
        let run = samples::report();
        FrameScene {
            heading: Heading::of(&run.plan, "round 2 of 5".into()),
            end: RunEnd::of(&run.plan),
            is_open: false,
            is_stream: false,
            rates: vec![900, 1000],
            told: vec!["A 1000/s".into()],
        }
    }

    fn drawn(width: u16, height: u16, scene: &FrameScene, now: &ReportSnapshot) -> String {
        let mut terminal = Terminal::new(TestBackend::new(width, height)).expect("a terminal");
        terminal.draw(|frame| scene.draw(frame, now)).expect("it is drawn");
        let buffer = terminal.backend().buffer();
        let rows = buffer.content.chunks(usize::from(width));
        let line = |row: &[ratatui::buffer::Cell]| row.iter().map(|cell| cell.symbol()).collect();
        rows.map(line).collect::<Vec<String>>().join("\n")
    }

    #[test]
    fn a_frame_has_progress_figures_times_and_failures() {
        let text = drawn(100, 30, &scene(), &samples::snapshot());
        let wanted = [
            "towpath load  127.0.0.1:7 by TCP   round 2 of 5",
            "closed loop of 10 users",
            "2s measured, 1s left",
            "answers    1000/s               average 1000/s",
            "sent 2002            received 2000",
            "9 of 10              1 connecting",
            "service time so far",
            "p99      982µs  █",
            "max        2ms  █",
            "distribution",
            "3 × connection reset: 127.0.0.1:7: reset <by> peer",
            "A 1000/s",
            "Ctrl-C ends the run",
        ];
        for words in wanted {
            assert!(text.contains(words), "{words}:\n{text}");
        }
    }

    #[test]
    fn a_tester_behind_its_schedule_is_named() {
        let mut now = samples::snapshot();
        now.behind = Duration::from_millis(30);
        let text = drawn(100, 30, &scene(), &now);
        assert!(text.contains("the tester is 30ms behind its schedule"), "{text}");
    }

    #[test]
    fn small_terminals_and_empty_figures_are_drawn_as_well() {
        let mut empty = samples::snapshot();
        (empty.response, empty.service) = (Histogram::new(), Histogram::new());
        (empty.elapsed, empty.period) = (Duration::ZERO, None);
        for phase in
            [RunPhase::Connecting, RunPhase::WarmingUp, RunPhase::Measuring, RunPhase::Draining]
        {
            empty.phase = phase;
            for (width, height) in [(1, 1), (10, 5), (40, 12), (200, 60)] {
                drawn(width, height, &scene(), &empty);
                drawn(width, height, &scene(), &samples::snapshot());
            }
        }
    }

    #[test]
    fn bars_end_in_eighths_of_a_cell() {
        let cases = [(0., ""), (1., "████"), (0.5, "██"), (0.53125, "██▏"), (2., "████")];
        for (share, text) in cases {
            assert_eq!(bar(share, 4), text);
        }
    }
}
