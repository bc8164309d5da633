//! Encodes and parses messages of netlink(7) and rtnetlink(7).
//!
//! Numbers are in host byte order, addresses in network byte order, and all parts are aligned to
//! four bytes. The functions allocate no memory, because a signal handler that interrupted malloc
//! may use a socket.

/// Length in bytes of `struct nlmsghdr`.
pub(super) const HEADER_LEN: usize = 16;
/// Maximum length in bytes of a datagram of answers: a page, because receive buffers of programs
/// have at least this size.
pub(super) const DATAGRAM_MAX: usize = 4096;
/// Maximum length in bytes of one netlink message that this module creates.
const MESSAGE_MAX: usize = 768;

/// A netlink request: fields of its `struct nlmsghdr`, and its body.
#[derive(Debug, Clone, Copy)]
pub(super) struct NetlinkRequest<'a> {
    pub(super) kind: u16,
    pub(super) flags: u16,
    pub(super) sequence: u32,
    /// Bytes of the request's header, which error messages quote.
    pub(super) header: &'a [u8],
    pub(super) body: &'a [u8],
}

/// Returns the netlink requests contained in `bytes`, the data of one send. A truncated request
/// ends the iterator.
pub(super) fn requests(mut bytes: &[u8]) -> impl Iterator<Item = NetlinkRequest<'_>> {
    std::iter::from_fn(move || {
        let len = u32_at(bytes, 0)? as usize;
        let (header, body) = bytes.get(..len)?.split_at_checked(HEADER_LEN)?;
        bytes = bytes.get(len.next_multiple_of(4)..).unwrap_or_default();
        let (kind, flags) = (u16_at(header, 4)?, u16_at(header, 6)?);
        Some(NetlinkRequest { kind, flags, sequence: u32_at(header, 8)?, header, body })
    })
}

/// Returns the value of the first attribute of type `wanted`. `bytes` contains the attributes of a
/// message, without its fixed part.
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

/// Datagram for the program, to which netlink messages are appended.
pub(super) struct NetlinkMessages {
    bytes: [u8; DATAGRAM_MAX],
    len: usize,
    /// Offset in bytes of the message that is being written.
    start: usize,
}

impl NetlinkMessages {
    pub(super) const fn new() -> Self {
        Self { bytes: [0; DATAGRAM_MAX], len: 0, start: 0 }
    }

    /// Returns whether another message might not fit the datagram.
    pub(super) fn is_full(&self) -> bool {
        self.len + MESSAGE_MAX > DATAGRAM_MAX
    }

    pub(super) fn bytes(&self) -> &[u8] {
        &self.bytes[..self.len]
    }

    pub(super) fn clear(&mut self) {
        self.len = 0;
    }

    /// Begins a netlink message. The caller must have checked with [`Self::is_full`] that it fits.
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

    /// Appends an attribute, a `struct rtattr`: length without padding, type, value.
    pub(super) fn attribute(&mut self, kind: u16, value: &[u8]) {
        self.put(&(4 + value.len() as u16).to_ne_bytes());
        self.put(&kind.to_ne_bytes());
        self.put(value);
        self.put(&[0; 3][..value.len().next_multiple_of(4) - value.len()]);
    }

    pub(super) fn number(&mut self, kind: u16, value: u32) {
        self.attribute(kind, &value.to_ne_bytes());
    }

    /// Appends a nested attribute: its value consists of the attributes written by `fill`.
    pub(super) fn nested(&mut self, kind: u16, fill: impl FnOnce(&mut Self)) {
        let start = self.len;
        self.attribute(kind, &[]);
        fill(self);
        let len = (self.len - start) as u16;
        self.bytes[start..][..2].copy_from_slice(&len.to_ne_bytes());
    }

    /// Appends an attribute whose value is a NUL-terminated string.
    pub(super) fn text(&mut self, kind: u16, value: &[u8]) {
        let mut padded = [0; 16];
        let len = value.len().min(padded.len() - 1);
        padded[..len].copy_from_slice(&value[..len]);
        self.attribute(kind, &padded[..=len]);
    }

    /// Completes the current message by writing its length to its header.
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
        // A message or attribute with length 0 must not cause an endless loop.
        assert_eq!(requests(&[0; 64]).count(), 0);
        assert_eq!(attribute(&[0; 64], 9), None);
    }
}
