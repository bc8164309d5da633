//! Converts TCP segments to and from bytes. Unlike the stack, it supports TCP options in any order.

use std::fmt;
use std::net::{IpAddr, SocketAddr};

use towpath_wire::{IpProtocol, checksum, icmpv4, icmpv6, ipv4, ipv6};

/// Control bits of the TCP header.
pub mod flag {
    pub const FIN: u16 = 0x01;
    pub const SYN: u16 = 0x02;
    pub const RST: u16 = 0x04;
    pub const PSH: u16 = 0x08;
    pub const ACK: u16 = 0x10;
    pub const URG: u16 = 0x20;
    pub const ECE: u16 = 0x40;
    pub const CWR: u16 = 0x80;
    /// Bit of Accurate ECN (RFC 9768).
    pub const AE: u16 = 0x100;
}

/// Letters for the control bits, in the order in which scripts write them.
const LETTERS: &[(u16, char)] = &[
    (flag::FIN, 'F'),
    (flag::SYN, 'S'),
    (flag::RST, 'R'),
    (flag::PSH, 'P'),
    (flag::ECE, 'E'),
    (flag::CWR, 'W'),
    (flag::AE, 'A'),
    (flag::URG, 'U'),
    (flag::ACK, '.'),
];

/// TCP option in the header of a segment.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum TcpOption {
    End,
    Nop,
    Mss(u16),
    WindowScale(u8),
    SackPermitted,
    Sack(Vec<(u32, u32)>),
    Timestamps {
        value: u32,
        echo: u32,
    },
    FastOpen(Vec<u8>),
    /// Fast Open option in the experimental option 254 (RFC 6994).
    FastOpenExperimental(Vec<u8>),
    Other(u8, Vec<u8>),
}

/// Magic number that identifies Fast Open in the experimental option.
const FAST_OPEN_MAGIC: [u8; 2] = [0xf9, 0x89];

impl TcpOption {
    fn emit(&self, out: &mut Vec<u8>) {
        let (kind, data): (u8, Vec<u8>) = match self {
            Self::End => return out.push(0),
            Self::Nop => return out.push(1),
            Self::Mss(mss) => (2, mss.to_be_bytes().to_vec()),
            Self::WindowScale(shift) => (3, vec![*shift]),
            Self::SackPermitted => (4, Vec::new()),
            Self::Sack(blocks) => {
                let words = blocks.iter().flat_map(|block| [block.0, block.1]);
                (5, words.flat_map(u32::to_be_bytes).collect())
            }
            Self::Timestamps { value, echo } => {
                (8, [value.to_be_bytes(), echo.to_be_bytes()].concat())
            }
            Self::FastOpen(cookie) => (34, cookie.clone()),
            Self::FastOpenExperimental(cookie) => (254, [&FAST_OPEN_MAGIC[..], cookie].concat()),
            Self::Other(kind, data) => (*kind, data.clone()),
        };
        // Ignore an overflow of the length, because `emit_segment` refuses options that are too
        // long for the header.
        out.extend([kind, (data.len() as u8).wrapping_add(2)]);
        out.extend(data);
    }

    fn parse(kind: u8, data: &[u8]) -> Self {
        let word = |at: usize| {
            let bytes = data.get(at..at + 4).and_then(|bytes| bytes.try_into().ok());
            u32::from_be_bytes(bytes.unwrap_or_default())
        };
        match (kind, data) {
            (2, [a, b]) => Self::Mss(u16::from_be_bytes([*a, *b])),
            (3, [shift]) => Self::WindowScale(*shift),
            (4, []) => Self::SackPermitted,
            (5, _) if data.len().is_multiple_of(8) => {
                Self::Sack((0..data.len()).step_by(8).map(|at| (word(at), word(at + 4))).collect())
            }
            (8, _) if data.len() == 8 => Self::Timestamps { value: word(0), echo: word(4) },
            (34, cookie) => Self::FastOpen(cookie.to_vec()),
            (254, [0xf9, 0x89, cookie @ ..]) => Self::FastOpenExperimental(cookie.to_vec()),
            _ => Self::Other(kind, data.to_vec()),
        }
    }
}

impl fmt::Display for TcpOption {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let hex = |bytes: &[u8]| bytes.iter().map(|b| format!("{b:02x}")).collect::<String>();
        let named = |name: &str, bytes: &[u8]| format!("{name} {}", hex(bytes)).trim().to_owned();
        let text = match self {
            Self::End => "eol".to_owned(),
            Self::Nop => "nop".to_owned(),
            Self::Mss(mss) => format!("mss {mss}"),
            Self::WindowScale(shift) => format!("wscale {shift}"),
            Self::SackPermitted => "sackOK".to_owned(),
            Self::Sack(blocks) => {
                let blocks = blocks.iter().map(|(left, right)| format!(" {left}:{right}"));
                format!("sack{}", blocks.collect::<String>())
            }
            Self::Timestamps { value, echo } => format!("TS val {value} ecr {echo}"),
            Self::FastOpen(cookie) => named("FO", cookie),
            Self::FastOpenExperimental(cookie) => named("FOEXP", cookie),
            Self::Other(19, data) => named("md5", data),
            Self::Other(kind, data) => named(&format!("option {kind}"), data),
        };
        f.write_str(&text)
    }
}

/// TCP segment, with the ECN field of its IP header.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct WireSegment {
    pub ecn: u8,
    pub flags: u16,
    pub seq: u32,
    pub ack: u32,
    pub window: u16,
    pub urgent: u16,
    pub options: Vec<TcpOption>,
    pub len: u32,
}

impl WireSegment {
    pub fn has(&self, flags: u16) -> bool {
        self.flags & flags == flags
    }
}

impl fmt::Display for WireSegment {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if let Some(name) = ["", "[ect1] ", "[ect0] ", "[ce] "].get(usize::from(self.ecn)) {
            f.write_str(name)?;
        }
        let letters = LETTERS.iter().filter(|(bit, _)| self.flags & bit != 0);
        let letters: String = letters.map(|(_, letter)| *letter).collect();
        let letters = if letters.is_empty() { "-" } else { &letters };
        write!(f, "{letters} {}:{}({})", self.seq, self.seq.wrapping_add(self.len), self.len)?;
        if self.has(flag::ACK) {
            write!(f, " ack {}", self.ack)?;
        }
        write!(f, " win {}", self.window)?;
        if self.has(flag::URG) {
            write!(f, " urg {}", self.urgent)?;
        }
        if self.options.is_empty() {
            return Ok(());
        }
        let options: Vec<String> = self.options.iter().map(TcpOption::to_string).collect();
        write!(f, " <{}>", options.join(","))
    }
}

/// Source and destination address of a packet.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct PacketEnds {
    pub from: SocketAddr,
    pub to: SocketAddr,
}

/// Writes a segment as an IP packet with valid checksums. The payload consists of zeros.
///
/// # Errors
/// Returns an error if the options exceed 40 bytes or are not padded to a multiple of four. Returns
/// an error if the payload does not fit an IP packet.
pub fn emit_segment(ends: PacketEnds, segment: &WireSegment) -> Result<Vec<u8>, String> {
    let mut options = Vec::new();
    segment.options.iter().for_each(|option| option.emit(&mut options));
    if options.len() > 40 || !options.len().is_multiple_of(4) {
        return Err(format!("{} bytes of options do not fit a TCP header", options.len()));
    }
    let header_len = 20 + options.len();
    if segment.len > 65_535 - 20 - header_len as u32 {
        return Err(format!("{} bytes do not fit an IP packet", segment.len));
    }
    let bits = (header_len as u16 / 4) << 12 | segment.flags;
    let mut tcp = Vec::with_capacity(header_len + segment.len as usize);
    tcp.extend(ends.from.port().to_be_bytes());
    tcp.extend(ends.to.port().to_be_bytes());
    tcp.extend(segment.seq.to_be_bytes());
    tcp.extend(segment.ack.to_be_bytes());
    tcp.extend(bits.to_be_bytes());
    tcp.extend(segment.window.to_be_bytes());
    tcp.extend([0, 0]);
    tcp.extend(segment.urgent.to_be_bytes());
    tcp.extend(options);
    tcp.resize(header_len + segment.len as usize, 0);
    let sum = match (ends.from.ip(), ends.to.ip()) {
        (IpAddr::V4(src), IpAddr::V4(dst)) => {
            checksum::pseudo_v4(src, dst, IpProtocol::TCP, tcp.len() as u16)
        }
        (IpAddr::V6(src), IpAddr::V6(dst)) => {
            checksum::pseudo_v6(src, dst, IpProtocol::TCP, tcp.len() as u32)
        }
        _ => return Err("the addresses are of two families".to_owned()),
    };
    let sum = checksum::finish(checksum::sum(&tcp, sum));
    tcp[16..18].copy_from_slice(&sum.to_be_bytes());
    Ok(emit_ip(ends, segment.ecn, IpProtocol::TCP, &tcp))
}

fn emit_ip(ends: PacketEnds, tos: u8, protocol: IpProtocol, payload: &[u8]) -> Vec<u8> {
    let mut bytes;
    match (ends.from.ip(), ends.to.ip()) {
        (IpAddr::V4(src), IpAddr::V4(dst)) => {
            let header = ipv4::Header {
                tos,
                total_len: (20 + payload.len()) as u16,
                ident: 0,
                dont_fragment: true,
                more_fragments: false,
                fragment_offset: 0,
                ttl: 64,
                protocol,
                src,
                dst,
                options: ipv4::Options::EMPTY,
            };
            bytes = vec![0; 20];
            header.emit(&mut bytes);
        }
        (IpAddr::V6(src), IpAddr::V6(dst)) => {
            let header = ipv6::Header {
                traffic_class: tos,
                flow_label: 0,
                payload_len: payload.len() as u16,
                next_header: protocol,
                hop_limit: 64,
                src,
                dst,
            };
            bytes = vec![0; 40];
            header.emit(&mut bytes);
        }
        _ => return Vec::new(),
    }
    bytes.extend(payload);
    bytes
}

/// Writes an ICMP error of `router`, which quotes the start of a packet of the stack.
pub fn emit_icmp(router: PacketEnds, kind: (u8, u8), rest: u32, quoted: &[u8]) -> Vec<u8> {
    let mut message = vec![kind.0, kind.1, 0, 0];
    message.extend(rest.to_be_bytes());
    let protocol = match (router.from.ip(), router.to.ip()) {
        (IpAddr::V6(src), IpAddr::V6(dst)) => {
            message.extend(&quoted[..quoted.len().min(1232)]);
            icmpv6::fill_checksum(&mut message, src, dst);
            IpProtocol::ICMPV6
        }
        _ => {
            message.extend(&quoted[..quoted.len().min(548)]);
            icmpv4::fill_checksum(&mut message);
            IpProtocol::ICMP
        }
    };
    emit_ip(router, 0, protocol, &message)
}

/// Parses an IP packet that contains a TCP segment. `None` if it contains none.
pub fn parse_segment(packet: &[u8]) -> Option<(PacketEnds, WireSegment)> {
    let (ecn, src, dst, protocol, payload): (u8, IpAddr, IpAddr, _, _) = match packet.first()? >> 4
    {
        4 => {
            let (ip, payload) = ipv4::Header::parse(packet).ok()?;
            (ip.tos & 3, ip.src.into(), ip.dst.into(), ip.protocol, payload)
        }
        _ => {
            let (ip, payload) = ipv6::Header::parse(packet).ok()?;
            (ip.traffic_class & 3, ip.src.into(), ip.dst.into(), ip.next_header, payload)
        }
    };
    if protocol != IpProtocol::TCP {
        return None;
    }
    let tcp = packet.get(payload)?;
    let half = |at: usize| tcp.get(at..at + 2).map(|b| u16::from_be_bytes([b[0], b[1]]));
    let word = |at: usize| Some(u32::from(half(at)?) << 16 | u32::from(half(at + 2)?));
    let bits = half(12)?;
    let header_len = usize::from(bits >> 12) * 4;
    let segment = WireSegment {
        ecn,
        flags: bits & 0x1ff,
        seq: word(4)?,
        ack: word(8)?,
        window: half(14)?,
        urgent: half(18)?,
        options: parse_options(tcp.get(20..header_len)?),
        len: (tcp.len() - header_len) as u32,
    };
    let ends =
        PacketEnds { from: SocketAddr::new(src, half(0)?), to: SocketAddr::new(dst, half(2)?) };
    Some((ends, segment))
}

fn parse_options(mut bytes: &[u8]) -> Vec<TcpOption> {
    let mut options = Vec::new();
    while let Some((&kind, rest)) = bytes.split_first() {
        if kind < 2 {
            options.push(if kind == 0 { TcpOption::End } else { TcpOption::Nop });
            bytes = rest;
            continue;
        }
        let len = rest.first().map_or(0, |len| usize::from(*len));
        let Some(data) = bytes.get(2..len) else { break };
        options.push(TcpOption::parse(kind, data));
        bytes = &bytes[len..];
    }
    options
}
