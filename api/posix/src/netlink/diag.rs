//! Answers NETLINK_SOCK_DIAG requests (sock_diag(7)), which `ss` sends, for AF_INET and AF_INET6
//! sockets.
//!
//! As in the kernel, a dump is not a consistent snapshot, because sockets may change while it is
//! created. Requests for other families fail with ENOENT, so that `ss` reads the kernel's files in
//! /proc/net for these families.

use towpath_shm::control::SocketRow;
use towpath_shm::layout::RawAddr;

use super::bytecode;
use super::codec::{NetlinkMessages, attribute, requests, u32_at};
use super::out::{AnswerBuffer, Outcome};
use crate::listing::{self, LISTEN};
use crate::{Posix, Result, identity};

/// Answers all sock_diag(7) requests in `bytes`. `port` is the port ID of the socket that sent
/// them.
pub(super) fn answer(
    posix: &'static Posix,
    bytes: &[u8],
    port: u32,
    send: &mut dyn FnMut(&[u8]) -> Result<()>,
) -> Result<()> {
    for request in requests(bytes) {
        let mut out = AnswerBuffer::new(send, request, port);
        let outcome = match (request.kind, Asked::of(request.body)) {
            (kind, _) if kind < NLMSG_MIN_TYPE => Ok(()),
            (SOCK_DESTROY, _) => Err(libc::EPERM),
            // Reject the requests used before Linux 3.3, as a kernel without the module for them
            // does.
            (TCPDIAG_GETSOCK | DCCPDIAG_GETSOCK, _) => Err(libc::EOPNOTSUPP),
            (SOCK_DIAG_BY_FAMILY, Some(asked)) if asked.is_inet() => match out.is_dump() {
                true => dump(posix, &mut out, &asked)?,
                false => one(posix, &mut out, &asked)?,
            },
            (SOCK_DIAG_BY_FAMILY, Some(_)) => Err(libc::ENOENT),
            _ => Err(libc::EINVAL),
        };
        out.end(outcome)?;
    }
    Ok(())
}

/// A sock_diag(7) request: the parsed `struct inet_diag_req_v2`, and the filter that follows it.
struct Asked<'a> {
    family: u32,
    protocol: u32,
    extensions: u8,
    states: u32,
    /// A `struct inet_diag_sockid`: ports in network byte order, addresses, index of an interface,
    /// cookie.
    id: &'a [u8],
    filter: &'a [u8],
}

impl<'a> Asked<'a> {
    fn of(body: &'a [u8]) -> Option<Self> {
        let family = u32::from(*body.first()?);
        let Some(id) = body.get(8..REQUEST_LEN) else {
            // A request for an address family other than IPv4 and IPv6 may be shorter, and has no
            // sockid.
            let id = &[][..];
            return Some(Self { family, protocol: 0, extensions: 0, states: 0, id, filter: id });
        };
        let filter = attribute(&body[REQUEST_LEN..], INET_DIAG_REQ_BYTECODE).unwrap_or_default();
        let (protocol, extensions) = (u32::from(body[1]), body[2]);
        Some(Self { family, protocol, extensions, states: u32_at(body, 4)?, id, filter })
    }

    fn is_inet(&self) -> bool {
        matches!(self.family as i32, libc::AF_INET | libc::AF_INET6)
            && matches!(
                self.protocol as i32,
                libc::IPPROTO_TCP | libc::IPPROTO_UDP | libc::IPPROTO_RAW
            )
            && !self.id.is_empty()
    }

    /// Returns whether a socket has the requested family and protocol, and whether Linux would list
    /// it. Linux omits sockets without a port, and TCP sockets that are only bound.
    fn is_of_kind(&self, row: &SocketRow) -> bool {
        let stream = row.protocol as i32 == libc::IPPROTO_TCP;
        (row.family, row.protocol) == (self.family, self.protocol)
            && row.local.port != 0
            && !(stream && row.state == CLOSE)
    }

    fn port(&self, at: usize) -> u16 {
        self.id
            .get(at..at + 2)
            .and_then(|it| it.first_chunk())
            .map_or(0, |it| u16::from_be_bytes(*it))
    }

    fn wants(&self, row: &SocketRow) -> bool {
        let (own, peer) = (self.port(0), self.port(2));
        self.is_of_kind(row)
            && self.states & 1 << row.state != 0
            && (own == 0 || own == row.local.port)
            && (peer == 0 || peer == row.remote.port)
            && bytecode::passes(self.filter, row)
    }

    /// Returns whether a socket matches the requested addresses and ports. If `exactly` is false,
    /// listeners and unconnected sockets match as well if they would receive packets with these
    /// addresses.
    fn names(&self, row: &SocketRow, exactly: bool) -> bool {
        let address =
            |from: usize| self.id.get(from..from + octets(self.family)).unwrap_or_default();
        let local = &row.local.ip[..octets(self.family)];
        let any = local.iter().all(|byte| *byte == 0);
        if self.port(0) != row.local.port || !(address(4) == local || any && !exactly) {
            return false;
        }
        let remote = &row.remote.ip[..octets(self.family)];
        let connected = row.remote.family != 0 && row.remote.port != 0;
        match exactly {
            true => connected && self.port(2) == row.remote.port && address(20) == remote,
            false => !connected,
        }
    }
}

fn dump(posix: &'static Posix, out: &mut AnswerBuffer<'_>, asked: &Asked<'_>) -> Result<Outcome> {
    if !bytecode::is_valid(asked.filter) {
        return Ok(Err(libc::EINVAL));
    }
    listing::listeners_first(posix, |row| {
        if asked.wants(row) {
            out.begin(SOCK_DIAG_BY_FAMILY)?;
            put(posix, &mut out.datagram, asked, row);
        }
        Ok(())
    })?;
    Ok(Ok(()))
}

/// Answers with the connection between the requested addresses. If there is none, answers with the
/// listener or unconnected socket at the local address.
fn one(posix: &'static Posix, out: &mut AnswerBuffer<'_>, asked: &Asked<'_>) -> Result<Outcome> {
    let mut found: Option<(bool, SocketRow)> = None;
    listing::sockets(posix, |row| {
        let exact = asked.names(row, true);
        let better = exact || found.is_none() && asked.names(row, false);
        if asked.is_of_kind(row) && better && !found.is_some_and(|(exact, _)| exact) {
            found = Some((exact, *row));
        }
        Ok(())
    })?;
    let Some((_, row)) = found else { return Ok(Err(libc::ENOENT)) };
    let wanted = (u32_at(asked.id, 40), u32_at(asked.id, 44));
    let [low, high] = cookie(&row);
    if wanted != (Some(u32::MAX), Some(u32::MAX)) && wanted != (Some(low), Some(high)) {
        return Ok(Err(libc::ESTALE));
    }
    out.begin(SOCK_DIAG_BY_FAMILY)?;
    put(posix, &mut out.datagram, asked, &row);
    Ok(Ok(()))
}

/// Writes a `struct inet_diag_msg` about a socket, and the requested extensions.
fn put(posix: &'static Posix, to: &mut NetlinkMessages, asked: &Asked<'_>, row: &SocketRow) {
    let socket = row.slot != u32::MAX;
    to.put(&[row.family as u8, row.state as u8, row.timer as u8, row.retransmits as u8]);
    to.put(&row.local.port.to_be_bytes());
    to.put(&row.remote.port.to_be_bytes());
    to.put(&padded(&row.local, row.family));
    to.put(&padded(&row.remote, row.family));
    to.put(&row.device.to_ne_bytes());
    cookie(row).iter().for_each(|half| to.put(&half.to_ne_bytes()));
    to.put(&row.timer_ms.to_ne_bytes());
    to.put(&row.recv_q.to_ne_bytes());
    to.put(&row.send_q.to_ne_bytes());
    let uid = if socket { rustix::process::getuid().as_raw() } else { 0 };
    to.put(&uid.to_ne_bytes());
    let inode = if socket { identity::inode(row.slot, row.generation) } else { 0 };
    to.put(&inode.to_ne_bytes());
    if socket {
        put_extensions(posix, to, asked, row);
    }
    to.end();
}

fn put_extensions(
    posix: &'static Posix,
    to: &mut NetlinkMessages,
    asked: &Asked<'_>,
    row: &SocketRow,
) {
    let wants = |kind: u16| asked.extensions & 1 << (kind - 1) != 0;
    let listener = row.state == LISTEN;
    let (unread, unsent) = if listener { (0, 0) } else { (row.recv_q, row.send_q) };
    if wants(INET_DIAG_MEMINFO) {
        words(to, INET_DIAG_MEMINFO, &[unread, unsent, 0, unsent]);
    }
    if wants(INET_DIAG_SKMEMINFO) {
        let memory = [unread, row.recv_buffer, unsent, row.send_buffer, 0, unsent, 0, 0, 0];
        words(to, INET_DIAG_SKMEMINFO, &memory);
    }
    if row.family == libc::AF_INET6 as u32 {
        to.attribute(INET_DIAG_SKV6ONLY, &[row.v6_only as u8]);
    }
    let stream = row.protocol as i32 == libc::IPPROTO_TCP;
    if !stream || !(wants(INET_DIAG_INFO) || wants(INET_DIAG_CONG)) {
        return;
    }
    // The socket was closed after it was listed. Report it without the extensions.
    let Ok(reply) = listing::figures(posix, row.slot) else { return };
    let payload = reply.payload();
    let (info, name) = payload.split_at(payload.len().min(reply.a as usize));
    if wants(INET_DIAG_INFO) {
        to.attribute(INET_DIAG_INFO, info);
    }
    if wants(INET_DIAG_CONG) && !name.is_empty() {
        to.text(INET_DIAG_CONG, name);
    }
}

fn words(to: &mut NetlinkMessages, kind: u16, values: &[u32]) {
    let mut bytes = [0; 36];
    for (room, value) in bytes.chunks_exact_mut(4).zip(values) {
        room.copy_from_slice(&value.to_ne_bytes());
    }
    to.attribute(kind, &bytes[..4 * values.len()]);
}

/// Returns the cookie of a socket: its slot and generation. The value is the same as that of
/// SO_COOKIE.
fn cookie(row: &SocketRow) -> [u32; 2] {
    [row.slot, row.generation]
}

fn padded(addr: &RawAddr, family: u32) -> [u8; 16] {
    let mut all = [0; 16];
    let len = octets(family);
    all[..len].copy_from_slice(&addr.ip[..len]);
    all
}

fn octets(family: u32) -> usize {
    if family == libc::AF_INET as u32 { 4 } else { 16 }
}

// Constants from linux/netlink.h, sock_diag.h, inet_diag.h and net/tcp_states.h.
const NLMSG_MIN_TYPE: u16 = 0x10;
const TCPDIAG_GETSOCK: u16 = 18;
const DCCPDIAG_GETSOCK: u16 = 19;
const SOCK_DIAG_BY_FAMILY: u16 = 20;
const SOCK_DESTROY: u16 = 21;
const INET_DIAG_REQ_BYTECODE: u16 = 1;
const INET_DIAG_MEMINFO: u16 = 1;
const INET_DIAG_INFO: u16 = 2;
const INET_DIAG_CONG: u16 = 4;
const INET_DIAG_SKMEMINFO: u16 = 7;
const INET_DIAG_SKV6ONLY: u16 = 11;
const CLOSE: u32 = 7;
/// Length in bytes of `struct inet_diag_req_v2`.
const REQUEST_LEN: usize = 56;

#[cfg(test)]
mod tests {
    use super::*;

    fn asked(states: u32) -> [u8; REQUEST_LEN] {
        let mut body = [0; REQUEST_LEN];
        body[..2].copy_from_slice(&[libc::AF_INET as u8, libc::IPPROTO_TCP as u8]);
        body[4..8].copy_from_slice(&states.to_ne_bytes());
        body
    }

    fn row(state: u32, local: &str, remote: &str) -> SocketRow {
        let addr = |text: &str| RawAddr::new(text.parse().unwrap());
        let (local, remote) = (addr(local), addr(remote));
        SocketRow { family: 2, protocol: 6, state, local, remote, ..SocketRow::default() }
    }

    #[test]
    fn dumps_are_of_states_and_ports() {
        let listener = row(LISTEN, "0.0.0.0:80", "0.0.0.0:0");
        let body = asked(1 << LISTEN);
        let of_listeners = Asked::of(&body).unwrap();
        assert!(of_listeners.wants(&listener));
        assert!(!of_listeners.wants(&row(1, "127.0.0.1:80", "127.0.0.1:1025")));
        assert!(!of_listeners.wants(&SocketRow { family: 10, ..listener }));
        assert!(!of_listeners.wants(&row(CLOSE, "0.0.0.0:80", "0.0.0.0:0")), "only bound");
        let mut body = asked(u32::MAX);
        body[8..10].copy_from_slice(&81u16.to_be_bytes());
        assert!(!Asked::of(&body).unwrap().wants(&listener));
        for len in 0..body.len() {
            assert!(Asked::of(&body[..len]).is_none_or(|asked| !asked.is_inet()), "{len}");
        }
    }

    #[test]
    fn one_is_named_by_its_ends() {
        let mut body = asked(0);
        body[8..12].copy_from_slice(&[0, 80, 4, 1]);
        body[12..16].copy_from_slice(&[127, 0, 0, 1]);
        body[28..32].copy_from_slice(&[127, 0, 0, 1]);
        let asked = Asked::of(&body).unwrap();
        let connection = row(1, "127.0.0.1:80", "127.0.0.1:1025");
        let listener = row(LISTEN, "0.0.0.0:80", "0.0.0.0:0");
        assert!(asked.names(&connection, true) && !asked.names(&connection, false));
        assert!(asked.names(&listener, false) && !asked.names(&listener, true));
        assert!(!asked.names(&row(LISTEN, "10.0.0.1:80", "0.0.0.0:0"), false));
    }
}
