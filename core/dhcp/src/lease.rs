//! DHCP leases: addresses with routes and nameservers, for a limited time.

use core::fmt;
use core::net::Ipv4Addr;
use core::str::FromStr;
use core::time::Duration;

use towpath_dice::Dice;
use towpath_tcp::Instant;
use towpath_wire::{Prefix, addr};

use crate::message::{DhcpMessage, DhcpOptions};

/// Minimum duration in seconds of a lease that a client accepts. With shorter leases the client
/// would renew all the time.
const DURATION_MIN_S: u32 = 10;
/// Duration of a lease that never ends (RFC 2131 §3.3).
const INFINITE: u32 = u32::MAX;
/// Maximum number of routes that a client takes from a lease. A DHCP message of maximum length
/// could have thousands.
const ROUTES_MAX: usize = 64;
/// Maximum number of nameservers that a client takes from a lease.
const NAMESERVERS_MAX: usize = 8;

/// A lease that a DHCP client has obtained.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Lease {
    /// Address of the client, with the prefix length of its network.
    pub address: Prefix,
    /// Address by which the DHCP server identifies itself.
    pub server: Ipv4Addr,
    /// Routes of the client, in the order in which the server lists them.
    pub routes: Vec<LeaseRoute>,
    /// Nameservers, the preferred one first.
    pub nameservers: Vec<Ipv4Addr>,
    /// Domain in which the client resolves names.
    pub domain: Option<String>,
    /// Time at which the lease ends; `None` if it never ends.
    pub valid_until: Option<Instant>,
    /// Time at which the client asks the server of the lease to extend it (T1).
    pub renew_at: Option<Instant>,
    /// Time at which the client asks any server to extend the lease (T2).
    pub rebind_at: Option<Instant>,
}

/// A route of a lease.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct LeaseRoute {
    /// Address of the next router; `None` if the destination is on the link.
    pub prefix: Prefix,
    /// Router; `None` if the destination is on the link.
    pub via: Option<Ipv4Addr>,
}

/// Reason why a DHCP message does not contain a usable lease.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum LeaseError {
    /// The address cannot be that of a host, for example because it is the network's broadcast
    /// address.
    #[error("no host can have the address")]
    Address,
    /// The server identifier is missing.
    #[error("the server identifier is missing")]
    Server,
    /// The duration of the lease is missing or too short.
    #[error("the duration of the lease is missing, or below {DURATION_MIN_S} s")]
    Duration,
}

impl Lease {
    /// Returns the address of the lease without its prefix length.
    pub fn ip(&self) -> Ipv4Addr {
        match self.address.addr() {
            core::net::IpAddr::V4(ip) => ip,
            core::net::IpAddr::V6(_) => Ipv4Addr::UNSPECIFIED,
        }
    }

    /// Creates a lease from a DHCPACK. `requested` is the time at which the client sent its
    /// request. `dice` randomizes the renewal time, so that several clients do not renew at once.
    ///
    /// # Errors
    /// Fails if the address, the server identifier or the duration is missing or invalid.
    pub fn of_message(
        message: &DhcpMessage,
        requested: Instant,
        dice: &mut Dice,
    ) -> Result<Self, LeaseError> {
        let DhcpMessage { yiaddr, options, .. } = message;
        let address = address_of(*yiaddr, options.mask_len)?;
        let is_host = |ip: &Ipv4Addr| addr::is_unicast((*ip).into());
        let server = options.server.filter(is_host).ok_or(LeaseError::Server)?;
        let duration = options.lease_s.filter(|it| *it >= DURATION_MIN_S);
        let duration = duration.ok_or(LeaseError::Duration)?;
        let (renew, rebind) = times(duration, options, dice);
        let at = |seconds: u32| {
            (duration != INFINITE).then(|| requested + Duration::from_secs(seconds.into()))
        };
        let nameservers = options.nameservers.iter().copied().filter(is_host);
        Ok(Self {
            address,
            server,
            routes: routes(options),
            nameservers: nameservers.take(NAMESERVERS_MAX).collect(),
            domain: options.domain.clone(),
            valid_until: at(duration),
            renew_at: at(renew),
            rebind_at: at(rebind),
        })
    }
}

/// Validates an address that a DHCP server assigns. If the server sends no subnet mask, the address
/// class determines the prefix length, as in other DHCP clients.
pub(crate) fn address_of(ip: Ipv4Addr, mask_len: Option<u8>) -> Result<Prefix, LeaseError> {
    let of_class = match ip.octets()[0] {
        ..128 => 8,
        128..192 => 16,
        _ => 24,
    };
    let len = mask_len.unwrap_or(of_class);
    let prefix = Prefix::new(ip.into(), len).filter(|_| len > 0).ok_or(LeaseError::Address)?;
    let is_host = addr::is_unicast(ip.into()) && !ip.is_loopback();
    let is_end = len < 31 && (prefix.network() == ip || prefix.last() == ip);
    if is_host && !is_end { Ok(prefix) } else { Err(LeaseError::Address) }
}

/// Returns the times of renewal (T1) and rebinding (T2) in seconds.
//= https://www.rfc-editor.org/rfc/rfc2131#section-4.4.5
//# T1
//# defaults to (0.5 * duration_of_lease).  T2 defaults to (0.875 *
//# duration_of_lease).  Times T1 and T2 SHOULD be chosen with some
//# random "fuzz" around a fixed value, to avoid synchronization of
//# client reacquisition.
fn times(duration: u32, options: &DhcpOptions, dice: &mut Dice) -> (u32, u32) {
    let rebind = options.rebind_s.filter(|at| (2..duration).contains(at));
    let rebind = rebind.unwrap_or(duration - duration / 8);
    let renew = options.renew_s.filter(|at| (1..rebind).contains(at));
    let renew = renew.unwrap_or(duration / 2).min(rebind - 1);
    // Subtract a random time of at most a sixteenth from T1. T1 is never delayed, so it stays
    // before T2.
    let fuzz = dice.below(u64::from(renew / 16) + 1) as u32;
    (renew - fuzz, rebind)
}

/// Returns the routes of a lease.
//= https://www.rfc-editor.org/rfc/rfc3442
//# If the DHCP server returns both a Classless Static Routes option and
//# a Router option, the DHCP client MUST ignore the Router option.
fn routes(options: &DhcpOptions) -> Vec<LeaseRoute> {
    let default = |via: &Ipv4Addr| LeaseRoute { prefix: Prefix::ALL_V4, via: Some(*via) };
    let list: Vec<_> = match &options.routes {
        Some(routes) => routes
            .iter()
            .map(|route| {
                let via = Some(route.via).filter(|via| !via.is_unspecified());
                LeaseRoute { prefix: route.prefix, via }
            })
            .collect(),
        None => options.routers.first().map(default).into_iter().collect(),
    };
    let mut kept: Vec<LeaseRoute> = Vec::new();
    for route in list {
        let is_valid = route.via.is_none_or(|via| addr::is_unicast(via.into()));
        let is_new = kept.iter().all(|known| known.prefix != route.prefix);
        if is_valid && is_new && kept.len() < ROUTES_MAX {
            kept.push(route);
        }
    }
    kept
}

/// The part of a lease that a client stores, to verify the lease after a restart (INIT-REBOOT).
/// Formatted as `192.0.2.7 until 1790000000`, with a Unix time in seconds, or `192.0.2.7 for ever`.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct KeptLease {
    /// Address of the lease.
    pub address: Ipv4Addr,
    /// Unix time in seconds at which the lease ends; `None` if it never ends.
    pub until_unix_s: Option<u64>,
}

impl KeptLease {
    /// Returns whether the lease has not ended.
    pub fn is_valid(&self, now_unix_s: u64) -> bool {
        self.until_unix_s.is_none_or(|until| now_unix_s < until)
    }
}

impl fmt::Display for KeptLease {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.until_unix_s {
            Some(until) => write!(f, "{} until {until}", self.address),
            None => write!(f, "{} for ever", self.address),
        }
    }
}

impl FromStr for KeptLease {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let form =
            || format!("{:?}: expected ADDRESS until SECONDS, or ADDRESS for ever", text.trim());
        let (address, rest) = text.trim().split_once(' ').ok_or_else(form)?;
        let address = address.parse().map_err(|_| form())?;
        let until_unix_s = match rest.split_once(' ') {
            Some(("until", seconds)) => Some(seconds.parse().map_err(|_| form())?),
            Some(("for", "ever")) => None,
            _ => return Err(form()),
        };
        Ok(Self { address, until_unix_s })
    }
}

#[cfg(test)]
mod tests {
    use towpath_wire::MacAddr;

    use super::*;
    use crate::message::{ClasslessRoute, MessageKind};

    fn ip(text: &str) -> Ipv4Addr {
        text.parse().expect("an address")
    }

    fn lease(change: impl Fn(&mut DhcpMessage)) -> Result<Lease, LeaseError> {
        let mut ack = DhcpMessage::request(MessageKind::Ack, 1, MacAddr([2; 6]));
        ack.yiaddr = ip("10.1.0.9");
        ack.options = DhcpOptions {
            server: Some(ip("10.1.0.1")),
            lease_s: Some(3600),
            mask_len: Some(24),
            routers: vec![ip("10.1.0.1"), ip("10.1.0.2")],
            ..DhcpOptions::default()
        };
        change(&mut ack);
        Lease::of_message(&ack, Instant(0), &mut Dice::new(1, 1))
    }

    fn seconds(at: Option<Instant>) -> u64 {
        at.expect("it ends").since(Instant(0)).as_secs()
    }

    #[test]
    fn default_times_are_in_order() {
        let lease = lease(|_| {}).expect("it is valid");
        assert_eq!((seconds(lease.rebind_at), seconds(lease.valid_until)), (3150, 3600));
        assert!((1687..=1800).contains(&seconds(lease.renew_at)), "{lease:?}");
    }

    #[test]
    fn times_out_of_order_are_replaced() {
        for (renew, rebind) in [(4000, 5000), (3500, 3000), (0, 0), (1, 1), (u32::MAX, 3599)] {
            let lease = lease(|ack| {
                (ack.options.renew_s, ack.options.rebind_s) = (Some(renew), Some(rebind));
            });
            let Ok(lease) = lease else { continue };
            assert!(lease.renew_at < lease.rebind_at, "{lease:?}");
            assert!(lease.rebind_at < lease.valid_until, "{lease:?}");
        }
        let endless = lease(|ack| ack.options.lease_s = Some(u32::MAX)).expect("it is valid");
        assert_eq!((endless.renew_at, endless.valid_until), (None, None));
    }

    #[test]
    fn addresses_that_no_host_can_have_are_refused() {
        for address in ["0.0.0.0", "10.1.0.0", "10.1.0.255", "127.0.0.1", "224.0.0.1", "240.0.0.1"]
        {
            assert_eq!(
                lease(|ack| ack.yiaddr = ip(address)),
                Err(LeaseError::Address),
                "{address}"
            );
        }
        assert_eq!(lease(|ack| ack.options.mask_len = Some(0)), Err(LeaseError::Address));
        assert_eq!(lease(|ack| ack.options.server = None), Err(LeaseError::Server));
        assert_eq!(lease(|ack| ack.options.lease_s = Some(9)), Err(LeaseError::Duration));
        let of_class = lease(|ack| ack.options.mask_len = None).expect("it is valid");
        assert_eq!(of_class.address.len(), 8);
    }

    #[test]
    fn classless_routes_replace_routers() {
        let default = LeaseRoute { prefix: Prefix::ALL_V4, via: Some(ip("10.1.0.1")) };
        assert_eq!(lease(|_| {}).expect("it is valid").routes, [default]);
        let prefix: Prefix = "10.9.0.0/16".parse().expect("a prefix");
        let lease = lease(|ack| {
            let route = |via: &str| ClasslessRoute { prefix, via: ip(via) };
            ack.options.routes =
                Some(vec![route("224.0.0.1"), route("0.0.0.0"), route("10.1.0.3")]);
        });
        assert_eq!(lease.expect("it is valid").routes, [LeaseRoute { prefix, via: None }]);
    }

    #[test]
    fn kept_leases_are_read_as_written() {
        for text in ["192.0.2.7 until 1790000000", "192.0.2.7 for ever"] {
            assert_eq!(text.parse::<KeptLease>().map(|kept| kept.to_string()), Ok(text.to_owned()));
        }
        let kept: KeptLease = "192.0.2.7 until 100\n".parse().expect("it is valid");
        assert!(kept.is_valid(99) && !kept.is_valid(100));
        for text in ["", "192.0.2.7", "192.0.2 until 1", "192.0.2.7 until x", "192.0.2.7 until"] {
            assert!(text.parse::<KeptLease>().is_err(), "{text}");
        }
    }
}
