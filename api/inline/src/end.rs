//! Delays the exit of the process until peers have received all data that it has written. Otherwise
//! the data would be lost, because the engine runs in this process. A kernel socket, too, sends
//! remaining data after its process has ended.
//!
//! The wait continues while peers acknowledge data. `towpath run` is notified when the wait begins,
//! informs the user, and stops the engine if the user interrupts. During the wait, the engine
//! continues to serve other processes, but does not wait for their data.
//!
//! After SIGKILL, a fault or abort(3), no more data is sent. SIGKILL cannot be handled, and after a
//! fault the engine may be corrupt.

use std::sync::OnceLock;
use std::sync::atomic::{AtomicBool, Ordering::Relaxed};
use std::time::{Duration, Instant};

use libc::c_int;
use rustix::net::{Shutdown, shutdown};
use towpath_client::Driver;
use towpath_engine::Remote;
use towpath_posix::Posix;
use towpath_uplink::{LaunchSocket, Said};

/// Maximum time for which the exiting process waits until the engine's thread has ended.
const STOPPED: Duration = Duration::from_secs(1);

/// Handles by which the exiting process stops its engine.
struct InlineEngine {
    posix: &'static Posix,
    driver: &'static Driver,
    remote: Remote,
    home: LaunchSocket,
}

static ENGINE: OnceLock<InlineEngine> = OnceLock::new();

/// Set if the user has interrupted the wait at the exit of the process, in which remaining data is
/// sent.
static CUT_OFF: AtomicBool = AtomicBool::new(false);

/// Set by the first thread that waits at the exit of the process until remaining data is sent. A
/// second thread that calls exit(3) does not wait.
static BEGUN: AtomicBool = AtomicBool::new(false);

/// Stores the handles that [`end`] needs to stop the engine when the process exits.
pub fn remember(
    posix: &'static Posix,
    driver: &'static Driver,
    remote: Remote,
    home: LaunchSocket,
) {
    // Set once; a second call has no effect.
    let _ = ENGINE.set(InlineEngine { posix, driver, remote, home });
    towpath_symbols::before_it_ends(deliver);
    // SAFETY: the function is valid forever, because this library is never unloaded. If
    // registration fails, quick_exit(3) does not wait.
    let _ = unsafe { at_quick_exit(deliver) };
}

unsafe extern "C" {
    fn at_quick_exit(function: extern "C" fn()) -> c_int;
}

/// Called by exit(3). Waits until remaining data is sent. In a forked child, does nothing, because
/// the engine belongs to the parent.
pub fn end() {
    let is_ours =
        |engine: &InlineEngine| engine.posix.client().is_ok_and(|it| it.driver().is_some());
    if ENGINE.get().is_some_and(is_ours) {
        // Flush stdio streams first; otherwise exit(3) would write their buffers after the wait.
        towpath_symbols::write_out_streams();
        deliver();
    }
}

/// Waits until peers have acknowledged all data of this process. Called when the process ends by
/// exit(3), _exit(2), quick_exit(3) or a terminating signal.
extern "C" fn deliver() {
    let Some(InlineEngine { posix, driver, remote, home }) = ENGINE.get() else { return };
    let Ok(client) = posix.client() else { return };
    if client.driver().is_none() || BEGUN.swap(true, Relaxed) {
        return;
    }
    // Safe to replace signal handlers now: the program's exit handlers have run.
    towpath_symbols::on_end_request(cut_off);
    towpath_symbols::hear_wishes_to_end();
    home.mention(&Said::Leaves);
    posix.begins_to_end();
    // Disconnect from the engine. The engine then closes the sockets of this process, and ends when
    // their data is delivered. Do not close the descriptor, because other threads may poll it.
    let _ = shutdown(client.control().borrow(), Shutdown::Both);
    driver.drive_to_end(|| !CUT_OFF.load(Relaxed));
    remote.stop();
    let begin = Instant::now();
    driver.drive_to_end(|| begin.elapsed() < STOPPED);
    posix.ends_no_more();
}

/// Signal handler that interrupts the wait for delivery.
extern "C" fn cut_off(_: c_int) {
    CUT_OFF.store(true, Relaxed);
}
