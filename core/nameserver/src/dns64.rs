//! DNS64: AAAA records for names that have only A records (RFC 6147).
//!
//! If a name has no AAAA record, its A records are looked up. Their addresses are embedded in IPv6
//! addresses of a prefix that a NAT64 translates.

use core::net::{Ipv4Addr, Ipv6Addr};

use towpath_dns::rcode;
use towpath_siit::TranslationPrefix;

use crate::answer::{UpstreamAnswer, valid_ttl};
use crate::query::{AskedQuestion, CLASS_IN};
use crate::records::{
    HEADER_LEN, NAME_MAX, RecordPlace, expand_name, kind, record, section_counts,
};

/// Time to live in seconds of a synthesized record if the answer without AAAA records has no SOA
/// record (RFC 6147 section 5.1.7).
const TTL_S: u32 = 600;
/// Bit AD of the fourth header byte. A synthesized answer is not authentic.
const AD: u8 = 0x20;
/// Maximum length in bytes of a synthesized answer, so that it fits with its OPT record in a
/// message over TCP. Further records are left out.
const ANSWER_MAX: usize = 60_000;
/// Length in bytes of an A and an AAAA record's data.
const V4_LEN: usize = 4;
const V6_LEN: usize = 16;

/// A lookup of A records in place of AAAA records.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Synthesis {
    /// The client's question.
    pub question: AskedQuestion,
    /// Answer without AAAA records; `None` if servers have reported a failure.
    pub answer: Option<UpstreamAnswer>,
}

/// Returns whether AAAA records are synthesized for a question without a usable answer.
///
/// A client that validates signatures itself gets no synthesized records, because it would reject
/// them (RFC 6147 section 5.5).
pub fn is_for(question: &AskedQuestion) -> bool {
    question.kind() == kind::AAAA && !(question.dnssec_ok && question.no_checks)
}

/// Returns whether an answer to such a question has no AAAA record. IPv4-mapped addresses do not
/// count, because they lead nowhere (RFC 6147 section 5.1.4). A name that does not exist has no A
/// records either.
pub fn lacks_addresses(question: &AskedQuestion, answer: &UpstreamAnswer) -> bool {
    let is_usable = |message: &[u8], place: &RecordPlace| {
        let data = message.get(place.data_at..place.end).and_then(|data| data.try_into().ok());
        let addr = data.map(|data: [u8; V6_LEN]| Ipv6Addr::from(data));
        place.kind == kind::AAAA && addr.is_some_and(|addr| addr.to_ipv4_mapped().is_none())
    };
    let UpstreamAnswer { message, code, .. } = answer;
    *code == u16::from(rcode::NO_ERROR)
        && !answers(message, question.section.len()).any(|place| is_usable(message, &place))
}

/// Returns the question for the A records of the same name.
pub fn question_of_v4(question: &AskedQuestion) -> AskedQuestion {
    let mut section = question.section.clone();
    let at = question.name().len();
    section[at..at + 2].copy_from_slice(&kind::A.to_be_bytes());
    AskedQuestion { section, ..question.clone() }
}

/// Creates the answer to a client from the A records of a name. Returns `None` if there are none.
pub fn synthesized(
    prefix: TranslationPrefix,
    synthesis: &Synthesis,
    of_v4: &UpstreamAnswer,
) -> Option<UpstreamAnswer> {
    let message = &of_v4.message;
    let section = &synthesis.question.section;
    let ttl_max = synthesis.answer.as_ref().and_then(|answer| answer.ttl_s).unwrap_or(TTL_S);
    let mut to = message.get(..HEADER_LEN)?.to_vec();
    to[3] &= !AD;
    to.extend(section);
    let (mut count, mut has_address, mut ttl_s) = (0u16, false, ttl_max);
    for place in answers(message, section.len()) {
        let Some(data) = translated(prefix, message, &place) else { continue };
        let ttl = valid_ttl(place.ttl).min(ttl_max);
        let start = to.len();
        expand_name(message, place.at, &mut to)?;
        let of_v6 = if place.kind == kind::A { kind::AAAA } else { place.kind };
        to.extend(of_v6.to_be_bytes());
        to.extend(place.class.to_be_bytes());
        to.extend(ttl.to_be_bytes());
        to.extend((data.len() as u16).to_be_bytes());
        to.extend(data);
        if to.len() > ANSWER_MAX {
            to.truncate(start);
            break;
        }
        count += 1;
        has_address |= place.kind == kind::A;
        ttl_s = ttl_s.min(ttl);
    }
    if !has_address {
        return None;
    }
    to[6..8].copy_from_slice(&count.to_be_bytes());
    to[8..HEADER_LEN].fill(0);
    let ttl_s = Some(ttl_s).filter(|ttl_s| *ttl_s > 0);
    Some(UpstreamAnswer { message: to, code: rcode::NO_ERROR.into(), ttl_s })
}

/// Returns the data of the record that takes the place of a record: an embedded address, or an
/// alias without compression. Other records, such as signatures, are left out.
fn translated(prefix: TranslationPrefix, message: &[u8], place: &RecordPlace) -> Option<Vec<u8>> {
    if place.class != CLASS_IN {
        return None;
    }
    match place.kind {
        kind::A => {
            let data: [u8; V4_LEN] = message.get(place.data_at..place.end)?.try_into().ok()?;
            let addr = Some(Ipv4Addr::from(data)).filter(|addr| prefix.represents(*addr))?;
            Some(prefix.embed(addr).octets().to_vec())
        }
        kind::CNAME | kind::DNAME => {
            let mut name = Vec::with_capacity(NAME_MAX);
            expand_name(message, place.data_at, &mut name)?;
            Some(name)
        }
        _ => None,
    }
}

/// Iterates over the records of the answer section.
fn answers(message: &[u8], question_len: usize) -> impl Iterator<Item = RecordPlace> {
    let count = section_counts(message).map_or(0, |[answers, ..]| answers);
    let mut at = HEADER_LEN + question_len;
    (0..count).map_while(move |_| {
        let place = record(message, at)?;
        at = place.end;
        Some(place)
    })
}
