//! [`Domain`]: the shared memory of a group of processes that trust each other and can share
//! sockets.

use std::io;

use towpath_ring::Region;
use towpath_shm::token;

/// State of a domain (processes that trust each other) that its registry and shards share. Clones
/// refer to the same state.
#[derive(Debug, Clone)]
pub(crate) struct Domain {
    pub region: Region,
    /// Random number that identifies this domain in tokens, the kernel descriptors of its sockets.
    pub run: token::Run,
}

impl Domain {
    /// Creates a domain. If there are no programs, no memory for sockets is shared.
    pub fn create(has_programs: bool) -> io::Result<Self> {
        let region = if has_programs { Region::create() } else { Region::without_slots() };
        Ok(Self { region: region?, run: token::Run::random()? })
    }
}
