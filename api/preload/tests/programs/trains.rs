//! Sends and receives several datagrams per call (UDP_SEGMENT, UDP_GRO). Each case also runs on the
//! kernel.

use std::net::UdpSocket;
use std::os::fd::{AsRawFd, RawFd};

use crate::harness::Case;
use crate::sockets::{errno, get, set};
use crate::values::receive;

pub const CASES: &[Case] = &[
    ("trains_come_as_they_were_sent", trains_come_as_they_were_sent),
    ("trains_are_taken_in_parts_and_looked_at", trains_are_taken_in_parts_and_looked_at),
    ("trains_that_are_refused", trains_that_are_refused),
];

const UDP: i32 = libc::IPPROTO_UDP;
const UDP_SEGMENT: i32 = 103;
const UDP_GRO: i32 = 104;

/// Calls sendmsg(2) with a UDP_SEGMENT control message.
fn send_train(fd: RawFd, bytes: &[u8], size: &[u8]) -> Result<usize, i32> {
    let mut control = [0u64; 8];
    // SAFETY: zeroes are a valid msghdr. Its pointers are set to buffers that outlive the call.
    let sent = unsafe {
        let mut message: libc::msghdr = std::mem::zeroed();
        let mut buffer =
            libc::iovec { iov_base: bytes.as_ptr().cast_mut().cast(), iov_len: bytes.len() };
        (message.msg_iov, message.msg_iovlen) = (&raw mut buffer, 1);
        message.msg_control = control.as_mut_ptr().cast();
        message.msg_controllen = libc::CMSG_SPACE(size.len() as u32) as usize;
        let header = libc::CMSG_FIRSTHDR(&raw const message);
        (*header).cmsg_level = UDP;
        (*header).cmsg_type = UDP_SEGMENT;
        (*header).cmsg_len = libc::CMSG_LEN(size.len() as u32) as usize;
        std::ptr::copy_nonoverlapping(size.as_ptr(), libc::CMSG_DATA(header), size.len());
        libc::sendmsg(fd, &raw const message, 0)
    };
    usize::try_from(sent).map_err(|_| errno())
}

fn ends(host: &str) -> (UdpSocket, UdpSocket) {
    let (to, from) = (UdpSocket::bind((host, 0)).unwrap(), UdpSocket::bind((host, 0)).unwrap());
    from.connect(to.local_addr().unwrap()).unwrap();
    (to, from)
}

fn merged(size: i32) -> Vec<(i32, i32, Vec<u8>)> {
    vec![(UDP, UDP_GRO, size.to_ne_bytes().to_vec())]
}

fn trains_come_as_they_were_sent() {
    for host in ["127.0.0.1", "::1"] {
        let (to, from) = ends(host);
        let (fd, sender) = (to.as_raw_fd(), from.as_raw_fd());
        assert_eq!(get(fd, UDP, UDP_GRO), Ok(0));
        assert_eq!(set(fd, UDP, UDP_GRO, 7), Ok(()));
        assert_eq!(get(fd, UDP, UDP_GRO), Ok(1));
        assert_eq!(set(sender, UDP, UDP_SEGMENT, 10), Ok(()));
        assert_eq!(get(sender, UDP, UDP_SEGMENT), Ok(10));
        let text: Vec<u8> = (0..35).collect();
        from.send(&text).unwrap();
        assert_eq!(receive(fd, 0), (35, merged(10)));
        // A datagram of at most one segment is not split.
        from.send(&text[..10]).unwrap();
        assert_eq!(receive(fd, 0), (10, Vec::new()));
        assert_eq!(send_train(sender, &text, &7u16.to_ne_bytes()), Ok(35));
        assert_eq!(receive(fd, 0), (35, merged(7)));
        assert_eq!(send_train(sender, &text, &0u16.to_ne_bytes()), Ok(35));
        assert_eq!(receive(fd, 0), (35, Vec::new()), "in one piece");
        // Without UDP_GRO, the receiver gets each datagram separately.
        assert_eq!(set(fd, UDP, UDP_GRO, 0), Ok(()));
        from.send(&text).unwrap();
        for (number, len) in [10, 10, 10, 5].into_iter().enumerate() {
            let mut part = [0; 64];
            assert_eq!(to.recv(&mut part).unwrap(), len);
            assert_eq!(part[..len], text[number * 10..][..len]);
        }
    }
}

fn trains_are_taken_in_parts_and_looked_at() {
    let (to, from) = ends("127.0.0.1");
    let (fd, sender) = (to.as_raw_fd(), from.as_raw_fd());
    assert_eq!(set(fd, UDP, UDP_GRO, 1), Ok(()));
    let text: Vec<u8> = (0..100).cycle().take(60_000).collect();
    assert_eq!(send_train(sender, &text, &1000u16.to_ne_bytes()), Ok(60_000));
    assert_eq!(receive(fd, libc::MSG_PEEK).1, merged(1000));
    let mut all = vec![0; 65_536];
    assert_eq!(to.recv(&mut all).unwrap(), 60_000);
    assert!(all[..60_000] == text);
    // If the buffer is too small, the remaining bytes of all merged datagrams are lost.
    assert_eq!(send_train(sender, &text[..3000], &1000u16.to_ne_bytes()), Ok(3000));
    from.send(b"next").unwrap();
    // SAFETY: `all` has room for 1500 bytes.
    let len = unsafe { libc::recv(fd, all.as_mut_ptr().cast(), 1500, libc::MSG_TRUNC) };
    assert_eq!((len, to.recv(&mut all).unwrap()), (3000, 4));
}

fn trains_that_are_refused() {
    let (to, from) = ends("127.0.0.1");
    let sender = from.as_raw_fd();
    assert_eq!(set(sender, UDP, UDP_SEGMENT, -1), Err(libc::EINVAL));
    assert_eq!(set(sender, UDP, UDP_SEGMENT, 65_536), Err(libc::EINVAL));
    let long = vec![7; 65_508];
    assert_eq!(send_train(sender, &long[..1290], &10u16.to_ne_bytes()), Err(libc::EINVAL));
    assert_eq!(send_train(sender, &long[..1280], &10u16.to_ne_bytes()), Ok(1280));
    assert_eq!(send_train(sender, &long, &60_000u16.to_ne_bytes()), Err(libc::EMSGSIZE));
    assert_eq!(send_train(sender, b"abc", &[1]), Err(libc::EINVAL));
    assert_eq!(send_train(sender, b"abc", &[1, 0, 0, 0]), Err(libc::EINVAL));
    to.recv(&mut [0; 64]).unwrap();
}
