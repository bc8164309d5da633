//! Lists Unix sockets with abstract names by sock_diag(7).
//!
//! /proc/net/unix contains the same list as text, but any user can forge lines in it by a name that
//! contains a newline.

use rustix::net::{
    AddressFamily, RecvFlags, SendFlags, SocketFlags, SocketType, netlink, recv, send, socket_with,
};
use towpath_shm::Fd;

/// A Unix socket with an abstract name.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct AbstractSocket {
    /// Type of the socket, such as SOCK_STREAM.
    pub kind: u8,
    /// Name without the leading NUL.
    pub name: Vec<u8>,
    /// User id of the socket's creator; `None` if the kernel does not report it (before Linux 5.3,
    /// or without CONFIG_UNIX_DIAG).
    pub owner: Option<u32>,
}

// Constants of <linux/netlink.h>, <linux/sock_diag.h> and <linux/unix_diag.h>.
const NLMSG_HDRLEN: usize = 16;
const NLMSG_DONE: u16 = 3;
const NLM_F_REQUEST: u16 = 1;
const NLM_F_DUMP: u16 = 0x300;
const SOCK_DIAG_BY_FAMILY: u16 = 20;
/// Sizes of `struct unix_diag_req` and `struct unix_diag_msg` in bytes.
const REQUEST_LEN: usize = 24;
const ANSWER_LEN: usize = 16;
const UDIAG_SHOW_NAME: u32 = 0x01;
const UDIAG_SHOW_UID: u32 = 0x40;
const UNIX_DIAG_NAME: u16 = 0;
const UNIX_DIAG_UID: u16 = 7;
/// Size of `struct nlattr` in bytes.
const NLATTR_LEN: usize = 4;
/// Size of the receive buffer in bytes. The kernel returns at most 32 KiB at a time (netlink_dump).
const BUFFER_LEN: usize = 32 << 10;

/// Returns the Unix sockets of this network namespace that have an abstract name.
pub(crate) fn abstract_sockets() -> Vec<AbstractSocket> {
    // Fall back to /proc/net/unix. The file contains no owners, so forged lines do no more harm
    // than names that any user can really bind.
    by_sock_diag().unwrap_or_else(|| {
        let text = std::fs::read("/proc/net/unix").unwrap_or_default();
        text.split(|byte| *byte == b'\n').filter_map(of_line).collect()
    })
}

fn by_sock_diag() -> Option<Vec<AbstractSocket>> {
    let flags = SocketFlags::CLOEXEC | SocketFlags::NONBLOCK;
    let family = AddressFamily::NETLINK;
    let socket = socket_with(family, SocketType::RAW, flags, Some(netlink::SOCK_DIAG)).ok()?;
    let socket = Fd::from(socket);
    send(&socket, &request(), SendFlags::empty()).ok()?;
    let (mut found, mut buffer) = (Vec::new(), vec![0; BUFFER_LEN]);
    loop {
        // Receive one part of the answer after another, until the list is complete.
        let (len, _) = recv(&socket, &mut buffer[..], RecvFlags::empty()).ok()?;
        if read_messages(&buffer[..len], &mut found)? {
            return Some(found);
        }
    }
}

fn request() -> Vec<u8> {
    let len = (NLMSG_HDRLEN + REQUEST_LEN) as u32;
    let mut request = Vec::with_capacity(len as usize);
    request.extend(len.to_ne_bytes());
    request.extend(SOCK_DIAG_BY_FAMILY.to_ne_bytes());
    request.extend((NLM_F_REQUEST | NLM_F_DUMP).to_ne_bytes());
    request.extend([0; 8]);
    request.extend([AddressFamily::UNIX.as_raw() as u8, 0, 0, 0]);
    // Select sockets of any state and inode. Both words of the cookie are all ones
    // (INET_DIAG_NOCOOKIE).
    for word in [u32::MAX, 0, UDIAG_SHOW_NAME | UDIAG_SHOW_UID, u32::MAX, u32::MAX] {
        request.extend(word.to_ne_bytes());
    }
    request
}

/// Adds the sockets that a packet of netlink messages describes. Returns whether the list is
/// complete, or `None` if the kernel reports an error.
fn read_messages(mut packet: &[u8], found: &mut Vec<AbstractSocket>) -> Option<bool> {
    while !packet.is_empty() {
        let (len, kind) = (word(packet, 0)? as usize, half(packet, 4)?);
        if kind == NLMSG_DONE {
            return Some(true);
        }
        let message = packet.get(NLMSG_HDRLEN..len).filter(|_| kind == SOCK_DIAG_BY_FAMILY)?;
        found.extend(read_socket(message));
        packet = packet.get(len.next_multiple_of(4)..).unwrap_or_default();
    }
    Some(false)
}

/// Parses a netlink message. Returns the socket that it describes if the socket has an abstract
/// name.
fn read_socket(message: &[u8]) -> Option<AbstractSocket> {
    let kind = *message.get(1)?;
    let (mut name, mut owner) = (None, None);
    let mut rest = message.get(ANSWER_LEN..)?;
    while rest.len() >= NLATTR_LEN {
        let (len, kind) = (usize::from(half(rest, 0)?), half(rest, 2)?);
        let value = rest.get(NLATTR_LEN..len)?;
        match kind {
            UNIX_DIAG_NAME => name = value.strip_prefix(&[0]).map(<[u8]>::to_vec),
            UNIX_DIAG_UID => owner = word(value, 0),
            _ => {}
        }
        rest = rest.get(len.next_multiple_of(4)..).unwrap_or_default();
    }
    Some(AbstractSocket { kind, name: name?, owner })
}

fn half(bytes: &[u8], at: usize) -> Option<u16> {
    Some(u16::from_ne_bytes(bytes.get(at..at + 2)?.try_into().ok()?))
}

fn word(bytes: &[u8], at: usize) -> Option<u32> {
    Some(u32::from_ne_bytes(bytes.get(at..at + 4)?.try_into().ok()?))
}

/// Parses a line of /proc/net/unix. Returns the socket that it describes if the socket has an
/// abstract name.
fn of_line(line: &[u8]) -> Option<AbstractSocket> {
    // Fields of a line of /proc/net/unix: Num RefCount Protocol Flags Type St Inode Path.
    let line = std::str::from_utf8(line).ok()?;
    let mut fields = line.split_whitespace().skip(4);
    let kind = u8::from_str_radix(fields.next()?, 16).ok()?;
    let name = fields.nth(2)?.strip_prefix('@')?.into();
    Some(AbstractSocket { kind, name, owner: None })
}

#[cfg(test)]
mod tests {
    use std::os::linux::net::SocketAddrExt;
    use std::os::unix::net::{SocketAddr, UnixListener};

    use super::*;

    fn bound(name: &[u8]) -> UnixListener {
        let address = SocketAddr::from_abstract_name(name).expect("a short name");
        UnixListener::bind_addr(&address).expect("a free name")
    }

    #[test]
    fn lists_names_that_look_like_lines_of_proc_as_they_are() {
        let own = std::process::id();
        let inner = format!("towpath-test-forged/{own}");
        let forged = format!("x\n0: 00000002 00000000 00010000 0001 01 79 @{inner}");
        let plain = format!("towpath-test-plain/{own}");
        let _sockets = [bound(forged.as_bytes()), bound(plain.as_bytes())];
        // Without unix_diag, the kernel reports no owner of a socket.
        let Some(found) = by_sock_diag() else { return };
        let find = |name: &str| found.iter().find(|socket| socket.name == name.as_bytes());
        let user = rustix::process::geteuid().as_raw();
        for name in [&forged, &plain] {
            let socket = find(name).expect("it is bound");
            assert_eq!(socket.kind, 1, "SOCK_STREAM");
            assert!(socket.owner.is_none_or(|owner| owner == user));
        }
        assert_eq!(find(&inner), None);
    }

    #[test]
    fn ignores_messages_that_are_cut() {
        let mut message = vec![1, 1, 10, 0];
        message.extend([0; ANSWER_LEN - 4]);
        let mut attribute = |kind: u16, value: &[u8]| {
            message.extend((value.len() as u16 + 4).to_ne_bytes());
            message.extend(kind.to_ne_bytes());
            message.extend(value);
            message.resize(message.len().next_multiple_of(4), 0);
        };
        attribute(UNIX_DIAG_NAME, b"\0ab");
        attribute(UNIX_DIAG_UID, &1000u32.to_ne_bytes());
        let mut packet = ((NLMSG_HDRLEN + message.len()) as u32).to_ne_bytes().to_vec();
        packet.extend(SOCK_DIAG_BY_FAMILY.to_ne_bytes());
        packet.extend([0; 10]);
        packet.extend(message);
        let read = |packet: &[u8]| {
            let mut found = Vec::new();
            (read_messages(packet, &mut found), found)
        };
        let socket = AbstractSocket { kind: 1, name: b"ab".to_vec(), owner: Some(1000) };
        assert_eq!(read(&packet), (Some(false), vec![socket]));
        assert!((1..packet.len()).all(|len| read(&packet[..len]) == (None, vec![])));
        packet[4..6].copy_from_slice(&NLMSG_DONE.to_ne_bytes());
        assert_eq!(read(&packet).0, Some(true));
        packet[4] = 2;
        assert_eq!(read(&packet).0, None);
    }

    #[test]
    fn reads_lines_of_proc_where_the_kernel_has_no_sock_diag() {
        let name = |line: &str| of_line(line.as_bytes()).map(|socket| socket.name);
        assert_eq!(name("0: 00000002 00000000 00010000 0001 01 79 @a/b"), Some(b"a/b".to_vec()));
        for line in [
            "Num RefCount Protocol Flags Type St Inode Path",
            "0: 00000002 00000000 00010000 0001 01 77 /run/some.sock",
            "0: 00000002 00000000 00010000 0001 01 78",
            "",
        ] {
            assert_eq!(name(line), None, "{line}");
        }
    }
}
