//! The end of the process, which waits until peers have all that it has written. The kernel, too,
//! goes on to send after exit(3), _exit(2), and a signal whose default action ends the process.
//!
//! As with an engine elsewhere, the wait lasts while some bytes still get through. Towpath hears of
//! its begin, tells the user, and stops the engine when the user does not want to wait. Other
//! processes that use the engine are served until then, but not waited for.
//!
//! After SIGKILL, a fault or abort(3) nothing is sent any more. A kill leaves the process no time,
//! and a faulty process may have a faulty engine.

use std::sync::OnceLock;
use std::sync::atomic::{AtomicBool, Ordering::Relaxed};
use std::time::{Duration, Instant};

use libc::c_int;
use rustix::net::{Shutdown, shutdown};
use towpath_client::Driver;
use towpath_engine::Remote;
use towpath_posix::Posix;
use towpath_uplink::{LaunchSocket, Said};

/// How long an engine may take to end that was stopped.
const STOPPED: Duration = Duration::from_secs(1);

/// Engine of this process, and the handles to end it.
struct InlineEngine {
    posix: &'static Posix,
    driver: &'static Driver,
    remote: Remote,
    home: LaunchSocket,
}

static ENGINE: OnceLock<InlineEngine> = OnceLock::new();

/// The user does not want to wait.
static CUT_OFF: AtomicBool = AtomicBool::new(false);

/// A thread has begun to wait. Another one that ends the process meanwhile does so at once.
static BEGUN: AtomicBool = AtomicBool::new(false);

/// For [`end`].
pub fn remember(
    posix: &'static Posix,
    driver: &'static Driver,
    remote: Remote,
    home: LaunchSocket,
) {
    // Set once: a second call has no effect.
    let _ = ENGINE.set(InlineEngine { posix, driver, remote, home });
    towpath_symbols::before_it_ends(deliver);
    // SAFETY: a function that is there as long as this library, which is never unloaded. Where it
    // is refused, quick_exit(3) does not wait.
    let _ = unsafe { at_quick_exit(deliver) };
}

unsafe extern "C" {
    fn at_quick_exit(function: extern "C" fn()) -> c_int;
}

/// exit(3). A forked child's exit does not concern the engine, which is the parent's.
pub fn end() {
    let is_ours =
        |engine: &InlineEngine| engine.posix.client().is_ok_and(|it| it.driver().is_some());
    if ENGINE.get().is_some_and(is_ours) {
        // Streams of stdio would write the bytes in their buffers only after the delivery.
        towpath_symbols::write_out_streams();
        deliver();
    }
}

/// The end of this process, by any of the ways above.
extern "C" fn deliver() {
    let Some(InlineEngine { posix, driver, remote, home }) = ENGINE.get() else { return };
    let Ok(client) = posix.client() else { return };
    if client.driver().is_none() || BEGUN.swap(true, Relaxed) {
        return;
    }
    // The program's handlers are over, and its status is settled.
    towpath_symbols::on_end_request(cut_off);
    towpath_symbols::hear_wishes_to_end();
    home.mention(&Said::Leaves);
    posix.begins_to_end();
    // The engine takes this process for ended, closes its sockets, and ends when their remaining
    // bytes are delivered. The descriptor stays open: other threads may be about to use its number,
    // or sleep in a poll on it.
    let _ = shutdown(client.control().borrow(), Shutdown::Both);
    driver.drive_to_end(|| !CUT_OFF.load(Relaxed));
    remote.stop();
    let begin = Instant::now();
    driver.drive_to_end(|| begin.elapsed() < STOPPED);
    posix.ends_no_more();
}

/// The handler of signals that ask the process to end.
extern "C" fn cut_off(_: c_int) {
    CUT_OFF.store(true, Relaxed);
}
