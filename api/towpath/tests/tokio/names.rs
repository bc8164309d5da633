//! Names, resolved by a nameserver on the stack.

use std::io::ErrorKind;
use std::net::SocketAddr;

use tokio::io::{AsyncReadExt, AsyncWriteExt};
use towpath::Stack;
use towpath::tokio::{TcpListener, TcpStream, UdpSocket, lookup_host_on};

use crate::current_thread;

const AAAA: u8 = 28;
const NXDOMAIN: u8 = 3;

/// Answers to a question: `db.test` has two addresses, and `large.test` is answered over TCP only.
fn answer(question: &[u8], is_tcp: bool) -> Vec<u8> {
    let name_end = 12 + question[12..].iter().position(|byte| *byte == 0).expect("a name");
    let (name, kind) = (&question[12..name_end], question[name_end + 2]);
    let mut message = question[..name_end + 5].to_vec();
    message[2..12].copy_from_slice(&[0x81, 0x80, 0, 1, 0, 0, 0, 0, 0, 0]);
    let record = |data: &[u8]| {
        let head = [0xc0, 12, 0, kind, 0, 1, 0, 0, 0, 60, 0, data.len() as u8];
        [&head[..], data].concat()
    };
    let data: &[u8] = match (name, kind) {
        (b"\x05large\x04test", _) if !is_tcp => {
            message[2] |= 2;
            return message;
        }
        (b"\x05large\x04test" | b"\x02db\x04test", AAAA) => {
            &[0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 1]
        }
        (b"\x05large\x04test" | b"\x02db\x04test", _) => &[127, 0, 0, 1],
        (b"\x05empty\x04test", _) => return message,
        _ => {
            message[3] |= NXDOMAIN;
            return message;
        }
    };
    message[7] = 1;
    [message, record(data)].concat()
}

/// Starts a stack with a nameserver at its own loopback address.
async fn stack_with_nameserver() -> Stack {
    let nameserver = std::net::Ipv4Addr::LOCALHOST;
    let stack = Stack::builder().loopback().nameserver(nameserver).start().expect("a stack");
    let socket = UdpSocket::bind_on(&stack, "127.0.0.1:53").await.expect("a port");
    let listener = TcpListener::bind_on(&stack, "127.0.0.1:53").await.expect("a port");
    tokio::spawn(async move {
        let mut question = [0; 512];
        while let Ok((len, from)) = socket.recv_from(&mut question).await {
            // A datagram of another host, or for another question, is ignored.
            socket.send_to(b"noise", from).await.expect("sent");
            socket.send_to(&answer(&question[..len], false), from).await.expect("sent");
        }
    });
    tokio::spawn(async move {
        while let Ok((mut stream, _)) = listener.accept().await {
            while let Ok(len) = stream.read_u16().await {
                let mut question = vec![0; usize::from(len)];
                stream.read_exact(&mut question).await.expect("a question");
                let answer = answer(&question, true);
                stream.write_u16(answer.len() as u16).await.expect("written");
                stream.write_all(&answer).await.expect("written");
            }
        }
    });
    stack
}

/// Resolves a name that ends with a dot, to which no search list of this machine applies.
async fn resolved(stack: &Stack, name: &str) -> Result<Vec<SocketAddr>, ErrorKind> {
    let addrs = lookup_host_on(stack, (name, 80)).await.map_err(|error| error.kind())?;
    Ok(addrs.collect())
}

#[test]
fn names_are_resolved_by_the_nameserver_of_the_stack() {
    current_thread().block_on(async {
        let stack = stack_with_nameserver().await;
        let both = ["[::1]:80", "127.0.0.1:80"].map(|addr| addr.parse().expect("an address"));
        assert_eq!(resolved(&stack, "db.test.").await.as_deref(), Ok(&both[..]));
        // A truncated answer is requested over TCP.
        assert_eq!(resolved(&stack, "large.test.").await.as_deref(), Ok(&both[..]));
        assert_eq!(resolved(&stack, "empty.test.").await, Err(ErrorKind::NotFound));
        assert_eq!(resolved(&stack, "missing.test.").await, Err(ErrorKind::NotFound));
        assert_eq!(resolved(&stack, "no name at all.").await, Err(ErrorKind::NotFound));
    });
}

#[test]
fn connecting_by_name_tries_all_addresses() {
    current_thread().block_on(async {
        let stack = stack_with_nameserver().await;
        // The first address of the name, ::1, refuses.
        let listener = TcpListener::bind_on(&stack, "127.0.0.1:80").await.expect("a port");
        let mut client = TcpStream::connect_on(&stack, "db.test.:80").await.expect("connected");
        let (mut server, _) = listener.accept().await.expect("accepted");
        client.write_u8(7).await.expect("written");
        assert_eq!(server.read_u8().await.expect("data"), 7);
        let socket = UdpSocket::bind_on(&stack, "127.0.0.1:0").await.expect("a port");
        socket.connect(("localhost", 80)).await.expect("a peer");
        assert_eq!(socket.peer_addr().expect("a peer").port(), 80);
    });
}

#[test]
fn a_name_without_a_nameserver_is_an_error_that_names_the_remedy() {
    current_thread().block_on(async {
        let nameserver = std::net::Ipv4Addr::LOCALHOST;
        let stack = Stack::builder().loopback().nameserver(nameserver).start().expect("a stack");
        // The stack refuses the questions, because no socket is bound to port 53.
        let error = lookup_host_on(&stack, "db.test.:80").await.map(drop).expect_err("no server");
        assert_eq!(error.kind(), ErrorKind::TimedOut);
        let text = error.to_string();
        assert!(text.contains("127.0.0.1") && text.contains("Builder::nameserver"), "{text}");
    });
}

/// Runs the next test in a network namespace of its own, with all rights there.
#[test]
fn a_nameserver_that_is_unreachable_is_not_waited_for() {
    let run = std::process::Command::new("unshare")
        .args(["-U", "-n", "--map-current-user", "--keep-caps"])
        .arg(std::env::current_exe().expect("a path"))
        .args(["--exact", "names::beyond_an_unreachable_route", "--ignored", "--nocapture"])
        .output()
        .expect("unshare(1) of util-linux");
    let (out, err) = (String::from_utf8_lossy(&run.stdout), String::from_utf8_lossy(&run.stderr));
    assert!(run.status.success() && out.contains("1 passed"), "{out}{err}");
}

#[test]
#[ignore = "another test runs it in a namespace"]
fn beyond_an_unreachable_route() {
    current_thread().block_on(async {
        let nameserver = std::net::Ipv4Addr::new(10, 88, 0, 1);
        let builder = Stack::builder().tap("tw6").address("10.77.0.2/24").nameserver(nameserver);
        let stack = builder.start().expect("a stack");
        // The kernel answers a question by the ICMP error "host unreachable".
        std::fs::write("/proc/sys/net/ipv4/ip_forward", "1").expect("forwarding");
        let ip = std::process::Command::new("ip")
            .args(["route", "add", "unreachable", "10.88.0.0/16"])
            .status();
        assert!(ip.expect("iproute2").success());
        let lookup = lookup_host_on(&stack, "db.test.:80");
        // Two attempts at five seconds each without the errors.
        let lookup = tokio::time::timeout(std::time::Duration::from_secs(8), lookup).await;
        let error = lookup.expect("no wait for an answer").map(drop).expect_err("no server");
        assert_eq!(error.kind(), ErrorKind::TimedOut);
    });
}

#[test]
fn a_lookup_ends_with_the_stack() {
    current_thread().block_on(async {
        let nameserver = std::net::Ipv4Addr::LOCALHOST;
        let stack = Stack::builder().loopback().nameserver(nameserver).start().expect("a stack");
        let silent = UdpSocket::bind_on(&stack, "127.0.0.1:53").await.expect("a port");
        let asking = stack.clone();
        let lookup = tokio::spawn(async move { resolved(&asking, "db.test.").await });
        silent.recv(&mut [0; 512]).await.expect("a question");
        let ended = stack.clone();
        let ending = tokio::task::spawn_blocking(move || ended.shutdown());
        assert_eq!(lookup.await.expect("no panic"), Err(ErrorKind::NetworkDown));
        let _ = ending.await.expect("no panic");
    });
}
