use std::io::ErrorKind;
use std::time::Duration;

use towpath::net::KeepAlive;
use towpath::tokio::{TcpSocket, UdpSocket};

use crate::{connection, on_both};

#[test]
fn options_of_a_socket_apply_to_its_connection() {
    on_both(|stack| async move {
        let server = TcpSocket::new_v4_on(&stack).expect("a socket");
        server.set_reuseaddr(true).expect("set");
        server.set_reuseport(true).expect("set");
        assert!(server.reuseaddr().expect("get") && server.reuseport().expect("get"));
        server.bind("127.0.0.1:0".parse().expect("an address")).expect("a port");
        assert_ne!(server.local_addr().expect("bound").port(), 0);
        let listener = server.listen(16).expect("listens");
        let client = TcpSocket::new_v4_on(&stack).expect("a socket");
        client.set_nodelay(true).expect("set");
        client.set_keepalive(true).expect("set");
        client.set_linger(Some(Duration::from_secs(3))).expect("set");
        client.set_send_buffer_size(20_000).expect("set");
        client.set_recv_buffer_size(30_000).expect("set");
        assert_eq!(client.send_buffer_size().expect("get"), 40_000);
        assert_eq!(client.recv_buffer_size().expect("get"), 60_000);
        let addr = listener.local_addr().expect("bound");
        let stream = client.connect(addr).await.expect("connected");
        assert!(stream.nodelay().expect("get"));
        assert_eq!(stream.linger().expect("get"), Some(Duration::from_secs(3)));
        let keepalive = stream.as_std().keepalive().expect("get");
        assert_eq!(keepalive.map(|_| ()), Some(()));
        assert_eq!(stream.as_std().send_buffer_size().expect("get"), 40_000);
    });
}

#[test]
fn options_of_a_connection_can_be_changed() {
    on_both(|stack| async move {
        let (stream, _server) = connection(&stack).await;
        stream.set_nodelay(true).expect("set");
        stream.set_ttl(9).expect("set");
        stream.as_std().set_keepalive(Some(KeepAlive::default())).expect("set");
        assert_eq!((stream.nodelay().expect("get"), stream.ttl().expect("get")), (true, 9));
        assert!(stream.as_std().info().expect("get").cwnd > 0);
        assert!(stream.take_error().expect("get").is_none());
        let error = stream.set_ttl(0).expect_err("no TTL");
        assert_eq!(error.kind(), ErrorKind::InvalidInput);
    });
}

#[test]
fn options_of_a_udp_socket_can_be_changed() {
    on_both(|stack| async move {
        let socket = UdpSocket::bind_on(&stack, "0.0.0.0:0").await.expect("a port");
        socket.set_broadcast(true).expect("set");
        socket.set_ttl(7).expect("set");
        socket.set_multicast_ttl_v4(3).expect("set");
        socket.set_multicast_loop_v4(false).expect("set");
        assert!(socket.broadcast().expect("get") && !socket.multicast_loop_v4().expect("get"));
        let ttls = (socket.ttl().expect("get"), socket.multicast_ttl_v4().expect("get"));
        assert_eq!(ttls, (7, 3));
        let (group, interface) = ([224, 0, 0, 7].into(), [127, 0, 0, 1].into());
        socket.join_multicast_v4(group, interface).expect("joined");
        socket.leave_multicast_v4(group, interface).expect("left");
        assert!(socket.leave_multicast_v4(group, interface).is_err(), "not a member");
    });
}
