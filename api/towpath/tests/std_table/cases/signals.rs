//! Calls that wait while a signal handler runs, which was installed without SA_RESTART.

use std::io::{Read, Write};
use std::os::unix::thread::JoinHandleExt;
use std::thread::JoinHandle;
use std::time::Duration;

use super::net::{TcpListener, TcpStream, UdpSocket};
use super::stream::pair;
use crate::facts::{Facts, blocked};

extern "C" fn handle(_signal: libc::c_int) {}

fn install_handler() {
    // SAFETY: a handler that does nothing, which any thread may run.
    unsafe {
        let mut action: libc::sigaction = std::mem::zeroed();
        action.sa_sigaction = handle as *const () as libc::sighandler_t;
        assert_eq!(libc::sigaction(libc::SIGUSR1, &raw const action, std::ptr::null_mut()), 0);
    }
}

fn interrupt<T>(thread: &JoinHandle<T>) {
    // SAFETY: the thread was not joined, so that its number is its own.
    unsafe { libc::pthread_kill(thread.as_pthread_t(), libc::SIGUSR1) };
    std::thread::sleep(Duration::from_millis(1));
}

/// Interrupts a thread until its call ends. A single signal may come before the sleep begins.
fn interrupted<T>(thread: JoinHandle<T>) -> T {
    while !thread.is_finished() {
        interrupt(&thread);
    }
    thread.join().unwrap()
}

pub fn a_handler_interrupts_a_read(facts: &mut Facts) {
    install_handler();
    let (mut client, _server) = pair();
    facts.call("read", interrupted(blocked(move || client.read(&mut [0]))));
}

pub fn a_handler_interrupts_a_read_with_a_timeout(facts: &mut Facts) {
    install_handler();
    let (mut client, _server) = pair();
    client.set_read_timeout(Some(Duration::from_secs(3600))).unwrap();
    facts.call("read", interrupted(blocked(move || client.read(&mut [0]))));
}

pub fn a_handler_interrupts_a_receive(facts: &mut Facts) {
    install_handler();
    let socket = UdpSocket::bind("127.0.0.1:0").unwrap();
    facts.call("receive", interrupted(blocked(move || socket.recv(&mut [0]))));
}

pub fn exact_reads_go_on_after_a_handler(facts: &mut Facts) {
    install_handler();
    let (mut client, mut server) = pair();
    let reader = blocked(move || {
        let mut buf = [0; 6];
        client.read_exact(&mut buf).map(|()| buf)
    });
    server.write_all(b"one").unwrap();
    (0..5).for_each(|_| interrupt(&reader));
    server.write_all(b"two").unwrap();
    facts.call("read", reader.join().unwrap());
}

pub fn accept_goes_on_after_a_handler(facts: &mut Facts) {
    install_handler();
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let addr = listener.local_addr().unwrap();
    let accepts = blocked(move || listener.accept().map(|(_, peer)| peer));
    (0..5).for_each(|_| interrupt(&accepts));
    let client = TcpStream::connect(addr).unwrap();
    let peer = accepts.join().unwrap();
    facts.call("accept", peer.map(|peer| peer == client.local_addr().unwrap()));
}
