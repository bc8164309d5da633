//! Secret keys of the socket layer.

use std::hash::{BuildHasher, Hasher};

use towpath_tcp::CookieClaims;

use crate::net::hash::{self, Keyed};
use crate::tables::flow::Flow;

/// Secret keys, one for each purpose. If one key becomes known, the other ones remain secret.
#[derive(Debug, Clone, Copy)]
pub(crate) struct SocketKeys {
    /// Key of the hashes by which tables are indexed, and flows are assigned to shards.
    pub table: Keyed,
    /// Key of initial sequence numbers (RFC 6528).
    pub isn: Keyed,
    /// Key of timestamp offsets (RFC 7323 §5.4).
    pub timestamps: Keyed,
    /// Key for choosing local ports (RFC 6056).
    pub ports: Keyed,
    /// Key of the Fast Open cookies that the stack sends to clients (RFC 7413 §4.1.2).
    pub fast_open: Keyed,
    /// Key from which the secrets of SYN cookies are derived (RFC 4987 §3.6).
    syn_cookies: Keyed,
}

impl SocketKeys {
    pub fn derive(seed: &[u8; 32]) -> Self {
        let key =
            |n: u64| Keyed([2 * n, 2 * n + 1].map(|label| hash::derive(seed, b"sockets", label)));
        Self {
            table: key(0),
            isn: key(1),
            timestamps: key(2),
            ports: key(3),
            fast_open: key(4),
            syn_cookies: key(5),
        }
    }

    /// Returns the message authentication code of a SYN cookie. The code depends on the flow, on
    /// the claims in the cookie, and on a secret that changes with the period of time.
    pub fn syn_cookie(&self, flow: &Flow, claims: CookieClaims) -> u32 {
        let secret = [0, 1].map(|word| {
            let mut hasher = self.syn_cookies.build_hasher();
            hasher.write_u64(2 * claims.period + word);
            hasher.finish()
        });
        let mut hasher = Keyed([Keyed(secret).flow(flow), secret[1]]).build_hasher();
        hasher.write_u32(claims.irs.0);
        hasher.write_u16(claims.content);
        hasher.finish() as u32
    }
}
