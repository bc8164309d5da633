//! Sorts results of getaddrinfo(3) by the source addresses that the stack would use.

use std::net::SocketAddr;

use libc::addrinfo;
use towpath_posix::dns;

use crate::{POSIX, names};

/// Adjacent entries of a getaddrinfo list with the same address. glibc returns one entry for each
/// socket type.
#[derive(Clone, Copy)]
struct Group {
    first: *mut addrinfo,
    last: *mut addrinfo,
    address: SocketAddr,
}

/// Sorts a getaddrinfo list of glibc in the order that [`dns::order`] returns.
///
/// # Safety
/// `list` must point to a list of getaddrinfo(3).
pub unsafe fn order(list: *mut *mut addrinfo) {
    // SAFETY: `list` points to a list of getaddrinfo, by the contract of this function.
    let Some(groups) = (unsafe { groups(*list) }) else { return };
    let addresses: Vec<_> = groups.iter().map(|group| group.address).collect();
    let Some(places) = dns::order(&POSIX, &addresses) else { return };
    // SAFETY: `list` points to a list of getaddrinfo. Each entry is in one group, and each group is
    // linked once.
    unsafe {
        // Only the first entry of a getaddrinfo list has the canonical name, so remove it before
        // the entries are sorted.
        let name = std::mem::replace(&mut (**list).ai_canonname, std::ptr::null_mut());
        let mut next = std::ptr::null_mut();
        for place in places.into_iter().rev() {
            let Group { first, last, .. } = groups[place];
            (*last).ai_next = next;
            next = first;
        }
        (*next).ai_canonname = name;
        *list = next;
    }
}

/// Groups the entries of a getaddrinfo list by address. Returns `None` if an address is neither
/// IPv4 nor IPv6.
unsafe fn groups(mut entry: *mut addrinfo) -> Option<Vec<Group>> {
    let mut groups: Vec<Group> = Vec::new();
    // SAFETY: `entry` is null, or an entry of a getaddrinfo list.
    while let Some(this) = unsafe { entry.as_ref() } {
        // SAFETY: `ai_addrlen` is the length of the address at `ai_addr`.
        let ip = unsafe { names::ip_in(this.ai_addr, this.ai_addrlen) }?;
        // SAFETY: `ip_in` has checked the family; the port has the same offset in both families.
        let port = unsafe { (*this.ai_addr.cast::<libc::sockaddr_in>()).sin_port };
        let address = SocketAddr::new(ip, u16::from_be(port));
        match groups.last_mut().filter(|group| group.address == address) {
            Some(group) => group.last = entry,
            None => groups.push(Group { first: entry, last: entry, address }),
        }
        entry = this.ai_next;
    }
    Some(groups)
}
