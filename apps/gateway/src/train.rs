//! Datagrams of equal size, gathered to go to the host in one system call (UDP_SEGMENT).

use towpath_ring::Payload;

use crate::limits::{DATAGRAM_LEN_MAX, PLAIN_TTL, TRAIN_DATAGRAMS_MAX, TRAIN_LEN_MAX};
use crate::slab::SlabKey;

/// Datagrams of one flow that came one after the other.
#[derive(Debug)]
pub(crate) struct Train {
    flow: Option<SlabKey>,
    marks: IpMarks,
    /// Bytes of each, but the last may be shorter.
    size: usize,
    len: usize,
    count: usize,
    bytes: Box<[u8]>,
}

/// Description of a train that was sent.
pub(crate) struct Load {
    pub(crate) flow: SlabKey,
    pub(crate) marks: IpMarks,
    /// Bytes of each datagram, but the last may be shorter.
    pub(crate) size: usize,
    /// Datagrams, at least one.
    pub(crate) count: usize,
    /// Bytes of all of them, the first ones of `bytes`.
    pub(crate) len: usize,
    /// The owner gives it back to [`Train::reuse`].
    pub(crate) bytes: Box<[u8]>,
}

/// Fields of a datagram's IP header besides addresses.
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

    /// Whether a datagram of `flow` can follow the ones in it: a shorter one was the last.
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

    /// Puts in one that it takes, or the first one. False: it is longer than any in UDP.
    pub(crate) fn push(&mut self, datagram: &Payload<'_>) -> bool {
        let end = self.len + datagram.len() as usize;
        let Some(to) = self.bytes.get_mut(self.len..end) else { return false };
        datagram.copy_to(0, to);
        self.len = end;
        self.count += 1;
        true
    }

    /// Takes out what is in it.
    pub(crate) fn unload(&mut self) -> Option<Load> {
        let flow = self.flow.filter(|_| self.count > 0)?;
        let Self { marks, size, len, .. } = *self;
        let (count, bytes) = (std::mem::take(&mut self.count), std::mem::take(&mut self.bytes));
        Some(Load { flow, marks, size, count, len, bytes })
    }

    /// Takes the memory of [`Load::bytes`] back.
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
        // RFC 8200 §3 and RFC 768: 16 bits say the length, the UDP header's 8 bytes included.
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
