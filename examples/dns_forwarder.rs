//! Answers DNS queries by asking another server.
//!
//! `cargo run -p towpath --example dns_forwarder 9.9.9.9:53`, then
//! `dig @127.0.0.1 -p 5353 example.org`.

use std::io::{self, Write};
use std::net::SocketAddr;
use std::thread;
use std::time::Duration;

use towpath::Stack;
use towpath::net::UdpSocket;

/// Longest message over UDP with EDNS(0), as clients announce it (RFC 6891 §6.2.5).
const MESSAGE_MAX: usize = 4096;
/// Bytes of a header (RFC 1035 §4.1.1): shorter messages are no queries.
const HEADER: usize = 12;
/// Time that the server has for an answer. Clients ask again by themselves.
const PATIENCE: Duration = Duration::from_secs(5);

fn main() -> Result<(), Box<dyn std::error::Error>> {
    let server = std::env::args().nth(1).ok_or("name the server to ask, as 9.9.9.9:53")?;
    let server = server.parse().map_err(|_| format!("{server:?} is not an address with a port"))?;
    let stack = Stack::builder().rootless().publish("127.0.0.1:5353:53/udp").start()?;
    let socket = stack.bind_udp("0.0.0.0:53")?;
    writeln!(io::stdout(), "forwarding queries to 127.0.0.1:5353 to {server}")?;
    forward_all(&stack, &socket, server)?;
    Ok(())
}

/// Forwards what comes to `socket`, each query on a thread with a socket of its own.
pub fn forward_all(stack: &Stack, socket: &UdpSocket, server: SocketAddr) -> io::Result<()> {
    let mut query = [0; MESSAGE_MAX];
    loop {
        let (len, client) = socket.recv_from(&mut query)?;
        if len < HEADER {
            continue;
        }
        let (stack, socket, query) = (stack.clone(), socket.try_clone()?, query[..len].to_vec());
        thread::spawn(move || match ask(&stack, server, &query) {
            Ok(answer) => socket.send_to(&answer, client).map(drop),
            // As a resolver that does not know: the client's own timeout tells it.
            Err(error) => writeln!(io::stderr(), "{server} gave no answer: {error}"),
        });
    }
}

/// The server's answer to a query.
fn ask(stack: &Stack, server: SocketAddr, query: &[u8]) -> io::Result<Vec<u8>> {
    let socket = stack.bind_udp("0.0.0.0:0")?;
    // A port of its own, and a peer: nobody else's datagrams are taken for the answer.
    socket.connect(server)?;
    socket.set_read_timeout(Some(PATIENCE))?;
    socket.send(query)?;
    let mut answer = vec![0; MESSAGE_MAX];
    loop {
        let len = socket.recv(&mut answer)?;
        // The first two bytes say which query is answered.
        if len >= HEADER && answer[..2] == query[..2] {
            answer.truncate(len);
            return Ok(answer);
        }
    }
}
