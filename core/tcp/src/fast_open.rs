//! TCP Fast Open (RFC 7413): data in the SYN.
//!
//! The connection does not handle cookies. A client's caller must have a cookie before it calls
//! [`connect_with_data`], and adds the cookie to the SYN. A server's caller validates the cookie of
//! a SYN before it calls [`accept_with_data`].
//!
//! [`connect_with_data`]: crate::Connection::connect_with_data
//! [`accept_with_data`]: crate::Connection::accept_with_data
//!
//! ```text
//!  client                                   server
//!  SynSent    ── SYN, cookie, bytes ──────▶ SynReceived: the program may read and answer
//!  Established ◀──────────── SYN,ACK ──────
//!              ◀────────────── bytes ──────
//!              ── ACK ────────────────────▶ Established
//! ```
//!
//! A retransmitted SYN has neither cookie nor data, because the path may drop SYNs with them. Data
//! that the SYN-ACK does not acknowledge is retransmitted at once.

use crate::event::pending;
use crate::segment::FifoLevels;
use core::fmt;

/// Bytes reserved for TCP options in a SYN with data: Linux's `MAX_TCP_OPTION_SPACE`.
const OPTIONS_LEN_MAX: u32 = 40;

/// State of TCP Fast Open. The struct takes one byte, because the size of
/// [`Connection`](crate::Connection) is limited.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub(crate) struct FastOpenState(u8);

impl FastOpenState {
    /// Flag of an active open whose SYN should carry data.
    const CLIENT: u8 = 1;
    /// Flag of a passive open whose SYN had a valid cookie.
    const SERVER: u8 = 2;
    /// Flag: our SYN carried data.
    const DATA_SENT: u8 = 4;
    /// Flag: the data of the SYN was acknowledged, by the peer if we sent it, otherwise by us.
    const DATA_ACKED: u8 = 8;
    /// Flag: the SYN or SYN-ACK was sent more than once.
    const REPEATED: u8 = 16;
    /// Flag: the SYN must be sent without waiting for the program to write data.
    const HURRIED: u8 = 32;
    /// Position of the bits that hold the [`FastOpenFailure`].
    const FAIL_SHIFT: u8 = 6;

    pub(crate) fn is_client(self) -> bool {
        self.0 & Self::CLIENT != 0
    }

    pub(crate) fn is_server(self) -> bool {
        self.0 & Self::SERVER != 0
    }

    pub(crate) fn set_client(&mut self) {
        self.add(Self::CLIENT);
    }

    pub(crate) fn set_server(&mut self) {
        self.add(Self::SERVER);
    }

    /// Makes the SYN be sent without waiting for the program to write data.
    pub(crate) fn hurry(&mut self) {
        self.add(Self::HURRIED);
    }

    /// Returns whether the SYN or SYN-ACK was sent more than once.
    pub(crate) fn is_repeated(self) -> bool {
        self.has(Self::REPEATED)
    }

    /// Returns whether data may be in flight before the peer has acknowledged our SYN.
    pub(crate) fn has_early_bytes(self) -> bool {
        self.is_server() || self.has(Self::DATA_SENT)
    }

    /// Returns the payload length of the first SYN: at most `mss` minus the longest options (RFC
    /// 7413 §4.1.3). Returns `None` if the SYN has to wait until the program writes data or, by
    /// `fin_queued`, closes the socket.
    pub(crate) fn syn_payload(
        self,
        buffers: FifoLevels,
        mss: u16,
        fin_queued: bool,
    ) -> Option<u32> {
        if !self.is_client() {
            return Some(0);
        }
        if buffers.send_len == 0 && !fin_queued && !self.has(Self::HURRIED) {
            return None;
        }
        Some(buffers.send_len.min(u32::from(mss).saturating_sub(OPTIONS_LEN_MAX)))
    }

    pub(crate) fn on_data_sent(&mut self) {
        self.add(Self::DATA_SENT);
    }

    /// Records that the data of the peer's SYN was accepted.
    pub(crate) fn on_data_received(&mut self) {
        self.add(Self::DATA_ACKED);
    }

    /// Returns whether the data of the SYN was acknowledged. A client's data must be acknowledged
    /// completely.
    pub(crate) fn is_data_acked(self) -> bool {
        self.has(Self::DATA_ACKED)
    }

    /// Records that the SYN or SYN-ACK is being retransmitted.
    pub(crate) fn on_syn_repeated(&mut self) {
        self.add(Self::REPEATED);
        if self.is_client() {
            self.fail(FastOpenFailure::SynRepeated);
        }
    }

    /// Records that the peer acknowledged our SYN. `is_whole` states whether the peer also
    /// acknowledged all data that was sent with the SYN.
    pub(crate) fn on_syn_acked(&mut self, is_whole: bool) {
        if self.has(Self::DATA_SENT) {
            match is_whole {
                true => self.add(Self::DATA_ACKED),
                false => self.fail(FastOpenFailure::DataNotAcked),
            }
        }
    }

    /// Returns whether data in the SYN is lost if the peer's answer does not acknowledge it. A
    /// server that acknowledges only the SYN has dropped the client's data. Data that a server sent
    /// is still in transit, unless its SYN-ACK was lost.
    pub(crate) fn has_lost_bytes(self) -> bool {
        self.is_client() || self.is_repeated()
    }

    /// Returns the event for a RST in SYN-RECEIVED. A connection that was already passed to the
    /// program reports a reset, as on Linux.
    pub(crate) fn reset_event(self) -> u8 {
        if self.is_server() { pending::RESET } else { pending::REFUSED }
    }

    fn add(&mut self, bit: u8) {
        self.0 |= bit;
    }

    fn has(self, bit: u8) -> bool {
        self.0 & bit != 0
    }

    /// Records why Fast Open failed, unless a reason is recorded already.
    pub(crate) fn fail(&mut self, why: FastOpenFailure) {
        if self.0 >> Self::FAIL_SHIFT == 0 {
            self.0 |= (why as u8) << Self::FAIL_SHIFT;
        }
    }

    pub(crate) fn outcome(self) -> FastOpenOutcome {
        FastOpenOutcome {
            data_acked: self.is_data_acked(),
            failure: match self.0 >> Self::FAIL_SHIFT {
                0 => None,
                1 => Some(FastOpenFailure::NoCookie),
                2 => Some(FastOpenFailure::DataNotAcked),
                _ => Some(FastOpenFailure::SynRepeated),
            },
        }
    }
}

/// Uses of Fast Open that a host allows, with the bits of Linux's `net.ipv4.tcp_fastopen`.
/// Undefined bits are ignored.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct FastOpenModes(u32);

impl FastOpenModes {
    const CLIENT: u32 = 1;
    const SERVER: u32 = 2;
    const CLIENT_WITHOUT_COOKIE: u32 = 4;
    const SERVER_WITHOUT_COOKIE: u32 = 0x200;
    const ALL_LISTENERS: u32 = 0x400;
    /// Names of frequent combinations of bits.
    const NAMES: [(&str, u32); 4] =
        [("off", 0), ("client", Self::CLIENT), ("server", Self::SERVER), ("on", 3)];

    /// Parses a name, or the number of Linux's `tcp_fastopen` in decimal or with `0x`.
    pub fn from_word(word: &str) -> Option<Self> {
        let named = Self::NAMES.iter().find(|(name, _)| *name == word).map(|(_, bits)| *bits);
        let number = || match word.strip_prefix("0x") {
            Some(digits) => u32::from_str_radix(digits, 16).ok(),
            None => word.parse().ok(),
        };
        named.or_else(number).map(Self)
    }

    /// Returns whether programs may send data in a SYN.
    pub fn client(self) -> bool {
        self.0 & Self::CLIENT != 0
    }

    /// Returns whether listeners may accept data in a SYN.
    pub fn server(self) -> bool {
        self.0 & Self::SERVER != 0
    }

    /// Returns whether SYNs contain data even without a cookie (RFC 7413 §4.1.3 requires one).
    pub fn sends_without_cookie(self) -> bool {
        self.client() && self.0 & Self::CLIENT_WITHOUT_COOKIE != 0
    }

    /// Returns whether listeners accept data in a SYN without a cookie.
    pub fn accepts_without_cookie(self) -> bool {
        self.server() && self.0 & Self::SERVER_WITHOUT_COOKIE != 0
    }

    /// Returns whether all listeners accept data in a SYN, even without the socket option
    /// TCP_FASTOPEN.
    pub fn serves_all_listeners(self) -> bool {
        self.server() && self.0 & Self::ALL_LISTENERS != 0
    }
}

/// Permits clients and listeners to use Fast Open, if their programs request it.
impl Default for FastOpenModes {
    fn default() -> Self {
        Self(Self::CLIENT | Self::SERVER)
    }
}

impl fmt::Display for FastOpenModes {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match Self::NAMES.iter().find(|(_, bits)| *bits == self.0) {
            Some((name, _)) => f.write_str(name),
            None => write!(f, "{:#x}", self.0),
        }
    }
}

/// Secret keys of the cookies of a server. Servers with equal keys accept each other's cookies.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct FastOpenKeys {
    /// Key with which new cookies are created.
    pub primary: [u64; 2],
    /// Former key. Cookies that were created with it are still accepted, and replaced by new ones.
    pub backup: Option<[u64; 2]>,
}

impl FastOpenKeys {
    /// Length of a key in bytes.
    pub const LEN: usize = 16;

    /// Creates keys from the bytes of TCP_FASTOPEN_KEY: a key, or two. Returns `None` for another
    /// length.
    pub fn from_bytes(bytes: &[u8]) -> Option<Self> {
        let key = |bytes: &[u8; Self::LEN]| {
            let (words, _) = bytes.as_chunks::<8>();
            [u64::from_le_bytes(words[0]), u64::from_le_bytes(words[1])]
        };
        match bytes.as_chunks::<{ Self::LEN }>() {
            ([primary], []) => Some(Self { primary: key(primary), backup: None }),
            ([primary, backup], []) => {
                Some(Self { primary: key(primary), backup: Some(key(backup)) })
            }
            _ => None,
        }
    }

    /// Returns the bytes of TCP_FASTOPEN_KEY.
    pub fn to_bytes(self) -> Vec<u8> {
        let words = self.primary.into_iter().chain(self.backup.into_iter().flatten());
        words.flat_map(u64::to_le_bytes).collect()
    }

    /// Parses a key of Linux's `tcp_fastopen_key`, four hexadecimal numbers, or two keys with `+`
    /// between them.
    pub fn from_word(word: &str) -> Option<Self> {
        let (primary, backup) = match word.split_once('+') {
            Some((primary, backup)) => (primary, Some(parse_key(backup)?)),
            None => (word, None),
        };
        Some(Self { primary: parse_key(primary)?, backup })
    }
}

impl fmt::Display for FastOpenKeys {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let keys = [Some(self.primary), self.backup];
        for (n, key) in keys.into_iter().flatten().enumerate() {
            let separator = if n == 0 { "" } else { "+" };
            let [a, b, c, d] =
                [key[0] as u32, (key[0] >> 32) as u32, key[1] as u32, (key[1] >> 32) as u32];
            write!(f, "{separator}{a:08x}-{b:08x}-{c:08x}-{d:08x}")?;
        }
        Ok(())
    }
}

fn parse_key(word: &str) -> Option<[u64; 2]> {
    let mut numbers = word.split('-').map(|digits| u32::from_str_radix(digits, 16).ok());
    let mut pair = || {
        let (low, high) = (numbers.next()??, numbers.next()??);
        Some(u64::from(low) | u64::from(high) << 32)
    };
    let key = [pair()?, pair()?];
    numbers.next().is_none().then_some(key)
}

/// Outcome of TCP Fast Open for one connection.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct FastOpenOutcome {
    /// Whether the data in the SYN was acknowledged. If this host sent the SYN, the server
    /// acknowledged it, otherwise this host did. Linux's `TCPI_OPT_SYN_DATA`.
    pub data_acked: bool,
    /// Reason why the server did not receive the data of a client's SYN; `None` if it did.
    pub failure: Option<FastOpenFailure>,
}

/// Reason why Fast Open did not save a client a round trip. Numbers are those of Linux's
/// `enum tcp_fastopen_client_fail`.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[repr(u8)]
pub enum FastOpenFailure {
    /// The client had no cookie for this server, so its SYN requested one.
    NoCookie = 1,
    /// The server acknowledged only the SYN, not its data.
    DataNotAcked = 2,
    /// The SYN was not answered, and was retransmitted without data.
    SynRepeated = 3,
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn keys_are_written_as_by_linux() {
        let text = "a0bf63f7-ed803d81-cd641d30-cebc4a90";
        let keys = FastOpenKeys::from_word(text).expect("a key");
        let bytes = b"\xf7\x63\xbf\xa0\x81\x3d\x80\xed\x30\x1d\x64\xcd\x90\x4a\xbc\xce";
        assert_eq!((keys.to_bytes(), keys.to_string()), (bytes.to_vec(), text.to_owned()));
        assert_eq!(FastOpenKeys::from_bytes(bytes), Some(keys));
        let two = format!("{text}+1-2-3-4");
        let keys = FastOpenKeys::from_word(&two).expect("two keys");
        assert_eq!(keys.backup, Some([2 << 32 | 1, 4 << 32 | 3]));
        assert_eq!(FastOpenKeys::from_bytes(&keys.to_bytes()), Some(keys));
        for wrong in ["", "1-2-3", "1-2-3-4-5", "1-2-3-x", "1-2-3-4+", "1-2-3-123456789"] {
            assert_eq!(FastOpenKeys::from_word(wrong), None, "{wrong}");
        }
        for len in [0, 3, 15, 17, 48] {
            assert_eq!(FastOpenKeys::from_bytes(&vec![0; len]), None, "{len}");
        }
    }
}
