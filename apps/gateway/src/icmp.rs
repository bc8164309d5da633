//! ICMP errors about datagrams that the host could not deliver.
//!
//! The host tells by an errno on the flow's socket, when the datagram is long gone; what the error
//! quotes is rebuilt from the flow, which is all that a receiver looks at.

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};

use rustix::io::Errno;
use towpath_pool::{Checksum, Packet, Pool};
use towpath_wire::{IpProtocol, icmpv4, icmpv6, ipv4, ipv6, udp};

/// Why the host did not deliver.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Unreachable {
    Net,
    Host,
    Port,
    Prohibited,
}

impl Unreachable {
    /// From what the host said; None when that says nothing about the destination.
    pub(crate) fn from_errno(error: Errno) -> Option<Self> {
        match error {
            Errno::CONNREFUSED => Some(Self::Port),
            Errno::HOSTUNREACH | Errno::HOSTDOWN => Some(Self::Host),
            Errno::NETUNREACH | Errno::NETDOWN | Errno::AFNOSUPPORT => Some(Self::Net),
            Errno::ACCESS | Errno::PERM => Some(Self::Prohibited),
            _ => None,
        }
    }

    fn code_v4(self) -> u8 {
        match self {
            Self::Net => icmpv4::UNREACHABLE_NET,
            Self::Host => icmpv4::UNREACHABLE_HOST,
            Self::Port => icmpv4::UNREACHABLE_PORT,
            Self::Prohibited => icmpv4::UNREACHABLE_PROHIBITED,
        }
    }

    fn code_v6(self) -> u8 {
        match self {
            Self::Net => icmpv6::UNREACHABLE_NO_ROUTE,
            Self::Host => icmpv6::UNREACHABLE_ADDRESS,
            Self::Port => icmpv6::UNREACHABLE_PORT,
            Self::Prohibited => icmpv6::UNREACHABLE_PROHIBITED,
        }
    }
}

/// The error that tells `program` that its datagrams to `peer` do not arrive, as if `peer` said so.
/// None when the two are of different families, which no flow is.
pub(crate) fn unreachable_packet(
    program: SocketAddr,
    peer: SocketAddr,
    why: Unreachable,
    pool: &mut Pool,
) -> Option<Packet> {
    let quoted = udp::Header {
        src_port: program.port(),
        dst_port: peer.port(),
        length: udp::HEADER_LEN as u16,
        checksum: 0,
    };
    let mut packet = pool.take(2 * (ipv6::HEADER_LEN + icmpv6::HEADER_LEN));
    let written = match (program.ip(), peer.ip()) {
        (IpAddr::V4(program), IpAddr::V4(peer)) => {
            emit_v4(&mut packet, program, peer, &quoted, why.code_v4())
        }
        (IpAddr::V6(program), IpAddr::V6(peer)) => {
            emit_v6(&mut packet, program, peer, &quoted, why.code_v6())
        }
        _ => None,
    };
    if written.is_none() {
        pool.give(packet);
        return None;
    }
    packet.meta.checksum = Checksum::Verified;
    Some(packet)
}

fn emit_v4(
    packet: &mut Packet,
    program: Ipv4Addr,
    peer: Ipv4Addr,
    quoted: &udp::Header,
    code: u8,
) -> Option<()> {
    const QUOTED: usize = ipv4::HEADER_LEN + udp::HEADER_LEN;
    const MESSAGE: usize = icmpv4::HEADER_LEN + QUOTED;
    let buffer = packet.push_back(ipv4::HEADER_LEN + MESSAGE)?;
    let header = |src, dst, protocol, len: usize| ipv4::Header {
        tos: 0,
        total_len: len as u16,
        ident: 0,
        dont_fragment: true,
        more_fragments: false,
        fragment_offset: 0,
        ttl: 64,
        protocol,
        src,
        dst,
        options: ipv4::Options::EMPTY,
    };
    let (outer, message) = buffer.split_at_mut(ipv4::HEADER_LEN);
    header(peer, program, IpProtocol::ICMP, ipv4::HEADER_LEN + MESSAGE).emit(outer);
    icmpv4::Message::DestUnreachable { code, next_hop_mtu: 0 }.emit(message);
    let inner = message.get_mut(icmpv4::HEADER_LEN..)?;
    header(program, peer, IpProtocol::UDP, QUOTED).emit(inner);
    quoted.emit(inner.get_mut(ipv4::HEADER_LEN..)?);
    icmpv4::fill_checksum(message);
    Some(())
}

fn emit_v6(
    packet: &mut Packet,
    program: Ipv6Addr,
    peer: Ipv6Addr,
    quoted: &udp::Header,
    code: u8,
) -> Option<()> {
    const QUOTED: usize = ipv6::HEADER_LEN + udp::HEADER_LEN;
    const MESSAGE: usize = icmpv6::HEADER_LEN + QUOTED;
    let buffer = packet.push_back(ipv6::HEADER_LEN + MESSAGE)?;
    let header = |src, dst, next_header, len: usize| ipv6::Header {
        traffic_class: 0,
        flow_label: 0,
        payload_len: len as u16,
        next_header,
        hop_limit: 64,
        src,
        dst,
    };
    let (outer, message) = buffer.split_at_mut(ipv6::HEADER_LEN);
    header(peer, program, IpProtocol::ICMPV6, MESSAGE).emit(outer);
    icmpv6::Message::DestUnreachable { code }.emit(message);
    let inner = message.get_mut(icmpv6::HEADER_LEN..)?;
    header(program, peer, IpProtocol::UDP, udp::HEADER_LEN).emit(inner);
    quoted.emit(inner.get_mut(ipv6::HEADER_LEN..)?);
    icmpv6::fill_checksum(message, peer, program);
    Some(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn errors_parse_and_quote_the_flow() {
        let mut pool = Pool::default();
        let (program, peer) = ("10.0.2.15:4000", "192.0.2.1:53");
        let (program, peer) = (program.parse().unwrap(), peer.parse().unwrap());
        let packet = unreachable_packet(program, peer, Unreachable::Port, &mut pool).unwrap();
        let (header, body) = ipv4::Header::parse(packet.linear()).unwrap();
        assert_eq!((IpAddr::V4(header.src), IpAddr::V4(header.dst)), (peer.ip(), program.ip()));
        let message = &packet.linear()[body];
        assert!(icmpv4::checksum_ok(message));
        let (_, at) = icmpv4::Message::parse(message).unwrap();
        let (quoted, at_udp) = ipv4::Header::parse_quoted(&message[at..]).unwrap();
        assert_eq!(IpAddr::V4(quoted.dst), peer.ip());
        let (ports, _) = udp::Header::parse_quoted(&message[at + at_udp..]).unwrap();
        assert_eq!((ports.src_port, ports.dst_port), (4000, 53));
    }

    #[test]
    fn errors_of_ipv6_parse_too() {
        let mut pool = Pool::default();
        let (program, peer) = ("[fd00:2::15]:4000", "[2001:db8::1]:53");
        let (program, peer) = (program.parse().unwrap(), peer.parse().unwrap());
        let packet = unreachable_packet(program, peer, Unreachable::Host, &mut pool).unwrap();
        let (header, body) = ipv6::Header::parse(packet.linear()).unwrap();
        assert!(icmpv6::checksum_ok(&packet.linear()[body], header.src, header.dst));
    }
}
