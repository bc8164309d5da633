//! Explicit Congestion Notification: negotiation, feedback in the TCP header, and its meaning.
//!
//! Classic feedback (RFC 3168) repeats ECE until CWR confirms the reduction of the window. Accurate
//! feedback (RFC 9768) counts marked packets in the three bits of the ACE field; the TCP option of
//! that RFC is not implemented.
//!
//! ```text
//!  sender                                   receiver
//!   ── data, ECT(0) ─────▶ router marks CE ─▶ ECHO
//!  on_ecn ◀──────────────────────── ECE ────
//!   ── new data, CWR ──────────────────────▶ clears ECHO
//! ```

#[cfg(test)]
mod tests;

use crate::segment::Segment;
use towpath_wire::Ecn;
use towpath_wire::tcp::{Flags, SeqNum};

/// Use of ECN by new connections, as in Linux's `net.ipv4.tcp_ecn`.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Default)]
pub enum EcnMode {
    /// Neither request nor accept ECN: 0 on Linux.
    Off,
    /// Request and accept classic ECN: 1 on Linux.
    On,
    /// Accept classic ECN, but do not request it: 2 and the default on Linux.
    #[default]
    Accept,
    /// Request and accept accurate ECN, or classic ECN if the peer lacks accurate ECN: 3 on Linux.
    Accurate,
    /// Accept accurate and classic ECN, but request neither: 5 on Linux.
    AcceptAccurate,
}

impl EcnMode {
    /// All modes of ECN.
    pub const ALL: &[Self] =
        &[Self::Off, Self::On, Self::Accept, Self::Accurate, Self::AcceptAccurate];

    /// Returns the name of the mode in configurations.
    pub const fn name(self) -> &'static str {
        match self {
            Self::Off => "off",
            Self::On => "on",
            Self::Accept => "accept",
            Self::Accurate => "accurate",
            Self::AcceptAccurate => "accept-accurate",
        }
    }

    /// Returns the mode with this name. The numbers of Linux's `net.ipv4.tcp_ecn` are accepted as
    /// well.
    pub fn from_word(word: &str) -> Option<Self> {
        let number = match word {
            "0" => Some(Self::Off),
            "1" => Some(Self::On),
            "2" => Some(Self::Accept),
            "3" => Some(Self::Accurate),
            "5" => Some(Self::AcceptAccurate),
            _ => None,
        };
        number.or_else(|| Self::ALL.iter().copied().find(|mode| mode.name() == word))
    }

    fn accepts_accurate(self) -> bool {
        matches!(self, Self::Accurate | Self::AcceptAccurate)
    }
}

/// Negotiated use of ECN. Before the SYN-ACK arrives, the form of ECN that our SYN requests. The
/// struct takes one byte, because the size of [`Connection`](crate::Connection) is limited.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct EcnState(u8);

/// Form of ECN feedback in the TCP header.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Feedback {
    None,
    Classic,
    Accurate,
    /// Accurate ECN feedback is sent, but that of the peer is ignored.
    AccurateIgnored,
}

/// Counters of a connection with ECN. All are zero until a packet is marked with CE.
#[derive(Debug, Clone, Copy, Default)]
pub(crate) struct EcnCounts {
    /// Number of packets received with CE: r.cep of RFC 9768 minus its initial value.
    pub(crate) received: u32,
    /// Value of `received` that was reported by the last segment sent.
    pub(crate) reported: u32,
    /// Number of packets that the peer reported as marked with CE: s.cep of RFC 9768 minus its
    /// initial value.
    pub(crate) delivered: u32,
    /// SND.NXT at the last reduction of the congestion window.
    pub(crate) reduced_until: SeqNum,
    /// ECN codepoint in the IP header of the peer's SYN or SYN-ACK.
    pub(crate) peer: Ecn,
    /// Sequence numbers at which the ECN feedback changes, and which no sent ACK has reached yet.
    pub(crate) former_acks: FormerAcks,
}

/// Sequence numbers of received data at which the ECN feedback changes, oldest first. Each of them
/// needs its own ACK, because an ACK has the same feedback for all bytes that it acknowledges.
#[derive(Debug, Clone, Copy, Default)]
pub(crate) struct FormerAcks {
    ends: [SeqNum; 4],
    len: u8,
}

impl FormerAcks {
    /// Returns the number of recorded changes of the ECN feedback.
    pub(crate) fn len(self) -> u8 {
        self.len
    }

    /// Adds a change of the ECN feedback at sequence number `end`. A second change at the same
    /// number cancels the first. If the list is full, its last change is removed. The bytes between
    /// these two changes then get the feedback of the bytes before them.
    pub(crate) fn push(&mut self, end: SeqNum) {
        let len = usize::from(self.len);
        if len == self.ends.len() || self.ends[..len].last() == Some(&end) {
            self.len -= 1;
        } else {
            self.ends[len] = end;
            self.len += 1;
        }
    }

    /// Removes and returns the oldest sequence number at which the feedback changes. The flag is
    /// true if the feedback for the bytes before it is the opposite of the current one.
    pub(crate) fn take(&mut self) -> Option<(SeqNum, bool)> {
        let taken = (self.len > 0).then_some((self.ends[0], self.len % 2 == 1));
        self.ends.copy_within(1.., 0);
        self.len = self.len.saturating_sub(1);
        taken
    }
}

/// Initial value of the counters r.cep and s.cep (RFC 9768 section 3.2.1).
const COUNT_INITIAL: u32 = 5;
/// Number of values of the ACE field in the TCP header, a counter of three bits.
const ACE_VALUES: u32 = 8;
/// Number of SYNs that request accurate ECN. Later retransmissions request no ECN (RFC 9768 section
/// 3.1.4.1).
const ACCURATE_SYNS: u8 = 2;
/// Number of CE marks that trigger an ACK if no received data is unacknowledged (RFC 9768 section
/// 3.2.2.5.1).
const MARKS_WITHOUT_DATA: u32 = 3;
/// Number of CE marks that trigger an ACK if received data is unacknowledged (RFC 9768 section
/// 3.2.2.5.1).
const MARKS_WITH_DATA: u32 = 2;

impl EcnState {
    /// Classic ECN, negotiated by a handshake that kept no state, such as a SYN cookie.
    pub const CLASSIC: EcnState = EcnState(1 | Self::MAY_SEND);
    const NONE: EcnState = EcnState(0);
    const ACCURATE: EcnState = EcnState(2 | Self::MAY_SEND);

    /// Mask of the bits that hold the [`Feedback`].
    const FEEDBACK: u8 = 3;
    /// Flag: new data may be sent with ECT(0).
    const MAY_SEND: u8 = 4;
    /// Flag. With classic ECN: segments carry ECE until the peer sends CWR. With accurate ECN: the
    /// last packet received had CE.
    const ECHO: u8 = 8;
    /// Flag of classic ECN: the next segment with new data carries CWR.
    const CWR: u8 = 16;
    /// Flag: the congestion window was reduced, and no byte sent since then is acknowledged yet.
    const REDUCED: u8 = 32;
    /// Flag: the peer has sent a packet with ECT or CE.
    const SEEN: u8 = 64;
    /// Flag. Before the handshake of an active open is complete: a SYN without ECN was sent. Before
    /// that of a passive open with classic ECN: this host accepts accurate ECN. Afterwards, with
    /// accurate ECN: the next pure ACK, ours or the peer's, reports the codepoint of the SYN-ACK.
    const HANDSHAKE: u8 = 128;

    fn has(self, bits: u8) -> bool {
        self.0 & bits != 0
    }

    fn set(&mut self, bits: u8, on: bool) {
        self.0 = if on { self.0 | bits } else { self.0 & !bits };
    }

    fn feedback(self) -> Feedback {
        match self.0 & Self::FEEDBACK {
            0 => Feedback::None,
            1 => Feedback::Classic,
            2 => Feedback::Accurate,
            _ => Feedback::AccurateIgnored,
        }
    }

    fn is_accurate(self) -> bool {
        self.has(2)
    }

    /// Returns the form of ECN that the SYN of an active open requests.
    pub(crate) fn offer(mode: EcnMode) -> EcnState {
        match mode {
            EcnMode::Off | EcnMode::Accept | EcnMode::AcceptAccurate => EcnState::NONE,
            EcnMode::On => EcnState::CLASSIC,
            EcnMode::Accurate => EcnState::ACCURATE,
        }
    }

    /// Negotiates ECN of a passive open with the peer's SYN.
    //= https://www.rfc-editor.org/rfc/rfc9293#section-3.8.2
    //# A TCP endpoint SHOULD implement ECN as described in RFC 3168 (SHLD-8).
    //= https://www.rfc-editor.org/rfc/rfc3168#section-6.1.1
    //# If a host has received an ECN-setup SYN packet, then it MAY send
    //# an ECN-setup SYN-ACK packet.  Otherwise, it MUST NOT send an
    //# ECN-setup SYN-ACK packet.
    pub(crate) fn answer(mode: EcnMode, syn: Flags) -> EcnState {
        match syn.ace() {
            _ if mode == EcnMode::Off => EcnState::NONE,
            //= https://www.rfc-editor.org/rfc/rfc9768#section-3.1.2
            //# When an AccECN-enabled TCP Server (B) receives a SYN with
            //# (AE,CWR,ECE) = (0,0,0) it MUST set both its half connections into
            //# the Not ECN feedback mode
            0b000 => EcnState::NONE,
            //= https://www.rfc-editor.org/rfc/rfc9768#section-3.1.3
            //# it does not have logic specific to
            //# such a combination, the Server MUST negotiate the use of AccECN as if
            //# the three flags had been set to (1,1,1).
            ace if mode.accepts_accurate() && ace != 0b011 => EcnState::ACCURATE,
            _ if is_setup_syn(syn) && mode.accepts_accurate() => {
                EcnState(EcnState::CLASSIC.0 | Self::HANDSHAKE)
            }
            _ if is_setup_syn(syn) => EcnState::CLASSIC,
            _ => EcnState::NONE,
        }
    }

    /// Negotiates ECN in a simultaneous open: the peer's SYN crossed ours, which requested `self`.
    //= https://www.rfc-editor.org/rfc/rfc9768#section-3.1.2
    //# Host A MUST then enter the same feedback mode as it would have
    //# entered had it been a responding host and received the same SYN.
    pub(crate) fn answer_to_offer(self, syn: Flags) -> EcnState {
        let mode = match self.feedback() {
            Feedback::None => EcnMode::Off,
            Feedback::Classic => EcnMode::On,
            Feedback::Accurate | Feedback::AccurateIgnored => EcnMode::Accurate,
        };
        let mut answer = EcnState::answer(mode, syn);
        if self.has(Self::HANDSHAKE) {
            answer.set(Self::MAY_SEND, false);
        }
        answer
    }

    /// Returns the flags of a SYN that was retransmitted `retransmissions` times before.
    //= https://www.rfc-editor.org/rfc/rfc3168#section-6.1.1.1
    //# A host that receives no reply to an ECN-setup SYN within the normal
    //# SYN retransmission timeout interval MAY resend the SYN and any
    //# subsequent SYN retransmissions with CWR and ECE cleared.
    pub(crate) fn syn_flags(&mut self, retransmissions: u8) -> Flags {
        //= https://www.rfc-editor.org/rfc/rfc3168#section-6.1.1
        //# A host that is not willing to use ECN on a TCP connection SHOULD
        //# clear both the ECE and CWR flags in all non-ECN-setup SYN and/or
        //# SYN-ACK packets that it sends to indicate this unwillingness.
        match self.feedback() {
            Feedback::None => return Flags::NONE,
            Feedback::Classic if retransmissions == 0 => return Flags::ECE | Flags::CWR,
            //= https://www.rfc-editor.org/rfc/rfc9768#section-3.1.1
            //# to
            //# request more Accurate ECN feedback the TCP Client (host A) MUST set
            //# the TCP flags (AE,CWR,ECE) = (1,1,1) in the initial SYN segment.
            //= https://www.rfc-editor.org/rfc/rfc9768#section-3.1.4.1
            //# it SHOULD attempt to negotiate the use of
            //# AccECN at least one more time by continuing to set all three TCP ECN
            //# flags (AE,CWR,ECE) = (1,1,1) on the first retransmitted SYN
            Feedback::Accurate if retransmissions < ACCURATE_SYNS => return Flags::ACE,
            //= https://www.rfc-editor.org/rfc/rfc9768#section-3.1.4.1
            //# the TCP Client SHOULD send
            //# subsequent retransmissions of the SYN with the three TCP-ECN flags
            //# cleared (AE,CWR,ECE) = (0,0,0).
            //= https://www.rfc-editor.org/rfc/rfc9768#section-3.1.5
            //# MUST NOT send a 'Classic' ECN-setup SYN [RFC3168] with
            //# (AE,CWR,ECE) = (0,1,1) and a SYN with (AE,CWR,ECE) = (1,1,1)
            //# requesting AccECN feedback within the same connection;
            _ => {}
        }
        self.set(Self::HANDSHAKE, true);
        Flags::NONE
    }

    /// Returns the ECN flags of a SYN-ACK after `timeouts` retransmission timeouts. `peer` is the
    /// codepoint of the peer's SYN. A path may drop SYN-ACKs with unknown flags, so later
    /// retransmissions do not confirm accurate ECN.
    pub(crate) fn syn_ack_flags(&mut self, timeouts: u8, peer: Ecn) -> Flags {
        match self.feedback() {
            //= https://www.rfc-editor.org/rfc/rfc9768#section-3.1.5
            //# SHOULD respond to any subsequent valid SYN using a SYN/ACK with
            //# (AE,CWR,ECE) = (0,0,0)
            Feedback::None => Flags::NONE,
            //= https://www.rfc-editor.org/rfc/rfc9768#section-3.1.5
            //# MUST NOT send a 'Classic' ECN-setup SYN/ACK [RFC3168] with
            //# (AE,CWR,ECE) = (0,0,1) and a SYN/ACK agreeing to use AccECN
            //# feedback within the same connection;
            Feedback::Classic => Flags::ECE,
            //= https://www.rfc-editor.org/rfc/rfc9768#section-3.1.5
            //# MUST feed back the IP-ECN field on the latest valid SYN or
            //# acceptable SYN/ACK to arrive.
            _ if timeouts < ACCURATE_SYNS => handshake_flags(peer),
            //= https://www.rfc-editor.org/rfc/rfc9768#section-3.1.5
            //# MUST NOT set ECT on any packet for the rest of the connection,
            //# if it has received or sent at least one valid SYN or Acceptable
            //# SYN/ACK with (AE,CWR,ECE) = (0,0,0) during the handshake.
            _ => {
                self.set(Self::MAY_SEND, false);
                Flags::NONE
            }
        }
    }

    /// Handles a retransmitted SYN of the peer. Returns false if its ECN flags differ from those of
    /// an earlier SYN. In this case, the two ends could use different kinds of feedback.
    //= https://www.rfc-editor.org/rfc/rfc9768#section-3.1.5
    //# MUST reset the connection with a RST packet, if it receives a
    //# 'Classic' ECN-setup SYN with (AE,CWR,ECE) = (0,1,1) and a SYN
    //# requesting AccECN feedback during the same handshake;
    pub(crate) fn on_syn_again(&mut self, syn: Flags) -> bool {
        match (self.feedback(), syn.ace()) {
            // The peer's retransmitted SYN requests no ECN, so the peer will not use ECN.
            (Feedback::Classic, _) if !is_setup_syn(syn) => *self = EcnState::NONE,
            // A host that only supports classic ECN ignores the third flag.
            (Feedback::Classic, ace) => return ace == 0b011 || !self.has(Self::HANDSHAKE),
            //= https://www.rfc-editor.org/rfc/rfc9768#section-3.1.5
            //# SHOULD acknowledge a valid SYN arriving with (AE,CWR,ECE) =
            //# (0,0,0) by emitting an AccECN SYN/ACK
            (Feedback::Accurate, 0b000) => self.set(Self::MAY_SEND, false),
            (Feedback::Accurate, 0b011) => return false,
            _ => {}
        }
        true
    }

    /// Completes the negotiation of an active open by the first SYN-ACK.
    //= https://www.rfc-editor.org/rfc/rfc3168#section-6.1.1
    //# A host MUST NOT set ECT on data packets unless it has sent at
    //# least one ECN-setup SYN or ECN-setup SYN-ACK packet, and has
    //# received at least one ECN-setup SYN or ECN-setup SYN-ACK packet,
    //# and has sent no non-ECN-setup SYN or non-ECN-setup SYN-ACK
    //# packet.
    pub(crate) fn on_syn_ack(&mut self, syn_ack: Flags) {
        let (ace, fell_back) = (syn_ack.ace(), self.has(Self::HANDSHAKE));
        *self = match self.feedback() {
            Feedback::Classic if ace & 0b011 == 0b001 => EcnState::CLASSIC,
            // We are the client, and have requested accurate ECN: apply RFC 9768 table 2 to the
            // SYN-ACK.
            Feedback::Accurate if ace == 0b001 => EcnState::CLASSIC,
            //= https://www.rfc-editor.org/rfc/rfc9768#section-3.1.3
            //# the Client MUST enable AccECN
            //# mode as if the SYN/ACK confirmed that the Server supported AccECN and
            //# as if it fed back that the IP-ECN field on the SYN had arrived
            //# unchanged.
            Feedback::Accurate if !matches!(ace, 0b000 | 0b111) => EcnState::ACCURATE,
            //= https://www.rfc-editor.org/rfc/rfc9768#section-3.1.2
            //# receives such a broken SYN/ACK it MUST
            //# fall back to Not ECN mode for both its half connections and
            //# continue with ECN disabled.
            _ => EcnState::NONE,
        };
        if self.is_accurate() {
            self.set(Self::HANDSHAKE, true);
            // Our SYN had no ECT. If the peer received it with ECT or CE, a router on the path
            // changes the field. Our feedback about the peer's packets goes on.
            //= https://www.rfc-editor.org/rfc/rfc9768#section-3.2.2.3
            //# the TCP Client MUST
            //# remain in the AccECN feedback mode and it MUST continue to feed
            //# back any ECN markings on arriving packets
            self.set(Self::MAY_SEND, matches!(ace, 0b010 | 0b101));
        } else if fell_back {
            self.set(Self::MAY_SEND, false);
        }
    }

    /// Handles a SYN-ACK received after the handshake. The peer retransmitted it because our ACK
    /// was lost.
    //= https://www.rfc-editor.org/rfc/rfc9768#section-3.2.2.1
    //# The TCP Client MUST also use the handshake encoding for the pure ACK
    //# of any retransmitted SYN/ACK that confirms that the TCP Server
    //# supports AccECN.
    pub(crate) fn on_syn_ack_again(&mut self) {
        self.set(Self::HANDSHAKE, self.is_accurate());
    }

    /// Returns whether a pure ACK must be sent, because only a pure ACK can report the codepoint of
    /// the SYN-ACK.
    //= https://www.rfc-editor.org/rfc/rfc9768#section-3.2.2.1
    //# it SHOULD first send a pure ACK that
    //# does satisfy these conditions
    pub(crate) fn owes_report(self) -> bool {
        self.is_accurate() && self.has(Self::HANDSHAKE)
    }

    /// Handles the ACK that completes a passive open. Pass the same segment to
    /// [`Self::on_feedback`] afterwards.
    //= https://www.rfc-editor.org/rfc/rfc9768#section-3.2.2.1
    //# it MUST infer the meaning of each possible value of the ACE
    //# field from Table 4
    pub(crate) fn on_handshake_ack(&mut self, segment: &Segment) {
        if !self.is_accurate() || !is_pure_ack(segment) {
            return;
        }
        self.set(Self::HANDSHAKE, true);
        match segment.flags.ace() {
            // The client uses no ECN, or the path clears the ACE field.
            //= https://www.rfc-editor.org/rfc/rfc9768#section-3.2.2.1
            //# for the rest of the connection the Server MUST NOT set ECT on
            //# outgoing packets and MUST NOT respond to AccECN feedback.
            //# Nonetheless, as a Data Receiver it MUST NOT disable AccECN feedback.
            0b000 => {
                self.set(Self::MAY_SEND, false);
                self.0 |= Self::FEEDBACK;
            }
            // The client received our SYN-ACK with ECT or CE, although it was sent without: a
            // router changed the field.
            0b011 | 0b100 | 0b110 => self.set(Self::MAY_SEND, false),
            _ => {}
        }
    }

    /// Returns whether the handshake negotiated ECN. Before the SYN-ACK arrives: whether our SYN
    /// requests ECN.
    pub(crate) fn is_negotiated(self) -> bool {
        self.has(Self::FEEDBACK)
    }

    /// Returns whether the peer has sent packets with ECT or CE.
    pub(crate) fn is_seen(self) -> bool {
        self.has(Self::SEEN)
    }

    /// Returns the codepoint of a packet with new data.
    //= https://www.rfc-editor.org/rfc/rfc9768#section-3.1.5
    //# MUST NOT set ECT if it is in Not ECN feedback mode.
    //= https://www.rfc-editor.org/rfc/rfc9768#section-3.1.5
    //# SHOULD set an ECT codepoint in the IP header of packets to
    //# indicate to the network that the transport is capable and
    //# willing to participate in ECN for this packet;
    //= https://www.rfc-editor.org/rfc/rfc3168#section-6.1.2
    //# When only one ECT codepoint
    //# is needed by a sender for all packets sent on a TCP connection,
    //# ECT(0) SHOULD be used.
    pub(crate) fn codepoint(self) -> Ecn {
        if self.has(Self::MAY_SEND) { Ecn::Ect0 } else { Ecn::NotEct }
    }

    /// Returns the ECN feedback flags of a segment without SYN and RST. The feedback counts as
    /// sent.
    pub(crate) fn feedback_flags(&mut self, is_pure_ack: bool, counts: &EcnCounts) -> Flags {
        match self.feedback() {
            Feedback::None => Flags::NONE,
            //= https://www.rfc-editor.org/rfc/rfc3168#section-6.1.3
            //# After a TCP receiver sends an ACK packet with the ECN-Echo bit set,
            //# that TCP receiver continues to set the ECN-Echo flag in all the ACK
            //# packets it sends (whether they acknowledge CE data packets or non-CE
            //# data packets) until it receives a CWR packet (a packet with the CWR
            //# flag set).
            Feedback::Classic if self.has(Self::ECHO) => Flags::ECE,
            Feedback::Classic => Flags::NONE,
            //= https://www.rfc-editor.org/rfc/rfc9768#section-3.2.2.1
            //# A TCP Client (A) in AccECN mode MUST feed back which of the 4
            //# possible values of the IP-ECN field was on the SYN/ACK by writing it
            //# into the ACE field of a pure ACK with no SACK blocks
            _ if is_pure_ack && self.has(Self::HANDSHAKE) => {
                self.set(Self::HANDSHAKE, false);
                handshake_flags(counts.peer)
            }
            //= https://www.rfc-editor.org/rfc/rfc9768#section-3.2
            //# Whenever a Data Receiver feeds back the value of any counter, it MUST
            //# report the most recent value
            _ => counts.flags(),
        }
    }

    /// Returns CWR for the first new data after a reduction of the window.
    //= https://www.rfc-editor.org/rfc/rfc3168#section-6.1.2
    //# When the TCP data sender is ready to set the CWR bit after reducing
    //# the congestion window, it SHOULD set the CWR bit only on the first
    //# new data packet that it transmits.
    pub(crate) fn take_cwr(&mut self) -> Flags {
        if !self.has(Self::CWR) {
            return Flags::NONE;
        }
        self.set(Self::CWR, false);
        Flags::CWR
    }

    /// Returns whether the ACE field sets the bit of the CWR flag. Devices that split a large
    /// segment clear CWR in all pieces but the first, which would change the ACE counter.
    pub(crate) fn needs_single_segments(self, counts: &EcnCounts) -> bool {
        self.is_accurate() && counts.flags().contains(Flags::CWR)
    }

    /// Handles the codepoint and CWR of an acceptable segment. Returns whether the feedback is due
    /// at once. `has_unacked` is whether received data is not acknowledged yet.
    //= https://www.rfc-editor.org/rfc/rfc3168#section-6.1.1
    //# then if that host receives TCP data
    //# packets with ECT and CE codepoints set in the IP header, then
    //# that host MUST process these packets as specified for an ECN-capable
    //# connection.
    pub(crate) fn on_received(
        &mut self,
        segment: &Segment,
        has_unacked: bool,
        counts: &EcnCounts,
    ) -> bool {
        //= https://www.rfc-editor.org/rfc/rfc9768#section-3.1.5
        //# MUST NOT use reception of packets with ECT set in the IP-ECN
        //# field as an implicit signal that the peer is ECN-capable.
        if segment.ecn != Ecn::NotEct {
            self.set(Self::SEEN, self.is_negotiated());
        }
        match self.feedback() {
            Feedback::None => false,
            Feedback::Classic => self.echo_received(segment),
            _ => self.count_received(segment, has_unacked, counts),
        }
    }

    /// Handles the codepoint of a segment for a peer with DCTCP, which needs to know the fraction
    /// of marked bytes. Returns whether the codepoint changed: earlier bytes are to be acknowledged
    /// with the former feedback, and the segment at once.
    //= https://www.rfc-editor.org/rfc/rfc8257#section-3.2
    //# When sending an ACK,
    //# the ECE flag MUST be set if and only if DCTCP.CE is true.
    pub(crate) fn echo_each(&mut self, segment: &Segment) -> bool {
        if segment.payload_len == 0 || self.feedback() != Feedback::Classic {
            return false;
        }
        let is_ce = segment.ecn.is_ce();
        let is_changed = is_ce != self.has(Self::ECHO);
        self.set(Self::ECHO, is_ce);
        self.set(Self::SEEN, segment.ecn != Ecn::NotEct || self.is_seen());
        is_changed
    }

    /// Returns whether classic ECN is used, in which ECE echoes whether received packets were
    /// marked.
    pub(crate) fn is_classic(self) -> bool {
        self.feedback() == Feedback::Classic
    }

    /// Updates the flag ECHO, the feedback of classic ECN, for a received segment. Returns whether
    /// an ACK must be sent now.
    fn echo_received(&mut self, segment: &Segment) -> bool {
        if segment.payload_len == 0 {
            return false;
        }
        //= https://www.rfc-editor.org/rfc/rfc3168#section-6.1.3
        //# After the receipt of the CWR packet, acknowledgments for
        //# subsequent non-CE data packets do not have the ECN-Echo flag set.
        let (before, reduced) = (self.has(Self::ECHO), segment.flags.contains(Flags::CWR));
        let echo = before && !reduced || segment.ecn.is_ce();
        self.set(Self::ECHO, echo);
        // Acknowledge a segment with CWR at once. Its sender has reduced the window, possibly to
        // one segment, and would have to wait for the delayed ACK.
        reduced || echo != before
    }

    /// Counts a received CE mark. Returns whether an ACK must be sent now by the rules of accurate
    /// ECN.
    //= https://www.rfc-editor.org/rfc/rfc9768#section-3.2.2.5.1
    //# An AccECN Data Receiver SHOULD emit an ACK
    //# whenever a data packet marked CE arrives after the previous packet
    //# was not CE.
    //= https://www.rfc-editor.org/rfc/rfc9768#section-3.2.2.5.1
    //# An AccECN receiver of a packet MUST emit
    //# an ACK if 'n' CE marks have arrived since the previous ACK.
    fn count_received(&mut self, segment: &Segment, has_unacked: bool, counts: &EcnCounts) -> bool {
        let (is_ce, was_ce) = (segment.ecn.is_ce(), self.has(Self::ECHO));
        self.set(Self::ECHO, is_ce);
        if !is_ce {
            return false;
        }
        let has_data = segment.payload_len > 0;
        let marks = counts.received.wrapping_sub(counts.reported);
        let enough = if has_data || has_unacked { MARKS_WITH_DATA } else { MARKS_WITHOUT_DATA };
        has_data && !was_ce || marks >= enough
    }

    /// Returns the number of marked packets that the ACK reports for the first time. `packets` is
    /// an estimate of how many packets the ACK newly acknowledges.
    pub(crate) fn on_feedback(
        &mut self,
        segment: &Segment,
        packets: u32,
        counts: &EcnCounts,
    ) -> u32 {
        match self.feedback() {
            //= https://www.rfc-editor.org/rfc/rfc9768#section-3.2.2
            //# A host MUST NOT interpret the 3 flags as a
            //# 3-bit ACE field on any segment with SYN=1
            //= https://www.rfc-editor.org/rfc/rfc9768#section-3.2.2.2
            //# it MUST NOT increment s.cep (it remains at its
            //# initial value of 5)
            _ if segment.flags.contains(Flags::SYN) => 0,
            Feedback::None | Feedback::AccurateIgnored => 0,
            Feedback::Classic if segment.flags.contains(Flags::ECE) => packets.max(1),
            Feedback::Classic => 0,
            Feedback::Accurate if self.has(Self::HANDSHAKE) && is_pure_ack(segment) => {
                // In this ACK, the ACE field is not a counter but the codepoint of our SYN-ACK.
                //= https://www.rfc-editor.org/rfc/rfc9768#section-3.2.2.2
                //# it
                //# MUST increment s.cep (from 5 to 6).
                self.set(Self::HANDSHAKE, false);
                u32::from(segment.flags.ace() == 0b110)
            }
            Feedback::Accurate => {
                //= https://www.rfc-editor.org/rfc/rfc9768#section-3.2.2.5.2
                //# the Data Sender SHOULD consider the
                //# ACE counter to be correct (and its count of control packets to be
                //# incomplete)
                let ace = u32::from(segment.flags.ace());
                let before = COUNT_INITIAL.wrapping_add(counts.delivered);
                self.without_ambiguity(ace.wrapping_sub(before) % ACE_VALUES, packets)
            }
        }
    }

    /// Returns the increment of s.cep. The ACE field may have wrapped if the ACK acknowledges more
    /// packets than it can count. While marks arrive, we assume the largest possible increment.
    /// Without marks a wrap is unlikely: a peer that acknowledges dozens of packets at once still
    /// sends an ACK for the first mark.
    //= https://www.rfc-editor.org/rfc/rfc9768#section-3.2.2.5.2
    //# it SHOULD deem whether it cycled by taking the safest
    //# likely case under the prevailing conditions.
    //= https://www.rfc-editor.org/rfc/rfc9768#section-3.2.3.2.3
    //# it MUST adopt the conservative interpretation of the
    //# ACE field discussed in Section 3.2.2.5.
    fn without_ambiguity(self, increment: u32, packets: u32) -> u32 {
        let has_marks = increment > 0 || self.has(Self::REDUCED);
        if packets < ACE_VALUES || !has_marks {
            return increment;
        }
        packets - (packets - increment) % ACE_VALUES
    }

    /// Records that the window was reduced.
    //= https://www.rfc-editor.org/rfc/rfc3168#section-6.1.2
    //# When an ECN-Capable TCP sender reduces its congestion window for any
    //# reason (because of a retransmit timeout, a Fast Retransmit, or in
    //# response to an ECN Notification), the TCP sender sets the CWR flag in
    //# the TCP header of the first new data packet sent after the window
    //# reduction.
    //= https://www.rfc-editor.org/rfc/rfc9768#section-3.1.5
    //# MUST NOT set CWR to indicate that it has received and responded
    //# to indications of congestion.
    pub(crate) fn on_reduced(&mut self) {
        let is_classic = self.feedback() == Feedback::Classic;
        self.0 |= if is_classic { Self::REDUCED | Self::CWR } else { Self::REDUCED };
    }

    /// Returns whether the congestion window was reduced in the current round trip.
    pub(crate) fn is_reduced(self) -> bool {
        self.has(Self::REDUCED)
    }

    /// Permits the next reduction of the congestion window, because data sent after the last one is
    /// acknowledged.
    pub(crate) fn end_reduction(&mut self) {
        self.set(Self::REDUCED, false);
    }
}

impl EcnCounts {
    /// Returns the ACE field of the TCP header.
    //= https://www.rfc-editor.org/rfc/rfc9768#section-3.2.2
    //# a Data Receiver MUST encode the three
    //# least significant bits of its r.cep counter into the ACE field that
    //# it feeds back to the Data Sender.
    fn flags(&self) -> Flags {
        Flags::from_ace((COUNT_INITIAL.wrapping_add(self.received) % ACE_VALUES) as u8)
    }
}

/// Returns whether the SYN requests classic or accurate ECN.
fn is_setup_syn(syn: Flags) -> bool {
    syn.contains(Flags::ECE | Flags::CWR)
}

/// Encodes the codepoint of the peer's SYN or SYN-ACK in the ACE field (RFC 9768 tables 2 and 3).
//= https://www.rfc-editor.org/rfc/rfc9768#section-3.1.3
//# an AccECN Server implementation MUST NOT send a
//# SYN/ACK with this combination (AE,CWR,ECE) = (1,0,1).
fn handshake_flags(peer: Ecn) -> Flags {
    Flags::from_ace(match peer {
        Ecn::NotEct => 0b010,
        Ecn::Ect1 => 0b011,
        Ecn::Ect0 => 0b100,
        Ecn::Ce => 0b110,
    })
}

fn is_pure_ack(segment: &Segment) -> bool {
    segment.payload_len == 0 && segment.options.sack.is_empty()
}
