//! Ends of records (MSG_EOR), and the statistics of ended connections.

use std::io::{Read, Write};
use std::os::fd::{AsRawFd, RawFd};
use std::time::{Duration, Instant};

use crate::harness::Case;
use crate::sockets::{pair, set};

pub const CASES: &[Case] = &[
    ("a_record_shares_no_segment", a_record_shares_no_segment),
    ("statistics_outlive_the_connection", statistics_outlive_the_connection),
];

/// TCP_CLOSE.
const CLOSED: u8 = 7;

/// Fields of `struct tcp_info`.
#[derive(Debug, PartialEq, Eq)]
struct Statistics {
    state: u8,
    snd_mss: u32,
    data_segs_out: u32,
}

fn statistics(fd: RawFd) -> Statistics {
    let mut info = [0u8; 160];
    let mut len = 160;
    // SAFETY: a buffer and its size.
    let result = unsafe {
        libc::getsockopt(
            fd,
            libc::IPPROTO_TCP,
            libc::TCP_INFO,
            info.as_mut_ptr().cast(),
            &raw mut len,
        )
    };
    assert_eq!((result, len), (0, 160));
    let word = |at: usize| u32::from_ne_bytes(info[at..at + 4].try_into().unwrap());
    Statistics { state: info[0], snd_mss: word(16), data_segs_out: word(156) }
}

/// The cork holds both calls back, and without MSG_EOR would send them in one segment.
fn a_record_shares_no_segment() {
    let (mut server, client) = pair();
    let fd = client.as_raw_fd();
    for (flags, segments) in [(0, 1), (libc::MSG_EOR, 2)] {
        loop {
            let (before, began) = (statistics(fd).data_segs_out, Instant::now());
            assert_eq!(set(fd, libc::IPPROTO_TCP, libc::TCP_CORK, 1), Ok(()));
            for flags in [flags, 0] {
                // SAFETY: ten bytes.
                let sent = unsafe { libc::send(fd, b"0123456789".as_ptr().cast(), 10, flags) };
                assert_eq!(sent, 10);
            }
            assert_eq!(set(fd, libc::IPPROTO_TCP, libc::TCP_CORK, 0), Ok(()));
            // A cork holds bytes for 200 ms only, so try again after a pause of this thread.
            let is_held = began.elapsed() < Duration::from_millis(100);
            server.read_exact(&mut [0; 20]).unwrap();
            if is_held {
                assert_eq!(statistics(fd).data_segs_out - before, segments, "{flags}");
                break;
            }
        }
    }
}

fn statistics_outlive_the_connection() {
    let (mut server, mut client) = pair();
    let fd = client.as_raw_fd();
    client.write_all(b"x").unwrap();
    server.read_exact(&mut [0; 1]).unwrap();
    let before = statistics(fd);
    let now = libc::linger { l_onoff: 1, l_linger: 0 };
    // SAFETY: a struct and its size.
    let result = unsafe {
        libc::setsockopt(
            server.as_raw_fd(),
            libc::SOL_SOCKET,
            libc::SO_LINGER,
            (&raw const now).cast(),
            size_of::<libc::linger>() as u32,
        )
    };
    assert_eq!(result, 0);
    drop(server);
    assert!(client.read(&mut [0; 1]).is_err(), "a reset");
    assert_eq!(statistics(fd), Statistics { state: CLOSED, ..before });
}
