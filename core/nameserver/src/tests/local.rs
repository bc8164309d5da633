//! Local names and special-use names.

use towpath_dns::{AAAA, PTR};

use super::*;
use crate::LeasedName;

fn names() -> LocalNames {
    let host = |address: &str, name: &str| (address.parse().expect("an address"), name.to_owned());
    let hosts = [
        host("10.1.0.5", "nas"),
        host("fd00::5", "NAS"),
        host("192.0.2.9", "printer.office.example"),
    ];
    LocalNames::new(Name::new(b"home.arpa", b""), &hosts)
}

fn lease(name: &str, last: u8, seconds: u64) -> LeasedName {
    let until = START + Duration::from_secs(seconds);
    LeasedName { host_name: name.to_owned(), address: [10, 1, 0, last].into(), until }
}

/// Asks a question that must not be sent upstream.
fn local(bench: &mut ForwarderBench, name: &str, kind: u16) -> Vec<u8> {
    bench.ask(&query(1, name, kind));
    bench.reply()
}

/// Returns the data of the last record of a reply.
fn data(reply: &[u8], len: usize) -> &[u8] {
    &reply[reply.len() - len..]
}

#[test]
fn static_names_have_addresses_and_reverse_names() {
    let mut bench = ForwarderBench::with_names(ForwarderConfig::default(), names());
    let reply = local(&mut bench, "nas.home.arpa", A);
    assert_eq!((counts(&reply), data(&reply, 4)), ([1, 0, 0], &[10, 1, 0, 5][..]));
    assert_eq!(counts(&local(&mut bench, "Nas.Home.ARPA", AAAA)), [1, 0, 0]);
    assert_eq!(counts(&local(&mut bench, "nas.home.arpa", 255)), [2, 0, 0]);
    let reply = local(&mut bench, "5.0.1.10.in-addr.arpa", PTR);
    let name = Name::new(b"nas.home.arpa", b"").expect("a name");
    assert_eq!(data(&reply, name.wire().len()), name.wire());
    assert_eq!(counts(&local(&mut bench, "printer.office.example", A)), [1, 0, 0]);
    assert_eq!(counts(&local(&mut bench, "9.2.0.192.in-addr.arpa", PTR)), [1, 0, 0]);
    // The name has no records of another type, and no other name is in the domain.
    let reply = local(&mut bench, "nas.home.arpa", 15);
    assert_eq!((code(&reply), counts(&reply)), (0, [0, 1, 0]));
    let reply = local(&mut bench, "printer.office.example", AAAA);
    assert_eq!((code(&reply), counts(&reply)), (0, [0, 1, 0]));
    let reply = local(&mut bench, "tv.home.arpa", A);
    assert_eq!((code(&reply), counts(&reply), ttls(&reply)), (3, [0, 1, 0], vec![60]));
    assert_eq!(code(&local(&mut bench, "home.arpa", A)), 0);
    assert_eq!(bench.counter("local"), 10);
}

#[test]
fn names_of_leases_end_with_the_lease() {
    let mut bench = ForwarderBench::with_names(ForwarderConfig::default(), names());
    bench.forwarder.set_leases(vec![
        lease("laptop", 100, 30),
        lease("phone.lan", 101, 90),
        // The later lease has the name.
        lease("twin", 102, 40),
        lease("Twin", 103, 50),
        // A static name, and names that would mislead other hosts.
        lease("nas", 104, 90),
        lease("wpad", 105, 90),
        lease("-x", 106, 90),
        lease("", 107, 90),
    ]);
    let reply = local(&mut bench, "laptop.home.arpa", A);
    assert_eq!((data(&reply, 4), ttls(&reply)), (&[10, 1, 0, 100][..], vec![30]));
    let reply = local(&mut bench, "phone.home.arpa", A);
    assert_eq!((data(&reply, 4), ttls(&reply)), (&[10, 1, 0, 101][..], vec![60]));
    assert_eq!(data(&local(&mut bench, "twin.home.arpa", A), 4), [10, 1, 0, 103]);
    assert_eq!(data(&local(&mut bench, "nas.home.arpa", A), 4), [10, 1, 0, 5]);
    assert_eq!(code(&local(&mut bench, "wpad.home.arpa", A)), 3);
    assert_eq!(counts(&local(&mut bench, "100.0.1.10.in-addr.arpa", PTR)), [1, 0, 0]);
    assert_eq!(code(&local(&mut bench, "104.0.1.10.in-addr.arpa", PTR)), 3);
    bench.pass(30.0);
    assert_eq!(code(&local(&mut bench, "laptop.home.arpa", A)), 3);
    assert_eq!(code(&local(&mut bench, "100.0.1.10.in-addr.arpa", PTR)), 3);
    assert_eq!(counts(&local(&mut bench, "twin.home.arpa", A)), [1, 0, 0]);
}

#[test]
fn special_names_are_not_sent_upstream() {
    let mut bench = ForwarderBench::new();
    for (name, kind) in [
        ("a.invalid", A),
        ("test", A),
        ("printer.local", A),
        ("x.onion", A),
        ("_dns.resolver.arpa", 64),
        ("1.0.0.10.in-addr.arpa", PTR),
        ("1.1.31.172.in-addr.arpa", PTR),
        ("1.1.168.192.in-addr.arpa", PTR),
        ("1.1.254.169.in-addr.arpa", PTR),
        ("1.1.64.100.in-addr.arpa", PTR),
        (&format!("1{}.d.f.ip6.arpa", ".0".repeat(29)), PTR),
        (&format!("1{}.0.8.e.f.ip6.arpa", ".0".repeat(27)), PTR),
    ] {
        let reply = local(&mut bench, name, kind);
        let expected = if name == "test" { 0 } else { 3 };
        assert_eq!((code(&reply), counts(&reply)), (expected, [0, 1, 0]), "{name}");
    }
    let reply = local(&mut bench, "a.localhost", A);
    assert_eq!(data(&reply, 4), [127, 0, 0, 1]);
    assert_eq!(counts(&local(&mut bench, "localhost", AAAA)), [1, 0, 0]);
    let reply = local(&mut bench, "localhost", 15);
    assert_eq!((code(&reply), counts(&reply)), (0, [0, 1, 0]));
    // Addresses of the Internet, and the proof that home.arpa is not signed.
    for (name, kind) in [
        ("1.1.32.172.in-addr.arpa", PTR),
        ("1.1.128.100.in-addr.arpa", PTR),
        ("home.arpa", 43),
        ("notlocal", A),
    ] {
        bench.ask(&query(1, name, kind));
        bench.sent();
    }
}
