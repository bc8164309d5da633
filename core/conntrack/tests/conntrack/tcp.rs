//! TCP connections: states and windows.

use towpath_conntrack::{FlowClass, FragmentPosition};
use towpath_filter::FlowState;

use crate::network::{Network, TCP, TestPacket};

const CLIENT: &str = "10.1.0.2:4000";
const SERVER: &str = "198.51.100.7:80";
const FIN: u8 = 1;
const SYN: u8 = 2;
const RST: u8 = 4;
const ACK: u8 = 16;

/// Returns a segment with a window of 1000.
fn segment(src: &str, dst: &str, flags: u8, numbers: [u32; 2], len: usize) -> TestPacket {
    let mut transport = vec![0; 20 + len];
    transport[4..8].copy_from_slice(&numbers[0].to_be_bytes());
    transport[8..12].copy_from_slice(&numbers[1].to_be_bytes());
    (transport[12], transport[13]) = (5 << 4, flags);
    transport[14..16].copy_from_slice(&1000_u16.to_be_bytes());
    let mut packet = TestPacket::new(TCP, src, dst, transport);
    packet.fields.tcp_flags = flags;
    packet
}

/// A connection whose first numbers are 100 and 500.
struct Connection(Network);

impl Connection {
    fn open() -> Self {
        let mut it = Self(Network::new(&[]));
        assert_eq!(it.client(SYN, [100, 0], 0), FlowState::New);
        assert_eq!(it.class(), FlowClass::TcpOpening);
        assert_eq!(it.server(SYN | ACK, [500, 101], 0), FlowState::Established);
        assert_eq!(it.client(ACK, [101, 501], 0), FlowState::Established);
        assert_eq!(it.class(), FlowClass::TcpEstablished);
        it
    }

    fn client(&mut self, flags: u8, numbers: [u32; 2], len: usize) -> FlowState {
        self.0.out(segment(CLIENT, SERVER, flags, numbers, len)).unwrap().fields.state
    }

    fn server(&mut self, flags: u8, numbers: [u32; 2], len: usize) -> FlowState {
        self.0.back(segment(SERVER, CLIENT, flags, numbers, len)).unwrap().fields.state
    }

    fn class(&self) -> FlowClass {
        self.0.tracker.flows(self.0.now_ns, 0, 1).0[0].class
    }
}

#[test]
fn follows_a_connection_to_its_end() {
    let mut it = Connection::open();
    assert_eq!(it.client(ACK, [101, 501], 300), FlowState::Established);
    assert_eq!(it.server(ACK | FIN, [501, 401], 0), FlowState::Established);
    assert_eq!(it.class(), FlowClass::TcpEstablished, "one side may go on");
    assert_eq!(it.client(ACK | FIN, [401, 502], 0), FlowState::Established);
    assert_eq!(it.class(), FlowClass::TcpClosing);
    assert_eq!(it.server(ACK, [502, 402], 0), FlowState::Established);
    it.0.wait(242);
    assert_eq!(it.client(ACK, [402, 502], 0), FlowState::Invalid);
    assert_eq!(it.client(SYN, [9000, 0], 0), FlowState::New);
}

#[test]
fn refuses_segments_outside_of_the_windows() {
    let mut it = Connection::open();
    for (numbers, len) in [([1102, 501], 1), ([101, 502], 0), ([3_000_000_000, 501], 0)] {
        assert_eq!(it.client(ACK, numbers, len), FlowState::Invalid, "{numbers:?}");
    }
    assert_eq!(it.client(ACK, [1101, 501], 1), FlowState::Established, "a window probe");
    assert_eq!(it.server(RST, [90_000, 0], 0), FlowState::Invalid);
    assert_eq!(it.class(), FlowClass::TcpEstablished);
    assert_eq!(it.0.tracker.counters().invalid, 4);
}

#[test]
fn a_connection_goes_on_after_a_forged_reset() {
    let mut it = Connection::open();
    assert_eq!(it.server(RST, [501, 0], 0), FlowState::Established);
    assert_eq!(it.class(), FlowClass::TcpClosing);
    assert_eq!(it.client(ACK, [101, 501], 10), FlowState::Established);
    assert_eq!(it.class(), FlowClass::TcpEstablished);
    assert_eq!(it.client(SYN, [77, 0], 0), FlowState::Established, "passed on unchanged");
    assert_eq!(it.server(ACK, [501, 111], 0), FlowState::Established);
}

#[test]
fn opens_with_a_syn_alone() {
    let mut net = Network::new(&["masquerade out wan"]);
    for flags in [ACK, SYN | ACK, RST, FIN, SYN | RST] {
        let stray = net.out(segment(CLIENT, SERVER, flags, [1, 1], 0));
        assert!(stray.is_none(), "flags {flags}: the source cannot be translated");
    }
    assert_eq!((net.tracker.len(), net.tracker.counters().untranslatable), (0, 5));
}

/// Forged handshakes of a flood are evicted before the connections of clients that answer.
#[test]
fn half_open_connections_are_evictable() {
    let mut it = Connection(Network::new(&[]));
    it.client(SYN, [100, 0], 0);
    it.server(SYN | ACK, [500, 101], 0);
    assert_eq!(it.class(), FlowClass::TcpOpening);
    it.server(RST, [501, 0], 0);
    assert_eq!(it.class(), FlowClass::TcpClosing);
    assert_eq!(it.client(SYN, [7000, 0], 0), FlowState::Established);
    assert_eq!(it.class(), FlowClass::TcpOpening);
    assert_eq!(it.server(SYN | ACK, [900, 7001], 0), FlowState::Established);
}

/// Only the first fragment is parsed, which does not contain the length of the segment.
#[test]
fn continues_after_a_fragmented_segment() {
    let mut it = Connection::open();
    let mut first = segment(CLIENT, SERVER, ACK, [101, 501], 400);
    first.fragment = Some(FragmentPosition { ident: 7, is_first: true });
    assert_eq!(it.0.out(first).unwrap().fields.state, FlowState::Established);
    assert_eq!(it.server(ACK, [501, 901], 0), FlowState::Established);
    assert_eq!(it.client(ACK, [901, 501], 100), FlowState::Established);
    assert_eq!(it.server(ACK, [501, 1001], 0), FlowState::Established);
}

#[test]
fn a_client_without_an_answer_restarts_with_a_higher_number() {
    let mut it = Connection(Network::new(&[]));
    assert_eq!(it.client(SYN, [100, 0], 0), FlowState::New);
    assert_eq!(it.client(SYN, [5000, 0], 0), FlowState::New);
    assert_eq!(it.server(SYN | ACK, [500, 101], 0), FlowState::Invalid, "answers the first SYN");
    assert_eq!(it.server(SYN | ACK, [500, 5001], 0), FlowState::Established);
    assert_eq!(it.client(SYN, [90_000, 0], 0), FlowState::Invalid, "the server has answered");
}
