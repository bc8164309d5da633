//! Received ICMP and ICMPv6 messages: errors about packets that this host sent, and echo requests
//! and replies. The module `report` sends errors about packets of other hosts.

use core::net::IpAddr;

use towpath_pool::{Packet, Pool};
use towpath_tcp::Instant;
use towpath_wire::tcp::SeqNum;
use towpath_wire::{IpProtocol, addr, icmpv4, icmpv6, ipv4, ipv6, ipv6_ext, mld, ndp};

use super::tables::Data;
use crate::drop::DropReason;
use crate::net::iface::IfaceId;
use crate::net::ip::{AddressPair, Fragmenting, Ip};
use crate::net::limits::PATH_MTU_MIN_V6;
use crate::net::messages::ControlPacket;
use crate::net::received::{Echo, IcmpError, Local, Received};
use crate::tables::flow::Flow;

impl Data {
    /// Handles an ICMP or ICMPv6 message to this host.
    pub(super) fn receive_icmp(
        &mut self,
        now: Instant,
        mut local: Local,
        pool: &mut Pool,
    ) -> Option<Received> {
        local.packet.linearize(pool);
        let verdict = match self.icmp_checksum_ok(&local) {
            true if local.src.is_ipv4() => self.on_icmpv4(&local),
            true => self.on_icmpv6(&local),
            false => Err(DropReason::IcmpMalformed),
        };
        match verdict {
            Ok(Verdict::Punt(punt)) => {
                self.punts.push_back(punt(local));
                None
            }
            Ok(Verdict::Error(error)) => {
                self.counters.icmp_errors_received += 1;
                pool.give(local.packet);
                Some(Received::IcmpError(error))
            }
            Ok(Verdict::Echo { reply, ident, seq }) => {
                self.on_echo(now, local, reply, ident, seq, pool)
            }
            Err(reason) => {
                self.drop(local.iface, local.packet, reason, pool);
                None
            }
        }
    }

    fn icmp_checksum_ok(&self, local: &Local) -> bool {
        if local.packet.meta.checksum != towpath_pool::Checksum::Unknown {
            return true;
        }
        let message = local.body();
        match (local.src, local.dst) {
            (IpAddr::V6(src), IpAddr::V6(dst)) => icmpv6::checksum_ok(message, src, dst),
            _ => icmpv4::checksum_ok(message),
        }
    }

    fn on_icmpv4(&self, local: &Local) -> Result<Verdict, DropReason> {
        use icmpv4::Message;
        let bytes = local.body();
        let (message, at) = Message::parse(bytes).map_err(|_| DropReason::IcmpMalformed)?;
        let too_big = match message {
            Message::EchoRequest { ident, seq } => {
                return Ok(Verdict::Echo { reply: false, ident, seq });
            }
            Message::EchoReply { ident, seq } => {
                return Ok(Verdict::Echo { reply: true, ident, seq });
            }
            Message::DestUnreachable { code: icmpv4::UNREACHABLE_FRAG_NEEDED, next_hop_mtu } => {
                Some(next_hop_mtu.into())
            }
            Message::DestUnreachable { .. }
            | Message::TimeExceeded { .. }
            | Message::ParamProblem { .. } => None,
            //= https://www.rfc-editor.org/rfc/rfc9293#section-3.9.2.2
            //# TCP implementations MUST silently discard any received ICMP Source Quench messages
            //# (MUST-55).
            //= https://www.rfc-editor.org/rfc/rfc6633#section-3
            //# A host MUST silently discard any received ICMP Source Quench messages
            _ => return Err(DropReason::IcmpIgnored),
        };
        self.error_about(local, at, too_big).map(Verdict::Error)
    }

    fn on_icmpv6(&self, local: &Local) -> Result<Verdict, DropReason> {
        use icmpv6::Message;
        let bytes = local.body();
        match bytes.first().copied().ok_or(DropReason::IcmpMalformed)? {
            // Accept neighbour discovery only on Ethernet. Other links, such as loopback, have no
            // neighbours to resolve.
            ndp::ROUTER_SOLICIT..=ndp::REDIRECT => {
                if !self.has_neighbors(local.iface) {
                    return Err(DropReason::IcmpIgnored);
                }
                return Ok(Verdict::Punt(ControlPacket::Discovery));
            }
            mld::QUERY..=mld::DONE_V1 | mld::REPORT_V2 => {
                return Ok(Verdict::Punt(ControlPacket::Listeners));
            }
            _ => {}
        }
        let (message, at) = Message::parse(bytes).map_err(|_| DropReason::IcmpMalformed)?;
        let too_big = match message {
            Message::EchoRequest { ident, seq } => {
                return Ok(Verdict::Echo { reply: false, ident, seq });
            }
            Message::EchoReply { ident, seq } => {
                return Ok(Verdict::Echo { reply: true, ident, seq });
            }
            //= https://www.rfc-editor.org/rfc/rfc8201#section-4
            //# If a node receives a Packet Too Big message reporting a next-hop MTU
            //# that is less than the IPv6 minimum link MTU, it must discard it.
            Message::PacketTooBig { mtu } if mtu < PATH_MTU_MIN_V6 => {
                return Err(DropReason::IcmpIgnored);
            }
            Message::PacketTooBig { mtu } => Some(mtu),
            Message::DestUnreachable { .. }
            | Message::TimeExceeded { .. }
            | Message::ParamProblem { .. } => None,
            _ => return Err(DropReason::IcmpIgnored),
        };
        self.error_about(local, at, too_big).map(Verdict::Error)
    }

    /// Parses an ICMP error that quotes a packet at offset `at`. Fails if this host did not send
    /// the quoted packet.
    fn error_about(
        &self,
        local: &Local,
        at: usize,
        too_big: Option<u32>,
    ) -> Result<IcmpError, DropReason> {
        // Ignore an ICMP error to a broadcast or multicast address. Errors are sent to the source
        // of a packet, and this host uses only unicast addresses as source.
        if local.broadcast_or_multicast {
            return Err(DropReason::IcmpIgnored);
        }
        let bytes = local.body();
        let message = (byte(bytes, 0), byte(bytes, 1));
        let quoted = bytes.get(at..).and_then(Quoted::read).ok_or(DropReason::IcmpMalformed)?;
        if quoted.src.is_ipv4() != local.src.is_ipv4() {
            return Err(DropReason::IcmpMalformed);
        }
        if !self.is_local(quoted.src) && !self.here().any_address {
            return Err(DropReason::IcmpIgnored);
        }
        Ok(quoted.into_error(message, too_big, local.src, local.iface))
    }

    /// Returns the ICMP error for a packet that this host sent, and whose next hop does not answer.
    /// `packet` begins with its IP header.
    pub(super) fn error_about_own(&self, iface: IfaceId, packet: &Packet) -> Option<IcmpError> {
        let quoted = Quoted::read(packet.linear())?;
        let from = quoted.src;
        // Report the same error as a router would: host unreachable for IPv4, address unreachable
        // for IPv6.
        let message = if from.is_ipv4() { (3, 1) } else { (1, 3) };
        Some(quoted.into_error(message, None, from, iface))
    }

    fn on_echo(
        &mut self,
        now: Instant,
        local: Local,
        reply: bool,
        ident: u16,
        seq: u16,
        pool: &mut Pool,
    ) -> Option<Received> {
        let stranger = self.is_any_address(local.iface) && !self.is_local(local.dst);
        if !reply && (!stranger || local.broadcast_or_multicast) {
            self.answer_echo(now, local, ident, seq, pool);
            return None;
        }
        let data_offset = local.offset + icmpv4::HEADER_LEN;
        let data_len = local.len.saturating_sub(icmpv4::HEADER_LEN);
        let echo = Echo { local, ident, seq, data_offset, data_len };
        Some(if reply { Received::EchoReply(echo) } else { Received::EchoRequest(echo) })
    }

    /// Converts a received echo request to the reply in the same buffer, and sends it.
    fn answer_echo(&mut self, now: Instant, local: Local, ident: u16, seq: u16, pool: &mut Pool) {
        let Local { mut packet, iface, src, dst, offset, tos, .. } = local;
        let v4 = src.is_ipv4();
        //= https://www.rfc-editor.org/rfc/rfc1122#section-3.2.2.6
        //# An ICMP Echo Request destined to an IP broadcast or IP
        //# multicast address MAY be silently discarded.
        let refused = v4 && local.broadcast_or_multicast || !addr::is_unicast(src);
        let own = (!local.broadcast_or_multicast).then_some(dst);
        let scope = addr::is_link_local(src).then_some(iface);
        let route = if refused { None } else { self.route(now, own, src, scope).ok() };
        let (Some(route), Some(())) = (route, packet.pull_front(offset)) else {
            return self.drop(iface, packet, DropReason::IcmpIgnored, pool);
        };
        let protocol = if v4 {
            icmpv4::Message::EchoReply { ident, seq }.emit(packet.linear_mut());
            IpProtocol::ICMP
        } else {
            icmpv6::Message::EchoReply { ident, seq }.emit(packet.linear_mut());
            IpProtocol::ICMPV6
        };
        packet.meta = towpath_pool::Meta::default();
        self.counters.echoes_answered += 1;
        // As on Linux, copy the traffic class including its ECN bits. The sender then sees the ECN
        // bits that its request had on arrival.
        let ip = Ip {
            protocol: protocol.0,
            ttl: None,
            tos,
            fragmenting: Fragmenting::Anywhere,
            flow_label: 0,
        };
        // Ignore an error, because `send` has already counted the reply as dropped.
        let _ = self.send(
            now,
            &route,
            AddressPair { src: route.src, dst: src },
            ip,
            packet,
            Some(icmpv4::CHECKSUM_OFFSET as u16),
            pool,
        );
    }
}

/// Action for a received ICMP message.
enum Verdict {
    /// Pass the message to the control part of the IP layer.
    Punt(fn(Local) -> ControlPacket),
    Error(IcmpError),
    Echo {
        reply: bool,
        ident: u16,
        seq: u16,
    },
}

/// Maximum number of bytes that are stored of the packet quoted by an ICMP error. Errors should not
/// be longer, but fragments can carry up to 64 KiB. Without this limit, a sender could fill the
/// error queue of each socket with large errors.
const QUOTE_LEN_MAX: usize = icmpv6::ERROR_PACKET_LEN_MAX;

/// Header fields of the packet that an ICMP error quotes.
struct Quoted<'a> {
    src: IpAddr,
    dst: IpAddr,
    protocol: u8,
    src_port: u16,
    dst_port: u16,
    tcp_seq: Option<SeqNum>,
    payload: &'a [u8],
}

impl<'a> Quoted<'a> {
    /// Parses a quoted IP packet, which may be truncated. Returns `None` if the first 8 bytes of
    /// its transport header are missing.
    fn read(bytes: &'a [u8]) -> Option<Self> {
        let (src, dst, protocol, at) = match bytes.first()? >> 4 {
            4 => {
                let (header, at) = ipv4::Header::parse_quoted(bytes).ok()?;
                if header.fragment_offset != 0 {
                    return None;
                }
                (header.src.into(), header.dst.into(), header.protocol, at)
            }
            _ => {
                let (header, _) = ipv6::Header::parse_quoted(bytes).ok()?;
                let chain = ipv6_ext::walk(bytes, &header).ok()?;
                if chain.fragment.is_some_and(|fragment| fragment.offset != 0) {
                    return None;
                }
                (IpAddr::V6(header.src), IpAddr::V6(header.dst), chain.upper, chain.upper_at)
            }
        };
        let [a, b, c, d, rest @ ..] = bytes.get(at..)?.first_chunk::<8>()?;
        let (first, second) = (u16::from_be_bytes([*a, *b]), u16::from_be_bytes([*c, *d]));
        let icmp = matches!(protocol, IpProtocol::ICMP | IpProtocol::ICMPV6);
        let request = matches!(
            (protocol, *a),
            (IpProtocol::ICMP, icmpv4::ECHO_REQUEST) | (IpProtocol::ICMPV6, icmpv6::ECHO_REQUEST)
        );
        let (src_port, dst_port) = match (request, icmp) {
            // For an echo request, use its identifier as the source port.
            (true, _) => (u16::from_be_bytes([rest[0], rest[1]]), 0),
            // Other ICMP messages were not sent by a socket. Use identifier 0 as the port, which no
            // echo socket has.
            (false, true) => (0, 0),
            (false, false) => (first, second),
        };
        let tcp_seq = (protocol == IpProtocol::TCP).then(|| SeqNum(u32::from_be_bytes(*rest)));
        // Payload of the quoted packet as the program sent it. For echo sockets, it includes the
        // ICMP header.
        let payload = match protocol {
            IpProtocol::UDP => bytes.get(at + towpath_wire::udp::HEADER_LEN..).unwrap_or_default(),
            _ if request => bytes.get(at..).unwrap_or_default(),
            _ => &[],
        };
        Some(Self { src, dst, protocol: protocol.0, src_port, dst_port, tcp_seq, payload })
    }

    fn into_error(
        self,
        message: (u8, u8),
        too_big: Option<u32>,
        from: IpAddr,
        iface: IfaceId,
    ) -> IcmpError {
        let Self { src, dst, protocol, src_port, dst_port, tcp_seq, payload } = self;
        let payload = payload[..payload.len().min(QUOTE_LEN_MAX)].to_vec();
        IcmpError {
            message,
            too_big,
            src,
            dst,
            protocol,
            src_port,
            dst_port,
            tcp_seq,
            from,
            iface,
            payload,
        }
    }
}

/// Returns the protocol and flow of the packet that an ICMP error quotes, as seen by the sender of
/// that packet. `bytes` begins with the IP header of the quoted packet.
pub(crate) fn quoted_flow(bytes: &[u8]) -> Option<(IpProtocol, Flow)> {
    let Quoted { src, dst, protocol, src_port, dst_port, .. } = Quoted::read(bytes)?;
    let flow = Flow { local: src, remote: dst, local_port: src_port, remote_port: dst_port };
    Some((IpProtocol(protocol), flow))
}

fn byte(bytes: &[u8], at: usize) -> u8 {
    bytes.get(at).copied().unwrap_or_default()
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Creates a packet that this host may have sent, to be quoted by an ICMP error.
    fn ours(protocol: IpProtocol, body: &[u8]) -> Vec<u8> {
        let mut packet = vec![0; ipv4::HEADER_LEN];
        packet.extend_from_slice(body);
        let header = ipv4::Header {
            tos: 0,
            total_len: packet.len() as u16,
            ident: 0,
            dont_fragment: false,
            more_fragments: false,
            fragment_offset: 0,
            ttl: 64,
            protocol,
            src: [10, 0, 0, 1].into(),
            dst: [10, 0, 0, 2].into(),
            options: ipv4::Options::EMPTY,
        };
        header.emit(&mut packet);
        packet
    }

    #[test]
    fn no_more_is_kept_of_a_quote_than_an_error_may_be_long() {
        for len in [0, 100, QUOTE_LEN_MAX, 60_000] {
            let packet = ours(IpProtocol::UDP, &vec![0; towpath_wire::udp::HEADER_LEN + len]);
            let quoted = Quoted::read(&packet).unwrap();
            let from = quoted.dst;
            let error = quoted.into_error((11, 0), None, from, IfaceId(1));
            assert_eq!(error.payload.len(), len.min(QUOTE_LEN_MAX));
        }
    }

    #[test]
    fn only_requests_are_pings_of_ours() {
        for (kind, port, len) in [(8, 7, 12), (0, 0, 0), (3, 0, 0)] {
            let packet = ours(IpProtocol::ICMP, &[kind, 0, 0, 0, 0, 7, 0, 1, 1, 2, 3, 4]);
            let quoted = Quoted::read(&packet).unwrap();
            assert_eq!((quoted.src_port, quoted.payload.len()), (port, len), "type {kind}");
        }
    }
}
