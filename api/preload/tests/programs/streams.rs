//! FILE streams of libc whose descriptors are replaced by sockets.

use std::ffi::CStr;
use std::io::{Read, Write};
use std::net::TcpListener;
use std::os::fd::AsRawFd;
use std::process::Command;

use crate::harness::Case;
use crate::processes::{fork, wait};
use crate::sockets::{errno, pair};

pub const CASES: &[Case] = &[
    ("standard_streams_on_a_later_socket", standard_streams_on_a_later_socket),
    ("a_stream_of_a_file_on_a_later_socket", a_stream_of_a_file_on_a_later_socket),
    ("a_shell_that_redirects_to_a_socket", a_shell_that_redirects_to_a_socket),
    ("streams_of_files_are_as_ever", streams_of_files_are_as_ever),
];

unsafe extern "C" {
    static stdin: *mut libc::FILE;
    static stdout: *mut libc::FILE;
}

/// As children of inetd and of nuttcp do, uses one socket for both standard streams.
fn standard_streams_on_a_later_socket() {
    let (server, mut client) = pair();
    let child = fork(|| {
        let mut line = [0; 32];
        // SAFETY: the streams are libc's, and `line` has room for 32 bytes.
        unsafe {
            assert_eq!(libc::dup2(server.as_raw_fd(), 0), 0);
            assert_eq!(libc::dup2(server.as_raw_fd(), 1), 1);
            drop(server);
            while !libc::fgets(line.as_mut_ptr(), 32, stdin).is_null() {
                libc::printf(c"heard: %s".as_ptr(), line.as_ptr());
            }
            assert_eq!((libc::feof(stdin) != 0, libc::ferror(stdin)), (true, 0));
            assert_eq!(libc::fflush(stdout), 0);
            assert_eq!(libc::fclose(stdin), 0);
            let closed = libc::fcntl(0, libc::F_GETFD);
            assert_eq!((closed, errno()), (-1, libc::EBADF));
        }
    });
    client.write_all(b"one\ntwo\n").unwrap();
    client.shutdown(std::net::Shutdown::Write).unwrap();
    let mut text = String::new();
    client.read_to_string(&mut text).unwrap();
    assert_eq!(text, "heard: one\nheard: two\n");
    assert_eq!(wait(child), 0);
}

fn a_stream_of_a_file_on_a_later_socket() {
    let (server, mut client) = pair();
    // SAFETY: `file` is a valid stream until it is closed.
    unsafe {
        let file = libc::fopen(c"/dev/null".as_ptr(), c"r+".as_ptr());
        assert!(!file.is_null());
        let number = libc::fileno(file);
        assert_eq!(libc::dup2(server.as_raw_fd(), number), number);
        drop(server);
        assert!(libc::fputs(c"hello".as_ptr(), file) >= 0 && libc::fflush(file) == 0);
        let failed = libc::fseek(file, 0, libc::SEEK_SET);
        assert_eq!((failed, errno()), (-1, libc::ESPIPE));
        let mut got = [0; 5];
        client.read_exact(&mut got).unwrap();
        assert_eq!(&got, b"hello");
        libc::clearerr(file);
        // After the reader has closed, writes set the stream's error flag.
        drop(client);
        libc::signal(libc::SIGPIPE, libc::SIG_IGN);
        while libc::fputs(c"x".as_ptr(), file) >= 0 && libc::fflush(file) == 0 {
            std::thread::sleep(std::time::Duration::from_millis(1));
        }
        assert_ne!(libc::ferror(file), 0);
        libc::fclose(file);
        let closed = libc::fcntl(number, libc::F_GETFD);
        assert_eq!((closed, errno()), (-1, libc::EBADF));
    }
}

fn a_shell_that_redirects_to_a_socket() {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let port = listener.local_addr().unwrap().port();
    let script =
        format!("exec 3<>/dev/tcp/127.0.0.1/{port}; echo hi >&3; read -r line <&3; echo \"$line\"");
    let shell =
        Command::new("bash").arg("-c").arg(script).stdout(std::process::Stdio::piped()).spawn();
    let (mut stream, _) = listener.accept().unwrap();
    let mut got = [0; 3];
    stream.read_exact(&mut got).unwrap();
    assert_eq!(&got, b"hi\n");
    stream.write_all(b"well\n").unwrap();
    let output = shell.unwrap().wait_with_output().unwrap();
    assert!(output.status.success());
    assert_eq!(output.stdout, b"well\n");
}

fn streams_of_files_are_as_ever() {
    // SAFETY: `file` is a valid stream until it is closed.
    unsafe {
        let file = libc::tmpfile();
        assert!(libc::fputs(c"one\ntwo\n".as_ptr(), file) >= 0);
        assert_eq!(libc::fseek(file, 4, libc::SEEK_SET), 0);
        let mut line = [0; 8];
        assert!(!libc::fgets(line.as_mut_ptr(), 8, file).is_null());
        assert_eq!((CStr::from_ptr(line.as_ptr()), libc::ftell(file)), (c"two\n", 8));
        assert_eq!(libc::fclose(file), 0);
    }
}
