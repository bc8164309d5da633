//! Transactions of a DHCP client: their identifiers, and the times of retransmissions.

use core::time::Duration;

use towpath_dice::Dice;
use towpath_tcp::Instant;

/// Time before the first retransmission, and maximum time between two retransmissions, in
/// milliseconds (RFC 2131 §4.1).
const FIRST_MS: u64 = 4_000;
const LAST_MS: u64 = 64_000;
/// Maximum random deviation from the retransmission times, in milliseconds.
const SPREAD_MS: u64 = 1_000;

/// A transaction of a DHCP client.
#[derive(Debug, Clone, Copy)]
pub(super) struct Transaction {
    /// Transaction identifier in the client's messages.
    pub xid: u32,
    /// Time at which the first message of the current kind was sent.
    pub began: Instant,
    /// Time at which the last message was sent.
    pub sent: Instant,
    /// Number of messages of the current kind that were sent.
    pub tries: u32,
    /// Time at which the client began to search for servers.
    searching: Instant,
    /// Value of the field `secs` in the DHCPDISCOVER that led to the accepted offer.
    accepted_secs: Option<u16>,
}

impl Transaction {
    /// Creates a transaction with a random transaction identifier.
    pub fn new(dice: &mut Dice, now: Instant) -> Self {
        let (xid, accepted_secs) = (dice.next_u32(), None);
        Self { xid, began: now, sent: now, tries: 0, searching: now, accepted_secs }
    }

    /// Begins to send DHCPREQUESTs for an offer. The requests repeat the field `secs` of the
    /// DHCPDISCOVER, so that relay agents forward them to the same servers (RFC 2131 §3.1).
    pub fn restart(&mut self, now: Instant) {
        self.accepted_secs = Some(self.secs(self.sent));
        (self.began, self.tries) = (now, 0);
    }

    /// Notes that a message was sent, and returns the time of its retransmission.
    //= https://www.rfc-editor.org/rfc/rfc2131#section-4.1
    //# The
    //# client MUST adopt a retransmission strategy that incorporates a
    //# randomized exponential backoff algorithm to determine the delay
    //# between retransmissions.
    pub fn sent_at(&mut self, now: Instant, dice: &mut Dice) -> Instant {
        if self.tries == 0 {
            self.began = now;
        }
        self.sent = now;
        let delay_ms = LAST_MS.min(FIRST_MS << self.tries.min(8));
        self.tries += 1;
        let spread_ms = dice.below(2 * SPREAD_MS + 1);
        now + Duration::from_millis(delay_ms - SPREAD_MS + spread_ms)
    }

    /// Returns the field `secs` of a DHCP message: the seconds since the client began to search.
    pub fn secs(&self, now: Instant) -> u16 {
        let elapsed = || u16::try_from(now.since(self.searching).as_secs()).unwrap_or(u16::MAX);
        self.accepted_secs.unwrap_or_else(elapsed)
    }
}
