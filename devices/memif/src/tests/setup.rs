//! Peers that break the protocol of the control channel.

use std::os::fd::{AsFd, BorrowedFd, OwnedFd};

use rustix::fs::{MemfdFlags, SealFlags, fcntl_add_seals, ftruncate, memfd_create};
use rustix::net::{AddressFamily, SendFlags, SocketAddrUnix, SocketFlags, SocketType};
use towpath_pool::Port;

use super::ends::{Folder, TestEnd};
use crate::device::ClientMemory;
use crate::layout::{HEAD, ring_len};
use crate::message::{
    HelloLimits, InitRequest, MESSAGE_LEN, MODE_ETHERNET, MemifMessage, SECRET_LEN, VERSION,
};
use crate::ring::RingSpec;
use crate::socket::{self, new_event};

/// A client that sends any messages.
struct RawClient(OwnedFd);

impl RawClient {
    /// Connects, and receives the limits of the server.
    fn connect(folder: &Folder, server: &mut TestEnd) -> Self {
        let flags = SocketFlags::CLOEXEC | SocketFlags::NONBLOCK;
        let kind = SocketType::SEQPACKET;
        let socket = rustix::net::socket_with(AddressFamily::UNIX, kind, flags, None);
        let socket = socket.expect("a socket");
        let address = SocketAddrUnix::new(folder.socket()).expect("a path");
        rustix::net::connect(&socket, &address).expect("a listener");
        let mut client = Self(socket);
        let hello = client.next(server);
        assert!(matches!(hello, Some(MemifMessage::Hello(_))), "{hello:?}");
        client
    }

    fn next(&mut self, server: &mut TestEnd) -> Option<MemifMessage> {
        server.recv();
        socket::receive(&self.0).ok().flatten().map(|received| received.message)
    }

    fn send(&self, message: &MemifMessage, descriptor: Option<BorrowedFd<'_>>) {
        socket::send(&self.0, message, descriptor).expect("connected");
    }
}

fn init() -> MemifMessage {
    MemifMessage::Init(InitRequest {
        version: VERSION,
        id: 0,
        mode: MODE_ETHERNET,
        secret: [0; SECRET_LEN],
        name: "raw".into(),
    })
}

fn change(change: impl FnOnce(&mut InitRequest)) -> MemifMessage {
    let MemifMessage::Init(mut request) = init() else { unreachable!("see above") };
    change(&mut request);
    MemifMessage::Init(request)
}

/// A message, and the file that is sent with it.
type Sent = (MemifMessage, Option<OwnedFd>);

fn region(index: u16, len: u64, seals: SealFlags) -> Sent {
    let file = memfd_create("test", MemfdFlags::CLOEXEC | MemfdFlags::ALLOW_SEALING);
    let file = file.expect("a memfd");
    ftruncate(&file, 8192).expect("memory");
    fcntl_add_seals(&file, seals).expect("seals");
    (MemifMessage::AddRegion { index, len }, Some(file))
}

fn ring(is_to_server: bool, index: u16, spec: RingSpec) -> Sent {
    let event = new_event().expect("an eventfd").into_owned();
    (MemifMessage::AddRing { is_to_server, index, spec }, Some(event))
}

/// Returns the messages of a client whose rings are at `spec` in valid memory.
fn rings(spec: RingSpec) -> Vec<Sent> {
    let memory = ClientMemory::new(3, 64).expect("memory");
    let file = memory.file().try_clone().expect("a descriptor");
    let valid = memory.rings().to_client;
    vec![
        (init(), None),
        (MemifMessage::AddRegion { index: 0, len: memory.region_len() }, Some(file)),
        ring(true, 0, spec),
        ring(false, 0, valid),
        (MemifMessage::Connect("raw".into()), None),
    ]
}

/// Returns wrong sequences of messages, and the reasons of their refusal.
fn refused() -> Vec<(Vec<Sent>, &'static str)> {
    let shrink = SealFlags::SHRINK;
    let spec = RingSpec { region: 0, offset: 0, log2_size: 3 };
    let known = |more: Sent| vec![(init(), None), more];
    let pipe = rustix::pipe::pipe().expect("a pipe").1;
    let many = (0..=64).map(|index| region(index, 4096, shrink));
    vec![
        (vec![region(0, 4096, shrink)], "an unexpected message"),
        (vec![ring(true, 0, spec)], "an unexpected message"),
        (vec![(MemifMessage::Connect("raw".into()), None)], "an unexpected message"),
        (known((init(), None)), "an unexpected message"),
        (known((MemifMessage::Ack, None)), "an unexpected message"),
        (vec![(change(|it| it.version = 0x0300), None)], "version 3.0 of memif: expected 2.0"),
        (vec![(change(|it| it.mode = 1), None)], "mode 1 is not supported: expected Ethernet"),
        (vec![(change(|it| it.id = 7), None)], "there is no interface with id=7"),
        (known(region(1, 4096, shrink)), "region 1 is out of order"),
        (known((region(0, 4096, shrink).0, None)), "wrong number of descriptors"),
        (known(region(0, 4096, SealFlags::GROW)), "not sealed"),
        (known(region(0, 8193, shrink)), "cannot be mapped"),
        (known(region(0, 0, shrink)), "a region of 0 bytes"),
        (known(region(0, u64::MAX, shrink)), "a region of 18446744073709551615 bytes"),
        (known(region(0, (1 << 32) + 1, shrink)), "a region of 4294967297 bytes"),
        (std::iter::once((init(), None)).chain(many).collect(), "more than 64 regions"),
        (known(ring(true, 1, spec)), "ring 1 is not supported"),
        (known((ring(true, 0, spec).0, None)), "wrong number of descriptors"),
        (known((ring(true, 0, spec).0, Some(pipe))), "no eventfd"),
        (vec![(init(), None), ring(true, 0, spec), ring(true, 0, spec)], "ring 0 is not supported"),
        (known((MemifMessage::Connect("raw".into()), None)), "an unexpected message"),
        (rings(RingSpec { region: 1, ..spec }), "outside of its region"),
        (rings(RingSpec { offset: 4096, ..spec }), "outside of its region"),
        (rings(RingSpec { offset: u32::MAX, ..spec }), "outside of its region"),
        (rings(RingSpec { offset: 2, ..spec }), "not aligned"),
        (rings(RingSpec { offset: 4, ..spec }), "the cookie of a ring is wrong"),
        (rings(RingSpec { log2_size: 0, ..spec }), "2^0 descriptors in a ring"),
        (rings(RingSpec { log2_size: 15, ..spec }), "2^15 descriptors in a ring"),
        (rings(RingSpec { log2_size: u8::MAX, ..spec }), "2^255 descriptors in a ring"),
    ]
}

#[test]
fn a_server_refuses_clients_that_break_the_protocol() {
    let folder = Folder::new("refuses");
    let mut server = TestEnd::open(&folder.options(",role=server"));
    for (n, (messages, wanted)) in refused().into_iter().enumerate() {
        let mut client = RawClient::connect(&folder, &mut server);
        let (last, valid) = messages.split_last().expect("a message");
        for (message, file) in valid {
            client.send(message, file.as_ref().map(AsFd::as_fd));
            assert_eq!(client.next(&mut server), Some(MemifMessage::Ack), "case {n}");
        }
        client.send(&last.0, last.1.as_ref().map(AsFd::as_fd));
        match client.next(&mut server) {
            Some(MemifMessage::Disconnect(reason)) => {
                assert!(server.told().last().is_some_and(|told| told.contains(wanted)), "{n}");
                // The reason is cut after 95 bytes.
                assert!(reason.contains(wanted) || reason.len() == 95, "{n}: {reason}");
            }
            other => panic!("case {n}: {other:?} instead of {wanted}"),
        }
        assert!(!server.port.is_connected());
    }
    // The server still serves a client that follows the protocol.
    let mut client = RawClient::connect(&folder, &mut server);
    for (message, file) in rings(RingSpec { region: 0, offset: 0, log2_size: 3 }) {
        client.send(&message, file.as_ref().map(AsFd::as_fd));
        let answer = client.next(&mut server);
        assert!(
            matches!(answer, Some(MemifMessage::Ack | MemifMessage::Connected(_))),
            "{answer:?}"
        );
    }
    assert!(server.port.is_connected());
    client.send(&MemifMessage::Ack, None);
    assert_eq!(
        client.next(&mut server),
        Some(MemifMessage::Disconnect("an unexpected message".into()))
    );
}

#[test]
fn frames_for_a_client_with_an_invalid_index_are_dropped() {
    let folder = Folder::new("invalid-index");
    let mut server = TestEnd::open(&folder.options(",role=server"));
    let mut client = RawClient::connect(&folder, &mut server);
    for (message, file) in rings(RingSpec { region: 0, offset: 0, log2_size: 3 }) {
        if let MemifMessage::AddRegion { len, .. } = message {
            let file = file.as_ref().expect("a memfd").try_clone().expect("a descriptor");
            let memory = towpath_shm::Mapping::from_file(file, len as usize).expect("memory");
            let head = memory.u16(ring_len(3) + HEAD);
            head.store(u16::MAX, std::sync::atomic::Ordering::Release);
        }
        client.send(&message, file.as_ref().map(AsFd::as_fd));
        client.next(&mut server);
    }
    assert!(server.port.is_connected());
    let frames = [server.packet(&[1; 60]), server.packet(&[2; 60])];
    assert_eq!(server.send(frames), 2);
    assert!(!server.port.is_connected());
    let counters = server.port.counters();
    assert_eq!((counters.broken_rings, counters.tx_no_peer), (1, 2));
}

#[test]
fn messages_of_other_lengths_and_types_end_the_connection() {
    let folder = Folder::new("lengths");
    let mut server = TestEnd::open(&folder.options(",role=server"));
    for (len, wanted) in [
        (1, "a message of 1 bytes"),
        (MESSAGE_LEN - 1, "a message of 127 bytes"),
        (MESSAGE_LEN + 1, "a message of 129 bytes"),
        (MESSAGE_LEN, "a message of an unknown type"),
    ] {
        let mut client = RawClient::connect(&folder, &mut server);
        let bytes = vec![0xff; len];
        rustix::net::send(&client.0, &bytes, SendFlags::NOSIGNAL).expect("connected");
        let Some(MemifMessage::Disconnect(reason)) = client.next(&mut server) else {
            panic!("{wanted}")
        };
        assert!(reason.contains(wanted), "{reason}");
    }
}

#[test]
fn a_silent_client_does_not_keep_the_next_one_waiting() {
    let folder = Folder::new("silent");
    let mut server = TestEnd::open(&folder.options(",role=server"));
    let mut silent = RawClient::connect(&folder, &mut server);
    let mut next = TestEnd::open(&folder.options(",role=client"));
    let due_ns = server.port.next_timeout_ns().expect("a limit");
    assert_eq!(due_ns, server.now_ns + 5_000_000_000);
    // Each turn is half a second after the last one.
    server.now_ns = due_ns - 500_000_001;
    assert_eq!(silent.next(&mut server), None);
    let reason = "the client has connected to the socket, and was silent for 5 s";
    assert_eq!(silent.next(&mut server), Some(MemifMessage::Disconnect(reason.into())));
    next.connect_to(&mut server);
    assert_eq!(server.port.next_timeout_ns(), None);
}

#[test]
fn descriptors_with_other_messages_are_closed() {
    let folder = Folder::new("descriptors");
    let mut server = TestEnd::open(&folder.options(",role=server"));
    let mut client = RawClient::connect(&folder, &mut server);
    let (reader, writer) = rustix::pipe::pipe().expect("a pipe");
    client.send(&init(), Some(writer.as_fd()));
    assert_eq!(client.next(&mut server), Some(MemifMessage::Ack));
    drop(writer);
    // The end of the pipe shows that no process has its other end.
    assert_eq!(rustix::io::read(&reader, &mut [0; 1]), Ok(0));
}

fn hello() -> HelloLimits {
    HelloLimits {
        name: "raw".into(),
        version_min: VERSION,
        version_max: VERSION,
        region_max: 255,
        to_client_max: 255,
        to_server_max: 255,
        log2_size_max: 14,
    }
}

#[test]
fn a_client_refuses_servers_that_break_the_protocol() {
    let new = |change: fn(&mut HelloLimits)| {
        let mut limits = hello();
        change(&mut limits);
        MemifMessage::Hello(limits)
    };
    let connected = || MemifMessage::Connected("raw".into());
    let valid = || new(|_| {});
    let cases = [
        (vec![MemifMessage::Ack], "an unexpected message"),
        (vec![connected()], "an unexpected message"),
        (vec![valid(), connected()], "an unexpected message"),
        (vec![valid(), valid()], "an unexpected message"),
        (vec![valid(), init()], "an unexpected message"),
        (vec![new(|it| it.version_max = VERSION - 1)], "version 1.255 of memif"),
        (vec![new(|it| it.version_min = VERSION + 1)], "version 2.0 of memif"),
        (vec![MemifMessage::Disconnect("\u{1b}[1m".into())], "the peer has disconnected: ?[1m"),
    ];
    for (n, (messages, wanted)) in cases.into_iter().enumerate() {
        let (_folder, socket, mut client) = raw_server(n);
        for message in messages {
            socket::send(&socket, &message, None).expect("connected");
            client.recv();
        }
        let told = client.told();
        assert!(told.len() == 1 && told[0].contains(wanted), "case {n}: {told:?}");
    }
}

#[test]
fn a_client_notices_rings_that_its_server_has_overwritten() {
    let (_folder, socket, mut client) = raw_server(99);
    let send = |message: MemifMessage| socket::send(&socket, &message, None).expect("connected");
    send(MemifMessage::Hello(HelloLimits { log2_size_max: 4, ..hello() }));
    let (mut regions, mut sizes) = (Vec::new(), Vec::new());
    loop {
        client.recv();
        let received = socket::receive(&socket).expect("connected").expect("a message");
        match received.message {
            MemifMessage::Connect(_) => break,
            MemifMessage::AddRegion { .. } => regions.extend(received.descriptor),
            MemifMessage::AddRing { spec, .. } => sizes.push(spec.log2_size),
            _ => {}
        }
        send(MemifMessage::Ack);
    }
    assert_eq!(sizes, [4, 4], "within the limit of the server");
    let memory = towpath_shm::Mapping::from_file(regions.remove(0), 4096).expect("memory");
    // The server cannot shrink the region.
    memory.u32(0).store(0, std::sync::atomic::Ordering::Release);
    send(MemifMessage::Connected("raw".into()));
    client.recv();
    assert!(!client.port.is_connected());
    assert!(client.told()[0].contains("the cookie of a ring is wrong"), "{:?}", client.told());
}

#[test]
fn a_client_keeps_the_socket_of_a_server_that_does_not_listen_yet() {
    let folder = Folder::new("bound");
    let server =
        rustix::net::socket(AddressFamily::UNIX, SocketType::SEQPACKET, None).expect("a socket");
    let address = SocketAddrUnix::new(folder.socket()).expect("a path");
    rustix::net::bind(&server, &address).expect("a path");
    let mut client = TestEnd::open(&folder.options(",role=client"));
    assert!(folder.socket().exists());
    rustix::net::listen(&server, 1).expect("bound");
    client.recv();
    client.recv();
    assert!(super::ends::is_readable(&server), "the client has connected");
}

/// Returns the socket of a server to which a client has connected.
fn raw_server(n: usize) -> (Folder, OwnedFd, TestEnd) {
    let folder = Folder::new(&format!("raw-server-{n}"));
    let socket =
        rustix::net::socket(AddressFamily::UNIX, SocketType::SEQPACKET, None).expect("a socket");
    let address = SocketAddrUnix::new(folder.socket()).expect("a path");
    rustix::net::bind(&socket, &address).expect("a path");
    rustix::net::listen(&socket, 1).expect("bound");
    let client = TestEnd::open(&folder.options(",role=client"));
    let accepted = rustix::net::accept(&socket).expect("a client");
    (folder, accepted, client)
}
