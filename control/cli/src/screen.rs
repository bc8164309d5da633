//! Switches the terminal to the full-screen view, and restores it on every exit.
//!
//! Keys still generate signals, because only echo and line editing are disabled. Ctrl-C sends
//! SIGINT, as kill(1) does, and the command that shows the view handles the signal. The terminal is
//! restored when the command ends or is stopped (Ctrl-Z), and on a panic.

use std::io::{self, BufWriter, Write};
use std::os::fd::BorrowedFd;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, TryLockError};

use ratatui::backend::CrosstermBackend;
use ratatui::layout::Rect;
use ratatui::{Frame, Terminal, TerminalOptions, Viewport};
use rustix::termios::{
    LocalModes, OptionalActions, Termios, isatty, tcgetattr, tcgetpgrp, tcgetwinsize, tcsetattr,
};

/// Control sequences that switch to the alternate screen, clear the screen and hide the cursor.
const OPEN: &[u8] = b"\x1b[?1049h\x1b[2J\x1b[?25l";
/// Control sequences that show the cursor and switch back from the alternate screen.
const CLOSE: &[u8] = b"\x1b[0m\x1b[?25h\x1b[?1049l";
/// Size in columns and lines that is assumed if the terminal does not report its size.
const SIZE: (u16, u16) = (80, 24);

type Drawn = Terminal<CrosstermBackend<BufWriter<ScreenStream>>>;

/// Standard stream on which the view is drawn.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum ScreenStream {
    /// Standard output.
    Stdout,
    /// Standard error.
    Stderr,
}

impl ScreenStream {
    fn fd(self) -> BorrowedFd<'static> {
        match self {
            Self::Stdout => rustix::stdio::stdout(),
            Self::Stderr => rustix::stdio::stderr(),
        }
    }

    /// Returns whether the stream is a terminal and this process is in the foreground. SIGTTOU
    /// would stop a background process that changes the terminal.
    fn is_foreground(self) -> bool {
        isatty(self.fd())
            && tcgetpgrp(self.fd()).is_ok_and(|group| group == rustix::process::getpgrp())
    }

    fn size(self) -> Rect {
        let size = tcgetwinsize(self.fd()).map_or(SIZE, |size| (size.ws_col, size.ws_row));
        let (width, height) = if size.0 == 0 || size.1 == 0 { SIZE } else { size };
        Rect::new(0, 0, width, height)
    }

    /// Switches back from the alternate screen, and restores the original modes. If they are not
    /// known, enables echo and line editing.
    fn restore(self, modes: Option<&Termios>) {
        let _ = crate::output::write_all(self.fd(), CLOSE);
        let modes = modes.cloned().or_else(|| {
            let mut modes = tcgetattr(self.fd()).ok()?;
            modes.local_modes |= LocalModes::ECHO | LocalModes::ICANON;
            Some(modes)
        });
        if let Some(modes) = modes {
            let _ = tcsetattr(self.fd(), OptionalActions::Flush, &modes);
        }
    }
}

impl Write for ScreenStream {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        // Write everything, also if O_NONBLOCK is set.
        crate::output::write_all(self.fd(), bytes)?;
        Ok(bytes.len())
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

/// A standard stream as a terminal on which the view may be drawn.
pub struct Screen {
    stream: ScreenStream,
    open: Mutex<Option<OpenScreen>>,
}

/// State while the terminal shows the view.
struct OpenScreen {
    stream: ScreenStream,
    /// Original terminal modes, which are restored at the end.
    modes: Termios,
    terminal: Drawn,
    size: Rect,
}

impl Screen {
    /// Creates a screen that does not show the view yet. Installs a panic hook that restores the
    /// terminal.
    pub fn new(stream: ScreenStream) -> Arc<Self> {
        let screen = Arc::new(Self { stream, open: Mutex::new(None) });
        let (of_hook, then) = (Arc::clone(&screen), std::panic::take_hook());
        std::panic::set_hook(Box::new(move |info| {
            of_hook.leave_at_once();
            then(info);
        }));
        screen
    }

    /// Switches the terminal to the view. Returns false if it does not support this, or if this
    /// process is not in the foreground.
    pub fn enter(&self, always: bool) -> bool {
        let can_draw =
            always || std::env::var("TERM").is_ok_and(|it| !it.is_empty() && it != "dumb");
        if !can_draw || !self.stream.is_foreground() {
            return false;
        }
        let mut open = self.lock();
        if open.is_none() {
            *open = OpenScreen::new(self.stream);
        }
        open.is_some()
    }

    /// Returns whether the terminal shows the view.
    pub fn is_shown(&self) -> bool {
        self.lock().is_some()
    }

    /// Restores the terminal if it shows the view.
    pub fn leave(&self) {
        if let Some(open) = self.lock().take() {
            open.close();
        }
    }

    /// Restores the terminal, even if another thread is drawing at the moment.
    pub fn leave_at_once(&self) {
        let open = match self.open.try_lock() {
            Ok(mut open) => open.take(),
            Err(TryLockError::Poisoned(open)) => open.into_inner().take(),
            // Another thread is drawing and holds the lock, so the original modes cannot be read.
            Err(TryLockError::WouldBlock) => return self.stream.restore(None),
        };
        if let Some(open) = open {
            open.close();
        }
    }

    /// Restores the terminal, runs `stop`, and switches the terminal to the view again.
    pub fn while_left(&self, stop: impl FnOnce()) {
        let mut open = self.lock();
        let was_open = open.take().map(OpenScreen::close).is_some();
        stop();
        if was_open && self.stream.is_foreground() {
            *open = OpenScreen::new(self.stream);
        }
    }

    /// Draws a frame if the terminal shows the view.
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
    fn new(stream: ScreenStream) -> Option<Self> {
        let modes = tcgetattr(stream.fd()).ok()?;
        let mut quiet = modes.clone();
        quiet.local_modes -= LocalModes::ECHO | LocalModes::ICANON;
        tcsetattr(stream.fd(), OptionalActions::Now, &quiet).ok()?;
        let size = stream.size();
        let viewport = Viewport::Fixed(size);
        let backend = CrosstermBackend::new(BufWriter::new(stream));
        let Ok(terminal) = Terminal::with_options(backend, TerminalOptions { viewport }) else {
            stream.restore(Some(&modes));
            return None;
        };
        // Ignore errors here and below: the command continues even if the terminal no longer
        // exists.
        let _ = crate::output::write_all(stream.fd(), OPEN);
        Some(Self { stream, modes, terminal, size })
    }

    /// Draws a frame. Ignores errors, because the command must continue even if the terminal no
    /// longer exists.
    fn draw(&mut self, frame: impl FnOnce(&mut Frame<'_>)) {
        let size = self.stream.size();
        if size != self.size {
            self.size = size;
            let _ = crate::output::write_all(self.stream.fd(), b"\x1b[2J");
            let _ = self.terminal.resize(size);
        }
        let _ = self.terminal.draw(frame);
    }

    fn close(mut self) {
        let _ = self.terminal.backend_mut().flush();
        self.stream.restore(Some(&self.modes));
    }
}
