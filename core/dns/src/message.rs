//! DNS messages (RFC 1035): creates questions and parses answers, as far as a stub resolver needs
//! them.
//!
//! The parser accepts any bytes: it does not panic, and follows at most [`POINTERS_MAX`]
//! compression pointers per name.

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};

/// Record type A: an IPv4 address. The constants are also values of QTYPE.
pub const A: u16 = 1;
/// Record type CNAME: the canonical name of an alias.
pub const CNAME: u16 = 5;
/// Record type PTR: the name of an address.
pub const PTR: u16 = 12;
/// Record type AAAA: an IPv6 address.
pub const AAAA: u16 = 28;
/// Record type OPT, which announces EDNS(0) (RFC 6891).
const OPT: u16 = 41;
/// Record class IN: the Internet.
const IN: u16 = 1;

/// UDP payload size in bytes that questions with EDNS(0) announce; glibc's RESOLV_EDNS_BUFFER_SIZE.
const EDNS_SIZE: u16 = 1200;
/// Maximum length in bytes of an encoded name, and of one label of it (RFC 1035 §2.3.4).
const NAME_MAX: usize = 255;
const LABEL_MAX: usize = 63;
const HEADER: usize = 12;
/// Maximum number of compression pointers that are followed in a name (RFC 1035 §4.1.4). A name has
/// at most 127 labels, so more pointers form a loop.
const POINTERS_MAX: usize = 127;
/// Maximum number of CNAME records that are followed from the name of a question to its addresses.
/// BIND has the same limit.
const CHAIN_MAX: usize = 16;

/// Response codes (RCODEs) of RFC 1035 §4.1.1.
pub mod rcode {
    /// No error.
    pub const NO_ERROR: u8 = 0;
    /// FORMERR: the server could not parse the question.
    pub const FORMAT_ERROR: u8 = 1;
    /// SERVFAIL: the server failed, for example because the domain's own servers do not answer.
    pub const SERVER_FAILURE: u8 = 2;
    /// NXDOMAIN: the name does not exist.
    pub const NAME_ERROR: u8 = 3;
}

/// A DNS name in wire format: labels, each preceded by its length.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Name(Vec<u8>);

impl Name {
    /// Encodes the name that consists of `text` followed by `domain`. Returns `None` if the result
    /// is not a valid DNS name.
    pub fn new(text: &[u8], domain: &[u8]) -> Option<Self> {
        let mut wire = Vec::with_capacity(text.len() + domain.len() + 2);
        for part in [text, domain] {
            let part = part.strip_suffix(b".").unwrap_or(part);
            for label in part.split(|byte| *byte == b'.') {
                if part.is_empty() {
                    continue;
                }
                // Reject a label with an escape such as `\\.`, because host names contain none.
                if label.is_empty() || label.len() > LABEL_MAX || label.contains(&b'\\') {
                    return None;
                }
                wire.push(label.len() as u8);
                wire.extend_from_slice(label);
            }
        }
        wire.push(0);
        (wire.len() > 1 && wire.len() <= NAME_MAX).then_some(Self(wire))
    }

    /// Returns the encoded name: labels, each preceded by its length, and a zero byte.
    pub fn wire(&self) -> &[u8] {
        &self.0
    }

    /// Returns the name with `domain` appended. Returns `None` if the result is too long.
    pub fn within(&self, domain: &Self) -> Option<Self> {
        let (_, labels) = self.0.split_last()?;
        let wire = [labels, &domain.0].concat();
        (wire.len() <= NAME_MAX).then_some(Self(wire))
    }

    /// Returns the name for the reverse lookup of an address, in the domain in-addr.arpa or
    /// ip6.arpa.
    pub fn of_address(ip: IpAddr) -> Self {
        let mut text = String::new();
        match ip {
            IpAddr::V4(ip) => {
                for octet in ip.octets().iter().rev() {
                    text += &format!("{octet}.");
                }
                text += "in-addr.arpa";
            }
            IpAddr::V6(ip) => {
                for octet in ip.octets().iter().rev() {
                    text += &format!("{:x}.{:x}.", octet & 15, octet >> 4);
                }
                text += "ip6.arpa";
            }
        }
        Self::new(text.as_bytes(), b"").expect("74 bytes at most")
    }

    /// Reads the name at offset `at` of a message. Returns the name and the offset after it.
    fn read(message: &[u8], mut at: usize) -> Option<(Self, usize)> {
        let (mut wire, mut end, mut pointers) = (Vec::new(), None, 0);
        loop {
            let len = *message.get(at)?;
            at += 1;
            match len >> 6 {
                0 => {
                    wire.push(len);
                    if len == 0 {
                        break;
                    }
                    let label = message.get(at..at + usize::from(len))?;
                    wire.extend_from_slice(label);
                    at += usize::from(len);
                    if wire.len() >= NAME_MAX {
                        return None;
                    }
                }
                3 => {
                    let low = *message.get(at)?;
                    end.get_or_insert(at + 1);
                    at = usize::from(len & 0x3f) << 8 | usize::from(low);
                    pointers += 1;
                    if pointers > POINTERS_MAX {
                        return None;
                    }
                }
                // Other types of labels than plain labels and pointers are obsolete (RFC 6891 §5),
                // so reject the message.
                _ => return None,
            }
        }
        Some((Self(wire), end.unwrap_or(at)))
    }

    /// Compares two names without regard to case (RFC 4343). The length bytes between the labels
    /// are at most 63, so they are never mistaken for letters.
    fn is(&self, other: &Self) -> bool {
        self.0.eq_ignore_ascii_case(&other.0)
    }

    /// Returns the name as text if it is a valid host name. Like glibc, this rejects other names,
    /// because programs may pass names to a shell (CVE-1999-0867).
    fn host(&self) -> Option<String> {
        let mut text = String::with_capacity(self.0.len());
        let mut rest = &self.0[..];
        while let Some((&len, behind)) = rest.split_first().filter(|(len, _)| **len != 0) {
            let (label, behind) = behind.split_at_checked(usize::from(len))?;
            let fits = |byte: &u8| byte.is_ascii_alphanumeric() || matches!(byte, b'-' | b'_');
            if !label.iter().all(fits) || (text.is_empty() && label.starts_with(b"-")) {
                return None;
            }
            if !text.is_empty() {
                text.push('.');
            }
            text.push_str(std::str::from_utf8(label).ok()?);
            rest = behind;
        }
        (!text.is_empty()).then_some(text)
    }
}

/// A DNS question: a request for the records of one name and type.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Question {
    /// Name whose records are requested.
    pub name: Name,
    /// Type of the requested records, such as [`A`].
    pub kind: u16,
}

impl Question {
    /// Encodes the question as a DNS message that requests recursion.
    pub fn message(&self, id: u16, edns: bool) -> Vec<u8> {
        let mut to = Vec::with_capacity(HEADER + self.name.0.len() + 4 + 11);
        to.extend(id.to_be_bytes());
        to.extend([1, 0, 0, 1, 0, 0, 0, 0, 0, u8::from(edns)]);
        to.extend(&self.name.0);
        to.extend(self.kind.to_be_bytes());
        to.extend(IN.to_be_bytes());
        if edns {
            to.push(0);
            to.extend(OPT.to_be_bytes());
            to.extend(EDNS_SIZE.to_be_bytes());
            // The remaining fields of the OPT record are 0: extended RCODE, version, flags, and
            // data length.
            to.extend([0; 6]);
        }
        to
    }
}

/// The answer to a DNS question.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct DnsAnswer {
    /// Response code, see [`rcode`].
    pub code: u8,
    /// Whether the answer is truncated. The complete answer is available over TCP.
    pub truncated: bool,
    /// Whether the answer is lame: it has no records, and the server is neither authoritative nor
    /// recursive.
    pub lame: bool,
    /// The name of the question, followed by the names to which its CNAME records lead. The
    /// addresses belong to the last name. The list is empty if one of the names is not a valid host
    /// name.
    pub names: Vec<String>,
    /// Addresses in the A and AAAA records of the answer.
    pub addresses: Vec<IpAddr>,
    /// Host names in the PTR records of the answer.
    pub hosts: Vec<String>,
    /// Minimum time to live of the answer's records, in seconds.
    pub ttl: u32,
}

struct ResourceRecord<'a> {
    owner: Name,
    kind: u16,
    ttl: u32,
    data: &'a [u8],
    data_at: usize,
}

/// Parses the answer to `question`. Returns `None` if the message is malformed, or does not match
/// the identifier `id` or the question.
pub fn read(message: &[u8], id: u16, question: &Question) -> Option<DnsAnswer> {
    let header = message.first_chunk::<HEADER>()?;
    let count = |at: usize| u16::from_be_bytes([header[at], header[at + 1]]);
    // Ignore the message unless it is an answer: the bit QR is set, and the opcode is QUERY (0).
    if count(0) != id || header[2] & 0xf8 != 0x80 {
        return None;
    }
    let code = header[3] & 15;
    // Detect an answer of a server that is not responsible for the name (a "lame" server). Flags AA
    // and RA are clear, and there are no records. Like glibc's res_send, ask the next server then.
    let lame = header[2] & 4 == 0
        && header[3] & 0x80 == 0
        && code == rcode::NO_ERROR
        && (count(6), count(10)) == (0, 0);
    let mut answer =
        DnsAnswer { code, truncated: header[2] & 2 != 0, lame, ttl: u32::MAX, ..<_>::default() };
    // Accept an answer without a question section, because some servers omit the question if they
    // could not parse it.
    if code == rcode::FORMAT_ERROR && count(4) == 0 {
        return Some(answer);
    }
    let (name, at) = Name::read(message, HEADER)?;
    let asked = message.get(at..at + 4)?;
    let kind = question.kind.to_be_bytes();
    if count(4) != 1 || !name.is(&question.name) || asked != [kind[0], kind[1], 0, 1] {
        return None;
    }
    let (mut at, mut records) = (at + 4, Vec::new());
    for _ in 0..count(6) {
        let Some((record, end)) = record(message, at) else {
            // Skip the records of a truncated answer, because the question will be asked again over
            // TCP.
            if answer.truncated {
                return Some(answer);
            }
            return None;
        };
        at = end;
        records.extend(record);
    }
    // Use the records only if there was no error. Records of an answer that reports that the name
    // does not exist are ignored.
    if code == rcode::NO_ERROR {
        take(message, question, &records, &mut answer)?;
    }
    Some(answer)
}

/// Parses the record at offset `at`. Returns the record if its class is IN, and the offset after
/// the record.
fn record(message: &[u8], at: usize) -> Option<(Option<ResourceRecord<'_>>, usize)> {
    let (owner, at) = Name::read(message, at)?;
    let fixed = message.get(at..)?.first_chunk::<10>()?;
    let [k0, k1, c0, c1, t0, t1, t2, t3, l0, l1] = *fixed;
    let (data_at, len) = (at + 10, usize::from(u16::from_be_bytes([l0, l1])));
    let data = message.get(data_at..data_at + len)?;
    let kind = u16::from_be_bytes([k0, k1]);
    let ttl = u32::from_be_bytes([t0, t1, t2, t3]);
    let of_internet = u16::from_be_bytes([c0, c1]) == IN;
    let record = of_internet.then_some(ResourceRecord { owner, kind, ttl, data, data_at });
    Some((record, data_at + len))
}

/// Follows the CNAME records to the requested records, which may precede the CNAMEs in the message.
fn take(
    message: &[u8],
    question: &Question,
    records: &[ResourceRecord<'_>],
    answer: &mut DnsAnswer,
) -> Option<()> {
    let mut name = question.name.clone();
    let mut names = vec![name.host()];
    let of = |name: &Name, kind: u16| {
        let name = name.clone();
        records.iter().filter(move |record| record.kind == kind && record.owner.is(&name))
    };
    while let Some(alias) = of(&name, CNAME).next() {
        let (target, end) = Name::read(message, alias.data_at)?;
        if end > alias.data_at + alias.data.len() || names.len() > CHAIN_MAX {
            return None;
        }
        answer.ttl = answer.ttl.min(alias.ttl);
        names.push(target.host());
        name = target;
    }
    answer.names = names.into_iter().collect::<Option<_>>().unwrap_or_default();
    for record in of(&name, question.kind) {
        match record.kind {
            A => {
                let ip: [u8; 4] = record.data.try_into().ok()?;
                answer.addresses.push(Ipv4Addr::from(ip).into());
            }
            AAAA => {
                let ip: [u8; 16] = record.data.try_into().ok()?;
                answer.addresses.push(Ipv6Addr::from(ip).into());
            }
            _ => answer.hosts.extend(Name::read(message, record.data_at)?.0.host()),
        }
        answer.ttl = answer.ttl.min(record.ttl);
    }
    Some(())
}

#[cfg(test)]
#[path = "message_tests.rs"]
mod tests;
