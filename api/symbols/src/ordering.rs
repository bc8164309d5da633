//! Lists of getaddrinfo(3), in the order that suits the stack.

use std::net::SocketAddr;

use libc::addrinfo;
use towpath_posix::dns;

use crate::{POSIX, names};

/// Entries of one address, one behind the other: glibc has one for each type of sockets.
#[derive(Clone, Copy)]
struct Group {
    first: *mut addrinfo,
    last: *mut addrinfo,
    address: SocketAddr,
}

/// Puts the entries of a list of glibc's into the order of [`dns::order`].
///
/// # Safety
/// `list` must point to a list of getaddrinfo(3).
pub unsafe fn order(list: *mut *mut addrinfo) {
    // SAFETY: the caller's promise, here and below.
    let Some(groups) = (unsafe { groups(*list) }) else { return };
    let addresses: Vec<_> = groups.iter().map(|group| group.address).collect();
    let Some(places) = dns::order(&POSIX, &addresses) else { return };
    // SAFETY: as above. Each entry is in one group, and each group comes once.
    unsafe {
        // Only the first entry of a list has the canonical name.
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

/// None: an entry has no address of IP.
unsafe fn groups(mut entry: *mut addrinfo) -> Option<Vec<Group>> {
    let mut groups: Vec<Group> = Vec::new();
    // SAFETY: a list of getaddrinfo, which ends with null.
    while let Some(this) = unsafe { entry.as_ref() } {
        // SAFETY: the entry's address has the length that stands beside it.
        let ip = unsafe { names::ip_in(this.ai_addr, this.ai_addrlen) }?;
        // SAFETY: the port has the same place in both families, of which `ip_in` has seen one.
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
