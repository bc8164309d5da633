//! Hostile clients and servers.

use proptest::collection::vec;
use proptest::prelude::*;

use super::*;

/// Returns an answer whose first record has this owner.
fn with_owner(sent: &UpstreamMessage, owner: &[u8]) -> Vec<u8> {
    let record = TestRecord { owner: owner.to_vec(), ..address(300) };
    answer(&sent.message, 0, &[record], &[])
}

#[test]
fn names_with_loops_are_malformed() {
    let long = [&[63; 64][..]; 5].concat();
    for owner in [
        &[0xc0, 29][..],
        &[0xc0, 200],
        &[0xff, 0xff],
        &[0xc0, 0],
        &[1, b'a', 0xc0, 29],
        &[0x40, 0],
        &[0x80],
        &long,
    ] {
        let mut bench = ForwarderBench::new();
        bench.ask(&query(1, "www.example", A));
        let first = bench.sent();
        assert_eq!(query_end(&first.message), 29);
        bench.answer(&first, &with_owner(&first, owner));
        let second = bench.sent();
        assert_ne!(first.server, second.server, "{owner:?}");
        bench.answer(&second, &with_owner(&second, owner));
        assert_eq!(code(&bench.reply()), 2);
        assert_eq!(bench.counter("malformed"), 2);
    }
}

/// Many names, each with thousands of pointers, would occupy the thread for a long time.
#[test]
fn names_with_too_many_pointers_are_rejected() {
    for (pointers, is_valid) in [(127u16, true), (128, false)] {
        // A root label at 26, and pointers that each refer to the position before.
        let mut message = vec![0; 27];
        for n in 0..pointers {
            let target = if n == 0 { 26 } else { 25 + 2 * n };
            message.extend((0xc000 | target).to_be_bytes());
        }
        let last = message.len() - 2;
        assert_eq!(crate::records::name_end(&message, last).is_some(), is_valid, "{pointers}");
    }
}

#[test]
fn a_name_of_the_longest_length_is_forwarded() {
    let label = "a".repeat(61);
    let name = format!("{label}.{label}.{label}.{label}.aaaaa");
    let mut bench = ForwarderBench::new();
    bench.resolve(&name, 300);
    bench.ask(&query(1, &name, A));
    bench.reply();
    let mut long = query(1, &name, A);
    // Exceed the maximum length of a name by one byte.
    long.splice(12..13, [62, b'a']);
    bench.ask(&long);
    assert_eq!(code(&bench.reply()), 1);
}

/// Records and counts of an answer that may be wrong.
fn mutated() -> impl Strategy<Value = (Vec<(usize, u8)>, usize)> {
    (vec((0..200usize, any::<u8>()), 0..6), 0..400usize)
}

proptest! {
    #[test]
    fn any_message_of_a_client_gets_at_most_one_reply(message in vec(any::<u8>(), 0..300)) {
        let mut bench = ForwarderBench::new();
        bench.ask(&message);
        let (sent, replies) = bench.actions();
        prop_assert!(sent.len() + replies.len() <= 1);
    }

    #[test]
    fn changed_queries_get_replies_that_can_be_parsed((changes, len) in mutated()) {
        let mut message = edns_query(7, "www.example", A, 1232, 0x8000);
        for (at, value) in changes {
            let end = message.len();
            message[at % end] = value;
        }
        message.truncate(len.max(1));
        let mut bench = ForwarderBench::new();
        bench.ask(&message);
        let (_, replies) = bench.actions();
        for reply in replies {
            prop_assert_eq!(&reply[..2], &message[..2]);
            prop_assert!(reply[2] & 0x80 != 0 && reply.len() <= 1232);
        }
    }

    /// Any answer leads to a valid reply, at the latest after the servers were asked four times.
    #[test]
    fn changed_answers_lead_to_a_reply((changes, len) in mutated()) {
        let mut bench = ForwarderBench::new();
        bench.ask(&query(7, "www.example", A));
        let mut replies = Vec::new();
        for _ in 0..40 {
            let (sent, more) = bench.actions();
            replies.extend(more);
            for sent in sent {
                let authority = [soa(300, 60)];
                let mut message = answer(&sent.message, 0, &[address(300), address(9)], &authority);
                for (at, value) in &changes {
                    let end = message.len();
                    message[at % end] = *value;
                }
                message.truncate(len.max(1));
                bench.answer(&sent, &message);
            }
            bench.pass(1.0);
        }
        prop_assert_eq!(replies.len(), 1);
        let reply = &replies[0];
        prop_assert_eq!((&reply[..2], query_end(reply)), (&[0, 7][..], 29));
        ttls(reply);
        // The cache gives an answer as well, or the servers are asked again.
        bench.ask(&query(8, "www.example", A));
        let (sent, replies) = bench.actions();
        prop_assert_eq!(sent.len() + replies.len(), 1);
        replies.iter().for_each(|reply| drop(ttls(reply)));
    }

    #[test]
    fn any_bytes_of_a_server_are_ignored(messages in vec(vec(any::<u8>(), 0..80), 0..7)) {
        let mut bench = ForwarderBench::new();
        bench.ask(&query(7, "www.example", A));
        let sent = bench.sent();
        for message in &messages {
            bench.answer(&sent, message);
        }
        let (more, replies) = bench.actions();
        prop_assert!(more.is_empty() && replies.is_empty());
    }
}
