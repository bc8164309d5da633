use proptest::prelude::*;
use std::net::{Ipv4Addr, Ipv6Addr};
use towpath_wire::checksum::{
    finish, fold, pseudo_v4, pseudo_v6, sum, sum_at, update_v6, update16, update32,
};
use towpath_wire::{IpProtocol, ipv4, udp};

/// Implements RFC 1071 section 1 literally, as a reference.
fn naive(data: &[u8]) -> u16 {
    let mut acc: u32 = 0;
    for pair in data.chunks(2) {
        let word = u32::from(pair[0]) << 8 | u32::from(*pair.get(1).unwrap_or(&0));
        acc += word;
        acc = (acc & 0xffff) + (acc >> 16);
    }
    acc as u16
}

proptest! {
    #[test]
    fn agrees_with_naive(data in prop::collection::vec(any::<u8>(), 0..3000)) {
        prop_assert_eq!(fold(sum(&data, 0)), naive(&data));
    }

    #[test]
    fn pieces_at_any_offset_add_up(
        data in prop::collection::vec(any::<u8>(), 0..300),
        a: prop::sample::Index,
        b: prop::sample::Index,
    ) {
        let (a, b) = (a.index(data.len() + 1), b.index(data.len() + 1));
        let (a, b) = (a.min(b), a.max(b));
        let acc = sum_at(&data[..a], 0, 0);
        let acc = sum_at(&data[a..b], a, acc);
        let acc = sum_at(&data[b..], b, acc);
        prop_assert_eq!(fold(acc), naive(&data));
    }

    #[test]
    fn saturated_bytes(len in 0usize..5000) {
        let data = vec![0xff; len];
        prop_assert_eq!(fold(sum(&data, 0)), naive(&data));
    }

    #[test]
    fn updates_agree_with_recomputing(
        mut data in prop::collection::vec(any::<u8>(), 40),
        new: u128,
    ) {
        // Keep one word nonzero, because the sum of all zeros has two representations.
        data[39] |= 1;
        let before = finish(sum(&data, 0));
        let (old16, new16) = (u16::from_be_bytes([data[0], data[1]]), new as u16);
        data[..2].copy_from_slice(&new16.to_be_bytes());
        let after16 = update16(before, old16, new16);
        prop_assert_eq!(after16, finish(sum(&data, 0)));

        let old32 = u32::from_be_bytes(data[4..8].try_into().unwrap());
        data[4..8].copy_from_slice(&(new as u32).to_be_bytes());
        let after32 = update32(after16, old32, new as u32);
        prop_assert_eq!(after32, finish(sum(&data, 0)));

        let old128 = u128::from_be_bytes(data[8..24].try_into().unwrap());
        data[8..24].copy_from_slice(&new.to_be_bytes());
        let after128 = update_v6(after32, Ipv6Addr::from(old128), Ipv6Addr::from(new));
        prop_assert_eq!(after128, finish(sum(&data, 0)));
    }

    #[test]
    fn pseudo_headers(src: [u8; 16], dst: [u8; 16], protocol: u8, len: u16) {
        let mut v4 = Vec::new();
        v4.extend(&src[..4]);
        v4.extend(&dst[..4]);
        v4.extend([0, protocol]);
        v4.extend(len.to_be_bytes());
        let src4 = Ipv4Addr::new(src[0], src[1], src[2], src[3]);
        let dst4 = Ipv4Addr::new(dst[0], dst[1], dst[2], dst[3]);
        prop_assert_eq!(fold(pseudo_v4(src4, dst4, IpProtocol(protocol), len)), naive(&v4));

        let mut v6 = Vec::new();
        v6.extend(src);
        v6.extend(dst);
        v6.extend(u32::from(len).to_be_bytes());
        v6.extend([0, 0, 0, protocol]);
        let acc = pseudo_v6(src.into(), dst.into(), IpProtocol(protocol), u32::from(len));
        prop_assert_eq!(fold(acc), naive(&v6));
    }
}

/// The worked example of RFC 1624 section 4: equation 3 gives 0x0000, where equation 2 would give
/// 0xffff.
#[test]
fn rfc1624_example() {
    assert_eq!(update16(0xdd2f, 0x5555, 0x3285), 0x0000);
}

#[test]
fn rfc1071_example() {
    let data = [0x00, 0x01, 0xf2, 0x03, 0xf4, 0xf5, 0xf6, 0xf7];
    assert_eq!(fold(sum(&data, 0)), 0xddf2);
}

#[test]
fn known_ipv4_header() {
    let mut header = [
        0x45, 0x00, 0x00, 0x73, 0x00, 0x00, 0x40, 0x00, 0x40, 0x11, 0xb8, 0x61, 0xc0, 0xa8, 0x00,
        0x01, 0xc0, 0xa8, 0x00, 0xc7,
    ];
    assert!(ipv4::checksum_ok(&header));
    header[15] ^= 1;
    assert!(!ipv4::checksum_ok(&header));
}

#[test]
fn udp_zero_checksum_depends_on_the_ip_version() {
    let header = udp::Header { src_port: 1, dst_port: 2, length: 8, checksum: 0 };
    let mut datagram = [0; 8];
    header.emit(&mut datagram);
    assert!(udp::checksum_ok_v4(&datagram, 0x1234));
    assert!(!udp::checksum_ok_v6(&datagram, 0x1234));
}

#[test]
fn udp_checksum_that_computes_to_zero_is_sent_as_ones() {
    let header = udp::Header { src_port: 1, dst_port: 2, length: 10, checksum: 0 };
    // 0xfff2 makes the sum 0xffff, whose complement is 0.
    let payload_sum = sum(&0xfff2u16.to_be_bytes(), 0);
    let checksum = header.checksum_for(0, payload_sum);
    assert_eq!(checksum, 0xffff);
    let mut datagram = [0; 10];
    udp::Header { checksum, ..header }.emit(&mut datagram);
    datagram[8..].copy_from_slice(&0xfff2u16.to_be_bytes());
    assert!(udp::checksum_ok_v6(&datagram, 0));
    datagram[8] ^= 0x40;
    assert!(!udp::checksum_ok_v4(&datagram, 0));
}
