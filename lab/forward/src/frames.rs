//! Frames of 64 bytes.

use std::net::{IpAddr, Ipv4Addr};

use towpath_filter::Fields;
use towpath_wire::{addr, checksum};

/// Ethernet address of the router on the port that receives the frames.
pub const ROUTER_MAC: [u8; 6] = [2, 0, 0, 0, 0, 1];
const SENDER_MAC: [u8; 6] = [2, 0, 0, 0, 9, 9];
/// Length in bytes of the IP packet in a frame of 64 bytes, without Ethernet's header and checksum.
const IP_LEN: u16 = 46;
const UDP: u8 = 17;

/// Returns a datagram from the same sender to each of these destinations.
pub fn datagrams(destinations: &[Ipv4Addr]) -> Vec<[u8; 64]> {
    let src = Ipv4Addr::new(10, 1, 0, 2);
    destinations.iter().map(|dst| frame((src, *dst), UDP, (1024, 9))).collect()
}

/// Returns packets with these fields. Skips those with addresses that routers do not forward.
pub fn with_fields(all: &[Fields]) -> Vec<[u8; 64]> {
    let frames = all.iter().filter_map(|fields| match (fields.src, fields.dst) {
        (IpAddr::V4(src), IpAddr::V4(dst)) if is_transit(src) && is_transit(dst) => {
            Some(frame((src, dst), fields.protocol, fields.ports.unwrap_or((0x0800, 0))))
        }
        _ => None,
    });
    frames.collect()
}

fn is_transit(v4: Ipv4Addr) -> bool {
    let first = v4.octets()[0];
    (1..224).contains(&first)
        && ![10, 127].contains(&first)
        && addr::is_valid_source_v4(v4)
        && !v4.is_link_local()
}

fn frame((src, dst): (Ipv4Addr, Ipv4Addr), protocol: u8, ports: (u16, u16)) -> [u8; 64] {
    let mut frame = [0; 64];
    frame[..6].copy_from_slice(&ROUTER_MAC);
    frame[6..12].copy_from_slice(&SENDER_MAC);
    frame[12..14].copy_from_slice(&[8, 0]);
    let ip = &mut frame[14..];
    ip[0] = 0x45;
    ip[2..4].copy_from_slice(&IP_LEN.to_be_bytes());
    (ip[8], ip[9]) = (64, protocol);
    ip[12..16].copy_from_slice(&src.octets());
    ip[16..20].copy_from_slice(&dst.octets());
    let sum = checksum::finish(checksum::sum(&ip[..20], 0));
    ip[10..12].copy_from_slice(&sum.to_be_bytes());
    ip[20..22].copy_from_slice(&ports.0.to_be_bytes());
    ip[22..24].copy_from_slice(&ports.1.to_be_bytes());
    // For TCP this sets the flags, and for UDP the length, without a checksum.
    ip[24..26].copy_from_slice(&(IP_LEN - 20).to_be_bytes());
    ip[33] = 0x10;
    frame
}
