//! Creates questions as res_mkquery(3) does, from names in text form with escapes. Checks whether
//! answers match questions.

use super::flag;

/// Length in bytes of a DNS message's header (HFIXEDSZ of arpa/nameser.h).
pub const HEADER: usize = 12;
/// Maximum length in bytes of a DNS name. [`LABEL_MAX`] is that of a label (RFC 1035 §2.3.4).
const NAME_MAX: usize = 255;
const LABEL_MAX: usize = 63;
/// Type number of the OPT record of EDNS(0) (RFC 6891).
const OPT: u16 = 41;
/// The DO flag (DNSSEC OK) of the OPT record (RFC 3225).
const WANTS_DNSSEC: u16 = 0x8000;
/// Minimum and maximum UDP payload size in bytes that questions announce in the OPT record. The
/// minimum is that of RFC 1035, the maximum is glibc's RESOLV_EDNS_BUFFER_SIZE.
const PAYLOAD: (usize, usize) = (512, 1200);
/// Opcode of dynamic updates (RFC 2136). An answer to an update need not repeat its content.
const UPDATE: u8 = 5;

/// Encodes a DNS name as a sequence of labels. The text may contain escapes such as `\.` and
/// `\046`. Returns `None` if it is not a valid DNS name.
pub fn wire(text: &[u8]) -> Option<Vec<u8>> {
    let (mut to, mut label) = (Vec::with_capacity(text.len() + 2), Vec::new());
    let mut put = |label: &mut Vec<u8>| {
        if label.is_empty() || label.len() > LABEL_MAX {
            return None;
        }
        to.push(label.len() as u8);
        to.append(label);
        Some(())
    };
    let mut rest = if text == b"." { &[] } else { text };
    while let Some((&byte, behind)) = rest.split_first() {
        rest = behind;
        match byte {
            b'.' => put(&mut label)?,
            b'\\' => {
                let (byte, len) = escaped(rest)?;
                label.push(byte);
                rest = &rest[len..];
            }
            byte => label.push(byte),
        }
    }
    if !label.is_empty() {
        put(&mut label)?;
    }
    to.push(0);
    (to.len() <= NAME_MAX).then_some(to)
}

/// Parses an escape. `rest` is the text after the backslash. Returns the byte that the escape
/// denotes, and the length of its text.
fn escaped(rest: &[u8]) -> Option<(u8, usize)> {
    let first = *rest.first()?;
    if !first.is_ascii_digit() {
        return Some((first, 1));
    }
    let digits = rest.get(..3).filter(|digits| digits.iter().all(u8::is_ascii_digit))?;
    Some((std::str::from_utf8(digits).ok()?.parse().ok()?, 3))
}

/// Creates a DNS message with one question. Returns `None` if the name, class or type is invalid.
pub fn message(
    id: u16,
    name: &[u8],
    class: i32,
    kind: i32,
    flags: u64,
    room: usize,
) -> Option<Vec<u8>> {
    let (class, kind) = (u16::try_from(class).ok()?, u16::try_from(kind).ok()?);
    let has = |bit: u64| u8::from(flags & bit != 0);
    let wants_opt = has(flag::USE_EDNS0 | flag::USE_DNSSEC);
    let mut to = id.to_be_bytes().to_vec();
    // Write the flags RD and AD, then the four record counts of the header: one question, and an
    // OPT record if wanted.
    to.extend([has(flag::RECURSE), has(flag::TRUST_AD) << 5, 0, 1, 0, 0, 0, 0, 0, wants_opt]);
    to.extend(wire(name)?);
    to.extend(kind.to_be_bytes());
    to.extend(class.to_be_bytes());
    if wants_opt != 0 {
        let payload = room.clamp(PAYLOAD.0, PAYLOAD.1) as u16;
        let flags = if has(flag::USE_DNSSEC) != 0 { WANTS_DNSSEC } else { 0 };
        to.push(0);
        to.extend(OPT.to_be_bytes());
        to.extend(payload.to_be_bytes());
        // Write the rest of the OPT record: extended RCODE and version, flags, and the length of
        // the data.
        to.extend([0; 2]);
        to.extend(flags.to_be_bytes());
        to.extend([0; 2]);
    }
    Some(to)
}

/// Returns whether a message answers `question`: it must have the same identifier and repeat the
/// questions.
///
/// The questions precede all other names in a message, so a server cannot compress their names.
pub fn is_answered(question: &[u8], answer: &[u8]) -> bool {
    if answer.len() < HEADER || question.get(..2) != answer.get(..2) {
        return false;
    }
    // Reject a message without the QR bit, because a broken server may return the question itself.
    if answer[2] & 0x80 == 0 {
        return false;
    }
    let Some(questions) = questions(question) else { return true };
    if opcode(question) == UPDATE && opcode(answer) == UPDATE {
        return true;
    }
    question[4..6] == answer[4..6]
        && questions.into_iter().all(|(name, end)| {
            let names = answer.get(name.clone()).zip(question.get(name.clone()));
            // Compare DNS names without regard to case (RFC 4343). Label lengths are at most 63, so
            // they are not changed as letters would be.
            names.is_some_and(|(theirs, ours)| theirs.eq_ignore_ascii_case(ours))
                && answer.get(name.end..end) == question.get(name.end..end)
        })
}

/// Returns whether `answer` is the error of a server that could not parse the question. The answer
/// then does not repeat the question.
pub fn is_unread(question: &[u8], answer: &[u8]) -> bool {
    answer.len() >= HEADER
        && question.get(..2) == answer.get(..2)
        && answer[2] & 0x80 != 0
        && answer[3] & 15 == super::code::FORMAT_ERROR
        && answer[4..6] == [0, 0]
}

fn opcode(message: &[u8]) -> u8 {
    message[2] >> 3 & 15
}

/// Parses the questions of a DNS message. Returns the byte range of each question's name, and where
/// the question ends. Returns `None` if the questions are malformed.
fn questions(message: &[u8]) -> Option<Vec<(std::ops::Range<usize>, usize)>> {
    let count = u16::from_be_bytes([*message.get(4)?, *message.get(5)?]);
    let (mut at, mut all) = (HEADER, Vec::new());
    for _ in 0..count {
        let start = at;
        loop {
            match *message.get(at)? {
                0 => break,
                len if usize::from(len) <= LABEL_MAX => at += 1 + usize::from(len),
                _ => return None,
            }
        }
        let end = at + 1 + 4;
        message.get(..end)?;
        all.push((start..at + 1, end));
        at = end;
    }
    Some(all)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn texts_become_labels() {
        assert_eq!(wire(b"a.bc").as_deref(), Some(&b"\x01a\x02bc\0"[..]));
        assert_eq!(wire(b"a.bc."), wire(b"a.bc"));
        assert_eq!(wire(br"a\.b\\\032.c").as_deref(), Some(&b"\x05a.b\\ \x01c\0"[..]));
        for root in [&b""[..], b"."] {
            assert_eq!(wire(root).as_deref(), Some(&b"\0"[..]));
        }
        let long = [b'x'; 64];
        for bad in [&b"a..b"[..], b".a", b"a\\", br"a\99", br"\256", b"..", &long] {
            assert_eq!(wire(bad), None, "{bad:?}");
        }
        let longest = format!("{0}.{0}.{0}.{1}", "a".repeat(63), "b".repeat(61));
        assert!(wire(longest.as_bytes()).is_some_and(|wire| wire.len() == NAME_MAX));
        assert_eq!(wire(format!("{longest}b").as_bytes()), None);
    }

    #[test]
    fn options_are_in_the_message() {
        let plain = message(7, b"a", 1, 16, flag::RECURSE, 4096).unwrap();
        assert_eq!(plain, b"\0\x07\x01\0\0\x01\0\0\0\0\0\0\x01a\0\0\x10\0\x01");
        let all = flag::USE_EDNS0 | flag::USE_DNSSEC | flag::TRUST_AD;
        let with = message(7, b"a", 1, 16, all, 600).unwrap();
        assert_eq!(with[2..4], [0, 0x20]);
        assert_eq!(with[with.len() - 11..], *b"\0\0\x29\x02\x58\0\0\x80\0\0\0");
        assert_eq!(message(7, b"a", -1, 16, 0, 0), None);
        assert_eq!(message(7, b"a", 1, 65536, 0, 0), None);
    }

    #[test]
    fn answers_fit_questions() {
        let asked = message(7, b"www.example", 1, 1, flag::RECURSE, 4096).unwrap();
        let mut answer = asked.clone();
        answer[2] |= 0x80;
        answer[13] = b'W';
        assert!(is_answered(&asked, &answer));
        // Change in turn the identifier, the QR bit, the question count, a letter of the name, and
        // the type.
        for (at, value) in [(1, 8), (2, 1), (5, 2), (14, b'x'), (26, 28)] {
            let mut changed = answer.clone();
            changed[at] = value;
            assert!(!is_answered(&asked, &changed), "{at}");
        }
        for end in 0..answer.len() {
            assert!(!is_answered(&asked, &answer[..end]), "{end}");
        }
        let mut unread = answer[..HEADER].to_vec();
        (unread[3], unread[5]) = (1, 0);
        assert!(is_unread(&asked, &unread) && !is_answered(&asked, &unread));
    }

    /// A question that a program created itself may contain any bytes: no bytes cause a panic.
    #[test]
    fn questions_may_be_anything() {
        let asked = message(7, b"www.example", 1, 1, flag::RECURSE, 4096).unwrap();
        let mut answer = asked.clone();
        answer[2] |= 0x80;
        for end in 0..asked.len() {
            let _ = is_answered(&asked[..end], &answer);
            for value in 0..=255 {
                let mut changed = asked.clone();
                changed[end] = value;
                let _ = (is_answered(&changed, &answer), is_answered(&answer, &changed));
            }
        }
    }
}
