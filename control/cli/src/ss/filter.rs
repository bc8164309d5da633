//! Filters sockets by protocol, IP version, state and expression, as ss(8) does.

use std::net::{IpAddr, SocketAddr};
use std::str::FromStr;

use anyhow::{Result, anyhow, bail};

use super::args::SsArgs;
use super::services::Services;
use towpath_model::{Proto, ShownSocket};

/// Conditions that a socket must meet to be shown.
#[derive(Debug)]
pub(super) struct Filter {
    protos: Vec<Proto>,
    versions: Vec<Version>,
    states: Vec<&'static str>,
    expression: Expression,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Version {
    V4,
    V6,
}

/// Names of TCP states on the command line, each with the name that runs report.
const STATES: [(&str, &str); 11] = [
    ("established", "ESTAB"),
    ("syn-sent", "SYN-SENT"),
    ("syn-recv", "SYN-RECV"),
    ("fin-wait-1", "FIN-WAIT-1"),
    ("fin-wait-2", "FIN-WAIT-2"),
    ("time-wait", "TIME-WAIT"),
    ("closed", "UNCONN"),
    ("close-wait", "CLOSE-WAIT"),
    ("last-ack", "LAST-ACK"),
    ("listening", "LISTEN"),
    ("closing", "CLOSING"),
];
/// States of sockets without a peer, which ss(8) shows only with -l.
const WAITING: [&str; 2] = ["LISTEN", "UNCONN"];
/// States of the group "bucket" of ss(8). Linux keeps such connections without a full socket.
const BUCKET: [&str; 2] = ["SYN-RECV", "TIME-WAIT"];
/// Maximum nesting depth of parentheses and `not`. Limited because each level is a recursive call.
const DEPTH_MAX: usize = 64;

/// Returns the states that a state name or a group name, such as "connected", denotes.
fn states(word: &str) -> Result<Vec<&'static str>> {
    let all = || STATES.iter().map(|(_, shown)| *shown);
    let spelled = match word {
        "listen" => "listening",
        "unconnected" | "close" => "closed",
        other => other,
    };
    Ok(match word {
        "all" => all().collect(),
        "connected" => all().filter(|state| !WAITING.contains(state)).collect(),
        "synchronized" => {
            all().filter(|state| !WAITING.contains(state) && *state != "SYN-SENT").collect()
        }
        "bucket" => BUCKET.to_vec(),
        "big" => all().filter(|state| !BUCKET.contains(state)).collect(),
        _ => match STATES.iter().find(|(name, _)| *name == spelled) {
            Some((_, shown)) => vec![*shown],
            None => {
                let names: Vec<_> = STATES.iter().map(|(name, _)| *name).collect();
                bail!(
                    "{word:?} is not a state: {}, all, connected, synchronized, bucket or big",
                    names.join(", ")
                )
            }
        },
    })
}

impl Filter {
    /// Creates the filter from the options, and from the arguments that follow the process id.
    pub fn new(args: &SsArgs, words: &[String], services: &Services) -> Result<Self> {
        let mut tokens = FilterTokens::of(words);
        let default: Vec<&str> = match (args.all, args.listening) {
            (true, _) => states("all")?,
            (_, true) => WAITING.to_vec(),
            // As in ss(8), exclude TIME-WAIT and SYN-RECV, which belong to no socket. Otherwise the
            // list would be long after many short connections.
            _ => states("big")?.into_iter().filter(|state| !WAITING.contains(state)).collect(),
        };
        let mut named: Option<Vec<&str>> = None;
        loop {
            if tokens.take("state") {
                let more = states(&tokens.next("a state behind `state`")?)?;
                named.get_or_insert_default().extend(more);
            } else if tokens.take("exclude") {
                let less = states(&tokens.next("a state behind `exclude`")?)?;
                let from = named.get_or_insert(states("all")?);
                from.retain(|state| !less.contains(state));
            } else {
                break;
            }
        }
        let expression = match tokens.peek() {
            None => Expression::All(Vec::new()),
            Some(_) => tokens.expression(services, 0)?,
        };
        if let Some(rest) = tokens.peek() {
            bail!("{rest:?} is not expected there in the filter");
        }
        let mut protos = vec![Proto::Tcp, Proto::Udp, Proto::Icmp];
        if args.tcp || args.udp {
            protos.retain(|proto| match proto {
                Proto::Tcp => args.tcp,
                Proto::Udp => args.udp,
                Proto::Icmp => false,
            });
        }
        let mut versions = vec![Version::V4, Version::V6];
        if args.ipv4 != args.ipv6 {
            versions.retain(|version| (*version == Version::V4) == args.ipv4);
        }
        Ok(Self { protos, versions, states: named.unwrap_or(default), expression })
    }

    /// Returns whether a socket meets all conditions of the filter.
    pub fn takes(&self, socket: &ShownSocket) -> bool {
        let version = match socket.local {
            Some(SocketAddr::V6(v6)) if v6.ip().to_ipv4_mapped().is_none() => Version::V6,
            Some(_) => Version::V4,
            // A socket without an address may have either IP version, so show it with both -4 and
            // -6.
            None => self.versions[0],
        };
        self.protos.contains(&socket.proto)
            && self.versions.contains(&version)
            && self.states.contains(&socket.state.as_str())
            && self.expression.is_true(socket)
    }
}

/// Condition on a socket in the expression syntax of ss(8).
#[derive(Debug)]
enum Expression {
    All(Vec<Expression>),
    Any(Vec<Expression>),
    Not(Box<Expression>),
    Port { end: End, is: PortComparison, port: u16 },
    Host { end: End, host: Host },
}

/// Address of a socket to be compared: the local (`src`, `sport`) or the remote one (`dst`,
/// `dport`).
#[derive(Debug, Clone, Copy)]
enum End {
    Local,
    Remote,
}

/// Comparison operator for ports.
#[derive(Debug, Clone, Copy)]
enum PortComparison {
    Equal,
    Other,
    Less,
    More,
    AtMost,
    AtLeast,
}

impl Expression {
    fn is_true(&self, socket: &ShownSocket) -> bool {
        let of = |end: End| match end {
            End::Local => socket.local,
            End::Remote => socket.remote,
        };
        match self {
            Self::All(terms) => terms.iter().all(|term| term.is_true(socket)),
            Self::Any(terms) => terms.iter().any(|term| term.is_true(socket)),
            Self::Not(term) => !term.is_true(socket),
            Self::Port { end, is, port } => {
                let has = of(*end).map_or(0, |addr| addr.port());
                match is {
                    PortComparison::Equal => has == *port,
                    PortComparison::Other => has != *port,
                    PortComparison::Less => has < *port,
                    PortComparison::More => has > *port,
                    PortComparison::AtMost => has <= *port,
                    PortComparison::AtLeast => has >= *port,
                }
            }
            Self::Host { end, host } => of(*end).is_some_and(|addr| host.is(addr)),
        }
    }
}

/// Pattern of an address (or network) and a port. A part that is `None` matches every value.
#[derive(Debug, PartialEq, Eq)]
struct Host {
    net: Option<(IpAddr, u8)>,
    port: Option<u16>,
}

impl Host {
    fn is(&self, addr: SocketAddr) -> bool {
        let bits = |ip: IpAddr| match ip {
            IpAddr::V4(v4) => (u128::from(v4.to_bits()) << 96, true),
            IpAddr::V6(v6) => (v6.to_bits(), false),
        };
        let in_net = self.net.is_none_or(|(net, len)| {
            let ((a, a_is_v4), (b, b_is_v4)) = (bits(net), bits(addr.ip().to_canonical()));
            let differ = (a ^ b).checked_shr(128 - u32::from(len)).unwrap_or(0);
            a_is_v4 == b_is_v4 && differ == 0
        });
        in_net && self.port.is_none_or(|port| port == addr.port())
    }

    /// Parses ADDRESS or ADDRESS/LENGTH, optionally followed by :PORT, or :PORT alone. An IPv6
    /// address with a port needs brackets. `*` matches any address.
    fn parse(text: &str, services: &Services) -> Result<Self> {
        let wrong =
            || anyhow!("{text:?} is not an address: ADDRESS[/LENGTH][:PORT], IPv6 in brackets");
        let (host, port) = match text.rsplit_once(':') {
            // An IPv6 address without brackets contains colons, so the part after the last colon is
            // no port.
            Some(_) if IpAddr::from_str(text.split('/').next().unwrap_or(text)).is_ok() => {
                (text, None)
            }
            Some((host, "*" | "")) => (host, None),
            Some((host, port)) => (host, Some(port_of(port, services)?)),
            None => (text, None),
        };
        let host: String = host.chars().filter(|c| !matches!(c, '[' | ']')).collect();
        if host.is_empty() || host == "*" {
            return Ok(Self { net: None, port });
        }
        let (ip, len) = match host.split_once('/') {
            Some((ip, len)) => (ip, Some(len.parse::<u8>().map_err(|_| wrong())?)),
            None => (host.as_str(), None),
        };
        let ip: IpAddr = ip.parse().map_err(|_| wrong())?;
        let most = if ip.is_ipv4() { 32 } else { 128 };
        let len = len.unwrap_or(most);
        if len > most {
            bail!("{text:?}: a network of this version has a length of 0 to {most}");
        }
        Ok(Self { net: Some((ip, len)), port })
    }
}

fn port_of(word: &str, services: &Services) -> Result<u16> {
    let word = word.strip_prefix(':').unwrap_or(word);
    match word.parse() {
        Ok(port) => Ok(port),
        Err(_) => services
            .port(word)
            .ok_or_else(|| anyhow!("{word:?} is not a port: 0 to 65535, or a name of services(5)")),
    }
}

/// Words of a filter expression that are not parsed yet.
struct FilterTokens(Vec<String>);

impl FilterTokens {
    fn of(words: &[String]) -> Self {
        let mut text = words.join(" ");
        for mark in ["(", ")", "!=", "<=", ">=", "==", "=", "<", ">", "!", "&&", "||", "&", "|"] {
            // Put spaces around each operator. "!=" must come before "=" in the list. Each
            // character of an operator found is prefixed by \u{1}, so that the search for "=" does
            // not find the "=" in "!=".
            let apart = mark.chars().map(|c| format!("\u{1}{c}")).collect::<String>();
            text = split_off(&text, mark, &format!(" {apart} "));
        }
        let mut words: Vec<_> =
            text.split_whitespace().map(|word| word.replace('\u{1}', "")).collect();
        words.reverse();
        Self(words)
    }

    fn peek(&self) -> Option<&str> {
        self.0.last().map(String::as_str)
    }

    fn take(&mut self, word: &str) -> bool {
        let found = self.peek() == Some(word);
        if found {
            self.0.pop();
        }
        found
    }

    fn next(&mut self, expected: &str) -> Result<String> {
        self.0.pop().ok_or_else(|| anyhow!("the filter ends where {expected} was expected"))
    }

    fn expression(&mut self, services: &Services, depth: usize) -> Result<Expression> {
        let mut either = vec![self.all_of(services, depth)?];
        while self.take("or") || self.take("|") || self.take("||") {
            either.push(self.all_of(services, depth)?);
        }
        Ok(if either.len() == 1 { either.remove(0) } else { Expression::Any(either) })
    }

    fn all_of(&mut self, services: &Services, depth: usize) -> Result<Expression> {
        let mut all = vec![self.term(services, depth)?];
        loop {
            let joined = self.take("and") || self.take("&") || self.take("&&");
            match self.peek() {
                None | Some(")" | "or" | "|" | "||") if !joined => break,
                _ => all.push(self.term(services, depth)?),
            }
        }
        Ok(if all.len() == 1 { all.remove(0) } else { Expression::All(all) })
    }

    fn term(&mut self, services: &Services, depth: usize) -> Result<Expression> {
        if depth > DEPTH_MAX {
            bail!("the filter has more than {DEPTH_MAX} parentheses one in another");
        }
        let word = self.next("a term (sport, dport, src, dst, not, or a parenthesis)")?;
        match word.as_str() {
            "(" => {
                let inner = self.expression(services, depth + 1)?;
                match self.take(")") {
                    true => Ok(inner),
                    false => bail!("a parenthesis of the filter is not closed"),
                }
            }
            "not" | "!" => Ok(Expression::Not(Box::new(self.term(services, depth + 1)?))),
            "sport" => self.port(End::Local, services),
            "dport" => self.port(End::Remote, services),
            "src" => self.host(End::Local, services),
            "dst" => self.host(End::Remote, services),
            _ => bail!(
                "{word:?} is not known in a filter: sport, dport, src, dst, and, or, not, state, \
                 exclude"
            ),
        }
    }

    fn port(&mut self, end: End, services: &Services) -> Result<Expression> {
        let is = match self.peek() {
            Some("=" | "==" | "eq") => PortComparison::Equal,
            Some("!=" | "ne" | "neq") => PortComparison::Other,
            Some("<" | "lt") => PortComparison::Less,
            Some(">" | "gt") => PortComparison::More,
            Some("<=" | "le" | "leq") => PortComparison::AtMost,
            Some(">=" | "ge" | "geq") => PortComparison::AtLeast,
            // If no operator is given, compare for equality, as ss(8) does.
            _ => {
                return Ok(Expression::Port {
                    end,
                    is: PortComparison::Equal,
                    port: self.port_word(services)?,
                });
            }
        };
        self.0.pop();
        Ok(Expression::Port { end, is, port: self.port_word(services)? })
    }

    fn port_word(&mut self, services: &Services) -> Result<u16> {
        port_of(&self.next("a port")?, services)
    }

    fn host(&mut self, end: End, services: &Services) -> Result<Expression> {
        let is_not = self.take("!=") || self.take("ne") || self.take("neq");
        if !is_not {
            let _ = self.take("=") || self.take("==") || self.take("eq");
        }
        let host = Host::parse(&self.next("an address")?, services)?;
        let is = Expression::Host { end, host };
        Ok(if is_not { Expression::Not(Box::new(is)) } else { is })
    }
}

/// Replaces each occurrence of `mark` by `apart`. Skips occurrences after the character \u{1},
/// which marks parts of an operator that an earlier call has found.
fn split_off(text: &str, mark: &str, apart: &str) -> String {
    let mut out = String::with_capacity(text.len());
    let mut rest = text;
    while let Some(at) = rest.find(mark) {
        out += &rest[..at];
        out += if out.ends_with('\u{1}') { mark } else { apart };
        rest = &rest[at + mark.len()..];
    }
    out + rest
}

#[cfg(test)]
mod tests {
    use super::super::samples::{answer, args};
    use super::*;

    fn shown(words: &[&str]) -> Result<String> {
        let args = args(words);
        let services = Services::parse("http 80/tcp\ndomain 53/udp\n");
        let (_, filter) = args.pid_and_filter();
        let filter = Filter::new(&args, filter, &services)?;
        let sockets = answer().sockets.into_iter().filter(|socket| filter.takes(socket));
        let states: Vec<_> = sockets.map(|socket| socket.state.as_str().to_owned()).collect();
        Ok(states.join(" "))
    }

    #[test]
    fn by_options() {
        for (words, expected) in [
            (&[][..], "ESTAB"),
            (&["-l"], "LISTEN UNCONN"),
            (&["-a"], "LISTEN ESTAB UNCONN"),
            (&["-tl"], "LISTEN"),
            (&["-ua"], "UNCONN"),
            (&["-4a"], "LISTEN ESTAB"),
            (&["-6a"], "UNCONN"),
            (&["-46a"], "LISTEN ESTAB UNCONN"),
            (&["42", "-a"], "LISTEN ESTAB UNCONN"),
        ] {
            assert_eq!(shown(words).unwrap(), expected, "{words:?}");
        }
    }

    /// Tests that states without a socket are shown only on request, as in ss(8) (SS_CONN in
    /// iproute2).
    #[test]
    fn connections_without_a_socket_are_shown_when_asked_for() {
        let takes = |words: &[&str], state: &'static str| {
            let args = args(words);
            let (_, words) = args.pid_and_filter();
            let filter = Filter::new(&args, words, &Services::default()).unwrap();
            let mut socket = answer().sockets.swap_remove(1);
            socket.state = towpath_model::Word::known(state);
            filter.takes(&socket)
        };
        for state in BUCKET {
            assert!(!takes(&["-t"], state) && !takes(&["dport", "=", "40000"], state), "{state}");
            assert!(!takes(&["-l"], state) && takes(&["-ta"], state), "{state}");
            assert!(takes(&["state", "connected"], state), "{state}");
        }
        assert!(takes(&["-t"], "FIN-WAIT-2") && takes(&["-t"], "SYN-SENT"));
    }

    #[test]
    fn by_states_and_expressions() {
        for (words, expected) in [
            ("state listening", "LISTEN"),
            ("state established state listen", "LISTEN ESTAB"),
            ("exclude established", "LISTEN UNCONN"),
            ("state all exclude closed", "LISTEN ESTAB"),
            ("state connected", "ESTAB"),
            ("state bucket", ""),
            ("42 state all sport = :80", "LISTEN ESTAB"),
            ("state all sport=http", "LISTEN ESTAB"),
            ("state all sport :domain", "UNCONN"),
            ("dport = :40000", "ESTAB"),
            ("dport ge 40001", ""),
            ("state all sport < 80", "UNCONN"),
            ("state all not sport = 80", "UNCONN"),
            ("state all sport != 80 or dport = 40000", "ESTAB UNCONN"),
            ("state all ( sport = 80 and dport = 40000 ) or sport = 53", "ESTAB UNCONN"),
            ("state all (sport=80)&!(dport=40000)", "LISTEN"),
            ("state all sport = 80 src 10.0.2.15", "ESTAB"),
            ("dst 10.0.2.0/24", "ESTAB"),
            ("dst 10.0.3.0/24", ""),
            ("dst 10.0.2.2:40000", "ESTAB"),
            ("dst != 10.0.2.2", ""),
            ("state all src [::]:53", "UNCONN"),
            ("state all src ::/0", "UNCONN"),
            ("state all src 0.0.0.0/0", "LISTEN ESTAB"),
            ("state all src :80", "LISTEN ESTAB"),
        ] {
            let words: Vec<_> = words.split(' ').collect();
            assert_eq!(shown(&words).unwrap(), expected, "{words:?}");
        }
    }

    #[test]
    fn mistakes_are_named() {
        for (words, named) in [
            ("state sleeping", "\"sleeping\" is not a state"),
            ("state", "ends where a state"),
            ("sport = :nope", "\"nope\" is not a port"),
            ("sport = 99999", "\"99999\" is not a port"),
            ("sport =", "ends where a port"),
            ("( sport = 80", "not closed"),
            ("sport = 80 )", "\")\" is not expected"),
            ("sport = 80 and", "ends where a term"),
            ("fwmark = 1", "\"fwmark\" is not known"),
            ("dst 10.0.2.0/33", "0 to 32"),
            ("dst example.org", "is not an address"),
            (&"( ".repeat(100), "parentheses"),
        ] {
            let words: Vec<_> = words.split_whitespace().collect();
            let told = shown(&words).unwrap_err().to_string();
            assert!(told.contains(named), "{words:?}: {told}");
        }
    }
}
