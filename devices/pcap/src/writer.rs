//! Writes pcapng files, with the parts of the format (draft-ietf-opsawg-pcapng) that a packet
//! capture needs.
//!
//! ```text
//! block:   type u32 | total length u32 | body, padded to 4 | total length u32 again
//! option:  code u16 | length u16       | value, padded to 4
//! ```
//!
//! All numbers are little-endian, as indicated by the section header.

use std::io::{self, BufWriter, Write};

/// Default for the maximum number of recorded bytes per packet, see [`Writer::with_snaplen`]. Same
/// as that of tcpdump, and longer than any packet including segmentation offload.
pub const SNAPLEN_DEFAULT: u32 = 262_144;

/// Buffered writer of a pcapng file.
///
/// Data may stay in the buffer until [`flush`](Self::flush) or [`into_inner`](Self::into_inner)
/// returns. After an error, the last block may be incomplete, so nothing more should be written.
/// Readers show the packets before it.
#[derive(Debug)]
pub struct Writer<W: Write> {
    out: BufWriter<W>,
    snaplen: u32,
    /// Total length in bytes of all blocks written so far.
    len: u64,
    /// Number of packets of each interface that were lost since the last packet written.
    lost: Vec<u64>,
}

/// Interface of a packet capture.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Interface<'a> {
    /// Name of the interface that readers show.
    pub name: &'a str,
    /// Type of header at the start of the interface's packets.
    pub link_type: CaptureLinkType,
}

/// Type of header at the start of an interface's packets.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum CaptureLinkType {
    /// Ethernet header (`LINKTYPE_ETHERNET`).
    Ethernet,
    /// IPv4 or IPv6 header without a link header (`LINKTYPE_RAW`).
    Raw,
}

/// Direction of a packet as seen from the network stack.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Direction {
    /// Received by the network stack.
    Inbound,
    /// Sent by the network stack.
    Outbound,
}

impl<W: Write> Writer<W> {
    /// Starts a capture of `interfaces`. Packets refer to them by index.
    pub fn new(out: W, interfaces: &[Interface<'_>]) -> io::Result<Self> {
        Self::with_snaplen(out, interfaces, SNAPLEN_DEFAULT)
    }

    /// Starts a capture that records at most `snaplen` bytes per packet.
    pub fn with_snaplen(out: W, interfaces: &[Interface<'_>], snaplen: u32) -> io::Result<Self> {
        let out = BufWriter::with_capacity(BUFFER_LEN, out);
        let mut writer = Self { out, snaplen, len: 0, lost: Vec::with_capacity(interfaces.len()) };
        writer.section_header()?;
        for interface in interfaces {
            writer.add_interface(interface)?;
        }
        Ok(writer)
    }

    /// Adds an interface to a running capture and returns its index.
    pub fn add_interface(&mut self, interface: &Interface<'_>) -> io::Result<u32> {
        let name = clip(interface.name);
        let total = BLOCK_OVERHEAD + 8 + option_len(name.len()) + option_len(1) + OPTION_END_LEN;
        self.block_start(BLOCK_INTERFACE, total)?;
        self.u16(match interface.link_type {
            CaptureLinkType::Ethernet => LINKTYPE_ETHERNET,
            CaptureLinkType::Raw => LINKTYPE_RAW,
        })?;
        self.u16(0)?;
        self.u32(self.snaplen)?;
        self.option(IF_NAME, name.as_bytes())?;
        self.option(IF_TSRESOL, &[TSRESOL_NANOSECONDS])?;
        self.option(OPTION_END, &[])?;
        self.u32(total)?;
        let index = self.lost.len() as u32;
        self.lost.push(0);
        Ok(index)
    }

    /// Writes a packet of interface `iface` at `time_ns` nanoseconds of Unix time.
    ///
    /// The packet consists of the pieces in `data`, truncated to the snap length. `original_len` is
    /// its length on the wire, in case `data` is already truncated. `comment` is free text, by
    /// convention `drop: ` and the reason for a dropped packet.
    ///
    /// # Errors
    /// Returns `InvalidInput` if the interface does not exist, otherwise errors of the output.
    pub fn packet(
        &mut self,
        iface: u32,
        time_ns: u64,
        direction: Direction,
        comment: Option<&str>,
        data: &[&[u8]],
        original_len: u32,
    ) -> io::Result<()> {
        let lost = self.lost.get_mut(iface as usize).ok_or_else(unknown_interface)?;
        let lost = std::mem::take(lost);
        let given_len: usize = data.iter().map(|piece| piece.len()).sum();
        let given_len = u32::try_from(given_len).map_err(|_| too_long())?;
        let captured_len = given_len.min(self.snaplen);
        let comment = comment.map(clip);

        let options_len = comment.map_or(0, |c| option_len(c.len()))
            + option_len(4)
            + if lost > 0 { option_len(8) } else { 0 }
            + OPTION_END_LEN;
        let total = captured_len
            .checked_next_multiple_of(4)
            .and_then(|len| len.checked_add(BLOCK_OVERHEAD + 20 + options_len))
            .ok_or_else(too_long)?;

        self.block_start(BLOCK_PACKET, total)?;
        self.u32(iface)?;
        self.u32((time_ns >> 32) as u32)?;
        self.u32(time_ns as u32)?;
        self.u32(captured_len)?;
        self.u32(original_len.max(given_len))?;
        self.gather(data, captured_len)?;
        if let Some(comment) = comment {
            self.option(OPTION_COMMENT, comment.as_bytes())?;
        }
        let flags: u32 = match direction {
            Direction::Inbound => 1,
            Direction::Outbound => 2,
        };
        self.option(EPB_FLAGS, &flags.to_le_bytes())?;
        if lost > 0 {
            self.option(EPB_DROPCOUNT, &lost.to_le_bytes())?;
        }
        self.option(OPTION_END, &[])?;
        self.u32(total)
    }

    /// Records that `count` packets of interface `iface` were lost. The number is written as an
    /// option of the interface's next packet.
    ///
    /// # Errors
    /// Returns `InvalidInput` if the interface does not exist.
    pub fn note_lost(&mut self, iface: u32, count: u64) -> io::Result<()> {
        let lost = self.lost.get_mut(iface as usize).ok_or_else(unknown_interface)?;
        *lost = lost.saturating_add(count);
        Ok(())
    }

    /// Returns the number of bytes written so far, including buffered ones.
    #[allow(clippy::len_without_is_empty)] // A file always has a section header.
    pub fn len(&self) -> u64 {
        self.len
    }

    /// Returns the maximum size in the file, in bytes, of a packet of `len` bytes with this
    /// comment.
    pub fn packet_len_max(&self, len: u32, comment: Option<&str>) -> u64 {
        let options = comment.map_or(0, |text| option_len(clip(text).len()))
            + option_len(4)
            + option_len(8)
            + OPTION_END_LEN;
        let captured = u64::from(len.min(self.snaplen)).next_multiple_of(4);
        captured + u64::from(BLOCK_OVERHEAD + 20 + options)
    }

    /// Returns the output to which blocks are written.
    pub fn output(&self) -> &W {
        self.out.get_ref()
    }

    /// Writes all buffered bytes to the output.
    pub fn flush(&mut self) -> io::Result<()> {
        self.out.flush()
    }

    /// Flushes all buffered bytes, and returns the output.
    pub fn into_inner(self) -> io::Result<W> {
        self.out.into_inner().map_err(io::IntoInnerError::into_error)
    }

    fn section_header(&mut self) -> io::Result<()> {
        let total = BLOCK_OVERHEAD + 16 + option_len(USER_APPLICATION.len()) + OPTION_END_LEN;
        self.block_start(BLOCK_SECTION, total)?;
        self.u32(BYTE_ORDER_MAGIC)?;
        self.u16(VERSION_MAJOR)?;
        self.u16(VERSION_MINOR)?;
        self.out.write_all(&SECTION_LEN_UNKNOWN.to_le_bytes())?;
        self.option(SHB_USERAPPL, USER_APPLICATION.as_bytes())?;
        self.option(OPTION_END, &[])?;
        self.u32(total)
    }

    fn block_start(&mut self, kind: u32, total: u32) -> io::Result<()> {
        if self.out.buffer().len() >= HANDED_LEN {
            self.out.flush()?;
        }
        self.len += u64::from(total);
        self.u32(kind)?;
        self.u32(total)
    }

    /// Writes the first `len` bytes of the pieces, and the padding that follows.
    fn gather(&mut self, pieces: &[&[u8]], len: u32) -> io::Result<()> {
        let mut left = len as usize;
        for piece in pieces {
            let piece = piece.get(..left).unwrap_or(piece);
            self.out.write_all(piece)?;
            left -= piece.len();
        }
        self.pad(len as usize)
    }

    fn option(&mut self, code: u16, value: &[u8]) -> io::Result<()> {
        self.u16(code)?;
        self.u16(value.len() as u16)?;
        self.out.write_all(value)?;
        self.pad(value.len())
    }

    fn pad(&mut self, len: usize) -> io::Result<()> {
        self.out.write_all(&[0; 3][..len.next_multiple_of(4) - len])
    }

    fn u16(&mut self, value: u16) -> io::Result<()> {
        self.out.write_all(&value.to_le_bytes())
    }

    fn u32(&mut self, value: u32) -> io::Result<()> {
        self.out.write_all(&value.to_le_bytes())
    }
}

/// Returns the length in bytes of an option with header and padding. `len` is at most
/// [`VALUE_LEN_MAX`].
const fn option_len(len: usize) -> u32 {
    4 + (len as u32).next_multiple_of(4)
}

/// Truncates a text to the maximum length of an option, between two characters.
fn clip(text: &str) -> &str {
    let mut end = text.len().min(VALUE_LEN_MAX);
    while !text.is_char_boundary(end) {
        end -= 1;
    }
    &text[..end]
}

fn unknown_interface() -> io::Error {
    io::Error::new(io::ErrorKind::InvalidInput, "the capture has no such interface")
}

fn too_long() -> io::Error {
    io::Error::new(io::ErrorKind::InvalidInput, "the packet does not fit a block")
}

/// Number of buffered bytes after which complete blocks are written to the output. A write of 64
/// KiB contains many packets, which saves system calls.
const HANDED_LEN: usize = 64 << 10;
/// Capacity of the buffer in bytes. The buffer holds [`HANDED_LEN`] plus the longest block
/// ([`SNAPLEN_DEFAULT`] and a comment). Therefore each write to the output contains only complete
/// blocks.
const BUFFER_LEN: usize = 512 << 10;
/// Length in bytes of the fields that every block has: its type and two length fields.
const BLOCK_OVERHEAD: u32 = 12;
const OPTION_END_LEN: u32 = 4;
/// Maximum length of an option value in bytes. The length field has 16 bits, and a multiple of 4
/// needs no padding.
const VALUE_LEN_MAX: usize = 65532;

const USER_APPLICATION: &str = "towpath";

const BLOCK_SECTION: u32 = 0x0a0d_0d0a;
const BLOCK_INTERFACE: u32 = 1;
const BLOCK_PACKET: u32 = 6;

const BYTE_ORDER_MAGIC: u32 = 0x1a2b_3c4d;
const VERSION_MAJOR: u16 = 1;
const VERSION_MINOR: u16 = 0;
const SECTION_LEN_UNKNOWN: i64 = -1;

const LINKTYPE_ETHERNET: u16 = 1;
const LINKTYPE_RAW: u16 = 101;

const OPTION_END: u16 = 0;
const OPTION_COMMENT: u16 = 1;
const SHB_USERAPPL: u16 = 4;
const IF_NAME: u16 = 2;
const IF_TSRESOL: u16 = 9;
/// Option value for timestamps in units of 10^-9 seconds: the negative power of ten.
const TSRESOL_NANOSECONDS: u8 = 9;
const EPB_FLAGS: u16 = 2;
const EPB_DROPCOUNT: u16 = 4;
