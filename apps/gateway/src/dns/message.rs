//! Minimal DNS message parser: header and question (RFC 1035 §4.1).

/// Length of the DNS header in bytes.
const HEADER_LEN: usize = 12;
/// Length in bytes of a question's type and class, which follow the name.
const TYPE_AND_CLASS_LEN: usize = 4;
/// Maximum length of a label in bytes. Larger values of the length byte are compression pointers,
/// which are invalid in the name of a question.
const LABEL_LEN_MAX: u8 = 63;

/// DNS response codes after which the next nameserver is tried, as by the C library (res_send).
pub(super) const SERVER_FAILURE: u8 = 2;
pub(super) const NOT_IMPLEMENTED: u8 = 4;
pub(super) const REFUSED: u8 = 5;

/// Returns the identifier of a query, or `None` if the message is not a query.
pub(super) fn query_id(message: &[u8]) -> Option<u16> {
    let (id, flags) = id_and_flags(message)?;
    (!is_response(flags)).then_some(id)
}

pub(super) fn set_id(message: &mut [u8], id: u16) {
    if let Some(at) = message.first_chunk_mut::<2>() {
        *at = id.to_be_bytes();
    }
}

/// Returns whether two messages are equal except for their identifiers.
pub(super) fn is_same(a: &[u8], b: &[u8]) -> bool {
    a.get(2..) == b.get(2..)
}

/// Returns the response code of a DNS answer.
pub(super) fn response_code(answer: &[u8]) -> u8 {
    id_and_flags(answer).map_or(0, |(_, flags)| flags[1] & 0xf)
}

/// Returns whether the content of `answer` is an answer to `query`. The sender is not checked.
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
    // Compare only the identifier: queries with several questions are not used in practice (RFC
    // 9619).
    let Some((name, rest)) = question(query) else { return true };
    match question(answer) {
        // DNS names are case-insensitive (RFC 4343).
        Some((its_name, its_rest)) => name.eq_ignore_ascii_case(its_name) && rest == its_rest,
        // A nameserver that did not understand the question may omit it.
        None => questions(answer) == 0 && response_code(answer) != 0,
    }
}

/// Splits a message's question into its name, and its type and class. Returns `None` if there is
/// not exactly one question.
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

/// Returns the number of questions that the message's header declares.
fn questions(message: &[u8]) -> u16 {
    message.get(4..).and_then(|rest| rest.first_chunk()).map_or(0, |n| u16::from_be_bytes(*n))
}

/// Returns the identifier and flags of a DNS message; `None` if the message is too short.
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
        // Only a response with an error code may omit the question.
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
        // Query type 65 is HTTPS (RFC 9460). As ASCII, 65 is `A` and 97 is `a`, and only names may
        // ignore case.
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
        // The label in the first name is longer than the message; the second name is a compression
        // pointer.
        for name in [&b"\x3f"[..], b"\xc0\x0c\0\x01\0\x01"] {
            let query = [&QUERY[..HEADER_LEN], name].concat();
            assert_eq!(question(&query), None);
        }
    }
}
