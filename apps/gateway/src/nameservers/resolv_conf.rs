//! Parser for the host's resolv.conf(5).

use std::net::{IpAddr, Ipv4Addr, SocketAddr, SocketAddrV6};

use rustix::net::{AddressFamily, SocketFlags, SocketType, netdevice, socket_with};
use towpath_shm::Fd;

use crate::limits::{
    NAMESERVER_ATTEMPTS, NAMESERVER_ATTEMPTS_MAX, NAMESERVER_TIMEOUT_S, NAMESERVER_TIMEOUT_S_MAX,
    NAMESERVERS_MAX,
};

/// Nameservers and resolver options from resolv.conf(5).
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct ResolvConf {
    /// Nameservers in order of preference, at most [`NAMESERVERS_MAX`].
    pub(crate) nameservers: Vec<SocketAddr>,
    /// Time in seconds to wait for a nameserver's answer (`timeout:`).
    pub(crate) timeout_s: u64,
    /// Number of times that each nameserver is tried (`attempts:`).
    pub(crate) attempts: usize,
    /// Whether successive queries begin with different nameservers, round-robin (`rotate`).
    pub(crate) rotate: bool,
}

/// DNS port (RFC 1035 §4.2) of the forwarder and the nameservers. resolv.conf cannot specify
/// another one.
pub(crate) const PORT: u16 = 53;

impl ResolvConf {
    /// Creates a configuration with default options. Nameservers beyond the third are ignored.
    pub(crate) fn of(mut nameservers: Vec<SocketAddr>) -> Self {
        nameservers.truncate(NAMESERVERS_MAX);
        Self {
            nameservers,
            timeout_s: NAMESERVER_TIMEOUT_S,
            attempts: NAMESERVER_ATTEMPTS,
            rotate: false,
        }
    }

    /// Parses the text of a resolv.conf file. resolv.conf(5): "If no nameserver entries are
    /// present, the default is to use the name server on the local machine."
    pub(crate) fn parse(text: &str) -> Self {
        let mut conf = Self::of(Vec::new());
        for line in text.lines() {
            // Keywords must be at the start of a line, so comment lines that start with ; or #
            // contain none.
            let mut words = line.split([' ', '\t']).filter(|word| !word.is_empty());
            match words.next().filter(|word| line.starts_with(word)) {
                Some("nameserver") if conf.nameservers.len() < NAMESERVERS_MAX => {
                    conf.nameservers.extend(words.next().and_then(nameserver));
                }
                Some("options") => words.for_each(|option| conf.set(option)),
                _ => {}
            }
        }
        if conf.nameservers.is_empty() {
            conf.nameservers.push(SocketAddr::new(Ipv4Addr::LOCALHOST.into(), PORT));
        }
        conf
    }

    /// Sets one of the `options` of resolv.conf. As in the C library (atoi), an invalid number
    /// becomes 0, which is then raised to the minimum.
    fn set(&mut self, option: &str) {
        let (name, value) = option.split_once(':').unwrap_or((option, ""));
        let digits = value.split(|c: char| !c.is_ascii_digit()).next().unwrap_or_default();
        let number = if digits.is_empty() { 0 } else { digits.parse().unwrap_or(usize::MAX) };
        match name {
            "timeout" => self.timeout_s = (number as u64).clamp(1, NAMESERVER_TIMEOUT_S_MAX),
            "attempts" => self.attempts = number.clamp(1, NAMESERVER_ATTEMPTS_MAX),
            "rotate" => self.rotate = true,
            _ => {}
        }
    }
}

/// Parses the address of a nameserver, with a scope after `%` for link-local addresses. A comment
/// may follow without a space.
fn nameserver(word: &str) -> Option<SocketAddr> {
    let word = word.split([';', '#']).next()?;
    let Some((address, scope)) = word.split_once('%') else {
        return Some(SocketAddr::new(word.parse::<IpAddr>().ok()?, PORT));
    };
    let index = scope.parse().ok().or_else(|| interface(scope))?;
    Some(SocketAddrV6::new(address.parse().ok()?, PORT, 0, index).into())
}

/// Returns the index of a host interface by its name. `None` if it does not exist; it may exist
/// when resolv.conf is checked again.
fn interface(name: &str) -> Option<u32> {
    let flags = SocketFlags::CLOEXEC;
    let any = Fd::from(socket_with(AddressFamily::INET6, SocketType::DGRAM, flags, None).ok()?);
    netdevice::name_to_index(&any, name).ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn nameservers(text: &str) -> Vec<String> {
        ResolvConf::parse(text).nameservers.iter().map(SocketAddr::to_string).collect()
    }

    #[test]
    fn all_nameservers_count_in_their_order() {
        let text = "# nameserver 192.0.2.9\n nameserver 192.0.2.8\nsearch x\n\
                    nameservers 192.0.2.7\n\
                    nameserver\t127.0.0.53 \nnameserver 2001:db8::1 # of the office\n\
                    nameserver 192.0.2.1;of the flat\r\nnameserver 192.0.2.2\n";
        assert_eq!(nameservers(text), ["127.0.0.53:53", "[2001:db8::1]:53", "192.0.2.1:53"]);
        for none in ["", "options edns0\n", "nameserver\nnameserver x\n"] {
            assert_eq!(nameservers(none), ["127.0.0.1:53"], "{none:?}");
        }
    }

    /// Tests link-local addresses of nameservers, because some routers announce only these.
    #[test]
    fn a_nameserver_may_be_of_a_link() {
        let text = "nameserver fe80::1%7\nnameserver fe80::2%lo\nnameserver fe80::3%nolink\n";
        let lo = interface("lo").unwrap();
        assert_eq!(nameservers(text), ["[fe80::1%7]:53".to_owned(), format!("[fe80::2%{lo}]:53")]);
    }

    #[test]
    fn options_say_how_they_are_asked() {
        let how = |text: &str| {
            let ResolvConf { timeout_s, attempts, rotate, .. } = ResolvConf::parse(text);
            (timeout_s, attempts, rotate)
        };
        assert_eq!(how(""), (5, 2, false));
        assert_eq!(how("options timeout:1 attempts:3\noptions edns0\trotate\n"), (1, 3, true));
        assert_eq!(how("options timeout:99 attempts:99999999999999999999\n"), (30, 5, false));
        assert_eq!(how("options timeout: attempts:none\n#options rotate\n"), (1, 1, false));
    }
}
