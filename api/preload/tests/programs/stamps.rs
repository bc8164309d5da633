//! Timestamps of sent bytes (SO_TIMESTAMPING).

use std::io::{Read, Write};
use std::os::fd::{AsRawFd, RawFd};

use crate::harness::Case;
use crate::sockets::{errno, get, pair, set};
use crate::values::receive;

pub const CASES: &[Case] = &[
    ("bytes_of_a_stream_are_stamped", bytes_of_a_stream_are_stamped),
    (
        "numbers_of_bytes_start_at_the_last_queued_one",
        numbers_of_bytes_start_at_the_last_queued_one,
    ),
    ("a_datagram_is_stamped_twice", a_datagram_is_stamped_twice),
    ("numbers_need_a_connection", numbers_need_a_connection),
];

const SOCKET: i32 = libc::SOL_SOCKET;
/// SOF_TIMESTAMPING_TX_SOFTWARE, _SOFTWARE, _OPT_ID, _TX_SCHED, _TX_ACK, _OPT_TSONLY and
/// _OPT_ID_TCP.
const TX: i32 = 1 << 1;
const SOFTWARE: i32 = 1 << 4;
const ID: i32 = 1 << 7;
const SCHED: i32 = 1 << 8;
const ACK: i32 = 1 << 9;
const TIME_ONLY: i32 = 1 << 11;
const ID_TCP: i32 = 1 << 16;
/// SCM_TSTAMP_SND, _SCHED and _ACK.
const SENT: u32 = 0;
const SCHEDULED: u32 = 1;
const ACKED: u32 = 2;

/// Waits for the next timestamp in the error queue. Returns its kind and number.
fn next_stamp(fd: RawFd) -> (u32, u32) {
    let mut entry = libc::pollfd { fd, events: 0, revents: 0 };
    // SAFETY: one entry.
    assert_eq!(unsafe { libc::poll(&raw mut entry, 1, -1) }, 1);
    assert_eq!(entry.revents & libc::POLLERR, libc::POLLERR);
    let (len, found) = receive(fd, libc::MSG_ERRQUEUE);
    assert_eq!((len, found.len()), (0, 2));
    assert_eq!((found[0].0, found[0].1), (SOCKET, libc::SO_TIMESTAMPING));
    let error = &found[1].2;
    // ENOMSG and SO_EE_ORIGIN_TIMESTAMPING.
    assert_eq!(error[..8], [42, 0, 0, 0, 4, 0, 0, 0]);
    let word = |at: usize| u32::from_ne_bytes(error[at..at + 4].try_into().unwrap());
    (word(8), word(12))
}

fn has_no_stamp(fd: RawFd) -> bool {
    // SAFETY: the length is 0, so the null pointer is not used.
    let nothing = unsafe { libc::recv(fd, std::ptr::null_mut(), 0, libc::MSG_ERRQUEUE) };
    (nothing, errno()) == (-1, libc::EAGAIN)
}

fn bytes_of_a_stream_are_stamped() {
    let (mut near, mut far) = pair();
    let fd = near.as_raw_fd();
    near.write_all(&[0; 10]).unwrap();
    far.read_exact(&mut [0; 10]).unwrap();
    let all = TX | SCHED | ACK | SOFTWARE | ID | TIME_ONLY;
    assert_eq!(set(fd, SOCKET, libc::SO_TIMESTAMPING, all), Ok(()));
    assert_eq!(get(fd, SOCKET, libc::SO_TIMESTAMPING), Ok(all));
    let mut last = u32::MAX;
    for len in [1000, 500, 100_000] {
        near.write_all(&vec![1; len]).unwrap();
        far.read_exact(&mut vec![0; len]).unwrap();
        last = last.wrapping_add(len as u32);
        let stamps = [next_stamp(fd), next_stamp(fd), next_stamp(fd)];
        assert_eq!(stamps, [(SCHEDULED, last), (SENT, last), (ACKED, last)]);
    }
    assert!(has_no_stamp(fd));
    assert_eq!(set(fd, SOCKET, libc::SO_TIMESTAMPING, ACK | SOFTWARE | TIME_ONLY), Ok(()));
    near.write_all(b"x").unwrap();
    assert_eq!(next_stamp(fd), (ACKED, 0));
    assert_eq!(set(fd, SOCKET, libc::SO_TIMESTAMPING, 0), Ok(()));
    near.write_all(b"x").unwrap();
    far.read_exact(&mut [0; 2]).unwrap();
    assert!(has_no_stamp(fd));
}

fn numbers_of_bytes_start_at_the_last_queued_one() {
    let (mut near, far) = pair();
    let fd = near.as_raw_fd();
    near.set_nonblocking(true).unwrap();
    // Fill the buffers. Bytes stay queued until the peer reads.
    while near.write(&[0; 65_536]).is_ok() {}
    near.set_nonblocking(false).unwrap();
    let flags = TX | SOFTWARE | ID | ID_TCP | TIME_ONLY;
    assert_eq!(set(fd, SOCKET, libc::SO_TIMESTAMPING, flags), Ok(()));
    let reader = std::thread::spawn(move || std::io::copy(&mut &far, &mut std::io::sink()));
    near.write_all(&[0; 7]).unwrap();
    assert_eq!(next_stamp(fd), (SENT, 6));
    drop(near);
    reader.join().unwrap().unwrap();
}

fn a_datagram_is_stamped_twice() {
    let socket = std::net::UdpSocket::bind("127.0.0.1:0").unwrap();
    let fd = socket.as_raw_fd();
    let flags = TX | SCHED | ACK | SOFTWARE | ID | TIME_ONLY;
    assert_eq!(set(fd, SOCKET, libc::SO_TIMESTAMPING, flags), Ok(()));
    for number in 0..3 {
        socket.send_to(b"x", socket.local_addr().unwrap()).unwrap();
        assert_eq!(next_stamp(fd), (SCHEDULED, number));
        assert_eq!(next_stamp(fd), (SENT, number));
    }
    assert!(has_no_stamp(fd));
}

fn numbers_need_a_connection() {
    // SAFETY: integers only.
    let fd = unsafe { libc::socket(libc::AF_INET, libc::SOCK_STREAM, 0) };
    let number = |flags| set(fd, SOCKET, libc::SO_TIMESTAMPING, flags);
    assert_eq!(number(TX | SOFTWARE | ID), Err(libc::EINVAL));
    assert_eq!(number(TX | SOFTWARE | ID_TCP), Err(libc::EINVAL));
    assert_eq!(number(TX | SCHED | ACK | SOFTWARE), Ok(()));
    // SAFETY: this function owns the descriptor.
    unsafe { libc::close(fd) };
    let (near, _far) = pair();
    assert_eq!(set(near.as_raw_fd(), SOCKET, libc::SO_TIMESTAMPING, ID_TCP), Err(libc::EINVAL));
}
