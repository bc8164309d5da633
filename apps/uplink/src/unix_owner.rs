//! Users that own Unix sockets, by sock_diag(7). /proc/net/unix does not show them.

use rustix::net::{
    AddressFamily, RecvFlags, SendFlags, SocketFlags, SocketType, netlink, recv, send, socket_with,
};
use towpath_shm::Fd;

// <linux/netlink.h>, <linux/sock_diag.h>, <linux/unix_diag.h>
const NLMSG_HDRLEN: usize = 16;
const NLM_F_REQUEST: u16 = 1;
const SOCK_DIAG_BY_FAMILY: u16 = 20;
/// Bytes of `struct unix_diag_req` and `struct unix_diag_msg`.
const REQUEST_LEN: usize = 24;
const ANSWER_LEN: usize = 16;
const UDIAG_SHOW_UID: u32 = 0x40;
const UNIX_DIAG_UID: u16 = 7;
/// Bytes of `struct nlattr`.
const NLATTR_LEN: usize = 4;

/// User that created the Unix socket with this inode. `None`: the socket is gone, or the kernel
/// does not show it (before Linux 5.3, or without CONFIG_UNIX_DIAG).
pub(crate) fn unix_owner(inode: u32) -> Option<u32> {
    let flags = SocketFlags::CLOEXEC | SocketFlags::NONBLOCK;
    let family = AddressFamily::NETLINK;
    let socket = socket_with(family, SocketType::RAW, flags, Some(netlink::SOCK_DIAG)).ok()?;
    let socket = Fd::from(socket);
    send(&socket, &request(inode), SendFlags::empty()).ok()?;
    let mut answer = [0; 256];
    // The kernel answers within send(2).
    let (len, _) = recv(&socket, &mut answer[..], RecvFlags::empty()).ok()?;
    owner_in(&answer[..len])
}

fn request(inode: u32) -> Vec<u8> {
    let len = (NLMSG_HDRLEN + REQUEST_LEN) as u32;
    let mut request = Vec::with_capacity(len as usize);
    request.extend(len.to_ne_bytes());
    request.extend(SOCK_DIAG_BY_FAMILY.to_ne_bytes());
    request.extend(NLM_F_REQUEST.to_ne_bytes());
    request.extend([0; 8]);
    request.extend([AddressFamily::UNIX.as_raw() as u8, 0, 0, 0]);
    // Any state, and no cookie (INET_DIAG_NOCOOKIE).
    for word in [u32::MAX, inode, UDIAG_SHOW_UID, u32::MAX, u32::MAX] {
        request.extend(word.to_ne_bytes());
    }
    request
}

/// The user in an answer. An error message has none.
fn owner_in(answer: &[u8]) -> Option<u32> {
    let half = |at: usize| Some(u16::from_ne_bytes(answer.get(at..at + 2)?.try_into().ok()?));
    let word = |at: usize| Some(u32::from_ne_bytes(answer.get(at..at + 4)?.try_into().ok()?));
    if half(4)? != SOCK_DIAG_BY_FAMILY {
        return None;
    }
    let mut at = NLMSG_HDRLEN + ANSWER_LEN;
    loop {
        let (len, kind) = (usize::from(half(at)?), half(at + 2)?);
        if kind == UNIX_DIAG_UID && len == NLATTR_LEN + 4 {
            return word(at + NLATTR_LEN);
        }
        at += len.max(NLATTR_LEN).next_multiple_of(4);
    }
}

#[cfg(test)]
mod tests {
    use std::os::fd::AsRawFd;
    use std::os::unix::net::UnixDatagram;

    use super::*;

    #[test]
    fn the_owner_of_a_socket_is_this_user() {
        let socket = UnixDatagram::unbound().expect("a socket");
        let link = std::fs::read_link(format!("/proc/self/fd/{}", socket.as_raw_fd()));
        let link = link.expect("a descriptor").to_string_lossy().into_owned();
        let inode = link.trim_start_matches("socket:[").trim_end_matches(']').parse();
        // A kernel without unix_diag shows no owner.
        let owner = unix_owner(inode.expect("a number"));
        assert!(owner.is_none_or(|owner| owner == rustix::process::geteuid().as_raw()));
    }

    #[test]
    fn answers_that_are_cut_have_no_owner() {
        let mut answer = vec![0; NLMSG_HDRLEN + ANSWER_LEN];
        answer[4..6].copy_from_slice(&SOCK_DIAG_BY_FAMILY.to_ne_bytes());
        answer.extend([5u16, 6].map(u16::to_ne_bytes).concat());
        answer.extend([0; 4]);
        answer.extend([8u16, UNIX_DIAG_UID].map(u16::to_ne_bytes).concat());
        answer.extend(1000u32.to_ne_bytes());
        assert_eq!(owner_in(&answer), Some(1000));
        assert!((0..answer.len()).all(|len| owner_in(&answer[..len]).is_none()));
        answer[4] = 2;
        assert_eq!(owner_in(&answer), None);
    }
}
