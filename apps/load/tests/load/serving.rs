//! Servers for the tests, on the kernel's loopback, in threads of the test process.

use std::io::{Read, Write};
use std::net::{SocketAddr, TcpListener, TcpStream, UdpSocket};
use std::thread;

use std::sync::atomic::{AtomicBool, Ordering::Relaxed};
use std::time::Duration;

use rustix::net::sockopt::set_socket_linger;
use towpath_load::{Plan, Report, ReportSnapshot, run};

/// Runs the plan until a snapshot meets the condition, however slow the machine is.
#[track_caller]
pub fn until(plan: &Plan, is_enough: impl Fn(&ReportSnapshot) -> bool) -> Report {
    let mut plan = plan.clone();
    plan.duration = Duration::from_secs(3600);
    plan.period = Duration::from_millis(10);
    let stop = AtomicBool::new(false);
    run(&plan, &stop, &mut |now| stop.store(is_enough(now), Relaxed)).expect("the plan is sound")
}

/// Starts a server that runs `serve` in a thread per connection.
pub fn tcp(serve: impl Fn(TcpStream) + Clone + Send + 'static) -> SocketAddr {
    let listener = TcpListener::bind("127.0.0.1:0").expect("a free port");
    let address = listener.local_addr().expect("it is bound");
    thread::spawn(move || {
        for stream in listener.incoming() {
            let serve = serve.clone();
            thread::spawn(move || serve(stream.expect("a connection")));
        }
    });
    address
}

/// Echoes all bytes.
pub fn echo(mut stream: TcpStream) {
    let mut bytes = [0; 16 * 1024];
    while let Ok(len @ 1..) = stream.read(&mut bytes) {
        if stream.write_all(&bytes[..len]).is_err() {
            return;
        }
    }
}

/// Sends the same answer after each read, until the client closes.
pub fn answering(answer: &'static [u8]) -> impl Fn(TcpStream) + Clone {
    move |mut stream| {
        let mut bytes = [0; 16 * 1024];
        while let Ok(1..) = stream.read(&mut bytes) {
            if stream.write_all(answer).is_err() {
                return;
            }
        }
    }
}

/// Resets a connection after its first bytes.
pub fn resetting(mut stream: TcpStream) {
    let _ = stream.read(&mut [0; 100]);
    set_socket_linger(&stream, Some(Duration::ZERO)).expect("a socket");
}

/// Starts a server that answers datagrams using `answer`, which returns None to drop one.
pub fn udp(answer: impl Fn(u64, &[u8]) -> Option<Vec<u8>> + Send + 'static) -> SocketAddr {
    let socket = UdpSocket::bind("127.0.0.1:0").expect("a free port");
    let address = socket.local_addr().expect("it is bound");
    thread::spawn(move || {
        let mut bytes = [0; 65_536];
        for number in 0.. {
            let (len, from) = socket.recv_from(&mut bytes).expect("a datagram");
            if let Some(answer) = answer(number, &bytes[..len]) {
                // The client may have closed its socket.
                let _ = socket.send_to(&answer, from);
            }
        }
    });
    address
}

/// Returns a loopback address on which no program listens: its port was free a moment ago, and the
/// address is derived from this process's number.
pub fn nobody() -> SocketAddr {
    let [.., high, low] = std::process::id().to_be_bytes();
    let listener = TcpListener::bind(format!("127.98.{high}.{low}:0")).expect("a free port");
    listener.local_addr().expect("it is bound")
}
