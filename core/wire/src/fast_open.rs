//! The TCP Fast Open option (RFC 7413 §4.1.1), which stands in SYNs only.
//!
//! [`Options`](crate::tcp::Options) does not have it: every segment of every connection would carry
//! room for a cookie. The few SYNs that may have one are looked through on their own.

use crate::tcp::{HEADER_LEN_MAX, HEADER_LEN_MIN};

const KIND_END: u8 = 0;
const KIND_NOP: u8 = 1;
const KIND: u8 = 34;
/// Offset of the data offset's octet in a TCP header.
const DATA_OFFSET: usize = 12;

/// A cookie: 4 to 16 bytes, an even number of them.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Cookie {
    len: u8,
    bytes: [u8; Cookie::LEN_MAX],
}

impl Cookie {
    /// Length of the longest cookie.
    pub const LEN_MAX: usize = 16;

    /// A cookie of these bytes; `None` when no cookie has that length.
    pub fn new(from: &[u8]) -> Option<Cookie> {
        if !(4..=Self::LEN_MAX).contains(&from.len()) || !from.len().is_multiple_of(2) {
            return None;
        }
        let mut bytes = [0; Self::LEN_MAX];
        bytes[..from.len()].copy_from_slice(from);
        Some(Cookie { len: from.len() as u8, bytes })
    }

    /// Its bytes.
    pub fn as_bytes(&self) -> &[u8] {
        &self.bytes[..usize::from(self.len)]
    }
}

/// The option of a SYN or SYN-ACK.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum FastOpen {
    /// The client asks for a cookie.
    Request,
    /// The client's cookie, or the one that the server gives it.
    Cookie(Cookie),
}

impl FastOpen {
    /// The option in a TCP header, the first if there are several. `None` without one, and with one
    /// of a length that no cookie has.
    pub fn find(header: &[u8]) -> Option<FastOpen> {
        let len = usize::from(header.get(DATA_OFFSET)? >> 4) * 4;
        let mut rest = header.get(HEADER_LEN_MIN..len)?;
        loop {
            rest = match *rest {
                [] | [KIND_END, ..] => return None,
                [KIND_NOP, ref after @ ..] => after,
                [kind, option_len, ..] => {
                    let (option, after) = rest.split_at_checked(usize::from(option_len))?;
                    let (_, body) = option.split_first_chunk::<2>()?;
                    match (kind, body) {
                        (KIND, []) => return Some(FastOpen::Request),
                        (KIND, body) => return Cookie::new(body).map(FastOpen::Cookie),
                        _ => after,
                    }
                }
                [_] => return None,
            };
        }
    }

    /// Bytes that the option takes in a header, padding included.
    pub fn emitted_len(&self) -> usize {
        (2 + self.body().len()).next_multiple_of(4)
    }

    /// Adds the option at the end of a TCP header, whose last [`emitted_len`](Self::emitted_len)
    /// bytes are free for that. False when the header is longer than one may be: it stays as it
    /// was.
    pub fn append(&self, header: &mut [u8]) -> bool {
        let room = self.emitted_len();
        let Some(at) = header.len().checked_sub(room) else { return false };
        if at < HEADER_LEN_MIN || header.len() > HEADER_LEN_MAX {
            return false;
        }
        let body = self.body();
        header[DATA_OFFSET] = (header.len() as u8 / 4) << 4 | header[DATA_OFFSET] & 0x0f;
        let (padding, option) = header[at..].split_at_mut(room - 2 - body.len());
        padding.fill(KIND_NOP);
        option[0] = KIND;
        option[1] = 2 + body.len() as u8;
        option[2..].copy_from_slice(body);
        true
    }

    fn body(&self) -> &[u8] {
        match self {
            FastOpen::Request => &[],
            FastOpen::Cookie(cookie) => cookie.as_bytes(),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::tcp::{Flags, Header, Options, SeqNum, Timestamps};
    use proptest::prelude::*;

    fn syn() -> Header {
        Header {
            src_port: 1,
            dst_port: 2,
            seq: SeqNum(3),
            ack: SeqNum(0),
            flags: Flags::SYN,
            window: 5,
            checksum: 0,
            urgent: 0,
            header_len: 0,
            options: Options {
                mss: Some(1460),
                window_scale: Some(7),
                sack_permitted: true,
                timestamps: Some(Timestamps { value: 1, echo: 0 }),
                ..Options::default()
            },
        }
    }

    fn with(option: FastOpen) -> Vec<u8> {
        let mut bytes = vec![0xaa; syn().emitted_len() + option.emitted_len()];
        syn().emit(&mut bytes);
        assert!(option.append(&mut bytes));
        bytes
    }

    #[test]
    fn an_appended_option_is_found_behind_all_others() {
        let longest = Cookie::new(&[7; 16]).unwrap();
        for option in [
            FastOpen::Request,
            FastOpen::Cookie(Cookie::new(&[1, 2, 3, 4]).unwrap()),
            FastOpen::Cookie(Cookie::new(&[8; 8]).unwrap()),
            FastOpen::Cookie(longest),
        ] {
            let bytes = with(option);
            assert_eq!(FastOpen::find(&bytes), Some(option));
            let parsed = Header::parse(&bytes).unwrap();
            assert_eq!(usize::from(parsed.header_len), bytes.len());
            assert_eq!(parsed.options, syn().options);
        }
    }

    #[test]
    fn no_cookie_has_another_length() {
        for len in [0, 2, 3, 5, 15, 18] {
            assert_eq!(Cookie::new(&vec![1; len]), None, "{len}");
        }
        let mut bytes = with(FastOpen::Cookie(Cookie::new(&[8; 8]).unwrap()));
        let at = bytes.len() - 9;
        assert_eq!(bytes[at], 10);
        bytes[at] = 9;
        assert_eq!(FastOpen::find(&bytes), None);
    }

    #[test]
    fn a_header_without_room_stays_as_it_was() {
        let mut bytes = [0; HEADER_LEN_MAX + 4];
        assert!(!FastOpen::Request.append(&mut bytes));
        assert!(!FastOpen::Request.append(&mut bytes[..HEADER_LEN_MIN]));
        assert_eq!(bytes, [0; HEADER_LEN_MAX + 4]);
    }

    proptest! {
        #[test]
        fn arbitrary_bytes_never_panic(bytes in prop::collection::vec(any::<u8>(), 0..80)) {
            FastOpen::find(&bytes);
        }
    }
}
