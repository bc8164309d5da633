//! The send sequence space (RFC 9293 §3.3.1), and the segment sizes that the peer and the path
//! allow.

use crate::config::{Config, MSS_DEFAULT, MSS_MIN};
use towpath_wire::tcp::SeqNum;

/// Variables of the bytes that a connection sends: `una` is SND.UNA, `nxt` SND.NXT.
#[derive(Debug)]
pub(crate) struct SendSpace {
    pub(crate) iss: SeqNum,
    pub(crate) una: SeqNum,
    pub(crate) nxt: SeqNum,
    /// Peer's window in bytes, scaled.
    pub(crate) wnd: u32,
    pub(crate) wl1: SeqNum,
    pub(crate) wl2: SeqNum,
    /// Largest window that the peer ever offered.
    pub(crate) max_wnd: u32,
    /// End of the last short segment sent (Minshall's variant of Nagle's algorithm).
    pub(crate) small_end: SeqNum,
    /// End of the bytes that were sent while the congestion window limited the sender.
    pub(crate) limited_end: SeqNum,
    pub(crate) mss_peer: u16,
    /// Largest segment, options included, that the path MTU and the program's TCP_MAXSEG allow.
    pub(crate) mss_path: u16,
    pub(crate) wscale: u8,
    /// MSG_MORE was set on the last write.
    pub(crate) more_coming: bool,
    pub(crate) fin_queued: bool,
    pub(crate) fin_sent: bool,
}

impl SendSpace {
    pub(crate) fn new(config: &Config, iss: SeqNum) -> SendSpace {
        SendSpace {
            iss,
            una: iss,
            nxt: iss,
            wnd: 0,
            wl1: SeqNum(0),
            wl2: SeqNum(0),
            max_wnd: 0,
            small_end: iss,
            limited_end: iss,
            mss_peer: config.mss_default,
            mss_path: config.mss_send_max,
            wscale: 0,
            more_coming: false,
            fin_queued: false,
            fin_sent: false,
        }
    }

    /// Restarts the space at `iss`; only valid before the SYN is sent.
    pub(crate) fn restart(&mut self, iss: SeqNum) {
        (self.iss, self.una, self.nxt) = (iss, iss, iss);
        (self.small_end, self.limited_end) = (iss, iss);
    }

    pub(crate) fn set_window(&mut self, window: u32, wl1: SeqNum, wl2: SeqNum) {
        self.wnd = window;
        self.wl1 = wl1;
        self.wl2 = wl2;
        self.max_wnd = self.max_wnd.max(window);
    }

    /// Moves marks that SND.UNA has passed along with it. Otherwise they would come to lie half the
    /// space away, where the order of sequence numbers is reversed.
    pub(crate) fn keep_marks_ahead(&mut self) {
        self.small_end = self.small_end.max(self.una);
        self.limited_end = self.limited_end.max(self.una);
    }

    /// Sequence numbers sent and not acknowledged.
    #[inline]
    pub(crate) fn flight(&self) -> u32 {
        self.nxt - self.una
    }

    /// Our FIN is sent and not acknowledged.
    pub(crate) fn fin_in_flight(&self) -> bool {
        self.fin_sent && self.una != self.nxt
    }

    /// The peer has acknowledged our FIN, so that we send no further sequence number.
    pub(crate) fn fin_acked(&self) -> bool {
        self.fin_sent && self.una == self.nxt
    }

    /// Number behind the last that the peer's window allows.
    pub(crate) fn window_end(&self) -> SeqNum {
        self.una + self.wnd
    }

    /// Whether SND.UNA <= `seq` < SND.NXT.
    pub(crate) fn is_outstanding(&self, seq: SeqNum) -> bool {
        seq.is_within(self.una, self.flight())
    }

    /// Largest segment, options included.
    ///
    //= https://www.rfc-editor.org/rfc/rfc9293#section-3.7.1
    //# The maximum size of a segment that a TCP endpoint really sends, the "effective send MSS",
    //# MUST be the smaller (MUST-16) of the send MSS (that reflects the available reassembly buffer
    //# size at the remote host, the EMTU_R [19]) and the largest transmission size permitted by the
    //# IP layer (EMTU_S [19])
    pub(crate) fn mss_with_options(&self) -> u16 {
        self.mss_peer.min(self.mss_path).min(self.half_window()).max(MSS_MIN)
    }

    /// Half the largest window that the peer ever offered. A larger segment would fit into the
    /// peer's buffer alone, and be sent when the peer has read all. So each segment would wait for
    /// the acknowledgement of the one before, which the peer delays. On a link with segments of 64
    /// KiB that is the rule. Linux does the same (`tcp_bound_to_half_wnd`), and leaves windows of
    /// up to 536 bytes alone.
    fn half_window(&self) -> u16 {
        match self.max_wnd {
            0 => u16::MAX,
            least if least <= u32::from(MSS_DEFAULT) => MSS_DEFAULT,
            largest => u16::try_from(largest / 2).unwrap_or(u16::MAX),
        }
    }
}
