//! A domain: processes that trust each other, and the memory that they share.

use std::io;

use towpath_ring::Region;
use towpath_shm::token;

/// Parts that the registry and the shards of a domain share; a clone is of the same domain.
#[derive(Debug, Clone)]
pub(crate) struct Domain {
    pub region: Region,
    /// The random number by which tokens of this domain are known.
    pub run: token::Run,
}

impl Domain {
    /// Creates a domain. Without programs, no memory is shared.
    pub fn create(has_programs: bool) -> io::Result<Self> {
        let region = if has_programs { Region::create() } else { Region::without_slots() };
        Ok(Self { region: region?, run: token::Run::random()? })
    }
}
