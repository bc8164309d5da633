//! What exit(3) waits for: that peers have what was written.
//!
//! After _exit(2), or when a signal ends the process, nothing is sent any more.

use std::sync::OnceLock;
use std::time::{Duration, Instant};

use towpath_client::Wheel;
use towpath_engine::Remote;
use towpath_posix::Posix;

use crate::inside::Inside;

/// How long nobody may take a byte of what the program leaves behind. Beside an engine elsewhere the program has ended by
/// then, and only its run goes on; here whoever waits for the program waits as well.
pub const STALLED: Duration = Duration::from_secs(10);
/// How long exit(3) waits where other processes use the engine, which then ends under them: what they leave unsent
/// nobody can tell from what they are at.
const WITH_OTHERS: Duration = Duration::from_secs(1);
/// How long an engine may take to end that was stopped.
const STOPPED: Duration = Duration::from_secs(1);

/// What there is to end.
struct Engine {
    posix: &'static Posix,
    wheel: &'static Wheel,
    remote: Remote,
}

static ENGINE: OnceLock<Engine> = OnceLock::new();

/// For [`end`].
pub fn remember(posix: &'static Posix, wheel: &'static Wheel, remote: Remote) {
    // It is set once.
    let _ = ENGINE.set(Engine { posix, wheel, remote });
}

/// The end of this process. Of a child that was forked it is none of the engine's.
pub fn end() {
    let Some(Engine { posix, wheel, remote }) = ENGINE.get() else { return };
    let Ok(client) = posix.client() else { return };
    if client.wheel().is_none() {
        return;
    }
    // What streams hold back would be written after this.
    // SAFETY: all streams.
    unsafe { libc::fflush(std::ptr::null_mut()) };
    // The engine takes this process for ended, and closes its sockets.
    client.control().close();
    let begin = Instant::now();
    wheel.drive_to_end(|| Inside::processes() == 0 || begin.elapsed() < WITH_OTHERS);
    remote.stop();
    let begin = Instant::now();
    wheel.drive_to_end(|| begin.elapsed() < STOPPED);
}
