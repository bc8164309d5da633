//! Claims of `towpath run` processes (runs) on addresses and ports of an interface. Claims prevent
//! two runs from using the same address and port.
//!
//! The kernel refuses a second socket on a port, but passes frames to any number of packet sockets.
//! Therefore, each run binds Unix sockets whose abstract names list its addresses and ports:
//!
//! ```text
//!   towpath-claim/INDEX/INODE/PROCESS/10.1.0.9,tcp:80-90
//! ```
//!
//! Abstract names belong to a network namespace, as interfaces do, and each of its users can list
//! them by sock_diag(7). The kernel removes a name when the process ends in any way. INODE is the
//! inode of the run's packet socket on interface INDEX. A claim is valid only if /proc/net/packet
//! lists that socket with the user who bound the name. Otherwise, a user without CAP_NET_RAW could
//! reserve any port.
//!
//! A run holds a lock while it checks the claims, opens its device and binds its own names. A
//! stopped process must not block other runs forever, so a run continues without the lock after
//! some time. Therefore each run checks the claims again after it has bound its own names. If two
//! runs start concurrently, at least one of them sees the names of the other. If both see a
//! conflict, the run whose packet socket has the higher inode gives up.

use std::collections::BTreeMap;
use std::fmt;
use std::net::{IpAddr, Ipv4Addr};
use std::os::fd::BorrowedFd;
use std::time::{Duration, Instant};

use rustix::io::Errno;
use rustix::net::{AddressFamily, SocketAddrUnix, SocketFlags, SocketType};
use towpath_bpf::{PortRange, Transport};
use towpath_shm::Fd;

use crate::plan_error::{PlanError, system};
use crate::turns::{NamespaceLock, PATIENCE};
use crate::unix_sockets::{AbstractSocket, abstract_sockets};

/// Abstract name of the Unix socket that acts as a lock. A run holds the lock from its check of
/// existing claims until it has bound its own names.
const LOCK: &str = "towpath-claims";
const PREFIX: &str = "towpath-claim/";
/// Address that stands for the DHCP client of an interface in a claim.
pub(crate) const DHCP_CLAIM: IpAddr = IpAddr::V4(Ipv4Addr::UNSPECIFIED);
/// Maximum length of an abstract name in bytes: `sun_path` without the NUL in front.
const NAME_MAX: usize = 107;
/// Number of bytes reserved at the end of a name for a suffix that makes the name unique, such as
/// `,#7`.
const SPARE: usize = 3;
/// Number of names that are tried for one part of a claim. Several are needed because any user may
/// have bound some of these names.
const TRIES: u8 = 8;

/// Addresses that a stack claims on an interface, and the ports that it claims on these addresses.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
struct Claimed {
    addresses: Vec<IpAddr>,
    /// Claimed ports of the addresses. Empty means all ports.
    ports: Vec<PortRange>,
}

/// Lock that a `towpath run` process (a run) holds from its check of existing claims until it has
/// opened its interface.
#[derive(Debug)]
pub struct Claims {
    own: Claimed,
    interface: String,
    index: u32,
    _lock: NamespaceLock,
}

/// A claim of another run that overlaps with our own.
#[derive(Debug)]
struct Rival {
    /// Inode of the other run's packet socket.
    inode: u64,
    /// Error that tells the user about the conflict.
    error: PlanError,
}

impl Claims {
    /// Waits for the lock, which another run may hold. Then checks whether another run has claimed
    /// any of `addresses` and `ports` on `interface`. Empty `ports` means all ports.
    ///
    /// # Errors
    /// Returns [`PlanError::AddressClaimed`], [`PlanError::DhcpClaimed`] or
    /// [`PlanError::PortsClaimed`], or fails if no socket can be created.
    pub fn begin(
        interface: &str,
        addresses: Vec<IpAddr>,
        ports: Vec<PortRange>,
    ) -> Result<Self, PlanError> {
        let lock = NamespaceLock::wait(LOCK).map_err(system(STEP))?;
        let flags = SocketFlags::CLOEXEC;
        let socket = rustix::net::socket_with(AddressFamily::UNIX, SocketType::DGRAM, flags, None);
        let socket = socket.map_err(|errno| system(STEP)(errno.into()))?;
        // An unknown interface (index 0) has no claims. The call that opens it later reports the
        // error.
        let index = rustix::net::netdevice::name_to_index(socket, interface).unwrap_or(0);
        let own = Claimed { addresses, ports };
        let claims = Self { own, interface: interface.to_owned(), index, _lock: lock };
        match claims.rival(None) {
            Some(rival) => Err(rival.error),
            None => Ok(claims),
        }
    }

    /// Claims the addresses and ports for the stack with this packet socket. The claim ends when
    /// the returned descriptors are closed.
    ///
    /// # Errors
    /// Returns the errors of [`Self::begin`] if another run has made an overlapping claim
    /// meanwhile, and errors of socket(2) and bind(2).
    pub fn hold(self, socket: BorrowedFd<'_>) -> Result<Vec<Fd>, PlanError> {
        let failed = |errno: Errno| system(STEP)(errno.into());
        let inode = rustix::fs::fstat(socket).map_err(failed)?.st_ino;
        let names = self.own.names(self.index, inode, std::process::id());
        let held = names.iter().map(|name| bound(name)).collect::<rustix::io::Result<_>>();
        let held = held.map_err(failed)?;
        settle(inode, PATIENCE, || self.rival(Some(inode)))?;
        Ok(held)
    }

    /// Returns the claim of another run that overlaps with ours. If there are several, returns the
    /// one whose packet socket has the lowest inode. `own` is the inode of our packet socket.
    fn rival(&self, own: Option<u64>) -> Option<Rival> {
        let packets = std::fs::read_to_string("/proc/net/packet").unwrap_or_default();
        let claims = claims_on(self.index, &abstract_sockets(), &packets);
        claims.into_iter().filter(|(inode, ..)| Some(*inode) != own).find_map(
            |(inode, process, claimed)| {
                let (address, ports) = self.own.conflict(&claimed)?;
                let interface = self.interface.clone();
                let error = match ports {
                    Some(ranges) => {
                        let [wanted, ports] = ranges.map(|range| PortWords(range).to_string());
                        PlanError::PortsClaimed { wanted, ports, address, interface, process }
                    }
                    None if address == DHCP_CLAIM => PlanError::DhcpClaimed { interface, process },
                    None => PlanError::AddressClaimed { address, interface, process },
                };
                Some(Rival { inode, error })
            },
        )
    }
}

/// Name of this step in error messages.
const STEP: &str = "claim an address";

/// Waits until no claim of another run overlaps with ours. `own` is the inode of our packet socket.
///
/// # Errors
/// Fails if the inode of the other run's packet socket is lower than ours. Also fails if that run
/// does not give up within `patience`, because then it is running already.
fn settle(
    own: u64,
    patience: Duration,
    mut rival: impl FnMut() -> Option<Rival>,
) -> Result<(), PlanError> {
    let end = Instant::now() + patience;
    while let Some(Rival { inode, error }) = rival() {
        if inode < own || Instant::now() >= end {
            return Err(error);
        }
        std::thread::sleep(Duration::from_millis(5));
    }
    Ok(())
}

/// Binds a socket to an abstract name. If the name is in use, appends a suffix that readers of the
/// claim ignore. The socket does not listen, so connections to it are refused.
fn bound(name: &str) -> rustix::io::Result<Fd> {
    let flags = SocketFlags::CLOEXEC;
    let socket = rustix::net::socket_with(AddressFamily::UNIX, SocketType::STREAM, flags, None)?;
    let mut tried = Err(Errno::ADDRINUSE);
    for number in 0..TRIES {
        let name = if number == 0 { name.to_owned() } else { format!("{name},#{number}") };
        tried = rustix::net::bind(&socket, &SocketAddrUnix::new_abstract_name(name.as_bytes())?);
        if tried != Err(Errno::ADDRINUSE) {
            break;
        }
    }
    tried.map(|()| socket.into())
}

/// Returns the claims on the interface `index`. Each has the inode of its packet socket and its
/// process id, by which the list is sorted. `packets` is the content of /proc/net/packet.
fn claims_on(index: u32, sockets: &[AbstractSocket], packets: &str) -> Vec<(u64, u32, Claimed)> {
    let mut all = BTreeMap::<(u64, u32), Claimed>::new();
    for AbstractSocket { name, owner, .. } in sockets {
        // Skip names that are not UTF-8, because other users may bind names of any bytes.
        let name = std::str::from_utf8(name).ok().and_then(|name| name.strip_prefix(PREFIX));
        let fields: Vec<_> = name.unwrap_or_default().splitn(4, '/').collect();
        let [on, inode, process, words] = fields[..] else { continue };
        let (Ok(on), Ok(inode), Ok(process)) = (on.parse::<u32>(), inode.parse(), process.parse())
        else {
            continue;
        };
        let Some(user) = user_of_packet_socket(packets, index, inode) else { continue };
        if index == on && owner.is_none_or(|owner| owner == user) {
            all.entry((inode, process)).or_default().read(words);
        }
    }
    all.into_iter().map(|((inode, process), claimed)| (inode, process, claimed)).collect()
}

/// Returns the user of the packet socket with this inode, if it is bound to interface `index`.
fn user_of_packet_socket(sockets: &str, index: u32, inode: u64) -> Option<u32> {
    sockets.lines().skip(1).find_map(|line| {
        // Fields of a line: sk RefCnt Type Proto Iface R Rmem User Inode.
        let fields: Vec<_> = line.split_whitespace().collect();
        let [_, _, _, _, on, _, _, user, number] = fields[..] else { return None };
        let is_it = on.parse::<u32>() == Ok(index) && number.parse::<u64>() == Ok(inode);
        user.parse().ok().filter(|_| is_it)
    })
}

impl Claimed {
    /// Returns an address that both claims contain, with a pair of overlapping port ranges. The
    /// pair is `None` if one of the claims covers all ports.
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

    /// Returns the abstract names that represent the claim. A long claim needs several names.
    fn names(&self, index: u32, inode: u64, process: u32) -> Vec<String> {
        let start = format!("{PREFIX}{index}/{inode}/{process}/");
        let ports = self.ports.iter().map(|range| PortWords(*range).to_string());
        let mut names = vec![start.clone()];
        for word in self.addresses.iter().map(IpAddr::to_string).chain(ports) {
            let last = names.last_mut().expect("there is a first name");
            match last.len() == start.len() {
                true => last.push_str(&word),
                false if last.len() + 1 + word.len() <= NAME_MAX - SPARE => {
                    last.push(',');
                    last.push_str(&word);
                }
                false => names.push(format!("{start}{word}")),
            }
        }
        names
    }

    /// Adds the addresses and ports that an abstract name lists. Ignores unknown words, which later
    /// versions may write.
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

/// Displays a port range in the format of `--ports`.
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

    fn socket(name: &str, owner: Option<u32>) -> AbstractSocket {
        AbstractSocket { kind: 1, name: name.as_bytes().to_vec(), owner }
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
        // An address without ports claims all of its ports.
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
        assert!(names.iter().all(|name| name.len() + SPARE <= NAME_MAX));
        let sockets: Vec<_> = names.iter().map(|name| socket(name, Some(0))).collect();
        let packets = format!("sk RefCnt\n0 3 3 0003 {0} 1 0 0 {0}\n", u32::MAX);
        let read = claims_on(u32::MAX, &sockets, &packets);
        assert_eq!(read, [(u64::from(u32::MAX), 4_194_304, many)]);
    }

    #[test]
    fn a_claim_needs_a_packet_socket_on_the_interface() {
        let names = [
            "other",
            "towpath-claim/2/900/41/10.1.0.5",
            "towpath-claim/2/x/41/10.1.0.5",
            "towpath-claim/2/900/41",
        ];
        let header = "sk RefCnt Type Proto Iface R Rmem User Inode\n";
        let owned = |packets: &str, owner: Option<u32>| {
            let sockets = names.map(|name| socket(name, owner));
            claims_on(2, &sockets, &format!("{header}{packets}")).len()
        };
        let with = |packets: &str| owned(packets, Some(0));
        assert_eq!(with("0 3 3 0003 2 1 0 0 900\n"), 1);
        assert_eq!(with("0 3 3 0003 3 1 0 0 900\n0 3 3 0003 2 1 0 0 901\n"), 0);
        assert_eq!(with(""), 0);
        let of_root = "0 3 3 0003 2 1 0 0 900\n";
        assert_eq!([None, Some(65_534)].map(|owner| owned(of_root, owner)), [1, 0]);
    }

    #[test]
    fn a_name_with_a_line_of_proc_claims_nothing() {
        let packets = "sk\n0 3 3 0003 2 1 0 0 900\n";
        let line = "0: 00000002 00000000 00010000 0001 01 79 @towpath-claim/2/900/41/10.1.0.5";
        let forged = [format!("x\n{line}"), format!("towpath-claim/2/900/41/x\n{line}")];
        for name in forged {
            let claims = claims_on(2, &[socket(&name, Some(0))], packets);
            assert!(claims.iter().all(|(_, _, claimed)| claimed.addresses.is_empty()), "{name}");
        }
    }

    #[test]
    fn a_name_that_another_user_has_bound_is_not_the_only_one() {
        let name = format!("{PREFIX}0/0/{}/10.1.0.5", std::process::id());
        let claims = [bound(&name).expect("free"), bound(&name).expect("another name")];
        let sockets = abstract_sockets();
        let prefix = name.as_bytes();
        let count = sockets.iter().filter(|socket| socket.name.starts_with(prefix)).count();
        assert_eq!(count, claims.len());
        let packets = "sk\n0 3 3 0003 0 1 0 0 0\n";
        let of_root: Vec<_> = sockets
            .into_iter()
            .filter(|socket| socket.name.starts_with(prefix))
            .map(|socket| AbstractSocket { owner: Some(0), ..socket })
            .collect();
        let read = claims_on(0, &of_root, packets);
        let addresses = &read.first().expect("a claim").2.addresses;
        assert!(addresses.iter().all(|address| *address == IpAddr::from([10, 1, 0, 5])));
    }

    #[test]
    fn of_two_claims_at_once_the_one_with_the_lower_inode_stays() {
        let rival = |inode| {
            let error = PlanError::NoNetwork;
            Some(Rival { inode, error })
        };
        let patience = Duration::from_millis(20);
        settle(7, patience, || None).expect("no rival");
        settle(7, Duration::from_secs(60), || rival(6)).expect_err("the rival stays");
        let mut looks = 0;
        let gives_up = || {
            looks += 1;
            rival(8).filter(|_| looks < 3)
        };
        settle(7, Duration::from_secs(60), gives_up).expect("the rival gives up");
        assert_eq!(looks, 3);
        settle(7, patience, || rival(8)).expect_err("the rival was there before");
    }
}
