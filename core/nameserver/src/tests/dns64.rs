//! Tests synthesized AAAA records.

use towpath_siit::TranslationPrefix;

use super::*;

const AAAA: u16 = 28;
const CNAME: u16 = 5;
const DNSSEC_OK: u16 = 0x8000;
/// 64:ff9b::192.0.2.80.
const EMBEDDED: [u8; 16] = [0, 0x64, 0xff, 0x9b, 0, 0, 0, 0, 0, 0, 0, 0, 192, 0, 2, 80];

fn bench() -> ForwarderBench {
    let dns64 = Some(TranslationPrefix::WELL_KNOWN);
    ForwarderBench::with(ForwarderConfig { dns64, ..ForwarderConfig::default() })
}

/// Returns an AAAA record of the name in the question.
fn address_v6(addr: &str) -> TestRecord {
    let data = addr.parse::<std::net::Ipv6Addr>().expect(addr).octets().to_vec();
    TestRecord { owner: vec![0xc0, 12], kind: AAAA, ttl: 300, data }
}

/// Returns the types and data of the answers in a reply.
fn answers_of(reply: &[u8]) -> Vec<(u16, Vec<u8>)> {
    let mut at = query_end(reply);
    let next = |_| {
        let place = crate::records::record(reply, at).expect("a record");
        at = place.end;
        (place.kind, reply[place.data_at..place.end].to_vec())
    };
    (0..counts(reply)[0]).map(next).collect()
}

/// Returns the type of the question in a message.
fn asked(message: &[u8]) -> u16 {
    let end = query_end(message);
    u16::from_be_bytes([message[end - 4], message[end - 3]])
}

#[test]
fn a_name_with_ipv4_addresses_gets_embedded_ones() {
    let mut it = bench();
    it.ask(&query(7, "www.example", AAAA));
    let first = it.sent();
    assert_eq!(asked(&first.message), AAAA);
    it.answer(&first, &answer(&first.message, 0, &[], &[soa(900, 60)]));
    let second = it.sent();
    assert_eq!(asked(&second.message), A);
    // An alias to a name whose end is a pointer, which moves to another place in the reply.
    let alias = [&[4][..], b"host", &[0xc0, 16]].concat();
    let alias = TestRecord { owner: vec![0xc0, 12], kind: CNAME, ttl: 500, data: alias };
    let mut target = address(400);
    target.owner = [&[4][..], b"host", &[0xc0, 16]].concat();
    it.answer(&second, &answer(&second.message, 0, &[alias, target], &[]));
    let reply = it.reply();
    assert_eq!((reply[0], reply[1], code(&reply), asked(&reply)), (0, 7, 0, AAAA));
    let target = [&[4][..], b"host", &[7], b"example", &[0]].concat();
    assert_eq!(answers_of(&reply), [(CNAME, target), (AAAA, EMBEDDED.to_vec())]);
    // The times to live do not exceed that of the answer without AAAA records.
    assert_eq!((ttls(&reply), it.counter("synthesized")), (vec![60, 60], 1));
    // A second client gets the answer from the cache, and A records are as they were.
    it.pass(10.0);
    it.ask(&query(8, "www.example", AAAA));
    assert_eq!(ttls(&it.reply()), [50, 50]);
    it.ask(&query(9, "www.example", A));
    assert_eq!(asked(&it.sent().message), A);
}

#[test]
fn a_name_with_ipv6_addresses_keeps_them() {
    let mut it = bench();
    it.ask(&query(7, "www.example", AAAA));
    let sent = it.sent();
    it.answer(&sent, &answer(&sent.message, 0, &[address_v6("2001:db8::1")], &[]));
    assert_eq!(answers_of(&it.reply()).len(), 1);
    // IPv4-mapped addresses are none.
    it.ask(&query(8, "mapped.example", AAAA));
    let sent = it.sent();
    it.answer(&sent, &answer(&sent.message, 0, &[address_v6("::ffff:192.0.2.1")], &[]));
    let sent = it.sent();
    it.answer(&sent, &answer(&sent.message, 0, &[address(400)], &[]));
    assert_eq!(answers_of(&it.reply()), [(AAAA, EMBEDDED.to_vec())]);
}

#[test]
fn a_name_without_addresses_keeps_its_answer() {
    let mut it = bench();
    it.ask(&query(7, "mx.example", AAAA));
    let sent = it.sent();
    it.answer(&sent, &answer(&sent.message, 0, &[], &[soa(900, 60)]));
    let sent = it.sent();
    // The well-known prefix represents no private addresses.
    let mut private = address(400);
    private.data = vec![10, 0, 0, 1];
    it.answer(&sent, &answer(&sent.message, 0, &[private], &[]));
    let reply = it.reply();
    assert_eq!((counts(&reply), code(&reply), asked(&reply)), ([0, 1, 0], 0, AAAA));
    it.ask(&query(8, "no.example", AAAA));
    let sent = it.sent();
    it.answer(&sent, &answer(&sent.message, 3, &[], &[soa(900, 60)]));
    assert_eq!(code(&it.reply()), 3, "a name that does not exist has no A records");
}

#[test]
fn a_failure_about_ipv6_is_none_about_ipv4() {
    let mut it = bench();
    it.ask(&query(7, "broken.example", AAAA));
    for _ in SERVERS {
        let sent = it.sent();
        assert_eq!(asked(&sent.message), AAAA);
        it.answer(&sent, &answer(&sent.message, 2, &[], &[]));
    }
    let sent = it.sent();
    assert_eq!(asked(&sent.message), A);
    it.answer(&sent, &answer(&sent.message, 0, &[address(900)], &[]));
    let reply = it.reply();
    assert_eq!((answers_of(&reply), ttls(&reply)), (vec![(AAAA, EMBEDDED.to_vec())], vec![600]));
    // Without an answer about A records, clients get the answer about AAAA records.
    it.ask(&query(8, "slow.example", AAAA));
    let sent = it.sent();
    it.answer(&sent, &answer(&sent.message, 0, &[], &[soa(900, 60)]));
    let mut replies = Vec::new();
    while replies.is_empty() {
        it.pass(2.0);
        replies = it.actions().1;
    }
    assert_eq!((code(&replies[0]), counts(&replies[0])), (0, [0, 1, 0]));
}

#[test]
fn a_client_that_validates_gets_no_embedded_addresses() {
    let mut it = bench();
    let mut validating = edns_query(7, "www.example", AAAA, 1232, DNSSEC_OK);
    validating[3] |= 0x10;
    it.ask(&validating);
    let sent = it.sent();
    it.answer(&sent, &answer(&sent.message, 0, &[], &[soa(900, 60)]));
    assert_eq!(counts(&it.reply())[..2], [0, 1]);
    // Without the bit CD the forwarder may answer, without the bit AD.
    it.ask(&edns_query(8, "www.example", AAAA, 1232, DNSSEC_OK));
    let sent = it.sent();
    it.answer(&sent, &answer(&sent.message, 0, &[], &[soa(900, 60)]));
    let sent = it.sent();
    let mut authentic = answer(&sent.message, 0, &[address(400)], &[]);
    authentic[3] |= 0x20;
    it.answer(&sent, &authentic);
    let reply = it.reply();
    assert_eq!((counts(&reply)[0], reply[3] & 0x20), (1, 0));
}

#[test]
fn many_addresses_are_cut_off_at_the_longest_message() {
    let mut it = bench();
    it.ask(&query(7, "many.example", AAAA));
    let sent = it.sent();
    it.answer(&sent, &answer(&sent.message, 0, &[], &[soa(900, 60)]));
    let sent = it.sent();
    let mut message = answer(&sent.message, 0, &[], &[]);
    let opt = message.split_off(query_end(&message));
    let count: u16 = 3000;
    (0..count).for_each(|_| message.extend(address(400).bytes()));
    message.extend(opt);
    message[6..8].copy_from_slice(&count.to_be_bytes());
    it.answer(&sent, &message);
    // The reply does not fit in a datagram, and the client repeats its query over TCP.
    let reply = it.reply();
    assert_eq!((counts(&reply)[0], reply[2] & 2), (0, 2));
}
