//! Writes the tables of sockets, /proc/net/tcp and similar files, in the format of Linux's
//! net/ipv4/tcp_ipv4.c and similar files.

use std::fmt;

use towpath_shm::control::SocketRow;
use towpath_shm::layout::RawAddr;

use super::file::Text;
use crate::listing::{self, LISTEN};
use crate::{Posix, Result, identity};

/// Width in bytes of the lines of /proc/net/tcp (Linux's TMPSZ - 1) and, below, of the files about
/// datagram sockets.
const TCP_WIDTH: usize = 149;
const DATAGRAM_WIDTH: usize = 127;
/// The socket state TCP_CLOSE, as Linux numbers it.
const CLOSE: u32 = 7;
const UNSET: u32 = u32::MAX;

const V4: u32 = libc::AF_INET as u32;
const V6: u32 = libc::AF_INET6 as u32;

pub(super) fn tcp4(posix: &'static Posix, to: &mut Text) -> Result<()> {
    let header = "  sl  local_address rem_address   st tx_queue rx_queue tr tm->when retrnsmt   \
                  uid  timeout inode";
    to.line(format_args!("{header}"), TCP_WIDTH)?;
    streams(posix, to, V4, TCP_WIDTH)
}

pub(super) fn tcp6(posix: &'static Posix, to: &mut Text) -> Result<()> {
    let header = "  sl  local_address                         \
                  remote_address                        \
                  st tx_queue rx_queue tr tm->when retrnsmt   uid  timeout inode";
    to.line(format_args!("{header}"), 0)?;
    streams(posix, to, V6, 0)
}

pub(super) fn udp4(posix: &'static Posix, to: &mut Text) -> Result<()> {
    datagrams4(posix, to, 17, DATAGRAM_WIDTH)
}

pub(super) fn icmp4(posix: &'static Posix, to: &mut Text) -> Result<()> {
    datagrams4(posix, to, 1, DATAGRAM_WIDTH)
}

/// Writes /proc/net/raw, which has only a header, because the stack has no raw sockets.
pub(super) fn raw4(_: &'static Posix, to: &mut Text) -> Result<()> {
    to.line(format_args!(" {HEADER4}"), 0)
}

pub(super) fn udp6(posix: &'static Posix, to: &mut Text) -> Result<()> {
    to.line(format_args!("{HEADER6}"), 0)?;
    datagrams(posix, to, (V6, 17), 0)
}

pub(super) fn icmp6(posix: &'static Posix, to: &mut Text) -> Result<()> {
    to.line(format_args!("{HEADER6}"), 0)?;
    datagrams(posix, to, (V6, 58), 0)
}

/// Writes /proc/net/raw6, which has only a header, because the stack has no raw sockets.
pub(super) fn raw6(_: &'static Posix, to: &mut Text) -> Result<()> {
    to.line(format_args!("{HEADER6}"), 0)
}

const HEADER4: &str = " sl  local_address rem_address   st tx_queue rx_queue tr tm->when \
                       retrnsmt   uid  timeout inode ref pointer drops";
const HEADER6: &str = "  sl  local_address                         \
                       remote_address                        \
                       st tx_queue rx_queue tr tm->when retrnsmt   uid  timeout inode ref \
                       pointer drops";

fn datagrams4(posix: &'static Posix, to: &mut Text, protocol: u32, width: usize) -> Result<()> {
    to.line(format_args!("  {HEADER4}"), width)?;
    datagrams(posix, to, (V4, protocol), width)
}

/// Writes the TCP connections and listeners. As on Linux, other TCP sockets are left out.
fn streams(posix: &'static Posix, to: &mut Text, family: u32, width: usize) -> Result<()> {
    let mut count = 0;
    let uid = rustix::process::getuid().as_raw();
    listing::listeners_first(posix, |row| {
        if (row.family, row.protocol) == (family, 6) && row.state != CLOSE {
            to.line(format_args!("{}", Stream { number: count, uid, row }), width)?;
            count += 1;
        }
        Ok(())
    })
}

/// Writes the datagram sockets that have a local port.
fn datagrams(posix: &'static Posix, to: &mut Text, kind: (u32, u32), width: usize) -> Result<()> {
    let uid = rustix::process::getuid().as_raw();
    listing::sockets(posix, |row| {
        if (row.family, row.protocol) == kind && row.local.port != 0 {
            to.line(format_args!("{}", Dgram { uid, row }), width)?;
        }
        Ok(())
    })
}

/// An address and port, formatted as by Linux: the 32-bit words of the address are in host byte
/// order.
struct End<'a>(u32, &'a RawAddr);

impl fmt::Display for End<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self(family, addr) = self;
        let len = if *family == V4 { 4 } else { 16 };
        for word in addr.ip[..len].chunks_exact(4) {
            let word = word.first_chunk().map_or(0, |word| u32::from_ne_bytes(*word));
            write!(f, "{word:08X}")?;
        }
        write!(f, ":{:04X}", addr.port)
    }
}

/// A line of /proc/net/tcp, which describes a TCP socket.
struct Stream<'a> {
    number: u32,
    uid: u32,
    row: &'a SocketRow,
}

impl fmt::Display for Stream<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { number, uid, row } = self;
        let socket = row.slot != u32::MAX;
        let (local, remote) = (End(row.family, &row.local), End(row.family, &row.remote));
        let (tx, rx) = queues(row);
        let inode = inode(row);
        let uid = if socket { *uid } else { 0 };
        write!(f, "{number:4}: {local} {remote} {:02X} {tx:08X}:{rx:08X} ", row.state)?;
        write!(f, "{:02X}:{:08X} ", row.timer, ticks(row.timer_ms))?;
        write!(f, "{:08X} {uid:5} {:8} {inode} ", row.retransmits, 0)?;
        if !socket {
            // Write the end of a TIME-WAIT line as Linux's `get_timewait4_sock` does.
            return write!(f, "3 {POINTER}");
        }
        let threshold = if row.ssthresh == UNSET { -1 } else { i64::from(row.ssthresh) };
        let cwnd = if row.cwnd == 0 { INITIAL_CWND } else { row.cwnd };
        let (rto, ato) = match row.state {
            LISTEN => (RTO_FIRST, 0),
            _ => (ticks(row.rto_ms), ticks(row.ato_ms)),
        };
        let threshold = if row.state == LISTEN { 0 } else { threshold };
        write!(f, "1 {POINTER} {rto} {ato} 0 {cwnd} {threshold}")
    }
}

/// A line of /proc/net/udp, which describes a datagram socket.
struct Dgram<'a> {
    uid: u32,
    row: &'a SocketRow,
}

impl fmt::Display for Dgram<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { uid, row } = self;
        let (local, remote) = (End(row.family, &row.local), End(row.family, &row.remote));
        let (tx, rx) = queues(row);
        let number = u32::from(row.local.port) % UDP_BUCKETS;
        write!(f, "{number:5}: {local} {remote} {:02X} {tx:08X}:{rx:08X} ", row.state)?;
        write!(f, "00:00000000 00000000 {uid:5} {:8} {} 2 {POINTER} 0", 0, inode(row))
    }
}

/// Returns the values of the columns for the send and receive queues, in bytes. As on Linux, those
/// of a listener are 0 and the number of connections that wait for accept(2).
fn queues(row: &SocketRow) -> (u32, u32) {
    if row.state == LISTEN { (0, row.recv_q) } else { (row.send_q, row.recv_q) }
}

fn inode(row: &SocketRow) -> u32 {
    if row.slot == u32::MAX { 0 } else { identity::inode(row.slot, row.generation) }
}

/// Converts milliseconds to clock ticks of Linux, hundredths of a second (USER_HZ).
fn ticks(ms: u32) -> u32 {
    ms / 10
}

/// Value of the column with a kernel address, hidden as with the sysctl kptr_restrict.
const POINTER: &str = "0000000000000000";
/// Initial congestion window in segments (TCP_INIT_CWND). [`RTO_FIRST`] is the initial
/// retransmission timeout in ticks of 10 ms.
const INITIAL_CWND: u32 = 10;
const RTO_FIRST: u32 = 100;
/// Number of hash buckets in Linux's table of UDP sockets, unless memory is short.
const UDP_BUCKETS: u32 = 65536;

#[cfg(test)]
mod tests {
    use super::*;

    fn row(local: &str, remote: &str) -> SocketRow {
        let addr = |text: &str| RawAddr::new(text.parse().unwrap());
        SocketRow {
            local: addr(local),
            remote: addr(remote),
            slot: 5,
            generation: 3,
            ..SocketRow::default()
        }
    }

    /// The expected lines were read from Linux 6.18 on a little-endian machine, for sockets with
    /// these inode numbers.
    #[test]
    #[cfg(target_endian = "little")]
    fn lines_are_as_linux_prints_them() {
        let listener = SocketRow {
            family: V4,
            protocol: 6,
            state: LISTEN,
            send_q: 8,
            ..row("127.0.0.1:8080", "0.0.0.0:0")
        };
        let line = Stream { number: 0, uid: 1000, row: &listener }.to_string();
        let inode = (1u32 << 31) + (1 << 20) + 5;
        assert_eq!(
            line,
            format!(
                "   0: 0100007F:1F90 00000000:0000 0A 00000000:00000000 00:00000000 \
                 00000000  1000        0 {inode} 1 0000000000000000 100 0 0 10 0"
            )
        );
        let v6 = SocketRow { family: V6, protocol: 17, state: 7, ..row("[::1]:53", "[::]:0") };
        assert_eq!(
            Dgram { uid: 0, row: &v6 }.to_string(),
            format!(
                "   53: 00000000000000000000000001000000:0035 \
                 00000000000000000000000000000000:0000 07 00000000:00000000 00:00000000 \
                 00000000     0        0 {inode} 2 0000000000000000 0"
            )
        );
        let waiting = SocketRow {
            slot: u32::MAX,
            family: V4,
            protocol: 6,
            state: 6,
            ..row("10.0.0.1:80", "10.0.0.2:1025")
        };
        let line = Stream { number: 12, uid: 1000, row: &waiting }.to_string();
        assert!(line.ends_with("     0        0 0 3 0000000000000000"), "{line}");
    }
}
