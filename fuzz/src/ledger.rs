//! Segments that a sender may send, according to its program's writes and its peer's
//! acknowledgements.

use towpath_tcp::{Flags, SeqNum};

/// Returns the byte at `index` of a stream. Streams with different seeds differ, so that bytes of
/// another stream are detected.
pub(crate) fn stream(seed: u8, index: u32) -> u8 {
    (index.wrapping_mul(2_654_435_761) >> 13) as u8 ^ seed
}

/// State of a sender as seen on the wire. Sequence numbers are relative to the ISS, so that they
/// never wrap: 0 is the SYN, 1 the first byte.
///
/// ```text
///   0     una                nxt                      1 + written
///   | SYN | acknowledged ... | sent ...               | FIN
/// ```
#[derive(Debug)]
pub(crate) struct Ledger {
    iss: SeqNum,
    seed: u8,
    una: u32,
    nxt: u32,
    written: u32,
    /// The program has shut down sending.
    shut: bool,
    /// Last acknowledgement of the peer, which is the sequence number of a RST in answer to it.
    last_ack: Option<SeqNum>,
}

/// A segment that the connection sent.
#[derive(Clone, Copy)]
pub(crate) struct Sent<'a> {
    pub(crate) seq: SeqNum,
    pub(crate) flags: Flags,
    pub(crate) len: u32,
    /// Payload to compare; `None` if the harness has only its length.
    pub(crate) payload: Option<&'a [u8]>,
    /// The peer's window in force.
    pub(crate) snd_wnd: u32,
}

/// Leaves out the payload.
impl std::fmt::Debug for Sent<'_> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let Self { seq, flags, len, payload: _, snd_wnd } = self;
        write!(f, "{flags:?} {seq:?} with {len} bytes, window {snd_wnd}")
    }
}

impl Ledger {
    /// Creates the state before the SYN.
    pub(crate) fn new(iss: SeqNum, seed: u8) -> Self {
        Self { iss, seed, una: 0, nxt: 0, written: 0, shut: false, last_ack: None }
    }

    /// Creates the state after the handshake.
    pub(crate) fn established(iss: SeqNum, seed: u8) -> Self {
        Self { una: 1, nxt: 1, ..Self::new(iss, seed) }
    }

    /// Records that the program has written the next `len` bytes of the stream.
    pub(crate) fn on_write(&mut self, len: u32) {
        assert!(!self.shut, "the harness writes after it said that it would not");
        self.written += len;
    }

    pub(crate) fn on_shutdown(&mut self) {
        self.shut = true;
    }

    pub(crate) fn is_shut(&self) -> bool {
        self.shut
    }

    pub(crate) fn written(&self) -> u32 {
        self.written
    }

    /// Returns the bytes of the stream that were sent and not acknowledged, without the FIN.
    pub(crate) fn bytes_in_flight(&self) -> u32 {
        self.nxt.min(1 + self.written).saturating_sub(self.una.max(1))
    }

    /// Records the acknowledgement of a segment that is about to arrive.
    pub(crate) fn on_peer(&mut self, ack: SeqNum) {
        self.last_ack = Some(ack);
    }

    /// Checks SND.UNA and SND.NXT as reported by the connection.
    pub(crate) fn on_edges(&mut self, snd_una: SeqNum, snd_nxt: SeqNum) {
        let (una, nxt) = (snd_una - self.iss, snd_nxt - self.iss);
        assert!(una >= self.una, "SND.UNA went back from {} to {una}", self.una);
        assert!(una <= self.nxt, "SND.UNA {una} is beyond what was sent, {}", self.nxt);
        assert_eq!(nxt, self.nxt, "SND.NXT");
        self.una = una;
    }

    /// Like [`on_edges`](Self::on_edges), but ignores SND.NXT, because packets that the connection
    /// has sent since are checked later.
    pub(crate) fn on_una(&mut self, snd_una: SeqNum) {
        self.on_edges(snd_una, self.iss + self.nxt);
    }

    /// Checks everything that can be checked about one segment.
    pub(crate) fn on_sent(&mut self, sent: Sent<'_>) {
        let at = sent.seq - self.iss;
        let fin = sent.flags.contains(Flags::FIN);
        if sent.flags.contains(Flags::RST) {
            assert!(sent.len == 0 && !fin && !sent.flags.contains(Flags::SYN), "{sent:?}");
            let answers = !sent.flags.contains(Flags::ACK) && self.last_ack == Some(sent.seq);
            // A segment may follow the one that ended the connection in the same turn. Without an
            // ACK it is answered as by a closed port (RFC 9293 §3.10.7.1).
            let closed = sent.flags.contains(Flags::ACK) && sent.seq == SeqNum(0);
            assert!(
                answers || closed || at == self.nxt,
                "a RST with a foreign number: {sent:?} {self:?}"
            );
        } else if sent.flags.contains(Flags::SYN) {
            assert!(at == 0 && sent.len == 0 && !fin && self.una == 0, "{sent:?} {self:?}");
            self.nxt = self.nxt.max(1);
        } else if sent.len == 0 && !fin {
            // Window probes and keepalives repeat the last number acknowledged (RFC 9293 §3.8.4).
            let probe = self.una.checked_sub(1) == Some(at);
            assert!(at == self.nxt || probe, "an ACK with a foreign number: {sent:?} {self:?}");
        } else {
            self.on_text(at, fin, &sent);
        }
    }

    fn on_text(&mut self, at: u32, fin: bool, sent: &Sent<'_>) {
        assert!(at >= self.una.max(1) && at <= self.nxt, "not from here: {sent:?} {self:?}");
        let bytes_end = at.checked_add(sent.len).expect("no segment is so long");
        let stream_end = 1 + self.written;
        assert!(bytes_end <= stream_end, "beyond what was written: {sent:?} {self:?}");
        assert!(!fin || self.shut && bytes_end == stream_end, "a FIN too soon: {sent:?} {self:?}");
        let end = bytes_end + u32::from(fin);
        if at < self.nxt {
            assert!(end <= self.nxt, "old bytes and new ones in one: {sent:?} {self:?}");
        } else {
            let window_end = self.una.saturating_add(sent.snd_wnd);
            assert!(end <= window_end, "new bytes beyond the window: {sent:?} {self:?}");
        }
        self.nxt = self.nxt.max(end);
        if let Some(payload) = sent.payload {
            assert_eq!(payload.len(), sent.len as usize);
            let wrong = payload
                .iter()
                .zip(at - 1..)
                .position(|(byte, index)| *byte != stream(self.seed, index));
            assert_eq!(wrong, None, "not the bytes that were written: {sent:?} {self:?}");
        }
    }
}
