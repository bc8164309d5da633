//! A program's own sockets in /proc/net. Each case also runs on the kernel.

use std::fs::{File, read_link, read_to_string};
use std::io::{Read, Seek, Write};
use std::net::{TcpListener, TcpStream, UdpSocket};
use std::os::fd::{AsRawFd, FromRawFd};
use std::os::unix::fs::{FileExt, MetadataExt};

use crate::harness::Case;

pub const CASES: &[Case] = &[
    ("sockets_are_in_proc_net", sockets_are_in_proc_net),
    ("proc_net_is_read_by_every_way_to_open", every_way_to_open),
    ("proc_net_has_linuxs_columns", has_linuxs_columns),
    ("proc_net_is_read_anew", is_read_anew),
    ("sockets_of_other_processes_are_told", of_other_processes),
    ("listeners_are_listed_before_connections", listeners_first),
];

/// Returns a socket's inode number from /proc, and checks that fstat(2) returns the same.
fn inode(socket: &impl AsRawFd) -> String {
    let fd = socket.as_raw_fd();
    let link = read_link(format!("/proc/self/fd/{fd}")).unwrap();
    let link = link.to_str().unwrap().to_owned();
    let number = link.strip_prefix("socket:[").and_then(|rest| rest.strip_suffix(']')).unwrap();
    let file = std::fs::metadata(format!("/proc/self/fd/{fd}")).unwrap();
    assert_eq!(file.ino().to_string(), number);
    assert!(number.parse::<u32>().is_ok(), "{number}: sock_diag(7) has 32 bits");
    number.to_owned()
}

/// Returns local port and state in the row with this inode number.
fn row(text: &str, inode: &str) -> Option<(u16, u8)> {
    let rows = text.lines().skip(1).map(|line| line.split_whitespace().collect::<Vec<_>>());
    let row = rows.into_iter().find(|row| row.get(9) == Some(&inode))?;
    let (_, port) = row[1].split_once(':')?;
    let port = u16::from_str_radix(port, 16).ok()?;
    Some((port, u8::from_str_radix(row[3], 16).ok()?))
}

fn sockets_are_in_proc_net() {
    const ESTABLISHED: u8 = 1;
    const UNCONNECTED: u8 = 7;
    const LISTEN: u8 = 10;
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let own = listener.local_addr().unwrap();
    let client = TcpStream::connect(own).unwrap();
    let (server, peer) = listener.accept().unwrap();
    let text = read_to_string("/proc/net/tcp").unwrap();
    assert_eq!(row(&text, &inode(&listener)), Some((own.port(), LISTEN)));
    assert_eq!(row(&text, &inode(&client)), Some((peer.port(), ESTABLISHED)));
    assert_eq!(row(&text, &inode(&server)), Some((own.port(), ESTABLISHED)));
    let udp = UdpSocket::bind("127.0.0.1:0").unwrap();
    let text = read_to_string("/proc/self/net/udp").unwrap();
    let port = udp.local_addr().unwrap().port();
    assert_eq!(row(&text, &inode(&udp)), Some((port, UNCONNECTED)));
    let udp6 = UdpSocket::bind("[::1]:0").unwrap();
    let text = read_to_string(format!("/proc/{}/net/udp6", std::process::id())).unwrap();
    let port = udp6.local_addr().unwrap().port();
    assert_eq!(row(&text, &inode(&udp6)), Some((port, UNCONNECTED)));
    // A closed socket appears in no table.
    let gone = inode(&udp6);
    drop(udp6);
    assert_eq!(row(&read_to_string("/proc/net/udp6").unwrap(), &gone), None);
}

/// Linux lists listeners first, also those that are newer than a connection.
fn listeners_first() {
    const LISTEN: &str = "0A";
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let _client = TcpStream::connect(listener.local_addr().unwrap()).unwrap();
    let _server = listener.accept().unwrap();
    let _newer = TcpListener::bind("127.0.0.1:0").unwrap();
    let text = read_to_string("/proc/net/tcp").unwrap();
    let states = text.lines().skip(1).map(|line| line.split_whitespace().nth(3).unwrap());
    let states: Vec<&str> = states.skip_while(|state| *state == LISTEN).collect();
    assert!(states.len() >= 2 && !states.contains(&LISTEN), "{text}");
}

/// Every function that opens the file shows the socket, which the kernel's own table lacks.
fn every_way_to_open() {
    let socket = UdpSocket::bind("127.0.0.1:0").unwrap();
    let inode = inode(&socket);
    let see = |how: &str, fd: i32| {
        assert!(fd >= 0, "{how}: {}", std::io::Error::last_os_error());
        let mut text = String::new();
        // SAFETY: the descriptor was just opened, and has no other owner.
        unsafe { File::from_raw_fd(fd) }.read_to_string(&mut text).unwrap();
        assert!(row(&text, &inode).is_some(), "{how}: {text}");
    };
    let path = c"/proc/net/udp".as_ptr();
    // SAFETY: the paths are static C strings.
    unsafe {
        see("open", libc::open(path, libc::O_RDONLY));
        see("openat", libc::openat(libc::AT_FDCWD, path, libc::O_RDONLY));
        let folder = libc::open(c"/proc/self/net".as_ptr(), libc::O_DIRECTORY);
        see("openat of a folder", libc::openat(folder, c"udp".as_ptr(), libc::O_RDONLY));
        libc::close(folder);
        let number = libc::SYS_openat;
        see("syscall", libc::syscall(number, libc::AT_FDCWD, path, libc::O_RDONLY) as i32);
        let how = [libc::O_RDONLY as u64, 0, 0];
        let fd = libc::syscall(libc::SYS_openat2, libc::AT_FDCWD, path, how.as_ptr(), 24usize);
        see("openat2", fd as i32);
        let stream = libc::fopen(path, c"r".as_ptr());
        see("fopen", libc::dup(libc::fileno(stream)));
        libc::fclose(stream);
        let thread = c"/proc/thread-self/net/udp".as_ptr();
        see("a thread's", libc::open(thread, libc::O_RDONLY | libc::O_CLOEXEC));
        assert_eq!(libc::access(path, libc::R_OK), 0);
    }
}

/// Lines and columns have the same widths as on Linux.
fn has_linuxs_columns() {
    let _socket = UdpSocket::bind("127.0.0.1:0").unwrap();
    let _listener = TcpListener::bind("127.0.0.1:0").unwrap();
    for (name, width) in [("tcp", 149), ("udp", 127), ("route", 127)] {
        let text = read_to_string(format!("/proc/net/{name}")).unwrap();
        assert!(text.lines().all(|line| line.len() == width), "{name}: {text}");
        assert!(text.ends_with('\n'));
    }
    let text = read_to_string("/proc/net/dev").unwrap();
    assert!(text.lines().any(|line| line.starts_with("    lo: ")), "{text}");
    let text = read_to_string("/proc/net/if_inet6").unwrap();
    assert!(text.contains("00000000000000000000000000000001 01 80 10 80       lo\n"), "{text}");
    let text = read_to_string("/proc/net/snmp").unwrap();
    for layer in ["Ip", "Icmp", "Tcp", "Udp"] {
        let start = format!("{layer}: ");
        let lines: Vec<_> = text.lines().filter(|line| line.starts_with(&start)).collect();
        let [names, values] = lines[..] else { panic!("{layer}: {text}") };
        assert_eq!(names.split(' ').count(), values.split(' ').count(), "{layer}");
    }
    assert!(read_to_string("/proc/net/sockstat").unwrap().starts_with("sockets: used "));
}

/// Programs such as netdata keep the file open, and read it again from the beginning.
fn is_read_anew() {
    let first = UdpSocket::bind("127.0.0.1:0").unwrap();
    let mut file = File::open("/proc/net/udp").unwrap();
    let mut text = String::new();
    file.read_to_string(&mut text).unwrap();
    assert!(row(&text, &inode(&first)).is_some(), "{text}");
    let second = UdpSocket::bind("127.0.0.1:0").unwrap();
    let number = inode(&second);
    file.rewind().unwrap();
    text.clear();
    file.read_to_string(&mut text).unwrap();
    assert!(row(&text, &number).is_some(), "{text}");
    drop(second);
    let mut bytes = vec![0; 1 << 16];
    let n = file.read_at(&mut bytes, 0).unwrap();
    let text = std::str::from_utf8(&bytes[..n]).unwrap();
    assert!(text.starts_with("  ") && row(text, &number).is_none(), "{text}");
    assert!(row(text, &inode(&first)).is_some(), "{text}");
    // The program's own file gets the number, and must keep its content.
    let fd = file.as_raw_fd();
    drop(file);
    // SAFETY: the name is a static C string.
    let own = unsafe { libc::memfd_create(c"udp".as_ptr(), 0) };
    assert_eq!(own, fd);
    // SAFETY: the descriptor was just made, and has no other owner.
    let mut own = unsafe { File::from_raw_fd(own) };
    own.write_all(b"mine").unwrap();
    own.rewind().unwrap();
    text_is(&mut own, "mine");
}

fn text_is(file: &mut File, wanted: &str) {
    let mut text = String::new();
    file.read_to_string(&mut text).unwrap();
    assert_eq!(text, wanted);
}

/// A child has its own socket, and a duplicate of its parent's with another number.
fn of_other_processes() {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let (mut said, mut say) = std::io::pipe().unwrap();
    let (mut end, keep) = std::io::pipe().unwrap();
    // SAFETY: the child uses its own descriptors, and exits.
    let child = unsafe { libc::fork() };
    if child == 0 {
        drop(keep);
        let own = UdpSocket::bind("127.0.0.1:0").unwrap();
        // SAFETY: dup takes an integer, the number of an open descriptor.
        let double = unsafe { libc::dup(listener.as_raw_fd()) };
        writeln!(say, "{} {} {double}", own.as_raw_fd(), inode(&own)).unwrap();
        drop(say);
        // Wait until the parent has read the tables.
        let _ = end.read(&mut [0]);
        // SAFETY: takes a number.
        unsafe { libc::_exit(0) };
    }
    drop(say);
    let mut line = String::new();
    said.read_to_string(&mut line).unwrap();
    let words: Vec<_> = line.split_whitespace().collect();
    let [own, number, double] = words[..] else { panic!("{line}") };
    let link = |fd: &str| {
        let path = format!("/proc/{child}/fd/{fd}");
        let link = read_link(&path).unwrap().to_str().unwrap().to_owned();
        let file = std::fs::metadata(&path).unwrap();
        assert_eq!(link, format!("socket:[{}]", file.ino()));
        link
    };
    assert_eq!(link(own), format!("socket:[{number}]"));
    assert!(row(&read_to_string("/proc/net/udp").unwrap(), number).is_some());
    let of_listener = format!("socket:[{}]", inode(&listener));
    assert_eq!(
        [link(double), link(&listener.as_raw_fd().to_string())],
        [of_listener.clone(), of_listener]
    );
    drop(keep);
    let mut status = 0;
    // SAFETY: `status` is writable, and the child is waited for once.
    unsafe { assert_eq!(libc::waitpid(child, &raw mut status, 0), child) };
    assert_eq!(status, 0);
}
