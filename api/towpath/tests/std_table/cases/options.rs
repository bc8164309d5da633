//! Options of connections.

use std::io::{Read, Write};
use std::time::{Duration, Instant};

use super::beyond::{
    buffer_sizes, congestion, keepalive, linger, set_congestion, set_keepalive, set_linger,
};
use super::stream::pair;
use crate::facts::{Facts, at_last};

/// Whole ticks of every kernel's clock: others come back rounded.
const TIMES: [Option<Duration>; 3] =
    [Some(Duration::from_millis(200)), None, Some(Duration::from_secs(15_410))];
const SHORT: Duration = Duration::from_millis(20);

pub fn read_timeouts_are_kept(facts: &mut Facts) {
    let (client, _server) = pair();
    facts.call("at first", client.read_timeout());
    for time in TIMES {
        facts.call("set", client.set_read_timeout(time));
        facts.call("kept", client.read_timeout());
    }
    facts.call("write", client.write_timeout());
}

pub fn write_timeouts_are_kept(facts: &mut Facts) {
    let (client, _server) = pair();
    facts.call("at first", client.write_timeout());
    for time in TIMES {
        facts.call("set", client.set_write_timeout(time));
        facts.call("kept", client.write_timeout());
    }
    facts.call("read", client.read_timeout());
}

pub fn no_time_is_an_invalid_timeout(facts: &mut Facts) {
    let (client, _server) = pair();
    facts.call("read", client.set_read_timeout(Some(Duration::ZERO)));
    facts.call("write", client.set_write_timeout(Some(Duration::ZERO)));
    facts.call("kept", client.read_timeout());
}

pub fn a_read_that_timed_out_would_block(facts: &mut Facts) {
    let (mut client, mut server) = pair();
    client.set_read_timeout(Some(SHORT)).unwrap();
    let began = Instant::now();
    facts.call("read", client.read(&mut [0]));
    facts.call("peek", client.peek(&mut [0]));
    facts.value("it waited", began.elapsed() >= SHORT);
    // The connection is as it was.
    server.write_all(b"x").unwrap();
    client.set_read_timeout(None).unwrap();
    facts.call("read", client.read(&mut [0]));
}

pub fn a_read_before_its_timeout_succeeds(facts: &mut Facts) {
    let (mut client, mut server) = pair();
    client.set_read_timeout(Some(Duration::from_secs(3600))).unwrap();
    server.write_all(b"hello").unwrap();
    let mut buf = [0; 5];
    facts.call("read", client.read_exact(&mut buf).map(|()| buf));
}

pub fn a_write_that_timed_out_would_block(facts: &mut Facts) {
    let (mut client, _server) = pair();
    client.set_write_timeout(Some(SHORT)).unwrap();
    let error = std::iter::repeat_with(|| client.write(&[0; 65_536])).find_map(Result::err);
    facts.call::<()>("write", Err(error.unwrap()));
}

pub fn timeouts_are_the_clones_too(facts: &mut Facts) {
    let (client, _server) = pair();
    let clone = client.try_clone().unwrap();
    client.set_read_timeout(TIMES[0]).unwrap();
    facts.call("clone's", clone.read_timeout());
}

pub fn nodelay_is_kept(facts: &mut Facts) {
    let (client, _server) = pair();
    facts.call("at first", client.nodelay());
    for on in [true, false, true] {
        facts.call("set", client.set_nodelay(on));
        facts.call("kept", client.nodelay());
    }
    facts.call("clone's", client.try_clone().unwrap().nodelay());
}

pub fn ttl_is_kept(facts: &mut Facts) {
    let (client, _server) = pair();
    facts.call("at first", client.ttl());
    for ttl in [1, 100, 255, 0, 256] {
        facts.call("set", client.set_ttl(ttl));
        facts.call("kept", client.ttl());
    }
}

pub fn reads_without_blocking_say_so(facts: &mut Facts) {
    let (mut client, mut server) = pair();
    client.set_nonblocking(true).unwrap();
    facts.call("read", client.read(&mut [0; 8]));
    server.write_all(b"abc").unwrap();
    let mut buf = [0; 8];
    at_last(|| {
        if client.peek(&mut buf)? < 3 { Err(std::io::ErrorKind::WouldBlock.into()) } else { Ok(()) }
    })
    .unwrap();
    facts.call("read", client.read(&mut buf));
    facts.call("read", client.read(&mut buf));
    drop(server);
    facts.call("end", at_last(|| client.read(&mut [0; 8])));
}

pub fn writes_without_blocking_say_so(facts: &mut Facts) {
    let (mut client, mut server) = pair();
    client.set_nonblocking(true).unwrap();
    facts.call("first", client.write(b"hello"));
    let mut written = 5;
    let error = loop {
        match client.write(&[0; 65_536]) {
            Ok(n) => written += n,
            Err(error) => break error,
        }
    };
    facts.call::<()>("full", Err(error));
    client.set_nonblocking(false).unwrap();
    drop(client);
    facts.value("all came", server.read_to_end(&mut Vec::new()).unwrap() == written);
}

pub fn without_blocking_is_the_clones_too(facts: &mut Facts) {
    let (client, _server) = pair();
    let mut clone = client.try_clone().unwrap();
    client.set_nonblocking(true).unwrap();
    facts.call("read", clone.read(&mut [0; 8]));
}

pub fn linger_is_kept(facts: &mut Facts) {
    let (client, _server) = pair();
    facts.call("at first", linger(&client));
    for seconds in [Some(5), Some(0), None] {
        facts.call("set", set_linger(&client, seconds.map(Duration::from_secs)));
        facts.call("kept", linger(&client));
    }
}

pub fn keepalive_is_kept(facts: &mut Facts) {
    let (client, _server) = pair();
    let seconds = Duration::from_secs;
    facts.call("at first", keepalive(&client));
    for times in [
        Some((seconds(30), seconds(5), 3)),
        Some((seconds(32_767), seconds(32_767), 127)),
        Some((seconds(32_768), seconds(1), 1)),
        Some((seconds(1), seconds(1), 128)),
        None,
    ] {
        facts.call("set", set_keepalive(&client, times));
        if times.is_none_or(|(idle, _, probes)| idle < seconds(32_768) && probes < 128) {
            facts.call("kept", keepalive(&client));
        }
    }
}

pub fn buffer_sizes_are_doubled(facts: &mut Facts) {
    let (client, _server) = pair();
    for bytes in [50_000, 100_000, 1] {
        facts.call("sizes", buffer_sizes(&client, bytes));
    }
}

pub fn congestion_is_chosen_by_name(facts: &mut Facts) {
    let (client, _server) = pair();
    for name in ["reno", "of-nobody", "a-name-that-is-longer-than-any", ""] {
        facts.call("set", set_congestion(&client, name));
        facts.call("kept", congestion(&client));
    }
}
