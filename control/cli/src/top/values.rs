//! Formats values for `towpath top`, and drawn pages as text.

use std::net::SocketAddr;
use std::time::Duration;

use ratatui::backend::TestBackend;
use ratatui::{Frame, Terminal};
use towpath_load::results::figures::time;

/// Formats a time in microseconds.
pub fn micros(us: u32) -> String {
    time(Duration::from_micros(us.into()))
}

/// Formats a period.
pub fn duration(period: Duration) -> String {
    time(period)
}

/// Formats an address; `*` if there is none.
pub fn address(address: Option<SocketAddr>) -> String {
    address.map_or_else(|| "*".to_owned(), |address| address.to_string())
}

/// Draws a page of this size, and returns it as lines without trailing spaces.
pub fn drawn(width: u16, height: u16, draw: impl FnOnce(&mut Frame<'_>)) -> String {
    let Ok(mut terminal) = Terminal::new(TestBackend::new(width, height));
    let Ok(_) = terminal.draw(draw);
    let buffer = terminal.backend().buffer();
    let mut text = String::new();
    for row in buffer.content.chunks(usize::from(width.max(1))) {
        let line: String = row.iter().map(|cell| cell.symbol()).collect();
        text.push_str(line.trim_end());
        text.push('\n');
    }
    text
}
