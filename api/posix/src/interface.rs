//! The stack's network interfaces, as ioctl(2), getifaddrs(3) and if_nametoindex(3) return them.

pub(crate) mod known;

use std::ffi::{CStr, c_char};

use towpath_client::syscall::SignalsBlocked;
use towpath_shm::control::{ControlReply, Interface, Request, call};
use towpath_shm::layout::{Plain, RawAddr};

use crate::errno::fail;
use crate::{Posix, Result, address};

use known::Sources;

/// Returns all interfaces of the stack. An interface with several addresses has one entry for each
/// address.
pub fn list(posix: &'static Posix) -> Result<Vec<Interface>> {
    Ok(entries(&ask(posix)?).collect())
}

/// Requests the list of interfaces from the engine. Unlike [`list`], allocates no memory.
pub(crate) fn ask(posix: &'static Posix) -> Result<ControlReply> {
    let request = Request { call: call::INTERFACES, ..Request::default() };
    posix.call(&request)
}

/// Parses the list of interfaces in an answer of the engine.
pub(crate) fn entries(reply: &ControlReply) -> impl Iterator<Item = Interface> {
    let entries = reply.payload().chunks_exact(size_of::<Interface>());
    entries.take(reply.a as usize).map(Interface::from_bytes)
}

/// Returns the name of an interface, without the NUL padding.
pub fn name(interface: &Interface) -> &[u8] {
    let len = interface.name.iter().position(|&byte| byte == 0).unwrap_or(interface.name.len());
    &interface.name[..len]
}

/// Implements if_nametoindex(3). Indices begin at 1.
///
/// # Errors
/// ENODEV if the stack has no interface of that name.
pub fn index_of(posix: &'static Posix, wanted: &CStr) -> Result<u32> {
    match list(posix)?.iter().find(|interface| name(interface) == wanted.to_bytes()) {
        Some(interface) => Ok(interface.index),
        None => fail(libc::ENODEV),
    }
}

/// Implements if_indextoname(3). Returns the name, padded with NUL to IF_NAMESIZE.
///
/// # Errors
/// ENXIO if the stack has no interface with that index.
pub fn name_of(posix: &'static Posix, index: u32) -> Result<[u8; 16]> {
    match list(posix)?.iter().find(|interface| interface.index == index) {
        Some(interface) => Ok(interface.name),
        None => fail(libc::ENXIO),
    }
}

/// Implements if_nameindex(3). Returns an array that ends with an entry of zeros. malloc allocates
/// the array and each name, because if_freenameindex(3) frees them.
pub fn nameindex(posix: &'static Posix) -> Result<*mut libc::if_nameindex> {
    let mut interfaces = list(posix)?;
    interfaces.dedup_by_key(|interface| interface.index);
    // SAFETY: calloc accepts any sizes. Its result is checked below.
    let array =
        unsafe { libc::calloc(interfaces.len() + 1, size_of::<libc::if_nameindex>()) }.cast();
    let array: *mut libc::if_nameindex = array;
    if array.is_null() {
        return fail(libc::ENOBUFS);
    }
    for (n, interface) in interfaces.iter().enumerate() {
        let text = name(interface);
        // SAFETY: the array has one entry more than there are interfaces. The allocated name has
        // one byte more than its text, and is zeroed.
        unsafe {
            let copy = libc::calloc(1, text.len() + 1).cast::<u8>();
            if copy.is_null() {
                libc::if_freenameindex(array);
                return fail(libc::ENOBUFS);
            }
            std::ptr::copy_nonoverlapping(text.as_ptr(), copy, text.len());
            (*array.add(n)).if_index = interface.index;
            (*array.add(n)).if_name = copy.cast();
        }
    }
    Ok(array)
}

/// Returns the netmask of an interface's address, as a socket address.
pub fn netmask(interface: &Interface) -> towpath_shm::layout::RawAddr {
    let mut mask = interface.addr;
    mask.port = 0;
    mask.scope = 0;
    let bits = if mask.family == libc::AF_INET as u16 { 32 } else { 128 };
    let ones = interface.prefix_len.min(bits);
    mask.ip = [0; 16];
    for (n, byte) in mask.ip.iter_mut().enumerate() {
        let left = ones.saturating_sub(n as u32 * 8).min(8);
        *byte = !(0xffu16 >> left) as u8;
    }
    mask
}

/// Returns whether `addr` is an IPv4 broadcast address of the stack, to which only sockets with
/// SO_BROADCAST may send.
pub(crate) fn is_broadcast(posix: &'static Posix, addr: &RawAddr) -> bool {
    let [a, b, c, d, ..] = addr.ip;
    // If the prefix length is at most 30 bits, the last two bits of the broadcast address are 1.
    // Most destinations do not end in this way, so this check avoids the search below.
    if i32::from(addr.family) != libc::AF_INET || d & 3 != 3 {
        return false;
    }
    let ip = [a, b, c, d];
    if ip == [255; 4] {
        return true;
    }
    let known = posix.known.broadcasts().unwrap_or_else(|| {
        // Block signals, because a signal handler that interrupts malloc must not call it again.
        let _signals = SignalsBlocked::new();
        posix.known.keep_broadcasts(broadcasts(posix))
    });
    known.contains(&ip)
}

/// Checks the source address (family 0: any) and outgoing interface (0: any) that a control message
/// requests. Both must belong to the stack.
///
/// # Errors
/// ENODEV if the interface does not exist. If the address does not exist: ENETUNREACH for IPv4,
/// EINVAL for IPv6.
pub(crate) fn check_source(posix: &'static Posix, local: &RawAddr, index: u32) -> Result<()> {
    let v4 = i32::from(local.family) == libc::AF_INET;
    let no_address = local.family == 0 || v4 && local.ip[0] == 127;
    let knows = |list: &Sources| {
        (index == 0 || list.iter().any(|entry| entry.0 == index))
            && (no_address || list.iter().any(|entry| entry.1 == local.ip))
    };
    if index == 0 && no_address {
        return Ok(());
    }
    let _signals = SignalsBlocked::new();
    if knows(&posix.known.sources.lock()) {
        return Ok(());
    }
    let fresh: Sources = list(posix)?.iter().map(|entry| (entry.index, entry.addr.ip)).collect();
    let found = knows(&fresh);
    let device = index == 0 || fresh.iter().any(|entry| entry.0 == index);
    *posix.known.sources.lock() = fresh;
    match (found, device) {
        (true, _) => Ok(()),
        (false, false) => fail(libc::ENODEV),
        (false, true) if v4 => fail(libc::ENETUNREACH),
        (false, true) => fail(libc::EINVAL),
    }
}

/// Returns the source address for the answer to a datagram that was sent to `ip`. If `ip` is a
/// multicast or broadcast address, it is the interface's first IPv4 address; otherwise `None`.
pub(crate) fn answering(posix: &'static Posix, ip: &[u8], index: u32) -> Option<[u8; 16]> {
    let mut addr = RawAddr { family: libc::AF_INET as u16, ..RawAddr::default() };
    addr.ip[..4].copy_from_slice(ip.get(..4)?);
    let group = (224..240).contains(&addr.ip[0]) || is_broadcast(posix, &addr);
    let interfaces = if group { list(posix).ok()? } else { return None };
    let v4 =
        |entry: &&Interface| entry.index == index && i32::from(entry.addr.family) == libc::AF_INET;
    interfaces.iter().find(v4).map(|entry| entry.addr.ip)
}

fn broadcasts(posix: &'static Posix) -> Vec<[u8; 4]> {
    let v4 = |interface: &Interface| {
        i32::from(interface.addr.family) == libc::AF_INET
            && interface.prefix_len < 31
            && interface.flags & (libc::IFF_BROADCAST | libc::IFF_LOOPBACK) as u32 != 0
    };
    let address = |interface: Interface| {
        let mask = netmask(&interface).ip;
        std::array::from_fn(|n| interface.addr.ip[n] | !mask[n])
    };
    list(posix).unwrap_or_default().into_iter().filter(v4).map(address).collect()
}

/// Entry of the list that getifaddrs(3) returns, followed by the name and addresses to which the
/// entry points.
#[repr(C)]
struct InterfaceEntry {
    ifaddrs: libc::ifaddrs,
    name: [u8; 16],
    addr: [u8; 32],
    netmask: [u8; 32],
    other_end: [u8; 32],
}

/// Returns one entry per address of the interfaces, first all IPv4 addresses, then all IPv6
/// addresses, as Linux does.
pub(crate) fn by_family(all: &[Interface]) -> impl Iterator<Item = &Interface> {
    let of = |family: i32| {
        all.iter().filter(move |interface| i32::from(interface.addr.family) == family)
    };
    of(libc::AF_INET).chain(of(libc::AF_INET6))
}

/// Implements getifaddrs(3). The list is a single block of malloc, as in glibc, so that
/// freeifaddrs(3) needs to free only one block.
pub fn getifaddrs(posix: &'static Posix) -> Result<*mut libc::ifaddrs> {
    let interfaces = list(posix)?;
    let mut rows = Vec::new();
    for (n, interface) in interfaces.iter().enumerate() {
        if !interfaces[..n].iter().any(|earlier| earlier.index == interface.index) {
            rows.push((interface, link_address(interface), [0; 32], [0; 32]));
        }
    }
    for interface in by_family(&interfaces) {
        let mut addr = interface.addr;
        addr.port = 0;
        rows.push((interface, bytes(&addr), bytes(&netmask(interface)), other_end(interface)));
    }
    if rows.is_empty() {
        return Ok(std::ptr::null_mut());
    }
    // SAFETY: calloc accepts any sizes. Its result is checked below.
    let block =
        unsafe { libc::calloc(rows.len(), size_of::<InterfaceEntry>()) }.cast::<InterfaceEntry>();
    if block.is_null() {
        return fail(libc::ENOMEM);
    }
    for (n, (interface, addr, mask, other_end)) in rows.iter().enumerate() {
        // SAFETY: `n` is below the number of entries in the block, which is zeroed and aligned by
        // malloc.
        let entry = unsafe { &mut *block.add(n) };
        entry.name = interface.name;
        entry.name[15] = 0;
        (entry.addr, entry.netmask, entry.other_end) = (*addr, *mask, *other_end);
        let pointer = |at: &mut [u8; 32]| {
            if at[..2] == [0, 0] {
                std::ptr::null_mut()
            } else {
                at.as_mut_ptr().cast::<libc::sockaddr>()
            }
        };
        entry.ifaddrs.ifa_name = entry.name.as_mut_ptr().cast::<c_char>();
        entry.ifaddrs.ifa_flags = interface.flags;
        entry.ifaddrs.ifa_addr = pointer(&mut entry.addr);
        entry.ifaddrs.ifa_netmask = pointer(&mut entry.netmask);
        entry.ifaddrs.ifa_ifu = pointer(&mut entry.other_end);
        if n + 1 < rows.len() {
            // SAFETY: entry `n + 1` is inside the block.
            entry.ifaddrs.ifa_next = unsafe { &raw mut (*block.add(n + 1)).ifaddrs };
        }
    }
    // `ifaddrs` is the first field of the block, so freeifaddrs(3) can free the block by the
    // address of that field.
    Ok(block.cast())
}

fn bytes(addr: &towpath_shm::layout::RawAddr) -> [u8; 32] {
    let mut out = [0; 32];
    let (encoded, len) = address::encode(addr);
    out[..len].copy_from_slice(&encoded[..len]);
    out
}

/// Returns `ifa_broadaddr`, or `ifa_dstaddr` on a link without broadcasts. If the interface has no
/// peer, `ifa_dstaddr` is its own address, which the kernel reports as IFA_ADDRESS. For IPv6
/// addresses the kernel reports neither.
fn other_end(interface: &Interface) -> [u8; 32] {
    if interface.addr.family != libc::AF_INET as u16 {
        return [0; 32];
    }
    bytes(&broadcast_address(interface).unwrap_or(RawAddr { port: 0, ..interface.addr }))
}

/// Returns the IPv4 broadcast address (all host bits set) of an interface. None: the link has no
/// broadcasts, or the network has at most two addresses (RFC 3021).
pub(crate) fn broadcast_address(interface: &Interface) -> Option<RawAddr> {
    let broadcasts = interface.flags & libc::IFF_BROADCAST as u32 != 0
        && interface.addr.family == libc::AF_INET as u16
        && interface.prefix_len < 31;
    let mut addr = RawAddr { port: 0, ..interface.addr };
    for (byte, mask) in addr.ip.iter_mut().zip(netmask(interface).ip).take(4) {
        *byte |= !mask;
    }
    broadcasts.then_some(addr)
}

/// Returns the link type of an interface (ARPHRD_*): ARPHRD_NONE if packets have no link-layer
/// header, as on a TUN device.
pub(crate) fn hardware_type(interface: &Interface) -> u16 {
    let is = |flag: i32| interface.flags & flag as u32 != 0;
    match (is(libc::IFF_LOOPBACK), is(libc::IFF_NOARP)) {
        (true, _) => libc::ARPHRD_LOOPBACK,
        (false, true) => libc::ARPHRD_NONE,
        (false, false) => libc::ARPHRD_ETHER,
    }
}

/// Returns the link-layer address of an interface. Empty if packets have no link-layer header.
pub(crate) fn hardware_address(interface: &Interface) -> &[u8] {
    if hardware_type(interface) == libc::ARPHRD_NONE { &[] } else { &interface.mac }
}

/// Returns the interface's link-layer address as a `sockaddr_ll`.
fn link_address(interface: &Interface) -> [u8; 32] {
    let mut out = [0; 32];
    out[..2].copy_from_slice(&(libc::AF_PACKET as u16).to_ne_bytes());
    out[4..8].copy_from_slice(&(interface.index as i32).to_ne_bytes());
    out[8..10].copy_from_slice(&hardware_type(interface).to_ne_bytes());
    let address = hardware_address(interface);
    out[11] = address.len() as u8;
    out[12..12 + address.len()].copy_from_slice(address);
    out
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn addresses_are_listed_by_family() {
        let entry = |index, family: i32| {
            let addr = RawAddr { family: family as u16, ..RawAddr::default() };
            Interface { index, addr, ..Interface::default() }
        };
        let (v4, v6) = (libc::AF_INET, libc::AF_INET6);
        let all = [entry(1, v4), entry(1, v6), entry(2, v6), entry(2, v4), entry(3, 0)];
        let listed = by_family(&all).map(|entry| (entry.index, i32::from(entry.addr.family)));
        assert_eq!(listed.collect::<Vec<_>>(), [(1, v4), (2, v4), (1, v6), (2, v6)]);
    }

    /// The expected values were read from a TUN device on Linux 6.18.
    #[test]
    fn a_link_without_link_headers_has_no_hardware_address() {
        let flags = (libc::IFF_POINTOPOINT | libc::IFF_NOARP) as u32;
        let tun = Interface { index: 2, flags, mac: [0; 6], ..Interface::default() };
        let link = link_address(&tun);
        assert_eq!((link[8..10].to_vec(), link[11]), (libc::ARPHRD_NONE.to_ne_bytes().to_vec(), 0));
        let tap = Interface { index: 2, mac: [2; 6], ..Interface::default() };
        let link = link_address(&tap);
        assert_eq!((link[8], link[11], link[17]), (libc::ARPHRD_ETHER as u8, 6, 2));
    }

    /// The expected values were read from a TUN device and an Ethernet device on Linux 6.18 with
    /// glibc 2.36.
    #[test]
    fn without_broadcasts_an_address_is_its_own_other_end() {
        let at = |text: &str, flags: i32, prefix_len| Interface {
            addr: RawAddr::new(text.parse().unwrap()),
            flags: flags as u32,
            prefix_len,
            ..Interface::default()
        };
        let v4 = |interface| other_end(&interface)[4..8].to_vec();
        assert_eq!(v4(at("10.0.2.15:0", libc::IFF_POINTOPOINT, 24)), [10, 0, 2, 15]);
        assert_eq!(v4(at("127.0.0.1:0", libc::IFF_LOOPBACK, 8)), [127, 0, 0, 1]);
        assert_eq!(v4(at("10.77.0.2:0", libc::IFF_BROADCAST, 24)), [10, 77, 0, 255]);
        assert_eq!(v4(at("10.77.0.2:0", libc::IFF_BROADCAST, 31)), [10, 77, 0, 2]);
        assert_eq!(other_end(&at("[fd00::1]:0", libc::IFF_POINTOPOINT, 64)), [0; 32]);
    }

    #[test]
    fn masks() {
        let at = |text: &str, prefix_len| Interface {
            addr: RawAddr::new(text.parse().unwrap()),
            prefix_len,
            flags: libc::IFF_BROADCAST as u32,
            ..Interface::default()
        };
        assert_eq!(netmask(&at("10.1.2.3:0", 22)).ip[..5], [255, 255, 252, 0, 0]);
        assert_eq!(broadcast_address(&at("10.1.2.3:0", 22)).unwrap().ip[..4], [10, 1, 3, 255]);
        assert_eq!(netmask(&at("[fd00::1]:0", 65)).ip[7..10], [255, 128, 0]);
        assert_eq!(netmask(&at("10.1.2.3:0", 99)).ip[3], 255);
    }
}
