//! Messages to the user, on standard error.
//!
//! Standard error may be closed: the message is then lost without an error (`eprintln!` would
//! panic). Standard error may also be a full pipe, on which a write blocks, possibly forever. While
//! PROGRAM runs, neither the engine's thread, which handles connections, nor the main thread, which
//! forwards signals, may block. Therefore a separate thread writes.

use std::collections::VecDeque;
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use towpath_model::printable;

/// Maximum number of queued messages; further ones are lost. A run usually prints only a few.
const QUEUE_MAX: usize = 64;
/// Maximum time that [`Messages::say`] waits until its line is written. Any process that reads
/// standard error is faster.
const PATIENCE: Duration = Duration::from_millis(100);
/// Interval at which [`Messages::finish`] calls `go_on` while it waits.
const ASK_EVERY: Duration = Duration::from_millis(50);

/// Writes to standard error on this thread. May block, so call it only before PROGRAM is started or
/// after the run has ended.
pub fn write(text: &str) {
    // Ignore errors, because standard error may be closed.
    let _ = crate::output::write_all(rustix::stdio::stderr(), text.as_bytes());
}

/// Formats a message of one or more lines with the prefix "towpath: ". Replaces control characters,
/// because names in the message may come from a peer, a file or another user.
fn line(text: &str) -> String {
    let lines: Vec<_> = text.lines().map(printable).collect();
    format!("towpath: {}\n", lines.join("\n"))
}

/// Prints the error that has ended the command.
pub fn error(text: &str) {
    write(&line(text));
}

/// Queue of messages for standard error. Clones share the queue.
#[derive(Debug, Clone)]
pub struct Messages {
    shared: Arc<Shared>,
    quiet: bool,
}

#[derive(Debug, Default)]
struct Shared {
    queue: Mutex<Queue>,
    changed: Condvar,
}

#[derive(Debug, Default)]
struct Queue {
    waiting: VecDeque<String>,
    /// Whether the writing thread is writing a message that it has removed from the queue.
    writing: bool,
    /// Whether any message must be written before the process ends: see [`Messages::put`].
    awaited: bool,
    lost: u64,
}

impl Messages {
    /// Starts the writing thread. If `quiet`, remarks are dropped.
    pub fn start(quiet: bool) -> std::io::Result<Self> {
        Self::start_with(quiet, write)
    }

    fn start_with(quiet: bool, write: impl Fn(&str) + Send + 'static) -> std::io::Result<Self> {
        let shared = Arc::<Shared>::default();
        let of_thread = Arc::clone(&shared);
        std::thread::Builder::new()
            .name("towpath-stderr".into())
            .spawn(move || of_thread.write_all(write))?;
        Ok(Self { shared, quiet })
    }

    /// Queues a remark without waiting. Can be called on any thread.
    pub fn post(&self, text: &str) {
        if !self.quiet {
            self.queue(line(text), false);
        }
    }

    /// Queues a remark that should appear before PROGRAM's output. Waits until the remark is
    /// written, for at most [`PATIENCE`].
    pub fn say(&self, text: &str) {
        self.post(text);
        self.wait_until(patience());
    }

    /// Queues text that the user has requested (counters) or must see (errors). The text gets no
    /// prefix, and is printed even with `--quiet`. [`Self::finish`] waits until it is written.
    pub fn put(&self, text: String) {
        self.queue(text, true);
    }

    fn queue(&self, text: String, awaited: bool) {
        let mut queue = self.shared.lock();
        queue.awaited |= awaited;
        if queue.waiting.len() < QUEUE_MAX {
            queue.waiting.push_back(text);
        } else {
            queue.lost += 1;
        }
        self.shared.changed.notify_all();
    }

    /// Queues an error message with the prefix, which is handled like text of [`Self::put`].
    pub fn put_error(&self, text: &str) {
        self.put(line(text));
    }

    /// Waits until all messages are written. If there are messages of [`Self::put`], waits while
    /// `go_on` returns true; if there are only remarks, waits at most [`PATIENCE`].
    pub fn finish(&self, go_on: impl FnMut() -> bool) {
        let awaited = self.shared.lock().awaited;
        if awaited { self.wait_until(go_on) } else { self.wait_until(patience()) }
    }

    fn wait_until(&self, mut go_on: impl FnMut() -> bool) {
        let mut queue = self.shared.lock();
        while (queue.writing || !queue.waiting.is_empty()) && go_on() {
            let waited = self.shared.changed.wait_timeout(queue, ASK_EVERY);
            queue = waited.unwrap_or_else(PoisonError::into_inner).0;
        }
    }
}

/// Returns a function that returns true for the time [`PATIENCE`].
fn patience() -> impl FnMut() -> bool {
    let end = Instant::now() + PATIENCE;
    move || Instant::now() < end
}

impl Shared {
    fn lock(&self) -> MutexGuard<'_, Queue> {
        self.queue.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Main loop of the writing thread, which runs until the process ends.
    fn write_all(&self, write: impl Fn(&str)) {
        loop {
            let mut queue = self.lock();
            queue.writing = false;
            self.changed.notify_all();
            let text = loop {
                match queue.waiting.pop_front() {
                    Some(text) => break text,
                    None => {
                        queue = self.changed.wait(queue).unwrap_or_else(PoisonError::into_inner)
                    }
                }
            };
            queue.writing = true;
            let lost = std::mem::take(&mut queue.lost);
            drop(queue);
            if lost > 0 {
                write(&line(&format!("{lost} messages were lost")));
            }
            write(&text);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::sync::mpsc::channel;

    #[test]
    fn a_reader_that_takes_nothing_holds_nobody_up_and_loses_the_rest() {
        let (sender, written) = channel();
        let (go, gate) = channel::<()>();
        let (begin, begun) = channel();
        let messages = Messages::start_with(false, move |text| {
            let _ = begin.send(());
            let _ = gate.recv();
            let _ = sender.send(text.to_owned());
        })
        .unwrap();
        // While the first message is being written, fill the queue. Two more messages are then
        // lost.
        messages.post("0");
        begun.recv().unwrap();
        messages.say("1");
        for n in 2..=QUEUE_MAX + 2 {
            messages.post(&n.to_string());
        }
        messages.finish(|| unreachable!("remarks are not worth a question"));
        messages.put("too late\n".into());
        let mut asked = 0;
        messages.finish(|| {
            asked += 1;
            asked < 3
        });
        assert_eq!(asked, 3);
        assert!(written.try_recv().is_err());
        drop(go);
        messages.finish(|| true);
        let lines: Vec<_> = written.try_iter().collect();
        assert_eq!(lines.len(), QUEUE_MAX + 2);
        assert_eq!(lines[..3], ["towpath: 0\n", "towpath: 3 messages were lost\n", "towpath: 1\n"]);
        assert_eq!(lines[QUEUE_MAX + 1], format!("towpath: {QUEUE_MAX}\n"));
    }

    #[test]
    fn a_message_has_no_control_characters() {
        let said = line("no \u{1b}[2J\u{9b}2J\r\nline 2\t");
        assert_eq!(said, "towpath: no \u{fffd}[2J\u{fffd}2J\nline 2\u{fffd}\n");
    }

    #[test]
    fn quiet_is_about_remarks() {
        let (sender, written) = channel();
        let send = move |text: &str| drop(sender.send(text.to_owned()));
        let messages = Messages::start_with(true, send).unwrap();
        messages.say("a remark");
        messages.put("counters\n".into());
        messages.finish(|| true);
        assert_eq!(written.try_iter().collect::<Vec<_>>(), ["counters\n"]);
    }
}
