//! Joins multicast groups, and reports them to routers and snooping switches: MLD (RFC 3810, RFC
//! 2710) and IGMP (RFC 3376, RFC 2236). The module `groups` stores the sources for each group.

use core::net::{IpAddr, Ipv4Addr, Ipv6Addr};
use core::time::Duration;

use towpath_pool::{LinkType, Packet, Pool};
use towpath_tcp::Instant;
use towpath_wire::mld::RecordKind;
use towpath_wire::ndp::Envelope;
use towpath_wire::{IpProtocol, addr, igmp, ipv4, ipv6, ipv6_ext, mld};

use super::groups::{Change, Version, Wanted, is_reported};
use super::schedule::Task;
use super::tables::Control;
use crate::drop::DropReason;
use crate::net::iface::IfaceId;
use crate::net::limits::{ROBUSTNESS, UNSOLICITED_REPORT_INTERVAL};
use crate::net::messages::DataCommand;
use crate::net::received::Local;

/// A group record in an IGMP or MLD report.
struct Record {
    kind: RecordKind,
    group: IpAddr,
    sources: Vec<IpAddr>,
}

impl Control {
    /// Joins the multicast group `group` on the interface `iface`. If `source` is given, the
    /// routers on the link are asked only for packets from this source. Each member socket filters
    /// sources itself. Joins are counted. Returns false if the address is not a multicast group, or
    /// a limit is reached.
    pub(in crate::net) fn join_group(
        &mut self,
        now: Instant,
        iface: IfaceId,
        group: IpAddr,
        source: Option<IpAddr>,
    ) -> bool {
        if !group.is_multicast() || self.interface(iface).is_none() {
            return false;
        }
        let Some(change) = self.ifaces[iface.index()].groups.join(group, source) else {
            return false;
        };
        self.changed.groups = true;
        self.report_change(now, iface, group, change);
        self.publish();
        true
    }

    /// Joins a multicast group that an address of this host requires. Schedules the report of the
    /// membership for the time `at`.
    pub(super) fn join_own_group(&mut self, at: Instant, iface: IfaceId, group: IpAddr) {
        let change = self.ifaces[iface.index()].groups.join_own(group);
        self.changed.groups = true;
        self.report_change(at, iface, group, change);
    }

    /// Removes one join of a multicast group. Returns false if the group was not joined.
    pub(in crate::net) fn leave_group(
        &mut self,
        now: Instant,
        iface: IfaceId,
        group: IpAddr,
        source: Option<IpAddr>,
    ) -> bool {
        let Some(interface) = self.ifaces.get_mut(iface.index()) else { return false };
        let Some(change) = interface.groups.leave(group, source) else { return false };
        self.changed.groups = true;
        self.report_change(now, iface, group, change);
        self.publish();
        true
    }

    /// Schedules repeated reports about a change of a multicast group (RFC 3376 §5.1). A report
    /// contains the state at the time when it is sent. If the same group or source changes again,
    /// the new task therefore replaces the pending one.
    fn report_change(&mut self, at: Instant, iface: IfaceId, group: IpAddr, change: Change) {
        if self.ifaces[iface.index()].link != LinkType::Ethernet || !is_reported(group) {
            return;
        }
        let left = ROBUSTNESS;
        let task = match change {
            Change::Nothing => return,
            Change::Filter => {
                // The report of the group lists its sources, so cancel pending reports about single
                // sources of the group.
                self.schedule.cancel(iface, |task| task.is_report_of(group));
                Task::ReportGroup { group, left }
            }
            Change::Source(source) => {
                let same = |task: &Task| {
                    matches!(task, Task::ReportSource { group: g, source: s, .. }
                        if (*g, *s) == (group, source))
                };
                self.schedule.cancel(iface, same);
                Task::ReportSource { group, source, left }
            }
        };
        if self.schedule.has_room_for_report() {
            return self.schedule.add(at, iface, task);
        }
        // Too many reports are scheduled. Report all groups that have members instead. Routers
        // detect a group without members, because no host answers their query.
        self.counters.group_reports_full += 1;
        let at_most_ms = UNSOLICITED_REPORT_INTERVAL.as_millis() as u32;
        self.plan_answer(at, iface, group.is_ipv6(), None, at_most_ms);
    }

    /// Sends a report that a multicast group was joined or left. `left` is the number of times that
    /// the report is still to be sent, including this one.
    pub(super) fn report_group(
        &mut self,
        now: Instant,
        iface: IfaceId,
        group: IpAddr,
        left: u8,
        pool: &mut Pool,
    ) {
        let groups = &self.ifaces[iface.index()].groups;
        let (version, member) = (groups.version(now, group.is_ipv6()), groups.contains(group));
        let (kind, sources) = match groups.wanted(group) {
            Wanted::All => (RecordKind::ToExclude, Vec::new()),
            Wanted::Only(sources) => (RecordKind::ToInclude, sources),
        };
        match version {
            Version::Records => self.report(iface, &[Record { kind, group, sources }], pool),
            _ => self.report_single(iface, group, member, version, pool),
        }
        if left > 1 {
            let at = now + self.random.time_below(UNSOLICITED_REPORT_INTERVAL);
            self.schedule.add(at, iface, Task::ReportGroup { group, left: left - 1 });
        }
    }

    /// Sends a report about a source that was added to or removed from a group; see
    /// [`Self::report_group`].
    pub(super) fn report_source(
        &mut self,
        now: Instant,
        iface: IfaceId,
        group: IpAddr,
        source: IpAddr,
        left: u8,
        pool: &mut Pool,
    ) {
        let groups = &self.ifaces[iface.index()].groups;
        let (version, member) = (groups.version(now, group.is_ipv6()), groups.contains(group));
        let kind = match groups.wanted(group) {
            Wanted::Only(sources) if sources.contains(&source) => RecordKind::AllowNew,
            _ => RecordKind::BlockOld,
        };
        match version {
            Version::Records => {
                let sources = vec![source];
                self.report(iface, &[Record { kind, group, sources }], pool);
            }
            _ => self.report_single(iface, group, member, version, pool),
        }
        if left > 1 {
            let at = now + self.random.time_below(UNSOLICITED_REPORT_INTERVAL);
            self.schedule.add(at, iface, Task::ReportSource { group, source, left: left - 1 });
        }
    }

    /// Handles an MLD message from a router or from another member of a group.
    pub(super) fn receive_mld(&mut self, now: Instant, local: &Local) -> Result<(), DropReason> {
        let (iface, bytes, hop_limit) = (local.iface, local.body(), local.ttl);
        let IpAddr::V6(src) = local.src else { return Err(DropReason::IcmpMalformed) };
        if bytes.first() == Some(&mld::REPORT_V1) {
            let group = mld::reported_v1(bytes).map_err(|_| DropReason::IcmpMalformed)?;
            return self.on_other_report(now, iface, group.into());
        }
        if bytes.first() != Some(&mld::QUERY) {
            return Err(DropReason::IcmpIgnored);
        }
        let (query, _) = mld::Query::parse(bytes, src, hop_limit)
            .ok()
            .filter(|_| has_router_alert(local))
            .ok_or(DropReason::IcmpMalformed)?;
        let groups = &mut self.ifaces[iface.index()].groups;
        if query.group.is_none() && groups.on_mld_query(now, query.version) {
            self.forget_reports(iface, true);
        }
        let group = query.group.map(IpAddr::V6);
        self.plan_answer(now, iface, true, group, query.max_response_ms);
        Ok(())
    }

    /// Handles an IGMP message from a router or from another member of a group.
    pub(super) fn receive_igmp(&mut self, now: Instant, local: &Local) -> Result<(), DropReason> {
        let iface = local.iface;
        let bytes = local.body();
        // IGMP messages have TTL 1 (RFC 3376 §4), so a larger TTL means a sender off the link.
        //= https://www.rfc-editor.org/rfc/rfc3376#section-4.1.12
        //# a system MUST accept and process any Query whose IP Destination
        //# Address field contains *any* of the addresses (unicast or multicast)
        //# assigned to the interface on which the Query arrives.
        let interface = &self.ifaces[iface.index()];
        let assigned = local.dst.is_multicast() || interface.address(local.dst).is_some();
        if local.ttl != 1 || !assigned {
            return Err(DropReason::IcmpMalformed);
        }
        match bytes.first().copied() {
            Some(igmp::QUERY) => {}
            Some(igmp::REPORT_V1 | igmp::REPORT_V2) => {
                let group = igmp::reported(bytes).map_err(|_| DropReason::IcmpMalformed)?;
                return self.on_other_report(now, iface, group.into());
            }
            _ => return Err(DropReason::IcmpIgnored),
        }
        let (query, _) = igmp::Query::parse(bytes).map_err(|_| DropReason::IcmpMalformed)?;
        let groups = &mut self.ifaces[iface.index()].groups;
        if query.group.is_none() && groups.on_igmp_query(now, query.version) {
            self.forget_reports(iface, false);
        }
        let group = query.group.map(IpAddr::V4);
        self.plan_answer(now, iface, false, group, query.max_response_ms);
        Ok(())
    }

    /// Cancels all reports because the queriers' version changed.
    //= https://www.rfc-editor.org/rfc/rfc3376#section-7.2.1
    //# Whenever a host changes its compatibility mode, it cancels all its
    //# pending response and retransmission timers.
    fn forget_reports(&mut self, iface: IfaceId, ipv6: bool) {
        self.schedule.cancel(iface, |task| match task {
            Task::ReportGroup { group, .. }
            | Task::ReportSource { group, .. }
            | Task::AnswerGroup { group } => group.is_ipv6() == ipv6,
            Task::AnswerAll { ipv6: of } => *of == ipv6,
            _ => false,
        });
    }

    /// Cancels our pending report about a group, because another member has reported it. The
    /// querier needs only one report per group (RFC 2236 §3, RFC 2710 §4). With IGMPv3 and MLDv2,
    /// every host sends its own reports, so nothing is cancelled.
    fn on_other_report(
        &mut self,
        now: Instant,
        iface: IfaceId,
        group: IpAddr,
    ) -> Result<(), DropReason> {
        let groups = &self.ifaces[iface.index()].groups;
        if groups.version(now, group.is_ipv6()) == Version::Records {
            return Err(DropReason::IcmpIgnored);
        }
        self.schedule.cancel(iface, |task| *task == Task::AnswerGroup { group });
        Ok(())
    }

    /// Schedules the answer to a query at a random time within the maximum that the querier gives
    /// (RFC 3376 §5.2, RFC 3810 §6.2). No answer is added if a pending answer covers the query. An
    /// answer about all groups covers every query, and an answer about one group covers queries for
    /// this group.
    fn plan_answer(
        &mut self,
        now: Instant,
        iface: IfaceId,
        ipv6: bool,
        group: Option<IpAddr>,
        max_ms: u32,
    ) {
        let max = Duration::from_millis(u64::from(max_ms).max(1));
        let at = now + self.random.time_below(max);
        let all = Task::AnswerAll { ipv6 };
        if self.schedule.when(iface, |task| *task == all).is_some_and(|pending| pending <= at) {
            return;
        }
        let groups = &self.ifaces[iface.index()].groups;
        match group {
            None if groups.version(now, ipv6) == Version::Records => {
                self.schedule.cancel(iface, |task| *task == all);
                self.schedule.add(at, iface, all);
            }
            // Choose a separate random time for each group. A host that hears the report of another
            // member of the group cancels its own report.
            None => {
                let groups: Vec<_> = groups.reported(ipv6).collect();
                let planned =
                    groups.into_iter().map(|group| (group, now + self.random.time_below(max)));
                let planned = planned.collect();
                self.schedule.plan_answers(iface, planned);
            }
            Some(group) if groups.reported(ipv6).any(|joined| joined == group) => {
                self.schedule.plan_answers(iface, [(group, at)].into());
            }
            Some(_) => {}
        }
    }

    /// Reports all multicast groups of one IP version, using the newest report version that the
    /// queriers support.
    pub(super) fn answer_all(&mut self, iface: IfaceId, ipv6: bool, pool: &mut Pool) {
        let groups = &self.ifaces[iface.index()].groups;
        let records: Vec<_> =
            groups.reported(ipv6).map(|group| current(group, groups.wanted(group))).collect();
        self.report(iface, &records, pool);
    }

    /// Sends a report about one multicast group.
    pub(super) fn answer_group(
        &mut self,
        now: Instant,
        iface: IfaceId,
        group: IpAddr,
        pool: &mut Pool,
    ) {
        let groups = &self.ifaces[iface.index()].groups;
        if !groups.contains(group) {
            return;
        }
        match groups.version(now, group.is_ipv6()) {
            Version::Records => {
                let record = current(group, groups.wanted(group));
                self.report(iface, &[record], pool);
            }
            version => self.report_single(iface, group, true, version, pool),
        }
    }

    /// Sends an IGMPv1, IGMPv2 or MLDv1 report about a group, or a leave message if the host is no
    /// longer a member.
    fn report_single(
        &mut self,
        iface: IfaceId,
        group: IpAddr,
        member: bool,
        version: Version,
        pool: &mut Pool,
    ) {
        match (group, member) {
            (IpAddr::V6(v6), true) => {
                self.send_mld(iface, v6, pool, |src, buf| mld::emit_report_v1(v6, src, buf));
            }
            (IpAddr::V6(v6), false) => {
                let dst = addr::ALL_ROUTERS;
                self.send_mld(iface, dst, pool, |src, buf| mld::emit_done_v1(v6, src, buf));
            }
            (IpAddr::V4(v4), true) => self.send_igmp(iface, v4, pool, |buf| match version {
                Version::Igmp1 => igmp::emit_report_v1(v4, buf),
                _ => igmp::emit_report_v2(v4, buf),
            }),
            // IGMPv1 has no leave message, so send nothing.
            (IpAddr::V4(_), false) if version == Version::Igmp1 => {}
            (IpAddr::V4(v4), false) => {
                let dst = addr::ALL_ROUTERS_V4;
                self.send_igmp(iface, dst, pool, |buf| igmp::emit_leave_v2(v4, buf));
            }
        }
    }

    /// Sends group records of one IP version, in as many reports as needed.
    fn report(&mut self, iface: IfaceId, records: &[Record], pool: &mut Pool) {
        let mut rest = records;
        while !rest.is_empty() {
            let mut len = REPORT_HEADER_LEN;
            let fits = rest.iter().take_while(|record| {
                len += record.len_max();
                len <= REPORT_LEN_MAX
            });
            // Send at least one record. The record always fits in a report, because
            // GROUP_SOURCES_MAX limits its sources.
            let (some, more) = rest.split_at(fits.count().max(1));
            rest = more;
            if some.iter().any(|record| record.group.is_ipv6()) {
                self.report_mld(iface, some, pool);
            } else {
                self.report_igmp(iface, some, pool);
            }
        }
    }

    fn report_mld(&mut self, iface: IfaceId, records: &[Record], pool: &mut Pool) {
        let sources: Vec<Vec<Ipv6Addr>> = records
            .iter()
            .map(|record| record.sources.iter().filter_map(|ip| v6_of(*ip)).collect())
            .collect();
        let records: Vec<_> = records
            .iter()
            .zip(&sources)
            .filter_map(|(record, sources)| {
                let group = v6_of(record.group)?;
                Some(mld::Record { kind: record.kind, group, sources })
            })
            .collect();
        self.send_mld(iface, addr::ALL_MLDV2_ROUTERS, pool, |src, buf| {
            mld::emit_report_v2(&records, src, buf)
        });
    }

    fn report_igmp(&mut self, iface: IfaceId, records: &[Record], pool: &mut Pool) {
        let sources: Vec<Vec<Ipv4Addr>> = records
            .iter()
            .map(|record| record.sources.iter().filter_map(|ip| v4_of(*ip)).collect())
            .collect();
        let records: Vec<_> = records
            .iter()
            .zip(&sources)
            .filter_map(|(record, sources)| {
                let group = v4_of(record.group)?;
                Some(igmp::Record { kind: record.kind, group, sources })
            })
            .collect();
        self.send_igmp(iface, addr::ALL_IGMPV3_ROUTERS, pool, |buf| {
            igmp::emit_report_v3(&records, buf)
        });
    }

    fn send_mld(
        &mut self,
        iface: IfaceId,
        dst: Ipv6Addr,
        pool: &mut Pool,
        emit: impl FnOnce(Ipv6Addr, &mut [u8]) -> usize,
    ) {
        let interface = &self.ifaces[iface.index()];
        //= https://www.rfc-editor.org/rfc/rfc3810#section-5.2.13
        //# An MLDv2 Report MUST be sent with a valid IPv6 link-local source
        //# address, or the unspecified address (::), if the sending interface
        //# has not acquired a valid link-local address.
        let own = interface.addresses.iter().find_map(|a| match a.addr() {
            IpAddr::V6(v6) if v6.is_unicast_link_local() && a.is_assigned() => Some(v6),
            _ => None,
        });
        let src = own.unwrap_or(Ipv6Addr::UNSPECIFIED);
        let packet = filled(pool, |buf| emit(src, buf));
        let envelope = Envelope { src, dst, hop_limit: mld::HOP_LIMIT };
        self.orders.push_back(interface.icmpv6(&envelope, packet, None));
    }

    fn send_igmp(
        &mut self,
        iface: IfaceId,
        dst: Ipv4Addr,
        pool: &mut Pool,
        emit: impl FnOnce(&mut [u8]) -> usize,
    ) {
        let interface = &self.ifaces[iface.index()];
        let own = self.own_source(iface, dst.into());
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
        self.orders.push_back(DataCommand::Packet { to: (iface, dst.into()), packet, mtu });
    }
}

impl Record {
    /// Returns the length of the record in an MLD report in bytes. In an IGMP report the record is
    /// shorter, because IPv4 addresses are.
    fn len_max(&self) -> usize {
        20 + 16 * self.sources.len()
    }
}

/// Creates the group record with which a query is answered.
fn current(group: IpAddr, wanted: Wanted) -> Record {
    match wanted {
        Wanted::All => Record { kind: RecordKind::IsExclude, group, sources: Vec::new() },
        Wanted::Only(sources) => Record { kind: RecordKind::IsInclude, group, sources },
    }
}

/// Length in bytes of the header of an IGMP or MLD report.
const REPORT_HEADER_LEN: usize = 8;
/// Maximum length of a report in bytes. With the IPv6 header and the Router Alert option, the
/// packet has the minimum MTU of IPv6.
const REPORT_LEN_MAX: usize = ipv6::MTU_MIN - ipv6::HEADER_LEN - ipv6_ext::ROUTER_ALERT_LEN;
const _: () = assert!(
    REPORT_HEADER_LEN + 20 + 16 * crate::net::limits::GROUP_SOURCES_MAX <= REPORT_LEN_MAX,
    "the record of a group fits"
);

fn filled(pool: &mut Pool, emit: impl FnOnce(&mut [u8]) -> usize) -> Packet {
    let mut packet = pool.take(REPORT_LEN_MAX);
    let bytes = packet.push_back(REPORT_LEN_MAX).expect("taken with room");
    bytes.fill(0);
    let len = emit(bytes);
    packet.truncate(len);
    packet
}

fn v4_of(ip: IpAddr) -> Option<Ipv4Addr> {
    match ip {
        IpAddr::V4(v4) => Some(v4),
        IpAddr::V6(_) => None,
    }
}

fn v6_of(ip: IpAddr) -> Option<Ipv6Addr> {
    match ip {
        IpAddr::V6(v6) => Some(v6),
        IpAddr::V4(_) => None,
    }
}

/// Returns whether an ICMPv6 packet has the Router Alert option with the value 0 for MLD (RFC 2711
/// §2.1). A packet without the option is not a valid MLD message. The option does not authenticate
/// the sender.
fn has_router_alert(local: &Local) -> bool {
    let bytes = local.packet.linear().get(local.ip_offset..).unwrap_or_default();
    let Ok((header, _)) = ipv6::Header::parse_quoted(bytes) else { return false };
    matches!(ipv6_ext::walk_hop_by_hop(bytes, &header), Ok(Some(0)))
}
