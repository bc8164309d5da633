//! Waits until threads sleep in the call that a case wants to disturb. /proc shows it, so that no
//! delay has to be guessed.

use std::time::Duration;

/// Interval at which /proc is read.
const AGAIN_AFTER: Duration = Duration::from_millis(1);
/// Number of consecutive checks that must find a process asleep.
const LOOKS: usize = 5;

/// Waits until all other threads of this process sleep in one of the calls in [`WAITS`].
pub fn others() {
    // SAFETY: no arguments.
    let own = unsafe { libc::gettid() };
    while !tasks().all(|task| task == own || is_waiting(task)) {
        std::thread::sleep(AGAIN_AFTER);
    }
}

/// Waits until a thread of this process sleeps in one of the calls in [`WAITS`].
pub fn thread(id: i32) {
    while !is_waiting(id) {
        std::thread::sleep(AGAIN_AFTER);
    }
}

/// Returns whether a thread of this process sleeps in one of the calls in [`WAITS`], or has ended.
pub fn is_waiting(id: i32) -> bool {
    let Ok(text) = std::fs::read_to_string(format!("/proc/self/task/{id}/syscall")) else {
        return true;
    };
    let number = text.split_whitespace().next().and_then(|word| word.parse::<i64>().ok());
    number.is_some_and(|number| WAITS.contains(&number) || WAITS_OF_OLD.contains(&number))
}

/// Calls in which a thread waits for a socket or a pipe. The library waits for sockets by
/// futex_waitv(2) or a variant of poll(2), and for locks by futex(2). The library also waits for
/// replies of the engine by futex_waitv(2). So a call that begins with a request may count as
/// waiting too early.
const WAITS: [i64; 13] = [
    libc::SYS_accept,
    libc::SYS_accept4,
    libc::SYS_close,
    libc::SYS_connect,
    libc::SYS_epoll_pwait,
    libc::SYS_epoll_pwait2,
    libc::SYS_futex_waitv,
    libc::SYS_ppoll,
    libc::SYS_pselect6,
    libc::SYS_read,
    libc::SYS_recvfrom,
    libc::SYS_sendto,
    libc::SYS_write,
];
/// Further such calls, which newer architectures lack.
#[cfg(target_arch = "x86_64")]
const WAITS_OF_OLD: [i64; 3] = [libc::SYS_epoll_wait, libc::SYS_poll, libc::SYS_select];
#[cfg(not(target_arch = "x86_64"))]
const WAITS_OF_OLD: [i64; 0] = [];

/// Waits until all threads of a process sleep, or the process has ended. A thread may sleep for a
/// lock or a reply instead. The case then continues too early: it covers less, but must not fail.
pub fn process(id: i32) {
    let mut looks = 0;
    while looks < LOOKS {
        looks = if all_sleep(id) { looks + 1 } else { 0 };
        std::thread::sleep(AGAIN_AFTER);
    }
}

fn all_sleep(id: i32) -> bool {
    let Ok(tasks) = std::fs::read_dir(format!("/proc/{id}/task")) else { return true };
    tasks.flatten().all(|task| {
        let stat = std::fs::read_to_string(task.path().join("stat")).unwrap_or_default();
        // The state follows the name, which is in parentheses.
        let state = stat.rsplit_once(") ").and_then(|(_, rest)| rest.chars().next());
        matches!(state, Some('S' | 'Z') | None)
    })
}

fn tasks() -> impl Iterator<Item = i32> {
    let tasks = std::fs::read_dir("/proc/self/task").unwrap();
    tasks.map(|task| task.unwrap().file_name().to_str().unwrap().parse().unwrap())
}
