//! Groups joined, and their reports to routers and snooping switches: MLD (RFC 3810, RFC 2710) and IGMP
//! (RFC 3376, RFC 2236).

use core::net::{IpAddr, Ipv4Addr, Ipv6Addr};
use core::time::Duration;

use towpath_pool::{LinkType, Packet, Pool};
use towpath_tcp::Instant;
use towpath_wire::ndp::Envelope;
use towpath_wire::{IpProtocol, addr, igmp, ipv4, mld};

use super::Net;
use super::iface::{IfaceId, Interface};
use super::limits::GROUPS_MAX;
use super::ndp::Control;
use super::schedule::Task;
use crate::drop::DropReason;

/// How often a join is reported: reports may be lost (RFC 3810 §9.1).
const ROBUSTNESS: u8 = 2;
/// Between the reports of a join (RFC 3810 §9.11).
const UNSOLICITED_REPORT_INTERVAL: Duration = Duration::from_secs(1);

/// The groups of an interface and how often each was joined.
#[derive(Debug, Default)]
pub(super) struct Groups(Vec<(IpAddr, u32)>);

impl Groups {
    /// Whether packets to `group` are for this host. The groups of all hosts are joined by nature.
    pub(super) fn contains(&self, group: IpAddr) -> bool {
        match group {
            IpAddr::V4(v4) if v4 == addr::ALL_HOSTS_V4 => return true,
            // All nodes, of the interface and of the link.
            IpAddr::V6(v6) if v6 == addr::ALL_NODES || v6 == INTERFACE_LOCAL_ALL_NODES => {
                return true;
            }
            _ => {}
        }
        self.0.iter().any(|(joined, _)| *joined == group)
    }

    /// Those asked about by a query: one, or all of a family.
    fn of_query(&self, ipv6: bool, wanted: Option<IpAddr>) -> Vec<IpAddr> {
        let groups = self.0.iter().map(|(group, _)| *group).filter(|group| is_reported(*group));
        groups.filter(|g| g.is_ipv6() == ipv6 && wanted.is_none_or(|wanted| wanted == *g)).collect()
    }
}

const INTERFACE_LOCAL_ALL_NODES: Ipv6Addr = Ipv6Addr::new(0xff01, 0, 0, 0, 0, 0, 0, 1);

impl Net {
    /// Takes packets to `group` from `iface`. Joins count. False when it is no group or there is no room
    /// for another.
    pub fn join_group(&mut self, now: Instant, iface: IfaceId, group: IpAddr) -> bool {
        let Some(interface) = self.ifaces.get_mut(iface.index()) else { return false };
        if !group.is_multicast() {
            return false;
        }
        let groups = &mut interface.groups.0;
        if let Some((_, count)) = groups.iter_mut().find(|(joined, _)| *joined == group) {
            *count += 1;
            return true;
        }
        if groups.len() >= GROUPS_MAX {
            return false;
        }
        groups.push((group, 1));
        if reports(interface, group) {
            self.schedule.add(now, iface, Task::ReportJoin { group, left: ROBUSTNESS });
        }
        true
    }

    /// Whether packets to `group` that come from `iface` are for this host.
    pub fn is_member(&self, iface: IfaceId, group: IpAddr) -> bool {
        self.ifaces.get(iface.index()).is_some_and(|interface| interface.groups.contains(group))
    }

    /// Undoes one join. False when there was none.
    pub fn leave_group(&mut self, now: Instant, iface: IfaceId, group: IpAddr) -> bool {
        let Some(interface) = self.ifaces.get_mut(iface.index()) else { return false };
        let groups = &mut interface.groups.0;
        let Some(at) = groups.iter().position(|(joined, _)| *joined == group) else { return false };
        groups[at].1 -= 1;
        if groups[at].1 > 0 {
            return true;
        }
        groups.remove(at);
        let joining =
            |task: &Task| matches!(task, Task::ReportJoin { group: g, .. } if *g == group);
        self.schedule.cancel(iface, joining);
        if reports(&self.ifaces[iface.index()], group) {
            self.schedule.add(now, iface, Task::ReportLeave { group });
        }
        true
    }

    pub(super) fn report_join(
        &mut self,
        now: Instant,
        iface: IfaceId,
        group: IpAddr,
        left: u8,
        pool: &mut Pool,
    ) {
        self.report(now, iface, mld::RecordKind::ToExclude, &[group], pool);
        if left > 1 {
            let at = now + self.up_to(UNSOLICITED_REPORT_INTERVAL);
            self.schedule.add(at, iface, Task::ReportJoin { group, left: left - 1 });
        }
    }

    pub(super) fn report_leave(
        &mut self,
        now: Instant,
        iface: IfaceId,
        group: IpAddr,
        pool: &mut Pool,
    ) {
        self.report(now, iface, mld::RecordKind::ToInclude, &[group], pool);
    }

    /// A query of an MLD router.
    pub(super) fn receive_mld(
        &mut self,
        now: Instant,
        control: Control<'_>,
    ) -> Result<(), DropReason> {
        if control.bytes.first() != Some(&mld::QUERY) {
            return Err(DropReason::IcmpIgnored);
        }
        let (query, _) = mld::Query::parse(control.bytes, control.src, control.hop_limit)
            .map_err(|_| DropReason::IcmpMalformed)?;
        let old = query.version == mld::Version::V1;
        let group = query.group.map(IpAddr::V6);
        let wait = query.max_response_ms;
        self.plan_answer(now, control.iface, wait, Task::AnswerQuery { ipv6: true, old, group });
        Ok(())
    }

    /// A query of an IGMP router.
    pub(super) fn receive_igmp(
        &mut self,
        now: Instant,
        iface: IfaceId,
        bytes: &[u8],
    ) -> Result<(), DropReason> {
        if bytes.first() != Some(&igmp::QUERY) {
            return Err(DropReason::IcmpIgnored);
        }
        let (query, _) = igmp::Query::parse(bytes).map_err(|_| DropReason::IcmpMalformed)?;
        let old = query.version != igmp::Version::V3;
        let group = query.group.map(IpAddr::V4);
        let wait = query.max_response_ms;
        self.plan_answer(now, iface, wait, Task::AnswerQuery { ipv6: false, old, group });
        Ok(())
    }

    /// Answers within the time the router gives, and once for queries that come meanwhile.
    fn plan_answer(&mut self, now: Instant, iface: IfaceId, max_ms: u32, task: Task) {
        let Task::AnswerQuery { ipv6, old, .. } = task else { return };
        let same = |t: &Task| matches!(t, Task::AnswerQuery { ipv6: v6, .. } if *v6 == ipv6);
        if self.schedule.has(iface, same) {
            // An answer about everything covers what both ask.
            self.schedule.cancel(iface, same);
            self.schedule.add(now, iface, Task::AnswerQuery { ipv6, old, group: None });
            return;
        }
        let at = now + self.up_to(Duration::from_millis(u64::from(max_ms).max(1)));
        self.schedule.add(at, iface, task);
    }

    pub(super) fn answer_query(
        &mut self,
        now: Instant,
        iface: IfaceId,
        (ipv6, old, group): (bool, bool, Option<IpAddr>),
        pool: &mut Pool,
    ) {
        let groups = self.ifaces[iface.index()].groups.of_query(ipv6, group);
        if !old {
            for some in groups.chunks(RECORDS_MAX) {
                self.report(now, iface, mld::RecordKind::IsExclude, some, pool);
            }
            return;
        }
        for group in groups {
            match group {
                IpAddr::V6(v6) => self
                    .send_mld(now, iface, v6, pool, |src, buf| mld::emit_report_v1(v6, src, buf)),
                IpAddr::V4(v4) => {
                    self.send_igmp(now, iface, v4, pool, |buf| igmp::emit_report_v2(v4, buf))
                }
            }
        }
    }

    /// Sends a report of the newest version about groups of one family, at most [`RECORDS_MAX`].
    fn report(
        &mut self,
        now: Instant,
        iface: IfaceId,
        kind: mld::RecordKind,
        groups: &[IpAddr],
        pool: &mut Pool,
    ) {
        let v6 = groups.iter().filter_map(|group| match group {
            IpAddr::V6(group) => Some(mld::Record { kind, group: *group, sources: &[] }),
            IpAddr::V4(_) => None,
        });
        let v4 = groups.iter().filter_map(|group| match group {
            IpAddr::V4(group) => Some(igmp::Record { kind, group: *group, sources: &[] }),
            IpAddr::V6(_) => None,
        });
        let (v6, v4): (Vec<_>, Vec<_>) = (v6.collect(), v4.collect());
        if !v6.is_empty() {
            self.send_mld(now, iface, addr::ALL_MLDV2_ROUTERS, pool, |src, buf| {
                mld::emit_report_v2(&v6, src, buf)
            });
        }
        if !v4.is_empty() {
            self.send_igmp(now, iface, addr::ALL_IGMPV3_ROUTERS, pool, |buf| {
                igmp::emit_report_v3(&v4, buf)
            });
        }
    }

    fn send_mld(
        &mut self,
        now: Instant,
        iface: IfaceId,
        dst: Ipv6Addr,
        pool: &mut Pool,
        emit: impl FnOnce(Ipv6Addr, &mut [u8]) -> usize,
    ) {
        let addresses = &self.ifaces[iface.index()].addresses;
        //= https://www.rfc-editor.org/rfc/rfc3810#section-5.2.13
        //# An MLDv2 Report MUST be sent with a valid IPv6 link-local source
        //# address, or the unspecified address (::), if the sending interface
        //# has not acquired a valid link-local address.
        let own = addresses.iter().find_map(|a| match a.addr() {
            IpAddr::V6(v6) if v6.is_unicast_link_local() && a.is_usable() => Some(v6),
            _ => None,
        });
        let src = own.unwrap_or(Ipv6Addr::UNSPECIFIED);
        let packet = filled(pool, |buf| emit(src, buf));
        let envelope = Envelope { src, dst, hop_limit: mld::HOP_LIMIT };
        self.send_control(now, iface, &envelope, packet, None, pool);
    }

    fn send_igmp(
        &mut self,
        now: Instant,
        iface: IfaceId,
        dst: Ipv4Addr,
        pool: &mut Pool,
        emit: impl FnOnce(&mut [u8]) -> usize,
    ) {
        let interface = &self.ifaces[iface.index()];
        let own = self.source_for(interface, dst.into(), dst.into());
        let src = match own {
            Some(IpAddr::V4(v4)) => v4,
            _ => Ipv4Addr::UNSPECIFIED,
        };
        let mtu = interface.mtu;
        let mut packet = filled(pool, emit);
        let options = ipv4::Options::ROUTER_ALERT;
        let mut header = ipv4::Header {
            tos: 0xc0,
            total_len: 0,
            ident: 0,
            dont_fragment: true,
            more_fragments: false,
            fragment_offset: 0,
            ttl: 1,
            protocol: IpProtocol::IGMP,
            src,
            dst,
            options,
        };
        header.total_len = (header.header_len() + packet.len()) as u16;
        header.emit(packet.push_front(header.header_len()));
        self.dispatch(now, (iface, dst.into()), false, packet, mtu, pool);
    }
}

/// Records that fit the smallest IPv6 link with one header each way.
const RECORDS_MAX: usize = 50;
/// Room for a report of that many.
const REPORT_LEN_MAX: usize = 8 + RECORDS_MAX * 20;

fn filled(pool: &mut Pool, emit: impl FnOnce(&mut [u8]) -> usize) -> Packet {
    let mut packet = pool.take(REPORT_LEN_MAX);
    let bytes = packet.push_back(REPORT_LEN_MAX).expect("taken with room");
    bytes.fill(0);
    let len = emit(bytes);
    packet.truncate(len);
    packet
}

/// Whether anybody is on the link to report to, who wants to know about `group`.
fn reports(interface: &Interface, group: IpAddr) -> bool {
    interface.link == LinkType::Ethernet && is_reported(group)
}

//= https://www.rfc-editor.org/rfc/rfc2710#section-5
//# MLD messages are never sent for multicast addresses whose scope is 0
//# (reserved) or 1 (node-local).
fn is_reported(group: IpAddr) -> bool {
    match group {
        IpAddr::V4(_) => true,
        IpAddr::V6(v6) => addr::may_be_on_link(v6),
    }
}
