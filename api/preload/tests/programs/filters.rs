//! Socket filters (SO_ATTACH_FILTER). Each case also runs on the kernel.

use std::io::ErrorKind;
use std::net::{TcpListener, UdpSocket};
use std::os::fd::{AsRawFd, RawFd};

use crate::harness::Case;
use crate::sockets::{errno, get, set};
use crate::values::receive;

pub const CASES: &[Case] = &[
    ("a_filter_chooses_datagrams", a_filter_chooses_datagrams),
    ("a_filter_cuts_datagrams", a_filter_cuts_datagrams),
    ("what_a_filter_sees", what_a_filter_sees),
    ("filters_are_told_and_locked", filters_are_told_and_locked),
    ("filters_that_are_refused", filters_that_are_refused),
    ("streams_have_no_filters", streams_have_no_filters),
];

const SOCKET: i32 = libc::SOL_SOCKET;
const SO_LOCK_FILTER: i32 = 44;
/// SO_ATTACH_BPF and SO_ATTACH_REUSEPORT_EBPF.
const OF_THE_KERNEL: [i32; 2] = [50, 52];
/// SKF_AD_OFF, SKF_NET_OFF and SKF_LL_OFF.
const ABOUT: u32 = -0x1000_i32 as u32;
const NETWORK: u32 = -0x10_0000_i32 as u32;
const LINK: u32 = -0x20_0000_i32 as u32;
/// Opcodes: load the length, a word, half-word or byte of the packet; compare; return.
const LENGTH: u16 = 0x80;
const WORD: u16 = 0x20;
const HALF: u16 = 0x28;
const BYTE: u16 = 0x30;
const EQUAL: u16 = 0x15;
const RETURN: u16 = 0x06;

fn step(code: u16, jt: u8, jf: u8, k: u32) -> libc::sock_filter {
    libc::sock_filter { code, jt, jf, k }
}

fn attach(fd: RawFd, code: &[libc::sock_filter]) -> Result<(), i32> {
    let filter = code.as_ptr().cast_mut();
    attach_fprog(fd, &libc::sock_fprog { len: code.len() as u16, filter }, 16)
}

fn attach_fprog(fd: RawFd, fprog: &libc::sock_fprog, len: u32) -> Result<(), i32> {
    let value = (&raw const *fprog).cast();
    // SAFETY: `value` points to a program that outlives the call.
    match unsafe { libc::setsockopt(fd, SOCKET, libc::SO_ATTACH_FILTER, value, len) } {
        0 => Ok(()),
        _ => Err(errno()),
    }
}

/// Returns a program that accepts a datagram if the load `code` at offset `k` gives `value`.
fn only(code: u16, k: u32, value: u32) -> [libc::sock_filter; 4] {
    [
        step(code, 0, 0, k),
        step(EQUAL, 0, 1, value),
        step(RETURN, 0, 0, u32::MAX),
        step(RETURN, 0, 0, 0),
    ]
}

fn a_filter_chooses_datagrams() {
    let socket = UdpSocket::bind("127.0.0.1:0").unwrap();
    let (fd, at) = (socket.as_raw_fd(), socket.local_addr().unwrap());
    assert_eq!(set(fd, SOCKET, libc::SO_RXQ_OVFL, 1), Ok(()));
    socket.send_to(b"before", at).unwrap();
    assert_eq!(receive(fd, 0), (6, Vec::new()));
    assert_eq!(attach(fd, &only(BYTE, 8, b'a'.into())), Ok(()));
    for text in [&b"ab"[..], b"xb", b"", b"ac"] {
        socket.send_to(text, at).unwrap();
    }
    assert_eq!(receive(fd, 0), (2, Vec::new()));
    // SO_RXQ_OVFL reports two drops, including the empty datagram, because the load exceeds its
    // end.
    let told = (SOCKET, libc::SO_RXQ_OVFL, 2u32.to_ne_bytes().to_vec());
    assert_eq!(receive(fd, 0), (2, vec![told]));
    // Replace the filter, then detach it.
    assert_eq!(attach(fd, &only(BYTE, 8, b'x'.into())), Ok(()));
    socket.send_to(b"ab", at).unwrap();
    socket.send_to(b"xyz", at).unwrap();
    assert_eq!(receive(fd, 0).0, 3);
    assert_eq!(set(fd, SOCKET, libc::SO_DETACH_FILTER, 0), Ok(()));
    socket.send_to(b"ab", at).unwrap();
    assert_eq!(receive(fd, 0).0, 2);
    assert_eq!(set(fd, SOCKET, libc::SO_DETACH_FILTER, 0), Err(libc::ENOENT));
}

fn a_filter_cuts_datagrams() {
    let socket = UdpSocket::bind("127.0.0.1:0").unwrap();
    let (fd, at) = (socket.as_raw_fd(), socket.local_addr().unwrap());
    // The filter cannot remove the UDP header of eight bytes.
    for (kept, expected) in [(12, 4), (9, 1), (8, 0), (3, 0), (13, 5), (1000, 5)] {
        assert_eq!(attach(fd, &[step(RETURN, 0, 0, kept)]), Ok(()));
        socket.send_to(b"abcde", at).unwrap();
        let mut text = [0; 16];
        // MSG_TRUNC returns the length after the filter has truncated the datagram.
        // SAFETY: `text` has room for 16 bytes.
        let len = unsafe { libc::recv(fd, text.as_mut_ptr().cast(), 16, libc::MSG_TRUNC) };
        assert_eq!((len, &text[..expected]), (expected as isize, &b"abcde"[..expected]));
    }
    // The filter returns the first byte of the payload as the new length.
    assert_eq!(attach(fd, &[step(BYTE, 0, 0, 8), step(0x16, 0, 0, 0)]), Ok(()));
    for len in [9, 12, 0, 13] {
        socket.send_to(&[len; 5], at).unwrap();
    }
    for len in [1, 4, 5] {
        assert_eq!(receive(fd, 0).0, len);
    }
}

fn what_a_filter_sees() {
    for (host, version, ether_type, header) in
        [("127.0.0.1", 4, 0x0800, 20), ("::1", 6, 0x86dd, 40)]
    {
        let [to, from] = [0; 2].map(|_| UdpSocket::bind((host, 0)).unwrap());
        let (fd, at) = (to.as_raw_fd(), to.local_addr().unwrap());
        let (source, destination) =
            (from.local_addr().unwrap().port().into(), u32::from(at.port()));
        let protocol = if version == 4 { 9 } else { 6 };
        let seen = [
            (LENGTH, 0, 13, "length with the header"),
            (HALF, 0, source, "source port"),
            (HALF, 2, destination, "destination port"),
            (HALF, 4, 13, "length of the datagram"),
            (WORD, 9, 0x62636465, "its end"),
            (BYTE, NETWORK + protocol, 17, "protocol"),
            (HALF, NETWORK + header, source, "source port behind the IP header"),
            (WORD, NETWORK + header + 9, 0x62636465, "its end behind the IP header"),
            (HALF, LINK + 12, ether_type, "Ethernet type in the link header"),
            (WORD, LINK, 0, "address of no station"),
            (BYTE, LINK + 14 + protocol, 17, "protocol behind the link header"),
            (HALF, LINK + 14 + header - 2, 1, "end of the address"),
            (WORD, ABOUT, ether_type, "SKF_AD_PROTOCOL"),
            (WORD, ABOUT + 4, 0, "SKF_AD_PKTTYPE"),
            (WORD, ABOUT + 8, 1, "SKF_AD_IFINDEX"),
            (WORD, ABOUT + 20, 0, "SKF_AD_MARK"),
            (WORD, ABOUT + 24, 0, "SKF_AD_QUEUE"),
            (HALF, ABOUT + 28, 772, "SKF_AD_HATYPE"),
            (BYTE, ABOUT + 44, 0, "SKF_AD_VLAN_TAG"),
            (WORD, ABOUT + 48, 0, "SKF_AD_VLAN_TAG_PRESENT"),
            (WORD, ABOUT + 52, 8, "SKF_AD_PAY_OFFSET"),
        ];
        to.set_nonblocking(true).unwrap();
        let passes = |code: &[libc::sock_filter]| {
            // The filter accepts three-byte datagrams, so that the receiver does not wait for a
            // dropped one.
            let end = [step(LENGTH, 0, 0, 0), step(EQUAL, 0, 1, 11), step(RETURN, 0, 0, 100)];
            assert_eq!(attach(fd, &[&end, code].concat()), Ok(()));
            from.send_to(b"abcde", at).unwrap();
            from.send_to(b"end", at).unwrap();
            let mut lens = Vec::new();
            while lens.last() != Some(&3) {
                match to.recv(&mut [0; 9]) {
                    Ok(len) => lens.push(len),
                    Err(error) => assert_eq!(error.kind(), ErrorKind::WouldBlock),
                }
            }
            lens == [5, 3]
        };
        for (code, k, value, what) in seen {
            assert!(passes(&only(code, k, value)), "{what} over {host}");
            assert!(!passes(&only(code, k, value ^ 1)), "{what} over {host}");
        }
        for (code, k) in [(WORD, 10), (HALF, 12), (BYTE, 13), (BYTE, NETWORK + header + 13)] {
            assert!(!passes(&[step(code, 0, 0, k), step(RETURN, 0, 0, 100)]), "{k} over {host}");
        }
        // The first load is before the link header; the second one returns a random number.
        assert!(!passes(&[step(BYTE, 0, 0, LINK - 1), step(RETURN, 0, 0, 100)]));
        assert!(passes(&[step(WORD, 0, 0, ABOUT + 56), step(RETURN, 0, 0, 100)]));
    }
}

/// Reads SO_GET_FILTER into a buffer of `room` instructions.
fn told(fd: RawFd, mut room: u32) -> Result<Vec<u64>, i32> {
    let mut code = vec![0u64; room as usize];
    let at = code.as_mut_ptr().cast();
    // SAFETY: `code` has room for `room` instructions.
    match unsafe { libc::getsockopt(fd, SOCKET, libc::SO_ATTACH_FILTER, at, &raw mut room) } {
        0 => {
            code.resize(room as usize, 0);
            Ok(code)
        }
        _ => Err(errno()),
    }
}

fn filters_are_told_and_locked() {
    let socket = UdpSocket::bind("127.0.0.1:0").unwrap();
    let fd = socket.as_raw_fd();
    assert_eq!(get(fd, SOCKET, libc::SO_DETACH_FILTER), Err(libc::ENOPROTOOPT));
    assert_eq!(set(fd, SOCKET, libc::SO_DETACH_FILTER, 0), Err(libc::ENOENT));
    assert_eq!(told(fd, 0), Ok(vec![]), "there is none");
    assert_eq!(told(fd, 9), Ok(vec![]));
    assert_eq!(attach(fd, &only(BYTE, 8, 7)), Ok(()));
    assert_eq!(told(fd, 0), Ok(vec![0; 4]), "as many instructions");
    assert_eq!(told(fd, 3), Err(libc::EINVAL));
    let small = told(fd, 4).unwrap();
    assert_eq!(small[1].to_ne_bytes(), [EQUAL as u8, 0, 0, 1, 7, 0, 0, 0]);
    assert_eq!(told(fd, 5), Ok(small));
    // A filter that exceeds one request to the engine.
    let long: Vec<_> = (0..1000).map(|k| step(0, 0, 0, k)).chain([step(RETURN, 0, 0, 9)]).collect();
    assert_eq!(attach(fd, &long), Ok(()));
    let code = told(fd, 1001).unwrap();
    assert!(code[..1000].iter().enumerate().all(|(k, code)| *code == (k as u64) << 32));
    let at = socket.local_addr().unwrap();
    socket.send_to(b"abc", at).unwrap();
    assert_eq!(receive(fd, 0).0, 1);

    assert_eq!(get(fd, SOCKET, SO_LOCK_FILTER), Ok(0));
    assert_eq!(set(fd, SOCKET, SO_LOCK_FILTER, 0), Ok(()));
    assert_eq!(set(fd, SOCKET, SO_LOCK_FILTER, 5), Ok(()));
    assert_eq!(get(fd, SOCKET, SO_LOCK_FILTER), Ok(1));
    assert_eq!(set(fd, SOCKET, SO_LOCK_FILTER, 0), Err(libc::EPERM));
    assert_eq!(set(fd, SOCKET, SO_LOCK_FILTER, 1), Ok(()));
    assert_eq!(set(fd, SOCKET, libc::SO_DETACH_FILTER, 0), Err(libc::EPERM));
    assert_eq!(attach(fd, &only(BYTE, 8, 7)), Err(libc::EPERM));
    assert_eq!(told(fd, 1001).unwrap(), code);
}

fn filters_that_are_refused() {
    let socket = UdpSocket::bind("127.0.0.1:0").unwrap();
    let fd = socket.as_raw_fd();
    let end = step(RETURN, 0, 0, 1);
    let refused = [
        vec![],
        vec![step(0, 0, 0, 1)],
        vec![step(0xffff, 0, 0, 0), end],
        vec![step(0x05, 0, 0, 1), end],
        vec![step(EQUAL, 0, 1, 1), end],
        vec![step(0x60, 0, 0, 3), end],
        vec![step(0x34, 0, 0, 0), end],
        vec![step(WORD, 0, 0, ABOUT + 1), end],
        vec![end; 4097],
    ];
    for code in &refused {
        assert_eq!(attach(fd, code), Err(libc::EINVAL));
    }
    assert_eq!(told(fd, 0), Ok(vec![]));
    let mut code = [end];
    let fprog = libc::sock_fprog { len: 1, filter: code.as_mut_ptr() };
    assert_eq!(attach_fprog(fd, &fprog, 15), Err(libc::EINVAL));
    assert_eq!(attach_fprog(fd, &fprog, 3), Err(libc::EINVAL));
    let nowhere = libc::sock_fprog { len: 1, filter: std::ptr::null_mut() };
    assert_eq!(attach_fprog(fd, &nowhere, 16), Err(libc::EINVAL));
    let beyond = libc::sock_fprog { len: 1, filter: std::ptr::without_provenance_mut(8) };
    assert_eq!(attach_fprog(fd, &beyond, 16), Err(libc::EFAULT));
    for name in OF_THE_KERNEL {
        assert_eq!(set(fd, SOCKET, name, -1), Err(libc::EBADF));
        assert_eq!(set(fd, SOCKET, name, 1), Err(libc::EINVAL), "no program of the kernel");
    }
}

fn streams_have_no_filters() {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let fd = listener.as_raw_fd();
    assert_eq!(attach(fd, &[step(RETURN, 0, 0, 1)]), Err(libc::ENOPROTOOPT));
    assert_eq!(set(fd, SOCKET, libc::SO_DETACH_FILTER, 0), Err(libc::ENOENT));
    assert_eq!(told(fd, 9), Ok(vec![]));
}
