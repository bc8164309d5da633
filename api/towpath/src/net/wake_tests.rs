//! Tests of wakers that are registered for sockets, as an async runtime would use them.

use std::cell::Cell;
use std::collections::VecDeque;
use std::future::{Future, poll_fn};
use std::io::{ErrorKind, Read, Write};
use std::pin::{Pin, pin};
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering::SeqCst};
use std::sync::{Arc, Condvar, Mutex};
use std::task::{Context, Poll, RawWaker, RawWakerVTable, Wake, Waker};
use std::thread;

use rustix::event::{EventfdFlags, PollFd, PollFlags, eventfd, poll};
use towpath_client::reactor::{Dispatcher, Registration};
use towpath_client::ready;

use super::handle::OwnedSocket;
use super::{TcpStream, UdpSocket};
use crate::Stack;

/// Future that waits until a socket is ready. Dropping it cancels the wait.
struct UntilReady<'a> {
    handle: &'a OwnedSocket,
    interest: u32,
    registration: Option<Registration>,
}

fn until_ready(handle: &OwnedSocket, interest: u32) -> UntilReady<'_> {
    UntilReady { handle, interest, registration: None }
}

impl Future for UntilReady<'_> {
    type Output = u32;

    fn poll(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<u32> {
        let Self { handle, interest, registration } = &mut *self;
        let client = handle.client();
        let registration = registration.get_or_insert_with(|| {
            Registration::new(client, handle.socket).expect("no signal handler")
        });
        let ready = registration.poll_ready(client, *interest, cx.waker());
        ready.map(|mask| mask.expect("no signal handler"))
    }
}

/// Counts the wake-ups of a waker.
#[derive(Default)]
struct WakeCount(AtomicUsize);

impl Wake for WakeCount {
    fn wake(self: Arc<Self>) {
        self.0.fetch_add(1, SeqCst);
    }
}

impl WakeCount {
    fn get(&self) -> usize {
        self.0.load(SeqCst)
    }
}

/// Polls a future once with a waker that counts in `count`.
fn poll_once<F: Future>(future: Pin<&mut F>, count: &Arc<WakeCount>) -> Poll<F::Output> {
    let waker = Waker::from(Arc::clone(count));
    future.poll(&mut Context::from_waker(&waker))
}

fn stack() -> Stack {
    Stack::builder().loopback().start().expect("a stack")
}

fn dispatcher(stack: &Stack) -> Dispatcher {
    Dispatcher::new(stack.shared.client()).expect("descriptors")
}

/// Waits for the stack's events and dispatches them, until `is_done` returns true.
fn dispatch_until(stack: &Stack, dispatcher: &Dispatcher, is_done: impl Fn() -> bool) {
    while !is_done() {
        let mut list = [PollFd::from_borrowed_fd(dispatcher.descriptor(), PollFlags::IN)];
        poll(&mut list, None).expect("no signal");
        dispatcher.dispatch(stack.shared.client()).expect("no signal handler");
    }
}

fn sockets(stack: &Stack, count: usize) -> Vec<UdpSocket> {
    (0..count).map(|_| stack.bind_udp("127.0.0.1:0").expect("a port")).collect()
}

fn connection(stack: &Stack) -> (TcpStream, TcpStream) {
    let listener = stack.listen("127.0.0.1:0").expect("a port");
    let client = stack.connect(listener.local_addr().expect("bound")).expect("connected");
    (client, listener.accept().expect("accepted").0)
}

#[test]
fn wakes_the_task_of_the_readable_socket_once_and_no_other() {
    let (stack, counts) = (stack(), [(); 8].map(|()| Arc::<WakeCount>::default()));
    let (dispatcher, sockets) = (dispatcher(&stack), sockets(&stack, counts.len()));
    let sender = stack.bind_udp("127.0.0.1:0").expect("a port");
    let send = |to: usize| sender.send_to(b"x", sockets[to].local_addr().expect("bound"));
    let mut waits: Vec<_> =
        sockets.iter().map(|socket| until_ready(socket.handle(), ready::IN)).collect();
    for (wait, count) in waits.iter_mut().zip(&counts) {
        assert_eq!(poll_once(Pin::new(wait), count), Poll::Pending);
    }
    // Events arrive in order. When task 5 is woken, both earlier events of socket 3 were
    // dispatched.
    for (to, woken) in [(3, [0, 0, 0, 1, 0, 0, 0, 0]), (5, [0, 0, 0, 1, 0, 1, 0, 0])] {
        send(3).expect("sent");
        send(to).expect("sent");
        dispatch_until(&stack, &dispatcher, || counts[to].get() > 0);
        assert_eq!(counts.each_ref().map(|count| count.get()), woken);
    }
    assert_eq!(poll_once(Pin::new(&mut waits[3]), &counts[3]), Poll::Ready(ready::IN));
    sockets[5].recv(&mut [0; 1]).expect("received");
    assert_eq!(poll_once(Pin::new(&mut waits[5]), &counts[5]), Poll::Pending, "read meanwhile");
    send(5).expect("sent");
    dispatch_until(&stack, &dispatcher, || counts[5].get() == 2);
    assert_eq!(poll_once(Pin::new(&mut waits[5]), &counts[5]), Poll::Ready(ready::IN));
}

#[test]
fn does_not_wake_the_task_of_a_dropped_wait() {
    let (stack, counts) = (stack(), [(); 2].map(|()| Arc::<WakeCount>::default()));
    let (dispatcher, sockets) = (dispatcher(&stack), sockets(&stack, 2));
    let mut lasting = pin!(until_ready(sockets[1].handle(), ready::IN));
    assert!(poll_once(lasting.as_mut(), &counts[1]).is_pending());
    for _ in 0..100 {
        let mut wait = until_ready(sockets[0].handle(), ready::IN);
        assert!(poll_once(Pin::new(&mut wait), &counts[0]).is_pending());
        drop(wait);
        assert_eq!(Arc::strong_count(&counts[0]), 1, "the waker is dropped with the wait");
    }
    for to in &sockets {
        let sender = stack.bind_udp("127.0.0.1:0").expect("a port");
        sender.send_to(b"x", to.local_addr().expect("bound")).expect("sent");
    }
    dispatch_until(&stack, &dispatcher, || counts[1].get() > 0);
    assert_eq!(counts[0].get(), 0);
}

#[test]
fn wakes_both_tasks_of_a_socket_and_runs_wakers_without_the_lock() {
    struct Calls<'a> {
        socket: &'a UdpSocket,
        dropped: Mutex<Option<Registration>>,
        made: Mutex<Option<Registration>>,
    }
    impl Wake for Calls<'static> {
        fn wake(self: Arc<Self>) {
            let handle = self.socket.handle();
            let made = Registration::new(handle.client(), handle.socket);
            *self.made.lock().expect("no panic") = Some(made.expect("the lock is free"));
            drop(self.dropped.lock().expect("no panic").take());
        }
    }
    let stack = stack();
    let dispatcher = dispatcher(&stack);
    let socket: &'static UdpSocket =
        Box::leak(Box::new(stack.bind_udp("127.0.0.1:0").expect("a port")));
    let (client, name) = (socket.handle().client(), socket.handle().socket);
    let new = || Registration::new(client, name).expect("no signal handler");
    let calls =
        Arc::new(Calls { socket, dropped: Mutex::new(Some(new())), made: Mutex::default() });
    let (caller, counter, count) = (new(), new(), Arc::<WakeCount>::default());
    assert!(caller.poll_ready(client, ready::IN, &Waker::from(Arc::clone(&calls))).is_pending());
    assert!(counter.poll_ready(client, ready::IN, &Waker::from(Arc::clone(&count))).is_pending());
    socket.send_to(b"x", socket.local_addr().expect("bound")).expect("sent");
    dispatch_until(&stack, &dispatcher, || count.get() > 0);
    assert!(calls.dropped.lock().expect("no panic").is_none());
    let made = calls.made.lock().expect("no panic").take();
    let waker = Waker::from(count);
    let ready = made.expect("the waker has run").poll_ready(client, ready::IN, &waker);
    assert_eq!(ready, Poll::Ready(Ok(ready::IN)));
    // SAFETY: the box was leaked above, and is no longer borrowed.
    drop(unsafe { Box::from_raw(std::ptr::from_ref(socket).cast_mut()) });
}

std::thread_local! {
    /// Closure that runs when a waker of [`hooked_waker`] is cloned on this thread.
    static ON_CLONE: Cell<Option<Box<dyn FnOnce()>>> = const { Cell::new(None) };
}

/// Returns a waker whose next clone on this thread runs `hook` first.
fn hooked_waker(hook: impl FnOnce() + 'static) -> Waker {
    static VTABLE: RawWakerVTable = RawWakerVTable::new(clone, |_| {}, |_| {}, |_| {});
    fn clone(data: *const ()) -> RawWaker {
        if let Some(hook) = ON_CLONE.take() {
            hook();
        }
        RawWaker::new(data, &VTABLE)
    }
    ON_CLONE.set(Some(Box::new(hook)));
    // SAFETY: no function of the table uses the data.
    unsafe { Waker::from_raw(RawWaker::new(std::ptr::null(), &VTABLE)) }
}

#[test]
fn sees_an_event_that_was_taken_before_the_waker_was_stored() {
    let stack = Arc::new(stack());
    let socket = Arc::new(stack.bind_udp("127.0.0.1:0").expect("a port"));
    let mut wait = until_ready(socket.handle(), ready::IN);
    // The waker is cloned after the first check of the socket has found nothing. So the hook runs
    // between this check and the registration.
    let hook = {
        let (stack, socket) = (Arc::clone(&stack), Arc::clone(&socket));
        move || {
            let (dispatcher, count) = (dispatcher(&stack), Arc::<WakeCount>::default());
            let mut other = until_ready(socket.handle(), ready::IN);
            assert!(poll_once(Pin::new(&mut other), &count).is_pending());
            socket.send_to(b"x", socket.local_addr().expect("bound")).expect("sent");
            dispatch_until(&stack, &dispatcher, || count.get() > 0);
        }
    };
    let waker = hooked_waker(hook);
    let ready = Pin::new(&mut wait).poll(&mut Context::from_waker(&waker));
    assert!(ON_CLONE.take().is_none(), "the event was taken");
    assert_eq!(ready, Poll::Ready(ready::IN));
}

#[test]
fn wakes_a_task_whose_socket_is_closed() {
    let (stack, count) = (stack(), Arc::<WakeCount>::default());
    let socket = stack.bind_udp("127.0.0.1:0").expect("a port");
    let client = stack.shared.client();
    let registration = Registration::new(client, socket.handle().socket).expect("no handler");
    let waker = Waker::from(Arc::clone(&count));
    assert!(registration.poll_ready(client, ready::IN, &waker).is_pending());
    drop(socket);
    assert_eq!(count.get(), 1);
    let ready = registration.poll_ready(client, ready::IN, &waker);
    assert!(matches!(ready, Poll::Ready(Ok(mask)) if mask & ready::HUP != 0), "{ready:?}");
}

#[test]
fn wakes_all_tasks_when_the_engine_ends() {
    let (stack, counts) = (stack(), [(); 3].map(|()| Arc::<WakeCount>::default()));
    let (dispatcher, sockets) = (dispatcher(&stack), sockets(&stack, counts.len()));
    let mut waits: Vec<_> =
        sockets.iter().map(|socket| until_ready(socket.handle(), ready::IN)).collect();
    for (wait, count) in waits.iter_mut().zip(&counts) {
        assert!(poll_once(Pin::new(wait), count).is_pending());
    }
    stack.shutdown().expect("nothing was unsent");
    dispatch_until(&stack, &dispatcher, || counts.iter().all(|count| count.get() == 1));
    for (wait, count) in waits.iter_mut().zip(&counts) {
        let ready = poll_once(Pin::new(wait), count);
        assert!(matches!(ready, Poll::Ready(mask) if mask & ready::ERR != 0), "{ready:?}");
    }
}

type Task = Pin<Box<dyn Future<Output = ()> + Send>>;

/// A minimal async executor: tasks that run on several threads, and a queue of woken tasks.
struct Executor {
    tasks: Vec<Mutex<Option<Task>>>,
    woken: Mutex<VecDeque<usize>>,
    changed: Condvar,
    left: AtomicUsize,
}

/// State of a waker that adds its task to the executor's queue.
struct Scheduled {
    executor: Arc<Executor>,
    task: usize,
    is_queued: AtomicBool,
}

impl Wake for Scheduled {
    fn wake(self: Arc<Self>) {
        if !self.is_queued.swap(true, SeqCst) {
            self.executor.woken.lock().expect("no panic").push_back(self.task);
            self.executor.changed.notify_one();
        }
    }
}

impl Executor {
    /// Runs the tasks on `threads` threads until all have completed. Hangs if a wake-up is lost.
    fn run(tasks: Vec<Task>, threads: usize) {
        let left = AtomicUsize::new(tasks.len());
        let tasks = tasks.into_iter().map(|task| Mutex::new(Some(task))).collect();
        let (woken, changed) = (Mutex::default(), Condvar::new());
        let executor = Arc::new(Self { tasks, woken, changed, left });
        let wakers: Vec<_> = (0..executor.tasks.len())
            .map(|task| {
                let (executor, is_queued) = (Arc::clone(&executor), AtomicBool::new(false));
                Arc::new(Scheduled { executor, task, is_queued })
            })
            .collect();
        wakers.iter().for_each(|waker| Arc::clone(waker).wake());
        thread::scope(|scope| {
            for _ in 0..threads {
                scope.spawn(|| executor.work(&wakers));
            }
        });
    }

    fn work(&self, wakers: &[Arc<Scheduled>]) {
        loop {
            let mut woken = self.woken.lock().expect("no panic");
            let number = loop {
                if self.left.load(SeqCst) == 0 {
                    return;
                }
                match woken.pop_front() {
                    Some(number) => break number,
                    None => woken = self.changed.wait(woken).expect("no panic"),
                }
            };
            drop(woken);
            let mut task = self.tasks[number].lock().expect("no panic");
            // Clear the flag before polling, so that a wake-up during the poll queues the task
            // again.
            wakers[number].is_queued.store(false, SeqCst);
            let waker = Waker::from(Arc::clone(&wakers[number]));
            let Some(future) = task.as_mut() else { continue };
            if future.as_mut().poll(&mut Context::from_waker(&waker)).is_ready() {
                *task = None;
                if self.left.fetch_sub(1, SeqCst) == 1 {
                    drop(self.woken.lock().expect("no panic"));
                    self.changed.notify_all();
                }
            }
        }
    }
}

/// Waits for a socket, cancels this wait, and then waits again.
async fn ready_after_cancel(handle: &OwnedSocket, interest: u32) {
    let mut cancelled = until_ready(handle, interest);
    poll_fn(|cx| Poll::Ready(Pin::new(&mut cancelled).poll(cx))).await.is_ready();
    drop(cancelled);
    until_ready(handle, interest).await;
}

async fn read_exact(mut stream: &TcpStream, mut bytes: &mut [u8]) {
    while !bytes.is_empty() {
        match stream.read(bytes) {
            Ok(0) => panic!("ended early"),
            Ok(n) => bytes = &mut bytes[n..],
            Err(error) if error.kind() == ErrorKind::WouldBlock => {
                ready_after_cancel(&stream.handle, ready::IN).await;
            }
            Err(error) => panic!("{error}"),
        }
    }
}

async fn write_all(mut stream: &TcpStream, mut bytes: &[u8]) {
    while !bytes.is_empty() {
        match stream.write(bytes) {
            Ok(n) => bytes = &bytes[n..],
            Err(error) if error.kind() == ErrorKind::WouldBlock => {
                ready_after_cancel(&stream.handle, ready::OUT).await;
            }
            Err(error) => panic!("{error}"),
        }
    }
}

#[test]
fn loses_no_wakeup_among_tasks_that_cancel_waits() {
    const PAIRS: usize = 12;
    const ROUNDS: usize = 300;
    /// Number of bytes to send. Larger than the initial send buffers, so that some writers must
    /// wait for space.
    const LONG: usize = 1 << 20;
    let stack = stack();
    let dispatcher = dispatcher(&stack);
    let mut tasks: Vec<Task> = Vec::new();
    for pair in 0..PAIRS {
        let (client, server) = connection(&stack);
        for stream in [&client, &server] {
            stream.set_nonblocking(true).expect("the engine runs");
        }
        let (rounds, len) = if pair < 3 { (4, LONG) } else { (ROUNDS, 1 + pair) };
        tasks.push(Box::pin(async move {
            for round in 0..rounds {
                write_all(&client, &vec![round as u8; len]).await;
                let mut echo = vec![0; len];
                read_exact(&client, &mut echo).await;
                assert!(echo.iter().all(|&byte| byte == round as u8));
            }
        }));
        tasks.push(Box::pin(async move {
            for _ in 0..rounds {
                let mut bytes = vec![0; len];
                read_exact(&server, &mut bytes).await;
                write_all(&server, &bytes).await;
            }
        }));
    }
    let stop = eventfd(0, EventfdFlags::CLOEXEC).expect("a descriptor");
    thread::scope(|scope| {
        scope.spawn(|| {
            loop {
                let mut list = [dispatcher.descriptor(), std::os::fd::AsFd::as_fd(&stop)]
                    .map(|fd| PollFd::from_borrowed_fd(fd, PollFlags::IN));
                poll(&mut list, None).expect("no signal");
                if !list[1].revents().is_empty() {
                    return;
                }
                dispatcher.dispatch(stack.shared.client()).expect("no signal handler");
            }
        });
        Executor::run(tasks, 2);
        rustix::io::write(&stop, &1u64.to_ne_bytes()).expect("written");
    });
}
