//! Tests with correct and with malformed answers.

use super::*;

fn question(name: &str, kind: u16) -> Question {
    Question { name: Name::new(name.as_bytes(), b"").unwrap(), kind }
}

/// Returns an answer with the given records. Each is an owner (an offset in the message, or a
/// name), a type and data.
fn answer(asked: &Question, records: &[(&str, u16, Vec<u8>)]) -> Vec<u8> {
    let mut message = asked.message(7, false);
    (message[2], message[3], message[7]) = (0x81, 0x80, records.len() as u8);
    for (owner, kind, data) in records {
        match owner {
            &"" => message.extend([0xc0, HEADER as u8]),
            owner => message.extend(&question(owner, 1).name.0),
        }
        message.extend(kind.to_be_bytes());
        message.extend([0, 1, 0, 0, 0, 60]);
        message.extend((data.len() as u16).to_be_bytes());
        message.extend(data);
    }
    message
}

fn cname(to: &str) -> Vec<u8> {
    question(to, 1).name.0
}

#[test]
fn aliases_lead_to_addresses_in_any_order() {
    let asked = question("www.example", A);
    let records = [
        ("end.example", A, vec![192, 0, 2, 7]),
        ("mid.example", CNAME, cname("end.example")),
        ("other.example", A, vec![192, 0, 2, 66]),
        ("", CNAME, cname("mid.example")),
    ];
    let got = read(&answer(&asked, &records), 7, &asked).unwrap();
    assert_eq!(got.names, ["www.example", "mid.example", "end.example"]);
    assert_eq!(got.addresses, [IpAddr::from([192, 0, 2, 7])]);
    assert_eq!(got.ttl, 60);
}

#[test]
fn answers_to_other_questions_are_left() {
    let asked = question("www.example", A);
    let good = answer(&asked, &[("", A, vec![192, 0, 2, 7])]);
    assert!(read(&good, 7, &asked).is_some());
    assert!(read(&good, 7, &question("WWW.Example", A)).is_some());
    assert_eq!(read(&good, 8, &asked), None);
    assert_eq!(read(&good, 7, &question("www.example", AAAA)), None);
    assert_eq!(read(&good, 7, &question("www.examples", A)), None);
    let mut no_response = good;
    no_response[2] &= 0x7f;
    assert_eq!(read(&no_response, 7, &asked), None);
}

/// Tests that addresses are ignored, as in glibc, if the answer says that the name does not exist.
#[test]
fn records_of_a_name_that_does_not_exist_are_left() {
    let asked = question("www.example", A);
    let mut message = answer(&asked, &[("", A, vec![192, 0, 2, 7])]);
    message[3] |= rcode::NAME_ERROR;
    let got = read(&message, 7, &asked).unwrap();
    assert_eq!((got.code, got.addresses.len()), (rcode::NAME_ERROR, 0));
}

#[test]
fn servers_that_know_nothing_are_lame() {
    let asked = question("www.example", A);
    let mut message = answer(&asked, &[]);
    for (high, low, lame) in [(0x81, 0x80, false), (0x85, 0, false), (0x81, 0, true)] {
        (message[2], message[3]) = (high, low);
        assert_eq!(read(&message, 7, &asked).unwrap().lame, lame, "{high:x} {low:x}");
    }
}

#[test]
fn chains_and_pointers_end() {
    let asked = question("a.example", A);
    let circle = [("", CNAME, cname("b.example")), ("b.example", CNAME, cname("a.example"))];
    assert_eq!(read(&answer(&asked, &circle), 7, &asked), None);
    let itself = [("a.example", A, vec![1, 2, 3, 4])];
    let mut message = answer(&asked, &itself);
    let owner = asked.message(7, false).len();
    message.splice(owner..owner + asked.name.0.len(), [0xc0, owner as u8]);
    assert_eq!(read(&message, 7, &asked), None);
}

#[test]
fn names_that_are_no_hosts_are_left_out() {
    let asked = question("7.2.0.192.in-addr.arpa", PTR);
    let bad = b"\x07$(evil)\x07example\0".to_vec();
    let records = [("", PTR, bad.clone()), ("", PTR, cname("good.example"))];
    assert_eq!(read(&answer(&asked, &records), 7, &asked).unwrap().hosts, ["good.example"]);
    let asked = question("www.example", A);
    let records = [("", CNAME, bad)];
    assert!(read(&answer(&asked, &records), 7, &asked).unwrap().names.is_empty());
}

#[test]
fn names_have_limits() {
    let longest = format!("{0}.{0}.{0}.{1}", "a".repeat(63), "b".repeat(61));
    assert!(Name::new(longest.as_bytes(), b"").is_some());
    assert_eq!(Name::new(longest.as_bytes(), b"c"), None);
    for bad in ["", ".", "a..b", &"a".repeat(64), "a\\.b"] {
        assert_eq!(Name::new(bad.as_bytes(), b""), None, "{bad}");
    }
    assert_eq!(Name::new(b"a", b"b.c."), Name::new(b"a.b.c.", b""));
    let v6 = Name::of_address("2001:db8::7".parse().unwrap()).host().unwrap();
    assert!(v6.starts_with("7.0.0.0.") && v6.ends_with(".8.b.d.0.1.0.0.2.ip6.arpa"), "{v6}");
}

/// Parses each prefix of an answer, and the answer with each of its bytes changed.
#[test]
fn no_bytes_lead_to_a_panic() {
    let asked = question("www.example", A);
    let records = [("", CNAME, cname("b.example")), ("b.example", A, vec![192, 0, 2, 7])];
    let whole = answer(&asked, &records);
    for end in 0..whole.len() {
        assert_eq!(read(&whole[..end], 7, &asked), None);
        for value in 0..=255 {
            let mut changed = whole.clone();
            changed[end] = value;
            let _ = read(&changed, 7, &asked);
        }
    }
}
