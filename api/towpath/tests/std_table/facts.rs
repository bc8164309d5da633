//! Notes of cases, and how both sides' notes are compared.

use std::fmt::Debug;
use std::io::{self, Write};
use std::net::{Ipv4Addr, SocketAddr};
use std::sync::mpsc;
use std::thread::{self, JoinHandle};
use std::time::Duration;

/// Results of the calls of a case, in order.
#[derive(Default)]
pub struct Facts(Vec<String>);

impl Facts {
    /// Notes a call's result. An error's kind and errno count, not its words.
    pub fn call<T: Debug>(&mut self, what: &str, result: io::Result<T>) {
        self.0.push(match result {
            Ok(value) => format!("{what}: {value:?}"),
            Err(error) => format!("{what}: {:?}, {:?}", error.kind(), error.raw_os_error()),
        });
    }

    /// Notes anything else.
    pub fn value(&mut self, what: &str, value: impl Debug) {
        self.0.push(format!("{what}: {value:?}"));
    }

    /// Notes what Debug shows of a socket, without the ports and the last field, which differ.
    pub fn debug(&mut self, socket: &impl Debug, ports: &[SocketAddr]) {
        let mut shown = format!("{socket:?}");
        shown.truncate(shown.rfind(',').expect("several fields"));
        for (n, addr) in ports.iter().enumerate() {
            shown = shown.replace(&format!(":{}", addr.port()), &format!(":port {n}"));
        }
        self.0.push(shown);
    }
}

/// Runs a case on the kernel's sockets, and on those of a stack of one thread and one of several.
pub fn compare(kernel: fn(&mut Facts), ours: fn(&mut Facts)) {
    let mut expected = Facts::default();
    kernel(&mut expected);
    assert!(!expected.0.is_empty(), "the case notes nothing");
    for shards in [1, 4] {
        let mut found = Facts::default();
        let stack = towpath::Stack::builder().loopback().shards(shards).start().expect("a stack");
        let _inside = stack.enter();
        ours(&mut found);
        let sides = "left: towpath's sockets, right: the kernel's";
        assert_eq!(found.0, expected.0, "{sides}; {shards} shards");
    }
}

/// Whether the kernel has IPv6, without which there is nothing to compare with.
pub fn has_ipv6() -> bool {
    let bound = std::net::UdpSocket::bind("[::1]:0");
    if let Err(error) = &bound {
        writeln!(io::stderr(), "skipped: the kernel has no [::1]: {error}").expect("a stream");
    }
    bound.is_ok()
}

/// An address of 127.0.0.0/8 that no other test's process uses: ports on it are this one's alone.
pub fn own_address() -> Ipv4Addr {
    let [_, a, b, c] = std::process::id().to_be_bytes();
    // Not 127.0.0.0 nor 127.255.255.255.
    Ipv4Addr::new(127, 1 + a % 250, b, 1 + c % 250)
}

/// Starts a thread, and returns when it sleeps in what it does, or has done it.
pub fn blocked<T: Send + 'static>(work: impl FnOnce() -> T + Send + 'static) -> JoinHandle<T> {
    let (tell, told) = mpsc::channel();
    let thread = thread::spawn(move || {
        tell.send(rustix::thread::gettid()).expect("somebody waits");
        work()
    });
    let id = told.recv().expect("its id").as_raw_nonzero();
    let sleeps = || {
        let stat = std::fs::read_to_string(format!("/proc/self/task/{id}/stat"));
        stat.is_ok_and(|stat| stat.rsplit(") ").next().is_some_and(|rest| rest.starts_with('S')))
    };
    while !thread.is_finished() && !sleeps() {
        thread::sleep(Duration::from_millis(1));
    }
    thread
}

/// Repeats a call that does not block until it gives something else.
pub fn at_last<T>(mut call: impl FnMut() -> io::Result<T>) -> io::Result<T> {
    loop {
        match call() {
            Err(error) if error.kind() == io::ErrorKind::WouldBlock => {
                thread::sleep(Duration::from_millis(1));
            }
            result => return result,
        }
    }
}

/// Repeats a question until it has an answer.
pub fn until_some<T>(mut ask: impl FnMut() -> Option<T>) -> T {
    loop {
        match ask() {
            Some(answer) => return answer,
            None => thread::sleep(Duration::from_millis(1)),
        }
    }
}
