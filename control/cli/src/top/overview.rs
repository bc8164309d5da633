//! Draws the first page of `towpath top`: interfaces, drops, shards, and the busiest sockets.

use ratatui::Frame;
use ratatui::layout::{Alignment, Constraint, Layout, Rect};
use ratatui::style::{Color, Modifier, Style};
use ratatui::text::{Line, Span};
use ratatui::widgets::{Cell, Paragraph, Row, Table, TableState};
use towpath_load::results::figures::{bits, counted, rate};
use towpath_model::{SampledSocket, printable};

use super::app::App;
use super::figures::{RunFigures, bit_rates};
use super::values;

/// Color of headings and of the cursor.
pub const ACCENT: Color = Color::Cyan;
/// Color of drops and losses.
pub const WARNING: Color = Color::Yellow;

/// Maximum number of interfaces that are shown.
const INTERFACES_MAX: usize = 6;
/// Maximum number of shards that are shown: all that an engine can have.
const SHARDS_MAX: usize = 16;
/// Maximum number of reasons for drops that are shown.
const DROPS_MAX: usize = 6;

/// Keys of the page.
const KEYS: &str = " ↑ ↓ select   Enter details   s sort   q quit";

/// Draws the page. `with_keys` is false if no terminal can send keys.
pub fn draw(frame: &mut Frame<'_>, app: &App, with_keys: bool) {
    let figures = &app.figures;
    let interfaces = figures.interfaces.len().min(INTERFACES_MAX) as u16;
    let shards = figures.shards.len().min(SHARDS_MAX) as u16;
    let areas = Layout::vertical([
        Constraint::Length(2),
        Constraint::Length(interfaces + 1),
        Constraint::Length(2),
        Constraint::Length(shards + 2),
        Constraint::Fill(1),
        Constraint::Length(u16::from(with_keys)),
    ]);
    let [title, links, drops, of_shards, sockets, keys] = areas.areas(frame.area());
    frame.render_widget(Paragraph::new(title_line(app)), title);
    draw_interfaces(frame, figures, links);
    frame.render_widget(Paragraph::new(drop_line(figures)), drops);
    draw_shards(frame, figures, of_shards);
    draw_sockets(frame, app, sockets, with_keys);
    frame.render_widget(Paragraph::new(Line::styled(KEYS, faint())), keys);
}

/// Returns the number of lines of the page that shows all rows.
pub fn height(app: &App) -> u16 {
    let interfaces = app.figures.interfaces.len().min(INTERFACES_MAX);
    let shards = app.figures.shards.len().min(SHARDS_MAX);
    let sockets = app.figures.sockets.list.len();
    (2 + interfaces + 1 + 2 + shards + 2 + sockets + 2) as u16
}

fn title_line(app: &App) -> Line<'static> {
    let bold = Style::new().add_modifier(Modifier::BOLD);
    let mut spans = vec![
        Span::styled(" towpath top  ", bold.fg(ACCENT)),
        Span::styled(printable(&app.title), bold),
        Span::styled(format!("   every {}", values::duration(app.period)), faint()),
    ];
    if app.figures.lost > 0 {
        let lost = counted(app.figures.lost, "report was", "reports were");
        spans.push(Span::styled(format!("   {lost} lost"), Style::new().fg(WARNING)));
    }
    Line::from(spans)
}

fn draw_interfaces(frame: &mut Frame<'_>, figures: &RunFigures, area: Rect) {
    let rows = figures.interfaces.iter().take(INTERFACES_MAX).map(|it| {
        row([
            printable(&it.name),
            bits(it.bits_in),
            bits(it.bits_out),
            rate(it.packets_in),
            rate(it.packets_out),
            rate(it.drops),
        ])
    });
    let widths = [18, 14, 14, 12, 12, 12].map(Constraint::Length);
    let head = heading(["INTERFACE", "IN", "OUT", "PACKETS IN", "PACKETS OUT", "DROPS"]);
    frame.render_widget(Table::new(rows, widths).header(head), area);
}

/// Formats the most frequent reasons for drops, each with its rate and its total.
fn drop_line(figures: &RunFigures) -> Line<'static> {
    let mut spans = vec![Span::styled(" DROPS  ", Style::new().fg(ACCENT))];
    if figures.drops.is_empty() {
        spans.push(Span::styled("none", faint()));
    }
    for drop in figures.drops.iter().take(DROPS_MAX) {
        let text = format!("{} {} ({})   ", printable(&drop.reason), rate(drop.rate), drop.total);
        let style = if drop.rate > 0. { Style::new().fg(WARNING) } else { faint() };
        spans.push(Span::styled(text, style));
    }
    Line::from(spans)
}

fn draw_shards(frame: &mut Frame<'_>, figures: &RunFigures, area: Rect) {
    let rows = figures.shards.iter().take(SHARDS_MAX).map(|it| {
        row([
            it.number.to_string(),
            rate(it.turns),
            rate(it.sleeps),
            rate(it.packets_in),
            rate(it.packets_out),
            rate(it.drops),
        ])
    });
    let widths = [18, 14, 14, 12, 12, 12].map(Constraint::Length);
    let head = heading(["SHARD", "TURNS", "SLEEPS", "PACKETS IN", "PACKETS OUT", "DROPS"]);
    frame.render_widget(Table::new(rows, widths).header(head), area);
}

fn draw_sockets(frame: &mut Frame<'_>, app: &App, area: Rect, with_cursor: bool) {
    let [title, table] = Layout::vertical([Constraint::Length(1), Constraint::Fill(1)]).areas(area);
    let sample = &app.figures.sockets;
    let shown = sample.list.len() as u64;
    let mut text = format!(" {}", counted(sample.total, "socket", "sockets"));
    if shown < sample.total {
        text.push_str(&format!(", the {shown} with the highest rates"));
    }
    text.push_str(&format!(", by {}", app.order.name()));
    frame.render_widget(Paragraph::new(Line::styled(text, faint())), title);
    let sockets = app.sockets();
    let rows = sockets.iter().map(|it| socket_row(it, sample.period_us));
    let widths = [6, 11, 30, 30, 12, 12, 5, 8, 8, 8, 8].map(Constraint::Length);
    let head = heading([
        "PROTO", "STATE", "LOCAL", "REMOTE", "IN", "OUT", "CWND", "RTT", "RETRANS", "RECV-Q",
        "SEND-Q",
    ]);
    let cursor = Style::new().add_modifier(Modifier::REVERSED);
    let list = Table::new(rows, widths).header(head).row_highlight_style(cursor);
    let has_cursor = with_cursor && !sockets.is_empty();
    let mut state = TableState::new();
    state.select(has_cursor.then(|| app.row(&sockets)));
    frame.render_stateful_widget(list, table, &mut state);
}

fn socket_row(sampled: &SampledSocket, period_us: u64) -> Row<'static> {
    let socket = &sampled.socket;
    let (bits_in, bits_out) = bit_rates(sampled, period_us);
    let flow = socket.tcp.as_ref().filter(|_| socket.remote.is_some());
    let of_flow = |text: String| if flow.is_some() { text } else { String::new() };
    let first = Cell::from(format!(" {}", socket.proto.name()));
    let state = Cell::from(socket.state.to_string());
    let addresses = [socket.local, socket.remote].map(|it| Cell::from(values::address(it)));
    let figures = [
        of_flow(bits(bits_in)),
        of_flow(bits(bits_out)),
        of_flow(socket.cwnd.to_string()),
        of_flow(values::micros(socket.rtt_us)),
        flow.map(|tcp| tcp.retrans_total.to_string()).unwrap_or_default(),
        socket.recv_q.to_string(),
        socket.send_q.to_string(),
    ];
    let figures = figures.map(right);
    Row::new([first, state].into_iter().chain(addresses).chain(figures))
}

/// Returns a row whose first cell is a name, and whose other cells are numbers.
fn row<const N: usize>(cells: [String; N]) -> Row<'static> {
    Row::new(cells.into_iter().enumerate().map(|(column, text)| match column {
        0 => Cell::from(format!(" {text}")),
        _ => right(text),
    }))
}

fn right(text: String) -> Cell<'static> {
    Cell::from(Line::from(text).alignment(Alignment::Right))
}

/// Returns the header of a table, in which headings of numbers are aligned to the right.
fn heading<const N: usize>(names: [&'static str; N]) -> Row<'static> {
    let is_text =
        |name: &str| ["INTERFACE", "SHARD", "PROTO", "STATE", "LOCAL", "REMOTE"].contains(&name);
    let cells = names.into_iter().enumerate().map(|(column, name)| match column {
        0 => Cell::from(format!(" {name}")),
        _ if is_text(name) => Cell::from(name),
        _ => right(name.to_owned()),
    });
    Row::new(cells.collect::<Vec<_>>()).style(Style::new().fg(ACCENT))
}

/// Returns the style of secondary text.
pub fn faint() -> Style {
    Style::new().add_modifier(Modifier::DIM)
}

#[cfg(test)]
mod tests {
    use super::super::{samples, values};
    use super::*;

    fn drawn(width: u16, height: u16, app: &App) -> String {
        values::drawn(width, height, |frame| draw(frame, app, true))
    }

    #[test]
    fn the_page_has_interfaces_drops_shards_sockets_and_keys() {
        let text = drawn(150, 24, &samples::app());
        for words in [
            "towpath top  web (run 42): nginx   every 1s",
            "eth0                    2 Mbit/s     950 Mbit/s       1000/s      80000/s",
            "DROPS  no_route 2/s (17)   tcp_closed 0/s (3)",
            "0                         4000/s          300/s",
            "1234 sockets, the 3 with the highest rates, by rate",
            "10.0.2.15:80                   10.0.2.2:40000",
            "[2001:db8:1:2:3:4:5:6]:40001",
            "1 Mbit/s    10    250µs",
            "LISTEN      0.0.0.0:80",
            "Enter details",
        ] {
            assert!(text.contains(words), "{words}:\n{text}");
        }
        assert!(!text.contains("lost"), "{text}");
    }

    #[test]
    fn lost_reports_and_an_empty_run_are_shown() {
        let mut app = App::new("run 1".to_owned(), std::time::Duration::from_secs(1));
        app.figures.lost = 1;
        let text = drawn(100, 20, &app);
        assert!(text.contains("1 report was lost") && text.contains("DROPS  none"), "{text}");
    }

    #[test]
    fn small_terminals_are_drawn_as_well() {
        for (width, height) in [(1, 1), (10, 5), (40, 12), (300, 80)] {
            drawn(width, height, &samples::app());
        }
    }
}
