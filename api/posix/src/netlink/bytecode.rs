//! Runs INET_DIAG_REQ_BYTECODE filters, into which `ss` compiles its filter expressions, as
//! `inet_diag_bc_run` of Linux does.
//!
//! An operation is four bytes: `code`, `yes`, and `no` of 16 bits. `yes` is the distance in bytes
//! to the next operation if the condition is true, `no` the distance if it is false. A socket
//! passes if the program ends exactly after the last operation.

use towpath_shm::control::SocketRow;

use super::codec::{u16_at, u32_at};
use crate::address;

/// Returns whether a socket passes the filter bytecode. No socket passes if the bytecode jumps
/// beyond its end.
pub(super) fn passes(code: &[u8], row: &SocketRow) -> bool {
    let mut rest = code;
    while !rest.is_empty() {
        let Some(step) = step(rest, row) else { return false };
        // Jump forward by at least four bytes, even if the distance is smaller. Otherwise the loop
        // might not end.
        match rest.get(step.max(4)..) {
            Some(next) => rest = next,
            None => return false,
        }
    }
    true
}

/// Returns whether the kernel would accept the filter bytecode: all jumps must lead forward, to an
/// operation or to the end.
pub(super) fn is_valid(code: &[u8]) -> bool {
    let mut at = 0;
    while at < code.len() {
        let (Some(&op), Some(&yes), Some(no)) =
            (code.get(at), code.get(at + 1), u16_at(code, at + 2))
        else {
            return false;
        };
        let arguments = match op {
            NOP | JMP | AUTO => 0,
            S_GE | S_LE | D_GE | D_LE | S_EQ | D_EQ | DEV_COND => 4,
            S_COND | D_COND => match code.get(at + 4) {
                Some(&AF_INET) => 12,
                Some(&AF_INET6) => 24,
                Some(&0) => 8,
                _ => return false,
            },
            _ => return false,
        };
        let (yes, no) = (usize::from(yes), usize::from(no));
        let end = at + 4 + arguments;
        // A jump may also lead four bytes beyond the end, which rejects the socket.
        let fits = |to: usize| to >= 4 && to.is_multiple_of(4) && at + to <= code.len() + 4;
        if !fits(yes) || (op != NOP && !fits(no)) || at + yes < end || end > code.len() {
            return false;
        }
        at += yes;
    }
    at == code.len()
}

/// Runs one operation of the filter. Returns the distance in bytes to the next operation.
fn step(code: &[u8], row: &SocketRow) -> Option<usize> {
    let (op, yes, no) = (*code.first()?, *code.get(1)?, u16_at(code, 2)?);
    // The port to compare is in the `no` field of the following operation.
    let port = || u16_at(code, 6);
    let (own, peer) = (row.local.port, row.remote.port);
    let holds = match op {
        NOP => true,
        JMP => false,
        S_EQ => own == port()?,
        S_GE => own >= port()?,
        S_LE => own <= port()?,
        D_EQ => peer == port()?,
        D_GE => peer >= port()?,
        D_LE => peer <= port()?,
        // AUTO asks whether the port was chosen automatically. The engine does not report that, so
        // the condition is false.
        AUTO => false,
        S_COND => matches(code.get(4..)?, &row.local, row.family)?,
        D_COND => matches(code.get(4..)?, &row.remote, row.family)?,
        DEV_COND => u32_at(code, 4)? == row.device,
        _ => return None,
    };
    Some(if holds { usize::from(yes) } else { usize::from(no) })
}

/// Returns whether an address matches a `struct inet_diag_hostcond`, which consists of family,
/// prefix length, padding, port (-1: any port) and address.
fn matches(cond: &[u8], addr: &towpath_shm::layout::RawAddr, family: u32) -> Option<bool> {
    let (wanted, bits, port) = (*cond.first()?, *cond.get(1)?, u32_at(cond, 4)?);
    if port != u32::MAX && port != u32::from(addr.port) {
        return Some(false);
    }
    let own: &[u8] = if family == address::INET { &addr.ip[..4] } else { &addr.ip };
    let own = match u32::from(wanted) {
        0 => own,
        wanted if wanted == family => own,
        // Match the last four bytes of an IPv4-mapped address (RFC 4291 §2.5.5.2) of an IPv6
        // socket.
        address::INET if own.starts_with(&[0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0xff, 0xff]) => &own[12..],
        _ => return Some(false),
    };
    let (whole, part) = (usize::from(bits / 8), bits % 8);
    let prefix = cond.get(8..).unwrap_or_default();
    if prefix.get(..whole)? != own.get(..whole)? {
        return Some(false);
    }
    let mask = !(0xffu16 >> part) as u8;
    Some(part == 0 || (prefix.get(whole)? ^ own.get(whole)?) & mask == 0)
}

// Operation codes of the filter bytecode, from linux/inet_diag.h.
const NOP: u8 = 0;
const JMP: u8 = 1;
const S_GE: u8 = 2;
const S_LE: u8 = 3;
const D_GE: u8 = 4;
const D_LE: u8 = 5;
const AUTO: u8 = 6;
const S_COND: u8 = 7;
const D_COND: u8 = 8;
const DEV_COND: u8 = 9;
const S_EQ: u8 = 11;
const D_EQ: u8 = 12;
const AF_INET: u8 = libc::AF_INET as u8;
const AF_INET6: u8 = libc::AF_INET6 as u8;

#[cfg(test)]
mod tests {
    use super::*;
    use towpath_shm::layout::RawAddr;

    fn row(local: &str, remote: &str) -> SocketRow {
        let addr = |text: &str| RawAddr::new(text.parse().unwrap());
        SocketRow {
            local: addr(local),
            remote: addr(remote),
            family: u32::from(addr(local).family),
            ..SocketRow::default()
        }
    }

    fn op(code: u8, yes: u8, no: u16) -> Vec<u8> {
        [&[code, yes][..], &no.to_ne_bytes()].concat()
    }

    /// Socket filter that `ss` creates for `sport ge :80 and sport le :90`. A condition that fails
    /// jumps four bytes beyond the end, which means that the socket is not listed.
    fn range() -> Vec<u8> {
        [op(S_GE, 8, 20), op(0, 0, 80), op(S_LE, 8, 12), op(0, 0, 90)].concat()
    }

    #[test]
    fn ports_and_addresses_are_compared() {
        for (port, passed) in [(79, false), (80, true), (90, true), (91, false)] {
            let row = row(&format!("127.0.0.1:{port}"), "0.0.0.0:0");
            assert_eq!(passes(&range(), &row), passed, "{port}");
        }
        let net = |last: u8| {
            [&op(D_COND, 16, 20)[..], &[AF_INET, 9, 0, 0], &[0xff; 4], &[10, last, 0, 0]].concat()
        };
        let to = row("127.0.0.1:1", "10.127.0.1:80");
        assert!(passes(&net(1), &to) && !passes(&net(128), &to));
        let mapped = SocketRow { family: address::INET6, ..row("[::1]:1", "[::ffff:10.1.0.1]:80") };
        assert!(passes(&net(1), &mapped) && !passes(&net(128), &mapped));
    }

    #[test]
    fn bad_bytecode_lets_nothing_pass_and_ends() {
        let row = row("127.0.0.1:80", "0.0.0.0:0");
        for len in 1..16 {
            assert!(!passes(&range()[..len], &row) || len % 4 == 0, "{len}");
        }
        assert!(!passes(&op(99, 4, 4), &row));
        // An operation with distance 0 must not cause an endless loop.
        assert!(passes(&op(NOP, 0, 0), &row));
    }
}
