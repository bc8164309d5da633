//! The guest's memory: regions of memfds that the front end has sent.

use std::io;
use std::os::fd::OwnedFd;
use std::sync::Arc;

use rustix::fs::{SealFlags, fcntl_get_seals, fstatfs};
use towpath_shm::{Fd, Mapping};

/// Maximum number of memory regions, the same as for the kernel's vhost (VHOST_MEMORY_MAX_NREGIONS
/// without module parameters is 64). QEMU limits the hot-plugged memory of a guest accordingly.
pub(crate) const REGIONS_MAX: usize = 64;

/// Maximum total length of all mappings in bytes, so that address space is left for the stack.
const MAPPED_MAX: usize = 1 << 45;
/// File system of memfds with huge pages: HUGETLBFS_MAGIC of linux/magic.h.
const HUGETLBFS: u32 = 0x9584_58f6;

/// A region of guest memory, as described by the front end.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct RegionSpec {
    /// Guest-physical address of the first byte.
    pub guest: u64,
    /// Length in bytes.
    pub len: u64,
    /// Address of the first byte in the front end's address space.
    pub user: u64,
    /// Offset of the first byte in the region's file.
    pub offset: u64,
}

/// Reason why a memory region is refused.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum GuestMemoryError {
    /// The addresses or the length of a region overflow.
    #[error("a region with invalid addresses or an invalid length")]
    Invalid,
    /// There are too many regions.
    #[error("more than {REGIONS_MAX} regions")]
    TooMany,
    /// The file of a region may shrink. Access beyond its end would then raise SIGBUS.
    #[error(
        "the size of its file is not sealed; give QEMU -object memory-backend-memfd,share=on, \
         which seals it"
    )]
    NotSealed,
    /// The regions would take too much address space.
    #[error("more than {MAPPED_MAX} bytes of regions")]
    TooLong,
    /// The file of a region has huge pages. Access would raise SIGBUS if the host has no free ones.
    #[error("its file has huge pages; leave out hugetlb=on of QEMU's memory-backend-memfd")]
    HugePages,
    /// The file of a region cannot be mapped.
    #[error("a region cannot be mapped: {0}")]
    Map(#[from] io::Error),
}

/// Memory of a guest, which the guest may write at any time.
#[derive(Debug, Default)]
pub struct GuestMemory {
    regions: Vec<GuestRegion>,
}

#[derive(Debug)]
struct GuestRegion {
    spec: RegionSpec,
    /// Mapping of the file from its beginning to the end of the region.
    mapping: Arc<Mapping>,
}

/// A contiguous range of guest memory within one region: the index of the region, and a range that
/// is inside of its mapping.
#[derive(Debug, Clone, Copy)]
pub(crate) struct GuestExtent {
    region: usize,
    at: usize,
    pub(crate) len: usize,
}

/// Position of a structure in guest memory. Keeps the mapping.
#[derive(Debug, Clone)]
pub(crate) struct GuestPlace {
    pub(crate) mapping: Arc<Mapping>,
    pub(crate) at: usize,
}

impl GuestMemory {
    /// Maps a region, whose bytes are in `file`.
    ///
    /// # Errors
    /// Returns [`GuestMemoryError`] if the addresses overflow, or there are too many or too long
    /// regions. The file must be long enough, sealed against shrinking, and without huge pages.
    pub fn add(&mut self, spec: RegionSpec, file: OwnedFd) -> Result<(), GuestMemoryError> {
        let end = spec.offset.checked_add(spec.len).and_then(|end| i64::try_from(end).ok());
        let ends = [spec.guest.checked_add(spec.len), spec.user.checked_add(spec.len)];
        let Some(end) = end.filter(|_| spec.len > 0 && ends.iter().all(Option::is_some)) else {
            return Err(GuestMemoryError::Invalid);
        };
        if self.regions.len() >= REGIONS_MAX {
            return Err(GuestMemoryError::TooMany);
        }
        let file = Fd::from(file);
        if !fcntl_get_seals(&file).is_ok_and(|seals| seals.contains(SealFlags::SHRINK)) {
            return Err(GuestMemoryError::NotSealed);
        }
        if fstatfs(&file).map_err(io::Error::from)?.f_type as u32 == HUGETLBFS {
            return Err(GuestMemoryError::HugePages);
        }
        let mapped: usize = self.regions.iter().map(|region| region.mapping.len()).sum();
        if mapped + end as usize > MAPPED_MAX {
            return Err(GuestMemoryError::TooLong);
        }
        let mapping = Arc::new(Mapping::from_file(file, end as usize)?);
        self.regions.push(GuestRegion { spec, mapping });
        Ok(())
    }

    /// Removes a region. Returns whether there was a region with these addresses.
    pub fn remove(&mut self, spec: &RegionSpec) -> bool {
        let is_same = |region: &GuestRegion| {
            let RegionSpec { guest, len, user, .. } = region.spec;
            (guest, len, user) == (spec.guest, spec.len, spec.user)
        };
        let at = self.regions.iter().position(is_same);
        at.map(|at| self.regions.swap_remove(at)).is_some()
    }

    /// Returns the place of `len` bytes that the front end has at the address `user`. `None` if
    /// they are not inside of one region, or not aligned to `alignment`.
    pub(crate) fn of_front_end(
        &self,
        user: u64,
        len: usize,
        alignment: usize,
    ) -> Option<GuestPlace> {
        self.regions.iter().find_map(|GuestRegion { spec, mapping }| {
            let skip = user.checked_sub(spec.user)?;
            let end = skip.checked_add(len as u64)?;
            let at = (end <= spec.len).then(|| (spec.offset + skip) as usize)?;
            let mapping = Arc::clone(mapping);
            at.is_multiple_of(alignment).then_some(GuestPlace { mapping, at })
        })
    }

    /// Returns the part of a range of guest-physical addresses that begins at `guest` and is inside
    /// of one region. `None` if no region has the first byte.
    pub(crate) fn extent(&self, guest: u64, len: u32) -> Option<GuestExtent> {
        self.regions.iter().enumerate().find_map(|(region, GuestRegion { spec, .. })| {
            let skip = guest.checked_sub(spec.guest).filter(|skip| *skip < spec.len)?;
            let len = u64::from(len).min(spec.len - skip) as usize;
            Some(GuestExtent { region, at: (spec.offset + skip) as usize, len })
        })
    }

    /// Returns the mapping and the offset of an extent, which must be of this memory.
    pub(crate) fn place(&self, extent: &GuestExtent) -> (&Mapping, usize) {
        (&self.regions[extent.region].mapping, extent.at)
    }
}
