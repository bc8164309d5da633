//! Consistency checks of a TCP connection for simulators and tests.

use crate::config::WINDOW_SCALE_MAX;
use crate::connection::Connection;
use crate::segment::FifoLevels;
use crate::state::State;
use crate::time::Instant;

/// Largest receive window that can be advertised (RFC 7323 section 2.3).
const WINDOW_MAX: u32 = (u16::MAX as u32) << WINDOW_SCALE_MAX;

impl Connection {
    /// Returns the first invariant that does not hold, or `None` if the connection is consistent.
    ///
    /// Call this after `plan` returned [`Plan::Nothing`](crate::Plan::Nothing), so that no segment
    /// is due. `buffers` are the current fill levels of the buffers. Only tests and simulators call
    /// this function.
    pub fn audit(&self, buffers: FifoLevels) -> Option<&'static str> {
        if self.state == State::Closed {
            return None;
        }
        let rules = self.audit_sent(buffers).or_else(|| self.audit_scoreboard());
        let rules = rules.or_else(|| self.audit_received());
        rules.or_else(|| self.audit_timers(buffers))
    }

    fn audit_sent(&self, buffers: FifoLevels) -> Option<&'static str> {
        let flight = self.snd.flight();
        let before_data = matches!(self.state, State::SynSent | State::SynReceived);
        first_broken(&[
            (self.snd.una.leq(self.snd.nxt), "SND.UNA <= SND.NXT"),
            (
                before_data || flight <= self.snd.max_wnd.max(1),
                "SND.NXT - SND.UNA <= the largest window of the peer",
            ),
            (self.is_mss_current(), "the segment size follows its limits"),
            (
                !before_data || flight <= 1 || self.ext.fast_open.has_early_bytes(),
                "nothing but the SYN is in flight before ESTABLISHED",
            ),
            (
                flight >= u32::from(self.syn_in_flight()) + u32::from(self.snd.fin_in_flight()),
                "SYN and FIN in flight are part of the flight",
            ),
            (
                self.data_in_flight() <= buffers.send_len,
                "bytes in flight are kept in the send buffer",
            ),
            (
                before_data || self.congestion.cwnd() >= self.mss(),
                "the congestion window has room for a segment",
            ),
            (self.snd.small_end.leq(self.snd.nxt), "the last short segment was sent"),
            (self.rtt.rto() <= self.rtt.rto_max(), "RTO is below its bound"),
        ])
    }

    fn audit_scoreboard(&self) -> Option<&'static str> {
        let (flight, recovery) = (self.snd.flight(), &self.recovery);
        let (sacked, lost) = (recovery.sacked_bytes(), recovery.lost_bytes(self.snd.una));
        first_broken(&[
            (sacked <= flight, "SACKed bytes are in flight"),
            (lost <= flight, "lost bytes are in flight"),
            (!self.ext.sack || sacked + lost <= flight, "no byte is both SACKed and lost"),
            (recovery.pipe(self.snd.una, self.snd.nxt) <= flight, "pipe is part of the flight"),
            (
                recovery.is_in_order(self.snd.una, self.snd.nxt),
                "the scoreboard's marks lie between SND.UNA and SND.NXT",
            ),
        ])
    }

    fn audit_received(&self) -> Option<&'static str> {
        if self.state == State::SynSent {
            return None;
        }
        let ranges = self.rcv.assembler.as_ref().map_or(&[][..], |assembler| assembler.ranges());
        let fin = self.rcv.assembler.as_ref().and_then(|assembler| assembler.fin);
        first_broken(&[
            (self.rcv.acked.leq(self.rcv.nxt), "no byte is acknowledged before it arrived"),
            (self.rcv.nxt.leq(self.rcv.adv), "RCV.NXT is not beyond the window"),
            (self.rcv.adv.leq(self.rcv.max), "no window is larger than the largest"),
            (self.rcv.window_max() <= WINDOW_MAX, "the window fits its field"),
            (ranges.iter().all(|range| range.0.lt(range.1)), "no range is empty"),
            (ranges.is_sorted_by(|a, b| a.1.lt(b.0)), "ranges ahead are apart, in order"),
            (
                ranges.first().is_none_or(|range| range.0.gt(self.rcv.nxt)),
                "ranges ahead begin beyond RCV.NXT",
            ),
            (
                ranges.last().is_none_or(|range| range.1.leq(self.rcv.max)),
                "ranges ahead end in the window",
            ),
            (fin.is_none_or(|fin| fin.geq(self.rcv.nxt)), "a FIN ahead is not behind RCV.NXT"),
        ])
    }

    /// Checks that a timer runs whenever the connection waits for the peer. Otherwise a lost
    /// segment would stall it for ever.
    fn audit_timers(&self, buffers: FifoLevels) -> Option<&'static str> {
        let has_retransmit = self.timers.retransmit != Instant::FAR;
        let has_hold = self.timers.hold != Instant::FAR;
        let has_pacing = self.pacing_deadline() != Instant::FAR;
        let waits = self.state.may_send() && self.unsent(buffers) > 0;
        let unacked = self.state.may_receive() && self.rcv.acked != self.rcv.nxt;
        let acks = self.owed.ack || self.timers.delayed_ack != Instant::FAR;
        first_broken(&[
            (
                self.snd.flight() == 0 || has_retransmit || self.state == State::TimeWait,
                "a timer runs while something is in flight",
            ),
            (
                !waits
                    || self.snd.flight() > 0
                    || has_retransmit
                    || has_hold
                    || has_pacing
                    || self.owed.window_probe,
                "bytes wait for an acknowledgement or for a timer",
            ),
            (!unacked || acks, "received bytes are acknowledged, now or by a timer"),
        ])
    }
}

fn first_broken(rules: &[(bool, &'static str)]) -> Option<&'static str> {
    rules.iter().find(|(holds, _)| !holds).map(|(_, rule)| *rule)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::config::Config;
    use crate::half_open::Handshake;
    use crate::plan::Plan;
    use towpath_wire::tcp::SeqNum;

    /// Creates a connection that has sent 100 bytes, and the fill levels of its buffers.
    fn sending() -> (Connection, FifoLevels) {
        let handshake = Handshake {
            mss_peer: Some(1460),
            send_scale: Some(7),
            sack: true,
            send_window: 65_536,
            ..Handshake::without_options(SeqNum(100), SeqNum(200))
        };
        let mut connection = Connection::accept(Config::default(), handshake, Instant(1));
        let buffers = FifoLevels {
            recv_free: 65_536,
            recv_capacity: 65_536,
            recv_unread: 0,
            send_len: 100,
            send_capacity: 65_536,
        };
        while let Plan::Send(transmit) = connection.plan(Instant(1), buffers, 1460) {
            connection.emit(Instant(1), transmit, buffers);
        }
        (connection, buffers)
    }

    #[test]
    fn each_rule_that_is_broken_is_named() {
        type Break = fn(&mut Connection, &mut FifoLevels);
        let cases: [(Break, &str); 8] = [
            (|it, _| it.snd.una = it.snd.nxt + 1, "SND.UNA <= SND.NXT"),
            (|it, _| it.snd.max_wnd = 99, "SND.NXT - SND.UNA <= the largest window of the peer"),
            (|it, _| it.snd.mss_path = 1000, "the segment size follows its limits"),
            (|_, buffers| buffers.send_len = 99, "bytes in flight are kept in the send buffer"),
            (|it, _| it.rcv.adv = it.rcv.nxt - 1, "RCV.NXT is not beyond the window"),
            (|it, _| it.rcv.max = it.rcv.adv - 1, "no window is larger than the largest"),
            (
                |it, _| it.timers.retransmit = Instant::FAR,
                "a timer runs while something is in flight",
            ),
            (
                |it, _| it.rcv.acked = it.rcv.nxt - 1,
                "received bytes are acknowledged, now or by a timer",
            ),
        ];
        for (break_it, rule) in cases {
            let (mut connection, mut buffers) = sending();
            assert_eq!(connection.audit(buffers), None);
            break_it(&mut connection, &mut buffers);
            assert_eq!(connection.audit(buffers), Some(rule));
        }
    }

    #[test]
    fn bytes_that_nothing_will_send_are_found() {
        let (mut connection, buffers) = sending();
        // Acknowledge everything that was sent. The 100 bytes in the buffer are then unsent, but no
        // timer runs and no segment is due.
        connection.snd.una = connection.snd.nxt;
        connection.timers.retransmit = Instant::FAR;
        let rule = "bytes wait for an acknowledgement or for a timer";
        assert_eq!(connection.audit(buffers), Some(rule));
    }
}
