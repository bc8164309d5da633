//! Reads keys from the terminal.
//!
//! The reader of crossterm is not used: inside one call, that reader repeats read(2) until a key is
//! complete. An incomplete escape sequence would block signals and reports until the next key.
//! After a hang-up of the terminal the call would never return, and use a whole processor.

use std::os::fd::BorrowedFd;

use anyhow::{Context, Result};
use ratatui::crossterm::event::{KeyCode, KeyEvent, KeyModifiers};
use rustix::io::Errno;
use rustix::termios::isatty;

/// Maximum length of an incomplete escape sequence. Longer ones are discarded.
const SEQUENCE_LEN_MAX: usize = 32;
/// First byte of an escape sequence, and the key Esc.
const ESC: u8 = 0x1b;

/// Reads keys from standard input, or from standard output if only that is a terminal.
pub struct KeyReader {
    fd: BorrowedFd<'static>,
    /// Beginning of an incomplete escape sequence.
    pending: Vec<u8>,
}

impl KeyReader {
    /// Creates a reader for the terminal of this process.
    pub fn new() -> Self {
        let stdin = rustix::stdio::stdin();
        let fd = if isatty(stdin) { stdin } else { rustix::stdio::stdout() };
        Self { fd, pending: Vec::new() }
    }

    /// Returns the terminal, to wait for keys.
    pub fn fd(&self) -> BorrowedFd<'static> {
        self.fd
    }

    /// Reads the available keys by one call of read(2). Call this only if poll(2) has reported
    /// input, because the call may block otherwise. Returns `None` if the terminal was closed.
    ///
    /// # Errors
    /// Returns errors of read(2).
    pub fn read(&mut self) -> Result<Option<Vec<KeyEvent>>> {
        let mut chunk = [0; 256];
        match rustix::io::read(self.fd, &mut chunk[..]) {
            // The kernel returns EIO after a hang-up as well.
            Ok(0) | Err(Errno::IO) => Ok(None),
            Ok(len) => Ok(Some(self.keys(&chunk[..len]))),
            Err(Errno::AGAIN | Errno::INTR) => Ok(Some(Vec::new())),
            Err(error) => Err(error).context("the keys of the terminal"),
        }
    }

    /// Returns the keys in received bytes. Keeps an incomplete escape sequence for the next call.
    fn keys(&mut self, received: &[u8]) -> Vec<KeyEvent> {
        self.pending.extend_from_slice(received);
        let (mut keys, mut at) = (Vec::new(), 0);
        while let Some((key, len)) = first_key(&self.pending[at..]) {
            keys.extend(key);
            at += len;
        }
        self.pending.drain(..at);
        if self.pending.len() > SEQUENCE_LEN_MAX {
            self.pending.clear();
        }
        keys
    }
}

/// Parses the first key, and returns its length in bytes. The key is `None` if it has no effect in
/// this command. Returns `None` if there are no bytes, or only a part of an escape sequence.
fn first_key(bytes: &[u8]) -> Option<(Option<KeyEvent>, usize)> {
    let plain = |code| KeyEvent::new(code, KeyModifiers::NONE);
    let (key, len) = match *bytes {
        [] | [ESC, b'[' | b'O'] => return None,
        [ESC] | [ESC, ESC, ..] => (Some(plain(KeyCode::Esc)), 1),
        [ESC, b'O', letter, ..] => (code_of(&[], letter).map(plain), 3),
        [ESC, b'[', ref rest @ ..] => {
            let end = rest.iter().position(|byte| (0x40..=0x7e).contains(byte))?;
            (code_of(&rest[..end], rest[end]).map(plain), end + 3)
        }
        // A key together with Alt.
        [ESC, _, ..] => (None, 2),
        [b'\r' | b'\n', ..] => (Some(plain(KeyCode::Enter)), 1),
        [0x08 | 0x7f, ..] => (Some(plain(KeyCode::Backspace)), 1),
        [byte @ 1..=26, ..] => {
            let letter = char::from(b'a' + byte - 1);
            (Some(KeyEvent::new(KeyCode::Char(letter), KeyModifiers::CONTROL)), 1)
        }
        [byte @ b' '..=b'~', ..] => (Some(plain(KeyCode::Char(char::from(byte)))), 1),
        [_, ..] => (None, 1),
    };
    Some((key, len))
}

/// Returns the key of an escape sequence with these parameters and this last byte, as sent by
/// xterm, the console of Linux and rxvt.
fn code_of(parameters: &[u8], last: u8) -> Option<KeyCode> {
    Some(match (parameters, last) {
        (_, b'A') => KeyCode::Up,
        (_, b'B') => KeyCode::Down,
        (_, b'C') => KeyCode::Right,
        (_, b'D') => KeyCode::Left,
        (_, b'H') | (b"1" | b"7", b'~') => KeyCode::Home,
        (_, b'F') | (b"4" | b"8", b'~') => KeyCode::End,
        (b"5", b'~') => KeyCode::PageUp,
        (b"6", b'~') => KeyCode::PageDown,
        _ => return None,
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn reader() -> KeyReader {
        KeyReader { fd: rustix::stdio::stdin(), pending: Vec::new() }
    }

    fn codes(bytes: &[u8]) -> Vec<KeyCode> {
        reader().keys(bytes).iter().map(|key| key.code).collect()
    }

    #[test]
    fn keys_of_common_terminals_are_parsed() {
        let arrows = [KeyCode::Up, KeyCode::Down, KeyCode::Right, KeyCode::Left];
        assert_eq!(codes(b"\x1b[A\x1b[B\x1b[C\x1b[D"), arrows);
        assert_eq!(codes(b"\x1bOA\x1bOB\x1bOC\x1bOD"), arrows);
        let pages = [KeyCode::PageUp, KeyCode::PageDown, KeyCode::Home, KeyCode::End];
        assert_eq!(codes(b"\x1b[5~\x1b[6~\x1b[1~\x1b[4~"), pages);
        assert_eq!(codes(b"\x1b[H\x1b[F\x1b[7~\x1b[8~")[..2], pages[2..]);
        assert_eq!(
            codes(b"q\r\n\x7f"),
            [KeyCode::Char('q'), KeyCode::Enter, KeyCode::Enter, KeyCode::Backspace]
        );
        assert_eq!(codes(b"\x1b"), [KeyCode::Esc]);
        let control = KeyEvent::new(KeyCode::Char('d'), KeyModifiers::CONTROL);
        assert_eq!(reader().keys(&[4]), [control]);
    }

    #[test]
    fn unknown_and_incomplete_sequences_have_no_effect() {
        assert_eq!(codes("\x1b[?1;2c\x1bx\u{e9}\x1b[200~\0j".as_bytes()), [KeyCode::Char('j')]);
        let mut reader = reader();
        assert!(reader.keys(b"\x1b[").is_empty());
        assert_eq!(reader.keys(b"A").len(), 1);
        assert!(reader.keys(b"\x1b[").is_empty());
        assert!(reader.keys(&[b'1'; SEQUENCE_LEN_MAX]).is_empty());
        assert!(reader.pending.is_empty(), "the sequence is discarded");
        assert_eq!(reader.keys(b"q").len(), 1);
    }
}
