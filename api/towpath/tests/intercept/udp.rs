//! Datagrams and echo requests.

use std::net::{IpAddr, SocketAddr};
use std::time::Duration;

use towpath::intercept::{EchoPolicy, Refusal, UdpFlow};
use towpath_stack::{DropReason, SocketOption};
use towpath_wire::{IpProtocol, icmpv4, ipv4};

use crate::client::{ADDR, Client};
use crate::{on_both, pair};

const SERVER: ([u8; 4], u16) = ([192, 0, 2, 7], 53);

#[test]
fn datagrams_are_answered_in_the_name_of_their_destination() {
    on_both(|| async {
        let (mut client, parts) = pair(|builder| builder);
        let local = SocketAddr::from((ADDR, 4000));
        let socket = client.node.udp(local).unwrap();
        client.node.send_to(socket, SERVER.into(), b"query").unwrap();
        client.node.send_to(socket, SERVER.into(), b"").unwrap();
        client.until(|_| Some(())).await;
        let mut buf = [0; 100];
        let (len, flow) = parts.udp.recv(&mut buf).await.unwrap();
        assert_eq!(&buf[..len], b"query");
        assert_eq!((flow.source, flow.destination), (local, SERVER.into()));
        assert_eq!(flow.ttl, Some(64));
        let (len, empty) = parts.udp.recv(&mut buf).await.unwrap();
        assert_eq!((len, empty), (0, flow));
        parts.udp.send(b"answer", &flow.reply()).await.unwrap();
        let answer = client.until(|client| client.node.recv_from(socket)).await;
        assert_eq!((answer.meta.remote, &answer.bytes[..]), (SERVER.into(), &b"answer"[..]));
        // Another host sends a datagram to the client as well: full cone.
        let stranger = SocketAddr::from(([198, 51, 100, 9], 9));
        let flow = UdpFlow { ttl: Some(9), traffic_class: 0x28, ..UdpFlow::new(stranger, local) };
        parts.udp.send(b"unasked", &flow).await.unwrap();
        let datagram = client.until(|client| client.node.recv_from(socket)).await;
        assert_eq!((datagram.meta.remote, datagram.meta.ttl), (stranger, 9));
        assert_eq!(datagram.meta.tos, 0x28);
    });
}

#[test]
fn long_datagrams_are_fragmented_and_reassembled() {
    on_both(|| async {
        let (mut client, parts) = pair(|builder| builder);
        let local = SocketAddr::from((ADDR, 4000));
        let socket = client.node.udp(local).unwrap();
        let bytes = crate::pattern(9000);
        client.node.send_to(socket, SERVER.into(), &bytes).unwrap();
        client.until(|_| Some(())).await;
        let mut buf = [0; 65_535];
        let (len, flow) = parts.udp.recv(&mut buf).await.unwrap();
        assert!(buf[..len] == bytes);
        parts.udp.send(&bytes, &flow.reply()).await.unwrap();
        let answer = client.until(|client| client.node.recv_from(socket)).await;
        assert!(answer.bytes == bytes);
    });
}

#[test]
fn clones_of_a_socket_share_datagrams_in_their_order() {
    on_both(|| async {
        let (mut client, parts) = pair(|builder| builder);
        let socket = client.node.udp((ADDR, 4000).into()).unwrap();
        for number in 0..20 {
            client.node.send_to(socket, SERVER.into(), &[number]).unwrap();
        }
        client
            .until(|_| (parts.interceptor.counters().datagrams_received == 20).then_some(()))
            .await;
        let clone = parts.udp.clone();
        let mut buf = [0; 100];
        for number in 0..20 {
            let reader = if number % 2 == 0 { &parts.udp } else { &clone };
            assert_eq!(reader.recv(&mut buf).await.unwrap().0, 1);
            assert_eq!(buf[0], number);
        }
    });
}

#[test]
fn icmp_errors_about_datagrams_are_reported() {
    on_both(|| async {
        let (mut client, parts) = pair(|builder| builder);
        let closed = SocketAddr::from((ADDR, 4001));
        parts.udp.send(b"to nobody", &UdpFlow::new(SERVER.into(), closed)).await.unwrap();
        let errors = async { parts.udp.recv_error().await.unwrap() };
        let error = tokio::select! {
            error = errors => error,
            () = client.run_for(Duration::from_secs(50)) => panic!("no error"),
        };
        assert_eq!((error.source, error.destination), (SERVER.into(), closed));
        assert_eq!((error.message, error.mtu), ((3, 3), None));
        assert_eq!(error.from, IpAddr::from(ADDR));
    });
}

/// Creates the report of a router that a datagram from `SERVER` to port 4000 of the client was
/// longer than `mtu`.
fn too_long(mtu: u16) -> Vec<u8> {
    let header = |len: usize, protocol, src: [u8; 4], dst: [u8; 4]| ipv4::Header {
        tos: 0,
        total_len: (ipv4::HEADER_LEN + len) as u16,
        ident: 7,
        dont_fragment: true,
        more_fragments: false,
        fragment_offset: 0,
        ttl: 64,
        protocol,
        src: src.into(),
        dst: dst.into(),
        options: ipv4::Options::EMPTY,
    };
    let mut quoted = vec![0; ipv4::HEADER_LEN];
    header(1408, IpProtocol::UDP, SERVER.0, ADDR).emit(&mut quoted);
    // Ports, length and checksum of the datagram.
    for word in [SERVER.1, 4000, 1408, 0] {
        quoted.extend(word.to_be_bytes());
    }
    let mut icmp = vec![3, 4, 0, 0, 0, 0];
    icmp.extend(mtu.to_be_bytes());
    icmp.extend(quoted);
    icmpv4::fill_checksum(&mut icmp);
    let mut packet = vec![0; ipv4::HEADER_LEN];
    header(icmp.len(), IpProtocol::ICMP, [10, 0, 0, 9], SERVER.0).emit(&mut packet);
    packet.extend(icmp);
    packet
}

#[test]
fn the_mtu_of_a_router_is_reported() {
    on_both(|| async {
        let (client, parts) = pair(|builder| builder);
        let flow = UdpFlow::new(SERVER.into(), (ADDR, 4000).into());
        parts.udp.send(&[7; 1400], &flow).await.unwrap();
        client.to.send(too_long(1300).into()).await.unwrap();
        let error = parts.udp.recv_error().await.unwrap();
        assert_eq!((error.source, error.destination), (flow.source, flow.destination));
        assert_eq!((error.message, error.mtu), ((3, 4), Some(1300)));
        assert_eq!(error.from, IpAddr::from([10, 0, 0, 9]));
    });
}

#[test]
fn a_refused_datagram_is_an_error_for_its_sender() {
    on_both(|| async {
        let (mut client, parts) = pair(|builder| builder);
        let socket = client.node.udp((ADDR, 4000).into()).unwrap();
        client.node.set_option(socket, SocketOption::RecvErrors(true)).unwrap();
        client.node.send_to(socket, SERVER.into(), b"query").unwrap();
        client.until(|_| Some(())).await;
        let mut buf = [0; 100];
        let (len, flow) = parts.udp.recv(&mut buf).await.unwrap();
        parts.udp.refuse(&buf[..len], &flow, Refusal::Reset).unwrap();
        let counters = |client: &Client| client.node.stack.net.counters().data;
        client.until(|client| (counters(client).icmp_errors_received == 1).then_some(())).await;
        // The error names the datagram of the socket.
        assert_eq!(counters(&client).drops.of(DropReason::IcmpErrorStray), 0);
    });
}

#[test]
fn header_fields_of_a_datagram_include_the_ecn_bits() {
    on_both(|| async {
        let (mut client, parts) = pair(|builder| builder);
        let socket = client.node.udp((ADDR, 4000).into()).unwrap();
        client.node.set_option(socket, SocketOption::Tos(0x2b)).unwrap();
        client.node.send_to(socket, SERVER.into(), b"query").unwrap();
        client.until(|_| Some(())).await;
        let (_, flow) = parts.udp.recv(&mut [0; 100]).await.unwrap();
        assert_eq!((flow.ttl, flow.traffic_class), (Some(64), 0x2b));
    });
}

#[test]
fn invalid_datagrams_are_refused() {
    on_both(|| async {
        let (_client, parts) = pair(|builder| builder);
        let local = SocketAddr::from((ADDR, 4000));
        let cases = [
            (70_000, UdpFlow::new(SERVER.into(), local)),
            (1, UdpFlow::new("[2001:db8::1]:53".parse().unwrap(), local)),
            (1, UdpFlow::new(SERVER.into(), (ADDR, 0).into())),
        ];
        for (len, flow) in cases {
            let error = parts.udp.send(&vec![0; len], &flow).await.unwrap_err();
            assert_eq!(error.kind(), std::io::ErrorKind::InvalidInput, "{flow:?}");
        }
    });
}

#[test]
fn echo_requests_follow_the_policy() {
    on_both(|| async {
        for policy in [EchoPolicy::Answer, EchoPolicy::Deliver, EchoPolicy::Ignore] {
            let (mut client, parts) = pair(|builder| builder.echo(policy));
            let pinger = client.node.echo((ADDR, 0).into()).unwrap();
            client.node.ping(pinger, SERVER.0.into(), 5, b"data").unwrap();
            client.until(|_| Some(())).await;
            match (policy, &parts.echo) {
                (EchoPolicy::Deliver, Some(echo)) => {
                    let mut buf = [0; 100];
                    let (len, request) = echo.recv(&mut buf).await.unwrap();
                    assert_eq!((&buf[..len], request.seq()), (&b"data"[..], 5));
                    assert_eq!(request.destination(), IpAddr::from(SERVER.0));
                    assert_eq!(request.source(), IpAddr::from(ADDR));
                    echo.reply(&request, b"data").unwrap();
                }
                (EchoPolicy::Deliver, None) => panic!("a socket"),
                (_, echo) => assert!(echo.is_none()),
            }
            if policy == EchoPolicy::Ignore {
                client.run_for(Duration::from_millis(50)).await;
                assert_eq!(client.node.recv_from(pinger), None);
                assert_eq!(parts.interceptor.counters().without_socket, 1);
            } else {
                let reply = client.until(|client| client.node.recv_from(pinger)).await;
                assert!(reply.bytes.ends_with(b"data"));
            }
        }
    });
}
