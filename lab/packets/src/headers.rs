//! Benchmarks of transport headers: emit a header with payload and checksum, and parse it while
//! verifying the checksum.

use std::error::Error;
use std::hint::black_box;
use std::net::IpAddr;

use towpath_lab_measure::{
    DST_PORT, DST_V4, DST_V6, Kind, Run, SEQ, SRC_PORT, SRC_V4, SRC_V6, WINDOW, digest,
};
use towpath_wire::tcp::{self, Flags, Options, SeqNum};
use towpath_wire::{IpProtocol, checksum, udp};

pub fn measure(run: &mut Run) -> Result<(), Box<dyn Error>> {
    for kind in Kind::all() {
        let ends: (IpAddr, IpAddr) = match kind.is_v6 {
            false => (SRC_V4.into(), DST_V4.into()),
            true => (SRC_V6.into(), DST_V6.into()),
        };
        match kind.is_tcp {
            true => measure_one(run, kind, ends, emit_tcp, parse_tcp)?,
            false => measure_one(run, kind, ends, emit_udp, parse_udp)?,
        }
    }
    Ok(())
}

/// Fields of a packet: ports, TCP's sequence number and window, and payload.
type Parsed<'a> = (u16, u16, u32, u16, &'a [u8]);

fn measure_one(
    run: &mut Run,
    kind: Kind,
    ends: (IpAddr, IpAddr),
    emit: impl Fn(&(IpAddr, IpAddr), &[u8], &mut [u8]),
    parse: impl for<'a> Fn(&(IpAddr, IpAddr), &'a [u8]) -> Option<Parsed<'a>>,
) -> Result<(), Box<dyn Error>> {
    let payload = kind.payload();
    let header_len = if kind.is_tcp { tcp::HEADER_LEN_MIN } else { udp::HEADER_LEN };
    let mut buffer = vec![0xa5; header_len + kind.len];
    emit(&ends, &payload, &mut buffer);
    let (name, made) = (kind.name("emit"), digest(&buffer));
    if run.wants(&name) {
        run.measure(|| emit(black_box(&ends), black_box(&payload), black_box(&mut buffer)));
        run.say(&name, &made)?;
    }
    let name = kind.name("parse");
    if run.wants(&name) {
        let (src_port, dst_port, seq, window, data) =
            parse(&ends, &buffer).ok_or("what was emitted is refused")?;
        let made = format!("{src_port} {dst_port} {seq} {window} {}", digest(data));
        run.measure(|| parse(black_box(&ends), black_box(&buffer)));
        run.say(&name, &made)?;
        let last = buffer.len() - 1;
        buffer[last] ^= 1;
        if parse(&ends, &buffer).is_some() {
            return Err("a damaged packet was taken".into());
        }
    }
    Ok(())
}

fn pseudo(&(src, dst): &(IpAddr, IpAddr), protocol: IpProtocol, len: usize) -> u64 {
    match (src, dst) {
        (IpAddr::V4(src), IpAddr::V4(dst)) => checksum::pseudo_v4(src, dst, protocol, len as u16),
        (IpAddr::V6(src), IpAddr::V6(dst)) => checksum::pseudo_v6(src, dst, protocol, len as u32),
        _ => unreachable!("both are of one family"),
    }
}

fn emit_tcp(ends: &(IpAddr, IpAddr), payload: &[u8], buffer: &mut [u8]) {
    let header = tcp::Header {
        src_port: SRC_PORT,
        dst_port: DST_PORT,
        seq: SeqNum(SEQ),
        ack: SeqNum(0),
        flags: Flags::SYN,
        window: WINDOW,
        checksum: 0,
        urgent: 0,
        header_len: 0,
        options: Options::default(),
    };
    let len = header.emit(buffer);
    buffer[len..].copy_from_slice(payload);
    // Compute the sum over the original payload, to avoid reading the bytes that were just written.
    let pseudo = pseudo(ends, IpProtocol::TCP, buffer.len());
    let sum = checksum::sum(payload, checksum::sum(&buffer[..len], pseudo));
    let sum = checksum::finish(sum);
    buffer[tcp::CHECKSUM_OFFSET..tcp::CHECKSUM_OFFSET + 2].copy_from_slice(&sum.to_be_bytes());
}

fn parse_tcp<'a>(ends: &(IpAddr, IpAddr), segment: &'a [u8]) -> Option<Parsed<'a>> {
    let pseudo = pseudo(ends, IpProtocol::TCP, segment.len());
    if checksum::finish(checksum::sum(segment, pseudo)) != 0 {
        return None;
    }
    let header = tcp::Header::parse(segment).ok()?;
    let payload = &segment[usize::from(header.header_len)..];
    Some((header.src_port, header.dst_port, header.seq.0, header.window, payload))
}

fn emit_udp(ends: &(IpAddr, IpAddr), payload: &[u8], buffer: &mut [u8]) {
    let length = buffer.len() as u16;
    let mut header = udp::Header { src_port: SRC_PORT, dst_port: DST_PORT, length, checksum: 0 };
    buffer[udp::HEADER_LEN..].copy_from_slice(payload);
    let pseudo = pseudo(ends, IpProtocol::UDP, buffer.len());
    header.checksum = header.checksum_for(pseudo, checksum::sum(payload, 0));
    header.emit(buffer);
}

fn parse_udp<'a>(ends: &(IpAddr, IpAddr), datagram: &'a [u8]) -> Option<Parsed<'a>> {
    let (header, payload) = udp::Header::parse(datagram).ok()?;
    let datagram = &datagram[..usize::from(header.length)];
    let pseudo = pseudo(ends, IpProtocol::UDP, datagram.len());
    let is_whole = match ends.0 {
        IpAddr::V4(_) => udp::checksum_ok_v4(datagram, pseudo),
        IpAddr::V6(_) => udp::checksum_ok_v6(datagram, pseudo),
    };
    is_whole.then(|| (header.src_port, header.dst_port, 0, 0, &datagram[payload]))
}
