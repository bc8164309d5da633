//! Paths, folders and streams that refer to descriptors. Each case also runs on the kernel.

use std::collections::BTreeSet;
use std::ffi::{CStr, CString};
use std::fs::File;
use std::io::{Read, Write};
use std::net::UdpSocket;
use std::os::fd::{AsRawFd, IntoRawFd, RawFd};
use std::path::PathBuf;
use std::process::Command;

use crate::harness::Case;
use crate::sockets::{errno, pair};

pub const CASES: &[Case] = &[
    (
        "descriptors_are_those_that_the_program_opened",
        descriptors_are_those_that_the_program_opened,
    ),
    ("descriptors_of_a_program_that_is_started", descriptors_of_a_program_that_is_started),
    ("numbers_in_other_folders", numbers_in_other_folders),
    ("paths_that_are_not_there", paths_that_are_not_there),
    ("a_file_in_the_place_of_a_socket", a_file_in_the_place_of_a_socket),
];

/// Exclusive upper bound of descriptor numbers in these cases.
const NUMBERS: RawFd = 20_000;

/// Returns the numbers among a folder's names. `wrapped`: by libc's getdents64 instead of
/// syscall(2).
fn listed(folder: &File, wrapped: bool) -> BTreeSet<RawFd> {
    const NAME_AT: usize = 19;
    let mut numbers = BTreeSet::new();
    let mut buffer = [0u64; 64];
    let (fd, at, len) = (folder.as_raw_fd(), buffer.as_mut_ptr(), size_of_val(&buffer));
    loop {
        // SAFETY: the address and length are those of `buffer`.
        let got = unsafe {
            match wrapped {
                true => getdents64(fd, at.cast(), len),
                false => libc::syscall(libc::SYS_getdents64, fd, at, len) as isize,
            }
        };
        assert!(got >= 0, "{}", errno());
        if got == 0 {
            return numbers;
        }
        let mut at = at.cast::<u8>();
        // SAFETY: the kernel has written complete entries with NUL-terminated names.
        unsafe {
            let end = at.add(got as usize);
            while at < end {
                let name = CStr::from_ptr(at.add(NAME_AT).cast()).to_str().unwrap();
                numbers.extend(name.parse::<RawFd>());
                at = at.add(usize::from(at.add(16).cast::<u16>().read_unaligned()));
            }
        }
    }
}

unsafe extern "C" {
    fn getdents64(fd: i32, to: *mut libc::c_void, len: usize) -> isize;
}

fn descriptors_are_those_that_the_program_opened() {
    let _socket = UdpSocket::bind("127.0.0.1:0").unwrap();
    // SAFETY: the calls take integers and a `stat`, for which zeroes are valid.
    let (known, seen): (BTreeSet<RawFd>, BTreeSet<RawFd>) = unsafe {
        let mut stat: libc::stat = std::mem::zeroed();
        (
            (0..NUMBERS).filter(|fd| libc::fcntl(*fd, libc::F_GETFD) >= 0).collect(),
            (0..NUMBERS).filter(|fd| libc::fstat(*fd, &raw mut stat) == 0).collect(),
        )
    };
    assert_eq!(known, seen);
    for path in ["/proc/self/fd", "/proc/self/fdinfo", "/proc/thread-self/fd"] {
        for wrapped in [true, false] {
            let folder = File::open(path).unwrap();
            let mut numbers = listed(&folder, wrapped);
            assert!(numbers.remove(&folder.as_raw_fd()));
            assert_eq!(numbers, known, "{path} {wrapped}");
        }
        let numbers: BTreeSet<RawFd> = std::fs::read_dir(path)
            .unwrap()
            .filter_map(|entry| entry.unwrap().file_name().to_str().unwrap().parse().ok())
            .collect();
        // The additional number is the descriptor of the listing itself, which is closed by now.
        assert!(numbers.is_superset(&known) && numbers.len() == known.len() + 1, "{path}");
    }
    let links = (0..NUMBERS).filter(|fd| std::fs::read_link(format!("/proc/self/fd/{fd}")).is_ok());
    assert_eq!(links.collect::<BTreeSet<_>>(), known);
}

/// A started program sees only the inherited descriptors in /proc/self/fd, as Python's pass_fds
/// test expects.
fn descriptors_of_a_program_that_is_started() {
    let _socket = UdpSocket::bind("127.0.0.1:0").unwrap();
    // Descriptors that are not close-on-exec, including the standard streams.
    // SAFETY: fcntl takes integers only.
    let is_kept = |fd: &RawFd| unsafe { libc::fcntl(*fd, libc::F_GETFD) } == 0;
    let mut expected: BTreeSet<RawFd> = (0..NUMBERS).filter(is_kept).collect();
    // `ls` itself opens the folder, with the lowest free number.
    let free = (0..NUMBERS).find(|fd| !expected.contains(fd)).unwrap();
    expected.insert(free);
    let output = Command::new("ls").arg("/proc/self/fd").output().unwrap();
    let text = String::from_utf8(output.stdout).unwrap();
    assert_eq!(
        text.lines().map(|line| line.parse().unwrap()).collect::<BTreeSet<RawFd>>(),
        expected
    );
}

/// Creates a folder with a unique name. The case removes it.
pub fn fresh_folder() -> PathBuf {
    let pattern = std::env::temp_dir().join("towpath-case-XXXXXX");
    let pattern = CString::new(pattern.into_os_string().into_encoded_bytes()).unwrap().into_raw();
    // SAFETY: mkdtemp(3) replaces the end of `pattern`, an owned C string.
    unsafe {
        let made = libc::mkdtemp(pattern);
        assert!(!made.is_null(), "{}", errno());
        CString::from_raw(pattern).into_string().unwrap().into()
    }
}

/// File names in other folders may equal the numbers of the library's descriptors.
fn numbers_in_other_folders() {
    let folder = fresh_folder();
    let numbers = [900, 901, 940, 16_384, 16_385, 19_936, 19_937, 960, 961, 962];
    // Also use names around the numbers just below the limit, where the library has descriptors.
    let mut limit = libc::rlimit { rlim_cur: 0, rlim_max: 0 };
    // SAFETY: room for the answer.
    assert_eq!(unsafe { libc::getrlimit(libc::RLIMIT_NOFILE, &raw mut limit) }, 0);
    let base = limit.rlim_cur.saturating_sub(64).min(16_384) as i32;
    let names: BTreeSet<i32> = numbers.into_iter().chain(base..base + 20).collect();
    for name in &names {
        std::fs::write(folder.join(name.to_string()), "").unwrap();
    }
    let found: BTreeSet<i32> = std::fs::read_dir(&folder)
        .unwrap()
        .map(|entry| entry.unwrap().file_name().to_str().unwrap().parse().unwrap())
        .collect();
    let by_number = listed(&File::open(&folder).unwrap(), false);
    std::fs::remove_dir_all(&folder).unwrap();
    assert_eq!((&found, &by_number), (&names, &names));
}

/// Only the kernel reads paths, so invalid pointers cause EFAULT and no crash.
fn paths_that_are_not_there() {
    let nowhere = std::ptr::dangling::<libc::c_char>();
    let mut room = [0u64; 64];
    let stat = room.as_mut_ptr().cast::<libc::stat>();
    let fault = |result: i64| assert_eq!((result, errno()), (-1, libc::EFAULT));
    // SAFETY: only the kernel accesses the invalid address, and returns EFAULT.
    unsafe {
        fault(libc::open(nowhere, libc::O_RDONLY).into());
        fault(libc::open64(nowhere, libc::O_RDONLY).into());
        fault(libc::openat(libc::AT_FDCWD, nowhere, libc::O_RDONLY).into());
        fault(libc::stat(nowhere, stat).into());
        fault(libc::fstatat(libc::AT_FDCWD, nowhere, stat, 0).into());
        fault(libc::statx(libc::AT_FDCWD, nowhere, 0, 0, room.as_mut_ptr().cast()).into());
        fault(libc::readlink(nowhere, room.as_mut_ptr().cast(), 8) as i64);
        fault(libc::readlinkat(libc::AT_FDCWD, nowhere, room.as_mut_ptr().cast(), 8) as i64);
        fault(libc::syscall(libc::SYS_openat, libc::AT_FDCWD, nowhere, libc::O_RDONLY));
        fault(libc::syscall(libc::SYS_newfstatat, libc::AT_FDCWD, nowhere, stat, 0));
        assert!(libc::fopen(nowhere, c"r".as_ptr()).is_null());
        assert_eq!(errno(), libc::EFAULT);
    }
}

/// Daemons use freopen(3) to replace the socket with which they were started.
fn a_file_in_the_place_of_a_socket() {
    for path in [Some(c"/dev/null"), Some(c"/nowhere/at/all"), None] {
        let (server, mut client) = pair();
        // SAFETY: `file` is a valid stream until it is closed.
        unsafe {
            let fd = server.into_raw_fd();
            let file = libc::fopen(c"/dev/null".as_ptr(), c"w".as_ptr());
            assert!(!file.is_null());
            let number = libc::fileno(file);
            assert_eq!(libc::dup2(fd, number), number);
            assert_eq!(libc::close(fd), 0);
            assert!(libc::fputs(c"last words".as_ptr(), file) >= 0);
            let name = path.map_or(std::ptr::null(), CStr::as_ptr);
            let again = libc::freopen(name, c"w".as_ptr(), file);
            assert_eq!(again.is_null(), path != Some(c"/dev/null"), "{path:?}");
            if again.is_null() {
                assert_eq!((libc::fcntl(number, libc::F_GETFD), errno()), (-1, libc::EBADF));
            } else {
                assert_eq!((again, libc::fileno(again)), (file, number));
                assert!(libc::fputs(c"to nobody".as_ptr(), file) >= 0);
                assert_eq!(libc::fflush(file), 0);
                let mut stat: libc::stat = std::mem::zeroed();
                assert_eq!(libc::fstat(number, &raw mut stat), 0);
                assert_eq!(stat.st_mode & libc::S_IFMT, libc::S_IFCHR);
                assert_eq!(libc::fclose(file), 0);
            }
        }
        let mut heard = String::new();
        client.read_to_string(&mut heard).unwrap();
        assert_eq!(heard, "last words", "and the end of the stream");
        let _ = client.write(b"x");
    }
}
