//! Socket activation: sockets passed by the process that started towpath, such as systemd
//! (sd_listen_fds(3)).
//!
//! Sockets that no option `-p fd:` takes are passed on to PROGRAM, the program that towpath runs.
//! The first is descriptor 3, and PROGRAM gets the corresponding variables. LISTEN_PID must be
//! PROGRAM's own process id, otherwise sd_listen_fds(3) ignores the sockets.

use std::ffi::{CString, OsStr, OsString};
use std::io;
use std::net::SocketAddr;
use std::os::fd::{AsFd, OwnedFd, RawFd};
use std::os::unix::ffi::{OsStrExt, OsStringExt};
use std::str::FromStr;
use std::sync::Arc;

use anyhow::Result;
use rustix::io::Errno;
use rustix::net::{AddressFamily, SocketType, getpeername, getsockname, ipproto, sockopt};
use towpath_engine::caller;
use towpath_uplink::{Plan, Protocol, Publish, PublishedRange};

use crate::error::{ExitCode, Failure};

/// Sockets that towpath passes to PROGRAM, starting at descriptor 3.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Activation {
    count: usize,
    /// Names of the sockets from LISTEN_FDNAMES, where colons separate them. `None` if the variable
    /// is not set.
    names: Option<Vec<OsString>>,
}

/// Parsed value of `-p`: a range of ports, or passed sockets.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum PublishArg {
    /// Range of ports that towpath binds.
    Bind(PublishedRange),
    /// Sockets that were passed to towpath.
    Passed(PassedArg),
}

/// Passed sockets in the user's notation, such as `fd:3:80` or `fd:web:80/tcp`.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct PassedArg {
    which: Which,
    port: u16,
    /// Protocol of the sockets. `None` selects the protocol of each socket.
    protocol: Option<Protocol>,
}

#[derive(Debug, Clone, PartialEq, Eq)]
enum Which {
    Number(RawFd),
    Name(String),
}

/// Descriptor of the first passed socket (SD_LISTEN_FDS_START).
const FIRST: RawFd = 3;
/// Maximum number of passed sockets. systemd passes only the few sockets of one unit.
const COUNT_MAX: usize = 4096;

impl FromStr for PublishArg {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let Some(rest) = text.strip_prefix("fd:") else { return text.parse().map(Self::Bind) };
        let (rest, protocol) = match rest.rsplit_once('/') {
            None => (rest, None),
            Some((rest, "tcp")) => (rest, Some(Protocol::Tcp)),
            Some((rest, "udp")) => (rest, Some(Protocol::Udp)),
            Some((_, other)) => return Err(format!("{other:?} is not a protocol: /tcp or /udp")),
        };
        let form = "the form is fd:NUMBER:PORT or fd:NAME:PORT, for example fd:3:80";
        let Some((which, port)) = rest.split_once(':') else { return Err(form.into()) };
        let port = match port.parse() {
            Ok(0) | Err(_) => {
                return Err(format!("{port:?} is not a valid port: expected 1 to 65535; {form}"));
            }
            Ok(port) => port,
        };
        let which = match which.parse::<RawFd>() {
            Ok(number) if number < FIRST => {
                return Err(format!("descriptor {number} is PROGRAM's: {form}"));
            }
            Ok(number) => Which::Number(number),
            Err(_) if which.is_empty() => return Err(form.into()),
            Err(_) => Which::Name(which.into()),
        };
        Ok(Self::Passed(PassedArg { which, port, protocol }))
    }
}

impl Activation {
    /// Returns the sockets that LISTEN_PID and LISTEN_FDS assign to this process. `None` if there
    /// are none.
    pub fn at_start() -> Option<Self> {
        let own = std::env::var("LISTEN_PID").ok()?.parse() == Ok(std::process::id());
        let count = std::env::var("LISTEN_FDS").ok()?.parse().ok()?;
        let names = std::env::var_os("LISTEN_FDNAMES").map(|names| split(&names));
        (own && (1..=COUNT_MAX).contains(&count)).then_some(Self { count, names })
    }

    /// Encodes the number of sockets and their names as a command-line argument for the guardian.
    pub fn encode(&self) -> OsString {
        let mut word = OsString::from(self.count.to_string());
        for name in self.names.iter().flatten() {
            word.push(":");
            word.push(name);
        }
        word
    }

    /// Decodes the result of [`Self::encode`]. `None` if `word` is invalid.
    pub fn decode(word: &OsStr) -> Option<Self> {
        let mut parts = split(word).into_iter();
        let count = parts.next()?.to_str()?.parse().ok()?;
        let names: Vec<_> = parts.collect();
        Some(Self { count, names: (!names.is_empty()).then_some(names) })
    }

    /// Returns the environment variables for PROGRAM. A variable whose value is `None` must be
    /// removed.
    pub fn environment(&self) -> Vec<(&'static str, Option<OsString>)> {
        let some = self.count > 0;
        let names = self.names.as_ref().map(|names| join(names)).filter(|_| some);
        vec![
            ("LISTEN_PID", None),
            ("LISTEN_FDS", some.then(|| self.count.to_string().into())),
            ("LISTEN_FDNAMES", names),
            // Remove LISTEN_PIDFDID, because it refers to a pidfd of towpath. systemd 259 and later
            // set it.
            ("LISTEN_PIDFDID", None),
        ]
    }

    /// Returns the name of the environment variable that must contain PROGRAM's process id.
    pub fn process_id(&self) -> Option<CString> {
        (self.count > 0).then(|| c"LISTEN_PID".to_owned())
    }

    /// Returns the descriptors of the sockets with this name.
    fn numbered(&self, name: &str) -> Vec<RawFd> {
        let names = self.names.iter().flatten().take(self.count);
        (FIRST..).zip(names).filter(|(_, is)| *is == name).map(|(number, _)| number).collect()
    }

    /// Removes the sockets in `taken`, and renumbers the remaining sockets for PROGRAM.
    fn leave(&mut self, taken: &[RawFd]) -> io::Result<()> {
        let end = FIRST + self.count as RawFd;
        let kept: Vec<_> = (FIRST..end).filter(|number| !taken.contains(number)).collect();
        caller::renumber_inherited(&kept, FIRST, end)?;
        self.count = kept.len();
        if let Some(names) = &mut self.names {
            let mut number = FIRST..;
            names.retain(|_| number.next().is_some_and(|number| !taken.contains(&number)));
        }
        Ok(())
    }
}

/// Adds the ports of `-p` to `plan`. Passed sockets that `-p` selects are not passed on to PROGRAM.
///
/// # Errors
/// Returns an error if a socket does not exist, or cannot be used as a published port.
pub fn publish(
    args: &[PublishArg],
    activation: &mut Option<Activation>,
    plan: &mut Plan,
) -> Result<()> {
    let mut taken = Vec::new();
    for arg in args {
        match arg {
            PublishArg::Bind(ports) => plan.publish.extend(&ports.0),
            PublishArg::Passed(passed) => {
                let refused = |(number, why)| {
                    let which = passed.which_text();
                    let at = if matches!(passed.which, Which::Name(_)) {
                        format!(": descriptor {number} {why}")
                    } else {
                        format!(": this descriptor {why}")
                    };
                    Failure::error(ExitCode::Failed, format!("-p {which}:{}{at}", passed.port))
                };
                for number in passed.numbers(activation.as_ref())? {
                    if taken.contains(&number) {
                        return Err(refused((number, "is published already".into())));
                    }
                    let (publish, socket) =
                        passed.take(number).map_err(|why| refused((number, why)))?;
                    taken.push(number);
                    plan.passed.push((publish, Arc::new(socket)));
                }
            }
        }
    }
    if let Some(activation) = activation
        && !taken.is_empty()
    {
        activation.leave(&taken)?;
    }
    Ok(())
}

impl PassedArg {
    fn which_text(&self) -> String {
        match &self.which {
            Which::Number(number) => format!("fd:{number}"),
            Which::Name(name) => format!("fd:{name}"),
        }
    }

    /// Returns the descriptors of the sockets that this argument selects.
    fn numbers(&self, activation: Option<&Activation>) -> Result<Vec<RawFd>> {
        let name = match &self.which {
            Which::Number(number) => return Ok(vec![*number]),
            Which::Name(name) => name,
        };
        let mut numbers = activation.map(|all| all.numbered(name)).unwrap_or_default();
        if let Some(protocol) = self.protocol {
            let is_it = |number: &RawFd| {
                // Keep a descriptor whose protocol is unknown, because `take` returns a more
                // specific error.
                kind_of(*number).is_none_or(|is| is == protocol)
            };
            numbers.retain(is_it);
        }
        if numbers.is_empty() {
            let message = format!(
                "-p fd:{name}:{}: towpath was handed no socket of this name (LISTEN_PID, \
                 LISTEN_FDS and LISTEN_FDNAMES of its environment say which there are)",
                self.port
            );
            return Err(Failure::error(ExitCode::Failed, message));
        }
        Ok(numbers)
    }

    /// Takes ownership of a socket that can be a published port.
    ///
    /// # Errors
    /// Returns the reason as a predicate, for a sentence whose subject is the socket.
    fn take(&self, number: RawFd) -> Result<(Publish, OwnedFd), String> {
        let socket =
            caller::take_inherited(number).map_err(|error| match error.raw_os_error() {
                Some(errno) if errno == Errno::BADF.raw_os_error() => {
                    "is not open: the process that starts towpath has to hand it over".to_owned()
                }
                _ => format!("cannot be duplicated: {error}"),
            })?;
        let (protocol, host) = inspect(&socket)?;
        if self.protocol.is_some_and(|wanted| wanted != protocol) {
            let is = if protocol == Protocol::Tcp { "TCP" } else { "UDP" };
            return Err(format!("is a socket of {is}"));
        }
        Ok((Publish { protocol, host, port: self.port }, socket))
    }
}

/// Returns the protocol of the socket with descriptor `number`. Inspects a duplicate, so that the
/// descriptor stays open.
fn kind_of(number: RawFd) -> Option<Protocol> {
    let pid = rustix::process::getpid();
    let own = rustix::process::pidfd_open(pid, rustix::process::PidfdFlags::empty()).ok()?;
    let flags = rustix::process::PidfdGetfdFlags::empty();
    let socket = rustix::process::pidfd_getfd(own, number, flags).ok()?;
    match sockopt::socket_type(&socket).ok()? {
        SocketType::STREAM => Some(Protocol::Tcp),
        SocketType::DGRAM => Some(Protocol::Udp),
        _ => None,
    }
}

/// Returns the protocol and the address of a socket, if clients can reach it.
fn inspect(socket: &OwnedFd) -> Result<(Protocol, SocketAddr), String> {
    let fd = socket.as_fd();
    let failed = |error: Errno| match error {
        Errno::NOTSOCK => "is not a socket".to_owned(),
        error => format!("cannot be looked at: {}", io::Error::from(error)),
    };
    match sockopt::socket_domain(fd).map_err(failed)? {
        AddressFamily::INET | AddressFamily::INET6 => {}
        AddressFamily::UNIX => {
            return Err(
                "is a Unix socket, which is no port: PROGRAM can have it as it is, without \
                        -p"
                .into(),
            );
        }
        _ => return Err("is a socket of neither IPv4 nor IPv6".into()),
    }
    let protocol = sockopt::socket_protocol(fd).map_err(failed)?;
    let kind = sockopt::socket_type(fd).map_err(failed)?;
    let is_connected = getpeername(fd).is_ok();
    let protocol = match kind {
        SocketType::STREAM if matches!(protocol, Some(ipproto::TCP | ipproto::MPTCP)) => {
            if is_connected {
                return Err("is a connection (as with Accept=yes of systemd.socket), not a \
                            listener: PROGRAM can have it as it is, without -p"
                    .into());
            }
            if !sockopt::socket_acceptconn(fd).map_err(failed)? {
                return Err("is a TCP socket that does not listen".into());
            }
            Protocol::Tcp
        }
        SocketType::DGRAM if protocol == Some(ipproto::UDP) => {
            if is_connected {
                return Err("is a UDP socket with a peer".into());
            }
            Protocol::Udp
        }
        _ => return Err("is a socket of neither TCP nor UDP".into()),
    };
    let host = getsockname(fd).map_err(failed)?;
    let host = SocketAddr::try_from(host).map_err(failed)?;
    if host.port() == 0 {
        return Err("is a socket without a port".into());
    }
    Ok((protocol, host))
}

fn split(names: &OsStr) -> Vec<OsString> {
    let parts = names.as_bytes().split(|byte| *byte == b':');
    parts.map(|part| OsString::from_vec(part.to_vec())).collect()
}

fn join(names: &[OsString]) -> OsString {
    names.join(OsStr::new(":"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sockets_that_were_handed_over() {
        let passed =
            |which, port, protocol| Ok(PublishArg::Passed(PassedArg { which, port, protocol }));
        let name = |name: &str| Which::Name(name.into());
        assert_eq!("fd:3:80".parse(), passed(Which::Number(3), 80, None));
        assert_eq!("fd:web:80/tcp".parse(), passed(name("web"), 80, Some(Protocol::Tcp)));
        assert_eq!("fd:a.socket:53/udp".parse(), passed(name("a.socket"), 53, Some(Protocol::Udp)));
        assert!(matches!("8080:80".parse(), Ok(PublishArg::Bind(_))));
        let bad = [
            ("fd:3", "fd:NUMBER:PORT"),
            ("fd::80", "fd:NUMBER:PORT"),
            ("fd:0:80", "descriptor 0 is PROGRAM's"),
            ("fd:-1:80", "descriptor -1 is PROGRAM's"),
            ("fd:3:0", "\"0\" is not a valid port"),
            ("fd:3:80:80", "\"80:80\" is not a valid port"),
            ("fd:3:80/sctp", "\"sctp\" is not a protocol"),
        ];
        for (text, wanted) in bad {
            let error = text.parse::<PublishArg>().expect_err(text);
            assert!(error.contains(wanted), "{text}: {error}");
        }
    }

    #[test]
    fn names_go_with_their_sockets() {
        let all = Activation::decode(OsStr::new("3:web:dns:web")).unwrap();
        assert_eq!((all.numbered("web"), all.numbered("dns")), (vec![3, 5], vec![4]));
        assert_eq!(Activation::decode(&all.encode()), Some(all.clone()));
        let variables = all.environment();
        assert!(variables.contains(&("LISTEN_FDS", Some("3".into()))));
        assert!(variables.contains(&("LISTEN_FDNAMES", Some("web:dns:web".into()))));
        let none = Activation { count: 0, names: Some(Vec::new()) };
        assert!(none.environment().iter().all(|(_, value)| value.is_none()));
        assert_eq!(none.process_id(), None);
        assert_eq!(Activation::decode(OsStr::new("x")), None);
    }
}
