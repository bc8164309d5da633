//! Settings of the file resolv.conf(5), with the limits of glibc.

use std::net::{IpAddr, SocketAddr};
use std::time::Duration;

use crate::message::Name;

/// Maximum number of nameservers; MAXNS of resolv.h.
const SERVERS_MAX: usize = 3;
/// Maximum values of the options `ndots`, `timeout` (in seconds) and `attempts` (RES_MAXNDOTS,
/// RES_MAXRETRANS and RES_MAXRETRY of resolv.h).
const NDOTS_MAX: usize = 15;
const TIMEOUT_MAX: u64 = 30;
const ATTEMPTS_MAX: u32 = 5;
/// UDP and TCP port of nameservers.
const PORT: u16 = 53;

/// Settings of the DNS resolver.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Conf {
    /// Addresses of the nameservers.
    pub servers: Vec<SocketAddr>,
    /// Domains of the search list, which are appended to names.
    pub search: Vec<String>,
    /// Minimum number of dots in a name for which the name itself is looked up before the search
    /// list is used.
    pub ndots: usize,
    /// Time to wait for an answer of the first nameserver. [`Self::patience`] computes the time to
    /// wait for each later nameserver.
    pub timeout: Duration,
    /// Maximum number of times that each nameserver is asked.
    pub attempts: u32,
    /// Whether each lookup begins with a randomly chosen nameserver.
    pub rotate: bool,
    /// Whether DNS questions announce support of EDNS(0).
    pub edns: bool,
    /// Whether all questions are sent over TCP (option `use-vc`).
    pub use_vc: bool,
    /// Whether the resolver waits for the answer to its A question before it sends the AAAA
    /// question (option `single-request`).
    pub single_request: bool,
    /// Whether AAAA questions are omitted if both IPv4 and IPv6 addresses are wanted (option
    /// `no-aaaa`).
    pub no_aaaa: bool,
}

impl Conf {
    /// Parses the text of resolv.conf, and then the variables RES_OPTIONS and LOCALDOMAIN of the
    /// environment. If none of them specifies a domain, the domain of `hostname` is used.
    pub fn new(text: &str, hostname: Option<&str>, env: impl Fn(&str) -> Option<String>) -> Self {
        let mut conf = Self {
            servers: Vec::new(),
            search: Vec::new(),
            ndots: 1,
            timeout: Duration::from_secs(5),
            attempts: 2,
            rotate: false,
            edns: false,
            use_vc: false,
            single_request: false,
            no_aaaa: false,
        };
        let mut domains = None;
        for line in text.lines().filter(|line| !line.starts_with([';', '#'])) {
            let mut words = line.split_ascii_whitespace();
            match words.next() {
                Some("nameserver") => conf.servers.extend(words.next().and_then(server)),
                Some("domain") => domains = words.next().map(|word| vec![word.to_owned()]),
                Some("search") => domains = Some(words.map(str::to_owned).collect()),
                Some("options") => words.for_each(|word| conf.set(word)),
                _ => {}
            }
        }
        conf.servers.truncate(SERVERS_MAX);
        let own = || hostname?.split_once('.').map(|(_, domain)| vec![domain.to_owned()]);
        let given = env("LOCALDOMAIN")
            .map(|list| list.split_ascii_whitespace().map(str::to_owned).collect());
        conf.search = given.or(domains).or_else(own).unwrap_or_default();
        let options = env("RES_OPTIONS").unwrap_or_default();
        options.split_ascii_whitespace().for_each(|word| conf.set(word));
        conf
    }

    /// Replaces the nameservers of the file by `nameserver`. With `only_loopback`, replaces only
    /// servers on the host's loopback, which a stack cannot reach.
    ///
    /// If the file lists no server, resolvers use a server on the local machine (resolv.conf(5)). A
    /// file without servers is therefore treated like a server on the loopback.
    pub fn replace_servers(&mut self, nameserver: IpAddr, only_loopback: bool) {
        let is_kept = |server: &SocketAddr| {
            only_loopback && !server.ip().is_loopback() && !server.ip().is_unspecified()
        };
        let place = self.servers.iter().position(|server| !is_kept(server));
        if place.is_none() && !self.servers.is_empty() {
            return;
        }
        self.servers.retain(is_kept);
        let place = place.unwrap_or(0).min(self.servers.len());
        self.servers.insert(place, SocketAddr::new(nameserver, PORT));
    }

    /// Returns the names to look up for `name`: with the domains of the search list appended, and
    /// without, in the order of glibc's res_search. Invalid DNS names are left out.
    ///
    /// The result is empty for an empty name. Otherwise a lookup of the domain alone would return
    /// the addresses of a different host.
    pub fn candidates(&self, name: &str) -> Vec<Name> {
        let domains = self.domains(name).into_iter();
        domains.filter_map(|domain| Name::new(name.as_bytes(), domain.as_bytes())).collect()
    }

    /// Returns the domains to append to `name`, in order. An empty domain means that `name` is
    /// looked up as it is.
    fn domains(&self, name: &str) -> Vec<&str> {
        if name.is_empty() {
            return Vec::new();
        }
        let dots = name.bytes().filter(|byte| *byte == b'.').count();
        if name.ends_with('.') {
            return vec![""];
        }
        let domains = self.search.iter().map(|domain| domain.trim_end_matches('.'));
        let mut all: Vec<&str> = domains.collect();
        if dots >= self.ndots {
            all.insert(0, "");
        } else {
            all.push("");
        }
        all
    }

    /// Returns the time to wait for an answer of the server at index `place` of the list, as glibc
    /// does. The time doubles for each further server. From the second server on, it is divided by
    /// the number of servers.
    pub fn patience(&self, place: usize) -> Duration {
        let doubled = self.timeout * (1 << place);
        let shared = if place == 0 { doubled } else { doubled / self.servers.len().max(1) as u32 };
        shared.max(Duration::from_secs(1))
    }

    fn set(&mut self, option: &str) {
        let (name, value) = option.split_once(':').unwrap_or((option, ""));
        let number = value.parse::<u64>().ok();
        match (name, number) {
            ("ndots", Some(n)) => self.ndots = (n as usize).min(NDOTS_MAX),
            ("timeout", Some(n)) => self.timeout = Duration::from_secs(n.clamp(1, TIMEOUT_MAX)),
            ("attempts", Some(n)) => self.attempts = (n.min(u64::from(ATTEMPTS_MAX)) as u32).max(1),
            ("rotate", _) => self.rotate = true,
            ("edns0", _) => self.edns = true,
            ("use-vc", _) => self.use_vc = true,
            ("single-request" | "single-request-reopen", _) => self.single_request = true,
            ("no-aaaa", _) => self.no_aaaa = true,
            _ => {}
        }
    }
}

/// Parses the address of a nameserver. Returns `None` for an address with a scope (`fe80::1%eth0`),
/// because the interface in the scope belongs to the host and not to the stack.
fn server(word: &str) -> Option<SocketAddr> {
    word.parse().ok().map(|ip: IpAddr| SocketAddr::new(ip, PORT))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn of(text: &str) -> Conf {
        Conf::new(text, Some("host.lan"), |_| None)
    }

    #[test]
    fn the_file_is_read_as_glibc_reads_it() {
        let text = "# a\nnameserver 192.0.2.1\nnameserver fe80::1%eth0\nnameserver 2001:db8::1\n\
            domain x\nsearch a.example b.example\n\
            options ndots:2 timeout:99 attempts:0 rotate edns0 use-vc no-aaaa single-request\n";
        let conf = of(text);
        let ips: Vec<_> = conf.servers.iter().map(ToString::to_string).collect();
        assert_eq!(ips, ["192.0.2.1:53", "[2001:db8::1]:53"]);
        assert_eq!(conf.search, ["a.example", "b.example"]);
        assert_eq!((conf.ndots, conf.timeout.as_secs(), conf.attempts), (2, 30, 1));
        assert!(conf.rotate && conf.edns && conf.use_vc && conf.no_aaaa && conf.single_request);
        let conf = of("");
        assert_eq!((conf.ndots, conf.timeout.as_secs(), conf.attempts), (1, 5, 2));
        assert_eq!(conf.search, ["lan"]);
        let env = |name: &str| Some(if name == "LOCALDOMAIN" { "c d" } else { "ndots:7" }.into());
        let conf = Conf::new(text, None, env);
        assert_eq!((conf.search.len(), conf.ndots), (2, 7));
    }

    #[test]
    fn dots_decide_what_is_asked_for_first() {
        let conf = of("search a b.\n");
        assert_eq!(conf.domains("x"), ["a", "b", ""]);
        assert_eq!(conf.domains("x.y"), ["", "a", "b"]);
        assert_eq!(conf.domains("x."), [""]);
        assert!(conf.candidates("").is_empty() && conf.candidates(".").is_empty());
    }

    #[test]
    fn nameservers_on_the_loopback_are_replaced() {
        let servers = |text: &str, only_loopback: bool| -> Vec<String> {
            let mut conf = of(text);
            conf.replace_servers("10.0.2.3".parse().expect("an address"), only_loopback);
            conf.servers.iter().map(|server| server.ip().to_string()).collect()
        };
        assert_eq!(servers("nameserver 127.0.0.53\n", true), ["10.0.2.3"]);
        assert_eq!(servers("", true), ["10.0.2.3"]);
        assert_eq!(servers("nameserver 192.0.2.1\n", true), ["192.0.2.1"]);
        let mixed = "nameserver 192.0.2.1\nnameserver ::1\nnameserver 127.0.0.1\n";
        assert_eq!(servers(mixed, true), ["192.0.2.1", "10.0.2.3"]);
        assert_eq!(servers("nameserver 192.0.2.1\nnameserver 192.0.2.2\n", false), ["10.0.2.3"]);
    }
}
