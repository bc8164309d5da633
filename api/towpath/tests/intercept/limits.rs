//! Every limit, reached by a client.

use std::time::Duration;

use towpath::intercept::{EchoPolicy, InterceptCounters, InterceptLimits, UdpFlow};
use towpath_direct::NodeEvent;
use towpath_stack::SocketError;

use crate::client::ADDR;
use crate::{on_both, pair};

fn to(port: u16) -> std::net::SocketAddr {
    ([192, 0, 2, 7], port).into()
}

/// Sends `count` SYNs at an interceptor with these limits, and returns its counters.
async fn with_syns(count: u16, limits: InterceptLimits) -> InterceptCounters {
    let (mut client, parts) = pair(|builder| builder.limits(limits));
    for port in 1..=count {
        client.node.connect(to(port)).unwrap();
    }
    // The last SYN was handled when the counters account for all of them.
    client
        .until(|_| {
            let counters = parts.interceptor.counters();
            let InterceptCounters {
                undecided, over_undecided, over_connections, over_memory, ..
            } = counters;
            let seen = undecided as u64
                + over_undecided
                + over_connections
                + counters.over_connections_per_source
                + counters.over_undecided_per_source
                + counters.over_memory_per_source
                + over_memory;
            (seen >= count.into()).then_some(counters)
        })
        .await
}

#[test]
fn syns_beyond_a_limit_are_ignored_and_counted() {
    on_both(|| async {
        let limits = InterceptLimits { connections: 3, ..InterceptLimits::default() };
        let counters = with_syns(8, limits).await;
        assert_eq!((counters.undecided, counters.over_connections), (3, 5));

        let limits = InterceptLimits { connections_per_source: 3, ..InterceptLimits::default() };
        let counters = with_syns(8, limits).await;
        assert_eq!((counters.undecided, counters.over_connections_per_source), (3, 5));

        let limits = InterceptLimits { undecided_per_source: 3, ..InterceptLimits::default() };
        let counters = with_syns(8, limits).await;
        assert_eq!((counters.undecided, counters.over_undecided_per_source), (3, 5));

        let limits = InterceptLimits { undecided: 3, ..InterceptLimits::default() };
        let counters = with_syns(8, limits).await;
        assert_eq!((counters.undecided, counters.over_undecided), (3, 5));

        let limits = InterceptLimits { memory: 100_000, ..InterceptLimits::default() };
        let counters = with_syns(8, limits).await;
        assert_eq!((counters.undecided, counters.over_memory), (0, 8));

        let limits = InterceptLimits { memory_per_source: 100_000, ..InterceptLimits::default() };
        let counters = with_syns(8, limits).await;
        assert_eq!((counters.undecided, counters.over_memory_per_source), (0, 8));
    });
}

#[test]
fn accepting_beyond_the_memory_is_an_error() {
    on_both(|| async {
        let limits = InterceptLimits { memory: 200_000, ..InterceptLimits::default() };
        let (mut client, parts) = pair(|builder| builder.limits(limits));
        // Connections reserve no memory before they are accepted.
        client.node.connect(to(1)).unwrap();
        client.node.connect(to(2)).unwrap();
        client.until(|_| (parts.interceptor.counters().undecided == 2).then_some(())).await;
        let first = parts.tcp.accept().await.unwrap();
        let second = parts.tcp.accept().await.unwrap();
        let connected =
            client.until(|_| (parts.interceptor.counters().accepted == 1).then_some(()));
        let (_, stream) = tokio::join!(connected, first.accept());
        let error = second.accept().await.unwrap_err();
        assert_eq!(error.kind(), std::io::ErrorKind::OutOfMemory);
        assert_eq!(parts.interceptor.counters().over_memory, 1);
        drop(stream.unwrap());
    });
}

#[test]
fn a_source_fills_only_its_part_of_the_queue() {
    on_both(|| async {
        let limits =
            InterceptLimits { datagram_bytes_per_source: 1000, ..InterceptLimits::default() };
        let (mut client, parts) = pair(|builder| builder.limits(limits));
        let socket = client.node.udp((ADDR, 4000).into()).unwrap();
        for _ in 0..20 {
            client.node.send_to(socket, to(53), &[7; 36]).unwrap();
        }
        let dropped = client.until(|_| {
            let counters = parts.interceptor.counters();
            let dropped = counters.over_datagram_bytes_per_source;
            (counters.datagrams_received + dropped == 20).then_some(dropped)
        });
        assert_eq!(dropped.await, 10);
    });
}

#[test]
fn a_connection_is_accepted_once_another_has_ended() {
    on_both(|| async {
        let limits = InterceptLimits { memory: 200_000, ..InterceptLimits::default() };
        let (mut client, parts) = pair(|builder| builder.limits(limits));
        let (first, stream) = client.connected(&parts.tcp, to(1)).await;
        let second = client.node.connect(to(2)).unwrap();
        client.until(|_| (parts.interceptor.counters().over_memory > 0).then_some(())).await;
        client.node.close(first);
        drop(stream);
        // The client retransmits its SYN after a second.
        let accepted = async { parts.tcp.accept().await.unwrap().accept().await.unwrap() };
        let (_, _stream) = tokio::join!(client.event(NodeEvent::Connected(second)), accepted);
    });
}

#[test]
fn unread_datagrams_are_dropped_beyond_the_limit() {
    on_both(|| async {
        let limits = InterceptLimits { datagram_bytes: 1000, ..InterceptLimits::default() };
        let (mut client, parts) = pair(|builder| builder.limits(limits));
        let socket = client.node.udp((ADDR, 4000).into()).unwrap();
        for _ in 0..20 {
            client.node.send_to(socket, to(53), &[7; 36]).unwrap();
        }
        let all = |counters: InterceptCounters| {
            counters.datagrams_received + counters.over_datagram_bytes
        };
        client.until(|_| (all(parts.interceptor.counters()) == 20).then_some(())).await;
        assert_eq!(parts.interceptor.counters().datagrams_received, 10);
        drop(parts.udp);
        client.node.send_to(socket, to(53), &[7; 36]).unwrap();
        client.until(|_| (parts.interceptor.counters().without_socket == 1).then_some(())).await;
    });
}

#[test]
fn unread_pings_are_dropped_beyond_the_limits() {
    on_both(|| async {
        for (messages, messages_per_source) in [(5, 100), (100, 5)] {
            let limits =
                InterceptLimits { messages, messages_per_source, ..InterceptLimits::default() };
            let (mut client, parts) =
                pair(|builder| builder.limits(limits).echo(EchoPolicy::Deliver));
            let pinger = client.node.echo((ADDR, 0).into()).unwrap();
            for seq in 0..8 {
                client.node.ping(pinger, to(0).ip(), seq, b"data").unwrap();
            }
            let dropped = client.until(|_| {
                let InterceptCounters { over_messages, over_messages_per_source, .. } =
                    parts.interceptor.counters();
                let both = (over_messages, over_messages_per_source);
                (both.0 + both.1 == 3).then_some(both)
            });
            let expected = if messages == 5 { (3, 0) } else { (0, 3) };
            assert_eq!(dropped.await, expected);
        }
    });
}

#[test]
fn idle_connections_are_reset_once_their_source_has_reached_its_limit() {
    on_both(|| async {
        let limits = InterceptLimits {
            connections_per_source: 2,
            idle_at_limit: Duration::from_millis(200),
            ..InterceptLimits::default()
        };
        let (mut client, parts) = pair(|builder| builder.limits(limits));
        let (first, _stream) = client.connected(&parts.tcp, to(1)).await;
        client.run_for(Duration::from_millis(600)).await;
        assert_eq!(parts.interceptor.counters().idle_resets_at_limit, 0);
        let (_second, _other) = client.connected(&parts.tcp, to(2)).await;
        client.event(NodeEvent::Failed(first, SocketError::Reset)).await;
        let counters = parts.interceptor.counters();
        assert!(counters.idle_resets_at_limit > 0 && counters.idle_resets == 0, "{counters:?}");
    });
}

/// A program that writes much faster than its source takes packets.
#[test]
fn a_full_channel_makes_senders_wait() {
    on_both(|| async {
        let (mut client, parts) = pair(|builder| builder);
        let flow = UdpFlow::new(to(53), (ADDR, 4000).into());
        let socket = client.node.udp((ADDR, 4000).into()).unwrap();
        let udp = parts.udp.clone();
        let sender = tokio::spawn(async move {
            for _ in 0..20_000 {
                udp.send(&[7; 100], &flow).await.unwrap();
            }
        });
        // Channel and queue of the stack are full.
        tokio::time::sleep(Duration::from_millis(200)).await;
        assert!(!sender.is_finished());
        let mut received = 0;
        client
            .until(|client| {
                received += std::iter::from_fn(|| client.node.recv_from(socket)).count();
                sender.is_finished().then_some(())
            })
            .await;
        sender.await.unwrap();
        assert!(received > 10_000, "{received}");
    });
}
