//! Host names that the programs of a run can resolve in addition to those of the host
//! (`--hostname`, `--add-host`).

use std::fmt::Write;
use std::net::IpAddr;

use towpath_wire::Prefix;

/// Maximum length of a hostname in bytes (`__NEW_UTS_LEN`).
const HOSTNAME_MAX: usize = 64;
/// Maximum length of a DNS name as text (RFC 1035, section 2.3.4).
const NAME_MAX: usize = 253;

/// Hostname and additional host names of a run.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Names {
    /// Hostname that gethostname(2) returns to programs; `None` for the kernel's hostname.
    pub hostname: Option<String>,
    /// Additional host names. If several entries have the same name, the first one applies.
    pub hosts: Vec<HostEntry>,
}

/// Names of a host, and the address to which they resolve.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct HostEntry {
    /// Names of the host, at least one.
    pub names: Vec<String>,
    /// Address that the names resolve to.
    pub to: NameDestination,
}

/// Address to which the names of an entry resolve.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum NameDestination {
    /// A fixed address.
    Ip(IpAddr),
    /// The addresses at which programs reach this host (`host-gateway`).
    ThisHost,
}

/// Keyword for [`NameDestination::ThisHost`], as in docker(1) and podman(1).
const HOST_GATEWAY: &str = "host-gateway";

impl Names {
    /// Returns lines in the format of hosts(5). The hostname resolves to `own`, unless an entry has
    /// the same name. `host` are the addresses at which programs reach this host.
    pub fn lines(&self, own: impl Iterator<Item = IpAddr>, host: &[IpAddr]) -> String {
        let mut text = String::new();
        for HostEntry { names, to } in &self.hosts {
            let all = match to {
                NameDestination::Ip(ip) => std::slice::from_ref(ip),
                NameDestination::ThisHost => host,
            };
            for ip in all {
                // Ignore errors: writing to a String cannot fail.
                let _ = writeln!(text, "{ip}\t{}", names.join(" "));
            }
        }
        if let Some(name) = self.hostname.as_ref().filter(|name| !self.is_given(name)) {
            for ip in own {
                let _ = writeln!(text, "{ip}\t{name}");
            }
        }
        text
    }

    /// Returns whether any name resolves to this host.
    pub fn lead_to_host(&self) -> bool {
        self.hosts.iter().any(|entry| entry.to == NameDestination::ThisHost)
    }

    /// Returns the hostname and lines in the format of hosts(5) as one text for programs.
    /// `addresses` are the addresses of the stack. `host` are the addresses at which programs reach
    /// this host.
    pub fn text(&self, addresses: &[Prefix], host: &[IpAddr]) -> String {
        if *self == Self::default() {
            return String::new();
        }
        let lines = self.lines(addresses.iter().map(Prefix::addr), host);
        format!("{}\n{lines}", self.hostname.as_deref().unwrap_or_default())
    }

    fn is_given(&self, name: &str) -> bool {
        let mut all = self.hosts.iter().flat_map(|entry| &entry.names);
        all.any(|given| given.eq_ignore_ascii_case(name))
    }
}

/// Parses a hostname, as returned by gethostname(2).
///
/// # Errors
/// Returns an error message.
pub fn parse_hostname(text: &str) -> Result<String, String> {
    if is_name(text, HOSTNAME_MAX) {
        return Ok(text.to_owned());
    }
    Err(format!(
        "{text:?} is not a name of a machine: 1 to {HOSTNAME_MAX} letters, digits, '-', '_' and '.'"
    ))
}

impl std::str::FromStr for HostEntry {
    type Err = String;

    /// Parses an entry in the syntax of podman(1): names separated by `;`, a colon, and an address.
    fn from_str(text: &str) -> Result<Self, String> {
        let wrong = |why: &str| {
            format!(
                "{text:?}: {why}; expected NAME:ADDRESS, for example db:192.0.2.7 or db:2001:db8::7"
            )
        };
        let (names, address) = text.split_once(':').ok_or_else(|| wrong("there is no address"))?;
        let to = match address {
            HOST_GATEWAY => NameDestination::ThisHost,
            _ => {
                let bare = address.strip_prefix('[').and_then(|rest| rest.strip_suffix(']'));
                let ip = bare.unwrap_or(address).parse();
                let ip = ip.map_err(|_| {
                    wrong(&format!("{address:?} is not an address, and not {HOST_GATEWAY}"))
                })?;
                NameDestination::Ip(ip)
            }
        };
        let names: Vec<String> = names.split(';').map(str::to_owned).collect();
        match names.iter().find(|name| !is_name(name, NAME_MAX)) {
            Some(name) => Err(wrong(&format!("{name:?} is not a name"))),
            None => Ok(Self { names, to }),
        }
    }
}

fn is_name(text: &str, most: usize) -> bool {
    let known = |byte: u8| byte.is_ascii_alphanumeric() || matches!(byte, b'-' | b'_' | b'.');
    (1..=most).contains(&text.len()) && !text.starts_with(['-', '.']) && text.bytes().all(known)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn hosts_are_written_as_podman_takes_them() {
        let entry = |text: &str| text.parse::<HostEntry>();
        let names = |all: &[&str]| all.iter().map(|name| (*name).to_owned()).collect();
        let v4 = NameDestination::Ip([192, 0, 2, 7].into());
        let v4 = HostEntry { names: names(&["db"]), to: v4 };
        assert_eq!(entry("db:192.0.2.7"), Ok(v4));
        let to = NameDestination::Ip("2001:db8::7".parse().expect("an address"));
        assert_eq!(entry("a;b.c:2001:db8::7"), Ok(HostEntry { names: names(&["a", "b.c"]), to }));
        assert_eq!(entry("a:[2001:db8::7]"), Ok(HostEntry { names: names(&["a"]), to }));
        for bad in ["db", "db:", ":192.0.2.7", "a;:192.0.2.7", "a b:192.0.2.7", "a#:192.0.2.7"] {
            assert!(entry(bad).is_err(), "{bad}");
        }
        for bad in ["db:host", "db:[host-gateway]"] {
            assert!(entry(bad).expect_err(bad).contains("host-gateway"), "{bad}");
        }
    }

    /// Tests that `host-gateway` yields a line for each address family, as with docker(1).
    #[test]
    fn this_host_is_where_the_stack_reaches_it() {
        let hosts = vec!["me;host.docker.internal:host-gateway".parse().expect("an entry")];
        let names = Names { hostname: None, hosts };
        assert!(names.lead_to_host());
        let host = ["10.0.2.2", "fd00:2::2"].map(|ip| ip.parse().expect("an address"));
        let lines = "10.0.2.2\tme host.docker.internal\nfd00:2::2\tme host.docker.internal\n";
        assert_eq!(names.lines(std::iter::empty(), &host), lines);
    }

    #[test]
    fn a_name_of_a_machine_is_one_word_of_hosts() {
        assert_eq!(parse_hostname("web-1.example").as_deref(), Ok("web-1.example"));
        assert!(parse_hostname(&"a".repeat(HOSTNAME_MAX)).is_ok());
        let long = "a".repeat(HOSTNAME_MAX + 1);
        assert!(
            ["", "a b", "a\n", "-a", ".", &long].iter().all(|bad| parse_hostname(bad).is_err())
        );
    }

    #[test]
    fn the_machines_name_leads_to_the_stack_unless_an_entry_has_it() {
        let own = ["10.0.2.15/24".parse().expect("a prefix")];
        assert_eq!(Names::default().text(&own, &[]), "");
        let host = |text: &str| text.parse::<HostEntry>().expect("an entry");
        let mut names = Names { hostname: None, hosts: vec![host("db:192.0.2.7")] };
        assert_eq!(names.text(&own, &[]), "\n192.0.2.7\tdb\n");
        names.hostname = Some("web".into());
        assert_eq!(names.text(&own, &[]), "web\n192.0.2.7\tdb\n10.0.2.15\tweb\n");
        names.hosts.push(host("WEB:192.0.2.8"));
        assert_eq!(names.text(&own, &[]), "web\n192.0.2.7\tdb\n192.0.2.8\tWEB\n");
    }
}
