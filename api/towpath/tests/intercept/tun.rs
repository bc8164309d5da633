//! Programs of this machine over TUN devices, each test in a network namespace of its own. The
//! tests need root and /dev/net/tun, and say so without.

#![allow(clippy::print_stderr)] // For readers of the output of the tests.

use std::io::{Read, Write};
use std::net::{Shutdown, SocketAddr, TcpStream as StdStream, UdpSocket as StdUdp};
use std::os::fd::{AsFd, AsRawFd};
use std::thread;

use tokio::io::{AsyncReadExt, AsyncWriteExt};
use towpath::intercept::{Intercepted, Interceptor, Refusal};

use crate::{PATIENCE, current_thread, multi_thread, pattern};

const SERVER: ([u8; 4], u16) = ([10, 9, 0, 7], 80);

pub fn in_namespace(test: impl Fn() + Send + 'static) {
    let thread = thread::spawn(move || {
        // SAFETY: affects only this thread, and the threads that it creates.
        if unsafe { libc::unshare(libc::CLONE_NEWNET) } != 0
            || !std::path::Path::new("/dev/net/tun").exists()
        {
            eprintln!("left out: needs root and /dev/net/tun");
            return;
        }
        test();
    });
    if let Err(panic) = thread.join() {
        std::panic::resume_unwind(panic);
    }
}

fn ip(line: &str) {
    let status = std::process::Command::new("ip").args(line.split(' ')).status();
    assert!(status.expect("iproute2").success(), "ip {line}");
}

fn intercepted() -> Intercepted {
    let builder = Interceptor::builder().tun("tw0").host_address([198, 18, 0, 1].into(), 32);
    let builder = builder.host_address("fd00:18::1".parse().unwrap(), 128);
    let builder = builder.route([10, 9, 0, 0].into(), 16);
    builder.route("2001:db8::".parse().unwrap(), 32).build().expect("a device")
}

fn connect(to: SocketAddr) -> StdStream {
    let stream = StdStream::connect_timeout(&to, PATIENCE).expect("connected");
    stream.set_read_timeout(Some(PATIENCE)).unwrap();
    stream
}

#[test]
fn megabytes_of_the_kernel_are_echoed() {
    in_namespace(|| {
        for runtime in [current_thread(), multi_thread()] {
            let servers = [SERVER.into(), "[2001:db8::7]:80".parse().unwrap()];
            runtime.block_on(async {
                let Intercepted { runner, tcp, udp, interceptor, .. } = intercepted();
                let runner = tokio::spawn(runner);
                for server in servers {
                    let client = thread::spawn(move || {
                        let mut stream = connect(server);
                        let bytes = pattern(8 << 20);
                        let mut reader = stream.try_clone().unwrap();
                        let sent = bytes.clone();
                        let writer = thread::spawn(move || {
                            stream.write_all(&sent).unwrap();
                            stream.shutdown(Shutdown::Write).unwrap();
                        });
                        let mut echoed = Vec::new();
                        reader.read_to_end(&mut echoed).unwrap();
                        writer.join().unwrap();
                        assert!(echoed == bytes);
                    });
                    let incoming = tcp.accept().await.unwrap();
                    assert_eq!(incoming.destination(), server);
                    let stream = incoming.accept().await.unwrap();
                    let (mut reader, mut writer) = tokio::io::split(stream);
                    let copied = tokio::io::copy(&mut reader, &mut writer).await.unwrap();
                    assert_eq!(copied, 8 << 20);
                    writer.shutdown().await.unwrap();
                    tokio::task::spawn_blocking(|| client.join().unwrap()).await.unwrap();
                }
                let counters = interceptor.counters();
                // Most packets contain many segments.
                let segments = (16 << 20) / 1460;
                assert!(counters.packets_received < segments, "{counters:?}");
                drop((tcp, udp, interceptor));
                runner.await.unwrap().unwrap();
            });
        }
    });
}

#[test]
fn refusals_are_errors_of_connect() {
    in_namespace(|| {
        current_thread().block_on(async {
            let Intercepted { runner, tcp, .. } = intercepted();
            tokio::spawn(runner);
            let cases = [
                (Refusal::Reset, libc::ECONNREFUSED),
                (Refusal::HostUnreachable, libc::EHOSTUNREACH),
                (Refusal::NetUnreachable, libc::ENETUNREACH),
                (Refusal::AdminProhibited, libc::EHOSTUNREACH),
            ];
            for (refusal, errno) in cases {
                let client =
                    tokio::task::spawn_blocking(|| StdStream::connect(SocketAddr::from(SERVER)));
                tcp.accept().await.unwrap().refuse(refusal);
                let error = client.await.unwrap().unwrap_err();
                assert_eq!(error.raw_os_error(), Some(errno), "{refusal:?}");
            }
        });
    });
}

#[test]
fn datagrams_of_the_kernel_are_answered() {
    in_namespace(|| {
        current_thread().block_on(async {
            let Intercepted { runner, udp, .. } = intercepted();
            tokio::spawn(runner);
            let client = tokio::task::spawn_blocking(|| {
                let socket = StdUdp::bind("198.18.0.1:0").unwrap();
                socket.set_read_timeout(Some(PATIENCE)).unwrap();
                socket.connect(SocketAddr::from(SERVER)).unwrap();
                let mut buf = [0; 2000];
                for len in [0, 1, 1400] {
                    socket.send(&pattern(len)).unwrap();
                    let n = socket.recv(&mut buf).unwrap();
                    assert!(buf[..n] == pattern(len));
                }
            });
            let mut buf = [0; 2000];
            for _ in 0..3 {
                let (len, flow) = udp.recv(&mut buf).await.unwrap();
                assert_eq!(flow.destination, SERVER.into());
                udp.send(&buf[..len], &flow.reply()).await.unwrap();
            }
            client.await.unwrap();
        });
    });
}

/// A host on the link of a TAP device whose router is the interceptor.
#[test]
fn hosts_on_a_tap_device_use_the_interceptor_as_their_router() {
    in_namespace(|| {
        current_thread().block_on(async {
            let builder = Interceptor::builder().tap("tw1").own([10, 8, 0, 2].into(), 24);
            let builder = builder.host_address([10, 8, 0, 1].into(), 24);
            let Intercepted { runner, tcp, .. } = builder.build().expect("a device");
            tokio::spawn(runner);
            ip("route add 10.9.0.0/16 via 10.8.0.2");
            let client = tokio::task::spawn_blocking(|| {
                let mut text = String::new();
                connect(SERVER.into()).read_to_string(&mut text).unwrap();
                text
            });
            let incoming = tcp.accept().await.unwrap();
            assert_eq!(incoming.source().ip(), std::net::IpAddr::from([10, 8, 0, 1]));
            let mut stream = incoming.accept().await.unwrap();
            stream.write_all(b"over Ethernet").await.unwrap();
            drop(stream);
            assert_eq!(client.await.unwrap(), "over Ethernet");
        });
    });
}

#[test]
fn the_descriptor_of_a_device_is_a_source() {
    in_namespace(|| {
        current_thread().block_on(async {
            let options = towpath_tap::Options { name: Some("tw2".into()) };
            let tun = towpath_tap::Tap::open_kind(towpath_tap::Kind::Tun, &options).unwrap();
            let fd = tun.into_parts().fd.as_fd().try_clone_to_owned().unwrap();
            ip("addr add 198.18.0.1/32 dev tw2");
            ip("link set tw2 up");
            ip("route add 10.9.0.0/16 dev tw2");
            let builder = Interceptor::builder().descriptor(fd);
            let Intercepted { runner, tcp, .. } = builder.build().expect("a device");
            tokio::spawn(runner);
            let client = tokio::task::spawn_blocking(|| connect(SERVER.into()));
            tcp.accept().await.unwrap().accept().await.unwrap();
            client.await.unwrap();
            // A socket is not a device.
            let other = std::os::fd::OwnedFd::from(StdUdp::bind("0.0.0.0:0").unwrap());
            assert!(Interceptor::builder().descriptor(other).build().is_err());
        });
    });
}

/// Creates a TUN device like a VPN client: without virtio headers.
fn plain_device(name: &str) -> std::os::fd::OwnedFd {
    let file = std::fs::OpenOptions::new().read(true).write(true).open("/dev/net/tun").unwrap();
    // SAFETY: ifreq consists of integers and unions of them, for which zero is valid.
    let mut request: libc::ifreq = unsafe { std::mem::zeroed() };
    for (to, from) in request.ifr_name.iter_mut().zip(name.bytes()) {
        *to = from as libc::c_char;
    }
    request.ifr_ifru.ifru_flags = (libc::IFF_TUN | libc::IFF_NO_PI) as libc::c_short;
    // SAFETY: TUNSETIFF reads and writes one ifreq, a local.
    let status = unsafe { libc::ioctl(file.as_raw_fd(), libc::TUNSETIFF as _, &raw mut request) };
    assert_eq!(status, 0, "{}", std::io::Error::last_os_error());
    file.into()
}

#[test]
fn a_device_without_virtio_headers_is_a_source() {
    in_namespace(|| {
        current_thread().block_on(async {
            let fd = plain_device("tw3");
            ip("addr add 198.18.0.1/32 dev tw3");
            ip("link set tw3 up");
            ip("route add 10.9.0.0/16 dev tw3");
            let builder = Interceptor::builder().descriptor(fd);
            let Intercepted { runner, tcp, udp, .. } = builder.build().expect("a device");
            tokio::spawn(runner);
            let client = tokio::task::spawn_blocking(|| {
                let mut stream = connect(SERVER.into());
                let mut reader = stream.try_clone().unwrap();
                let writer = thread::spawn(move || {
                    stream.write_all(&pattern(1 << 20)).unwrap();
                    stream.shutdown(Shutdown::Write).unwrap();
                });
                let mut echoed = Vec::new();
                reader.read_to_end(&mut echoed).unwrap();
                writer.join().unwrap();
                assert!(echoed == pattern(1 << 20));
            });
            let stream = tcp.accept().await.unwrap().accept().await.unwrap();
            let (mut reader, mut writer) = tokio::io::split(stream);
            tokio::io::copy(&mut reader, &mut writer).await.unwrap();
            writer.shutdown().await.unwrap();
            client.await.unwrap();
            // The kernel has computed the checksum of the datagram, and validates that of the
            // answer.
            let client = tokio::task::spawn_blocking(|| {
                let socket = StdUdp::bind("0.0.0.0:0").unwrap();
                socket.set_read_timeout(Some(PATIENCE)).unwrap();
                socket.connect(SocketAddr::from(SERVER)).unwrap();
                socket.send(b"query").unwrap();
                let mut buf = [0; 100];
                let len = socket.recv(&mut buf).unwrap();
                assert_eq!(&buf[..len], b"query");
            });
            let mut buf = [0; 100];
            let (len, flow) = udp.recv(&mut buf).await.unwrap();
            udp.send(&buf[..len], &flow.reply()).await.unwrap();
            client.await.unwrap();
        });
    });
}

/// Sets a header field of the packets that a socket sends.
fn set_field(socket: &impl AsFd, option: libc::c_int, value: libc::c_int) {
    // SAFETY: reads one int, a local.
    let status = unsafe {
        let len = size_of_val(&value) as libc::socklen_t;
        let fd = socket.as_fd().as_raw_fd();
        libc::setsockopt(fd, libc::IPPROTO_IP, option, (&raw const value).cast(), len)
    };
    assert_eq!(status, 0, "{}", std::io::Error::last_os_error());
}

#[test]
fn ttl_and_traffic_class_of_a_connection_are_those_of_its_last_packet() {
    in_namespace(|| {
        current_thread().block_on(async {
            let Intercepted { runner, tcp, .. } = intercepted();
            tokio::spawn(runner);
            let client = tokio::task::spawn_blocking(|| {
                let stream = connect(SERVER.into());
                set_field(&stream, libc::IP_TTL, 9);
                set_field(&stream, libc::IP_TOS, 0x28);
                (&stream).write_all(b"x").unwrap();
                stream
            });
            let incoming = tcp.accept().await.unwrap();
            assert_eq!((incoming.ttl(), incoming.traffic_class()), (64, 0));
            let mut stream = incoming.accept().await.unwrap();
            stream.read_u8().await.unwrap();
            assert_eq!((stream.received_ttl(), stream.received_traffic_class()), (9, 0x28));
            client.await.unwrap();
        });
    });
}

#[test]
fn a_deleted_device_ends_the_runner() {
    in_namespace(|| {
        current_thread().block_on(async {
            let Intercepted { runner, tcp, .. } = intercepted();
            let runner = tokio::spawn(runner);
            let client =
                tokio::task::spawn_blocking(|| StdStream::connect(SocketAddr::from(SERVER)));
            let mut stream = tcp.accept().await.unwrap().accept().await.unwrap();
            drop(client.await.unwrap().unwrap());
            let status = tokio::task::spawn_blocking(|| {
                std::process::Command::new("ip").args(["link", "del", "tw0"]).status()
            });
            assert!(status.await.unwrap().unwrap().success());
            assert!(runner.await.unwrap().is_ok());
            let error = stream.write_all(b"more").await.unwrap_err();
            assert_eq!(error.kind(), std::io::ErrorKind::NetworkDown);
            assert!(stream.read_u8().await.is_err());
        });
    });
}
