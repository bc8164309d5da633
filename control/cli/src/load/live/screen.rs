//! The terminal: given to the view, and given back on every way out.
//!
//! Keys still make signals: only echo and line editing are off. Ctrl-C thus reaches
//! [`Interrupt`](super::super::interrupt::Interrupt) like a signal of kill(1). The screen is given
//! back when the command ends, when it is stopped (Ctrl-Z), at the second Ctrl-C, and by a panic.

use std::io::{BufWriter, Stderr, Write as _};
use std::os::fd::BorrowedFd;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, TryLockError};

use ratatui::backend::CrosstermBackend;
use ratatui::layout::Rect;
use ratatui::{Frame, Terminal, TerminalOptions, Viewport};
use rustix::termios::{
    LocalModes, OptionalActions, Termios, isatty, tcgetattr, tcgetpgrp, tcgetwinsize, tcsetattr,
};

/// Sequences that open the second screen, empty it and hide the cursor.
const OPEN: &[u8] = b"\x1b[?1049h\x1b[2J\x1b[?25l";
/// Sequences that show the cursor and the first screen again.
const CLOSE: &[u8] = b"\x1b[0m\x1b[?25h\x1b[?1049l";
/// Size that is taken for a terminal that does not know its own.
const SIZE: (u16, u16) = (80, 24);

type Drawn = Terminal<CrosstermBackend<BufWriter<Stderr>>>;

/// Standard error as a terminal.
pub struct Screen {
    open: Mutex<Option<OpenScreen>>,
}

/// The view has the terminal.
struct OpenScreen {
    /// Modes to give back.
    modes: Termios,
    terminal: Drawn,
    size: Rect,
}

impl Screen {
    /// A terminal that the view does not have yet. A panic gives it back from then on.
    pub fn new() -> Arc<Self> {
        let screen = Arc::new(Self { open: Mutex::new(None) });
        let (of_hook, then) = (Arc::clone(&screen), std::panic::take_hook());
        std::panic::set_hook(Box::new(move |info| {
            of_hook.leave_at_once();
            then(info);
        }));
        screen
    }

    /// Takes the terminal, and says whether there is one in the foreground that can draw.
    pub fn enter(&self, always: bool) -> bool {
        let can_draw =
            always || std::env::var("TERM").is_ok_and(|it| !it.is_empty() && it != "dumb");
        if !can_draw || !is_foreground() {
            return false;
        }
        let mut open = self.lock();
        if open.is_none() {
            *open = OpenScreen::new();
        }
        open.is_some()
    }

    /// Gives the terminal back.
    pub fn leave(&self) {
        if let Some(open) = self.lock().take() {
            open.close();
        }
    }

    /// Gives the terminal back from a thread that may be in the middle of drawing.
    pub fn leave_at_once(&self) {
        let open = match self.open.try_lock() {
            Ok(mut open) => open.take(),
            Err(TryLockError::Poisoned(open)) => open.into_inner().take(),
            // The drawing thread holds the lock and panics, so its saved modes cannot be read.
            Err(TryLockError::WouldBlock) => return restore(None),
        };
        if let Some(open) = open {
            open.close();
        }
    }

    /// Runs `stop` with the terminal given back, and takes it again afterwards.
    pub fn while_left(&self, stop: impl FnOnce()) {
        let mut open = self.lock();
        let was_open = open.take().map(OpenScreen::close).is_some();
        stop();
        if was_open && is_foreground() {
            *open = OpenScreen::new();
        }
    }

    /// Draws a frame, if the view has the terminal.
    pub fn draw(&self, frame: impl FnOnce(&mut Frame<'_>)) {
        if let Some(open) = &mut *self.lock() {
            open.draw(frame);
        }
    }

    fn lock(&self) -> MutexGuard<'_, Option<OpenScreen>> {
        self.open.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl OpenScreen {
    fn new() -> Option<Self> {
        let modes = tcgetattr(stderr()).ok()?;
        let mut quiet = modes.clone();
        quiet.local_modes -= LocalModes::ECHO | LocalModes::ICANON;
        tcsetattr(stderr(), OptionalActions::Now, &quiet).ok()?;
        let size = size();
        let viewport = Viewport::Fixed(size);
        let backend = CrosstermBackend::new(BufWriter::new(std::io::stderr()));
        let Ok(terminal) = Terminal::with_options(backend, TerminalOptions { viewport }) else {
            restore(Some(&modes));
            return None;
        };
        // As with all writes below, the load test goes on when the terminal is gone.
        let _ = crate::output::write_all(stderr(), OPEN);
        Some(Self { modes, terminal, size })
    }

    /// Errors of a terminal that has gone are no reason to end a run.
    fn draw(&mut self, frame: impl FnOnce(&mut Frame<'_>)) {
        let size = size();
        if size != self.size {
            self.size = size;
            let _ = crate::output::write_all(stderr(), b"\x1b[2J");
            let _ = self.terminal.resize(size);
        }
        let _ = self.terminal.draw(frame);
    }

    fn close(mut self) {
        let _ = self.terminal.backend_mut().flush();
        restore(Some(&self.modes));
    }
}

/// Shows the first screen. Without the modes that it had, echo and line editing are switched on.
fn restore(modes: Option<&Termios>) {
    let _ = crate::output::write_all(stderr(), CLOSE);
    let modes = modes.cloned().or_else(|| {
        let mut modes = tcgetattr(stderr()).ok()?;
        modes.local_modes |= LocalModes::ECHO | LocalModes::ICANON;
        Some(modes)
    });
    if let Some(modes) = modes {
        let _ = tcsetattr(stderr(), OptionalActions::Flush, &modes);
    }
}

fn stderr() -> BorrowedFd<'static> {
    rustix::stdio::stderr()
}

/// Whether standard error is a terminal that this process may draw on: a background process
/// would be stopped by SIGTTOU.
fn is_foreground() -> bool {
    isatty(stderr()) && tcgetpgrp(stderr()).is_ok_and(|group| group == rustix::process::getpgrp())
}

fn size() -> Rect {
    let size = tcgetwinsize(stderr()).map_or(SIZE, |size| (size.ws_col, size.ws_row));
    let (width, height) = if size.0 == 0 || size.1 == 0 { SIZE } else { size };
    Rect::new(0, 0, width, height)
}
