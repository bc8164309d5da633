//! Send variables of a connection (RFC 9293 §3.3.1), and the segment sizes that peer and path
//! allow.

use crate::config::{Config, MSS_DEFAULT, MSS_MIN};
use towpath_wire::tcp::SeqNum;

/// Send sequence variables of a connection: `una` is SND.UNA, `nxt` is SND.NXT.
#[derive(Debug)]
pub(crate) struct SendSpace {
    pub(crate) iss: SeqNum,
    pub(crate) una: SeqNum,
    pub(crate) nxt: SeqNum,
    /// Receive window of the peer in bytes.
    pub(crate) wnd: u32,
    pub(crate) wl1: SeqNum,
    pub(crate) wl2: SeqNum,
    /// Largest receive window that the peer has announced so far, in bytes.
    pub(crate) max_wnd: u32,
    /// Sequence number after the last segment sent that was shorter than the MSS (Minshall's
    /// variant of Nagle's algorithm).
    pub(crate) small_end: SeqNum,
    pub(crate) mss_peer: u16,
    /// Maximum segment size, including TCP options, that the path MTU and the program's TCP_MAXSEG
    /// allow.
    pub(crate) mss_path: u16,
    pub(crate) wscale: u8,
    /// Whether the program's last write had MSG_MORE.
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
            mss_peer: config.mss_default,
            mss_path: config.mss_send_max,
            wscale: 0,
            more_coming: false,
            fin_queued: false,
            fin_sent: false,
        }
    }

    /// Sets the initial sequence number to `iss`. Call this only before the SYN is sent.
    pub(crate) fn restart(&mut self, iss: SeqNum) {
        (self.iss, self.una, self.nxt) = (iss, iss, iss);
        self.small_end = iss;
    }

    pub(crate) fn set_window(&mut self, window: u32, wl1: SeqNum, wl2: SeqNum) {
        self.wnd = window;
        self.wl1 = wl1;
        self.wl2 = wl2;
        self.max_wnd = self.max_wnd.max(window);
    }

    /// Raises sequence numbers that are before SND.UNA to SND.UNA. If they fell behind by half of
    /// the sequence space, comparisons would be inverted.
    pub(crate) fn keep_marks_ahead(&mut self) {
        self.small_end = self.small_end.max(self.una);
    }

    /// Returns the number of sequence numbers that are sent but not yet acknowledged.
    #[inline]
    pub(crate) fn flight(&self) -> u32 {
        self.nxt - self.una
    }

    /// Returns whether our FIN is sent but not yet acknowledged.
    pub(crate) fn fin_in_flight(&self) -> bool {
        self.fin_sent && self.una != self.nxt
    }

    /// Returns whether the peer has acknowledged our FIN. No more sequence numbers are used
    /// afterwards.
    pub(crate) fn fin_acked(&self) -> bool {
        self.fin_sent && self.una == self.nxt
    }

    /// Returns the first sequence number beyond the peer's receive window.
    pub(crate) fn window_end(&self) -> SeqNum {
        self.una + self.wnd
    }

    /// Returns whether the sequence number is in flight: SND.UNA <= `seq` < SND.NXT.
    pub(crate) fn is_outstanding(&self, seq: SeqNum) -> bool {
        seq.is_within(self.una, self.flight())
    }

    /// Returns the effective send MSS, including options.
    ///
    //= https://www.rfc-editor.org/rfc/rfc9293#section-3.7.1
    //# The maximum size of a segment that a TCP endpoint really sends, the "effective send MSS",
    //# MUST be the smaller (MUST-16) of the send MSS (that reflects the available reassembly buffer
    //# size at the remote host, the EMTU_R [19]) and the largest transmission size permitted by the
    //# IP layer (EMTU_S [19])
    pub(crate) fn mss_with_options(&self) -> u16 {
        self.mss_peer.min(self.mss_path).min(self.half_window()).max(MSS_MIN)
    }

    /// Returns half of the largest receive window that the peer has announced. If a segment were
    /// longer, only one segment would fit in the window. Each segment would then have to wait for
    /// the delayed ACK of the previous one. Windows of less than two segments are common on links
    /// with segments of 64 KiB. Linux does the same (`tcp_bound_to_half_wnd`), and exempts windows
    /// of up to 536 bytes.
    fn half_window(&self) -> u16 {
        match self.max_wnd {
            0 => u16::MAX,
            least if least <= u32::from(MSS_DEFAULT) => MSS_DEFAULT,
            largest => u16::try_from(largest / 2).unwrap_or(u16::MAX),
        }
    }
}
