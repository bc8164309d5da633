//! Reads the packets of a pcap or pcapng file in order.

use std::io::{self, BufRead, BufReader, Read};

use pcap_parser::pcapng::{Block, OptionCode};
use pcap_parser::traits::{PcapNGPacketBlock, PcapReaderIterator};
use pcap_parser::{Linktype, PcapBlockOwned, PcapError, create_reader};

/// Size of the read buffer in bytes: the longest record, which tcpdump limits to 256 KiB, and room
/// for reading ahead.
const BUFFER_LEN: usize = 1 << 20;
/// Maximum number of interfaces per pcapng section, which limits the memory for them.
const INTERFACES_MAX: usize = 65_536;
/// Number of bytes that are read first, because the parser expects the first header in one piece.
const START_LEN: usize = 64 << 10;
const NS: i128 = 1_000_000_000;

/// Error returned when a capture file cannot be replayed.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum ReplayError {
    /// The file is neither a pcap nor a pcapng file.
    #[error("neither a pcap nor a pcapng file")]
    Format,
    /// The file is compressed. The value names the program that decompresses it.
    #[error("the file is compressed by {0}: unpack it first, as with `{0} -dk FILE`")]
    Compressed(&'static str),
    /// The file is empty or ends within its first header.
    #[error("the file is empty")]
    Empty,
    /// The link type of a pcap file, or of all interfaces of a pcapng file, is not supported.
    #[error(
        "the packets are of link type {kind}{}; Ethernet (1) and IP (101, 228, 229) can be \
         replayed",
        advice(*.kind)
    )]
    Link {
        /// Number of the link type.
        kind: i32,
    },
    /// The capture file cannot be read.
    #[error(transparent)]
    Io(#[from] io::Error),
}

/// Link types that `tcpdump -i any` records.
const COOKED: [Linktype; 2] = [Linktype::LINUX_SLL, Linktype::LINUX_SLL2];

/// Returns how to capture with a supported link type, to be appended to an error message.
fn advice(link: i32) -> &'static str {
    match COOKED.contains(&Linktype(link)) {
        true => " (Linux cooked, as `tcpdump -i any` writes it: record on one interface instead)",
        false => "",
    }
}

/// Magic numbers of compressed files, and the programs that decompress them.
const COMPRESSED: [(&[u8], &str); 3] =
    [(b"\x1f\x8b", "gzip"), (b"\x28\xb5\x2f\xfd", "zstd"), (b"\xfd7zX", "xz")];

/// Prefix of the comment of records that repeat a dropped packet, as written by the option
/// `--pcap`.
const DROP_COMMENT: &[u8] = b"drop: ";

/// Type of the first header of a packet.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Link {
    Ethernet,
    Ip,
    Other,
}

impl Link {
    fn of(link: Linktype) -> Self {
        match link {
            Linktype::ETHERNET => Self::Ethernet,
            Linktype::RAW | Linktype::IPV4 | Linktype::IPV6 => Self::Ip,
            _ => Self::Other,
        }
    }
}

/// A packet recorded in a capture file.
#[derive(Debug, PartialEq, Eq)]
pub(crate) struct Record<'a> {
    /// Time in nanoseconds since 1970; `None` if the packet was recorded without a time.
    pub at_ns: Option<i128>,
    pub link: Link,
    /// Recorded bytes of the packet, which may be truncated.
    pub bytes: &'a [u8],
    /// Length of the original packet in bytes.
    pub len: usize,
    /// Whether the record repeats a packet that was dropped, with the reason as a comment.
    pub is_drop: bool,
}

/// An interface of a pcapng section.
#[derive(Debug, Clone, Copy)]
struct Interface {
    link: Link,
    kind: Linktype,
    /// Resolution of the interface's timestamps: units per second.
    resolution: u64,
    /// Offset that is added to the interface's timestamps, in seconds.
    offset: i64,
}

/// Reader of a capture file.
pub(crate) struct Records {
    reader: Box<dyn PcapReaderIterator + Send>,
    /// For a pcap file: link type of all packets, and timestamp units per second.
    whole: (Link, u32),
    interfaces: Vec<Interface>,
}

/// Result of reading the next record of a capture file.
pub(crate) enum Step {
    /// A record was read and passed to the caller.
    Record,
    /// The end of the file was reached.
    End,
    /// The rest of the file is malformed.
    Malformed,
}

impl Records {
    pub fn new(file: impl Read + Send + 'static) -> Result<Self, ReplayError> {
        let mut file = BufReader::with_capacity(START_LEN, file);
        let start = file.fill_buf()?;
        if let Some((_, by)) = COMPRESSED.iter().find(|(magic, _)| start.starts_with(magic)) {
            return Err(ReplayError::Compressed(by));
        }
        let reader = create_reader(BUFFER_LEN, file).map_err(|error| match error {
            PcapError::Eof | PcapError::Incomplete(_) => ReplayError::Empty,
            PcapError::ReadError => io::Error::other("the file cannot be read").into(),
            _ => ReplayError::Format,
        })?;
        let mut records = Self { reader, whole: (Link::Other, 1), interfaces: Vec::new() };
        records.read_header()?;
        records.read_interfaces()?;
        Ok(records)
    }

    /// Reads a pcapng file up to its first packet. Returns an error if all interfaces have an
    /// unsupported link type.
    fn read_interfaces(&mut self) -> Result<(), ReplayError> {
        loop {
            let (len, news) = match self.reader.next() {
                Ok((len, block)) => match record_of(&block, self.whole, &self.interfaces) {
                    Ok(_) => break,
                    Err(news) => (len, news),
                },
                Err(PcapError::Incomplete(_)) => {
                    if self.reader.refill().is_err() {
                        return Ok(());
                    }
                    continue;
                }
                // Ignore the end of the file and malformed data, which `next` reports.
                Err(_) => return Ok(()),
            };
            if !self.learn(news) {
                return Ok(());
            }
            self.reader.consume(len);
        }
        let is_known = |link| link != Link::Other;
        match self.interfaces.first() {
            Some(first) if !self.interfaces.iter().any(|interface| is_known(interface.link)) => {
                Err(ReplayError::Link { kind: first.kind.0 })
            }
            _ => Ok(()),
        }
    }

    /// Processes a block that is not a packet. Returns false if the block is malformed.
    fn learn(&mut self, news: RecordEvent) -> bool {
        match news {
            RecordEvent::Section => self.interfaces.clear(),
            RecordEvent::Interface(_) if self.interfaces.len() >= INTERFACES_MAX => return false,
            RecordEvent::Interface(interface) => self.interfaces.push(interface),
            RecordEvent::Nothing => {}
            RecordEvent::Malformed => return false,
        }
        true
    }

    /// Reads the header of a pcap file, which has the link type of all packets.
    fn read_header(&mut self) -> Result<(), ReplayError> {
        let Ok((len, PcapBlockOwned::LegacyHeader(header))) = self.reader.next() else {
            return Ok(());
        };
        let units = if header.is_nanosecond_precision() { 1_000_000_000 } else { 1_000_000 };
        self.whole = (Link::of(header.network), units);
        if self.whole.0 == Link::Other {
            return Err(ReplayError::Link { kind: header.network.0 });
        }
        self.reader.consume(len);
        Ok(())
    }

    /// Reads the next record, and passes it to `to`.
    pub fn next(&mut self, mut to: impl FnMut(Record<'_>)) -> Step {
        loop {
            let (len, found) = match self.reader.next() {
                Ok((len, block)) => match record_of(&block, self.whole, &self.interfaces) {
                    Ok(record) => {
                        to(record);
                        (len, true)
                    }
                    Err(news) => match self.learn(news) {
                        true => (len, false),
                        false => return Step::Malformed,
                    },
                },
                Err(PcapError::Eof) => return Step::End,
                Err(PcapError::Incomplete(_)) => {
                    if self.reader.refill().is_err() {
                        return Step::Malformed;
                    }
                    continue;
                }
                Err(_) => return Step::Malformed,
            };
            self.reader.consume(len);
            if found {
                return Step::Record;
            }
        }
    }
}

/// A block of the file that is not a packet.
enum RecordEvent {
    Section,
    Interface(Interface),
    Nothing,
    Malformed,
}

fn record_of<'a>(
    block: &'a PcapBlockOwned<'a>,
    (link, units): (Link, u32),
    interfaces: &[Interface],
) -> Result<Record<'a>, RecordEvent> {
    match block {
        PcapBlockOwned::Legacy(packet) => {
            let fraction = i128::from(packet.ts_usec) * NS / i128::from(units);
            let at_ns = Some(i128::from(packet.ts_sec) * NS + fraction);
            let bytes = packet.data.get(..packet.caplen as usize).ok_or(RecordEvent::Malformed)?;
            Ok(Record { at_ns, link, bytes, len: packet.origlen as usize, is_drop: false })
        }
        PcapBlockOwned::NG(Block::EnhancedPacket(packet)) => {
            let interface = interfaces.get(packet.if_id as usize).ok_or(RecordEvent::Malformed)?;
            let units = u64::from(packet.ts_high) << 32 | u64::from(packet.ts_low);
            let since = i128::from(units) * NS / i128::from(interface.resolution);
            Ok(Record {
                at_ns: Some(since + i128::from(interface.offset) * NS),
                link: interface.link,
                bytes: packet.packet_data(),
                len: packet.origlen as usize,
                is_drop: packet.options.iter().any(|option| {
                    option.code == OptionCode::Comment && option.value.starts_with(DROP_COMMENT)
                }),
            })
        }
        PcapBlockOwned::NG(Block::SimplePacket(packet)) => {
            let interface = interfaces.first().ok_or(RecordEvent::Malformed)?;
            let len = packet.origlen as usize;
            let (link, bytes) = (interface.link, packet.packet_data());
            Ok(Record { at_ns: None, link, bytes, len, is_drop: false })
        }
        PcapBlockOwned::NG(Block::SectionHeader(_)) => Err(RecordEvent::Section),
        PcapBlockOwned::NG(Block::InterfaceDescription(interface)) => {
            let resolution = interface.ts_resolution().filter(|units| *units > 0);
            Err(RecordEvent::Interface(Interface {
                link: Link::of(interface.linktype),
                kind: interface.linktype,
                resolution: resolution.ok_or(RecordEvent::Malformed)?,
                offset: interface.if_tsoffset,
            }))
        }
        _ => Err(RecordEvent::Nothing),
    }
}
