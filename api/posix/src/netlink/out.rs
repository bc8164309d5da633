//! Collects the messages of a netlink answer in datagrams, and sends the datagrams.

use super::codec::{NetlinkMessages, NetlinkRequest, attribute, u32_at};
use crate::Result;

/// Result of a netlink request: success, or the errno that the program gets.
pub(super) type Outcome = std::result::Result<(), i32>;

/// Answer to one netlink request. Datagrams are sent whenever the buffer is full.
pub(super) struct AnswerBuffer<'a> {
    send: &'a mut dyn FnMut(&[u8]) -> Result<()>,
    pub(super) datagram: NetlinkMessages,
    pub(super) request: NetlinkRequest<'a>,
    port: u32,
    /// Netlink flags that are set in all messages of the answer.
    flags: u16,
    /// Whether a message of the dump has been written. A later error is then reported in
    /// NLMSG_DONE, as by Linux.
    has_begun: bool,
}

impl<'a> AnswerBuffer<'a> {
    pub(super) fn new(
        send: &'a mut dyn FnMut(&[u8]) -> Result<()>,
        request: NetlinkRequest<'a>,
        port: u32,
    ) -> Self {
        Self { send, datagram: NetlinkMessages::new(), request, port, flags: 0, has_begun: false }
    }

    pub(super) fn is_dump(&self) -> bool {
        i32::from(self.request.flags) & libc::NLM_F_DUMP != 0
    }

    /// Returns the 32-bit number at offset `at` of the request's body. Returns 0 if the body is
    /// shorter, because some requests contain only the family.
    pub(super) fn number(&self, at: usize) -> u32 {
        u32_at(self.request.body, at).unwrap_or(0)
    }

    pub(super) fn byte(&self, at: usize) -> u8 {
        self.request.body.get(at).copied().unwrap_or(0)
    }

    /// Returns the requested address family, the first byte of the request's body. None: all
    /// families.
    pub(super) fn family(&self) -> Option<i32> {
        Some(i32::from(self.byte(0))).filter(|family| *family != libc::AF_UNSPEC)
    }

    pub(super) fn attribute(&self, fixed: usize, kind: u16) -> Option<&[u8]> {
        attribute(self.request.body.get(fixed..)?, kind)
    }

    pub(super) fn begin(&mut self, kind: u16) -> Result<()> {
        if self.datagram.is_full() {
            self.flush()?;
        }
        let several = if self.is_dump() { libc::NLM_F_MULTI as u16 } else { 0 };
        self.datagram.begin(kind, several | self.flags, self.request.sequence, self.port);
        Ok(())
    }

    /// Marks the messages of a dump as filtered by the request (NLM_F_DUMP_FILTERED).
    pub(super) fn filtered(&mut self) {
        self.flags = NLM_F_DUMP_FILTERED;
    }

    /// Records that the dump has begun. As on Linux, later errors are reported in NLMSG_DONE
    /// instead of NLMSG_ERROR.
    pub(super) fn begin_dump(&mut self) {
        self.has_begun = true;
    }

    fn flush(&mut self) -> Result<()> {
        if !self.datagram.bytes().is_empty() {
            (self.send)(self.datagram.bytes())?;
            self.datagram.clear();
        }
        Ok(())
    }

    /// Sends the last message of the answer: the end of a dump, an error, or a requested
    /// acknowledgement.
    pub(super) fn end(mut self, outcome: Outcome) -> Result<()> {
        let wants_ack = i32::from(self.request.flags) & libc::NLM_F_ACK != 0;
        match outcome {
            Ok(()) if self.is_dump() => {
                // Send the end of a dump in a separate datagram, as the kernel does.
                self.flush()?;
                self.begin(libc::NLMSG_DONE as u16)?;
                self.datagram.put(&[0; 4]);
                self.datagram.end();
            }
            Err(errno) if self.has_begun => {
                self.flush()?;
                self.begin(libc::NLMSG_DONE as u16)?;
                self.datagram.put(&(-errno).to_ne_bytes());
                self.datagram.end();
            }
            Ok(()) if !wants_ack => {}
            outcome => {
                let errno = outcome.err().unwrap_or(0);
                if self.datagram.is_full() {
                    self.flush()?;
                }
                let NetlinkRequest { sequence, header, .. } = self.request;
                self.datagram.begin(libc::NLMSG_ERROR as u16, NLM_F_CAPPED, sequence, self.port);
                self.datagram.put(&(-errno).to_ne_bytes());
                self.datagram.put(header);
                self.datagram.end();
            }
        }
        self.flush()
    }
}

/// Netlink flag: the error message quotes only the header of the request (linux/netlink.h).
const NLM_F_CAPPED: u16 = 0x100;
const NLM_F_DUMP_FILTERED: u16 = 0x20;
