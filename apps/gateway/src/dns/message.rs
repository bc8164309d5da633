//! As much of a DNS message as a forwarder looks at: its header and what it asks (RFC 1035 §4.1).

/// Bytes of the header.
const HEADER_LEN: usize = 12;
/// Type and class of a question, behind its name.
const TYPE_AND_CLASS_LEN: usize = 4;
/// The longest label of a name; what is longer is a pointer, which no question begins with.
const LABEL_LEN_MAX: u8 = 63;

/// Response codes with which a nameserver says that it cannot help, but another one may. The C
/// library asks the next one after the same three (res_send).
pub(super) const SERVER_FAILURE: u8 = 2;
pub(super) const NOT_IMPLEMENTED: u8 = 4;
pub(super) const REFUSED: u8 = 5;

/// The identifier of a query; None for what is no query.
pub(super) fn query_id(message: &[u8]) -> Option<u16> {
    let (id, flags) = id_and_flags(message)?;
    (!is_response(flags)).then_some(id)
}

pub(super) fn set_id(message: &mut [u8], id: u16) {
    if let Some(at) = message.first_chunk_mut::<2>() {
        *at = id.to_be_bytes();
    }
}

/// Whether two messages are the same but for their identifiers.
pub(super) fn is_same(a: &[u8], b: &[u8]) -> bool {
    a.get(2..) == b.get(2..)
}

/// The response code of an answer.
pub(super) fn response_code(answer: &[u8]) -> u8 {
    id_and_flags(answer).map_or(0, |(_, flags)| flags[1] & 0xf)
}

/// Whether this is the answer to that query, as far as messages can tell.
//= https://www.rfc-editor.org/rfc/rfc5452#section-9.1
//# A resolver implementation MUST match responses to all of the
//# following attributes of the query:
//# o  Source address against query destination address
//# o  Destination address against query source address
//# o  Destination port against query source port
//# o  Query ID
//# o  Query name
//# o  Query class and type
pub(super) fn answers(answer: &[u8], query: &[u8]) -> bool {
    let (Some((id, flags)), Some((query_id, query_flags))) =
        (id_and_flags(answer), id_and_flags(query))
    else {
        return false;
    };
    if !is_response(flags) || id != query_id || opcode(flags) != opcode(query_flags) {
        return false;
    }
    // For several questions, which nobody asks (RFC 9619), the identifier has to do.
    let Some((name, rest)) = question(query) else { return true };
    match question(answer) {
        // RFC 4343: names are the same in whatever case they are written.
        Some((its_name, its_rest)) => name.eq_ignore_ascii_case(its_name) && rest == its_rest,
        // A nameserver that did not understand the question need not repeat it.
        None => questions(answer) == 0 && response_code(answer) != 0,
    }
}

/// Name, and type and class, of the only question of a message; None when there is not exactly one.
fn question(message: &[u8]) -> Option<(&[u8], &[u8])> {
    if questions(message) != 1 {
        return None;
    }
    let mut at = HEADER_LEN;
    loop {
        match *message.get(at)? {
            0 => break,
            len if len > LABEL_LEN_MAX => return None,
            len => at += 1 + usize::from(len),
        }
    }
    let (name, rest) = (message.get(HEADER_LEN..at)?, message.get(at + 1..)?);
    Some((name, rest.get(..TYPE_AND_CLASS_LEN)?))
}

/// How many questions a message says that it has.
fn questions(message: &[u8]) -> u16 {
    message.get(4..).and_then(|rest| rest.first_chunk()).map_or(0, |n| u16::from_be_bytes(*n))
}

/// None for what is too short for a message.
fn id_and_flags(message: &[u8]) -> Option<(u16, [u8; 2])> {
    let [a, b, flags @ ..] = *message.get(..HEADER_LEN)?.first_chunk::<4>()?;
    Some((u16::from_be_bytes([a, b]), flags))
}

fn is_response(flags: [u8; 2]) -> bool {
    flags[0] & 0x80 != 0
}

fn opcode(flags: [u8; 2]) -> u8 {
    flags[0] >> 3 & 0xf
}

#[cfg(test)]
mod tests {
    use super::*;

    const QUERY: &[u8] = b"\x12\x34\x01\0\0\x01\0\0\0\0\0\0\x04name\x07example\0\0\x01\0\x01";

    fn answer(change: impl Fn(&mut Vec<u8>)) -> bool {
        let mut answer = QUERY.to_vec();
        answer[2] |= 0x80;
        change(&mut answer);
        answers(&answer, QUERY)
    }

    #[test]
    fn an_answer_is_one_to_this_question() {
        assert_eq!(query_id(QUERY), Some(0x1234));
        assert!(answer(|_| {}));
        assert!(answer(|a| a[13..17].copy_from_slice(b"NaMe")));
        assert!(answer(|a| a.extend(b"records")));
        assert!(!answer(|a| a[0] = 0), "another identifier");
        assert!(!answer(|a| a[2] &= 0x7f), "a query");
        assert!(!answer(|a| a[2] |= 4 << 3), "another operation");
        assert!(!answer(|a| a[13] = b'm'), "another name");
        assert!(!answer(|a| a[27] = 28), "another type");
        assert!(!answer(|a| a[29] = 3), "another class");
        assert!(!answer(|a| a.truncate(28)), "cut off");
        assert!(!answer(|a| a.truncate(11)), "cut off");
        // Without a question: only a nameserver that has not understood it omits it.
        let without = |code: u8| {
            answer(|a| {
                a.truncate(HEADER_LEN);
                a[5] = 0;
                a[3] = code;
            })
        };
        assert!(without(1) && !without(0));
    }

    #[test]
    fn types_are_not_letters() {
        let query = |kind: u8| {
            let mut query = QUERY.to_vec();
            query[27] = kind;
            query
        };
        // HTTPS (65, RFC 9460) and 97, which are A and a.
        let (mut other, https) = (query(97), query(65));
        other[2] |= 0x80;
        assert!(!answers(&other, &https));
    }

    #[test]
    fn bytes_that_are_no_message_are_no_query() {
        let mut response = QUERY.to_vec();
        response[2] |= 0x80;
        for none in [&b""[..], b"hello", &QUERY[..11], &response] {
            assert_eq!(query_id(none), None);
        }
        // A name without an end, and one that is a pointer.
        for name in [&b"\x3f"[..], b"\xc0\x0c\0\x01\0\x01"] {
            let query = [&QUERY[..HEADER_LEN], name].concat();
            assert_eq!(question(&query), None);
        }
    }
}
