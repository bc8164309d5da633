//! SYN cookies (RFC 4987 §3.6): the SYN-ACK stores the half-open connection, and the peer's ACK
//! returns it. The listener stores nothing, so a flood of SYNs cannot use up its memory.
//!
//! ```text
//!  initial sequence number | MAC, 28 bits              | MSS, 3 bits | period, 1 bit |
//!  timestamp of a SYN-ACK  | clock, 26 bits | ECN, 1   | SACK, 1     | scale, 4      |
//! ```
//!
//! The MAC covers both addresses and ports, the peer's initial sequence number, the period, the
//! MSS, and the bits stored in our timestamp. Each combination of MSS and period has one valid
//! sequence number, so a random ACK is accepted with a probability of 2^-28.
//!
//! The MAC also covers the window scale of the SYN-ACK. A cookie is invalid if the scale of the
//! host has changed since, because the peer would interpret our windows by the former scale.
//!
//! If the peer does not use timestamps, window scale, SACK and ECN are not used. The MSS is rounded
//! down, and accurate ECN becomes classic ECN.

use core::time::Duration;

use towpath_wire::tcp::{SeqNum, Timestamps};

use super::{HalfOpen, Handshake};
use crate::config::{Config, WINDOW_SCALE_MAX};
use crate::ecn::EcnState;
use crate::segment::{Outgoing, Segment};
use crate::time::Instant;

/// Values that the keyed hash of a SYN cookie covers, in addition to addresses and ports.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct CookieClaims {
    /// Number of the period in which the cookie was sent. The caller uses a different secret for
    /// each period.
    pub period: u64,
    /// The peer's initial sequence number.
    pub irs: SeqNum,
    /// Index of the MSS, the options stored in the lower bits of our timestamp, and the window
    /// scale of the SYN-ACK.
    pub content: u16,
}

/// Period in seconds after which the secret changes: Linux's period, rounded up. A cookie is valid
/// in its period and in the next one.
const PERIOD_SECS: u64 = 64;

/// Maximum age of a valid SYN cookie. Even if the peer's ACK is lost several times, a retransmitted
/// ACK arrives before this age.
pub const COOKIE_LIFETIME: Duration = Duration::from_secs(2 * PERIOD_SECS);

/// Segment sizes in bytes that a cookie can encode, in ascending order. The peer's MSS is rounded
/// down to one of them. The list has the sizes for Ethernet without and with tunnels, for the
/// minimum MTUs of IPv6 and IPv4, and for jumbo frames.
const SEGMENT_SIZES: [u16; 8] = [64, 536, 1220, 1360, 1400, 1440, 1460, 8940];

/// Mask of the timestamp bits that store the options of the peer's SYN.
const OPTION_BITS: u32 = 0x3f;
/// Encoded window scale of a peer without the window scale option.
const NO_SCALE: u8 = 15;
const SACK_BIT: u8 = 0x10;
const ECN_BIT: u8 = 0x20;

impl HalfOpen {
    /// Returns a SYN-ACK with a cookie, in answer to a SYN to a listener. `mac` computes a keyed
    /// hash of the claims, and of the addresses and ports. The remaining arguments are those of
    /// [`new`](Self::new) and [`syn_ack`](Self::syn_ack).
    pub fn cookie_syn_ack(
        config: &Config,
        syn: &Segment,
        ts_offset: u32,
        now: Instant,
        recv_window: u32,
        mac: impl Fn(CookieClaims) -> u32,
    ) -> Outgoing {
        let mut half_open = HalfOpen::new(config, syn, SeqNum(0), ts_offset, now);
        if !half_open.timestamps {
            //= https://www.rfc-editor.org/rfc/rfc4987#section-3.6
            //# SACK blocks should normally not be sent by a host using TCP cookies unless they are
            //# first received.
            (half_open.send_scale, half_open.sack) = (None, false);
            half_open.ecn = EcnState::default();
        } else if half_open.ecn != EcnState::default() {
            half_open.ecn = EcnState::CLASSIC;
        }
        let bits = half_open.timestamps.then(|| half_open.option_bits());
        let claims = CookieClaims {
            period: period(now),
            irs: syn.seq,
            content: content(
                size_index(syn.options.mss.unwrap_or(config.mss_default)),
                bits,
                half_open.recv_scale,
            ),
        };
        //= https://www.rfc-editor.org/rfc/rfc4987#section-3.6
        //# to prevent replay, some time-dependent random bits must be embedded in the sequence
        //# number.
        half_open.iss = claims.sequence(mac(claims));
        let mut syn_ack = half_open.syn_ack(now, recv_window);
        if let (Some(bits), Some(timestamps)) = (bits, &mut syn_ack.options.timestamps) {
            let clock = now.millis().wrapping_add(ts_offset);
            timestamps.value = with_option_bits(clock, bits);
        }
        syn_ack
    }

    /// Returns the handshake that `ack` completes, if it acknowledges a valid cookie. `ack` must be
    /// the first segment after the SYN, because only its sequence number reveals the peer's initial
    /// sequence number. `config` must have the window scale that the SYN-ACK was sent with.
    pub fn from_cookie(
        config: &Config,
        ack: &Segment,
        ts_offset: u32,
        now: Instant,
        recv_window: u32,
        mac: impl Fn(CookieClaims) -> u32,
    ) -> Option<Handshake> {
        let iss = ack.ack - 1;
        let (index, parity) = ((iss.0 >> 1 & 7) as u16, u64::from(iss.0 & 1));
        let current = period(now);
        let timestamps = ack.options.timestamps;
        let bits = timestamps.map(|Timestamps { echo, .. }| (echo & OPTION_BITS) as u8);
        let scale = bits.map_or(NO_SCALE, |bits| bits & 0xf);
        let send_scale = (scale != NO_SCALE).then(|| scale.min(WINDOW_SCALE_MAX));
        let recv_scale = match send_scale {
            Some(_) if config.scaling => config.window_scale.min(WINDOW_SCALE_MAX),
            _ => 0,
        };
        let claims = CookieClaims {
            // The cookie was created in the current or the previous period. Its parity bit states
            // in which of the two.
            period: current.checked_sub((current ^ parity) & 1)?,
            irs: ack.seq - 1,
            content: content(index, bits, recv_scale),
        };
        if claims.sequence(mac(claims)) != iss {
            return None;
        }
        Some(Handshake {
            mss_peer: SEGMENT_SIZES.get(usize::from(index)).copied(),
            send_scale,
            recv_scale: Some(recv_scale),
            sack: bits.is_some_and(|bits| bits & SACK_BIT != 0),
            timestamps: timestamps.is_some(),
            ecn: match bits {
                Some(bits) if bits & ECN_BIT != 0 => EcnState::CLASSIC,
                _ => EcnState::default(),
            },
            // TS.Recent is the timestamp of `ack`, because no earlier segment of the peer follows
            // its SYN.
            ts_recent: timestamps.map_or(0, |timestamps| timestamps.value),
            ts_offset,
            send_window: u32::from(ack.window) << send_scale.unwrap_or(0),
            recv_window: u16::try_from(recv_window).unwrap_or(u16::MAX),
            ..Handshake::without_options(iss, claims.irs)
        })
    }

    //= https://www.rfc-editor.org/rfc/rfc4987#section-3.6
    //# Using the Timestamp bits, it is possible to explicitly store state bits for things like send
    //# and receive window scales, SACK-allowed, and TCP-MD5-enabled
    fn option_bits(&self) -> u8 {
        let bit = |bit: u8, on: bool| if on { bit } else { 0 };
        self.send_scale.unwrap_or(NO_SCALE)
            | bit(SACK_BIT, self.sack)
            | bit(ECN_BIT, self.ecn != EcnState::default())
    }
}

impl CookieClaims {
    /// Returns the SYN cookie, used as our initial sequence number.
    fn sequence(&self, mac: u32) -> SeqNum {
        let index = u32::from(self.content & 7);
        SeqNum(mac << 4 | index << 1 | (self.period & 1) as u32)
    }
}

fn period(now: Instant) -> u64 {
    now.micros() / 1_000_000 / PERIOD_SECS
}

/// Combines the index of the MSS, the options stored in the timestamp, and the window scale of the
/// SYN-ACK. Bit 9 is set if options are stored. Without them, the SYN-ACK has no window scale.
fn content(size_index: u16, bits: Option<u8>, recv_scale: u8) -> u16 {
    let scale = u16::from(recv_scale) << 10;
    size_index | bits.map_or(0, |bits| scale | 1 << 9 | u16::from(bits) << 3)
}

/// Returns the index of the largest encodable segment size that does not exceed `mss`. If there is
/// none, returns the index of the smallest size.
fn size_index(mss: u16) -> u16 {
    SEGMENT_SIZES.iter().rposition(|size| *size <= mss).unwrap_or(0) as u16
}

/// Returns the latest timestamp that is not after `clock` and has these option bits. Later segments
/// use the value of `clock`, and their timestamps must not be older than the returned one.
fn with_option_bits(clock: u32, bits: u8) -> u32 {
    let value = clock & !OPTION_BITS | u32::from(bits);
    match value > clock {
        true => value.wrapping_sub(OPTION_BITS + 1),
        false => value,
    }
}
