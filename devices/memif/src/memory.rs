//! Regions of memory that the client shares with the server.

use std::io;
use std::os::fd::OwnedFd;
use std::sync::Arc;

use rustix::fs::{SealFlags, fcntl_get_seals, fstatfs};
use towpath_shm::{Fd, Mapping};

/// Maximum number of regions of a client. DPDK's client has one, and with `zero-copy=yes` one for
/// each list of its pages.
pub(crate) const REGIONS_MAX: usize = 64;
/// Maximum total length of all regions in bytes. Two rings with the largest buffers take 2 GiB, and
/// offsets have 32 bits. The kernel charges a page to the process that touches it first. A client
/// with a longer, sparse file could therefore exhaust the memory of this process.
const MAPPED_MAX: u64 = 1 << 32;
/// File system of memfds with huge pages: HUGETLBFS_MAGIC of linux/magic.h.
const HUGETLBFS: u32 = 0x9584_58f6;

/// Reason why a region is refused.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum SharedMemoryError {
    /// There are too many regions.
    #[error("more than {REGIONS_MAX} regions")]
    TooMany,
    /// The region is empty, or the regions are too long together.
    #[error("a region of {0} bytes: expected 1 byte or more, and at most {MAPPED_MAX} in total")]
    Length(u64),
    /// The file of a region may shrink. Access beyond its end would then raise SIGBUS.
    #[error("the size of a region's file is not sealed; turn off the peer's zero copy")]
    NotSealed,
    /// The file of a region has huge pages. Access would raise SIGBUS if the host has no free ones.
    #[error("the file of a region has huge pages; turn off the peer's zero copy")]
    HugePages,
    /// The file of a region cannot be mapped.
    #[error("a region cannot be mapped: {0}")]
    Map(#[from] io::Error),
}

/// Memory of a link, which the peer may write at any time.
#[derive(Debug, Default)]
pub struct SharedMemory {
    regions: Vec<Arc<Mapping>>,
}

impl SharedMemory {
    /// Creates the memory of a client, with one region that no peer can shrink.
    pub(crate) fn of_client(region: Arc<Mapping>) -> Self {
        Self { regions: vec![region] }
    }

    /// Maps the first `len` bytes of a region's file.
    ///
    /// # Errors
    /// Returns [`SharedMemoryError`] if there are too many or too long regions. The file must be
    /// long enough, sealed against shrinking, and without huge pages.
    pub fn add(&mut self, len: u64, file: OwnedFd) -> Result<(), SharedMemoryError> {
        if self.regions.len() >= REGIONS_MAX {
            return Err(SharedMemoryError::TooMany);
        }
        let mapped: u64 = self.regions.iter().map(|region| region.len() as u64).sum();
        if len == 0 || len > MAPPED_MAX - mapped {
            return Err(SharedMemoryError::Length(len));
        }
        let file = Fd::from(file);
        if !fcntl_get_seals(&file).is_ok_and(|seals| seals.contains(SealFlags::SHRINK)) {
            return Err(SharedMemoryError::NotSealed);
        }
        if fstatfs(&file).map_err(io::Error::from)?.f_type as u32 == HUGETLBFS {
            return Err(SharedMemoryError::HugePages);
        }
        self.regions.push(Arc::new(Mapping::from_file(file, len as usize)?));
        Ok(())
    }

    /// Returns the number of regions.
    pub fn len(&self) -> usize {
        self.regions.len()
    }

    /// Returns whether there is no region.
    pub fn is_empty(&self) -> bool {
        self.regions.is_empty()
    }

    /// Returns the region with this index if it has `len` bytes at `offset`.
    pub(crate) fn region(&self, index: u16, offset: u32, len: usize) -> Option<&Arc<Mapping>> {
        let region = self.regions.get(usize::from(index))?;
        let end = (offset as usize).checked_add(len)?;
        (end <= region.len()).then_some(region)
    }
}
