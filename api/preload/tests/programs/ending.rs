//! Waiting threads must return ENETDOWN when the engine ends.

use std::io::{ErrorKind, Read};
use std::net::{TcpListener, UdpSocket};
use std::os::fd::AsRawFd;
use std::sync::mpsc::{Receiver, Sender, channel};
use std::time::Duration;

use crate::asleep;
use crate::harness::{Case, STOP_ENGINE};
use crate::processes::{fork, wait};
use crate::sockets::{errno, pair};

pub const CASES: &[Case] = &[
    ("a_thread_that_waits_does_not_wake_up", a_thread_that_waits_does_not_wake_up),
    ("all_who_wait_learn_of_the_engines_end", all_who_wait_learn_of_the_engines_end),
    ("who_waits_on_an_older_kernel_learns_of_it", who_waits_on_an_older_kernel_learns_of_it),
    ("calls_that_do_not_wait_learn_of_it", calls_that_do_not_wait_learn_of_it),
    ("a_process_that_is_cut_off_does_not_hang", a_process_that_is_cut_off_does_not_hang),
];

/// Returns how often the other threads of this process have gone to sleep or were preempted.
fn switches() -> u64 {
    // SAFETY: no arguments.
    let own = unsafe { libc::gettid() }.to_string();
    let tasks = std::fs::read_dir("/proc/self/task").unwrap().map(|task| task.unwrap().path());
    let others = tasks.filter(|task| !task.ends_with(&own));
    others
        .map(|task| {
            let status = std::fs::read_to_string(task.join("status")).unwrap();
            let counts = status.lines().filter_map(|line| line.split_once("ctxt_switches:"));
            counts.map(|(_, count)| count.trim().parse::<u64>().unwrap()).sum::<u64>()
        })
        .sum()
}

fn poll_for_ever(fd: i32) -> i32 {
    let mut entry = libc::pollfd { fd, events: libc::POLLIN, revents: 0 };
    // SAFETY: one entry.
    unsafe { libc::poll(&raw mut entry, 1, -1) };
    i32::from(entry.revents & libc::POLLERR != 0) * libc::ENETDOWN
}

fn error_of<T>(result: std::io::Result<T>) -> i32 {
    result.err().and_then(|error| error.raw_os_error()).unwrap_or(0)
}

/// Starts threads that wait in different calls. Each sends the errno with which its call ends.
fn waiting() -> Receiver<i32> {
    let (tell, told) = channel();
    let start = |wait: Box<dyn FnOnce() -> i32 + Send>| {
        let tell: Sender<i32> = tell.clone();
        std::thread::spawn(move || tell.send(wait()));
    };
    for timeout in [None, Some(Duration::from_secs(3600))] {
        let (server, client) = pair();
        server.set_read_timeout(timeout).unwrap();
        start(Box::new(move || {
            let _open = client;
            error_of((&server).read(&mut [0]))
        }));
    }
    // Create the sockets here, because a request of a new thread could disturb threads that wait.
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let [one, other] = [(); 2].map(|()| UdpSocket::bind("127.0.0.1:0").unwrap());
    start(Box::new(move || error_of(listener.accept())));
    start(Box::new(move || error_of(one.recv(&mut [0]))));
    start(Box::new(move || poll_for_ever(other.as_raw_fd())));
    told
}

fn all_end(told: &Receiver<i32>) {
    for _ in 0..5 {
        assert_eq!(told.recv(), Ok(libc::ENETDOWN));
    }
}

fn a_thread_that_waits_does_not_wake_up() {
    let told = waiting();
    asleep::others();
    // A thread may still wake up once before it sleeps for good. A thread that polls wakes up in
    // every interval, so that the case hangs.
    let is_quiet = || {
        let before = switches();
        std::thread::sleep(Duration::from_millis(1500));
        switches() == before
    };
    while !is_quiet() {}
    assert!(told.try_recv().is_err());
    println!("{STOP_ENGINE}");
    all_end(&told);
}

fn all_who_wait_learn_of_the_engines_end() {
    let children = [0; 3].map(|_| fork(|| all_end(&waiting())));
    let more = [waiting(), waiting()];
    asleep::others();
    children.into_iter().for_each(asleep::process);
    println!("{STOP_ENGINE}");
    more.iter().for_each(all_end);
    assert_eq!(children.map(wait), [0; 3]);
}

/// Linux before 5.16 lacks futex_waitv(2), which a seccomp filter simulates here.
fn who_waits_on_an_older_kernel_learns_of_it() {
    const FUTEX_WAITV: u32 = 449;
    let statement = |code, jt, jf, k| libc::sock_filter { code, jt, jf, k };
    let (load, equal, give) = (0x20, 0x15, 0x06);
    let mut program = [
        statement(load, 0, 0, 0),
        statement(equal, 0, 1, FUTEX_WAITV),
        statement(give, 0, 0, libc::SECCOMP_RET_ERRNO | libc::ENOSYS as u32),
        statement(give, 0, 0, libc::SECCOMP_RET_ALLOW),
    ];
    let filter = libc::sock_fprog { len: program.len() as u16, filter: program.as_mut_ptr() };
    // SAFETY: prctl takes integers, and a filter that outlives the call.
    unsafe {
        assert_eq!(libc::prctl(libc::PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0), 0);
        let mode = libc::SECCOMP_MODE_FILTER;
        assert_eq!(libc::prctl(libc::PR_SET_SECCOMP, mode, &raw const filter, 0, 0), 0);
    }
    let told = waiting();
    // Longer than the interval at which a waiting thread checks whether the engine runs. If it is
    // too short, the case covers less.
    std::thread::sleep(Duration::from_millis(700));
    println!("{STOP_ENGINE}");
    all_end(&told);
}

/// A program that polls its sockets by nonblocking calls also gets ENETDOWN.
fn calls_that_do_not_wait_learn_of_it() {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    listener.set_nonblocking(true).unwrap();
    let (server, _client) = pair();
    server.set_nonblocking(true).unwrap();
    let datagrams = UdpSocket::bind("127.0.0.1:0").unwrap();
    datagrams.set_nonblocking(true).unwrap();
    let flagged = |flags| {
        // SAFETY: one byte.
        let n = unsafe { libc::recv(server.as_raw_fd(), [0u8].as_mut_ptr().cast(), 1, flags) };
        if n < 0 { errno() } else { 0 }
    };
    let attempts: [&dyn Fn() -> i32; 5] = [
        &|| error_of(listener.accept()),
        &|| error_of((&server).read(&mut [0])),
        &|| error_of(datagrams.recv(&mut [0])),
        &|| flagged(libc::MSG_TRUNC),
        &|| flagged(libc::MSG_TRUNC | libc::MSG_PEEK),
    ];
    attempts.iter().for_each(|attempt| assert_eq!(attempt(), libc::EAGAIN));
    println!("{STOP_ENGINE}");
    for (number, attempt) in attempts.iter().enumerate() {
        let mut error = attempt();
        while error == libc::EAGAIN {
            std::thread::yield_now();
            error = attempt();
        }
        assert_eq!(error, libc::ENETDOWN, "attempt {number}");
    }
    assert_eq!(listener.accept().unwrap_err().kind(), ErrorKind::NetworkDown);
}

/// A process writes an invalid position to its command ring, so that the engine cuts it off.
fn a_process_that_is_cut_off_does_not_hang() {
    let told = waiting();
    asleep::others();
    let maps = std::fs::read_to_string("/proc/self/maps").unwrap();
    let channel = maps.lines().find(|line| line.contains("towpath-channel")).unwrap();
    let at = usize::from_str_radix(channel.split_once('-').unwrap().0, 16).unwrap();
    // `ChannelHeader::command_tail`.
    let tail = (at + 64) as *mut u32;
    // SAFETY: `tail` points into the mapped channel. The engine must handle any value there.
    unsafe { tail.write_volatile(u32::MAX / 2) };
    // The ring belongs to the first shard, which reads it for a request and then ends the process
    // in all shards.
    let mut asked = std::iter::repeat_with(|| {
        std::thread::sleep(Duration::from_millis(1));
        UdpSocket::bind("127.0.0.1:0")
    });
    assert_eq!(asked.find_map(Result::err).and_then(|e| e.raw_os_error()), Some(libc::ENETDOWN));
    all_end(&told);
}
