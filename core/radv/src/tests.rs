//! Tests of the sender by frames and times.

use core::net::Ipv6Addr;
use core::time::Duration;

use proptest::collection::vec;
use proptest::prelude::*;
use towpath_dns::Name;
use towpath_tcp::Instant;
use towpath_wire::ndp::{self, Envelope, Message, NdpOption, PrefixInfo, RouterAdvert};
use towpath_wire::{MacAddr, Prefix, icmpv6, ipv6};

use crate::{AdvertConfig, LinkAddresses, RouterAdvertiser, concerns};

const START: Instant = Instant(1_000_000_000);
const ROUTER: MacAddr = MacAddr([2, 0, 0, 0, 0, 1]);
const IP_AT: usize = 14;
const MESSAGE_AT: usize = IP_AT + 40;

fn config() -> AdvertConfig {
    AdvertConfig {
        mac: ROUTER,
        interval_max_s: 600,
        lifetime_s: 1800,
        valid_s: 5400,
        preferred_s: 2700,
        mtu: Some(1400),
        managed: false,
        other: true,
        servers: vec!["2001:db8::53".parse().expect("an address")],
        is_nameserver: true,
        search: vec![Name::new(b"home.arpa", b"").expect("a name")],
    }
}

fn addresses(all: &[&str]) -> LinkAddresses {
    let addresses = all.iter().map(|text| text.parse::<Prefix>().expect("a prefix")).collect();
    LinkAddresses { link_local: Some("fe80::1".parse().expect("an address")), addresses }
}

/// Returns a frame with a router solicitation of `fe80::2`.
fn solicitation() -> Vec<u8> {
    let source_ll = Some(MacAddr([2, 0, 0, 0, 0, 2]));
    let mut message = vec![0; ndp::MESSAGE_LEN_MAX];
    let len = Message::RouterSolicit { source_ll }.emit(&mut message);
    message.truncate(len);
    let (src, dst) = ("fe80::2".parse().expect("an address"), towpath_wire::addr::ALL_ROUTERS);
    icmpv6::fill_checksum(&mut message, src, dst);
    let mut frame = vec![0x33, 0x33, 0, 0, 0, 2, 2, 0, 0, 0, 0, 2, 0x86, 0xdd];
    frame.resize(MESSAGE_AT, 0);
    let header = ipv6::Header {
        traffic_class: 0,
        flow_label: 0,
        payload_len: message.len() as u16,
        next_header: towpath_wire::IpProtocol::ICMPV6,
        hop_limit: 255,
        src,
        dst,
    };
    header.emit(&mut frame[IP_AT..]);
    frame.extend(message);
    frame
}

/// Parses and validates the frame of an advertisement.
fn parse(frame: &[u8]) -> (RouterAdvert, Vec<PrefixInfo>) {
    let (ip, range) = ipv6::Header::parse(&frame[IP_AT..]).expect("a packet");
    let message = &frame[IP_AT..][range];
    assert!(icmpv6::checksum_ok(message, ip.src, ip.dst));
    let envelope = Envelope { src: ip.src, dst: ip.dst, hop_limit: ip.hop_limit };
    let (parsed, _) = Message::parse(message, &envelope).expect("a valid message");
    let Message::RouterAdvert(advert) = parsed else { panic!("{parsed:?}") };
    let prefixes = ndp::options(message).filter_map(|option| match option {
        Ok(NdpOption::PrefixInfo(info)) => Some(info),
        _ => None,
    });
    (advert, prefixes.collect())
}

/// Calls the sender at each of its times until `until`. Returns the frames with their times.
fn run(sender: &mut RouterAdvertiser, until: Instant) -> Vec<(Duration, Vec<u8>)> {
    let mut frames = Vec::new();
    while let Some(at) = sender.next_timeout().filter(|at| *at <= until) {
        sender.on_timeout(at);
        while let Some(frame) = sender.poll_frame() {
            frames.push((at.since(START), frame));
        }
    }
    frames
}

fn after(seconds: u64) -> Instant {
    START + Duration::from_secs(seconds)
}

#[test]
fn an_advertisement_has_the_configuration() {
    let mut sender = RouterAdvertiser::new(config(), 1);
    assert_eq!(sender.next_timeout(), None, "there is no address yet");
    sender.set_addresses(START, addresses(&["fd00:1::1/64", "10.1.0.1/24", "2001:db8::1/60"]));
    let frames = run(&mut sender, after(1));
    let [(_, frame)] = &frames[..] else { panic!("{frames:?}") };
    assert_eq!(frame[..14], [0x33, 0x33, 0, 0, 0, 1, 2, 0, 0, 0, 0, 1, 0x86, 0xdd]);
    let (advert, prefixes) = parse(frame);
    assert_eq!((advert.lifetime_s, advert.mtu, advert.source_ll), (1800, Some(1400), Some(ROUTER)));
    assert_eq!((advert.managed, advert.other, advert.hop_limit), (false, true, 64));
    let shown: Vec<_> = prefixes.iter().map(|it| (it.prefix, it.len, it.autonomous)).collect();
    let prefix = |text: &str| text.parse::<Ipv6Addr>().expect("an address");
    assert_eq!(shown, [(prefix("fd00:1::"), 64, true), (prefix("2001:db8::"), 60, false)]);
    assert!(prefixes.iter().all(|it| (it.valid_s, it.preferred_s) == (5400, 2700) && it.on_link));
    // The options for nameservers and search domains, with their lifetimes (RFC 8106 §5).
    let mut names = vec![25, 5, 0, 0, 0, 0, 7, 8];
    names.extend(prefix("fd00:1::1").octets());
    names.extend(prefix("2001:db8::53").octets());
    names.extend([31, 3, 0, 0, 0, 0, 7, 8]);
    names.extend(b"\x04home\x04arpa\x00\0\0\0\0\0");
    assert!(frame.ends_with(&names), "{frame:x?}");
}

#[test]
fn first_advertisements_follow_each_other_sooner() {
    let mut sender = RouterAdvertiser::new(config(), 1);
    sender.set_addresses(START, addresses(&["fd00:1::1/64"]));
    let times: Vec<_> = run(&mut sender, after(3600)).iter().map(|(at, _)| *at).collect();
    assert!(times[0] < Duration::from_millis(500), "{times:?}");
    for (n, pair) in times.windows(2).enumerate() {
        let seconds = (pair[1] - pair[0]).as_secs_f64();
        let expected = if n < 2 { 16.0..=16.0 } else { 200.0..=600.0 };
        assert!(expected.contains(&seconds), "{times:?}");
    }
    assert!(times.len() > 8);
}

#[test]
fn solicitations_are_answered_within_limits() {
    let mut sender = RouterAdvertiser::new(config(), 1);
    sender.on_frame(START, &solicitation(), false);
    assert_eq!(sender.next_timeout(), None, "there is no address yet");
    sender.set_addresses(START, addresses(&["fd00:1::1/64"]));
    run(&mut sender, after(100));
    assert!(concerns(&solicitation()));
    // A flood of solicitations gets an answer every three seconds.
    let mut times = Vec::new();
    for n in 0..100 {
        let now = after(100) + Duration::from_millis(100 * n);
        sender.on_frame(now, &solicitation(), false);
        times.extend(run(&mut sender, now).iter().map(|(at, _)| at.as_secs_f64()));
    }
    assert!(times[0] < 100.6 && (3..=4).contains(&times.len()), "{times:?}");
    assert!(times.windows(2).all(|pair| pair[1] - pair[0] >= 3.0), "{times:?}");
    assert_eq!(sender.counters().rx_solicitations, 101);
}

#[test]
fn invalid_solicitations_are_ignored() {
    let mut sender = RouterAdvertiser::new(config(), 1);
    sender.set_addresses(START, addresses(&["fd00:1::1/64"]));
    let changed = |at: usize, value: u8| {
        let mut frame = solicitation();
        frame[at] = value;
        frame
    };
    let wrong = [
        changed(IP_AT + 7, 254),
        changed(IP_AT + 6, 17),
        changed(MESSAGE_AT, 134),
        changed(MESSAGE_AT + 1, 1),
        changed(MESSAGE_AT + 2, !solicitation()[MESSAGE_AT + 2]),
        changed(MESSAGE_AT + 9, 0),
        solicitation()[..MESSAGE_AT + 4].to_vec(),
    ];
    wrong.iter().for_each(|frame| sender.on_frame(START, frame, false));
    assert_eq!(sender.counters().rx_solicitations, 0);
    // A checksum that the device has verified may be incomplete.
    sender.on_frame(START, &wrong[4], true);
    assert_eq!(sender.counters().rx_solicitations, 1);
}

#[test]
fn removed_prefixes_are_withdrawn() {
    let mut sender = RouterAdvertiser::new(config(), 1);
    sender.set_addresses(START, addresses(&["fd00:1::1/64", "fd00:2::1/64"]));
    run(&mut sender, after(100));
    sender.set_addresses(after(100), addresses(&["fd00:1::1/64"]));
    let frames = run(&mut sender, after(2000));
    let lifetimes =
        |frame: &[u8]| -> Vec<u32> { parse(frame).1.iter().map(|prefix| prefix.valid_s).collect() };
    assert!(frames[0].0 < Duration::from_secs(101));
    for (n, (_, frame)) in frames.iter().enumerate() {
        let expected = if n < 3 { vec![5400, 0] } else { vec![5400] };
        assert_eq!(lifetimes(frame), expected, "{n}");
    }
}

#[test]
fn the_last_advertisement_ends_the_default_route() {
    let mut sender = RouterAdvertiser::new(config(), 1);
    sender.stop();
    assert_eq!(sender.poll_frame(), None, "no host knows the router");
    sender.set_addresses(START, addresses(&["fd00:1::1/64"]));
    run(&mut sender, after(1));
    sender.stop();
    let frame = sender.poll_frame().expect("an advertisement");
    let (advert, prefixes) = parse(&frame);
    assert_eq!((advert.lifetime_s, prefixes.len(), sender.next_timeout()), (0, 1, None));
    let names_at = MESSAGE_AT + 16 + 8 + 8 + 32;
    assert_eq!(frame[names_at..names_at + 8], [25, 5, 0, 0, 0, 0, 0, 0]);
}

/// A router without a default route may be the nameserver of the hosts.
#[test]
fn the_last_advertisement_withdraws_nameservers_without_a_default_route() {
    let mut sender = RouterAdvertiser::new(AdvertConfig { lifetime_s: 0, ..config() }, 1);
    sender.set_addresses(START, addresses(&["fd00:1::1/64"]));
    let names_at = MESSAGE_AT + 16 + 8 + 8 + 32;
    let frames = run(&mut sender, after(1));
    assert_eq!(frames[0].1[names_at..names_at + 8], [25, 5, 0, 0, 0, 0, 7, 8]);
    sender.stop();
    let frame = sender.poll_frame().expect("an advertisement");
    assert_eq!(frame[names_at..names_at + 8], [25, 5, 0, 0, 0, 0, 0, 0]);
}

proptest! {
    #[test]
    fn any_frame_is_handled(frame in vec(any::<u8>(), 0..120), at in 0..120usize, value: u8) {
        let mut sender = RouterAdvertiser::new(config(), 1);
        sender.set_addresses(START, addresses(&["fd00:1::1/64"]));
        sender.on_frame(START, &frame, true);
        let mut changed = solicitation();
        let end = changed.len();
        changed[at % end] = value;
        sender.on_frame(START, &changed, true);
        sender.on_frame(START, &changed[..at % end], true);
        run(&mut sender, after(1000));
    }
}
