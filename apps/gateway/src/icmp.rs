//! ICMP errors: forwards errors about a flow's packets, which the host's kernel reports, to the
//! program.
//!
//! The kernel reports type, code, reporter, and the payload quoted by the ICMP message. The
//! original packet had the host's addresses, which mean nothing to the program. Therefore the error
//! for the program quotes headers that we rebuild from the flow.

use std::collections::VecDeque;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};
use std::os::fd::BorrowedFd;

use rustix::io::Errno;
use towpath_pool::{Packet, Pool};
use towpath_stack::Host;
use towpath_stack::net::{Fragmenting, Ip};
use towpath_wire::tcp::SeqNum;
use towpath_wire::{IpProtocol, icmpv4, icmpv6, ipv4, ipv6, udp};

use crate::config::GatewayConfig;
use crate::context::Context;
use crate::counters::Counters;
use crate::limits::{ERRORS_MAX, ERRORS_PER_TURN};
use crate::sys::{self, QueuedError};

/// Queue of ICMP errors that will be sent to the program.
#[derive(Debug, Default)]
pub(crate) struct Errors {
    waiting: VecDeque<Error>,
}

/// Error that the host's kernel has reported, and that will be sent to the program.
#[derive(Debug)]
struct Error {
    about: About,
    message: Message,
    from: IpAddr,
    /// Bytes of the packet that the error quotes after the rebuilt headers.
    quote: Vec<u8>,
}

/// Packet of the program that caused an error.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum About {
    /// A datagram. The error quotes its payload.
    Datagram { program: SocketAddr, peer: SocketAddr },
    /// An echo request with this identifier. The error quotes its ICMP message.
    Echo { program: IpAddr, peer: IpAddr, ident: u16 },
    /// A SYN with this sequence number. The error quotes the first 8 bytes of its TCP header,
    /// rebuilt from these fields.
    Segment { program: SocketAddr, peer: SocketAddr, seq: SeqNum },
}

/// Header of an ICMPv4 or ICMPv6 error.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Message {
    V4(icmpv4::Message),
    V6(icmpv6::Message),
}

/// Maximum number of quoted bytes, including headers, in the longest ICMP error of each IP version.
const QUOTE_LEN_MAX: usize = icmpv6::ERROR_PACKET_LEN_MAX - ipv6::HEADER_LEN - icmpv6::HEADER_LEN;
const QUOTE_LEN_MAX_V4: usize =
    icmpv4::ERROR_PACKET_LEN_MAX - ipv4::HEADER_LEN - icmpv4::HEADER_LEN;
/// Offsets of the checksum and the identifier in ICMPv4 and ICMPv6 headers.
const CHECKSUM_AT: usize = 2;
const IDENT_AT: usize = 4;
const TTL: u8 = 64;

impl Errors {
    pub(crate) fn is_empty(&self) -> bool {
        self.waiting.is_empty()
    }

    /// Takes all reports from the error queue of a flow's socket, and returns their number.
    /// `refused` is the packet that the last send call refused, in the form that [`About`]
    /// describes. Errors that the host itself has generated quote no packet, so `refused` is quoted
    /// for them.
    ///
    /// `about` finds the packet that caused a report, and the address of its peer on the host. The
    /// closure returns `None` if the packet belongs to no flow.
    pub(crate) fn hear(
        &mut self,
        fd: BorrowedFd<'_>,
        refused: &[u8],
        config: &GatewayConfig,
        counters: &mut Counters,
        about: impl Fn(&QueuedError, &[u8]) -> Option<(About, IpAddr)>,
    ) -> usize {
        let mut heard = 0;
        let mut bytes = [0; QUOTE_LEN_MAX];
        while heard < ERRORS_PER_TURN {
            let Ok(report) = sys::recv_error(fd, &mut bytes) else { break };
            heard += 1;
            let quote = match report.icmp {
                None if report.len == 0 => refused.get(..QUOTE_LEN_MAX).unwrap_or(refused),
                _ => bytes.get(..report.len).unwrap_or_default(),
            };
            let Some((about, peer_on_host)) = about(&report, quote) else { continue };
            let Some(message) = Message::from_report(&report, about.is_v4()) else { continue };
            let from = report.from.unwrap_or(peer_on_host);
            let from = if from == peer_on_host || from.is_ipv4() != about.is_v4() {
                about.peer()
            } else {
                config.reporter_seen(from).unwrap_or(about.peer())
            };
            self.push(Error { about, message, from, quote: quote.to_vec() }, counters);
        }
        heard
    }

    /// Queues an ICMP error for a packet that the host refused with an errno, without a report in
    /// the error queue. `quote` is the part of the packet that [`About`] specifies.
    pub(crate) fn refused(
        &mut self,
        about: About,
        error: Errno,
        quote: &[u8],
        counters: &mut Counters,
    ) {
        if let Some(message) = Message::from_errno(error, about.is_v4()) {
            let quote = quote.get(..QUOTE_LEN_MAX).unwrap_or(quote).to_vec();
            self.push(Error { about, message, from: about.peer(), quote }, counters);
        }
    }

    /// Sends queued ICMP errors to the program while the link has room.
    pub(crate) fn serve(cx: &mut Context<'_, impl Host>) {
        while !cx.is_link_busy() {
            let Some(error) = cx.shared.errors.waiting.pop_front() else { break };
            if error.send(cx).is_none() {
                cx.shared.counters.icmp_errors_dropped += 1;
            }
        }
    }

    fn push(&mut self, error: Error, counters: &mut Counters) {
        //= https://www.rfc-editor.org/rfc/rfc1122#section-3.2.2
        //# An ICMP error message MUST NOT be sent as the result of
        //# receiving:
        //# *    a datagram destined to an IP broadcast or IP multicast
        //# address, or
        let to_many = match error.about.peer() {
            IpAddr::V4(peer) => peer.is_multicast() || peer.is_broadcast(),
            IpAddr::V6(peer) => peer.is_multicast(),
        };
        if to_many || self.waiting.len() >= ERRORS_MAX {
            counters.icmp_errors_dropped += 1;
        } else {
            counters.icmp_errors += 1;
            self.waiting.push_back(error);
        }
    }
}

impl About {
    fn program(&self) -> IpAddr {
        match self {
            Self::Datagram { program, .. } | Self::Segment { program, .. } => program.ip(),
            Self::Echo { program, .. } => *program,
        }
    }

    fn peer(&self) -> IpAddr {
        match self {
            Self::Datagram { peer, .. } | Self::Segment { peer, .. } => peer.ip(),
            Self::Echo { peer, .. } => *peer,
        }
    }

    fn is_v4(&self) -> bool {
        self.peer().is_ipv4()
    }

    fn protocol(&self) -> IpProtocol {
        match self {
            Self::Datagram { .. } => IpProtocol::UDP,
            Self::Segment { .. } => IpProtocol::TCP,
            Self::Echo { .. } if self.is_v4() => IpProtocol::ICMP,
            Self::Echo { .. } => IpProtocol::ICMPV6,
        }
    }

    /// Returns the transport header, rebuilt for the program, followed by the quoted bytes. Returns
    /// `None` if the quote is too short to identify the flow.
    fn transport(&self, quote: &[u8]) -> Option<Vec<u8>> {
        match self {
            Self::Datagram { program, peer } => {
                let mut datagram = vec![0; udp::HEADER_LEN];
                datagram.extend_from_slice(quote);
                let header = udp::Header {
                    src_port: program.port(),
                    dst_port: peer.port(),
                    length: datagram.len() as u16,
                    checksum: 0,
                };
                header.emit(&mut datagram);
                Some(datagram)
            }
            Self::Echo { ident, .. } => {
                let mut message = quote.to_vec();
                replace_ident(&mut message, *ident)?;
                Some(message)
            }
            Self::Segment { program, peer, seq } => {
                let ports = [program.port().to_be_bytes(), peer.port().to_be_bytes()];
                Some([&ports.concat()[..], &seq.0.to_be_bytes()].concat())
            }
        }
    }
}

impl Message {
    /// Creates the ICMP message for a report from a socket's error queue. `v4` is true if the
    /// program uses IPv4.
    fn from_report(report: &QueuedError, v4: bool) -> Option<Self> {
        // ICMPv4 and ICMPv6 use different numbers. If the report is of the other IP version, derive
        // the ICMP type from its errno.
        let Some((kind, code)) = report.icmp.filter(|_| report.v6 != v4) else {
            return match report.errno {
                Errno::MSGSIZE => Some(Self::too_big(report.info, v4)),
                error => Self::from_errno(error, v4),
            };
        };
        let rest = match (v4, kind, code) {
            (true, icmpv4::DEST_UNREACHABLE, icmpv4::UNREACHABLE_FRAG_NEEDED) => {
                report.info.min(u16::MAX.into())
            }
            // The first byte of the header's field is the pointer, for which the report contains
            // its value.
            (true, icmpv4::PARAM_PROBLEM, _) => report.info << 24,
            (true, icmpv4::DEST_UNREACHABLE | icmpv4::TIME_EXCEEDED, _) => 0,
            (false, icmpv6::DEST_UNREACHABLE..=icmpv6::PARAM_PROBLEM, _) => report.info,
            _ => return None,
        };
        let rest = rest.to_be_bytes();
        Some(if v4 {
            Self::V4(icmpv4::Message::Unknown { kind, code, rest })
        } else {
            Self::V6(icmpv6::Message::Unknown { kind, code, rest })
        })
    }

    fn too_big(mtu: u32, v4: bool) -> Self {
        if v4 {
            let code = icmpv4::UNREACHABLE_FRAG_NEEDED;
            let next_hop_mtu = mtu.min(u16::MAX.into()) as u16;
            return Self::V4(icmpv4::Message::DestUnreachable { code, next_hop_mtu });
        }
        Self::V6(icmpv6::Message::PacketTooBig { mtu })
    }

    /// Creates the ICMP message for an errno; `None` if the errno says nothing about the
    /// destination.
    fn from_errno(error: Errno, v4: bool) -> Option<Self> {
        let (code_v4, code_v6) = match error {
            Errno::CONNREFUSED => (icmpv4::UNREACHABLE_PORT, icmpv6::UNREACHABLE_PORT),
            // EINVAL: the destination is a link-local address without an interface.
            Errno::HOSTUNREACH | Errno::HOSTDOWN | Errno::INVAL => {
                (icmpv4::UNREACHABLE_HOST, icmpv6::UNREACHABLE_ADDRESS)
            }
            Errno::NETUNREACH | Errno::NETDOWN | Errno::AFNOSUPPORT | Errno::ADDRNOTAVAIL => {
                (icmpv4::UNREACHABLE_NET, icmpv6::UNREACHABLE_NO_ROUTE)
            }
            Errno::ACCESS | Errno::PERM => {
                (icmpv4::UNREACHABLE_PROHIBITED, icmpv6::UNREACHABLE_PROHIBITED)
            }
            _ => return None,
        };
        Some(if v4 {
            Self::V4(icmpv4::Message::DestUnreachable { code: code_v4, next_hop_mtu: 0 })
        } else {
            Self::V6(icmpv6::Message::DestUnreachable { code: code_v6 })
        })
    }

    /// TTL of the quoted packet: 1 for "time exceeded". Otherwise the default, because the real
    /// value is unknown.
    fn quoted_ttl(self) -> u8 {
        match self {
            Self::V4(icmpv4::Message::Unknown { kind: icmpv4::TIME_EXCEEDED, .. })
            | Self::V6(icmpv6::Message::Unknown { kind: icmpv6::TIME_EXCEEDED, .. }) => 1,
            _ => TTL,
        }
    }
}

impl Error {
    /// Sends the error to the program. Returns `None` if the quote is too short or the stack has no
    /// route.
    fn send(&self, cx: &mut Context<'_, impl Host>) -> Option<()> {
        let (packet, protocol) = self.message(cx.pool)?;
        let (src, dst) = (self.from, self.about.program());
        cx.touched = true;
        let net = &mut cx.stack.net;
        let Ok(route) = net.route(cx.now, Some(src), dst, None) else {
            cx.pool.give(packet);
            return None;
        };
        let (ttl, fragmenting) = (Some(TTL), Fragmenting::Here);
        let ip = Ip { protocol: protocol.0, ttl, tos: 0, fragmenting, flow_label: 0 };
        // Compute the checksum although the link does not need it, so that captures show a valid
        // one.
        net.send(cx.now, &route, src, dst, ip, packet, None, cx.pool).ok()
    }

    /// Returns the ICMP message and its IP protocol number.
    fn message(&self, pool: &mut Pool) -> Option<(Packet, IpProtocol)> {
        let transport = self.about.transport(&self.quote)?;
        let ends = (self.about.program(), self.about.peer(), self.from);
        let ttl = self.message.quoted_ttl();
        let protocol = self.about.protocol();
        let (body, protocol) = match (ends, self.message) {
            ((IpAddr::V4(program), IpAddr::V4(peer), IpAddr::V4(_)), Message::V4(message)) => {
                let quoted = packet_v4((program, peer), protocol, ttl, &transport);
                let quoted = quoted.get(..QUOTE_LEN_MAX_V4).unwrap_or(&quoted);
                let mut body = vec![0; icmpv4::HEADER_LEN];
                body.extend_from_slice(quoted);
                message.emit(&mut body);
                icmpv4::fill_checksum(&mut body);
                (body, IpProtocol::ICMP)
            }
            ((IpAddr::V6(program), IpAddr::V6(peer), IpAddr::V6(from)), Message::V6(message)) => {
                let quoted = packet_v6((program, peer), protocol, ttl, &transport);
                let quoted = quoted.get(..QUOTE_LEN_MAX).unwrap_or(&quoted);
                let mut body = vec![0; icmpv6::HEADER_LEN];
                body.extend_from_slice(quoted);
                message.emit(&mut body);
                icmpv6::fill_checksum(&mut body, from, program);
                (body, IpProtocol::ICMPV6)
            }
            // Unreachable: both addresses of a flow have the same IP version.
            _ => return None,
        };
        let mut packet = pool.take(body.len());
        packet.push_back(body.len()).expect("taken with room").copy_from_slice(&body);
        Some((packet, protocol))
    }
}

fn packet_v4(
    (src, dst): (Ipv4Addr, Ipv4Addr),
    protocol: IpProtocol,
    ttl: u8,
    body: &[u8],
) -> Vec<u8> {
    let mut packet = vec![0; ipv4::HEADER_LEN];
    packet.extend_from_slice(body);
    let header = ipv4::Header {
        tos: 0,
        total_len: packet.len() as u16,
        ident: 0,
        dont_fragment: true,
        more_fragments: false,
        fragment_offset: 0,
        ttl,
        protocol,
        src,
        dst,
        options: ipv4::Options::EMPTY,
    };
    header.emit(&mut packet);
    packet
}

fn packet_v6(
    (src, dst): (Ipv6Addr, Ipv6Addr),
    next_header: IpProtocol,
    hop_limit: u8,
    body: &[u8],
) -> Vec<u8> {
    let mut packet = vec![0; ipv6::HEADER_LEN];
    packet.extend_from_slice(body);
    let header = ipv6::Header {
        traffic_class: 0,
        flow_label: 0,
        payload_len: body.len() as u16,
        next_header,
        hop_limit,
        src,
        dst,
    };
    header.emit(&mut packet);
    packet
}

/// Replaces the host's identifier in a quoted echo request by that of the program, and updates the
/// checksum.
fn replace_ident(message: &mut [u8], ident: u16) -> Option<()> {
    let word = |message: &[u8], at: usize| {
        Some(u16::from_be_bytes(*message.get(at..)?.first_chunk::<2>()?))
    };
    let (checksum, before) = (word(message, CHECKSUM_AT)?, word(message, IDENT_AT)?);
    //= https://www.rfc-editor.org/rfc/rfc1624#section-3
    //# HC' = ~(~HC + ~m + m')
    let sum = u32::from(!checksum) + u32::from(!before) + u32::from(ident);
    let folded = (sum & 0xffff) + (sum >> 16);
    let checksum = !((folded & 0xffff) + (folded >> 16)) as u16;
    message.get_mut(CHECKSUM_AT..CHECKSUM_AT + 2)?.copy_from_slice(&checksum.to_be_bytes());
    message.get_mut(IDENT_AT..IDENT_AT + 2)?.copy_from_slice(&ident.to_be_bytes());
    Some(())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn error(about: About, message: Message, from: &str, quote: &[u8]) -> Vec<u8> {
        let error = Error { about, message, from: from.parse().unwrap(), quote: quote.to_vec() };
        error.message(&mut Pool::default()).unwrap().0.linear().to_vec()
    }

    fn report(v6: bool, icmp: (u8, u8), info: u32) -> QueuedError {
        let errno = Errno::HOSTUNREACH;
        QueuedError { errno, icmp: Some(icmp), v6, info, from: None, to: None, len: 0 }
    }

    #[test]
    fn errors_of_the_other_version_are_told_by_what_they_come_to() {
        // In ICMPv6, type 3 is "time exceeded" and 1 is "unreachable"; in ICMPv4, 3 is
        // "unreachable".
        let code = icmpv4::UNREACHABLE_HOST;
        let expected = Message::V4(icmpv4::Message::DestUnreachable { code, next_hop_mtu: 0 });
        assert_eq!(Message::from_report(&report(true, (3, 0), 0), true), Some(expected));
        let code = icmpv6::UNREACHABLE_ADDRESS;
        let expected = Message::V6(icmpv6::Message::DestUnreachable { code });
        assert_eq!(Message::from_report(&report(false, (3, 3), 0), false), Some(expected));
    }

    #[test]
    fn errors_quote_the_flow() {
        let (program, peer) = ("10.0.2.15:4000".parse().unwrap(), "192.0.2.1:53".parse().unwrap());
        let about = About::Datagram { program, peer };
        let message = Message::from_report(&report(false, (11, 0), 0), true).unwrap();
        let message = &error(about, message, "203.0.113.7", &[b'x'; 600]);
        assert_eq!(message.len() + ipv4::HEADER_LEN, icmpv4::ERROR_PACKET_LEN_MAX);
        assert!(icmpv4::checksum_ok(message));
        let (kind, at) = icmpv4::Message::parse(message).unwrap();
        assert_eq!(kind, icmpv4::Message::TimeExceeded { code: icmpv4::TIME_EXCEEDED_TTL });
        let (quoted, at_udp) = ipv4::Header::parse_quoted(&message[at..]).unwrap();
        assert_eq!((IpAddr::V4(quoted.dst), quoted.ttl), (peer.ip(), 1));
        let (ports, at_data) = udp::Header::parse_quoted(&message[at + at_udp..]).unwrap();
        assert_eq!((ports.src_port, ports.dst_port, ports.length), (4000, 53, 608));
        assert_eq!(message[at + at_udp + at_data], b'x');
    }

    #[test]
    fn errors_of_ipv6_keep_what_they_say() {
        let program = "[fd00:2::15]:4000".parse().unwrap();
        let about = About::Datagram { program, peer: "[2001:db8::1]:53".parse().unwrap() };
        let message = Message::from_report(&report(true, (2, 0), 1280), false).unwrap();
        let message = &error(about, message, "2001:db8:9::9", &[0; 2000]);
        assert_eq!(message.len() + ipv6::HEADER_LEN, icmpv6::ERROR_PACKET_LEN_MAX);
        let reporter = "2001:db8:9::9".parse().unwrap();
        assert!(icmpv6::checksum_ok(message, reporter, "fd00:2::15".parse().unwrap()));
        let (kind, _) = icmpv6::Message::parse(message).unwrap();
        assert_eq!(kind, icmpv6::Message::PacketTooBig { mtu: 1280 });
    }

    #[test]
    fn every_kind_keeps_type_code_and_number() {
        let v4 = |icmp, info| match Message::from_report(&report(false, icmp, info), true) {
            Some(Message::V4(message)) => {
                let mut bytes = [0; 8];
                message.emit(&mut bytes);
                Some(icmpv4::Message::parse(&bytes).unwrap().0)
            }
            _ => None,
        };
        for code in 0..=15 {
            let next_hop_mtu = if code == 4 { 1400 } else { 0 };
            let expected = icmpv4::Message::DestUnreachable { code, next_hop_mtu };
            assert_eq!(v4((3, code), next_hop_mtu.into()), Some(expected));
        }
        let expected = icmpv4::Message::ParamProblem { code: 0, pointer: 20 };
        assert_eq!(v4((12, 0), 20), Some(expected));
        for not_an_error in [0, 4, 5, 8, 13] {
            assert_eq!(v4((not_an_error, 0), 0), None);
        }
        assert_eq!(Message::from_report(&report(true, (129, 0), 0), false), None);
    }

    #[test]
    fn a_quoted_ping_is_the_programs() {
        let (program, peer) = ("10.0.2.15".parse().unwrap(), "192.0.2.1".parse().unwrap());
        let about = About::Echo { program, peer, ident: 0xbeef };
        let mut request = [0; 12];
        icmpv4::Message::EchoRequest { ident: 7, seq: 9 }.emit(&mut request);
        request[8..].copy_from_slice(b"data");
        icmpv4::fill_checksum(&mut request);
        let quoted = about.transport(&request).unwrap();
        assert!(icmpv4::checksum_ok(&quoted));
        let (message, _) = icmpv4::Message::parse(&quoted).unwrap();
        assert_eq!(message, icmpv4::Message::EchoRequest { ident: 0xbeef, seq: 9 });
        assert_eq!(about.transport(&request[..5]), None);
    }
}
