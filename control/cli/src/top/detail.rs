//! Draws the page of one connection: its values, and plots of congestion window, round-trip time
//! and rates.

use ratatui::Frame;
use ratatui::layout::{Constraint, Layout, Rect};
use ratatui::style::{Color, Modifier, Style};
use ratatui::symbols::Marker;
use ratatui::text::{Line, Span};
use ratatui::widgets::{Axis, Block, Borders, Chart, Dataset, GraphType, Paragraph};
use towpath_load::results::figures::{bits, bytes};
use towpath_model::SampledSocket;

use super::app::{ConnectionDetail, PlotPoint};
use super::overview::{ACCENT, WARNING, faint};
use super::values;

/// Seconds that the plots cover.
const SPAN_S: f64 = 60.;
/// Keys of the page.
const KEYS: &str = " q back   Ctrl-C quit";

/// Draws the page.
pub fn draw(frame: &mut Frame<'_>, detail: &ConnectionDetail) {
    let areas = Layout::vertical([
        Constraint::Length(2),
        Constraint::Length(6),
        Constraint::Fill(1),
        Constraint::Fill(1),
        Constraint::Fill(1),
        Constraint::Length(1),
    ]);
    let [title, values, window, rtt, rates, keys] = areas.areas(frame.area());
    frame.render_widget(Paragraph::new(title_line(detail)), title);
    let lines = detail.latest.as_ref().map(|it| value_lines(it, detail.points.back()));
    frame.render_widget(Paragraph::new(lines.unwrap_or_default()), values);
    let count = |value: f64| format!("{value:.0}");
    let lines: [Plotted; 1] = [("cwnd", Color::Cyan, |point| point.cwnd)];
    plot(frame, detail, window, "congestion window (segments)", &lines, count);
    let lines: [Plotted; 1] = [("rtt", Color::Magenta, |point| point.rtt_ms)];
    plot(frame, detail, rtt, "round-trip time (ms)", &lines, |value| format!("{value:.2}"));
    let lines: [Plotted; 2] =
        [("out", Color::Green, |point| point.bits_out), ("in", Color::Blue, |point| point.bits_in)];
    plot(frame, detail, rates, "rate: out green, in blue", &lines, bits);
    frame.render_widget(Paragraph::new(Line::styled(KEYS, faint())), keys);
}

fn title_line(detail: &ConnectionDetail) -> Line<'static> {
    let bold = Style::new().add_modifier(Modifier::BOLD);
    let name = format!("{} → {}", detail.name.local, detail.name.remote);
    let mut spans = vec![Span::styled(" connection  ", bold.fg(ACCENT)), Span::styled(name, bold)];
    if detail.is_closed {
        let closed = "   does not exist any more";
        spans.push(Span::styled(closed, Style::new().fg(WARNING)));
    }
    if let Some(why) = &detail.refusal {
        spans.push(Span::styled(format!("   {why}"), Style::new().fg(WARNING)));
    }
    Line::from(spans)
}

/// Formats the latest values of the connection.
fn value_lines(sampled: &SampledSocket, point: Option<&PlotPoint>) -> Vec<Line<'static>> {
    let socket = &sampled.socket;
    let line = |name: &str, text: String| {
        Line::from(vec![Span::styled(format!(" {name:<10}"), faint()), Span::raw(text)])
    };
    let holders: Vec<_> = socket.holders.iter().map(u32::to_string).collect();
    let congestion = socket.congestion.as_ref().map_or("-", |name| name.as_str());
    let state = format!(
        "{}   processes {}   congestion control {congestion}",
        socket.state,
        if holders.is_empty() { "-".to_owned() } else { holders.join(" ") }
    );
    let mut lines = vec![line("state", state)];
    let Some(tcp) = &socket.tcp else { return lines };
    let ssthresh = tcp.ssthresh.map_or_else(|| "-".to_owned(), |it| it.to_string());
    lines.push(line(
        "window",
        format!(
            "cwnd {}   ssthresh {ssthresh}   in flight {}   of the peer {}   own {}   mss {}",
            socket.cwnd,
            tcp.unacked,
            bytes(tcp.snd_wnd.into()),
            bytes(tcp.rcv_wnd.into()),
            tcp.mss
        ),
    ));
    lines.push(line(
        "time",
        format!(
            "rtt {} ± {}   least {}   rto {}",
            values::micros(socket.rtt_us),
            values::micros(tcp.rttvar_us),
            values::micros(tcp.minrtt_us),
            values::micros(tcp.rto_us)
        ),
    ));
    lines.push(line(
        "loss",
        format!(
            "retransmitted {} segments, {}   lost {}   out of order {}",
            tcp.retrans_total,
            bytes(tcp.bytes_retrans),
            tcp.lost,
            tcp.rcv_ooopack
        ),
    ));
    let (bits_in, bits_out) = point.map_or((0., 0.), |point| (point.bits_in, point.bits_out));
    lines.push(line(
        "bytes",
        format!(
            "out {} ({})   in {} ({})   queued {} out, {} in",
            bytes(tcp.bytes_acked),
            bits(bits_out),
            bytes(tcp.bytes_received),
            bits(bits_in),
            socket.send_q,
            socket.recv_q
        ),
    ));
    lines
}

/// A line of a plot: its name, its color, and the value that it shows.
type Plotted = (&'static str, Color, fn(&PlotPoint) -> f64);

/// Draws lines over the last minute, on a scale that begins at zero.
fn plot(
    frame: &mut Frame<'_>,
    detail: &ConnectionDetail,
    area: Rect,
    title: &'static str,
    lines: &[Plotted],
    label: impl Fn(f64) -> String,
) {
    let now = detail.points.back().map_or(0., |point| point.at_s);
    let recent = || detail.points.iter().filter(|point| point.at_s >= now - SPAN_S);
    let series: Vec<Vec<(f64, f64)>> = lines
        .iter()
        .map(|(_, _, value)| recent().map(|point| (point.at_s - now, value(point))).collect())
        .collect();
    let values = series.iter().flatten().map(|(_, value)| *value);
    // Leave a tenth above the maximum. A plot of zeros needs a scale, too.
    let most = values.fold(0., f64::max) * 1.1;
    let most = if most > 0. { most } else { 1. };
    let datasets = lines.iter().zip(&series).map(|((name, color, _), points)| {
        Dataset::default()
            .name(*name)
            .marker(Marker::Braille)
            .graph_type(GraphType::Line)
            .style(Style::new().fg(*color))
            .data(points)
    });
    let axis = Style::new().add_modifier(Modifier::DIM);
    let time = Axis::default().style(axis).bounds([-SPAN_S, 0.]).labels(["-60s", "-30s", "now"]);
    let value =
        Axis::default().style(axis).bounds([0., most]).labels(["0".to_owned(), label(most)]);
    let block = Block::new().borders(Borders::TOP).title(format!(" {title} "));
    let chart = Chart::new(datasets.collect()).block(block).x_axis(time).y_axis(value);
    frame.render_widget(chart.legend_position(None), area);
}

#[cfg(test)]
mod tests {
    use std::collections::VecDeque;

    use super::super::samples;
    use super::*;

    fn detail() -> ConnectionDetail {
        let app = samples::app();
        let point = |n: u32| PlotPoint {
            at_s: f64::from(n),
            cwnd: f64::from(10 + n),
            rtt_ms: 0.25,
            bits_in: 0.,
            bits_out: 1e6 * f64::from(n),
        };
        let mut socket = app.figures.sockets.list[0].clone();
        socket.socket.holders = vec![42, 43];
        ConnectionDetail {
            name: towpath_model::ConnectionName {
                local: "10.0.2.15:80".parse().unwrap(),
                remote: "10.0.2.2:40000".parse().unwrap(),
            },
            latest: Some(socket),
            points: (0..20).map(point).collect(),
            is_closed: false,
            refusal: None,
        }
    }

    #[test]
    fn the_page_has_values_and_three_plots() {
        let text = values::drawn(110, 40, |frame| draw(frame, &detail()));
        for words in [
            "connection  10.0.2.15:80 → 10.0.2.2:40000",
            "state     ESTAB   processes 42 43   congestion control -",
            "cwnd 10   ssthresh -   in flight 0",
            "rtt 250µs ± 100µs   least 200µs   rto 204ms",
            "retransmitted 2 segments",
            "out 80 bytes (19 Mbit/s)",
            "congestion window (segments)",
            "round-trip time (ms)",
            "rate: out green, in blue",
            "20.9 Mbit/s",
            "-60s",
            "now",
            "q back",
        ] {
            assert!(text.contains(words), "{words}:\n{text}");
        }
        assert!(text.chars().any(|c| ('\u{2801}'..='\u{28ff}').contains(&c)), "no line: {text}");
        assert!(!text.contains("any more"), "{text}");
    }

    #[test]
    fn a_closed_connection_and_a_new_page_are_drawn() {
        let mut closed = detail();
        closed.is_closed = true;
        let text = values::drawn(110, 40, |frame| draw(frame, &closed));
        assert!(text.contains("does not exist any more"), "{text}");
        closed.refusal = Some("the run has 8 subscribers of this user".to_owned());
        let text = values::drawn(110, 40, |frame| draw(frame, &closed));
        assert!(text.contains("the run has 8 subscribers"), "{text}");
        (closed.latest, closed.points) = (None, VecDeque::new());
        for (width, height) in [(1, 1), (20, 8), (110, 40)] {
            values::drawn(width, height, |frame| draw(frame, &closed));
        }
    }
}
