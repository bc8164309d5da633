//! Options of UDP sockets.

use std::time::{Duration, Instant};

use super::beyond::buffer_sizes;
use super::net::{Ipv4Addr, Ipv6Addr, UdpSocket};
use crate::facts::Facts;

const SHORT: Duration = Duration::from_millis(20);
const GROUP: Ipv4Addr = Ipv4Addr::new(224, 0, 0, 199);

fn bind() -> UdpSocket {
    UdpSocket::bind("127.0.0.1:0").unwrap()
}

pub fn timeouts_are_kept(facts: &mut Facts) {
    let socket = bind();
    let (long, longer) = (Some(Duration::from_millis(200)), Some(Duration::from_secs(7200)));
    for (read, write) in [(None, None), (long, None), (longer, long), (None, longer)] {
        socket.set_read_timeout(read).unwrap();
        socket.set_write_timeout(write).unwrap();
        facts.call("read", socket.read_timeout());
        facts.call("write", socket.write_timeout());
    }
}

pub fn no_time_is_an_invalid_timeout(facts: &mut Facts) {
    let socket = bind();
    facts.call("read", socket.set_read_timeout(Some(Duration::ZERO)));
    facts.call("write", socket.set_write_timeout(Some(Duration::ZERO)));
}

pub fn a_receive_that_timed_out_would_block(facts: &mut Facts) {
    let socket = bind();
    socket.set_read_timeout(Some(SHORT)).unwrap();
    let began = Instant::now();
    facts.call("receive", socket.recv_from(&mut [0; 8]).map(drop));
    facts.value("it waited", began.elapsed() >= SHORT);
    facts.call("peek", socket.peek(&mut [0; 8]));
    socket.send_to(b"x", socket.local_addr().unwrap()).unwrap();
    socket.set_read_timeout(None).unwrap();
    facts.call("receive", socket.recv(&mut [0; 8]));
}

pub fn receiving_without_blocking_says_so(facts: &mut Facts) {
    let socket = bind();
    socket.set_nonblocking(true).unwrap();
    facts.call("receive", socket.recv(&mut [0; 8]));
    facts.call("receive", socket.recv_from(&mut [0; 8]).map(drop));
    facts.call("send", socket.send_to(b"x", socket.local_addr().unwrap()));
    socket.set_nonblocking(false).unwrap();
    facts.call("receive", socket.recv(&mut [0; 8]));
}

pub fn broadcast_is_kept(facts: &mut Facts) {
    let socket = bind();
    facts.call("at first", socket.broadcast());
    for on in [true, false] {
        facts.call("set", socket.set_broadcast(on));
        facts.call("kept", socket.broadcast());
    }
}

pub fn ttl_is_kept(facts: &mut Facts) {
    let socket = bind();
    facts.call("at first", socket.ttl());
    for ttl in [1, 100, 255, 0, 256, u32::MAX] {
        facts.call("set", socket.set_ttl(ttl));
        facts.call("kept", socket.ttl());
    }
}

pub fn multicast_ttl_is_kept(facts: &mut Facts) {
    let socket = bind();
    facts.call("at first", socket.multicast_ttl_v4());
    for ttl in [0, 7, 255, 256, 70_000, u32::MAX] {
        facts.call("set", socket.set_multicast_ttl_v4(ttl));
        facts.call("kept", socket.multicast_ttl_v4());
    }
}

pub fn multicast_loop_is_kept(facts: &mut Facts) {
    let socket = bind();
    facts.call("at first", socket.multicast_loop_v4());
    for on in [false, true] {
        facts.call("set", socket.set_multicast_loop_v4(on));
        facts.call("kept", socket.multicast_loop_v4());
    }
}

pub fn multicast_of_ipv6_is_not_for_ipv4(facts: &mut Facts) {
    let socket = bind();
    let group = Ipv6Addr::new(0xff02, 0, 0, 0, 0, 0, 0, 0x199);
    facts.call("set", socket.set_multicast_loop_v6(true));
    facts.call("kept", socket.multicast_loop_v6());
    facts.call("join", socket.join_multicast_v6(&group, 0));
    facts.call("leave", socket.leave_multicast_v6(&group, 0));
}

pub fn groups_are_joined_once(facts: &mut Facts) {
    let socket = bind();
    let on = Ipv4Addr::LOCALHOST;
    facts.call("join", socket.join_multicast_v4(&GROUP, &on));
    facts.call("again", socket.join_multicast_v4(&GROUP, &on));
    facts.call("leave", socket.leave_multicast_v4(&GROUP, &on));
    facts.call("again", socket.leave_multicast_v4(&GROUP, &on));
    facts.call("join", socket.join_multicast_v4(&GROUP, &on));
}

pub fn only_groups_are_joined(facts: &mut Facts) {
    let socket = bind();
    let no_group = Ipv4Addr::new(10, 1, 2, 3);
    facts.call("join", socket.join_multicast_v4(&no_group, &Ipv4Addr::LOCALHOST));
    let no_interface = Ipv4Addr::new(198, 51, 100, 1);
    facts.call("join", socket.join_multicast_v4(&GROUP, &no_interface));
}

pub fn there_is_no_error_to_take(facts: &mut Facts) {
    let taken = bind().take_error();
    facts.call("take", taken.map(|error| error.map(|error| error.kind())));
}

pub fn buffer_sizes_are_doubled(facts: &mut Facts) {
    let socket = bind();
    for bytes in [50_000, 100_000] {
        facts.call("sizes", buffer_sizes(&socket, bytes));
    }
}
