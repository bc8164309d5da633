//! Addresses and ports that runs have on an interface, so that two runs do not share any.
//!
//! The kernel refuses a second socket at a port, but gives frames to any number of packet sockets.
//! So each run binds Unix sockets whose abstract names list its addresses and ports:
//!
//! ```text
//!   towpath-claim/INDEX/INODE/PROCESS/10.1.0.9,tcp:80-90
//! ```
//!
//! Abstract names belong to a network namespace, as interfaces do, and all of its users see them in
//! /proc/net/unix. The names disappear with the process, however that ends. INODE is that of the
//! run's packet socket on interface INDEX, which /proc/net/packet has to list with the user who
//! bound the name. Otherwise a user without CAP_NET_RAW could reserve any port.

use std::collections::BTreeMap;
use std::fmt;
use std::net::IpAddr;
use std::os::fd::BorrowedFd;

use rustix::net::{AddressFamily, SocketAddrUnix, SocketFlags, SocketType};
use towpath_bpf::{PortRange, Transport};
use towpath_shm::Fd;

use crate::plan_error::PlanError;
use crate::turns::Turn;
use crate::unix_owner::unix_owner;

/// The lock that is held from the look at other claims to the own one.
const LOCK: &str = "towpath-claims";
const PREFIX: &str = "towpath-claim/";
/// Longest abstract name in bytes: `sun_path` without the NUL in front.
const NAME_MAX: usize = 107;

/// Addresses of a stack on an interface, and its ports of them.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
struct Claimed {
    addresses: Vec<IpAddr>,
    /// Empty: all ports.
    ports: Vec<PortRange>,
}

/// The claim of a run that is about to open an interface. No other run can claim anything before
/// this is dropped.
#[derive(Debug)]
pub struct Claims {
    own: Claimed,
    index: u32,
    _turn: Turn,
}

impl Claims {
    /// Waits for other runs that are about to claim something. Then refuses `addresses` and `ports`
    /// of `interface` of which another run has a part. No ports: all of the addresses.
    ///
    /// # Errors
    /// [`PlanError::AddressClaimed`], [`PlanError::PortsClaimed`], or the system has no sockets
    /// left.
    pub fn begin(
        interface: &str,
        addresses: Vec<IpAddr>,
        ports: Vec<PortRange>,
    ) -> Result<Self, PlanError> {
        let system = |source| PlanError::System { step: "claim an address", source };
        let turn = Turn::wait(LOCK).map_err(system)?;
        let flags = SocketFlags::CLOEXEC;
        let socket = rustix::net::socket_with(AddressFamily::UNIX, SocketType::DGRAM, flags, None);
        let socket = socket.map_err(|errno| system(errno.into()))?;
        // An unknown interface has no claims; the call that opens it reports the error.
        let index = rustix::net::netdevice::name_to_index(socket, interface).unwrap_or(0);
        let own = Claimed { addresses, ports };
        // Names of other users' sockets may contain any bytes.
        let read =
            |path| String::from_utf8_lossy(&std::fs::read(path).unwrap_or_default()).into_owned();
        let (names, sockets) = (read("/proc/net/unix"), read("/proc/net/packet"));
        for (process, claimed) in claims_on(index, &names, &sockets, unix_owner) {
            let Some((address, ports)) = own.conflict(&claimed) else { continue };
            let interface = interface.to_owned();
            return Err(match ports {
                Some(ranges) => {
                    let [wanted, ports] = ranges.map(|range| PortWords(range).to_string());
                    PlanError::PortsClaimed { wanted, ports, address, interface, process }
                }
                None => PlanError::AddressClaimed { address, interface, process },
            });
        }
        Ok(Self { own, index, _turn: turn })
    }

    /// Claims the addresses and ports for the stack with this packet socket. The claim ends when
    /// the descriptors are closed.
    ///
    /// # Errors
    /// As of socket(2) and bind(2).
    pub fn hold(self, socket: BorrowedFd<'_>) -> Result<Vec<Fd>, PlanError> {
        let held = rustix::fs::fstat(socket).and_then(|stat| {
            let names = self.own.names(self.index, stat.st_ino, std::process::id());
            names.iter().filter_map(|name| bound(name).transpose()).collect()
        });
        held.map_err(|errno| PlanError::System { step: "claim an address", source: errno.into() })
    }
}

/// A socket with an abstract name, unless another process has the name, which then claims the same.
/// Connections to the socket are refused, since it does not listen.
fn bound(name: &str) -> rustix::io::Result<Option<Fd>> {
    let flags = SocketFlags::CLOEXEC;
    let socket = rustix::net::socket_with(AddressFamily::UNIX, SocketType::STREAM, flags, None)?;
    match rustix::net::bind(&socket, &SocketAddrUnix::new_abstract_name(name.as_bytes())?) {
        Ok(()) => Ok(Some(socket.into())),
        Err(rustix::io::Errno::ADDRINUSE) => Ok(None),
        Err(error) => Err(error),
    }
}

/// Processes and their claims on interface `index`, from the text of /proc/net/unix and
/// /proc/net/packet. `owner` tells the user of a Unix socket by its inode, where that is known.
fn claims_on(
    index: u32,
    names: &str,
    sockets: &str,
    owner: impl Fn(u32) -> Option<u32>,
) -> Vec<(u32, Claimed)> {
    let mut all = BTreeMap::<(u64, u32), Claimed>::new();
    // Num RefCount Protocol Flags Type St Inode Path
    let names = names.lines().filter_map(|line| {
        let mut fields = line.split_whitespace().skip(6);
        let socket = fields.next()?.parse::<u32>().ok()?;
        Some((socket, fields.next()?.strip_prefix('@')?.strip_prefix(PREFIX)?))
    });
    for (socket, name) in names {
        let fields: Vec<_> = name.splitn(4, '/').collect();
        let [on, inode, process, words] = fields[..] else { continue };
        let (Ok(on), Ok(inode), Ok(process)) = (on.parse::<u32>(), inode.parse(), process.parse())
        else {
            continue;
        };
        let Some(user) = user_of_packet_socket(sockets, index, inode) else { continue };
        if index == on && owner(socket).is_none_or(|owner| owner == user) {
            all.entry((inode, process)).or_default().read(words);
        }
    }
    all.into_iter().map(|((_, process), claimed)| (process, claimed)).collect()
}

/// User of the packet socket with this inode, if it is bound to interface `index`.
fn user_of_packet_socket(sockets: &str, index: u32, inode: u64) -> Option<u32> {
    sockets.lines().skip(1).find_map(|line| {
        // sk RefCnt Type Proto Iface R Rmem User Inode
        let fields: Vec<_> = line.split_whitespace().collect();
        let [_, _, _, _, on, _, _, user, number] = fields[..] else { return None };
        let is_it = on.parse::<u32>() == Ok(index) && number.parse::<u64>() == Ok(inode);
        user.parse().ok().filter(|_| is_it)
    })
}

impl Claimed {
    /// An address that both have, and the ranges of both that overlap, unless one has all ports.
    fn conflict(&self, other: &Self) -> Option<(IpAddr, Option<[PortRange; 2]>)> {
        let address = *self.addresses.iter().find(|address| other.addresses.contains(address))?;
        if self.ports.is_empty() || other.ports.is_empty() {
            return Some((address, None));
        }
        let overlap = |own: &&PortRange, its: &&PortRange| {
            own.transport == its.transport && own.first <= its.last && its.first <= own.last
        };
        let ranges = self.ports.iter().find_map(|own| {
            other.ports.iter().find(|its| overlap(&own, its)).map(|its| [*own, *its])
        });
        ranges.map(|ranges| (address, Some(ranges)))
    }

    /// Abstract names that list the claim: as many as their length takes.
    fn names(&self, index: u32, inode: u64, process: u32) -> Vec<String> {
        let start = format!("{PREFIX}{index}/{inode}/{process}/");
        let ports = self.ports.iter().map(|range| PortWords(*range).to_string());
        let mut names = vec![start.clone()];
        for word in self.addresses.iter().map(IpAddr::to_string).chain(ports) {
            let last = names.last_mut().expect("there is a first name");
            match last.len() == start.len() {
                true => last.push_str(&word),
                false if last.len() + 1 + word.len() <= NAME_MAX => {
                    last.push(',');
                    last.push_str(&word);
                }
                false => names.push(format!("{start}{word}")),
            }
        }
        names
    }

    /// Adds the words of a name. Words of a later version are left out.
    fn read(&mut self, words: &str) {
        for word in words.split(',') {
            match (word.parse(), PortWords::parse(word)) {
                (Ok(address), _) => self.addresses.push(address),
                (_, Some(range)) => self.ports.push(range),
                _ => {}
            }
        }
    }
}

/// A range as `--ports` takes it.
#[derive(Debug, Clone, Copy)]
pub(crate) struct PortWords(pub PortRange);

impl fmt::Display for PortWords {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let PortRange { transport, first, last } = self.0;
        let transport = match transport {
            Transport::Tcp => "tcp",
            Transport::Udp => "udp",
        };
        match first == last {
            true => write!(f, "{transport}:{first}"),
            false => write!(f, "{transport}:{first}-{last}"),
        }
    }
}

impl PortWords {
    fn parse(text: &str) -> Option<PortRange> {
        let (transport, ports) = text.split_once(':')?;
        let transport = match transport {
            "tcp" => Transport::Tcp,
            "udp" => Transport::Udp,
            _ => return None,
        };
        let (first, last) = ports.split_once('-').unwrap_or((ports, ports));
        Some(PortRange { transport, first: first.parse().ok()?, last: last.parse().ok()? })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn claimed(words: &str) -> Claimed {
        let mut claimed = Claimed::default();
        claimed.read(words);
        claimed
    }

    #[test]
    fn claims_conflict_by_address_and_port() {
        let conflict = |a: &str, b: &str| {
            let (a, b) = (claimed(a), claimed(b));
            assert_eq!(a.conflict(&b).is_some(), b.conflict(&a).is_some());
            a.conflict(&b).is_some()
        };
        assert!(conflict("10.1.0.5", "10.1.0.5") && conflict("10.1.0.4,fd00::5", "fd00::5"));
        assert!(!conflict("10.1.0.5", "10.1.0.6"));
        assert!(conflict("10.1.0.9,tcp:80-90", "10.1.0.9,udp:1,tcp:90"));
        assert!(!conflict("10.1.0.9,tcp:80-90", "10.1.0.9,tcp:91-99"));
        assert!(!conflict("10.1.0.9,tcp:80", "10.1.0.9,udp:80"));
        assert!(!conflict("10.1.0.9,tcp:80", "10.1.0.8,tcp:80"));
        // An address alone is one of which the stack has all ports.
        assert!(conflict("10.1.0.9,tcp:80", "10.1.0.9"));
    }

    #[test]
    fn names_are_read_back_whatever_their_number() {
        let v6 = |n: u16| IpAddr::from([0x2001, 0xdb8, 0xffff, 0xffff, 0xffff, 0xffff, 0xffff, n]);
        let range = |first| PortRange { transport: Transport::Tcp, first, last: first + 9 };
        let many = Claimed {
            addresses: (0x1000..0x1010).map(v6).collect(),
            ports: (10_000..10_040).map(range).collect(),
        };
        let names = many.names(u32::MAX, u64::from(u32::MAX), 4_194_304);
        assert!(names.iter().all(|name| name.len() <= NAME_MAX));
        let line = |name: &String| format!("0: 00000002 00000000 00000000 0001 01 77 @{name}\n");
        let text: String = names.iter().map(line).collect();
        let socket = format!("sk RefCnt\n0 3 3 0003 {0} 1 0 0 {0}\n", u32::MAX);
        assert_eq!(claims_on(u32::MAX, &text, &socket, |_| Some(0)), [(4_194_304, many)]);
    }

    #[test]
    fn a_claim_needs_a_packet_socket_on_the_interface() {
        let names = "Num RefCount Protocol Flags Type St Inode Path\n\
                     0: 00000002 00000000 00010000 0001 01 77 /run/some.sock\n\
                     0: 00000002 00000000 00010000 0001 01 78\n\
                     0: 00000002 00000000 00000000 0001 01 79 @towpath-claim/2/900/41/10.1.0.5\n\
                     0: 00000002 00000000 00000000 0001 01 79 @towpath-claim/2/x/41/10.1.0.5\n\
                     0: 00000002 00000000 00000000 0001 01 79 @towpath-claim/2/900/41\n";
        let header = "sk RefCnt Type Proto Iface R Rmem User Inode\n";
        let owned = |socket: &str, owner: Option<u32>| {
            claims_on(2, names, &format!("{header}{socket}"), |_| owner).len()
        };
        let with = |socket: &str| owned(socket, Some(0));
        assert_eq!(with("0 3 3 0003 2 1 0 0 900\n"), 1);
        assert_eq!(with("0 3 3 0003 3 1 0 0 900\n0 3 3 0003 2 1 0 0 901\n"), 0);
        assert_eq!(with(""), 0);
        let of_root = "0 3 3 0003 2 1 0 0 900\n";
        assert_eq!([None, Some(65_534)].map(|owner| owned(of_root, owner)), [1, 0]);
    }
}
