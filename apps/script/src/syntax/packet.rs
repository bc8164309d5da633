//! Parses the packets in a script.

use super::cursor::{Cursor, SyntaxError};
use super::tree::{EcnSpec, IcmpKind, IcmpSpec, PacketSpec, TcpSpec};
use crate::wire::{TcpOption, flag};

/// Parses the description of a packet. The cursor is after the packet's direction.
pub fn parse(cursor: &mut Cursor<'_>) -> Result<PacketSpec, SyntaxError> {
    let ecn = match cursor.eat("[")? {
        true => ecn(cursor)?,
        false => EcnSpec::Any,
    };
    if cursor.eat_word("icmp")? || cursor.eat_word("icmpv6")? {
        return Ok(PacketSpec::Icmp(icmp(cursor)?));
    }
    let flags = flags(cursor)?;
    let (seq, len) = range(cursor)?;
    let mut spec = TcpSpec {
        ecn,
        flags,
        seq,
        len,
        ack: None,
        window: None,
        urgent: None,
        options: Some(Vec::new()),
    };
    if cursor.eat_word("ack")? {
        spec.ack = Some(cursor.number()?);
    }
    if cursor.eat_word("win")? {
        spec.window = Some(cursor.number()?);
    }
    if cursor.eat_word("urg")? {
        spec.urgent = Some(cursor.number()?);
    }
    if cursor.eat("<...>")? {
        spec.options = None;
    } else if cursor.eat("<")? {
        spec.options = Some(super::value::list(cursor, ">", option)?);
    }
    Ok(PacketSpec::Tcp(spec))
}

fn ecn(cursor: &mut Cursor<'_>) -> Result<EcnSpec, SyntaxError> {
    let word = cursor.word()?;
    let spec = match word {
        "noecn" => EcnSpec::Codepoint(0),
        "ect1" => EcnSpec::Codepoint(1),
        "ect0" => EcnSpec::Codepoint(2),
        "ce" => EcnSpec::Codepoint(3),
        "ect01" => EcnSpec::Ect,
        _ => return Err(cursor.error(&format!("unknown ECN field {word}"))),
    };
    cursor.expect("]")?;
    Ok(spec)
}

/// Parses control bits: letters, `.` for ACK, a digit for the three bits of AccECN, or `-` for no
/// bit.
fn flags(cursor: &mut Cursor<'_>) -> Result<u16, SyntaxError> {
    cursor.skip_space()?;
    let word = cursor.take_while(|byte| !byte.is_ascii_whitespace());
    let bit = |letter| match letter {
        'F' => Some(flag::FIN),
        'S' => Some(flag::SYN),
        'R' => Some(flag::RST),
        'P' => Some(flag::PSH),
        '.' => Some(flag::ACK),
        'U' => Some(flag::URG),
        'E' => Some(flag::ECE),
        'W' => Some(flag::CWR),
        'A' => Some(flag::AE),
        '0'..='7' => Some((letter as u16 - '0' as u16) << 6),
        '-' => Some(0),
        _ => None,
    };
    match word.chars().try_fold(0, |flags, letter| Some(flags | bit(letter)?)) {
        Some(flags) if !word.is_empty() => Ok(flags),
        _ => Err(cursor.error(&format!("'{word}' is not a set of TCP flags (FSRP.UEWA or -)"))),
    }
}

/// Parses a range of sequence numbers, which has the form `start:end(length)`.
fn range(cursor: &mut Cursor<'_>) -> Result<(u32, u32), SyntaxError> {
    let start: u32 = cursor.number()?;
    cursor.expect(":")?;
    let end: u32 = cursor.number()?;
    cursor.expect("(")?;
    let len: u32 = cursor.number()?;
    cursor.expect(")")?;
    if start.wrapping_add(len) != end {
        return Err(cursor.error(&format!("{start}:{end} does not have the length {len}")));
    }
    Ok((start, len))
}

fn option(cursor: &mut Cursor<'_>) -> Result<TcpOption, SyntaxError> {
    let word = cursor.word()?;
    Ok(match word {
        "mss" => TcpOption::Mss(cursor.number()?),
        "sackOK" => TcpOption::SackPermitted,
        "nop" => TcpOption::Nop,
        "eol" => TcpOption::End,
        "wscale" => TcpOption::WindowScale(cursor.number()?),
        "TS" => {
            cursor.expect("val")?;
            let value = cursor.number()?;
            cursor.expect("ecr")?;
            TcpOption::Timestamps { value, echo: cursor.number()? }
        }
        "sack" => {
            let mut blocks = Vec::new();
            while cursor.peek()?.is_ascii_digit() {
                let left = cursor.number()?;
                cursor.expect(":")?;
                blocks.push((left, cursor.number()?));
            }
            TcpOption::Sack(blocks)
        }
        "FO" => TcpOption::FastOpen(hex(cursor)?),
        "FOEXP" => TcpOption::FastOpenExperimental(hex(cursor)?),
        "md5" => TcpOption::Other(19, hex(cursor)?),
        "exp" => TcpOption::Other(254, hex(cursor)?),
        _ => return Err(cursor.error(&format!("unknown TCP option {word}"))),
    })
}

fn hex(cursor: &mut Cursor<'_>) -> Result<Vec<u8>, SyntaxError> {
    cursor.skip_space()?;
    let digits = cursor.take_while(|byte| byte.is_ascii_hexdigit());
    let pair = |at: usize| digits.get(at..at + 2).and_then(|s| u8::from_str_radix(s, 16).ok());
    let bytes: Option<Vec<u8>> = (0..digits.len()).step_by(2).map(pair).collect();
    bytes.ok_or_else(|| cursor.error("an odd number of hexadecimal digits"))
}

/// Names of an ICMP message's type and code, and their numbers in IPv4 and IPv6.
type IcmpRow = (&'static str, &'static str, Option<(u8, u8)>, Option<(u8, u8)>);

/// ICMP messages by the names of their type and code. If the script gives no code, the first entry
/// of the type is used.
const ICMP: &[IcmpRow] = &[
    ("unreachable", "", Some((3, 1)), Some((1, 3))),
    ("unreachable", "net_unreachable", Some((3, 0)), None),
    ("unreachable", "host_unreachable", Some((3, 1)), None),
    ("unreachable", "protocol_unreachable", Some((3, 2)), None),
    ("unreachable", "port_unreachable", Some((3, 3)), Some((1, 4))),
    ("unreachable", "frag_needed", Some((3, 4)), None),
    ("unreachable", "source_route_failed", Some((3, 5)), None),
    ("unreachable", "net_unknown", Some((3, 6)), None),
    ("unreachable", "host_unknown", Some((3, 7)), None),
    ("unreachable", "source_host_isolated", Some((3, 8)), None),
    ("unreachable", "net_prohibited", Some((3, 9)), None),
    ("unreachable", "host_prohibited", Some((3, 10)), None),
    ("unreachable", "net_unreachable_for_tos", Some((3, 11)), None),
    ("unreachable", "host_unreachable_for_tos", Some((3, 12)), None),
    ("unreachable", "comm_prohibited", Some((3, 13)), None),
    ("unreachable", "host_precedence_violation", Some((3, 14)), None),
    ("unreachable", "precedence_cutoff", Some((3, 15)), None),
    ("unreachable", "no_route", None, Some((1, 0))),
    ("unreachable", "admin_prohibited", None, Some((1, 1))),
    ("unreachable", "not_neighbor", None, Some((1, 2))),
    ("unreachable", "address_unreachable", None, Some((1, 3))),
    ("source_quench", "", Some((4, 0)), None),
    ("redirect", "", Some((5, 0)), Some((137, 0))),
    ("time_exceeded", "", Some((11, 0)), Some((3, 0))),
    ("time_exceeded", "exceeded_ttl", Some((11, 0)), None),
    ("time_exceeded", "exceeded_frag_time", Some((11, 1)), None),
    ("time_exceeded", "exceeded_hop_limit", None, Some((3, 0))),
    ("time_exceeded", "frag_reass_exceeded", None, Some((3, 1))),
    ("parameter_problem", "", Some((12, 0)), Some((4, 0))),
    ("parameter_problem", "code_0", Some((12, 0)), None),
    ("parameter_problem", "code_1", Some((12, 1)), None),
    ("parameter_problem", "code_2", Some((12, 2)), None),
    ("parameter_problem", "header_field", None, Some((4, 0))),
    ("parameter_problem", "unknown_next_header", None, Some((4, 1))),
    ("parameter_problem", "unknown_option", None, Some((4, 2))),
    ("packet_too_big", "", None, Some((2, 0))),
];

fn icmp(cursor: &mut Cursor<'_>) -> Result<IcmpSpec, SyntaxError> {
    let name = cursor.word()?;
    let mut code = "";
    if cursor.peek()?.is_ascii_alphabetic() && !cursor.rest().starts_with("mtu ") {
        code = cursor.word()?;
    }
    let row = ICMP.iter().find(|row| row.0 == name && row.1 == code);
    let Some(&(_, _, v4, v6)) = row else {
        return Err(cursor.error(&format!("unknown ICMP message {name} {code}")));
    };
    let mtu = if cursor.eat_word("mtu")? { cursor.number()? } else { 0 };
    let mut quoted = (0, 0);
    if cursor.eat("[")? {
        quoted = range(cursor)?;
        cursor.expect("]")?;
    }
    Ok(IcmpSpec { kind: IcmpKind { v4, v6 }, mtu, quoted })
}
