//! How connections end.

use std::io::{Read, Write};
use std::time::Duration;

use super::beyond::set_linger;
use super::net::{Shutdown, TcpStream};
use super::stream::pair;
use crate::facts::{Facts, blocked, until_some};

pub fn shut_for_writing_the_peer_sees_the_end(facts: &mut Facts) {
    let (mut client, mut server) = pair();
    client.write_all(b"last").unwrap();
    facts.call("shutdown", client.shutdown(Shutdown::Write));
    let mut said = String::new();
    facts.call("read", server.read_to_string(&mut said));
    facts.value("said", said);
}

pub fn shut_for_writing_nothing_can_be_written(facts: &mut Facts) {
    let (mut client, mut server) = pair();
    client.shutdown(Shutdown::Write).unwrap();
    facts.call("write", client.write(b"more"));
    facts.call("write", client.write(b"more"));
    // The other direction is open.
    server.write_all(b"answer").unwrap();
    drop(server);
    let mut said = String::new();
    facts.call("read", client.read_to_string(&mut said));
}

pub fn shut_for_reading_what_came_is_read(facts: &mut Facts) {
    let (mut client, mut server) = pair();
    server.write_all(b"abc").unwrap();
    let mut buf = [0; 8];
    while client.peek(&mut buf).unwrap() < 3 {}
    facts.call("shutdown", client.shutdown(Shutdown::Read));
    facts.call("read", client.read(&mut buf));
    facts.call("read", client.read(&mut buf));
    facts.call("write", client.write(b"open"));
    facts.call("peer's read", server.read(&mut buf));
}

pub fn shut_twice_is_as_once(facts: &mut Facts) {
    let (client, _server) = pair();
    facts.call("shutdown", client.shutdown(Shutdown::Write));
    facts.call("shutdown", client.shutdown(Shutdown::Write));
    facts.call("shutdown", client.shutdown(Shutdown::Both));
    facts.call("peer", client.peer_addr().map(|addr| addr.ip()));
}

pub fn shut_after_both_ended_is_not_connected(facts: &mut Facts) {
    let (mut client, mut server) = pair();
    client.shutdown(Shutdown::Write).unwrap();
    facts.call("end", server.read(&mut [0]));
    drop(server);
    facts.call("end", client.read(&mut [0]));
    facts.call("shutdown", client.shutdown(Shutdown::Both));
    facts.call("peer", client.peer_addr().map(drop));
    facts.call("own", client.local_addr().map(|addr| addr.ip()));
}

fn end_of_blocked_read(facts: &mut Facts, how: Shutdown) {
    let (client, _server) = pair();
    let mut reads = client.try_clone().unwrap();
    let reader = blocked(move || reads.read(&mut [0; 8]));
    facts.call("shutdown", client.shutdown(how));
    facts.call("read", reader.join().unwrap());
}

pub fn shut_for_reading_a_blocked_read_ends(facts: &mut Facts) {
    end_of_blocked_read(facts, Shutdown::Read);
}

pub fn shut_for_both_a_blocked_read_ends(facts: &mut Facts) {
    end_of_blocked_read(facts, Shutdown::Both);
}

/// Writes until an error comes.
fn error_of(mut stream: impl Write) -> std::io::Result<()> {
    loop {
        stream.write_all(&[0; 65_536])?;
    }
}

pub fn shut_for_writing_a_blocked_write_ends(facts: &mut Facts) {
    let (client, _server) = pair();
    let writes = client.try_clone().unwrap();
    let writer = blocked(move || error_of(writes));
    facts.call("shutdown", client.shutdown(Shutdown::Write));
    facts.call("write", writer.join().unwrap());
}

pub fn shut_by_a_clone_a_read_ends(facts: &mut Facts) {
    let (mut client, _server) = pair();
    client.try_clone().unwrap().shutdown(Shutdown::Read).unwrap();
    facts.call("read", client.read(&mut [0; 8]));
}

pub fn half_a_connection_answers(facts: &mut Facts) {
    let (mut client, mut server) = pair();
    let answers = std::thread::spawn(move || {
        let mut asked = String::new();
        server.read_to_string(&mut asked)?;
        server.write_all(asked.to_uppercase().as_bytes())
    });
    client.write_all(b"question").unwrap();
    client.shutdown(Shutdown::Write).unwrap();
    let mut answer = String::new();
    facts.call("read", client.read_to_string(&mut answer));
    facts.value("answer", answer);
    facts.call("server", answers.join().unwrap());
}

pub fn writing_to_an_ended_peer_is_a_broken_pipe(facts: &mut Facts) {
    let (mut client, server) = pair();
    drop(server);
    facts.call("end", client.read(&mut [0]));
    facts.call("write", error_of(&client));
    facts.call("write", client.write(b"x"));
}

/// A client whose peer has closed with bytes unread, and so has sent a reset.
fn reset() -> TcpStream {
    let (mut client, server) = pair();
    client.write_all(b"unread").unwrap();
    server.peek(&mut [0]).unwrap();
    drop(server);
    client
}

pub fn bytes_left_unread_reset_the_peer(facts: &mut Facts) {
    facts.call("read", reset().read(&mut [0]));
}

pub fn a_reset_is_told_once(facts: &mut Facts) {
    let mut client = reset();
    facts.call("read", client.read(&mut [0]));
    facts.call("read", client.read(&mut [0]));
    facts.call("write", client.write(b"x"));
    facts.call("peer", client.peer_addr().map(drop));
    facts.call("shutdown", client.shutdown(Shutdown::Both));
}

pub fn a_reset_can_be_taken(facts: &mut Facts) {
    let mut client = reset();
    let taken = until_some(|| client.take_error().unwrap());
    facts.value("taken", (taken.kind(), taken.raw_os_error()));
    facts.call("again", client.take_error().map(|error| error.is_none()));
    facts.call("read", client.read(&mut [0]));
}

pub fn linger_of_no_time_resets(facts: &mut Facts) {
    let (client, mut server) = pair();
    facts.call("set", set_linger(&client, Some(Duration::ZERO)));
    drop(client);
    facts.call("read", server.read(&mut [0]));
}

pub fn linger_keeps_the_bytes(facts: &mut Facts) {
    let (mut client, mut server) = pair();
    facts.call("set", set_linger(&client, Some(Duration::from_secs(3600))));
    client.write_all(&[5; 100_000]).unwrap();
    let reader = std::thread::spawn(move || {
        let mut said = Vec::new();
        server.read_to_end(&mut said)
    });
    drop(client);
    facts.call("read", reader.join().unwrap());
}
