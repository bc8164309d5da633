//! Trains: consecutive datagrams of equal size that one system call sends (UDP_SEGMENT).

use towpath_ring::Payload;

use crate::limits::{DATAGRAM_LEN_MAX, PLAIN_TTL, TRAIN_DATAGRAMS_MAX, TRAIN_LEN_MAX};
use crate::slab::SlabKey;

/// A train: consecutive datagrams of one flow, to be sent by one system call.
#[derive(Debug)]
pub(crate) struct Train {
    flow: Option<SlabKey>,
    marks: IpMarks,
    /// Length of each datagram in bytes; the last may be shorter.
    size: usize,
    len: usize,
    count: usize,
    bytes: Box<[u8]>,
}

/// Datagrams that were taken out of a train, to be sent by one system call.
pub(crate) struct Load {
    pub(crate) flow: SlabKey,
    pub(crate) marks: IpMarks,
    /// Length of each datagram in bytes; the last may be shorter.
    pub(crate) size: usize,
    /// Number of datagrams, at least one.
    pub(crate) count: usize,
    /// Total length in bytes. The datagrams are the first `len` bytes of `bytes`.
    pub(crate) len: usize,
    /// Memory of the datagrams, to be returned to the train by [`Train::reuse`].
    pub(crate) bytes: Box<[u8]>,
}

/// IP header fields of a datagram other than its addresses.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct IpMarks {
    pub(crate) ttl: u8,
    pub(crate) tos: u8,
    pub(crate) dont_fragment: bool,
}

impl Train {
    pub(crate) fn new() -> Self {
        let bytes = vec![0; DATAGRAM_LEN_MAX].into_boxed_slice();
        let marks = IpMarks { ttl: PLAIN_TTL, tos: 0, dont_fragment: false };
        Self { flow: None, marks, size: 0, len: 0, count: 0, bytes }
    }

    /// Returns whether a datagram of `flow` may be appended to the train. Nothing may be appended
    /// after a datagram that is shorter than the first one.
    pub(crate) fn takes(&self, flow: SlabKey, marks: IpMarks, len: usize) -> bool {
        self.count > 0
            && self.count < TRAIN_DATAGRAMS_MAX
            && (self.flow, self.marks) == (Some(flow), marks)
            && self.len == self.count * self.size
            && (1..=self.size).contains(&len)
            && self.len + len <= TRAIN_LEN_MAX
    }

    pub(crate) fn begin(&mut self, flow: SlabKey, marks: IpMarks, size: usize) {
        (self.flow, self.marks) = (Some(flow), marks);
        (self.size, self.len, self.count) = (size, 0, 0);
    }

    /// Appends a datagram, which must be the first, or one for which [`Train::takes`] has returned
    /// true. Returns false if the datagram exceeds the maximum length of UDP.
    pub(crate) fn push(&mut self, datagram: &Payload<'_>) -> bool {
        let end = self.len + datagram.len() as usize;
        let Some(to) = self.bytes.get_mut(self.len..end) else { return false };
        datagram.copy_to(0, to);
        self.len = end;
        self.count += 1;
        true
    }

    /// Takes all datagrams out of the train; `None` if it is empty.
    pub(crate) fn unload(&mut self) -> Option<Load> {
        let flow = self.flow.filter(|_| self.count > 0)?;
        let Self { marks, size, len, .. } = *self;
        let (count, bytes) = (std::mem::take(&mut self.count), std::mem::take(&mut self.bytes));
        Some(Load { flow, marks, size, count, len, bytes })
    }

    /// Returns the memory [`Load::bytes`] to the train.
    pub(crate) fn reuse(&mut self, bytes: Box<[u8]>) {
        self.bytes = bytes;
    }
}

#[cfg(test)]
mod tests {
    use towpath_shm::Fragments;

    use super::*;
    use crate::slab::KeyedSlab;

    fn payload(bytes: &[u8]) -> Payload<'_> {
        Payload::new(bytes, Fragments::empty())
    }

    #[test]
    fn the_longest_datagram_of_ipv6_has_room() {
        let (key, marks) =
            (KeyedSlab::new().insert(()), IpMarks { ttl: 1, tos: 0, dont_fragment: false });
        // The 16-bit length field of UDP includes the header of 8 bytes (RFC 8200 §3, RFC 768).
        let longest = vec![7; 65_535 - 8];
        let mut train = Train::new();
        train.begin(key, marks, longest.len());
        assert!(train.push(&payload(&longest)));
        let load = train.unload().unwrap();
        assert!((load.count, &load.bytes[..load.len]) == (1, &longest[..]));
        train.reuse(load.bytes);
        assert!(train.unload().is_none());
        train.begin(key, marks, longest.len() + 1);
        assert!(!train.push(&payload(&[longest, vec![7]].concat())));
        assert!(train.unload().is_none());
    }
}
