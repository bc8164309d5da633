//! Tests with two ports that are joined by a socket, and with peers that break the protocol.

mod ends;
mod hostile;
mod setup;

use std::os::unix::fs::PermissionsExt;
use std::sync::Arc;

use towpath_pool::{Fragments, Port, Stretch};
use towpath_shm::Mapping;

use crate::{MemifRole, OpenError};
use ends::{Folder, TestEnd, exchange};

#[test]
fn the_second_end_is_the_client_of_the_first() {
    let folder = Folder::new("second");
    let (mut first, mut second) = folder.pair("");
    let mode = std::fs::metadata(folder.socket()).expect("a socket").permissions().mode();
    assert_eq!(mode & 0o777, 0o600);
    let roles = (first.port.role(), second.port.role());
    assert_eq!(roles, (MemifRole::Server, MemifRole::Client));
    assert_eq!(first.told(), ["the memif peer towpath has connected"]);
    assert_eq!(second.told(), ["the memif peer towpath has connected"]);
    assert_eq!(exchange(&mut second, &mut first, &[60, 1514]), 2);
    assert_eq!(exchange(&mut first, &mut second, &[60, 1514, 1]), 3);
    let (sent, received) = (second.port.counters(), first.port.counters());
    assert_eq!((sent.tx_frames, sent.tx_bytes, sent.rx_frames), (2, 1574, 3));
    assert_eq!((received.rx_frames, received.rx_bytes, received.tx_bytes), (2, 1574, 1575));
    assert_eq!((sent.peers, received.peers), (1, 1));
}

#[test]
fn long_frames_take_several_buffers() {
    let folder = Folder::new("long");
    let (mut server, mut client) = folder.pair(",rsize=10,bsize=128");
    for len in [128, 129, 256, 9014, 65_550] {
        assert_eq!(exchange(&mut client, &mut server, &[len, 60]), 2, "{len}");
        assert_eq!(exchange(&mut server, &mut client, &[len, 60]), 2, "{len}");
    }
    // After many rounds, indices have wrapped and the rings still have all their buffers.
    for _ in 0..150 {
        assert_eq!(exchange(&mut client, &mut server, &[65_550]), 1);
        assert_eq!(exchange(&mut server, &mut client, &[65_550]), 1);
    }
}

#[test]
fn frames_that_exceed_the_whole_ring_are_dropped_and_counted() {
    let folder = Folder::new("exceed");
    let (mut server, mut client) = folder.pair(",rsize=1,bsize=512");
    assert_eq!(exchange(&mut server, &mut client, &[1025, 1024]), 1);
    assert_eq!(exchange(&mut client, &mut server, &[1025, 1024]), 1);
    let dropped = [&server, &client].map(|end| end.port.counters().tx_too_long);
    assert_eq!(dropped, [1, 1]);
}

#[test]
fn a_tail_in_a_fifo_is_copied_to_the_peer() {
    let folder = Folder::new("tail");
    let (mut server, mut client) = folder.pair(",bsize=1000");
    let fifo = Arc::new(Mapping::private(8192).expect("memory"));
    let bytes: Vec<u8> = (0..8192).map(|n| (n / 3) as u8).collect();
    fifo.write(0, &bytes);
    let mut packet = client.packet(&[9; 54]);
    let parts = [(6000, 2192), (0, 1000)].map(|(at, len)| Stretch::new(&fifo, at, len));
    let [first, second] = parts;
    packet.tail = Fragments::new(first, Some(second));
    assert_eq!(client.send([packet]), 1);
    let wanted = [&[9; 54], &bytes[6000..], &bytes[..1000]].concat();
    assert_eq!(server.recv(), [wanted]);
}

#[test]
fn a_full_ring_keeps_the_frames_and_asks_for_a_later_attempt() {
    let folder = Folder::new("full");
    let (mut server, mut client) = folder.pair(",rsize=3");
    fills_ring(&mut client, &mut server);
    fills_ring(&mut server, &mut client);
}

fn fills_ring(from: &mut TestEnd, to: &mut TestEnd) {
    let frames: Vec<_> = (0..20).map(|n| from.packet(&[n; 100])).collect();
    assert_eq!(from.send(frames), 8);
    assert!(from.port.blocked());
    assert_eq!(from.port.counters().tx_blocked, 1);
    let due_ns = from.port.next_timeout_ns().expect("another attempt");
    assert!((from.now_ns + 1..from.now_ns + 1_000_000).contains(&due_ns), "{due_ns}");
    let mut got = Vec::new();
    while got.len() < 20 {
        got.extend(to.recv());
        from.send([]);
    }
    assert!(got.iter().enumerate().all(|(n, frame)| *frame == [n as u8; 100]));
    assert!(!from.port.blocked() && from.port.next_timeout_ns().is_none());
    // If the stack has dropped the frames, a full ring does not wake it again and again.
    to.recv();
    let frames: Vec<_> = (0..9).map(|n| from.packet(&[n; 100])).collect();
    assert_eq!(from.send(frames), 8);
    from.discard();
    from.recv();
    assert!(!from.port.blocked() && from.port.next_timeout_ns().is_none());
    assert_eq!(to.recv().len(), 8);
}

#[test]
fn a_sleeping_peer_is_notified_and_a_polling_one_is_not() {
    let folder = Folder::new("notify");
    let (mut server, mut client) = folder.pair("");
    for _ in 0..3 {
        notifies_sleeping_peer(&mut client, &mut server);
        notifies_sleeping_peer(&mut server, &mut client);
    }
}

fn notifies_sleeping_peer(from: &mut TestEnd, to: &mut TestEnd) {
    assert!(!to.is_woken() && to.port.next_timeout_ns().is_none());
    from.take_interrupts();
    for n in 0..3 {
        let frame = from.packet(&[n; 60]);
        from.send([frame]);
    }
    assert!(to.is_woken());
    assert_eq!(from.take_interrupts(), 3);
    // The receiver has more frames than it takes at once, and polls.
    assert_eq!(to.recv_at_most(1), [[0; 60]]);
    assert_eq!(to.port.next_timeout_ns(), Some(0));
    let frame = from.packet(&[3; 60]);
    from.send([frame]);
    assert_eq!(from.take_interrupts(), 0);
    assert_eq!(to.recv(), [[1; 60], [2; 60], [3; 60]]);
    assert!(!to.is_woken() && to.port.next_timeout_ns().is_none());
}

#[test]
fn frames_without_a_peer_are_dropped_and_counted() {
    let folder = Folder::new("none");
    let mut end = TestEnd::open(&folder.options(""));
    let frames = [end.packet(&[1; 60]), end.packet(&[2; 60])];
    assert_eq!(end.send(frames), 2);
    assert_eq!(end.port.counters().tx_no_peer, 2);
    assert!(!end.port.blocked());
}

#[test]
fn clients_leave_and_come_back() {
    let folder = Folder::new("back");
    let mut server = TestEnd::open(&folder.options(",role=server"));
    for round in 1..=3 {
        let mut client = TestEnd::open(&folder.options(",role=client"));
        client.connect_to(&mut server);
        assert_eq!(exchange(&mut client, &mut server, &[60]), 1);
        assert_eq!(exchange(&mut server, &mut client, &[60]), 1);
        let last = client.packet(&[round; 99]);
        client.send([last]);
        drop(client);
        assert!(server.is_woken());
        assert_eq!(server.recv(), [[round; 99]], "frames before the end of the connection");
        assert!(!server.port.is_connected() && !server.is_woken());
        assert_eq!(server.port.counters().peers, u64::from(round));
    }
}

#[test]
fn a_client_finds_its_server_again() {
    let folder = Folder::new("again");
    let mut client = TestEnd::open(&folder.options(",role=client"));
    assert!(client.recv().is_empty());
    for round in 1..=3 {
        let due_ns = client.port.next_timeout_ns().expect("another attempt");
        assert!(due_ns > client.now_ns);
        let mut server = TestEnd::open(&folder.options(",role=server"));
        client.connect_to(&mut server);
        assert_eq!(exchange(&mut server, &mut client, &[60]), 1);
        assert_eq!(client.port.counters().peers, round);
        drop(server);
        assert!(client.is_woken() && client.recv().is_empty() && !client.is_woken());
        assert_eq!(client.told().last().expect("told"), ENDED);
    }
}

const ENDED: &str = "the memif connection has ended: the peer has closed the connection";

#[test]
fn a_second_client_waits_until_the_first_leaves() {
    let folder = Folder::new("waits");
    let (mut server, first) = folder.pair("");
    let mut second = TestEnd::open(&folder.options(",role=client"));
    assert!(server.recv().is_empty() && !server.is_woken());
    drop(first);
    assert!(server.is_woken() && server.recv().is_empty());
    second.connect_to(&mut server);
    assert_eq!(exchange(&mut second, &mut server, &[60]), 1);
}

#[test]
fn a_second_server_is_refused() {
    let folder = Folder::new("refused");
    let mut server = TestEnd::open(&folder.options(",role=server"));
    let error = TestEnd::try_open(&folder.options(",role=server")).err().expect("a server");
    assert!(matches!(error, OpenError::InUse(_)), "{error}");
    // The second server has connected and left before the first one accepts the connection.
    assert!(server.is_woken() && server.recv().is_empty());
    assert!(server.told().is_empty(), "{:?}", server.told());
    assert!(!server.is_woken());
}

#[test]
fn id_and_secret_must_be_those_of_the_server() {
    let cases = [
        (",id=1", ",id=2", "there is no interface with id=2"),
        (",secret=abc", "", "the secret is wrong"),
        (",secret=abc", ",secret=ab", "the secret is wrong"),
        (",secret=abc", ",secret=abcd", "the secret is wrong"),
        (",secret=abc", ",secret=abc", ""),
        ("", ",secret=abc", ""),
    ];
    for (n, (of_server, of_client, wanted)) in cases.into_iter().enumerate() {
        let folder = Folder::new(&format!("secret-{n}"));
        let mut server = TestEnd::open(&folder.options(&format!(",role=server{of_server}")));
        let mut client = TestEnd::open(&folder.options(&format!(",role=client{of_client}")));
        for _ in 0..20 {
            server.recv();
            client.recv();
        }
        assert_eq!(server.port.is_connected(), wanted.is_empty(), "{of_client}");
        assert_eq!(client.port.is_connected(), wanted.is_empty(), "{of_client}");
        if !wanted.is_empty() {
            // Both are told once, although the client tries again and again.
            let told = format!("the memif connection has ended: {wanted}");
            assert_eq!(server.told(), [&*told]);
            let by_peer = format!(": the peer has disconnected: {wanted}");
            assert_eq!(client.told(), [told.replace(&format!(": {wanted}"), &by_peer)]);
        }
    }
}
