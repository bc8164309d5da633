//! Tests with in-memory captures.

use std::io::Cursor;

use proptest::prelude::*;
use towpath_pool::{Batch, Pool, Port};

use super::{Counters, Replay, ReplayError};

const S: u64 = 1_000_000_000;

/// Builds a pcap file from a magic number, a link type, and records of (seconds, fraction, bytes,
/// length).
fn pcap(magic: u32, link: u32, records: &[(u32, u32, &[u8], usize)]) -> Vec<u8> {
    let mut file = Vec::new();
    let mut put = |word: u32| file.extend_from_slice(&word.to_le_bytes());
    [magic, 4 << 16 | 2, 0, 0, 262_144, link].into_iter().for_each(&mut put);
    for (seconds, fraction, bytes, len) in records {
        for word in [*seconds, *fraction, bytes.len() as u32, *len as u32] {
            file.extend_from_slice(&word.to_le_bytes());
        }
        file.extend_from_slice(bytes);
    }
    file
}

const MICROS: u32 = 0xa1b2_c3d4;
const NANOS: u32 = 0xa1b2_3c4d;

/// Builds a pcapng block.
fn block(kind: u32, body: &[u8]) -> Vec<u8> {
    let padded = body.len().next_multiple_of(4);
    let len = (12 + padded) as u32;
    let mut block = [kind.to_le_bytes(), len.to_le_bytes()].concat();
    block.extend_from_slice(body);
    block.resize(8 + padded, 0);
    block.extend_from_slice(&len.to_le_bytes());
    block
}

fn section() -> Vec<u8> {
    let mut body = [0x1a2b_3c4d_u32.to_le_bytes(), 1_u32.to_le_bytes()].concat();
    body.extend_from_slice(&[0xff; 8]);
    block(0x0a0d_0d0a, &body)
}

/// Builds an interface block with a link type and times in units of 10⁻ⁿ s.
fn interface(link: u16, n: u8) -> Vec<u8> {
    let mut body = [link.to_le_bytes(), [0, 0]].concat();
    body.extend_from_slice(&0_u32.to_le_bytes());
    body.extend_from_slice(&[9, 0, 1, 0, n, 0, 0, 0, 0, 0, 0, 0]);
    block(1, &body)
}

fn enhanced(interface: u32, time: u64, bytes: &[u8]) -> Vec<u8> {
    let len = bytes.len() as u32;
    let words = [interface, (time >> 32) as u32, time as u32, len, len];
    let mut body: Vec<u8> = words.into_iter().flat_map(u32::to_le_bytes).collect();
    body.extend_from_slice(bytes);
    block(6, &body)
}

/// Builds an enhanced packet block with a comment.
fn commented(interface: u32, time: u64, bytes: &[u8], comment: &[u8]) -> Vec<u8> {
    let len = bytes.len() as u32;
    let words = [interface, (time >> 32) as u32, time as u32, len, len];
    let mut body: Vec<u8> = words.into_iter().flat_map(u32::to_le_bytes).collect();
    body.extend_from_slice(bytes);
    body.resize(body.len().next_multiple_of(4), 0);
    body.extend_from_slice(&[1, 0, comment.len() as u8, 0]);
    body.extend_from_slice(comment);
    body.resize(body.len().next_multiple_of(4), 0);
    body.extend_from_slice(&[0; 4]);
    block(6, &body)
}

struct World {
    replay: Replay,
    pool: Pool,
}

impl World {
    fn new(file: Vec<u8>) -> Self {
        let replay = Replay::new(Cursor::new(file)).expect("a capture");
        Self { replay, pool: Pool::default() }
    }

    /// Returns the packets received up to `now_ns`.
    fn at(&mut self, now_ns: u64) -> Vec<Vec<u8>> {
        let mut batch = Batch::new();
        self.replay.poll(now_ns, &mut self.pool, &mut batch, usize::MAX);
        let packets = batch.drain(..).map(|packet| {
            assert_eq!(packet.meta.arrival_ns, now_ns);
            let bytes = packet.linear().to_vec();
            self.pool.give(packet);
            bytes
        });
        packets.collect()
    }

    fn counters(&self) -> Counters {
        self.replay.stats().counters()
    }
}

#[test]
fn packets_come_as_far_apart_as_they_were_recorded() {
    let records: [(u32, u32, &[u8], usize); 4] = [
        (1000, 500_000, b"\x45a", 2),
        (1000, 500_000, b"\x45b", 2),
        (1002, 0, b"\x45c", 2),
        // The clock was set back, so the packet follows its predecessor immediately.
        (900, 0, b"\x45d", 2),
    ];
    let mut w = World::new(pcap(MICROS, 101, &records));
    assert_eq!(w.replay.next_timeout_ns(), Some(0));
    assert_eq!(w.at(7 * S), [b"\x45a", b"\x45b"]);
    assert_eq!(w.replay.next_timeout_ns(), Some(8_500_000_000));
    assert!(w.at(8_499_999_999).is_empty());
    assert_eq!(w.at(8_500_000_000), [b"\x45c", b"\x45d"]);
    assert_eq!(w.replay.next_timeout_ns(), None);
    assert!(w.replay.stats().has_ended());
    assert_eq!((w.counters().rx_packets, w.counters().rx_bytes), (4, 8));
    assert_eq!(w.pool.allocated(), 3);
}

#[test]
fn nanoseconds_and_both_sections_of_pcapng_are_told_apart() {
    let records: [(u32, u32, &[u8], usize); 2] = [(1, 0, b"\x45", 1), (1, 999, b"\x46", 1)];
    let mut w = World::new(pcap(NANOS, 228, &records));
    assert_eq!((w.at(0), w.replay.next_timeout_ns()), (vec![vec![0x45]], Some(999)));

    let ethernet = [&[0; 12][..], &[0x86, 0xdd], b"\x60"].concat();
    let tagged = [&[0; 12][..], &[0x81, 0, 0, 5, 8, 0], b"\x45"].concat();
    let arp = [&[0; 12][..], &[0x08, 0x06], b"arp"].concat();
    let mut simple = 1_u32.to_le_bytes().to_vec();
    simple.push(0x47);
    let file = [
        section(),
        interface(101, 9),
        interface(1, 6),
        enhanced(0, 5 * S, b"\x45"),
        enhanced(1, 5_000_001, &ethernet),
        enhanced(1, 5_000_002, &tagged),
        enhanced(1, 5_000_002, &arp),
        block(3, &simple),
        // A further section has its own interfaces, here of USB.
        section(),
        interface(220, 6),
        enhanced(0, 6_000_000, b"usb"),
    ];
    let mut w = World::new(file.concat());
    assert_eq!(w.at(0), [b"\x45"]);
    assert_eq!(w.at(1000), [b"\x60"]);
    assert_eq!(w.at(2000), [b"\x45", b"\x47"]);
    assert!(w.at(9 * S).is_empty() && w.replay.stats().has_ended());
    assert_eq!((w.counters().rx_not_ip, w.counters().rx_malformed), (2, 0));
}

#[test]
fn records_that_repeat_a_dropped_packet_are_passed_over() {
    let file = [
        section(),
        interface(101, 9),
        enhanced(0, 1, b"\x45a"),
        commented(0, 1, b"\x45a", b"drop: udp_no_socket"),
        commented(0, 2, b"\x45b", b"seen twice"),
    ];
    let mut w = World::new(file.concat());
    assert_eq!((w.at(0), w.at(1)), (vec![b"\x45a".to_vec()], vec![b"\x45b".to_vec()]));
    assert_eq!((w.counters().rx_packets, w.counters().rx_drop_records), (2, 1));
}

#[test]
fn interfaces_of_other_link_types_are_refused_unless_one_can_be_replayed() {
    let file = |links: &[u16]| {
        let interfaces: Vec<_> = links.iter().flat_map(|link| interface(*link, 6)).collect();
        [section(), block(0x7777, b"unknown"), interfaces, enhanced(0, 1, b"\x45")].concat()
    };
    let error = |links: &[u16]| Replay::new(Cursor::new(file(links))).err();
    let cooked = error(&[113]).expect("refused").to_string();
    assert!(cooked.contains("link type 113 (Linux cooked"), "{cooked}");
    assert!(matches!(error(&[220, 221]), Some(ReplayError::Link { kind: 220 })));
    assert!(error(&[113, 1]).is_none() && error(&[]).is_none());
    let pcap = Replay::new(Cursor::new(pcap(MICROS, 276, &[]))).err().expect("refused");
    assert!(pcap.to_string().contains("tcpdump -i any"), "{pcap}");
}

#[test]
fn a_record_that_is_a_part_of_its_packet_is_passed_over() {
    let records: [(u32, u32, &[u8], usize); 2] = [(1, 0, b"\x45", 1500), (1, 0, b"\x46", 1)];
    let mut w = World::new(pcap(MICROS, 101, &records));
    assert_eq!((w.at(0), w.counters().rx_truncated), (vec![vec![0x46]], 1));
}

#[test]
fn a_stack_has_its_turn_between_records_that_are_passed_over() {
    let mut records: Vec<(u32, u32, &[u8], usize)> = vec![(1, 0, b"part", 1500); 1000];
    records.push((1, 0, b"\x45", 1));
    let mut w = World::new(pcap(MICROS, 101, &records));
    assert!(w.at(0).is_empty());
    assert_eq!((w.counters().rx_truncated, w.replay.next_timeout_ns()), (256, Some(0)));
    let late = (0..4).map(|_| w.at(5)).find(|packets| !packets.is_empty());
    assert_eq!(late.expect("the last record"), [b"\x45"]);
}

#[test]
fn a_replay_that_waits_begins_when_it_is_started_and_tells_its_end() {
    let records: [(u32, u32, &[u8], usize); 2] = [(1, 0, b"\x45", 1), (3, 0, b"\x46", 1)];
    let mut w = World::new(pcap(MICROS, 101, &records));
    let (start, (sender, ends)) = (w.replay.wait_for_start(), std::sync::mpsc::channel());
    w.replay.on_end(move || sender.send(()).expect("the test waits"));
    assert_eq!((w.at(0).len(), w.replay.next_timeout_ns()), (0, None));
    start.start();
    assert_eq!(w.replay.next_timeout_ns(), Some(0));
    assert_eq!(w.at(5 * S), [b"\x45"]);
    assert!(ends.try_recv().is_err());
    assert_eq!(w.at(7 * S), [b"\x46"]);
    assert!(ends.try_recv().is_ok());
}

#[test]
fn sent_packets_are_dropped_and_counted() {
    let mut w = World::new(pcap(MICROS, 101, &[]));
    let mut batch = Batch::new();
    batch.push_back(w.pool.take(100));
    assert_eq!(w.replay.submit(0, &mut w.pool, &mut batch), 1);
    assert_eq!((w.counters().tx_dropped, w.pool.kept()), (1, 1));
}

#[test]
fn a_file_that_is_no_capture_is_refused_with_the_reason() {
    let error = |file: &[u8]| Replay::new(Cursor::new(file.to_vec())).err().expect("no capture");
    assert!(matches!(error(b""), ReplayError::Empty));
    let packed = error(b"\x1f\x8b\x08\0 and so on, as gzip writes them");
    assert!(packed.to_string().contains("`gzip -dk FILE`"), "{packed}");
    assert!(matches!(error(b"GIF89a, and some more bytes than a header has"), ReplayError::Format));
    let usb = error(&pcap(MICROS, 220, &[]));
    assert!(usb.to_string().contains("link type 220"), "{usb}");
    assert!(matches!(Replay::open("/dev/null".as_ref()).err(), Some(ReplayError::Io(_))));
}

#[test]
fn a_file_that_is_cut_off_gives_what_is_there() {
    let records: [(u32, u32, &[u8], usize); 2] = [(1, 0, b"\x45", 1), (1, 0, b"\x46", 1)];
    let whole = pcap(MICROS, 101, &records);
    for len in 24 + 17 + 1..whole.len() {
        let mut w = World::new(whole[..len].to_vec());
        assert_eq!(w.at(0), [b"\x45"], "{len}");
        assert_eq!((w.counters().rx_malformed, w.replay.next_timeout_ns()), (1, None));
    }
}

/// Capture that exceeds the buffer.
#[test]
fn a_long_file_is_read_to_its_end() {
    let bytes = vec![0x45; 60_000];
    let records: Vec<_> = (0..100).map(|n| (n, 0, &bytes[..], bytes.len())).collect();
    let mut w = World::new(pcap(MICROS, 101, &records));
    assert_eq!((0..100).map(|n| w.at(n * S).len()).sum::<usize>(), 100);
    assert_eq!(w.counters().rx_malformed, 0);
}

proptest! {
    /// Arbitrary files end without a panic.
    #[test]
    fn any_bytes_behind_a_header_come_to_an_end(
        tail in prop::collection::vec(any::<u8>(), 0..300),
        is_ng: bool,
    ) {
        let mut file = match is_ng {
            true => [section(), interface(101, 6), enhanced(0, 1, b"\x45")].concat(),
            false => pcap(MICROS, 1, &[]),
        };
        file.extend_from_slice(&tail);
        if let Ok(replay) = Replay::new(Cursor::new(file)) {
            let mut w = World { replay, pool: Pool::default() };
            w.at(0);
            w.at(u64::MAX);
            prop_assert!(w.replay.next_timeout_ns().is_none());
        }
    }
}
