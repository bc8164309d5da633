//! Emulated links in front of a port, as described by `--netem`.

use std::io;

use serde::{Deserialize, Serialize};
use towpath_link::{Dice, LinkConfig, Netem, NetemError};
use towpath_pool::Port;
use towpath_shape::Shaped;

/// An emulated link for each direction, in the syntax of tc-netem(8).
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct NetemSpec {
    /// Link for packets that the stack sends. None: not emulated.
    pub egress: Option<String>,
    /// Link for packets that the stack receives. None: not emulated.
    pub ingress: Option<String>,
    /// Seed of the random numbers, unless the texts contain one.
    pub seed: u64,
}

impl NetemSpec {
    /// Parses the texts of both directions.
    ///
    /// # Errors
    /// Returns the first word that is invalid in the syntax of netem.
    pub fn links(&self) -> Result<[Option<Netem>; 2], NetemError> {
        let parse = |words: &Option<String>| words.as_deref().map(str::parse::<Netem>).transpose();
        Ok([parse(&self.egress)?, parse(&self.ingress)?])
    }

    /// Wraps a port so that packets pass the emulated links.
    ///
    /// # Errors
    /// As of [`Self::links`], with the kind `InvalidData`.
    pub fn shaped<P: Port>(&self, port: P) -> io::Result<Shaped<P>> {
        let invalid = |error| io::Error::new(io::ErrorKind::InvalidData, error);
        let links = self.links().map_err(invalid)?;
        let seed = links.iter().flatten().find_map(|netem| netem.seed).unwrap_or(self.seed);
        // A direction without emulation only queues packets while the port accepts none.
        let configs =
            links.map(|netem| netem.map_or_else(LinkConfig::default, |netem| netem.config));
        Ok(Shaped::new(port, configs, Dice::new(seed, 0)))
    }
}
