//! Parses headers of the program's segments, and refuses its SYNs.

use std::net::{IpAddr, SocketAddr};
use std::os::fd::AsFd;
use towpath_shm::Fd;

use rustix::io::Errno;
use towpath_stack::{Host, PendingId, Refusal};
use towpath_wire::tcp::SeqNum;
use towpath_wire::{IpProtocol, ipv4, ipv6};

use crate::context::{Context, Shared};
use crate::icmp::About;
use crate::limits::PLAIN_TTL;

/// Returns TTL and traffic class of an IP packet, or defaults if the packet is malformed. Reads
/// only these fields, because it is called for every packet of the program.
pub(crate) fn ttl_and_tos(packet: &[u8]) -> (u8, u8) {
    match packet {
        [first, tos, _, _, _, _, _, _, ttl, ..] if first >> 4 == 4 => (*ttl, *tos),
        [first, second, _, _, _, _, _, hop_limit, ..] if first >> 4 == 6 => {
            (*hop_limit, first << 4 | second >> 4)
        }
        _ => (PLAIN_TTL, 0),
    }
}

/// Returns source, destination and sequence number of a TCP segment. Returns `None` for other
/// packets, including those with IPv6 extension headers, which a program's stack does not send with
/// TCP.
pub(crate) fn ends_of_segment(packet: &[u8]) -> Option<(SocketAddr, SocketAddr, SeqNum)> {
    let (src, dst, protocol, at): (IpAddr, IpAddr, _, _) = match packet.first()? >> 4 {
        4 => {
            let (header, at) = ipv4::Header::parse_quoted(packet).ok()?;
            (header.src.into(), header.dst.into(), header.protocol, at)
        }
        _ => {
            let (header, at) = ipv6::Header::parse_quoted(packet).ok()?;
            (header.src.into(), header.dst.into(), header.next_header, at)
        }
    };
    let [a, b, c, d, seq @ ..] = *packet.get(at..)?.first_chunk::<8>()?;
    let src = SocketAddr::new(src, u16::from_be_bytes([a, b]));
    let dst = SocketAddr::new(dst, u16::from_be_bytes([c, d]));
    (protocol == IpProtocol::TCP).then_some((src, dst, SeqNum(u32::from_be_bytes(seq))))
}

pub(crate) fn refuse(cx: &mut Context<'_, impl Host>, pending: PendingId, refusal: Refusal) {
    cx.touched = true;
    if refusal != Refusal::Ignore {
        cx.shared.counters.tcp_refused += 1;
    }
    cx.stack.refuse_pending(cx.now, pending, refusal, cx.pool);
}

/// Passes an ICMP error about the SYN of a host socket to the program. Returns false if the host's
/// kernel reported no ICMP error. `nameserver` is the destination of a connection to the DNS
/// forwarder.
pub(crate) fn report_why(
    cx: &mut Context<'_, impl Host>,
    host: &Fd,
    pending: PendingId,
    nameserver: Option<SocketAddr>,
) -> bool {
    let headers = cx.stack.pending_headers(pending);
    let Some((program, peer, seq)) = ends_of_segment(headers) else { return false };
    let to = nameserver.or_else(|| cx.shared.host_addr(peer));
    let Some(ip) = to.map(|to| to.ip()) else { return false };
    let Shared { errors, config, counters, .. } = &mut *cx.shared;
    let before = counters.icmp_errors;
    errors.hear(host.as_fd(), &[], config, counters, |report, _| {
        let about = About::Segment { program, peer, seq };
        report.icmp.is_some().then_some((about, ip))
    });
    counters.tcp_refused += u64::from(counters.icmp_errors > before);
    counters.icmp_errors > before
}

/// Returns how to refuse the program's SYN after the host connection has failed with `error`.
/// Returns `Ignore` if the program should retransmit the SYN until its own timeout: the peer timed
/// out, or a later attempt may find free resources.
pub(crate) fn refusal_for(error: Errno) -> Refusal {
    match error {
        // EADDRNOTAVAIL means that the host has no source address of the family, or no free port.
        // The kernel does not distinguish the two cases.
        Errno::NETUNREACH | Errno::NETDOWN | Errno::AFNOSUPPORT | Errno::ADDRNOTAVAIL => {
            Refusal::NetUnreachable
        }
        Errno::HOSTUNREACH | Errno::HOSTDOWN | Errno::INVAL => Refusal::HostUnreachable,
        Errno::ACCESS | Errno::PERM => Refusal::AdminProhibited,
        Errno::TIMEDOUT
        | Errno::MFILE
        | Errno::NFILE
        | Errno::NOBUFS
        | Errno::NOMEM
        | Errno::NOSPC
        | Errno::AGAIN => Refusal::Ignore,
        _ => Refusal::Reset,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_the_host_cannot_do_is_said_at_once() {
        let refusal = refusal_for(Errno::ADDRNOTAVAIL);
        assert_eq!(refusal, Refusal::NetUnreachable);
        assert_eq!(refusal_for(Errno::CONNREFUSED), Refusal::Reset);
        assert_eq!(refusal_for(Errno::TIMEDOUT), Refusal::Ignore);
    }
}
