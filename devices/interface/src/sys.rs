//! System calls for querying interfaces (netdevice(7)) and for multicast memberships (packet(7)),
//! which need `unsafe`.

use std::io;
use std::mem::{size_of, zeroed};
use std::os::fd::{AsRawFd, BorrowedFd};

use libc::{c_int, c_short, c_void};
use towpath_shm::syscall::syscall;

/// Maximum length of an interface name in bytes, without the terminating NUL.
pub(crate) const NAME_MAX: usize = libc::IFNAMSIZ - 1;

// Constants of linux/if_packet.h, linux/sockios.h and linux/ethtool.h.
const PACKET_ADD_MEMBERSHIP: c_int = 1;
const PACKET_MR_PROMISC: u16 = 1;
const PACKET_MR_ALLMULTI: u16 = 2;
const SIOCETHTOOL: libc::c_ulong = 0x8946;
const ETHTOOL_GDRVINFO: u32 = 3;
const ETHTOOL_GCHANNELS: u32 = 0x3c;

/// The kernel's `struct packet_mreq` (linux/if_packet.h).
#[repr(C)]
struct Membership {
    index: c_int,
    kind: u16,
    address_len: u16,
    address: [u8; 8],
}

/// The kernel's `struct ethtool_drvinfo` (linux/ethtool.h).
#[repr(C)]
struct DriverInfo {
    command: u32,
    driver: [u8; 32],
    rest: [u8; 160],
}

/// The kernel's `struct ethtool_channels`: maximum numbers of receive, transmit, other and combined
/// queues, followed by the current numbers.
#[repr(C)]
struct EthtoolChannels {
    command: u32,
    maxima: [u32; 4],
    receive: u32,
    transmit: u32,
    other: u32,
    combined: u32,
}

const _: () = {
    assert!(size_of::<Membership>() == 16);
    assert!(size_of::<DriverInfo>() == 196);
    assert!(size_of::<EthtoolChannels>() == 36);
};

/// Sets the interface to promiscuous mode and enables reception of all multicast frames, while the
/// packet socket is open.
///
/// # Errors
/// Returns ENODEV if the interface was removed.
pub fn receive_all(socket: BorrowedFd<'_>, index: u32) -> io::Result<()> {
    for kind in [PACKET_MR_PROMISC, PACKET_MR_ALLMULTI] {
        let index = index as c_int;
        let membership = Membership { index, kind, address_len: 0, address: [0; 8] };
        let value: *const c_void = std::ptr::from_ref(&membership).cast();
        let len = size_of::<Membership>() as libc::socklen_t;
        let (level, option) = (libc::SOL_PACKET, PACKET_ADD_MEMBERSHIP);
        // SAFETY: setsockopt(2) reads `len` bytes of the membership, which is a local.
        check(unsafe { libc::setsockopt(socket.as_raw_fd(), level, option, value, len) })?;
    }
    Ok(())
}

/// Returns the index of the interface `name`.
pub(crate) fn index(socket: BorrowedFd<'_>, name: &str) -> io::Result<u32> {
    let request = ask(socket, libc::SIOCGIFINDEX as _, name)?;
    // SAFETY: SIOCGIFINDEX sets the union's index.
    Ok(unsafe { request.ifr_ifru.ifru_ifindex } as u32)
}

/// Returns the link type of an interface, such as ARPHRD_ETHER, and its hardware address.
pub(crate) fn hardware(socket: BorrowedFd<'_>, name: &str) -> io::Result<(u16, [u8; 6])> {
    let request = ask(socket, libc::SIOCGIFHWADDR as _, name)?;
    // SAFETY: SIOCGIFHWADDR sets the union's hardware address, whose family is the link type.
    let address = unsafe { request.ifr_ifru.ifru_hwaddr };
    let mut mac = [0; 6];
    for (to, from) in mac.iter_mut().zip(address.sa_data) {
        *to = from as u8;
    }
    Ok((address.sa_family, mac))
}

/// Returns whether the interface `name` is up.
pub(crate) fn is_up(socket: BorrowedFd<'_>, name: &str) -> io::Result<bool> {
    let request = ask(socket, libc::SIOCGIFFLAGS as _, name)?;
    // SAFETY: SIOCGIFFLAGS sets the union's flags.
    Ok(unsafe { request.ifr_ifru.ifru_flags } & libc::IFF_UP as c_short != 0)
}

/// Returns the MTU of the interface `name` in bytes.
pub(crate) fn mtu(socket: BorrowedFd<'_>, name: &str) -> io::Result<u32> {
    let request = ask(socket, libc::SIOCGIFMTU as _, name)?;
    // SAFETY: SIOCGIFMTU sets the union's MTU.
    Ok(unsafe { request.ifr_ifru.ifru_mtu } as u32)
}

/// Returns whether there is an interface with this index. Bypasses libc, because the program in
/// which this code runs may replace libc's functions by the stack's.
pub(crate) fn exists(socket: BorrowedFd<'_>, index: u32) -> bool {
    // SAFETY: `ifreq` consists of integers and unions of them, so all zeros are a valid value.
    let mut request: libc::ifreq = unsafe { zeroed() };
    request.ifr_ifru.ifru_ifindex = index as c_int;
    let at = (&raw mut request).expose_provenance();
    let args = [socket.as_raw_fd() as usize, libc::SIOCGIFNAME as usize, at, 0, 0, 0];
    // SAFETY: SIOCGIFNAME reads and writes one ifreq, which is a local.
    unsafe { syscall(libc::SYS_ioctl as usize, args) }.is_ok()
}

/// Returns the name of the interface's driver.
pub(crate) fn driver(socket: BorrowedFd<'_>, name: &str) -> io::Result<String> {
    let mut info = DriverInfo { command: ETHTOOL_GDRVINFO, driver: [0; 32], rest: [0; 160] };
    // SAFETY: ETHTOOL_GDRVINFO writes a `struct ethtool_drvinfo`.
    unsafe { ethtool(socket, name, (&raw mut info).cast()) }?;
    let name = info.driver.iter().take_while(|byte| **byte != 0).copied().collect();
    Ok(String::from_utf8(name).unwrap_or_default())
}

/// Returns the number of receive queues of the interface `name`.
pub(crate) fn queues(socket: BorrowedFd<'_>, name: &str) -> io::Result<u32> {
    // SAFETY: the structure consists of integers, so all zeros are a valid value.
    let mut channels: EthtoolChannels = unsafe { zeroed() };
    channels.command = ETHTOOL_GCHANNELS;
    // SAFETY: ETHTOOL_GCHANNELS writes a `struct ethtool_channels`.
    unsafe { ethtool(socket, name, (&raw mut channels).cast()) }?;
    Ok(channels.receive.saturating_add(channels.combined))
}

/// # Safety
/// `command` must point to the structure of an ethtool command, which starts with the number of the
/// command.
unsafe fn ethtool(socket: BorrowedFd<'_>, name: &str, command: *mut c_void) -> io::Result<()> {
    let mut request = named(name);
    request.ifr_ifru.ifru_data = command.cast();
    // SAFETY: SIOCETHTOOL reads one `ifreq`, a local variable. The caller guarantees a valid
    // command.
    check(unsafe { libc::ioctl(socket.as_raw_fd(), SIOCETHTOOL as _, &raw mut request) })
}

/// Creates an `ifreq` structure for a query about the interface `name`.
fn named(name: &str) -> libc::ifreq {
    assert!(name.len() <= NAME_MAX);
    // SAFETY: `ifreq` consists of integers and unions of them, so all zeros are a valid value.
    let mut request: libc::ifreq = unsafe { zeroed() };
    for (to, from) in request.ifr_name.iter_mut().zip(name.bytes()) {
        *to = from as libc::c_char;
    }
    request
}

fn ask(socket: BorrowedFd<'_>, question: libc::Ioctl, name: &str) -> io::Result<libc::ifreq> {
    let mut request = named(name);
    // SAFETY: interface queries read and write one ifreq, which is a local.
    check(unsafe { libc::ioctl(socket.as_raw_fd(), question, &raw mut request) })?;
    Ok(request)
}

fn check(status: c_int) -> io::Result<()> {
    if status < 0 { Err(io::Error::last_os_error()) } else { Ok(()) }
}
