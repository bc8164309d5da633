//! DHCP messages (RFC 2131 §2) and their options (RFC 2132).

mod options;

use core::net::Ipv4Addr;

use towpath_wire::MacAddr;

pub use options::{ClasslessRoute, DhcpOptions};

/// Length in bytes of the fixed part of a DHCP message, before the options.
const HEADER_LEN: usize = 236;
/// First bytes of a DHCP message's options field (RFC 2131 §3).
const MAGIC_COOKIE: [u8; 4] = [99, 130, 83, 99];
/// Minimum length in bytes of DHCP messages that we send. Some relays drop messages that are
/// shorter than BOOTP messages (RFC 1542 §2.1).
const LEN_MIN: usize = 300;
/// Byte ranges of the fields `sname` and `file`, which may contain further options.
const SNAME: core::ops::Range<usize> = 44..108;
const FILE: core::ops::Range<usize> = 108..HEADER_LEN;
/// Flag by which a client requests that the server broadcasts its replies.
const BROADCAST: u8 = 0x80;
/// Hardware type and hardware address length of Ethernet.
const ETHERNET: [u8; 2] = [1, 6];

/// Direction of a DHCP message.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum BootOp {
    /// The message is from a client.
    Request,
    /// The message is from a server.
    Reply,
}

/// Type of a message (RFC 2132 §9.6).
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[repr(u8)]
pub enum MessageKind {
    /// DHCPDISCOVER: a client searches for servers.
    Discover = 1,
    /// DHCPOFFER: a server offers an address.
    Offer = 2,
    /// DHCPREQUEST: a client requests an offered address, or verifies or extends a lease.
    Request = 3,
    /// DHCPDECLINE: a client reports that another host uses an address.
    Decline = 4,
    /// DHCPACK: a server grants or extends a lease.
    Ack = 5,
    /// DHCPNAK: a server refuses a request.
    Nak = 6,
    /// DHCPRELEASE: a client gives up its lease.
    Release = 7,
    /// DHCPINFORM: a client that already has an address requests other configuration parameters.
    Inform = 8,
}

impl MessageKind {
    const ALL: [Self; 8] = [
        Self::Discover,
        Self::Offer,
        Self::Request,
        Self::Decline,
        Self::Ack,
        Self::Nak,
        Self::Release,
        Self::Inform,
    ];

    fn parse(value: &[u8]) -> Option<Self> {
        let [code] = value else { return None };
        Self::ALL.into_iter().find(|kind| *kind as u8 == *code)
    }
}

/// A DHCP message.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct DhcpMessage {
    /// Direction of the message.
    pub op: BootOp,
    /// Type of the message.
    pub kind: MessageKind,
    /// Transaction identifier, chosen by the client.
    pub xid: u32,
    /// Seconds since the client began to search for servers.
    pub secs: u16,
    /// Whether the client requests that the server broadcasts its replies.
    pub broadcast: bool,
    /// Address that the client already uses; otherwise 0.0.0.0.
    pub ciaddr: Ipv4Addr,
    /// Address that the server assigns to the client ("your address").
    pub yiaddr: Ipv4Addr,
    /// Address of the relay agent that forwards the message; 0.0.0.0 if there is no relay agent.
    pub giaddr: Ipv4Addr,
    /// Ethernet address of the client.
    pub chaddr: MacAddr,
    /// Options of the message.
    pub options: DhcpOptions,
}

/// Reason why received bytes are not a DHCP message.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum MessageError {
    /// The message is shorter than its fixed part, or has no magic cookie.
    #[error("not a DHCP message")]
    Header,
    /// The hardware type of the client is not Ethernet.
    #[error("the client's hardware is not Ethernet")]
    Hardware,
    /// The option with the message type is missing, or has an unknown value.
    #[error("no known message type")]
    Kind,
}

impl DhcpMessage {
    /// Creates a message from a client, without addresses and options.
    pub fn request(kind: MessageKind, xid: u32, chaddr: MacAddr) -> Self {
        let none = Ipv4Addr::UNSPECIFIED;
        Self {
            op: BootOp::Request,
            kind,
            xid,
            secs: 0,
            broadcast: false,
            ciaddr: none,
            yiaddr: none,
            giaddr: none,
            chaddr,
            options: DhcpOptions::default(),
        }
    }

    /// Parses a DHCP message. Options with invalid values are treated as missing.
    ///
    /// # Errors
    /// Fails if the bytes are not a DHCP message of an Ethernet client.
    pub fn parse(data: &[u8]) -> Result<Self, MessageError> {
        let (header, rest) = data.split_first_chunk::<HEADER_LEN>().ok_or(MessageError::Header)?;
        let field = rest.strip_prefix(&MAGIC_COOKIE).ok_or(MessageError::Header)?;
        let op = match header[0] {
            1 => BootOp::Request,
            2 => BootOp::Reply,
            _ => return Err(MessageError::Header),
        };
        if header[1..3] != ETHERNET {
            return Err(MessageError::Hardware);
        }
        let (kind, options) = DhcpOptions::parse(field, &header[FILE], &header[SNAME]);
        let ip =
            |at: usize| Ipv4Addr::new(header[at], header[at + 1], header[at + 2], header[at + 3]);
        let [.., a, b, c, d, e, f] = header[..34] else { return Err(MessageError::Header) };
        Ok(Self {
            op,
            kind: kind.ok_or(MessageError::Kind)?,
            xid: u32::from_be_bytes([header[4], header[5], header[6], header[7]]),
            secs: u16::from_be_bytes([header[8], header[9]]),
            broadcast: header[10] & BROADCAST != 0,
            ciaddr: ip(12),
            yiaddr: ip(16),
            giaddr: ip(24),
            chaddr: MacAddr([a, b, c, d, e, f]),
            options,
        })
    }

    /// Returns the encoded DHCP message.
    pub fn emit(&self) -> Vec<u8> {
        let mut bytes = vec![0; HEADER_LEN];
        bytes[0] = match self.op {
            BootOp::Request => 1,
            BootOp::Reply => 2,
        };
        bytes[1..3].copy_from_slice(&ETHERNET);
        bytes[4..8].copy_from_slice(&self.xid.to_be_bytes());
        bytes[8..10].copy_from_slice(&self.secs.to_be_bytes());
        bytes[10] = if self.broadcast { BROADCAST } else { 0 };
        bytes[12..16].copy_from_slice(&self.ciaddr.octets());
        bytes[16..20].copy_from_slice(&self.yiaddr.octets());
        bytes[24..28].copy_from_slice(&self.giaddr.octets());
        bytes[28..34].copy_from_slice(&self.chaddr.0);
        bytes.extend(MAGIC_COOKIE);
        self.options.emit(self.kind, &mut bytes);
        bytes.resize(bytes.len().max(LEN_MIN), 0);
        bytes
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn ip(text: &str) -> Ipv4Addr {
        text.parse().expect("an address")
    }

    fn full() -> DhcpMessage {
        let route = |prefix: &str, via| ClasslessRoute { prefix: prefix.parse().expect("it"), via };
        DhcpMessage {
            op: BootOp::Reply,
            kind: MessageKind::Ack,
            xid: 0x1234_5678,
            secs: 7,
            broadcast: true,
            ciaddr: ip("10.0.0.3"),
            yiaddr: ip("10.0.0.4"),
            giaddr: ip("10.0.0.5"),
            chaddr: MacAddr([2, 0, 0, 0, 0, 9]),
            options: DhcpOptions {
                requested: Some(ip("10.0.0.6")),
                server: Some(ip("10.0.0.1")),
                lease_s: Some(3600),
                renew_s: Some(1800),
                rebind_s: Some(3000),
                mask_len: Some(20),
                routers: vec![ip("10.0.0.1"), ip("10.0.0.2")],
                nameservers: (0..100).map(|n| Ipv4Addr::new(9, 9, 9, n)).collect(),
                routes: Some(vec![
                    route("0.0.0.0/0", ip("10.0.0.1")),
                    route("10.16.0.0/15", ip("0.0.0.0")),
                    route("192.0.2.7/32", ip("10.0.0.2")),
                ]),
                host_name: Some("laptop".to_owned()),
                domain: Some("home.arpa".to_owned()),
                client_id: Some(vec![1, 2, 3]),
                parameters: vec![1, 3, 6],
                size_max: Some(1500),
            },
        }
    }

    #[test]
    fn parse_returns_emitted_message() {
        let message = full();
        assert_eq!(DhcpMessage::parse(&message.emit()), Ok(message));
        let short = DhcpMessage::request(MessageKind::Discover, 1, MacAddr([2, 0, 0, 0, 0, 1]));
        assert_eq!(short.emit().len(), LEN_MIN);
        assert_eq!(DhcpMessage::parse(&short.emit()), Ok(short));
    }

    /// Options may continue in the fields `file` and `sname`. An option whose value continues in
    /// the next field is joined.
    #[test]
    fn reads_options_in_the_fields_of_names() {
        let mut bytes = DhcpMessage::request(MessageKind::Offer, 1, MacAddr([2; 6])).emit();
        bytes.truncate(HEADER_LEN + 4);
        bytes.extend([53, 1, 2, 52, 1, 3, 6, 4, 1, 1, 1, 1, 255]);
        bytes[FILE.start..FILE.start + 7].copy_from_slice(&[6, 4, 2, 2, 2, 2, 255]);
        bytes[SNAME.start..SNAME.start + 7].copy_from_slice(&[0, 6, 4, 3, 3, 3, 3]);
        let message = DhcpMessage::parse(&bytes).expect("it is valid");
        let addresses = [1, 2, 3].map(|n| Ipv4Addr::from([n; 4]));
        assert_eq!(message.options.nameservers, addresses);
    }

    #[test]
    fn ignores_options_with_invalid_values() {
        let mut bytes = DhcpMessage::request(MessageKind::Offer, 1, MacAddr([2; 6])).emit();
        bytes.truncate(HEADER_LEN + 4);
        bytes.extend([53, 1, 2]);
        // A subnet mask that is not contiguous, a name with a control character, a prefix length of
        // 33.
        bytes.extend([1, 4, 255, 0, 255, 0]);
        bytes.extend([15, 3, b'a', b'\n', b'b']);
        bytes.extend([121, 9, 33, 1, 1, 1, 1, 1, 2, 2, 2]);
        bytes.extend([51, 3, 0, 0, 1, 3, 5, 1, 1, 1, 1, 1]);
        let message = DhcpMessage::parse(&bytes).expect("it is valid");
        assert_eq!(message.options, DhcpOptions::default());
    }

    #[test]
    fn empty_routes_do_not_replace_routers() {
        let mut bytes = DhcpMessage::request(MessageKind::Offer, 1, MacAddr([2; 6])).emit();
        bytes.truncate(HEADER_LEN + 4);
        bytes.extend([53, 1, 2, 3, 4, 10, 0, 0, 1, 121, 0, 255]);
        let message = DhcpMessage::parse(&bytes).expect("it is valid");
        assert_eq!((message.options.routes, message.options.routers), (None, vec![ip("10.0.0.1")]));
    }

    #[test]
    fn refuses_bytes_that_are_no_message() {
        let good = full().emit();
        let changed = |at: usize, byte| {
            let mut bytes = good.clone();
            bytes[at] = byte;
            DhcpMessage::parse(&bytes)
        };
        assert_eq!(changed(0, 3), Err(MessageError::Header));
        assert_eq!(changed(1, 6), Err(MessageError::Hardware));
        assert_eq!(changed(HEADER_LEN, 0), Err(MessageError::Header));
        assert_eq!(changed(HEADER_LEN + 6, 9), Err(MessageError::Kind));
        assert_eq!(DhcpMessage::parse(&good[..HEADER_LEN + 3]), Err(MessageError::Header));
    }

    proptest! {
        #[test]
        fn arbitrary_options_never_panic(bytes in proptest::collection::vec(any::<u8>(), 0..400)) {
            let mut message = full().emit();
            message.truncate(HEADER_LEN + 4);
            message.extend([53, 1, 5, 52, 1, 3]);
            message.extend(&bytes);
            message[SNAME.start..FILE.end].fill(bytes.first().copied().unwrap_or(0));
            if let Ok(parsed) = DhcpMessage::parse(&message) {
                prop_assert_eq!(DhcpMessage::parse(&parsed.emit()), Ok(parsed));
            }
        }

        #[test]
        fn arbitrary_bytes_never_panic(bytes in proptest::collection::vec(any::<u8>(), 0..600)) {
            let _ = DhcpMessage::parse(&bytes);
        }
    }
}
