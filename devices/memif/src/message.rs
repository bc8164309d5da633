//! Messages of the control channel (DPDK's net_memif guide, "Connection establishment").
//!
//! A message has 128 bytes: its type in 16 bits, and fields without padding in native byte order.

use crate::ring::RingSpec;

/// Length of a message in bytes.
pub(crate) const MESSAGE_LEN: usize = 128;
/// Version 2.0 of the protocol, the only one that DPDK, VPP and libmemif have.
pub(crate) const VERSION: u16 = 2 << 8;
/// Length of a name in bytes.
const NAME_LEN: usize = 32;
/// Length of the field of a secret in bytes.
pub(crate) const SECRET_LEN: usize = 24;
/// Length of the reason of a disconnection in bytes.
const REASON_LEN: usize = 96;
/// Flag of ADD_RING: the ring has frames to the server (MEMIF_MSG_ADD_RING_FLAG_S2M).
const TO_SERVER: u16 = 1;
/// Mode of an interface: Ethernet frames (MEMIF_INTERFACE_MODE_ETHERNET).
pub(crate) const MODE_ETHERNET: u8 = 0;

/// A message of the control channel.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum MemifMessage {
    /// The server has carried out the last request.
    Ack,
    /// Limits of the server.
    Hello(HelloLimits),
    /// The client names the interface to which it wants to connect.
    Init(InitRequest),
    /// The client shares a region, whose file is sent with the message.
    AddRegion { index: u16, len: u64 },
    /// The client adds a ring, whose eventfd is sent with the message.
    AddRing { is_to_server: bool, index: u16, spec: RingSpec },
    /// The client has sent everything. Contains the name of its interface.
    Connect(String),
    /// The server has mapped the regions. Contains the name of its interface.
    Connected(String),
    /// The sender ends the connection, for this reason.
    Disconnect(String),
}

/// Limits of a server.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct HelloLimits {
    pub(crate) name: String,
    pub(crate) version_min: u16,
    pub(crate) version_max: u16,
    /// Maximum index of a region, and of a ring in each direction.
    pub(crate) region_max: u16,
    pub(crate) to_client_max: u16,
    pub(crate) to_server_max: u16,
    pub(crate) log2_size_max: u8,
}

/// Request of a client to connect to an interface of the server.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct InitRequest {
    pub(crate) version: u16,
    /// Number of the interface at the server's socket.
    pub(crate) id: u32,
    pub(crate) mode: u8,
    pub(crate) secret: [u8; SECRET_LEN],
    pub(crate) name: String,
}

impl MemifMessage {
    /// Parses a message. Returns `None` if its type is unknown.
    pub(crate) fn parse(bytes: &[u8; MESSAGE_LEN]) -> Option<Self> {
        let mut fields = MessageFields(bytes);
        Some(match fields.u16() {
            1 => Self::Ack,
            2 => Self::Hello(HelloLimits {
                name: fields.text(NAME_LEN),
                version_min: fields.u16(),
                version_max: fields.u16(),
                region_max: fields.u16(),
                to_client_max: fields.u16(),
                to_server_max: fields.u16(),
                log2_size_max: fields.u8(),
            }),
            3 => Self::Init(InitRequest {
                version: fields.u16(),
                id: fields.u32(),
                mode: fields.u8(),
                secret: fields.chunk(),
                name: fields.text(NAME_LEN),
            }),
            4 => Self::AddRegion { index: fields.u16(), len: fields.u64() },
            5 => {
                let (flags, index) = (fields.u16(), fields.u16());
                let (region, offset) = (fields.u16(), fields.u32());
                // The length of private headers follows, of which DPDK and libmemif make no use.
                let spec = RingSpec { region, offset, log2_size: fields.u8() };
                Self::AddRing { is_to_server: flags & TO_SERVER != 0, index, spec }
            }
            6 => Self::Connect(fields.text(NAME_LEN)),
            7 => Self::Connected(fields.text(NAME_LEN)),
            8 => {
                let _code = fields.u32();
                Self::Disconnect(fields.text(REASON_LEN))
            }
            _ => return None,
        })
    }

    /// Returns the bytes of the message.
    pub(crate) fn bytes(&self) -> [u8; MESSAGE_LEN] {
        let mut to = MessageWriter { bytes: [0; MESSAGE_LEN], at: 0 };
        match self {
            Self::Ack => to.put(&1u16.to_ne_bytes()),
            Self::Hello(hello) => {
                to.put(&2u16.to_ne_bytes());
                to.text(&hello.name, NAME_LEN);
                for limit in [
                    hello.version_min,
                    hello.version_max,
                    hello.region_max,
                    hello.to_client_max,
                    hello.to_server_max,
                ] {
                    to.put(&limit.to_ne_bytes());
                }
                to.put(&[hello.log2_size_max]);
            }
            Self::Init(init) => {
                to.put(&3u16.to_ne_bytes());
                to.put(&init.version.to_ne_bytes());
                to.put(&init.id.to_ne_bytes());
                to.put(&[init.mode]);
                to.put(&init.secret);
                to.text(&init.name, NAME_LEN);
            }
            Self::AddRegion { index, len } => {
                to.put(&4u16.to_ne_bytes());
                to.put(&index.to_ne_bytes());
                to.put(&len.to_ne_bytes());
            }
            Self::AddRing { is_to_server, index, spec } => {
                to.put(&5u16.to_ne_bytes());
                to.put(&if *is_to_server { TO_SERVER } else { 0 }.to_ne_bytes());
                to.put(&index.to_ne_bytes());
                to.put(&spec.region.to_ne_bytes());
                to.put(&spec.offset.to_ne_bytes());
                to.put(&[spec.log2_size]);
            }
            Self::Connect(name) => {
                to.put(&6u16.to_ne_bytes());
                to.text(name, NAME_LEN);
            }
            Self::Connected(name) => {
                to.put(&7u16.to_ne_bytes());
                to.text(name, NAME_LEN);
            }
            Self::Disconnect(reason) => {
                to.put(&8u16.to_ne_bytes());
                to.put(&0u32.to_ne_bytes());
                to.text(reason, REASON_LEN);
            }
        }
        to.bytes
    }
}

/// Fields of a message that were not parsed yet. A message is longer than the fields of any type.
struct MessageFields<'a>(&'a [u8]);

impl MessageFields<'_> {
    fn chunk<const N: usize>(&mut self) -> [u8; N] {
        let (chunk, rest) = self.0.split_first_chunk().expect("inside of the message");
        self.0 = rest;
        *chunk
    }

    fn u8(&mut self) -> u8 {
        u8::from_ne_bytes(self.chunk())
    }

    fn u16(&mut self) -> u16 {
        u16::from_ne_bytes(self.chunk())
    }

    fn u32(&mut self) -> u32 {
        u32::from_ne_bytes(self.chunk())
    }

    fn u64(&mut self) -> u64 {
        u64::from_ne_bytes(self.chunk())
    }

    /// Parses a text of `len` bytes, which ends at the first NUL. Replaces all but printable ASCII
    /// characters, because the text is shown on a terminal.
    fn text(&mut self, len: usize) -> String {
        let (text, rest) = self.0.split_at(len);
        self.0 = rest;
        let is_plain = |byte: u8| byte.is_ascii_graphic() || byte == b' ';
        let text = text.iter().take_while(|byte| **byte != 0);
        text.map(|byte| if is_plain(*byte) { char::from(*byte) } else { '?' }).collect()
    }
}

struct MessageWriter {
    bytes: [u8; MESSAGE_LEN],
    at: usize,
}

impl MessageWriter {
    fn put(&mut self, field: &[u8]) {
        self.bytes[self.at..self.at + field.len()].copy_from_slice(field);
        self.at += field.len();
    }

    /// Appends a text in `len` bytes, of which at least the last one is NUL.
    fn text(&mut self, text: &str, len: usize) {
        let used = text.len().min(len - 1);
        self.bytes[self.at..self.at + used].copy_from_slice(&text.as_bytes()[..used]);
        self.at += len;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn all() -> Vec<MemifMessage> {
        let spec = RingSpec { region: 0x1111, offset: 0x2222_2222, log2_size: 0x33 };
        vec![
            MemifMessage::Ack,
            MemifMessage::Hello(HelloLimits {
                name: "server".into(),
                version_min: 0x0201,
                version_max: 0x0403,
                region_max: 0x0605,
                to_client_max: 0x0807,
                to_server_max: 0x0a09,
                log2_size_max: 0x0b,
            }),
            MemifMessage::Init(InitRequest {
                version: VERSION,
                id: 0x0403_0201,
                mode: 5,
                secret: [7; SECRET_LEN],
                name: "client".into(),
            }),
            MemifMessage::AddRegion { index: 3, len: 0x0807_0605_0403_0201 },
            MemifMessage::AddRing { is_to_server: true, index: 4, spec },
            MemifMessage::AddRing { is_to_server: false, index: 4, spec },
            MemifMessage::Connect("net_memif0".into()),
            MemifMessage::Connected("towpath".into()),
            MemifMessage::Disconnect("no reason".into()),
        ]
    }

    #[test]
    fn messages_are_parsed_as_written() {
        for message in all() {
            assert_eq!(MemifMessage::parse(&message.bytes()).as_ref(), Some(&message));
        }
        for number in [0u16, 9, u16::MAX] {
            let mut bytes = [0; MESSAGE_LEN];
            bytes[..2].copy_from_slice(&number.to_ne_bytes());
            assert_eq!(MemifMessage::parse(&bytes), None, "{number}");
        }
    }

    /// Offsets of fields in the packed structures of DPDK 22.11 (drivers/net/memif/memif.h).
    #[test]
    fn fields_are_where_dpdk_has_them() {
        let all: Vec<_> = all().iter().map(MemifMessage::bytes).collect();
        let (hello, init, region, ring) = (&all[1], &all[2], &all[3], &all[4]);
        assert_eq!((&hello[2..8], hello[44]), (&b"server"[..], 0x0b));
        assert_eq!(hello[34..44], [1, 2, 3, 4, 5, 6, 7, 8, 9, 10]);
        assert_eq!(init[2..9], [0, 2, 1, 2, 3, 4, 5]);
        assert_eq!((&init[9..33], &init[33..39]), (&[7; 24][..], &b"client"[..]));
        assert_eq!(region[..12], [4, 0, 3, 0, 1, 2, 3, 4, 5, 6, 7, 8]);
        assert_eq!(ring[..13], [5, 0, 1, 0, 4, 0, 0x11, 0x11, 0x22, 0x22, 0x22, 0x22, 0x33]);
        assert_eq!((&all[6][..12], all[8][6]), (&b"\x06\0net_memif0"[..], b'n'));
    }

    #[test]
    fn texts_of_peers_are_cut_and_made_printable() {
        let mut bytes = MemifMessage::Disconnect("a\u{1b}[2J b".into()).bytes();
        assert_eq!(MemifMessage::parse(&bytes), Some(MemifMessage::Disconnect("a?[2J b".into())));
        bytes[6..102].fill(b'x');
        let parsed = MemifMessage::parse(&bytes);
        assert_eq!(parsed, Some(MemifMessage::Disconnect("x".repeat(REASON_LEN))));
        let long = MemifMessage::Connect("y".repeat(100)).bytes();
        assert_eq!(MemifMessage::parse(&long), Some(MemifMessage::Connect("y".repeat(31))));
    }
}
