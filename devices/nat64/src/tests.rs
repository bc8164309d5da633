//! Tests the port with packets of both versions.

use core::net::{Ipv4Addr, Ipv6Addr};

use towpath_pool::{Batch, Pool, Port};
use towpath_wire::{IpProtocol, ipv4, ipv6};

use crate::port::{Nat64Config, Nat64Port, QUEUE_MAX};

const HOST: &str = "2001:db8::7";
const SERVER: &str = "64:ff9b::192.0.2.33";

struct Translator {
    port: Nat64Port,
    pool: Pool,
    now_ns: u64,
}

impl Translator {
    fn new(config: &str) -> Self {
        let config = Nat64Config::parse(config).expect("valid");
        let port = Nat64Port::new(&config, 1).expect("a pool");
        Self { port, pool: Pool::default(), now_ns: 1 }
    }

    fn send(&mut self, packet: &[u8]) {
        let mut batch = Batch::new();
        let mut sent = self.pool.take(packet.len());
        sent.push_back(packet.len()).expect("space").copy_from_slice(packet);
        batch.push_back(sent);
        assert_eq!(self.port.submit(self.now_ns, &mut self.pool, &mut batch), 1);
    }

    fn received(&mut self) -> Vec<Vec<u8>> {
        let mut batch = Batch::new();
        self.port.poll(self.now_ns, &mut self.pool, &mut batch, usize::MAX);
        batch.iter().map(|packet| packet.linear().to_vec()).collect()
    }

    fn counter(&self, name: &str) -> u64 {
        let all = self.port.counters();
        all[0].1.iter().find(|(known, _)| *known == name).expect(name).1
    }
}

fn packet_v6(src: &str, dst: &str) -> Vec<u8> {
    let mut packet = vec![0; ipv6::HEADER_LEN + 12];
    let header = ipv6::Header {
        traffic_class: 0,
        flow_label: 0,
        payload_len: 12,
        next_header: IpProtocol::UDP,
        hop_limit: 64,
        src: src.parse().expect(src),
        dst: dst.parse().expect(dst),
    };
    header.emit(&mut packet);
    packet[40..].copy_from_slice(&[0, 1, 0, 2, 0, 12, 7, 7, 1, 2, 3, 4]);
    packet
}

fn packet_v4(src: &str, dst: &str, len: usize, dont_fragment: bool) -> Vec<u8> {
    let mut packet = vec![0; ipv4::HEADER_LEN + len];
    let header = ipv4::Header {
        tos: 0,
        total_len: packet.len() as u16,
        ident: 5,
        dont_fragment,
        more_fragments: false,
        fragment_offset: 0,
        ttl: 64,
        protocol: IpProtocol::UDP,
        src: src.parse().expect(src),
        dst: dst.parse().expect(dst),
        options: ipv4::Options::EMPTY,
    };
    header.emit(&mut packet);
    packet[26..28].copy_from_slice(&[7, 7]);
    packet
}

#[test]
fn a_host_gets_an_address_and_answers() {
    let mut it = Translator::new("64:ff9b::/96");
    it.send(&packet_v4("192.0.2.33", "198.18.0.3", 20, false));
    assert_eq!((it.received().len(), it.counter("no_address")), (0, 1), "no host has the address");
    it.send(&packet_v6(HOST, SERVER));
    assert_eq!(it.port.next_timeout_ns(), Some(0));
    let [packet] = &it.received()[..] else { panic!("one packet") };
    let (header, _) = ipv4::Header::parse(packet).unwrap();
    assert_eq!(header.src, Ipv4Addr::new(198, 18, 0, 3));
    assert_eq!(header.dst, Ipv4Addr::new(192, 0, 2, 33));
    it.send(&packet_v4("192.0.2.33", "198.18.0.3", 20, false));
    let [packet] = &it.received()[..] else { panic!("one packet") };
    let (header, _) = ipv6::Header::parse(packet).unwrap();
    assert_eq!(header.src, SERVER.parse::<Ipv6Addr>().unwrap());
    assert_eq!(header.dst, HOST.parse::<Ipv6Addr>().unwrap());
    assert_eq!((it.counter("to_v4"), it.counter("to_v6"), it.counter("hosts")), (1, 1, 1));
    assert_eq!(it.port.next_timeout_ns(), None);
}

#[test]
fn long_packets_are_divided_if_routers_may_fragment_them() {
    let mut it = Translator::new("64:ff9b::/96");
    it.send(&packet_v6(HOST, SERVER));
    it.received();
    it.send(&packet_v4("192.0.2.33", "198.18.0.3", 1480, true));
    assert_eq!(it.received().iter().map(Vec::len).collect::<Vec<_>>(), [1520]);
    it.send(&packet_v4("192.0.2.33", "198.18.0.3", 1480, false));
    assert_eq!(it.received().iter().map(Vec::len).collect::<Vec<_>>(), [1280, 296]);
}

#[test]
fn packets_without_a_way_back_are_dropped() {
    let mut it = Translator::new("64:ff9b::/96");
    it.send(&packet_v6(HOST, SERVER));
    it.received();
    let cases = [
        // The server is an IPv6 host, or the sender has an embedded address.
        (packet_v6("2001:db8::8", "64:ff9b::198.18.0.2"), "hairpin"),
        (packet_v6(SERVER, "64:ff9b::192.0.2.1"), "hairpin"),
        (packet_v4("198.18.0.3", "198.18.0.9", 20, false), "hairpin"),
        (packet_v6(HOST, "2001:db8::9"), "no_address"),
        (packet_v6(HOST, "64:ff9b::10.0.0.1"), "no_address"),
        (packet_v6("fe80::1", SERVER), "no_address"),
        (packet_v6("::", SERVER), "no_address"),
        (packet_v4("10.0.0.1", "198.18.0.3", 20, false), "no_address"),
        (vec![0x60, 0, 0], "malformed"),
        (vec![0x15], "malformed"),
        (Vec::new(), "malformed"),
    ];
    for (packet, counter) in cases {
        let before = it.counter(counter);
        it.send(&packet);
        assert_eq!((it.received().len(), it.counter(counter)), (0, before + 1), "{packet:?}");
    }
    // The router's own ICMP errors return with another source, which the router accepts.
    it.send(&packet_v6("64:ff9b::198.18.0.1", SERVER));
    let [packet] = &it.received()[..] else { panic!("one packet") };
    assert_eq!(packet[12..16], [198, 18, 0, 2]);
    it.send(&packet_v4("198.18.0.1", "198.18.0.3", 20, false));
    let [packet] = &it.received()[..] else { panic!("one packet") };
    let (header, _) = ipv6::Header::parse(packet).unwrap();
    assert_eq!(header.src, "64:ff9b::198.18.0.2".parse::<Ipv6Addr>().unwrap());
    assert_eq!(it.counter("hosts"), 1);
}

#[test]
fn pool_and_queue_are_limited() {
    let mut it = Translator::new("2001:db8:64::/96=192.0.2.0/28");
    for n in 1..=4 {
        it.send(&packet_v6(&format!("2001:db8::{n}"), "2001:db8:64::198.51.100.1"));
    }
    assert_eq!((it.received().len(), it.counter("network_full")), (3, 1));
    for n in 1..=10 {
        it.send(&packet_v6(&format!("2001:db8:{n}::1"), "2001:db8:64::198.51.100.1"));
    }
    assert_eq!((it.received().len(), it.counter("pool_exhausted")), (9, 1));
    for _ in 0..QUEUE_MAX + 2 {
        it.send(&packet_v6("2001:db8::1", "2001:db8:64::198.51.100.1"));
    }
    assert_eq!((it.received().len(), it.counter("queue_full")), (QUEUE_MAX, 2));
}

#[test]
fn settings_are_read_as_they_are_written() {
    for text in ["64:ff9b::/96", "2001:db8::/32=192.0.2.0/24"] {
        let config = Nat64Config::parse(text).expect(text);
        assert_eq!(config.to_string(), text);
    }
    let config = Nat64Config::parse("64:ff9b::/96=198.18.0.0/16").unwrap();
    assert_eq!(config.to_string(), "64:ff9b::/96");
    let wrong = [
        ("64:ff9b::/95", "is not a prefix for translation"),
        ("64:ff9b::/96=192.0.2.0/31", "is not a pool of addresses"),
        ("64:ff9b::/96=192.0.2.1/24", "is not a pool of addresses"),
        ("64:ff9b::/96=10.0.0.0/16", "represents no private addresses"),
    ];
    for (text, wanted) in wrong {
        let error = Nat64Config::parse(text).expect_err(text);
        assert!(error.contains(wanted), "{text}: {error}");
    }
}
