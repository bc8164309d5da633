//! Writes the counters of /proc/net/snmp, netstat and sockstat.
//!
//! The stack counts IPv4 and IPv6 together. Counters of Linux that the stack does not have are 0
//! (docs/posix.md).

use towpath_shm::control::Tally;

use super::file::Text;
use crate::{Posix, Result, listing};

const TIME_WAIT: u32 = 6;
const CLOSE: u32 = 7;
const ESTABLISHED: u32 = 1;
const CLOSE_WAIT: u32 = 8;

/// Pairs of counter name and value.
type Pairs<'a> = &'a [(&'static str, u64)];

/// Writes two lines about a protocol, as in /proc/net/snmp: the names of its counters, and their
/// values.
fn put(to: &mut Text, layer: &str, pairs: Pairs<'_>) -> Result<()> {
    use std::fmt::Write;
    // Ignore the results of `write!`, because writes to `Text` cannot fail.
    let _ = write!(to, "{layer}:");
    for (name, _) in pairs {
        let _ = write!(to, " {name}");
    }
    to.end(0)?;
    let _ = write!(to, "{layer}:");
    for (name, value) in pairs {
        // For MaxConn, -1 means no limit (RFC 4022).
        let _ = match *name {
            "MaxConn" => write!(to, " -1"),
            _ => write!(to, " {value}"),
        };
    }
    to.end(0)
}

pub(super) fn snmp(posix: &'static Posix, to: &mut Text) -> Result<()> {
    let all = listing::counted(posix)?.tally;
    let mut established = 0;
    listing::sockets(posix, |row| {
        let open = matches!(row.state, ESTABLISHED | CLOSE_WAIT);
        established += u64::from(row.protocol == 6 && open);
        Ok(())
    })?;
    ip(to, &all)?;
    icmp(to, &all)?;
    tcp(to, &all, established)?;
    datagrams(to, "Udp", all.udp_received, all.udp_sent)?;
    datagrams(to, "UdpLite", 0, 0)
}

fn ip(to: &mut Text, all: &Tally) -> Result<()> {
    let pairs = [
        // The value of Forwarding is 1 for a router and 2 for a host.
        ("Forwarding", if all.ip_forwarded > 0 { 1 } else { 2 }),
        ("DefaultTTL", 64),
        ("InReceives", all.ip_received),
        ("InHdrErrors", 0),
        ("InAddrErrors", 0),
        ("ForwDatagrams", all.ip_forwarded),
        ("InUnknownProtos", 0),
        ("InDiscards", 0),
        ("InDelivers", all.ip_delivered),
        ("OutRequests", all.ip_sent),
        ("OutDiscards", 0),
        ("OutNoRoutes", 0),
        ("ReasmTimeout", 0),
        ("ReasmReqds", all.fragments),
        ("ReasmOKs", all.reassembled),
        ("ReasmFails", 0),
        ("FragOKs", all.fragmented),
        ("FragFails", 0),
        ("FragCreates", 0),
    ];
    put(to, "Ip", &pairs)
}

fn icmp(to: &mut Text, all: &Tally) -> Result<()> {
    let (errors, echoes) = (all.icmp_errors_received, all.echoes_answered);
    let pairs = [
        ("InMsgs", errors + echoes + all.echo_received),
        ("InErrors", 0),
        ("InCsumErrors", 0),
        ("InDestUnreachs", errors),
        ("InTimeExcds", 0),
        ("InParmProbs", 0),
        ("InSrcQuenchs", 0),
        ("InRedirects", 0),
        ("InEchos", echoes),
        ("InEchoReps", all.echo_received),
        ("InTimestamps", 0),
        ("InTimestampReps", 0),
        ("InAddrMasks", 0),
        ("InAddrMaskReps", 0),
        ("OutMsgs", all.icmp_errors_sent + echoes + all.echo_sent),
        ("OutErrors", 0),
        ("OutDestUnreachs", all.icmp_errors_sent),
        ("OutTimeExcds", 0),
        ("OutParmProbs", 0),
        ("OutSrcQuenchs", 0),
        ("OutRedirects", 0),
        ("OutEchos", all.echo_sent),
        ("OutEchoReps", echoes),
        ("OutTimestamps", 0),
        ("OutTimestampReps", 0),
        ("OutAddrMasks", 0),
        ("OutAddrMaskReps", 0),
    ];
    put(to, "Icmp", &pairs)
}

fn tcp(to: &mut Text, all: &Tally, established: u64) -> Result<()> {
    let pairs = [
        ("RtoAlgorithm", 1),
        ("RtoMin", 200),
        ("RtoMax", 120_000),
        ("MaxConn", 0),
        ("ActiveOpens", all.tcp_connects),
        ("PassiveOpens", all.tcp_accepts),
        ("AttemptFails", 0),
        ("EstabResets", all.tcp_failures),
        ("CurrEstab", established),
        ("InSegs", all.tcp_received),
        ("OutSegs", all.tcp_sent),
        ("RetransSegs", all.tcp_retransmits),
        ("InErrs", 0),
        ("OutRsts", all.tcp_resets_sent),
        ("InCsumErrors", 0),
    ];
    put(to, "Tcp", &pairs)
}

fn datagrams(to: &mut Text, layer: &str, received: u64, sent: u64) -> Result<()> {
    let pairs = [
        ("InDatagrams", received),
        ("NoPorts", 0),
        ("InErrors", 0),
        ("OutDatagrams", sent),
        ("RcvbufErrors", 0),
        ("SndbufErrors", 0),
        ("InCsumErrors", 0),
        ("IgnoredMulti", 0),
        ("MemErrors", 0),
    ];
    put(to, layer, &pairs)
}

/// Writes /proc/net/netstat. The stack has only a few of Linux's counters.
pub(super) fn netstat(posix: &'static Posix, to: &mut Text) -> Result<()> {
    let all = listing::counted(posix)?.tally;
    let tcp = [
        ("SyncookiesSent", all.tcp_syn_cookies_sent),
        ("SyncookiesRecv", all.tcp_syn_cookies_valid),
        ("SyncookiesFailed", all.tcp_syn_cookies_invalid),
        ("TWRecycled", all.tcp_time_wait_reused),
    ];
    put(to, "TcpExt", &tcp)?;
    put(to, "IpExt", &[("InOctets", all.ip_received_bytes), ("OutOctets", all.ip_sent_bytes)])
}

/// Number of sockets of one address family, by protocol.
#[derive(Default)]
struct FamilySockets {
    used: u32,
    tcp: u32,
    allocated: u32,
    waiting: u32,
    udp: u32,
}

fn count(posix: &'static Posix, family: i32) -> Result<FamilySockets> {
    let mut all = FamilySockets::default();
    listing::sockets(posix, |row| {
        all.used += u32::from(row.slot != u32::MAX);
        let own = row.family == family as u32;
        match (row.protocol, row.state) {
            // As on Linux, the counters `waiting` and `allocated` cover both address families.
            (6, TIME_WAIT) => all.waiting += 1,
            (6, state) => {
                all.allocated += 1;
                all.tcp += u32::from(own && state != CLOSE);
            }
            (17, _) => all.udp += u32::from(own && row.local.port != 0),
            _ => {}
        }
        Ok(())
    })?;
    Ok(all)
}

pub(super) fn sockstat(posix: &'static Posix, to: &mut Text) -> Result<()> {
    let FamilySockets { used, tcp, allocated, waiting, udp } = count(posix, libc::AF_INET)?;
    to.line(format_args!("sockets: used {used}"), 0)?;
    to.line(format_args!("TCP: inuse {tcp} orphan 0 tw {waiting} alloc {allocated} mem 0"), 0)?;
    to.line(format_args!("UDP: inuse {udp} mem 0"), 0)?;
    to.line(format_args!("UDPLITE: inuse 0"), 0)?;
    to.line(format_args!("RAW: inuse 0"), 0)?;
    to.line(format_args!("FRAG: inuse 0 memory 0"), 0)
}

pub(super) fn sockstat6(posix: &'static Posix, to: &mut Text) -> Result<()> {
    let FamilySockets { tcp, udp, .. } = count(posix, libc::AF_INET6)?;
    to.line(format_args!("TCP6: inuse {tcp}"), 0)?;
    to.line(format_args!("UDP6: inuse {udp}"), 0)?;
    to.line(format_args!("UDPLITE6: inuse 0"), 0)?;
    to.line(format_args!("RAW6: inuse 0"), 0)?;
    to.line(format_args!("FRAG6: inuse 0 memory 0"), 0)
}
