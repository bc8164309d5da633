//! Locks that are shared by the runs of towpath in a network namespace.

use std::io;
use std::os::linux::net::SocketAddrExt;
use std::os::unix::net::{SocketAddr, UnixListener};
use std::time::{Duration, Instant};

use crate::unix_sockets::{AbstractSocket, abstract_sockets};

/// Maximum time for which other runs wait for a lock that a run holds, for example while it opens a
/// device.
pub(crate) const PATIENCE: Duration = Duration::from_secs(2);
/// Number of abstract names of one lock. Names that another user has bound are skipped.
const NAMES: usize = 8;

/// Value of `SOCK_STREAM` in <linux/net.h>.
const SOCK_STREAM: u8 = 1;

/// Lock that only one run of a user in a network namespace can hold. A user's run also waits while
/// a run of root holds the lock.
///
/// Holding the lock means having bound a Unix socket to its abstract name, which only one socket of
/// a network namespace can have. The kernel releases the lock when the process ends. Names that
/// other users have bound are ignored, because every user can bind any name. Otherwise, any user
/// could delay the starts of all runs.
#[derive(Debug)]
pub(crate) struct NamespaceLock {
    _lock: Option<UnixListener>,
}

impl NamespaceLock {
    /// Waits for the lock of this name. Returns without the lock after [`PATIENCE`], because a
    /// stopped process must not block later runs forever.
    ///
    /// # Errors
    /// Fails if the name is too long.
    pub fn wait(name: &str) -> io::Result<Self> {
        let own = rustix::process::geteuid().as_raw();
        Self::wait_unless(name, |name| holder(name).is_some_and(|user| user != 0 && user != own))
    }

    /// Waits for the lock like [`Self::wait`]. Skips names for which `is_foreign` returns true,
    /// because another user has bound them.
    fn wait_unless(name: &str, is_foreign: impl Fn(&str) -> bool) -> io::Result<Self> {
        let end = Instant::now() + PATIENCE;
        for number in 0..NAMES {
            let name = if number == 0 { name.to_owned() } else { format!("{name}.{number}") };
            let address = SocketAddr::from_abstract_name(&name)?;
            loop {
                match UnixListener::bind_addr(&address) {
                    Ok(lock) => return Ok(Self { _lock: Some(lock) }),
                    Err(_) if is_foreign(&name) => break,
                    Err(_) if Instant::now() > end => return Ok(Self { _lock: None }),
                    Err(_) => std::thread::sleep(Duration::from_millis(5)),
                }
            }
        }
        Ok(Self { _lock: None })
    }
}

/// Returns the user ID that owns the stream socket bound to the abstract name `name`. Returns
/// `None` if there is no such socket, or the kernel does not report its owner.
fn holder(name: &str) -> Option<u32> {
    let is_it = |socket: &AbstractSocket| {
        // Compare the type, too: sockets of different types may have the same name.
        socket.kind == SOCK_STREAM && socket.name == name.as_bytes()
    };
    abstract_sockets().into_iter().find(is_it)?.owner
}

#[cfg(test)]
mod tests {
    use super::*;

    fn held(name: &str) -> UnixListener {
        let address = SocketAddr::from_abstract_name(name).expect("a short name");
        UnixListener::bind_addr(&address).expect("a free name")
    }

    #[test]
    fn a_lock_of_another_user_delays_nothing() {
        let name = format!("towpath-test-turns/{}", std::process::id());
        let _first = held(&name);
        let began = Instant::now();
        let turn = NamespaceLock::wait_unless(&name, |at| at == name).expect("a short name");
        assert!(turn._lock.is_some() && began.elapsed() < PATIENCE);
        // The first name counts as bound by another user, so the lock uses the second name, and
        // still excludes other runs of the same user.
        let again = NamespaceLock::wait_unless(&name, |at| at == name).expect("a short name");
        assert!(again._lock.is_none() && began.elapsed() >= PATIENCE);
    }

    #[test]
    fn a_name_with_a_line_of_proc_holds_no_lock() {
        let name = format!("towpath-test-turns-forged/{}", std::process::id());
        let _forged = held(&format!("x\n0: 00000002 00000000 00010000 0001 01 79 @{name}"));
        assert_eq!(holder(&name), None);
        assert!(NamespaceLock::wait(&name).expect("a short name")._lock.is_some());
    }

    #[test]
    fn a_lock_of_this_user_is_waited_for() {
        let name = format!("towpath-test-turns-own/{}", std::process::id());
        let first = held(&name);
        // Without unix_diag, the kernel reports no owner of the socket.
        let own = rustix::process::geteuid().as_raw();
        assert!(holder(&name).is_none_or(|user| user == own));
        std::thread::scope(|scope| {
            let waiting = scope.spawn(|| NamespaceLock::wait(&name));
            std::thread::sleep(Duration::from_millis(50));
            assert!(!waiting.is_finished());
            drop(first);
            let turn = waiting.join().expect("no panic").expect("a short name");
            assert!(turn._lock.is_some());
        });
        assert!(UnixListener::bind_addr(&SocketAddr::from_abstract_name(&name).unwrap()).is_ok());
    }
}
