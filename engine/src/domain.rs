//! A domain: processes that trust each other, and their shared memory.

use std::io;

use towpath_ring::Region;
use towpath_shm::token;

/// State that the registry and the shards of a domain share. Clones refer to the same domain.
#[derive(Debug, Clone)]
pub(crate) struct Domain {
    pub region: Region,
    /// Random number that identifies tokens of this domain.
    pub run: token::Run,
}

impl Domain {
    /// Creates a domain. Without programs, no memory is shared.
    pub fn create(has_programs: bool) -> io::Result<Self> {
        let region = if has_programs { Region::create() } else { Region::without_slots() };
        Ok(Self { region: region?, run: token::Run::random()? })
    }
}
