//! Upstream servers that fail, and answers that do not match.

use super::*;

#[test]
fn truncated_answers_are_repeated_over_tcp() {
    let mut bench = ForwarderBench::new();
    bench.ask(&query(1, "www.example", A));
    let sent = bench.sent();
    let mut message = answer(&sent.message, 0, &[], &[]);
    message[2] |= 2;
    bench.answer(&sent, &message);
    let again = bench.sent();
    assert_eq!((again.protocol, again.server), (Protocol::Tcp, sent.server));
    assert_ne!(again.message[..2], sent.message[..2], "the identifier is another one");
    bench.answer(&again, &answer(&again.message, 0, &[address(300)], &[]));
    assert_eq!(counts(&bench.reply()), [1, 0, 0]);
    assert_eq!(bench.counter("sent_tcp"), 1);
}

#[test]
fn answers_to_another_question_are_ignored() {
    let mut bench = ForwarderBench::new();
    bench.ask(&query(1, "www.example", A));
    let sent = bench.sent();
    let right = answer(&sent.message, 0, &[address(300)], &[]);
    let changed = |at: usize, value: u8| {
        let mut message = right.clone();
        message[at] = value;
        message
    };
    let kind = query_end(&right) - 3;
    let wrong = [
        changed(0, !right[0]),
        changed(2, 0x01),
        changed(2, 0xa9),
        changed(5, 0),
        changed(13, b'v'),
        changed(kind, 28),
        right[..20].to_vec(),
    ];
    for message in &wrong {
        bench.answer(&sent, message);
    }
    let (none, replies) = bench.actions();
    assert!(none.is_empty() && replies.is_empty());
    assert_eq!(bench.counter("mismatches"), wrong.len() as u64);
    // After the eighth forged answer, the question is repeated over TCP.
    bench.answer(&sent, &wrong[0]);
    let again = bench.sent();
    assert_eq!(again.protocol, Protocol::Tcp);
    // The answer to the earlier message comes too late.
    bench.answer(&sent, &right);
    assert_eq!(bench.actions().1.len(), 0);
    bench.answer(&again, &answer(&again.message, 0, &[address(300)], &[]));
    bench.reply();
}

#[test]
fn the_next_server_is_asked_after_a_timeout() {
    let mut bench = ForwarderBench::new();
    bench.ask(&query(1, "www.example", A));
    let first = bench.sent();
    bench.pass(1.4);
    assert_eq!(bench.actions().0.len(), 0);
    bench.pass(0.1);
    let second = bench.sent();
    assert_eq!(second.server.to_string(), SERVERS[1]);
    bench.answer(&second, &answer(&second.message, 0, &[address(300)], &[]));
    bench.reply();
    bench.answer(&first, &answer(&first.message, 0, &[address(300)], &[]));
    assert_eq!(bench.actions().1.len(), 0);
}

#[test]
fn without_an_answer_the_client_learns_the_failure() {
    let mut bench = ForwarderBench::new();
    bench.ask(&query(1, "www.example", A));
    let mut asked = vec![bench.sent().server.to_string()];
    for _ in 0..3 {
        bench.pass(1.5);
        asked.push(bench.sent().server.to_string());
    }
    assert_eq!(asked, [SERVERS[0], SERVERS[1], SERVERS[0], SERVERS[1]]);
    bench.pass(1.5);
    assert_eq!(code(&bench.reply()), 2);
    // The failure is remembered for five seconds.
    bench.pass(4.9);
    bench.ask(&query(2, "www.example", A));
    assert_eq!(code(&bench.reply()), 2);
    bench.pass(0.2);
    bench.ask(&query(3, "www.example", A));
    bench.sent();
}

#[test]
fn failed_servers_are_asked_last_until_their_retry_time() {
    let mut bench = ForwarderBench::new();
    for n in 0..3 {
        bench.ask(&query(n, &format!("n{n}.example"), A));
        assert_eq!(bench.sent().server.to_string(), SERVERS[0]);
        bench.pass(1.5);
        let second = bench.sent();
        bench.answer(&second, &answer(&second.message, 0, &[address(300)], &[]));
        bench.reply();
    }
    assert_eq!(bench.counter("servers_failed"), 1);
    let next = |bench: &mut ForwarderBench, n: u16| {
        bench.ask(&query(n, &format!("n{n}.example"), A));
        bench.sent()
    };
    let usual = next(&mut bench, 10);
    assert_eq!(usual.server.to_string(), SERVERS[1]);
    bench.answer(&usual, &answer(&usual.message, 0, &[address(300)], &[]));
    bench.reply();
    bench.pass(10.0);
    // A single query finds out whether the server is back.
    let probe = next(&mut bench, 11);
    assert_eq!(probe.server.to_string(), SERVERS[0]);
    assert_eq!(next(&mut bench, 12).server.to_string(), SERVERS[1]);
    bench.answer(&probe, &answer(&probe.message, 0, &[address(300)], &[]));
    bench.reply();
    assert_eq!(bench.counter("servers_failed"), 0);
    assert_eq!(next(&mut bench, 13).server.to_string(), SERVERS[0]);
}

#[test]
fn a_failure_of_one_server_is_not_that_of_all() {
    let mut bench = ForwarderBench::new();
    bench.ask(&query(1, "www.example", A));
    let first = bench.sent();
    bench.answer(&first, &answer(&first.message, 2, &[], &[]));
    let second = bench.sent();
    assert_ne!(first.server, second.server);
    bench.answer(&second, &answer(&second.message, 5, &[], &[]));
    assert_eq!(code(&bench.reply()), 5, "the code of the last server");
    assert_eq!(bench.counter("server_failures"), 2);
    // A server that cannot be reached is left at once.
    bench.ask(&query(2, "b.example", A));
    let first = bench.sent();
    bench.forwarder.on_failure(bench.now, first.exchange);
    assert_ne!(bench.sent().server, first.server);
}

#[test]
fn servers_without_edns_are_asked_without_it() {
    let mut bench = ForwarderBench::new();
    for with_question in [true, false] {
        bench.ask(&query(1, &format!("{with_question}.example"), A));
        let sent = bench.sent();
        if with_question {
            assert_eq!(counts(&sent.message), [0, 0, 1]);
            let mut refusal = sent.message[..12].to_vec();
            (refusal[2], refusal[3], refusal[5], refusal[11]) = (0x81, 0x81, 0, 0);
            bench.answer(&sent, &refusal);
            let plain = bench.sent();
            assert_eq!((counts(&plain.message), plain.server), ([0; 3], sent.server));
            bench.answer(&plain, &answer(&plain.message, 0, &[address(300)], &[]));
            bench.reply();
        } else {
            assert_eq!(counts(&sent.message), [0; 3], "the server is known");
        }
    }
}

/// A server may reject the type of a question, and supports EDNS(0) nevertheless.
#[test]
fn rejected_questions_do_not_disable_edns() {
    let mut bench = ForwarderBench::new();
    bench.ask(&query(1, "www.example", 253));
    let sent = bench.sent();
    bench.answer(&sent, &answer(&sent.message, 4, &[], &[]));
    let plain = bench.sent();
    assert_eq!((counts(&plain.message), plain.server), ([0; 3], sent.server));
    bench.answer(&plain, &answer(&plain.message, 4, &[], &[]));
    let second = bench.sent();
    assert_ne!(second.server, sent.server);
    assert_eq!(counts(&second.message), [0, 0, 1]);
    bench.ask(&query(2, "b.example", A));
    let next = bench.sent();
    assert_eq!((counts(&next.message), next.server), ([0, 0, 1], sent.server));
}

#[test]
fn servers_are_replaced() {
    let mut bench = ForwarderBench::new();
    bench.forwarder.set_servers(&[]);
    bench.ask(&query(1, "www.example", A));
    assert_eq!(code(&bench.reply()), 2);
    // The failure is not remembered, because a lease may bring servers.
    bench.forwarder.set_servers(&["198.51.100.1:53".parse().expect("an address")]);
    bench.ask(&query(2, "www.example", A));
    assert_eq!(bench.sent().server.to_string(), "198.51.100.1:53");
}
