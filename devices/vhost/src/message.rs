//! Requests of the vhost-user protocol (QEMU, docs/interop/vhost-user).
//!
//! A message has a header of three 32-bit words: the request, flags, and the length of the payload.
//! Words are in native byte order.

use crate::front_end::FrontEndError;
use crate::memory::RegionSpec;
use crate::ring::RingAddresses;

/// Length of a message header in bytes.
pub(crate) const HEADER_LEN: usize = 12;
/// Maximum number of descriptors with a message.
pub(crate) const DESCRIPTORS_MAX: usize = 8;
/// Maximum length of a payload in bytes: that of a table with as many regions as descriptors.
pub(crate) const PAYLOAD_MAX: usize = 8 + DESCRIPTORS_MAX * 32;

/// Version of the protocol, and flags of a header.
pub(crate) const VERSION: u32 = 1;
pub(crate) const VERSION_MASK: u32 = 3;
pub(crate) const IS_REPLY: u32 = 1 << 2;
pub(crate) const NEEDS_REPLY: u32 = 1 << 3;

/// Bit of a virtqueue's number: no descriptor is sent.
const NO_DESCRIPTOR: u64 = 1 << 8;

/// A request of the front end.
#[derive(Debug, PartialEq, Eq)]
pub(crate) enum FrontEndRequest {
    GetFeatures,
    SetFeatures(u64),
    SetOwner,
    ResetOwner,
    SetMemory(Vec<RegionSpec>),
    SetSize(QueueValue),
    SetAddresses(u32, RingAddresses),
    SetBase(QueueValue),
    GetBase(u32),
    SetNotification(QueueFd),
    SetInterrupt(QueueFd),
    SetError(QueueFd),
    GetProtocolFeatures,
    SetProtocolFeatures(u64),
    GetQueueNum,
    Enable(QueueValue),
    GetRegionsMax,
    AddRegion(RegionSpec),
    RemoveRegion(RegionSpec),
}

/// A number for a virtqueue.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct QueueValue {
    pub(crate) queue: u32,
    pub(crate) value: u32,
}

/// A virtqueue for which a descriptor is sent, or removed.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct QueueFd {
    pub(crate) queue: u32,
    pub(crate) has_descriptor: bool,
}

impl FrontEndRequest {
    /// Parses the payload of the request with the number `number`.
    pub(crate) fn parse(number: u32, payload: &[u8]) -> Result<Self, FrontEndError> {
        match number {
            // SET_LOG_BASE, SET_LOG_FD, SEND_RARP, and those of postcopy.
            6 | 7 | 19 | 28..=30 => return Err(FrontEndError::Migration),
            1..=5 | 8..=18 | 36..=38 => {}
            _ => return Err(FrontEndError::Unsupported(number)),
        }
        Self::fields(number, &mut PayloadFields(payload)).ok_or(FrontEndError::Malformed(number))
    }

    fn fields(number: u32, fields: &mut PayloadFields<'_>) -> Option<Self> {
        Some(match number {
            1 => Self::GetFeatures,
            2 => Self::SetFeatures(fields.u64()?),
            3 => Self::SetOwner,
            4 => Self::ResetOwner,
            5 => Self::SetMemory(fields.regions()?),
            8 => Self::SetSize(fields.queue_value()?),
            9 => {
                let (queue, _flags) = (fields.u32()?, fields.u32()?);
                let (descriptors, used) = (fields.u64()?, fields.u64()?);
                let available = fields.u64()?;
                Self::SetAddresses(queue, RingAddresses { descriptors, used, available })
            }
            10 => Self::SetBase(fields.queue_value()?),
            11 => Self::GetBase(fields.u32()?),
            12 => Self::SetNotification(fields.queue_fd()?),
            13 => Self::SetInterrupt(fields.queue_fd()?),
            14 => Self::SetError(fields.queue_fd()?),
            15 => Self::GetProtocolFeatures,
            16 => Self::SetProtocolFeatures(fields.u64()?),
            17 => Self::GetQueueNum,
            18 => Self::Enable(fields.queue_value()?),
            36 => Self::GetRegionsMax,
            37 => Self::AddRegion(fields.single_region()?),
            38 => Self::RemoveRegion(fields.single_region()?),
            _ => return None,
        })
    }
}

/// The rest of a payload.
struct PayloadFields<'a>(&'a [u8]);

impl PayloadFields<'_> {
    fn chunk<const N: usize>(&mut self) -> Option<[u8; N]> {
        let (chunk, rest) = self.0.split_first_chunk()?;
        self.0 = rest;
        Some(*chunk)
    }

    fn u32(&mut self) -> Option<u32> {
        self.chunk().map(u32::from_ne_bytes)
    }

    fn u64(&mut self) -> Option<u64> {
        self.chunk().map(u64::from_ne_bytes)
    }

    fn queue_value(&mut self) -> Option<QueueValue> {
        Some(QueueValue { queue: self.u32()?, value: self.u32()? })
    }

    fn queue_fd(&mut self) -> Option<QueueFd> {
        let number = self.u64()?;
        let has_descriptor = number & NO_DESCRIPTOR == 0;
        Some(QueueFd { queue: number as u8 as u32, has_descriptor })
    }

    fn regions(&mut self) -> Option<Vec<RegionSpec>> {
        let (count, _padding) = (self.u32()?, self.u32()?);
        (0..count).map(|_| self.region()).collect()
    }

    fn single_region(&mut self) -> Option<RegionSpec> {
        let _padding = self.u64()?;
        self.region()
    }

    fn region(&mut self) -> Option<RegionSpec> {
        let (guest, len) = (self.u64()?, self.u64()?);
        Some(RegionSpec { guest, len, user: self.u64()?, offset: self.u64()? })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn payloads_are_parsed() {
        let words =
            |words: &[u64]| words.iter().flat_map(|it| it.to_ne_bytes()).collect::<Vec<_>>();
        let parse = |number, all: &[u64]| FrontEndRequest::parse(number, &words(all)).unwrap();
        let spec = RegionSpec { guest: 1, len: 2, user: 3, offset: 4 };
        assert_eq!(parse(5, &[1, 1, 2, 3, 4]), FrontEndRequest::SetMemory(vec![spec]));
        assert_eq!(parse(37, &[0, 1, 2, 3, 4]), FrontEndRequest::AddRegion(spec));
        let addresses = RingAddresses { descriptors: 7, used: 8, available: 9 };
        assert_eq!(parse(9, &[1, 7, 8, 9, 0]), FrontEndRequest::SetAddresses(1, addresses));
        let value = QueueValue { queue: 1, value: 256 };
        assert_eq!(parse(8, &[1 | 256 << 32]), FrontEndRequest::SetSize(value));
        let fd = QueueFd { queue: 1, has_descriptor: false };
        assert_eq!(parse(12, &[0x101]), FrontEndRequest::SetNotification(fd));
    }

    #[test]
    fn short_payloads_are_malformed() {
        for number in [2, 5, 8, 9, 10, 11, 12, 13, 14, 16, 18, 37, 38] {
            let error = FrontEndRequest::parse(number, &[1, 0, 0]).unwrap_err();
            assert!(matches!(error, FrontEndError::Malformed(it) if it == number), "{error}");
        }
        let many = u64::from(u32::MAX).to_ne_bytes();
        assert!(FrontEndRequest::parse(5, &many).is_err());
    }

    #[test]
    fn migration_is_refused_with_a_reason() {
        let error = FrontEndRequest::parse(6, &[0; 16]).unwrap_err().to_string();
        assert!(error.contains("live migration"), "{error}");
        let error = FrontEndRequest::parse(99, &[]).unwrap_err().to_string();
        assert!(error.contains("99"), "{error}");
    }
}
