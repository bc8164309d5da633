//! Queries of clients, and the cache.

use super::*;

#[test]
fn an_answer_is_forwarded_and_cached() {
    let mut bench = ForwarderBench::new();
    bench.ask(&query(7, "www.example", A));
    let sent = bench.sent();
    assert_eq!((sent.server.to_string().as_str(), sent.protocol), (SERVERS[0], Protocol::Udp));
    assert_eq!(counts(&sent.message), [0, 0, 1], "it has an OPT record");
    bench.answer(&sent, &answer(&sent.message, 0, &[address(300)], &[]));
    let reply = bench.reply();
    assert_eq!(reply[..4], [0, 7, 0x81, 0x80]);
    assert_eq!((counts(&reply), ttls(&reply)), ([1, 0, 0], vec![300]));
    // Another client spells the name differently.
    bench.pass(10.0);
    bench.ask(&query(8, "WWW.Example", A));
    let reply = bench.reply();
    assert_eq!((&reply[..2], ttls(&reply)), (&[0, 8][..], vec![290]));
    assert_eq!(reply[12..query_end(&reply)], question("WWW.Example", A));
    bench.pass(290.0);
    bench.ask(&query(9, "www.example", A));
    bench.sent();
    assert_eq!((bench.counter("hits"), bench.counter("misses")), (1, 2));
}

#[test]
fn equal_questions_wait_for_one_answer() {
    let mut bench = ForwarderBench::new();
    bench.ask(&query(1, "www.example", A));
    let sent = bench.sent();
    bench.ask(&query(2, "www.EXAMPLE", A));
    // A repeated query is answered once.
    bench.ask(&query(2, "www.EXAMPLE", A));
    let (none, replies) = bench.actions();
    assert!(none.is_empty() && replies.is_empty());
    assert_eq!(bench.counter("waiting"), 2);
    bench.answer(&sent, &answer(&sent.message, 0, &[address(0)], &[]));
    let (_, replies) = bench.actions();
    assert_eq!(replies.iter().map(|reply| reply[1]).collect::<Vec<_>>(), [1, 2]);
    assert_eq!((bench.counter("merged"), bench.counter("waiting")), (2, 0));
    // A time to live of 0 forbids that the answer is cached.
    bench.ask(&query(3, "www.example", A));
    bench.sent();
}

#[test]
fn negative_answers_are_cached_by_their_soa() {
    for (code, name) in [(3, "absent.example"), (0, "empty.example")] {
        let mut bench = ForwarderBench::new();
        bench.ask(&query(1, name, A));
        let sent = bench.sent();
        bench.answer(&sent, &answer(&sent.message, code, &[], &[soa(900, 60)]));
        assert_eq!(super::code(&bench.reply()), code);
        bench.pass(59.0);
        bench.ask(&query(2, name, A));
        let reply = bench.reply();
        assert_eq!((super::code(&reply), counts(&reply)), (code, [0, 1, 0]));
        bench.pass(1.0);
        bench.ask(&query(3, name, A));
        let sent = bench.sent();
        // Without an SOA record, the answer is not cached.
        bench.answer(&sent, &answer(&sent.message, code, &[], &[]));
        bench.reply();
        bench.ask(&query(4, name, A));
        bench.sent();
    }
}

#[test]
fn times_to_live_have_limits() {
    let config = ForwarderConfig { ttl_min_s: 30, ttl_max_s: 100, ..ForwarderConfig::default() };
    let mut bench = ForwarderBench::with(config);
    for (name, ttl, first, cached) in
        [("a.example", 5, 5, 30), ("b.example", 5000, 5000, 100), ("c.example", 50, 50, 50)]
    {
        assert_eq!(ttls(&bench.resolve(name, ttl)), [first]);
        bench.ask(&query(1, name, A));
        assert_eq!(ttls(&bench.reply()), [cached]);
    }
    // A time to live with its most significant bit set is 0 (RFC 2181 §8).
    let mut bench = ForwarderBench::new();
    bench.resolve("d.example", 1 << 31 | 300);
    bench.ask(&query(1, "d.example", A));
    bench.sent();
}

#[test]
fn long_replies_are_truncated_for_datagrams_only() {
    let mut bench = ForwarderBench::new();
    bench.ask(&query(1, "www.example", A));
    let sent = bench.sent();
    let many: Vec<_> = (0..50).map(|_| address(300)).collect();
    bench.answer(&sent, &answer(&sent.message, 0, &many, &[]));
    let reply = bench.reply();
    assert_eq!((reply[2] & 2, counts(&reply)), (2, [0; 3]));
    assert!(reply.len() <= 512);
    bench.ask(&edns_query(2, "www.example", A, 4096, 0));
    let reply = bench.reply();
    assert_eq!((reply[2] & 2, counts(&reply)), (0, [50, 0, 1]));
    let stream = DnsClient { path: ReplyPath::Stream(1), ..datagram_client("10.1.0.2") };
    bench.forwarder.on_query(bench.now, stream, &query(3, "www.example", A));
    assert_eq!(counts(&bench.reply()), [50, 0, 0]);
}

#[test]
fn edns_fields_reach_both_sides() {
    let mut bench = ForwarderBench::new();
    bench.ask(&edns_query(1, "www.example", A, 4096, 0x8000));
    let sent = bench.sent();
    let opt = &sent.message[query_end(&sent.message)..];
    assert_eq!((&opt[3..5], opt[7]), (&1232u16.to_be_bytes()[..], 0x80), "size, and DO");
    let mut message = answer(&sent.message, 0, &[address(300)], &[]);
    message[3] |= 0x20;
    // An extended response code: BADVERS has the upper bits 1.
    bench.answer(&sent, &message);
    let reply = bench.reply();
    assert_eq!((counts(&reply), reply[3] & 0x20), ([1, 0, 1], 0x20));
    assert_eq!(reply[reply.len() - 11 + 7], 0x80);
    // Without DO, the question has an entry of its own.
    bench.ask(&query(2, "www.example", A));
    let sent = bench.sent();
    let mut message = answer(&sent.message, 0, &[address(300)], &[]);
    message[3] |= 0x20;
    bench.answer(&sent, &message);
    assert_eq!(bench.reply()[3] & 0x20, 0, "the client has not asked for AD");
}

#[test]
fn clients_have_a_share_of_pending_queries() {
    let config =
        ForwarderConfig { pending_max: 5, pending_per_client: 2, ..ForwarderConfig::default() };
    let mut bench = ForwarderBench::with(config);
    let ask = |bench: &mut ForwarderBench, client: &str, n: u16| {
        let message = query(n, &format!("n{n}.example"), A);
        bench.forwarder.on_query(bench.now, datagram_client(client), &message);
        let (sent, replies) = bench.actions();
        assert_eq!(sent.len() + replies.len(), 1);
        replies.first().map(|reply| code(reply))
    };
    // Addresses of one network have half of the places.
    assert_eq!(ask(&mut bench, "fd00::1", 1), None);
    assert_eq!(ask(&mut bench, "fd00::2", 2), None);
    assert_eq!(ask(&mut bench, "fd00::3", 3), Some(5));
    assert_eq!(ask(&mut bench, "fd00:0:0:1::1", 4), None);
    assert_eq!(ask(&mut bench, "10.1.0.2", 5), None);
    assert_eq!(ask(&mut bench, "10.1.0.3", 6), None);
    assert_eq!(ask(&mut bench, "10.1.0.4", 7), Some(5), "all clients together");
    assert_eq!(bench.counter("refused"), 2);
    bench.pass(60.0);
    bench.pass(60.0);
    bench.pass(60.0);
    bench.pass(60.0);
    assert_eq!(bench.counter("waiting"), 0);
    bench.actions();
    assert_eq!(ask(&mut bench, "fd00::3", 8), None);
}

/// The hosts of a link have the same first 64 bits of their IPv6 addresses.
#[test]
fn one_ipv6_host_does_not_exhaust_the_share_of_its_link() {
    let config =
        ForwarderConfig { pending_max: 8, pending_per_client: 2, ..ForwarderConfig::default() };
    let mut bench = ForwarderBench::with(config);
    let refused = [("fe80::1", 0), ("fe80::1", 0), ("fe80::1", 1), ("fe80::2", 0)];
    for (n, (client, expected)) in refused.into_iter().enumerate() {
        let message = query(n as u16, &format!("n{n}.example"), A);
        bench.forwarder.on_query(bench.now, datagram_client(client), &message);
        assert_eq!(bench.actions().1.len(), expected, "{client}");
    }
}

#[test]
fn queries_of_a_closed_connection_are_forgotten() {
    let mut bench = ForwarderBench::new();
    let stream = DnsClient { path: ReplyPath::Stream(5), ..datagram_client("10.1.0.2") };
    bench.forwarder.on_query(bench.now, stream, &query(1, "www.example", A));
    let sent = bench.sent();
    bench.forwarder.on_stream_closed(5);
    assert_eq!(bench.counter("waiting"), 0);
    // The exchange has ended. Otherwise clients that close their connections exceed the limit.
    bench.answer(&sent, &answer(&sent.message, 0, &[address(300)], &[]));
    assert_eq!(bench.actions().1.len(), 0);
    bench.ask(&query(2, "www.example", A));
    bench.sent();
}

#[test]
fn the_cache_evicts_what_was_not_used() {
    let config = ForwarderConfig { cache_entries: 2, ..ForwarderConfig::default() };
    let mut bench = ForwarderBench::with(config);
    bench.resolve("a.example", 300);
    bench.resolve("b.example", 300);
    bench.ask(&query(1, "a.example", A));
    bench.reply();
    bench.resolve("c.example", 300);
    bench.ask(&query(2, "a.example", A));
    bench.reply();
    bench.ask(&query(3, "b.example", A));
    bench.sent();
    assert_eq!((bench.counter("cache_entries"), bench.counter("cache_evicted")), (2, 1));
    assert_eq!(bench.forwarder.flush(), 2);
    assert_eq!((bench.counter("cache_entries"), bench.counter("cache_bytes")), (0, 0));
}

#[test]
fn the_cache_has_a_limit_of_bytes() {
    let config = ForwarderConfig { cache_bytes: 1000, ..ForwarderConfig::default() };
    let mut bench = ForwarderBench::with(config);
    for n in 0..100 {
        bench.resolve(&format!("n{n}.example"), 300);
        assert!(bench.counter("cache_bytes") <= 1000);
    }
    assert!((2..9).contains(&bench.counter("cache_entries")));
    // An answer above the limit is not cached, and evicts none.
    bench.ask(&query(1, "big.example", A));
    let sent = bench.sent();
    let many: Vec<_> = (0..60).map(|_| address(300)).collect();
    bench.answer(&sent, &answer(&sent.message, 0, &many, &[]));
    bench.reply();
    assert!(bench.counter("cache_entries") >= 2);
}

#[test]
fn invalid_queries_are_refused() {
    let mut bench = ForwarderBench::new();
    let changed = |at: usize, value: u8| {
        let mut message = query(7, "www.example", A);
        message[at] = value;
        message
    };
    let class = query(7, "www.example", A).len() - 1;
    for (message, expected) in [
        (changed(2, 0x29), 4),
        (changed(5, 2), 1),
        (changed(5, 0), 1),
        (changed(7, 1), 1),
        (changed(9, 1), 1),
        (changed(11, 1), 1),
        (changed(12, 0xc0), 1),
        (changed(class, 3), 5),
        (changed(2, 0), 5),
        (query(7, "www.example", 252), 4),
        (query(7, "www.example", 251), 4),
        (query(7, "www.example", OPT), 1),
        (query(7, "www.example", A)[..20].to_vec(), 1),
    ] {
        bench.ask(&message);
        let reply = bench.reply();
        assert_eq!((&reply[..2], code(&reply)), (&[0, 7][..], expected), "{message:?}");
    }
    // Version 1 of EDNS: BADVERS is 16.
    let mut message = edns_query(7, "www.example", A, 1232, 0);
    let at = message.len() - 11 + 6;
    message[at] = 1;
    bench.ask(&message);
    let reply = bench.reply();
    assert_eq!((code(&reply), reply[reply.len() - 11 + 5], counts(&reply)), (0, 1, [0, 0, 1]));
    // Messages that are no queries get no reply, because two servers could answer each other.
    bench.ask(&changed(2, 0x81));
    bench.ask(&[0; 11]);
    let (sent, replies) = bench.actions();
    assert!(sent.is_empty() && replies.is_empty());
}
