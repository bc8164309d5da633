//! A domain: processes that trust each other, and the memory that they share.

use std::io;

use towpath_ring::{Region, Windows};
use towpath_shm::token;

/// What the registry and the shards of a domain have in common; a clone is of the same one.
#[derive(Debug, Clone)]
pub(crate) struct Domain {
    pub region: Region,
    /// The region's FIFO memory, and how much of it there may be.
    pub windows: Windows,
    /// The random number by which tokens of this domain are known.
    pub run: token::Run,
}

impl Domain {
    /// A new one, with at most `memory_cap` bytes of FIFO memory.
    pub fn create(memory_cap: u64) -> io::Result<Self> {
        let region = Region::create()?;
        let windows = Windows::new(&region, memory_cap);
        Ok(Self { region, windows, run: token::Run::random()? })
    }
}
