//! Handles packets that rules of the packet filter refuse: drops them, and for the action `reject`
//! sends a TCP reset or an ICMP error.

use towpath_pool::{Packet, Pool};
use towpath_tcp::Instant;
use towpath_wire::IpProtocol;
use towpath_wire::tcp::{self, Flags};

use super::ip_packet::IpPacket;
use super::refusal::RuleRefusal;
use super::report::{Offender, Report, Unreachable};
use super::tables::Data;
use crate::drop::DropReason;
use crate::net::iface::IfaceId;
use crate::net::ip::{AddressPair, Fragmenting, Ip};

/// Length of a TCP reset in bytes: a TCP header without options.
const RESET_LEN: usize = 20;

impl Data {
    /// Drops a packet that a rule refused at a hook of the packet filter. If the rule's action is
    /// `reject`, also answers the packet.
    #[cold]
    pub(super) fn refuse_at_hook(
        &mut self,
        now: Instant,
        iface: IfaceId,
        ip: &IpPacket,
        refusal: RuleRefusal,
        packet: Packet,
        pool: &mut Pool,
    ) {
        let reason = match refusal {
            RuleRefusal::Dropped => DropReason::FilterDrop,
            RuleRefusal::Fragment => DropReason::FilterFragment,
            RuleRefusal::Hidden => DropReason::FilterHidden,
            RuleRefusal::Rejected { is_answered } => {
                if is_answered {
                    self.reject(now, iface, ip, &packet, pool);
                }
                DropReason::FilterReject
            }
        };
        self.drop(iface, packet, reason, pool);
    }

    /// Answers a packet that a rule rejects: a TCP segment by a reset, another packet by an ICMP
    /// error.
    fn reject(
        &mut self,
        now: Instant,
        iface: IfaceId,
        ip: &IpPacket,
        packet: &Packet,
        pool: &mut Pool,
    ) {
        let is_tcp = ip.protocol == IpProtocol::TCP && ip.fragment.is_none();
        if is_tcp && self.send_reset(now, ip, packet, pool).is_some() {
            return;
        }
        let about = Offender::of_packet(iface, ip, false);
        let report = Report::unreachable(ip.src.is_ipv4(), Unreachable::AdminProhibited, || 0);
        self.send_error(now, packet, &about, report, pool);
    }

    /// Sends a reset in answer to a TCP segment, with the segment's destination as source, as a
    /// closed port does (RFC 9293 3.10.7.1). Returns `None` if the packet is not a valid segment.
    fn send_reset(
        &mut self,
        now: Instant,
        ip: &IpPacket,
        packet: &Packet,
        pool: &mut Pool,
    ) -> Option<()> {
        let segment = packet.linear().get(ip.offset..)?;
        let header = tcp::Header::parse(segment).ok()?;
        // A reset is not answered by another reset.
        if header.flags.contains(Flags::RST) {
            return Some(());
        }
        let payload = (ip.end - ip.offset).saturating_sub(usize::from(header.header_len)) as u32;
        let controls = [Flags::SYN, Flags::FIN].map(|flag| u32::from(header.flags.contains(flag)));
        let len = payload + controls[0] + controls[1];
        let mut reset = [0; RESET_LEN];
        reset[..2].copy_from_slice(&header.dst_port.to_be_bytes());
        reset[2..4].copy_from_slice(&header.src_port.to_be_bytes());
        reset[12] = (RESET_LEN as u8 / 4) << 4;
        if header.flags.contains(Flags::ACK) {
            reset[4..8].copy_from_slice(&header.ack.0.to_be_bytes());
            reset[13] = Flags::RST.0 as u8;
        } else {
            reset[8..12].copy_from_slice(&header.seq.0.wrapping_add(len).to_be_bytes());
            reset[13] = (Flags::RST | Flags::ACK).0 as u8;
        }
        let mut answer = pool.take(RESET_LEN);
        answer.push_back(RESET_LEN).expect("taken with room").copy_from_slice(&reset);
        let Ok(route) = self.route(now, Some(ip.dst), ip.src, None) else {
            pool.give(answer);
            return Some(());
        };
        let how = Ip {
            protocol: IpProtocol::TCP.0,
            ttl: None,
            tos: 0,
            fragmenting: Fragmenting::Anywhere,
            flow_label: 0,
        };
        let at = Some(tcp::CHECKSUM_OFFSET as u16);
        // Ignore an error. If the reset is not sent, the peer retransmits its segment, and the
        // retransmission is answered again.
        let _ =
            self.send(now, &route, AddressPair { src: ip.dst, dst: ip.src }, how, answer, at, pool);
        Some(())
    }
}
