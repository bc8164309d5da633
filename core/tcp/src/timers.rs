//! Deadlines of a connection's timers. Keep-alive and user timeout are in module `watch`, pacing in
//! `pacer`. Module `timeouts` handles expired timers.

use crate::config::QUICK_ACKS;
use crate::time::Instant;

/// Deadlines and counters of a connection's timers. [`Instant::FAR`] means that a timer is off.
/// Keep-alive and user timeout are in [`PeerWatch`](crate::watch::PeerWatch), pacing is in
/// [`Pacer`](crate::pacer::Pacer).
#[derive(Debug, Clone, Copy)]
pub(crate) struct Timers {
    /// Deadline of the retransmission timeout or, with `persisting`, of the next window probe.
    /// Window probes are sent only with nothing in flight, so the two never run together.
    pub(crate) retransmit: Instant,
    pub(crate) delayed_ack: Instant,
    /// Deadline of a segment held back by TCP_CORK or, in FIN-WAIT-2, of the peer's FIN. The two
    /// never run together, because a queued FIN ends TCP_CORK.
    pub(crate) hold: Instant,
    /// Time at which the last acceptable segment of the peer arrived.
    pub(crate) last_recv: Instant,
    pub(crate) persisting: bool,
    /// Whether a soft ICMP error arrived since the peer last acknowledged bytes.
    pub(crate) unreachable: bool,
    /// Number of consecutive retransmission timeouts.
    pub(crate) retransmits: u8,
    /// Number of consecutive window probes without an answer.
    pub(crate) window_probes: u8,
    pub(crate) persist_backoff: u8,
    /// Number of ACKs that are still to be sent without delay.
    pub(crate) quick_acks: u8,
    /// Time by which a tail loss probe precedes `retransmit`, in units of [`LEAD_UNIT_NS`];
    /// [`NO_PROBE`] if none is scheduled. Two bytes, because the size of `Connection` is limited.
    probe_lead: u16,
}

/// Value of `probe_lead` if no tail loss probe is scheduled.
const NO_PROBE: u16 = u16::MAX;
/// Unit of `probe_lead` in nanoseconds. The maximum is 16 s, and a probe is late by less than one
/// unit.
const LEAD_UNIT_NS: u64 = 250_000;

impl Timers {
    pub(crate) fn new(now: Instant) -> Timers {
        Timers {
            retransmit: Instant::FAR,
            delayed_ack: Instant::FAR,
            hold: Instant::FAR,
            last_recv: now,
            persisting: false,
            unreachable: false,
            retransmits: 0,
            window_probes: 0,
            persist_backoff: 0,
            quick_acks: QUICK_ACKS,
            probe_lead: NO_PROBE,
        }
    }

    /// Schedules a tail loss probe for the time `at`, or for the time of the retransmission timeout
    /// if this is earlier.
    #[inline]
    pub(crate) fn schedule_probe(&mut self, at: Instant) {
        //= https://www.rfc-editor.org/rfc/rfc8985#section-7.2
        //# If Now() + PTO > TCP_RTO_expiration(): PTO = TCP_RTO_expiration() - Now()
        let lead = self.retransmit.0.saturating_sub(at.0) / LEAD_UNIT_NS;
        self.probe_lead = u16::try_from(lead).unwrap_or(NO_PROBE).min(NO_PROBE - 1);
    }

    pub(crate) fn cancel_probe(&mut self) {
        self.probe_lead = NO_PROBE;
    }

    /// Returns the time of the tail loss probe, or [`Instant::FAR`] if none is scheduled.
    #[inline]
    pub(crate) fn probe(&self) -> Instant {
        if self.probe_lead == NO_PROBE || self.retransmit == Instant::FAR {
            return Instant::FAR;
        }
        Instant(self.retransmit.0.saturating_sub(u64::from(self.probe_lead) * LEAD_UNIT_NS))
    }
}

/// Kind of a connection's timer.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum TimerKind {
    /// Retransmission timeout (RFC 6298).
    Retransmit,
    /// Tail loss probe (RFC 8985 §7).
    TailLossProbe,
    /// End of the reordering window, after which overtaken segments count as lost (RFC 8985 §6.2).
    Reordering,
    /// Probe of the peer's closed receive window (RFC 9293 §3.8.6.1).
    Persist,
    /// A delayed ACK, which must be sent now because no data segment has carried it (RFC 9293
    /// §3.8.6.3).
    DelayedAck,
    /// Keep-alive probe of an idle peer (RFC 9293 §3.8.4).
    KeepAlive,
    /// User timeout: maximum time without an acknowledgement (RFC 5482).
    UserTimeout,
    /// End of the wait for the peer's FIN in FIN-WAIT-2, after the program closed the socket.
    FinWait2,
    /// End of the time for which TCP_CORK holds back a short segment.
    Cork,
    /// Time at which the pacing rate allows the next bytes.
    Pacing,
}
