//! The records of a capture, one after the other.

use std::io::{self, Read};

use pcap_parser::pcapng::Block;
use pcap_parser::traits::{PcapNGPacketBlock, PcapReaderIterator};
use pcap_parser::{Linktype, PcapBlockOwned, PcapError, create_reader};

/// Bytes of the file that are held at a time: the longest record, which tcpdump limits to 256 KiB,
/// with room to read ahead.
const BUFFER_LEN: usize = 1 << 20;
/// Interfaces of a section. A file may describe any number, and each is remembered.
const INTERFACES_MAX: usize = 65_536;
const NS: i128 = 1_000_000_000;

/// Why a capture cannot be replayed.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum ReplayError {
    /// The file begins like none of them.
    #[error("neither a pcap nor a pcapng file")]
    Format,
    /// A file that ends in its first header, or has no byte.
    #[error("the file is empty")]
    Empty,
    /// The packets of a pcap file are of another kind.
    #[error(
        "the packets are of link type {0}; Ethernet (1) and IP (101, 228, 229) can be replayed"
    )]
    Link(i32),
    /// The file cannot be read.
    #[error(transparent)]
    Io(#[from] io::Error),
}

/// First header of a packet.
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

/// A recorded packet.
#[derive(Debug, PartialEq, Eq)]
pub(crate) struct Record<'a> {
    /// Nanoseconds since 1970; None: it was recorded without a time.
    pub at_ns: Option<i128>,
    pub link: Link,
    /// Bytes that were recorded.
    pub bytes: &'a [u8],
    /// Bytes that the packet had.
    pub len: usize,
}

/// An interface that a section of pcapng describes.
#[derive(Debug, Clone, Copy)]
struct Interface {
    link: Link,
    /// Units of its times a second.
    resolution: u64,
    /// Seconds to be added to its times.
    offset: i64,
}

/// A capture that is read.
pub(crate) struct Records {
    reader: Box<dyn PcapReaderIterator + Send>,
    /// Link of all packets of a pcap file, and units of its times a second.
    whole: (Link, u32),
    interfaces: Vec<Interface>,
}

/// How the next step into a file ended.
pub(crate) enum Step {
    /// A record was given.
    Record,
    /// No record is left.
    End,
    /// The rest of the file is none of its format.
    Malformed,
}

impl Records {
    pub fn new(file: impl Read + Send + 'static) -> Result<Self, ReplayError> {
        let reader = create_reader(BUFFER_LEN, file).map_err(|error| match error {
            PcapError::Eof | PcapError::Incomplete(_) => ReplayError::Empty,
            PcapError::ReadError => io::Error::other("the file cannot be read").into(),
            _ => ReplayError::Format,
        })?;
        let mut records = Self { reader, whole: (Link::Other, 1), interfaces: Vec::new() };
        records.read_header()?;
        Ok(records)
    }

    /// Reads the header of a pcap file, which says what all packets are.
    fn read_header(&mut self) -> Result<(), ReplayError> {
        let Ok((len, PcapBlockOwned::LegacyHeader(header))) = self.reader.next() else {
            return Ok(());
        };
        let units = if header.is_nanosecond_precision() { 1_000_000_000 } else { 1_000_000 };
        self.whole = (Link::of(header.network), units);
        if self.whole.0 == Link::Other {
            return Err(ReplayError::Link(header.network.0));
        }
        self.reader.consume(len);
        Ok(())
    }

    /// Gives `to` the next record.
    pub fn next(&mut self, mut to: impl FnMut(Record<'_>)) -> Step {
        loop {
            let (len, found) = match self.reader.next() {
                Ok((len, block)) => match record_of(&block, self.whole, &self.interfaces) {
                    Ok(record) => {
                        to(record);
                        (len, true)
                    }
                    Err(News::Section) => {
                        self.interfaces.clear();
                        (len, false)
                    }
                    Err(News::Interface(_)) if self.interfaces.len() >= INTERFACES_MAX => {
                        return Step::Malformed;
                    }
                    Err(News::Interface(interface)) => {
                        self.interfaces.push(interface);
                        (len, false)
                    }
                    Err(News::Nothing) => (len, false),
                    Err(News::Malformed) => return Step::Malformed,
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

/// A block that is no packet.
enum News {
    Section,
    Interface(Interface),
    Nothing,
    Malformed,
}

fn record_of<'a>(
    block: &'a PcapBlockOwned<'a>,
    (link, units): (Link, u32),
    interfaces: &[Interface],
) -> Result<Record<'a>, News> {
    match block {
        PcapBlockOwned::Legacy(packet) => {
            let fraction = i128::from(packet.ts_usec) * NS / i128::from(units);
            let at_ns = Some(i128::from(packet.ts_sec) * NS + fraction);
            let bytes = packet.data.get(..packet.caplen as usize).ok_or(News::Malformed)?;
            Ok(Record { at_ns, link, bytes, len: packet.origlen as usize })
        }
        PcapBlockOwned::NG(Block::EnhancedPacket(packet)) => {
            let interface = interfaces.get(packet.if_id as usize).ok_or(News::Malformed)?;
            let units = u64::from(packet.ts_high) << 32 | u64::from(packet.ts_low);
            let since = i128::from(units) * NS / i128::from(interface.resolution);
            Ok(Record {
                at_ns: Some(since + i128::from(interface.offset) * NS),
                link: interface.link,
                bytes: packet.packet_data(),
                len: packet.origlen as usize,
            })
        }
        PcapBlockOwned::NG(Block::SimplePacket(packet)) => {
            let interface = interfaces.first().ok_or(News::Malformed)?;
            let len = packet.origlen as usize;
            Ok(Record { at_ns: None, link: interface.link, bytes: packet.packet_data(), len })
        }
        PcapBlockOwned::NG(Block::SectionHeader(_)) => Err(News::Section),
        PcapBlockOwned::NG(Block::InterfaceDescription(interface)) => {
            let resolution = interface.ts_resolution().filter(|units| *units > 0);
            Err(News::Interface(Interface {
                link: Link::of(interface.linktype),
                resolution: resolution.ok_or(News::Malformed)?,
                offset: interface.if_tsoffset,
            }))
        }
        _ => Err(News::Nothing),
    }
}
