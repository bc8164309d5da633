//! State of `towpath top`: its pages, the selected socket, and the effect of keys.

use std::collections::VecDeque;
use std::time::Duration;

use ratatui::crossterm::event::{KeyCode, KeyEvent, KeyModifiers};
use towpath_model::{ConnectionName, RunReport, SampledSocket};

use super::figures::{RunFigures, SocketName, SocketOrder, bit_rates};

/// Maximum number of points of a plot. At the shortest period they cover a minute.
pub const POINTS_MAX: usize = 600;
/// Number of rows by which Page Up and Page Down move.
const PAGE_ROWS: isize = 10;

/// Effect of a key on the command.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum KeyEffect {
    /// Draws the page again.
    Draw,
    /// Ends the command.
    Quit,
    /// Begins to sample the connection of the new page.
    Watch(ConnectionName),
    /// Ends the samples of a connection, because its page was left.
    Unwatch,
}

/// State of the command.
#[derive(Debug)]
pub struct App {
    /// Description of the run.
    pub title: String,
    /// Period of the samples.
    pub period: Duration,
    /// Figures of the run.
    pub figures: RunFigures,
    /// Order of the sockets.
    pub order: SocketOrder,
    /// Socket on which the cursor is; `None` for the first one.
    pub selected: Option<SocketName>,
    /// Page of one connection; `None` while the overview is shown.
    pub detail: Option<ConnectionDetail>,
}

/// Page of one connection.
#[derive(Debug)]
pub struct ConnectionDetail {
    /// Addresses of the connection.
    pub name: ConnectionName,
    /// Latest sample; `None` before the first one.
    pub latest: Option<SampledSocket>,
    /// Points of the plots, the oldest one first.
    pub points: VecDeque<PlotPoint>,
    /// Whether the connection does not exist any more.
    pub is_closed: bool,
    /// Reason why the run sends no samples of the connection; `None` if the run sends some.
    pub refusal: Option<String>,
}

/// Values of a connection at one time.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct PlotPoint {
    /// Time in seconds since the run opened its control socket.
    pub at_s: f64,
    /// Congestion window in segments.
    pub cwnd: f64,
    /// Smoothed round-trip time in milliseconds.
    pub rtt_ms: f64,
    /// Received bits per second.
    pub bits_in: f64,
    /// Sent and acknowledged bits per second.
    pub bits_out: f64,
}

impl App {
    /// Creates the state before the first samples.
    pub fn new(title: String, period: Duration) -> Self {
        let (figures, order) = (RunFigures::default(), SocketOrder::default());
        Self { title, period, figures, order, selected: None, detail: None }
    }

    /// Returns the sampled sockets in their order.
    pub fn sockets(&self) -> Vec<&SampledSocket> {
        let mut sockets: Vec<_> = self.figures.sockets.list.iter().collect();
        self.order.sort(&mut sockets);
        sockets
    }

    /// Returns the row of the cursor in a list of sockets.
    pub fn row(&self, sockets: &[&SampledSocket]) -> usize {
        let is_it = |it: &&SampledSocket| Some(SocketName::of(it)) == self.selected;
        sockets.iter().position(is_it).unwrap_or(0)
    }

    /// Handles a key.
    pub fn press(&mut self, key: KeyEvent) -> KeyEffect {
        let is_control = key.modifiers.contains(KeyModifiers::CONTROL);
        match key.code {
            KeyCode::Char('c' | 'd') if is_control => KeyEffect::Quit,
            KeyCode::Esc | KeyCode::Backspace | KeyCode::Left | KeyCode::Char('q')
                if self.detail.is_some() =>
            {
                self.detail = None;
                KeyEffect::Unwatch
            }
            KeyCode::Char('q') | KeyCode::Esc => KeyEffect::Quit,
            _ if self.detail.is_some() => KeyEffect::Draw,
            KeyCode::Up | KeyCode::Char('k') => self.move_by(-1),
            KeyCode::Down | KeyCode::Char('j') => self.move_by(1),
            KeyCode::PageUp => self.move_by(-PAGE_ROWS),
            KeyCode::PageDown => self.move_by(PAGE_ROWS),
            KeyCode::Home => self.move_by(isize::MIN),
            KeyCode::End => self.move_by(isize::MAX),
            KeyCode::Char('s') => {
                self.order = self.order.next();
                KeyEffect::Draw
            }
            KeyCode::Enter | KeyCode::Right => self.open(),
            _ => KeyEffect::Draw,
        }
    }

    fn move_by(&mut self, rows: isize) -> KeyEffect {
        let sockets = self.sockets();
        let last = sockets.len().saturating_sub(1);
        let row = self.row(&sockets).saturating_add_signed(rows).min(last);
        self.selected = sockets.get(row).map(|it| SocketName::of(it));
        KeyEffect::Draw
    }

    /// Opens the page of the selected connection. Sockets without a peer have none.
    fn open(&mut self) -> KeyEffect {
        let sockets = self.sockets();
        let selected = sockets.get(self.row(&sockets)).map(|it| SocketName::of(it));
        let Some(SocketName { local: Some(local), remote: Some(remote), .. }) = selected else {
            return KeyEffect::Draw;
        };
        let name = ConnectionName { local, remote };
        self.selected = selected;
        let (latest, points) = (None, VecDeque::new());
        let (is_closed, refusal) = (false, None);
        self.detail = Some(ConnectionDetail { name, latest, points, is_closed, refusal });
        KeyEffect::Watch(name)
    }
}

impl ConnectionDetail {
    /// Adds a sample of the connection to the plots.
    pub fn update(&mut self, report: RunReport) {
        let Some(sample) = report.sockets else { return };
        let Some(found) = sample.list.into_iter().next() else {
            self.is_closed = true;
            return;
        };
        let (bits_in, bits_out) = bit_rates(&found, sample.period_us);
        if self.points.len() == POINTS_MAX {
            self.points.pop_front();
        }
        // The first sample has no period, and therefore no rate.
        if sample.period_us > 0 {
            self.points.push_back(PlotPoint {
                at_s: report.time_us as f64 / 1e6,
                cwnd: found.socket.cwnd.into(),
                rtt_ms: f64::from(found.socket.rtt_us) / 1e3,
                bits_in,
                bits_out,
            });
        }
        self.is_closed = false;
        self.latest = Some(found);
    }
}

#[cfg(test)]
mod tests {
    use towpath_model::{SampledSocket, SocketsSample};

    use super::super::samples;
    use super::*;

    fn press(app: &mut App, code: KeyCode) -> KeyEffect {
        app.press(KeyEvent::new(code, KeyModifiers::NONE))
    }

    fn remotes(app: &App) -> Vec<String> {
        let remote = |it: &&SampledSocket| it.socket.remote.map_or("-".into(), |it| it.to_string());
        app.sockets().iter().map(remote).collect()
    }

    #[test]
    fn the_cursor_stays_on_its_socket() {
        let mut app = samples::app();
        assert_eq!(app.row(&app.sockets()), 0);
        assert_eq!(press(&mut app, KeyCode::Down), KeyEffect::Draw);
        let selected = app.selected;
        assert_eq!(app.row(&app.sockets()), 1);
        // The selected connection becomes the busiest one.
        app.figures.sockets.list[1].period_bytes_acked = 1 << 40;
        assert_eq!((app.row(&app.sockets()), app.selected), (0, selected));
        press(&mut app, KeyCode::End);
        assert_eq!(app.row(&app.sockets()), 2);
        press(&mut app, KeyCode::PageDown);
        assert_eq!(app.row(&app.sockets()), 2);
        press(&mut app, KeyCode::Home);
        assert_eq!(app.row(&app.sockets()), 0);
    }

    #[test]
    fn keys_sort_open_and_leave() {
        let mut app = samples::app();
        let by_rate = remotes(&app);
        press(&mut app, KeyCode::Char('s'));
        assert_eq!(app.order, SocketOrder::Rtt);
        assert_ne!(remotes(&app), by_rate);
        (0..3).for_each(|_| assert_eq!(press(&mut app, KeyCode::Char('s')), KeyEffect::Draw));
        assert_eq!(remotes(&app), by_rate);
        let KeyEffect::Watch(name) = press(&mut app, KeyCode::Enter) else { panic!("no page") };
        assert_eq!(name.remote.to_string(), by_rate[0]);
        assert_eq!(press(&mut app, KeyCode::Down), KeyEffect::Draw);
        assert_eq!(press(&mut app, KeyCode::Char('q')), KeyEffect::Unwatch);
        assert!(app.detail.is_none());
        assert_eq!(press(&mut app, KeyCode::Char('q')), KeyEffect::Quit);
        // The last socket is a listener, which has no page.
        press(&mut app, KeyCode::End);
        assert_eq!(press(&mut app, KeyCode::Enter), KeyEffect::Draw);
        let interrupt = KeyEvent::new(KeyCode::Char('c'), KeyModifiers::CONTROL);
        assert_eq!(app.press(interrupt), KeyEffect::Quit);
    }

    #[test]
    fn a_detail_collects_points_until_the_connection_is_closed() {
        let mut app = samples::app();
        press(&mut app, KeyCode::Enter);
        let detail = app.detail.as_mut().unwrap();
        let sampled = app.figures.sockets.list[0].clone();
        let report = |period_us, list| {
            let sockets = Some(SocketsSample { total: 1, period_us, list });
            RunReport { time_us: 5_000_000, sockets, ..RunReport::default() }
        };
        detail.update(report(0, vec![sampled.clone()]));
        assert!(detail.points.is_empty() && detail.latest.is_some());
        (0..POINTS_MAX + 5).for_each(|_| detail.update(report(1_000_000, vec![sampled.clone()])));
        assert_eq!(detail.points.len(), POINTS_MAX);
        let bits = sampled.period_bytes_acked as f64 * 8.;
        assert_eq!((detail.points[0].at_s, detail.points[0].bits_out), (5., bits));
        detail.update(report(1_000_000, Vec::new()));
        assert!(detail.is_closed && detail.latest.is_some());
    }
}
