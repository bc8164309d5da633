//! Configures the kernel's interface of a TAP or TUN device by rtnetlink(7): sets it up, with an
//! MTU and IP addresses.
//!
//! Builds the netlink messages without a library, because only three messages with four attributes
//! are needed.

use std::io;
use std::net::{IpAddr, UdpSocket};
use std::os::fd::OwnedFd;

use rustix::net::netlink::SocketAddrNetlink;
use rustix::net::{AddressFamily, RecvFlags, SendFlags, SocketFlags, SocketType};
use towpath_interface::Rights;

/// Linux capability required to change devices and addresses.
pub(crate) const NET_ADMIN: Rights = Rights(&["NET_ADMIN"]);

/// Error returned when the kernel's interface cannot be configured. The message tells the user what
/// to do.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum HostError {
    /// The user may use the device, but only an administrator may configure its interface.
    #[error(
        "setting up {name} needs {NET_ADMIN}: {}",
        NET_ADMIN.advice_or(&format!("run with sudo, or have it done once with `{commands}`"))
    )]
    NotPermitted {
        /// Name of the network interface.
        name: String,
        /// Commands that an administrator should run to set up the interface.
        commands: String,
    },
    /// There is no interface with this name.
    #[error("there is no interface {name}")]
    NoInterface {
        /// Name of the requested interface.
        name: String,
    },
    /// A different route to the same network exists.
    #[error(
        "cannot add a route to {ip}/{len} through {name}: there is one already; \
         `ip route show {ip}/{len}` shows it"
    )]
    RouteTaken {
        /// Name of the interface to which the route was to be added.
        name: String,
        /// Address of the route's network.
        ip: IpAddr,
        /// Prefix length of the route's network.
        len: u8,
    },
    /// A request to the kernel failed.
    #[error("cannot {step} on {name}")]
    Io {
        /// Name of the network interface.
        name: String,
        /// Description of what failed.
        step: String,
        /// Error returned by the kernel.
        source: io::Error,
    },
}

/// Maximum number of frames queued in the device in each direction; the kernel's default is 1000. A
/// listener's backlog may be as long, and all clients of a server may connect at once. A dropped
/// SYN would delay a client by its retransmission timeout.
pub const QUEUE_LEN: u32 = 4096;

/// Brings interface `name` up with this MTU in bytes, and assigns IP addresses with prefix lengths
/// to it.
///
/// Settings that are already in effect are not changed. Therefore a device that an administrator
/// has configured needs no privileges.
pub fn set_up_host(name: &str, mtu: u32, addresses: &[(IpAddr, u8)]) -> Result<(), HostError> {
    let io = |step: &str| {
        let step = step.to_owned();
        move |source| HostError::Io { name: name.into(), step, source }
    };
    let mut netlink = Netlink::open().map_err(io("open a netlink socket"))?;
    let link = netlink.link(name).map_err(|source| match source.raw_os_error() {
        Some(libc::ENODEV) => HostError::NoInterface { name: name.into() },
        _ => io("look at the link")(source),
    })?;

    let forbidden = |error: &io::Error| error.raw_os_error() == Some(libc::EPERM);
    let refused =
        || HostError::NotPermitted { name: name.into(), commands: commands(name, mtu, addresses) };
    let usable = link.mtu == mtu && link.up;
    if !usable || link.queue_len < QUEUE_LEN {
        match netlink.set_link(link.index, mtu, link.queue_len.max(QUEUE_LEN)) {
            // On a device that an administrator configured, a shorter queue is acceptable.
            Err(error) if forbidden(&error) && usable => {}
            Err(error) if forbidden(&error) => return Err(refused()),
            other => other.map_err(io("set the MTU and bring the link up"))?,
        }
    }
    for (ip, prefix_len) in addresses {
        match netlink.add_address(link.index, *ip, *prefix_len) {
            Err(error) if error.raw_os_error() == Some(libc::EEXIST) => {}
            Err(error) if forbidden(&error) && is_local(*ip) => {}
            Err(error) if forbidden(&error) => return Err(refused()),
            other => other.map_err(io(&format!("add {ip}/{prefix_len}")))?,
        }
    }
    Ok(())
}

/// Returns the number of open queues of a TUN/TAP device; `None` before Linux 4.20, which does not
/// report the number.
pub(crate) fn open_queues(name: &str) -> io::Result<Option<u32>> {
    Netlink::open()?.link(name).map(|link| link.queues)
}

/// Returns whether this address is assigned to the host. Checks by binding a socket to it.
fn is_local(ip: IpAddr) -> bool {
    UdpSocket::bind((ip, 0)).is_ok()
}

fn commands(name: &str, mtu: u32, addresses: &[(IpAddr, u8)]) -> String {
    let mut out = format!("sudo ip link set {name} mtu {mtu} txqueuelen {QUEUE_LEN} up");
    for (ip, prefix_len) in addresses {
        out += &format!(" && sudo ip addr add {ip}/{prefix_len} dev {name}");
    }
    out
}

pub(crate) struct Netlink {
    socket: OwnedFd,
    sequence: u32,
}

pub(crate) struct Link {
    pub(crate) index: u32,
    up: bool,
    mtu: u32,
    queue_len: u32,
    queues: Option<u32>,
}

impl Netlink {
    pub(crate) fn open() -> io::Result<Self> {
        let socket = rustix::net::socket_with(
            AddressFamily::NETLINK,
            SocketType::RAW,
            SocketFlags::CLOEXEC,
            None, // NETLINK_ROUTE is protocol 0.
        )?;
        Ok(Self { socket, sequence: 0 })
    }

    pub(crate) fn link(&mut self, name: &str) -> io::Result<Link> {
        let mut message = Message::new(libc::RTM_GETLINK, 0);
        message.put(&ifinfomsg(0, 0, 0));
        message.attribute(libc::IFLA_IFNAME, &[name.as_bytes(), &[0]].concat());
        let reply = self.exchange(message)?;
        parse_link(&reply).ok_or_else(|| io::Error::from(io::ErrorKind::InvalidData))
    }

    fn set_link(&mut self, index: u32, mtu: u32, queue_len: u32) -> io::Result<()> {
        let up = libc::IFF_UP as u32;
        let mut message = Message::new(libc::RTM_NEWLINK, libc::NLM_F_ACK);
        message.put(&ifinfomsg(index, up, up));
        message.attribute(libc::IFLA_MTU, &mtu.to_ne_bytes());
        message.attribute(libc::IFLA_TXQLEN, &queue_len.to_ne_bytes());
        self.exchange(message).map(drop)
    }

    fn add_address(&mut self, index: u32, ip: IpAddr, prefix_len: u8) -> io::Result<()> {
        let flags = libc::NLM_F_ACK | libc::NLM_F_CREATE | libc::NLM_F_EXCL;
        let mut message = Message::new(libc::RTM_NEWADDR, flags);
        // Skip duplicate address detection (RFC 4862 §5.4), which takes a second. The only other
        // station on the link is this process, so no duplicate can exist.
        let (family, octets, address_flags) = match ip {
            IpAddr::V4(ip) => (libc::AF_INET as u8, ip.octets().to_vec(), 0),
            IpAddr::V6(ip) => (libc::AF_INET6 as u8, ip.octets().to_vec(), libc::IFA_F_NODAD as u8),
        };
        // Fields of `struct ifaddrmsg`: family, prefix length, flags, scope, index.
        message.put(&[family, prefix_len, address_flags, libc::RT_SCOPE_UNIVERSE]);
        message.put(&index.to_ne_bytes());
        message.attribute(libc::IFA_LOCAL, &octets);
        message.attribute(libc::IFA_ADDRESS, &octets);
        self.exchange(message).map(drop)
    }

    /// Sends a netlink request, and returns the reply.
    pub(crate) fn exchange(&mut self, message: Message) -> io::Result<Vec<u8>> {
        self.sequence += 1;
        let bytes = message.finish(self.sequence);
        let kernel = SocketAddrNetlink::new(0, 0);
        rustix::net::sendto(&self.socket, &bytes, SendFlags::empty(), &kernel)?;
        let mut reply = vec![0; 32 * 1024];
        let (_, n) = rustix::net::recv(&self.socket, &mut reply, RecvFlags::TRUNC)?;
        reply.truncate(n);
        check_reply(&reply, self.sequence)?;
        Ok(reply)
    }
}

/// Lengths of `struct nlmsghdr` and `struct ifinfomsg` in bytes.
const NLMSG_LEN: usize = 16;
const IFINFO_LEN: usize = 16;

/// Builds a `struct ifinfomsg`: family and padding, type, index, flags, mask of the flags to
/// change.
fn ifinfomsg(index: u32, flags: u32, change: u32) -> [u8; IFINFO_LEN] {
    let mut out = [0; IFINFO_LEN];
    out[4..8].copy_from_slice(&index.to_ne_bytes());
    out[8..12].copy_from_slice(&flags.to_ne_bytes());
    out[12..16].copy_from_slice(&change.to_ne_bytes());
    out
}

pub(crate) struct Message(Vec<u8>);

impl Message {
    pub(crate) fn new(kind: u16, flags: libc::c_int) -> Self {
        let mut bytes = vec![0; NLMSG_LEN];
        bytes[4..6].copy_from_slice(&kind.to_ne_bytes());
        bytes[6..8].copy_from_slice(&((libc::NLM_F_REQUEST | flags) as u16).to_ne_bytes());
        Self(bytes)
    }

    pub(crate) fn put(&mut self, bytes: &[u8]) {
        self.0.extend_from_slice(bytes);
    }

    /// Appends a netlink attribute (`struct rtattr`): length without padding, type, value.
    pub(crate) fn attribute(&mut self, kind: u16, value: &[u8]) {
        let len = 4 + value.len() as u16;
        self.put(&len.to_ne_bytes());
        self.put(&kind.to_ne_bytes());
        self.put(value);
        self.0.resize(self.0.len().next_multiple_of(4), 0);
    }

    fn finish(mut self, sequence: u32) -> Vec<u8> {
        let len = self.0.len() as u32;
        self.0[0..4].copy_from_slice(&len.to_ne_bytes());
        self.0[8..12].copy_from_slice(&sequence.to_ne_bytes());
        self.0
    }
}

fn u16_at(bytes: &[u8], at: usize) -> Option<u16> {
    Some(u16::from_ne_bytes(bytes.get(at..at + 2)?.try_into().ok()?))
}

pub(crate) fn u32_at(bytes: &[u8], at: usize) -> Option<u32> {
    Some(u32::from_ne_bytes(bytes.get(at..at + 4)?.try_into().ok()?))
}

fn check_reply(reply: &[u8], sequence: u32) -> io::Result<()> {
    let invalid = || io::Error::from(io::ErrorKind::InvalidData);
    let kind = u16_at(reply, 4).ok_or_else(invalid)?;
    if u32_at(reply, 8) != Some(sequence) {
        return Err(invalid());
    }
    if i32::from(kind) == libc::NLMSG_ERROR {
        let code = u32_at(reply, NLMSG_LEN).ok_or_else(invalid)? as i32;
        if code != 0 {
            return Err(io::Error::from_raw_os_error(-code));
        }
    }
    Ok(())
}

fn parse_link(reply: &[u8]) -> Option<Link> {
    let index = u32_at(reply, NLMSG_LEN + 4)?;
    let up = u32_at(reply, NLMSG_LEN + 8)? & libc::IFF_UP as u32 != 0;
    let (mut mtu, mut queue_len, mut queues) = (None, None, None);
    for (kind, value) in attributes(reply.get(NLMSG_LEN + IFINFO_LEN..)?) {
        match kind {
            libc::IFLA_MTU => mtu = u32_at(value, 0),
            libc::IFLA_TXQLEN => queue_len = u32_at(value, 0),
            libc::IFLA_LINKINFO => queues = parse_queues(value),
            _ => {}
        }
    }
    Some(Link { index, up, mtu: mtu?, queue_len: queue_len.unwrap_or(0), queues })
}

/// Parses the number of queues from the driver-specific attributes of a TUN/TAP interface.
fn parse_queues(link_info: &[u8]) -> Option<u32> {
    // Constants of linux/if_link.h.
    const IFLA_TUN_NUM_QUEUES: u16 = 8;
    let find = |list, wanted| attributes(list).find(|(kind, _)| *kind == wanted);
    let (_, data) = find(link_info, libc::IFLA_INFO_DATA)?;
    u32_at(find(data, IFLA_TUN_NUM_QUEUES)?.1, 0)
}

/// Iterates over types and values of a list of netlink attributes, up to the first truncated one.
pub(crate) fn attributes(mut list: &[u8]) -> impl Iterator<Item = (u16, &[u8])> {
    // Mask of an attribute's type; the upper two bits describe the encoding of the value.
    const KIND: u16 = 0x3fff;
    std::iter::from_fn(move || {
        let (len, kind) = (usize::from(u16_at(list, 0)?), u16_at(list, 2)? & KIND);
        let value = list.get(4..len)?;
        list = list.get(len.next_multiple_of(4)..).unwrap_or_default();
        Some((kind, value))
    })
}
