//! Models of an async task that waits for a socket. An event, or the end of the socket or the
//! runtime, must wake it. Its registration may be dropped. Loom reports a task that is never woken.
//!
//! `RUSTFLAGS="--cfg loom" cargo test -p towpath-ring --profile loom --lib loom_task`

use loom::sync::atomic::{AtomicU32, Ordering};
use loom::sync::{Arc, Mutex};
use loom::thread;

use crate::waiting_task::WaitingTask;

/// Number of wake-ups of a task. A clone serves as its waker.
type Wakeups = Arc<AtomicU32>;

/// The state that the lock of the reactor protects.
#[derive(Default)]
struct LockedTask {
    task: WaitingTask<Wakeups>,
    /// Whether the socket was closed.
    is_gone: bool,
}

#[derive(Default)]
struct Model {
    watch: Mutex<LockedTask>,
    /// Readiness of the socket, which the engine changes without taking the lock.
    ready: AtomicU32,
    has_runtime_ended: AtomicU32,
}

const IN: u32 = 1;
const GONE: u32 = 2;
const ENDED: u32 = 4;

impl Model {
    fn new() -> Arc<Self> {
        Arc::new(Self::default())
    }

    /// Polls the socket once, like `Registration::poll` and its caller in an async runtime. Returns
    /// 0 if the task has to wait.
    fn poll(&self, waker: &Wakeups) -> u32 {
        let waker = Arc::clone(waker);
        let mut watch = self.watch.lock().unwrap();
        let (events, unused) = if watch.is_gone {
            (GONE, Some(waker))
        } else {
            watch.task.wait(waker, || self.ready.load(Ordering::Relaxed))
        };
        drop(watch);
        drop(unused);
        match events {
            0 if self.has_runtime_ended.load(Ordering::SeqCst) != 0 => ENDED,
            events => events,
        }
    }

    /// Polls until the socket is ready. Between polls, sleeps until the waker is called.
    fn wait(&self) -> u32 {
        let wakeups = Wakeups::default();
        loop {
            let seen = wakeups.load(Ordering::Acquire);
            let events = self.poll(&wakeups);
            if events != 0 {
                return events;
            }
            while wakeups.load(Ordering::Acquire) == seen {
                thread::yield_now();
            }
        }
    }

    /// Changes the socket's readiness, then delivers the event. The ring that carries events is
    /// modelled in `loom_tests`.
    fn event(&self) {
        self.ready.store(IN, Ordering::Relaxed);
        self.wake();
    }

    fn wake(&self) {
        let waker = self.watch.lock().unwrap().task.take();
        call(waker);
    }

    /// Closes the socket, like `Process::forget`.
    fn close(&self) {
        let mut watch = self.watch.lock().unwrap();
        watch.is_gone = true;
        let waker = watch.task.take();
        drop(watch);
        call(waker);
    }

    /// Drops the task's registration for the socket.
    fn forget(&self) {
        let waker = self.watch.lock().unwrap().task.take();
        drop(waker);
    }
}

fn call(waker: Option<Wakeups>) {
    if let Some(waker) = waker {
        waker.fetch_add(1, Ordering::Release);
    }
}

fn spawn(model: &Arc<Model>, work: fn(&Model)) -> thread::JoinHandle<()> {
    let model = Arc::clone(model);
    thread::spawn(move || work(&model))
}

/// Checks a model of three threads with a limit on preemptions, because all interleavings would
/// take minutes.
fn check(model: impl Fn() + Send + Sync + 'static) {
    let mut builder = loom::model::Builder::new();
    builder.preemption_bound = Some(3);
    builder.check(model);
}

#[test]
fn loom_task_is_woken_by_an_event_during_its_poll() {
    check(|| {
        let model = Model::new();
        let event = spawn(&model, Model::event);
        assert_eq!(model.wait(), IN);
        event.join().unwrap();
    });
}

#[test]
fn loom_task_is_woken_by_the_end_of_its_socket() {
    check(|| {
        let model = Model::new();
        let close = spawn(&model, Model::close);
        assert_eq!(model.wait(), GONE);
        close.join().unwrap();
    });
}

/// Models the shutdown of a runtime. Its dispatcher first records the shutdown, then wakes all
/// tasks. A task first stores its waker, then checks for the shutdown.
#[test]
fn loom_task_is_woken_by_the_end_of_the_runtime() {
    check(|| {
        let model = Model::new();
        let end = spawn(&model, |model| {
            model.has_runtime_ended.store(1, Ordering::SeqCst);
            model.wake();
        });
        assert_eq!(model.wait(), ENDED);
        end.join().unwrap();
    });
}

/// Models polls of one registration by two threads. The event must wake the waker of the last poll.
#[test]
fn loom_task_of_the_last_poll_is_woken() {
    check(|| {
        let model = Model::new();
        let former = Wakeups::default();
        let is_ready = model.poll(&former) != 0;
        let event = spawn(&model, Model::event);
        assert_eq!(model.wait(), IN);
        event.join().unwrap();
        // The event has called each waker at most once, and none is stored any more.
        assert!(!is_ready && former.load(Ordering::Acquire) <= 1);
        assert_eq!(Arc::strong_count(&former), 1);
    });
}

/// Models a registration that is dropped while the dispatcher takes an event and another thread
/// closes the socket. Each waker must be dropped exactly once.
#[test]
fn loom_task_that_is_dropped_leaves_no_waker() {
    check(|| {
        let model = Model::new();
        let wakeups = Wakeups::default();
        let threads = [spawn(&model, Model::event), spawn(&model, Model::close)];
        model.poll(&wakeups);
        model.forget();
        threads.into_iter().for_each(|thread| thread.join().unwrap());
        assert!(wakeups.load(Ordering::Acquire) <= 1);
        assert_eq!(Arc::strong_count(&wakeups), 1);
    });
}
