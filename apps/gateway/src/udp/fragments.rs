//! Fragments IPv6 datagrams that exceed the path MTU and sends them by a raw socket.
//!
//! The kernel fragments according to the MTU of the socket's route. When a router reports a smaller
//! MTU, `ip6_update_pmtu` looks up a route without regard to the interface to which the socket is
//! bound. If this route leads into the gateway's own device, the socket's route keeps its larger
//! MTU. The kernel then sends long datagrams unfragmented, and each one is lost.

use std::net::{SocketAddr, SocketAddrV6};
use std::os::fd::AsFd;

use rustix::io::Errno;
use rustix::net::{AddressFamily, SocketFlags, SocketType, ipproto, socket_with};
use siphasher::sip::SipHasher13;
use towpath_shm::{Fd, Fragments, opened};
use towpath_wire::ipv6_ext::{FRAGMENT_LEN, FragmentHeader};
use towpath_wire::{IpProtocol, checksum, ipv6, udp};

use crate::config::GatewayConfig;
use crate::egress::Egress;
use crate::sys::{self, Destination};
use crate::train::IpMarks;

/// Fragments IPv6 datagrams, and sends the fragments.
#[derive(Debug, Default)]
pub(super) struct Fragmenter {
    /// Raw socket, created when the first datagram must be fragmented.
    socket: Option<Fd>,
    /// Whether creating the raw socket failed, because it requires CAP_NET_RAW.
    refused: bool,
    sent: u64,
}

/// Datagram that is longer than the path MTU.
#[derive(Debug)]
pub(super) struct LongDatagram<'a> {
    pub(super) from: SocketAddrV6,
    pub(super) to: SocketAddrV6,
    pub(super) marks: IpMarks,
    /// Path MTU in bytes, at least 1280.
    pub(super) mtu: usize,
    pub(super) payload: &'a [u8],
}

impl Fragmenter {
    /// Sends a datagram in fragments. Returns false if any fragment could not be sent.
    pub(super) fn send(&mut self, config: &GatewayConfig, datagram: &LongDatagram<'_>) -> bool {
        if self.socket.is_none() && !self.refused {
            self.socket = open(&config.egress, datagram.to).ok();
            self.refused = self.socket.is_none();
        }
        let Some(socket) = &self.socket else { return false };
        // Use an unpredictable identification in the fragment headers (RFC 7739).
        let key = *config.seed.last_chunk().expect("32 bytes");
        let ident = SipHasher13::new_with_key(&key).hash(&self.sent.to_be_bytes()) as u32;
        self.sent += 1;
        // In the address of a raw IPv6 socket, the port is a protocol number or 0.
        let to = SocketAddrV6::new(*datagram.to.ip(), 0, 0, datagram.to.scope_id());
        let destination = Destination { to: Some(to.into()), v6: true, ..Destination::default() };
        let send = |packet: Vec<u8>| {
            sys::send_datagram(socket.as_fd(), &packet, &Fragments::empty(), &destination).is_ok()
        };
        datagram.fragments(ident).all(send)
    }
}

/// Creates a socket that sends packets with our own IPv6 header (IPPROTO_RAW) and receives none.
fn open(egress: &Egress, to: SocketAddrV6) -> Result<Fd, Errno> {
    let (kind, flags) = (SocketType::RAW, SocketFlags::NONBLOCK | SocketFlags::CLOEXEC);
    let raw = opened(|| socket_with(AddressFamily::INET6, kind, flags, Some(ipproto::RAW)))?;
    let raw = Fd::from(raw);
    egress.apply(&raw, SocketAddr::from(to).ip())?;
    Ok(raw)
}

impl LongDatagram<'_> {
    /// Returns the fragments of the datagram as IPv6 packets.
    fn fragments(&self, ident: u32) -> impl Iterator<Item = Vec<u8>> {
        let (src, dst, marks) = (*self.from.ip(), *self.to.ip(), self.marks);
        let length = (udp::HEADER_LEN + self.payload.len()) as u16;
        let (src_port, dst_port) = (self.from.port(), self.to.port());
        let mut header = udp::Header { src_port, dst_port, length, checksum: 0 };
        let pseudo = checksum::pseudo_v6(src, dst, IpProtocol::UDP, length.into());
        header.checksum = header.checksum_for(pseudo, checksum::sum(self.payload, 0));
        let mut whole = vec![0; udp::HEADER_LEN];
        header.emit(&mut whole);
        whole.extend_from_slice(self.payload);
        // The length of each fragment but the last must be a multiple of 8 bytes (RFC 8200 §4.5).
        let piece = (self.mtu - ipv6::HEADER_LEN - FRAGMENT_LEN) & !7;
        (0..whole.len()).step_by(piece).map(move |at| {
            let end = whole.len().min(at + piece);
            let mut packet = vec![0; ipv6::HEADER_LEN + FRAGMENT_LEN];
            let header = ipv6::Header {
                traffic_class: marks.tos,
                flow_label: 0,
                payload_len: (FRAGMENT_LEN + end - at) as u16,
                next_header: IpProtocol::FRAGMENT,
                hop_limit: marks.ttl,
                src,
                dst,
            };
            header.emit(&mut packet);
            let fragment = FragmentHeader {
                next_header: IpProtocol::UDP,
                offset: at as u16,
                more: end < whole.len(),
                ident,
                header_at: ipv6::HEADER_LEN,
                named_at: 6,
            };
            fragment.emit(&mut packet[ipv6::HEADER_LEN..]);
            packet.extend_from_slice(&whole[at..end]);
            packet
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn fragments_fit_the_path_and_make_up_the_datagram() {
        let from: SocketAddrV6 = "[2001:db8::1]:4000".parse().unwrap();
        let to: SocketAddrV6 = "[2001:db8::2]:53".parse().unwrap();
        let marks = IpMarks { ttl: 9, tos: 0x2b, dont_fragment: false };
        for (mtu, len, count) in [(1280, 1300, 2), (1280, 65_527, 54), (1500, 2888, 2)] {
            let payload: Vec<u8> = (0..len).map(|n| n as u8).collect();
            let datagram = LongDatagram { from, to, marks, mtu, payload: &payload };
            let (mut whole, mut n) = (Vec::new(), 0);
            for packet in datagram.fragments(7) {
                assert!(packet.len() <= mtu);
                let (header, body) = ipv6::Header::parse(&packet).unwrap();
                assert_eq!((header.src, header.dst), (*from.ip(), *to.ip()));
                assert_eq!((header.hop_limit, header.traffic_class), (9, 0x2b));
                let chain = towpath_wire::ipv6_ext::walk(&packet, &header).unwrap();
                let fragment = chain.fragment.unwrap();
                assert_eq!((fragment.ident, fragment.next_header), (7, IpProtocol::UDP));
                assert_eq!(usize::from(fragment.offset), whole.len());
                whole.extend_from_slice(&packet[chain.upper_at..body.end]);
                n += 1;
                assert_eq!(fragment.more, n < count);
            }
            let pseudo =
                checksum::pseudo_v6(*from.ip(), *to.ip(), IpProtocol::UDP, whole.len() as u32);
            assert!(udp::checksum_ok_v6(&whole, pseudo));
            let (header, body) = udp::Header::parse(&whole).unwrap();
            assert_eq!((header.src_port, header.dst_port), (4000, 53));
            assert_eq!((&whole[body], n), (&payload[..], count));
        }
    }
}
