//! TIME-WAIT: keeps the state of an ended connection that is needed to handle its late segments
//! (RFC 9293 §3.6.1).

use crate::disposition::SegmentDropReason;
use crate::segment::{Outgoing, Segment};
use crate::time::Instant;
use crate::timestamps;
use towpath_wire::tcp::{Flags, Options, SeqNum};

/// A connection in TIME-WAIT, which only answers late segments.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct TimeWait {
    ended: EndedConnection,
    time_wait_ms: u32,
    /// Time of the last answer to a segment without payload, in milliseconds; limits the rate of
    /// answers.
    answered_ms: u32,
    expires: Instant,
}

/// Limit the size of this type, because a server that closes first has a value of it for each
/// connection of the last minute.
const _: () = assert!(size_of::<TimeWait>() <= 64);

/// State of an ended connection with which late segments are checked and answered.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct EndedConnection {
    pub(crate) snd_nxt: SeqNum,
    pub(crate) rcv_nxt: SeqNum,
    /// Receive window in bytes, from `rcv_nxt` to the rightmost edge ever announced.
    pub(crate) rcv_wnd: u32,
    pub(crate) rcv_wscale: u8,
    pub(crate) timestamps: bool,
    pub(crate) ts_recent: u32,
    pub(crate) ts_offset: u32,
}

/// Action for a segment that was received for a connection in TIME-WAIT.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum TimeWaitVerdict {
    /// Send this ACK in answer to the segment.
    Ack(Outgoing),
    /// The segment is a SYN that may open a new connection. If a listener accepts the SYN, drop the
    /// [`TimeWait`]; otherwise call [`TimeWait::refuse_syn`]. The new connection's initial sequence
    /// number must be at or after [`TimeWait::iss_min`].
    Reopen,
    /// Drop the segment, for this reason, without an answer.
    Drop(SegmentDropReason),
}

/// Minimum interval in milliseconds between answers to segments without payload: Linux's
/// `tcp_invalid_ratelimit`.
const ANSWER_INTERVAL_MS: u32 = 500;

impl TimeWait {
    /// Creates the TIME-WAIT state of a connection. Its timer starts at `entered`, when the
    /// connection entered TIME-WAIT.
    pub(crate) fn new(ended: EndedConnection, entered: Instant, time_wait_ms: u32) -> TimeWait {
        TimeWait {
            ended,
            time_wait_ms,
            answered_ms: entered.millis().wrapping_sub(ANSWER_INTERVAL_MS),
            expires: entered.after_millis(time_wait_ms),
        }
    }

    /// Returns the time at which TIME-WAIT ends.
    pub fn expires(&self) -> Instant {
        self.expires
    }

    /// Returns whether the ended connection used timestamps. By their timestamps, its late segments
    /// can be distinguished from those of a new connection.
    pub fn has_timestamps(&self) -> bool {
        self.ended.timestamps
    }

    /// Returns the minimum initial sequence number of a new connection between the same ports. As
    /// on Linux, the number is more than an unscaled window beyond SND.NXT. Late segments of the
    /// old connection are therefore outside the window of the new one.
    pub fn iss_min(&self) -> SeqNum {
        self.ended.snd_nxt + (1 << 16) + 2
    }

    /// Processes a segment for a connection in TIME-WAIT (RFC 9293 §3.10.7.4). The caller has
    /// verified the checksum.
    pub fn on_segment(&mut self, now: Instant, segment: &Segment) -> TimeWaitVerdict {
        // Ignore the RST, which must not end TIME-WAIT (RFC 1337 §3, F1).
        if segment.flags.contains(Flags::RST) {
            return TimeWaitVerdict::Drop(SegmentDropReason::ResetIgnored);
        }
        if segment.flags.contains(Flags::SYN) {
            //= https://www.rfc-editor.org/rfc/rfc9293#section-3.6.1
            //# it MAY accept a new SYN from the remote TCP endpoint to reopen the connection
            //# directly from TIME-WAIT state (MAY-2)
            //= https://www.rfc-editor.org/rfc/rfc9293#section-3.6.1
            //# This algorithm for reducing TIME-WAIT is a Best Current Practice that SHOULD be
            //# implemented since Timestamp Options are commonly used, and using them to reduce
            //# TIME-WAIT provides benefits for busy Internet servers (SHLD-4).
            //= https://www.rfc-editor.org/rfc/rfc6191#section-2
            //# If the Timestamp.value of the incoming SYN is larger than the last timestamp seen on
            //# the previous incarnation
            let newer =
                timestamps::order(self.ended.ts_recent, segment).filter(|_| self.ended.timestamps);
            let reopen = newer.is_some_and(|newer| newer > 0)
                || newer.is_none_or(|newer| newer == 0)
                    && segment.seq.distance(self.ended.rcv_nxt) > 0;
            // As on Linux, a SYN with FIN opens no connection.
            let is_request = !segment.flags.intersects(Flags::ACK | Flags::FIN);
            return if is_request && reopen {
                TimeWaitVerdict::Reopen
            } else {
                //= https://www.rfc-editor.org/rfc/rfc5961#section-4.2
                //# If the SYN bit is set, irrespective of the sequence number, TCP MUST send an ACK
                self.answer(now, SegmentDropReason::SynInWindow)
            };
        }
        if self.ended.timestamps {
            match timestamps::check(self.ended.ts_recent, segment) {
                Ok(()) => {}
                Err(SegmentDropReason::Paws) => return self.answer(now, SegmentDropReason::Paws),
                Err(reason) => return TimeWaitVerdict::Drop(reason),
            }
        }
        if !segment.flags.contains(Flags::ACK) {
            return TimeWaitVerdict::Drop(SegmentDropReason::NoAck);
        }
        //= https://www.rfc-editor.org/rfc/rfc9293#section-3.10.7.4
        //# The only thing that can arrive in this state is a retransmission of the remote FIN.
        //# Acknowledge it, and restart the 2 MSL timeout.
        if segment.flags.contains(Flags::FIN)
            && segment.seq + segment.seq_len() == self.ended.rcv_nxt
        {
            self.expires = now.after_millis(self.time_wait_ms);
            return TimeWaitVerdict::Ack(self.ack(now));
        }
        if segment.payload_len > 0 {
            return TimeWaitVerdict::Ack(self.ack(now));
        }
        if !segment.seq.is_within(self.ended.rcv_nxt, self.ended.rcv_wnd + 1) {
            return self.answer(now, SegmentDropReason::OutOfWindow);
        }
        TimeWaitVerdict::Drop(SegmentDropReason::AfterClose)
    }

    /// Answers a SYN for which [`TimeWaitVerdict::Reopen`] was returned, if no listener accepts it.
    pub fn refuse_syn(&mut self, now: Instant) -> TimeWaitVerdict {
        self.answer(now, SegmentDropReason::SynInWindow)
    }

    /// Returns a rate-limited ACK. Without the limit, two peers with conflicting states could
    /// exchange ACKs for ever.
    fn answer(&mut self, now: Instant, reason: SegmentDropReason) -> TimeWaitVerdict {
        if now.millis().wrapping_sub(self.answered_ms) < ANSWER_INTERVAL_MS {
            return TimeWaitVerdict::Drop(reason);
        }
        self.answered_ms = now.millis();
        TimeWaitVerdict::Ack(self.ack(now))
    }

    fn ack(&self, now: Instant) -> Outgoing {
        let timestamps = self
            .ended
            .timestamps
            .then(|| timestamps::option(now, self.ended.ts_offset, self.ended.ts_recent));
        let window = u16::try_from(self.ended.rcv_wnd >> self.ended.rcv_wscale).unwrap_or(u16::MAX);
        Outgoing {
            options: Options { timestamps, ..Options::default() },
            ..Outgoing::bare(self.ended.snd_nxt, self.ended.rcv_nxt, Flags::ACK, window)
        }
    }
}
