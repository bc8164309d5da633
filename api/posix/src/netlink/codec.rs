//! Messages of netlink(7) and rtnetlink(7), as they lie in memory.
//!
//! Numbers are in the machine's order, addresses in the network's. Everything is aligned to four
//! bytes. Nothing is allocated: a signal handler may interrupt malloc and use a socket all the
//! same.

/// `struct nlmsghdr`.
pub(super) const HEADER_LEN: usize = 16;
/// Bytes of one datagram: a page, which is what programs have room for at least.
pub(super) const DATAGRAM_MAX: usize = 4096;
/// No message that is made here is longer.
const MESSAGE_MAX: usize = 768;

/// A request's `struct nlmsghdr`, and what follows it.
#[derive(Debug, Clone, Copy)]
pub(super) struct NetlinkRequest<'a> {
    pub(super) kind: u16,
    pub(super) flags: u16,
    pub(super) sequence: u32,
    /// The header itself, which errors quote.
    pub(super) header: &'a [u8],
    pub(super) body: &'a [u8],
}

/// The requests in what a program sends at once. A truncated one ends them.
pub(super) fn requests(mut bytes: &[u8]) -> impl Iterator<Item = NetlinkRequest<'_>> {
    std::iter::from_fn(move || {
        let len = u32_at(bytes, 0)? as usize;
        let (header, body) = bytes.get(..len)?.split_at_checked(HEADER_LEN)?;
        bytes = bytes.get(len.next_multiple_of(4)..).unwrap_or_default();
        let (kind, flags) = (u16_at(header, 4)?, u16_at(header, 6)?);
        Some(NetlinkRequest { kind, flags, sequence: u32_at(header, 8)?, header, body })
    })
}

/// The value of an attribute in what follows the fixed part of a message.
pub(super) fn attribute(mut bytes: &[u8], wanted: u16) -> Option<&[u8]> {
    loop {
        let len = usize::from(u16_at(bytes, 0)?);
        let value = bytes.get(4..len)?;
        if u16_at(bytes, 2)? == wanted {
            return Some(value);
        }
        bytes = bytes.get(len.next_multiple_of(4)..)?;
    }
}

pub(super) fn u16_at(bytes: &[u8], at: usize) -> Option<u16> {
    Some(u16::from_ne_bytes(*bytes.get(at..)?.first_chunk()?))
}

pub(super) fn u32_at(bytes: &[u8], at: usize) -> Option<u32> {
    Some(u32::from_ne_bytes(*bytes.get(at..)?.first_chunk()?))
}

/// Messages on their way to the program.
pub(super) struct NetlinkMessages {
    bytes: [u8; DATAGRAM_MAX],
    len: usize,
    /// Where the message begins that is being written.
    start: usize,
}

impl NetlinkMessages {
    pub(super) const fn new() -> Self {
        Self { bytes: [0; DATAGRAM_MAX], len: 0, start: 0 }
    }

    /// Whether there may be no room for another message.
    pub(super) fn is_full(&self) -> bool {
        self.len + MESSAGE_MAX > DATAGRAM_MAX
    }

    pub(super) fn bytes(&self) -> &[u8] {
        &self.bytes[..self.len]
    }

    pub(super) fn clear(&mut self) {
        self.len = 0;
    }

    /// Begins a message; the caller has made room.
    pub(super) fn begin(&mut self, kind: u16, flags: u16, sequence: u32, port: u32) {
        self.start = self.len;
        self.put(&[0; 4]);
        self.put(&kind.to_ne_bytes());
        self.put(&flags.to_ne_bytes());
        self.put(&sequence.to_ne_bytes());
        self.put(&port.to_ne_bytes());
    }

    pub(super) fn put(&mut self, bytes: &[u8]) {
        debug_assert!(self.len - self.start + bytes.len() <= MESSAGE_MAX);
        self.bytes[self.len..][..bytes.len()].copy_from_slice(bytes);
        self.len += bytes.len();
    }

    /// `struct rtattr`: length without padding, kind, value.
    pub(super) fn attribute(&mut self, kind: u16, value: &[u8]) {
        self.put(&(4 + value.len() as u16).to_ne_bytes());
        self.put(&kind.to_ne_bytes());
        self.put(value);
        self.put(&[0; 3][..value.len().next_multiple_of(4) - value.len()]);
    }

    pub(super) fn number(&mut self, kind: u16, value: u32) {
        self.attribute(kind, &value.to_ne_bytes());
    }

    /// An attribute that consists of what `fill` puts.
    pub(super) fn nested(&mut self, kind: u16, fill: impl FnOnce(&mut Self)) {
        let start = self.len;
        self.attribute(kind, &[]);
        fill(self);
        let len = (self.len - start) as u16;
        self.bytes[start..][..2].copy_from_slice(&len.to_ne_bytes());
    }

    /// A text with its NUL.
    pub(super) fn text(&mut self, kind: u16, value: &[u8]) {
        let mut padded = [0; 16];
        let len = value.len().min(padded.len() - 1);
        padded[..len].copy_from_slice(&value[..len]);
        self.attribute(kind, &padded[..=len]);
    }

    /// Ends the message that was begun.
    pub(super) fn end(&mut self) {
        let len = (self.len - self.start) as u32;
        self.bytes[self.start..][..4].copy_from_slice(&len.to_ne_bytes());
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_written_can_be_read() {
        let mut datagram = NetlinkMessages::new();
        for n in 0..3 {
            datagram.begin(18, 5, 7 + n, 99);
            datagram.put(&[0; 8]);
            datagram.text(3, b"eth0");
            datagram.number(4, 1500);
            datagram.end();
        }
        let all: Vec<_> = requests(datagram.bytes()).collect();
        assert_eq!(all.len(), 3);
        assert_eq!((all[2].kind, all[2].flags, all[2].sequence), (18, 5, 9));
        let attributes = &all[1].body[8..];
        assert_eq!(attribute(attributes, 3), Some(&b"eth0\0"[..]));
        assert_eq!(attribute(attributes, 4), Some(&1500u32.to_ne_bytes()[..]));
        assert_eq!(attribute(attributes, 5), None);
    }

    #[test]
    fn what_is_cut_short_is_not_read() {
        let mut datagram = NetlinkMessages::new();
        datagram.begin(18, 5, 7, 99);
        datagram.text(3, b"eth0");
        datagram.end();
        for len in 0..datagram.bytes().len() {
            assert_eq!(requests(&datagram.bytes()[..len]).count(), 0, "{len}");
            attribute(&datagram.bytes()[HEADER_LEN..][..len.saturating_sub(HEADER_LEN)], 9);
        }
        // A length of nothing must not be read for ever.
        assert_eq!(requests(&[0; 64]).count(), 0);
        assert_eq!(attribute(&[0; 64], 9), None);
    }
}
