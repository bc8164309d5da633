//! The TCP Fast Open option (RFC 7413 §4.1.1), which only occurs in SYNs.
//!
//! The option is not part of [`Options`](crate::tcp::Options), because that would need space for a
//! cookie for every segment. SYNs are parsed for this option separately.

use crate::tcp::{HEADER_LEN_MAX, HEADER_LEN_MIN};

const KIND_END: u8 = 0;
const KIND_NOP: u8 = 1;
const KIND: u8 = 34;
/// Offset in a TCP header of the byte that contains the data offset.
const DATA_OFFSET: usize = 12;

/// A Fast Open cookie. The cookie has 4 to 16 bytes, and an even length.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Cookie {
    len: u8,
    bytes: [u8; Cookie::LEN_MAX],
}

impl Cookie {
    /// Maximum length of a Fast Open cookie in bytes.
    pub const LEN_MAX: usize = 16;

    /// Creates a cookie from the bytes `from`; `None` if their number is invalid.
    pub fn new(from: &[u8]) -> Option<Cookie> {
        if !(4..=Self::LEN_MAX).contains(&from.len()) || !from.len().is_multiple_of(2) {
            return None;
        }
        let mut bytes = [0; Self::LEN_MAX];
        bytes[..from.len()].copy_from_slice(from);
        Some(Cookie { len: from.len() as u8, bytes })
    }

    /// Returns the bytes of the cookie.
    pub fn as_bytes(&self) -> &[u8] {
        &self.bytes[..usize::from(self.len)]
    }
}

/// The TCP Fast Open option of a SYN or SYN-ACK.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum FastOpen {
    /// A client requests a cookie.
    Request,
    /// A SYN contains the client's cookie, or a SYN-ACK a new cookie for the client.
    Cookie(Cookie),
}

impl FastOpen {
    /// Returns the first Fast Open option of a TCP header. Returns `None` if there is none, or if
    /// its length is invalid.
    //= https://www.rfc-editor.org/rfc/rfc7413#section-4.1.1
    //# Options with invalid Length values or without the SYN flag set MUST be ignored.
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

    /// Returns the number of bytes that the option takes in a TCP header, including padding.
    pub fn emitted_len(&self) -> usize {
        (2 + self.body().len()).next_multiple_of(4)
    }

    /// Writes the option to the end of the TCP header `header`, whose last
    /// [`emitted_len`](Self::emitted_len) bytes must be unused. If the header would exceed the
    /// maximum length, returns false and changes nothing.
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
