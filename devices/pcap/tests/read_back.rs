//! Reads written captures back, using a strict reader and tshark if it is installed.

use std::io::{self, Write};
use std::process::Command;
use towpath_pcap::{CaptureLinkType, Direction, Interface, Writer};

const INTERFACES: [Interface<'static>; 2] = [
    Interface { name: "eth0", link_type: CaptureLinkType::Ethernet },
    Interface { name: "tun\u{e9}", link_type: CaptureLinkType::Raw },
];
const TIME_NS: u64 = 1_700_000_000_123_456_789;

/// Block type and body; both length fields were compared.
struct Block {
    kind: u32,
    body: Vec<u8>,
}

#[derive(Debug, PartialEq)]
struct Packet {
    iface: u32,
    time_ns: u64,
    original_len: u32,
    data: Vec<u8>,
    options: Vec<(u16, Vec<u8>)>,
}

fn u16_at(data: &[u8], at: usize) -> u16 {
    u16::from_le_bytes(data[at..at + 2].try_into().unwrap())
}

fn u32_at(data: &[u8], at: usize) -> u32 {
    u32::from_le_bytes(data[at..at + 4].try_into().unwrap())
}

fn blocks(mut file: &[u8]) -> Vec<Block> {
    let mut blocks = Vec::new();
    while !file.is_empty() {
        let total = u32_at(file, 4) as usize;
        assert_eq!(total % 4, 0);
        assert_eq!(u32_at(file, total - 4) as usize, total, "the lengths of a block differ");
        blocks.push(Block { kind: u32_at(file, 0), body: file[8..total - 4].to_vec() });
        file = &file[total..];
    }
    blocks
}

/// Reads options, which must end exactly with the end marker.
fn options(mut area: &[u8]) -> Vec<(u16, Vec<u8>)> {
    let mut options = Vec::new();
    loop {
        let (code, len) = (u16_at(area, 0), usize::from(u16_at(area, 2)));
        if code == 0 {
            assert_eq!((len, area.len()), (0, 4));
            return options;
        }
        options.push((code, area[4..4 + len].to_vec()));
        let padded = len.next_multiple_of(4);
        assert!(area[4 + len..4 + padded].iter().all(|byte| *byte == 0));
        area = &area[4 + padded..];
    }
}

fn packet(block: &Block) -> Packet {
    assert_eq!(block.kind, 6);
    let body = &block.body;
    let captured = u32_at(body, 12) as usize;
    let padded = captured.next_multiple_of(4);
    assert!(body[20 + captured..20 + padded].iter().all(|byte| *byte == 0));
    Packet {
        iface: u32_at(body, 0),
        time_ns: u64::from(u32_at(body, 4)) << 32 | u64::from(u32_at(body, 8)),
        original_len: u32_at(body, 16),
        data: body[20..20 + captured].to_vec(),
        options: options(&body[20 + padded..]),
    }
}

fn packets(file: &[u8]) -> Vec<Packet> {
    blocks(file)[1 + INTERFACES.len()..].iter().map(packet).collect()
}

#[test]
fn section_and_interfaces() {
    let file = Writer::new(Vec::new(), &INTERFACES).unwrap().into_inner().unwrap();
    let blocks = blocks(&file);
    assert_eq!(blocks.iter().map(|b| b.kind).collect::<Vec<_>>(), [0x0a0d_0d0a, 1, 1]);

    let section = &blocks[0].body;
    assert_eq!(
        section[..16],
        [0x4d, 0x3c, 0x2b, 0x1a, 1, 0, 0, 0, 255, 255, 255, 255, 255, 255, 255, 255]
    );
    assert_eq!(options(&section[16..]), [(4, b"towpath".to_vec())]);

    for (block, (interface, link_type)) in blocks[1..].iter().zip(INTERFACES.iter().zip([1, 101])) {
        assert_eq!(u32_at(&block.body, 0), link_type);
        assert_eq!(u32_at(&block.body, 4), 262_144);
        let expected = [(2, interface.name.as_bytes().to_vec()), (9, vec![9])];
        assert_eq!(options(&block.body[8..]), expected);
    }
}

#[test]
fn packets_of_every_length_and_cut() {
    let bytes: Vec<u8> = (0..70).collect();
    let mut writer = Writer::new(Vec::new(), &INTERFACES).unwrap();
    for len in 0..bytes.len() {
        let (a, b) = bytes[..len].split_at(len / 3);
        let time = TIME_NS + len as u64;
        writer.packet(1, time, Direction::Inbound, None, &[a, &[], b], len as u32).unwrap();
    }
    let packets = packets(&writer.into_inner().unwrap());
    assert_eq!(packets.len(), bytes.len());
    for (len, packet) in packets.into_iter().enumerate() {
        let expected = Packet {
            iface: 1,
            time_ns: TIME_NS + len as u64,
            original_len: len as u32,
            data: bytes[..len].to_vec(),
            options: vec![(2, vec![1, 0, 0, 0])],
        };
        assert_eq!(packet, expected);
    }
}

#[test]
fn longer_than_the_snap_length() {
    let mut writer = Writer::with_snaplen(Vec::new(), &INTERFACES, 10).unwrap();
    let pieces: [&[u8]; 3] = [b"01234567", b"89abcdef", b"gh"];
    writer.packet(0, 0, Direction::Outbound, None, &pieces, 18).unwrap();
    writer.packet(0, 0, Direction::Outbound, None, &[b"head"], 1500).unwrap();
    writer.packet(0, 0, Direction::Outbound, None, &[b"more than said"], 0).unwrap();
    let file = writer.into_inner().unwrap();
    assert_eq!(u32_at(&blocks(&file)[1].body, 4), 10);
    let seen: Vec<_> = packets(&file).into_iter().map(|p| (p.data, p.original_len)).collect();
    let expected = [(&b"0123456789"[..], 18), (b"head", 1500), (b"more than ", 14)];
    assert_eq!(seen, expected.map(|(data, len)| (data.to_vec(), len)));
}

#[test]
fn comments_and_losses() {
    let mut writer = Writer::new(Vec::new(), &INTERFACES).unwrap();
    writer.note_lost(0, 2).unwrap();
    writer.note_lost(0, 3).unwrap();
    let drop = Some("drop: no-route");
    writer.packet(1, 0, Direction::Inbound, drop, &[b"other interface"], 15).unwrap();
    writer.packet(0, 0, Direction::Outbound, drop, &[b"after a loss"], 12).unwrap();
    writer.packet(0, 0, Direction::Outbound, None, &[b"and again"], 9).unwrap();
    let options: Vec<_> =
        packets(&writer.into_inner().unwrap()).into_iter().map(|packet| packet.options).collect();
    let comment = (1, b"drop: no-route".to_vec());
    let flags = |bits| (2, vec![bits, 0, 0, 0]);
    let lost = (4, vec![5, 0, 0, 0, 0, 0, 0, 0]);
    assert_eq!(options[0], [comment.clone(), flags(1)]);
    assert_eq!(options[1], [comment, flags(2), lost]);
    assert_eq!(options[2], [flags(2)]);
}

#[test]
fn a_comment_that_does_not_fit_is_cut_between_characters() {
    let long = "\u{20ac}".repeat(30_000);
    let mut writer = Writer::new(Vec::new(), &INTERFACES).unwrap();
    writer.packet(0, 0, Direction::Inbound, Some(&long), &[b"x"], 1).unwrap();
    let (code, comment) = packets(&writer.into_inner().unwrap())[0].options[0].clone();
    assert_eq!((code, comment.len()), (1, 65532));
    assert!(long.starts_with(std::str::from_utf8(&comment).unwrap()));
}

#[test]
fn interfaces_are_declared_first() {
    let mut writer = Writer::new(Vec::new(), &INTERFACES).unwrap();
    let refused = writer.packet(2, 0, Direction::Inbound, None, &[b"x"], 1).unwrap_err();
    assert_eq!(refused.kind(), io::ErrorKind::InvalidInput);
    assert_eq!(writer.note_lost(2, 1).unwrap_err().kind(), io::ErrorKind::InvalidInput);
    let late = Interface { name: "late", link_type: CaptureLinkType::Raw };
    assert_eq!(writer.add_interface(&late).unwrap(), 2);
    writer.packet(2, 0, Direction::Inbound, None, &[b"x"], 1).unwrap();
    let kinds: Vec<_> = blocks(&writer.into_inner().unwrap()).iter().map(|b| b.kind).collect();
    assert_eq!(kinds, [0x0a0d_0d0a, 1, 1, 1, 6]);
}

/// Fails after `room` bytes.
struct FullDisk {
    room: usize,
}

impl Write for FullDisk {
    fn write(&mut self, data: &[u8]) -> io::Result<usize> {
        let taken = data.len().min(self.room);
        self.room -= taken;
        if taken == 0 { Err(io::ErrorKind::StorageFull.into()) } else { Ok(taken) }
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

#[test]
fn a_full_disk_is_told() {
    let mut writer = Writer::new(FullDisk { room: 100 }, &INTERFACES).unwrap();
    writer.packet(0, 0, Direction::Inbound, None, &[&[0; 1000]], 1000).unwrap();
    assert_eq!(writer.flush().unwrap_err().kind(), io::ErrorKind::StorageFull);
    assert!(writer.into_inner().is_err());
}

/// Ethernet frame with a UDP datagram from 10.0.0.1:1000 to 10.0.0.2:2000.
const FRAME: [u8; 46] = [
    2, 0, 0, 0, 0, 2, 2, 0, 0, 0, 0, 1, 8, 0, 0x45, 0, 0, 32, 0, 1, 0, 0, 64, 17, 0x66, 0xca, 10,
    0, 0, 1, 10, 0, 0, 2, 0x03, 0xe8, 0x07, 0xd0, 0, 12, 0, 0, b'p', b'i', b'n', b'g',
];

#[test]
fn tshark_agrees() {
    if Command::new("tshark").arg("--version").output().is_err() {
        eprintln!("tshark is not installed: only the strict reader has looked");
        return;
    }
    let mut writer = Writer::with_snaplen(Vec::new(), &INTERFACES, 44).unwrap();
    let (ethernet, ip) = FRAME.split_at(14);
    writer
        .packet(0, TIME_NS, Direction::Inbound, Some("drop: no-listener"), &[ethernet, ip], 46)
        .unwrap();
    writer.note_lost(1, 7).unwrap();
    writer.packet(1, TIME_NS + 1, Direction::Outbound, None, &[ip], 32).unwrap();
    let path = std::env::temp_dir().join(format!("towpath-pcap-{}.pcapng", std::process::id()));
    std::fs::write(&path, writer.into_inner().unwrap()).unwrap();

    let fields = [
        "frame.interface_name",
        "frame.time_epoch",
        "frame.cap_len",
        "frame.len",
        "frame.packet_flags_direction",
        "frame.comment",
        "ip.src",
        "udp.dstport",
    ];
    let mut tshark = Command::new("tshark");
    tshark.arg("-n").arg("-r").arg(&path).args(["-T", "fields", "-E", "separator=|"]);
    for field in fields {
        tshark.args(["-e", field]);
    }
    let output = tshark.output().unwrap();
    std::fs::remove_file(&path).unwrap();
    // Depending on the version, the direction is decimal or hexadecimal.
    let text = String::from_utf8(output.stdout).unwrap().replace("0x0000000", "");
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    let expected = "eth0|1700000000.123456789|44|46|1|drop: no-listener|10.0.0.1|2000\n\
                    tun\u{e9}|1700000000.123456790|32|32|2||10.0.0.1|2000\n";
    assert_eq!(text, expected);
}
