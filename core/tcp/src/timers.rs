//! Deadlines of a connection, except those in `watch` (keep-alive, user timeout) and `pacer`.
//! Expiry is handled in `timeouts`.

use crate::config::QUICK_ACKS;
use crate::time::Instant;

/// Deadlines and counters; [`Instant::FAR`] means that a timer is off. Keep-alive and user timeout
/// are in [`PeerWatch`](crate::watch::PeerWatch), pacing is in [`Pacer`](crate::pacer::Pacer).
#[derive(Debug, Clone, Copy)]
pub(crate) struct Timers {
    /// Deadline of the retransmission or, with `persisting`, of the next window probe. Only one of
    /// them can be due, because probes are sent only with nothing in flight.
    pub(crate) retransmit: Instant,
    pub(crate) delayed_ack: Instant,
    /// Deadline of a corked segment or, in FIN-WAIT-2, of the peer's FIN. Only one of them can be
    /// due, because a queued FIN ends the cork.
    pub(crate) hold: Instant,
    /// Time at which the last acceptable segment arrived.
    pub(crate) last_recv: Instant,
    pub(crate) persisting: bool,
    /// Whether a soft ICMP error arrived since the last progress.
    pub(crate) unreachable: bool,
    /// Consecutive retransmission timeouts without progress.
    pub(crate) retransmits: u8,
    /// Consecutive window probes without an answer.
    pub(crate) window_probes: u8,
    pub(crate) persist_backoff: u8,
    /// Number of ACKs still to be sent without delay.
    pub(crate) quick_acks: u8,
    /// Time by which a tail loss probe precedes `retransmit`, in units of [`LEAD_UNIT_NS`];
    /// [`NO_PROBE`] if none is scheduled. As small as that because `Connection` has a budget.
    probe_lead: u16,
}

/// Value of `probe_lead` without a probe.
const NO_PROBE: u16 = u16::MAX;
/// Unit of `probe_lead`. The maximum is 16 s, and a probe is late by less than a unit.
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

    /// Schedules a tail loss probe at `at`, or together with the retransmission timeout if that is
    /// earlier.
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

    /// Returns the time of the tail loss probe, or [`Instant::FAR`].
    #[inline]
    pub(crate) fn probe(&self) -> Instant {
        if self.probe_lead == NO_PROBE || self.retransmit == Instant::FAR {
            return Instant::FAR;
        }
        Instant(self.retransmit.0.saturating_sub(u64::from(self.probe_lead) * LEAD_UNIT_NS))
    }
}

/// Purpose of a timeout.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum TimerKind {
    /// Retransmission (RFC 6298).
    Retransmit,
    /// Tail loss probe (RFC 8985 §7).
    TailLossProbe,
    /// End of the wait for reordered segments (RFC 8985 §6.2).
    Reordering,
    /// Probe of a closed window (RFC 9293 §3.8.6.1).
    Persist,
    /// A delayed acknowledgement that no data segment carried (RFC 9293 §3.8.6.3).
    DelayedAck,
    /// Keep-alive probe (RFC 9293 §3.8.4).
    KeepAlive,
    /// User timeout (RFC 5482).
    UserTimeout,
    /// End of the wait for the peer's FIN after the socket was closed.
    FinWait2,
    /// End of the cork of a short segment.
    Cork,
    /// The pacing rate allows the next bytes.
    Pacing,
}
