//! Cost of headers in smoltcp, with the same packets as `lab/packets/src/headers.rs`. `echo`
//! corresponds to `lab/packets/src/echo.rs`.
#![forbid(unsafe_code)]

mod echo;

use std::error::Error;
use std::hint::black_box;

use smoltcp::phy::ChecksumCapabilities;
use smoltcp::wire::{IpAddress, TcpControl, TcpPacket, TcpRepr, TcpSeqNumber, UdpPacket, UdpRepr};
use towpath_lab_measure::{
    Counting, DST_PORT, DST_V4, DST_V6, Kind, Run, SEQ, SRC_PORT, SRC_V4, SRC_V6, WINDOW, digest,
};

#[global_allocator]
static ALLOCATOR: Counting = Counting;

/// Bytes of a UDP header, and of TCP's without options.
const UDP_HEADER_LEN: usize = 8;
const TCP_HEADER_LEN: usize = 20;

fn main() -> Result<(), Box<dyn Error>> {
    let mut run = Run::from_arguments()?;
    echo::measure(&mut run)?;
    for kind in Kind::all() {
        let ends: (IpAddress, IpAddress) = match kind.is_v6 {
            false => (SRC_V4.into(), DST_V4.into()),
            true => (SRC_V6.into(), DST_V6.into()),
        };
        match kind.is_tcp {
            true => measure_one(&mut run, kind, ends, emit_tcp, parse_tcp)?,
            false => measure_one(&mut run, kind, ends, emit_udp, parse_udp)?,
        }
    }
    Ok(())
}

/// Fields of a received packet: ports, sequence number and window of TCP, and payload.
type Parsed<'a> = (u16, u16, u32, u16, &'a [u8]);

fn measure_one(
    run: &mut Run,
    kind: Kind,
    ends: (IpAddress, IpAddress),
    emit: impl Fn(&(IpAddress, IpAddress), &[u8], &mut [u8]),
    parse: impl for<'a> Fn(&(IpAddress, IpAddress), &'a [u8]) -> Option<Parsed<'a>>,
) -> Result<(), Box<dyn Error>> {
    let payload = kind.payload();
    let header_len = if kind.is_tcp { TCP_HEADER_LEN } else { UDP_HEADER_LEN };
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

fn emit_tcp((src, dst): &(IpAddress, IpAddress), payload: &[u8], buffer: &mut [u8]) {
    let repr = TcpRepr {
        src_port: SRC_PORT,
        dst_port: DST_PORT,
        control: TcpControl::Syn,
        seq_number: TcpSeqNumber(SEQ as i32),
        ack_number: None,
        window_len: WINDOW,
        window_scale: None,
        max_seg_size: None,
        sack_permitted: false,
        sack_ranges: [None, None, None],
        timestamp: None,
        payload,
    };
    let mut packet = TcpPacket::new_unchecked(buffer);
    repr.emit(&mut packet, src, dst, &ChecksumCapabilities::default());
}

fn parse_tcp<'a>((src, dst): &(IpAddress, IpAddress), segment: &'a [u8]) -> Option<Parsed<'a>> {
    let packet = TcpPacket::new_checked(segment).ok()?;
    let repr = TcpRepr::parse(&packet, src, dst, &ChecksumCapabilities::default()).ok()?;
    let seq = repr.seq_number.0 as u32;
    Some((repr.src_port, repr.dst_port, seq, repr.window_len, repr.payload))
}

fn emit_udp((src, dst): &(IpAddress, IpAddress), payload: &[u8], buffer: &mut [u8]) {
    let repr = UdpRepr { src_port: SRC_PORT, dst_port: DST_PORT };
    let mut packet = UdpPacket::new_unchecked(buffer);
    let fill = |to: &mut [u8]| to.copy_from_slice(payload);
    let offloads = ChecksumCapabilities::default();
    repr.emit(&mut packet, src, dst, payload.len(), fill, &offloads);
}

fn parse_udp<'a>((src, dst): &(IpAddress, IpAddress), datagram: &'a [u8]) -> Option<Parsed<'a>> {
    let packet = UdpPacket::new_checked(datagram).ok()?;
    let repr = UdpRepr::parse(&packet, src, dst, &ChecksumCapabilities::default()).ok()?;
    Some((repr.src_port, repr.dst_port, 0, 0, packet.payload()))
}
