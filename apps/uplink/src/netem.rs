//! Emulated links in front of a port, as described by `--netem`.

use std::io;

use serde::{Deserialize, Serialize};
use towpath_link::{Dice, LinkConfig, Netem, NetemError};
use towpath_pool::Port;
use towpath_shape::Shaped;

/// Emulated links with delay and loss, one for each direction, in the syntax of tc-netem(8).
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct NetemSpec {
    /// Emulated link for packets that the stack sends; `None` to send them unchanged.
    pub egress: Option<String>,
    /// Emulated link for packets that the stack receives; `None` to receive them unchanged.
    pub ingress: Option<String>,
    /// Seed of the random numbers that determine losses, used unless the text contains a seed.
    pub seed: u64,
}

impl NetemSpec {
    /// Parses the descriptions of both directions.
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
    /// Returns the errors of [`Self::links`], with the kind `InvalidData`.
    pub fn shaped<P: Port>(&self, port: P) -> io::Result<Shaped<P>> {
        let invalid = |error| io::Error::new(io::ErrorKind::InvalidData, error);
        let links = self.links().map_err(invalid)?;
        let seed = links.iter().flatten().find_map(|netem| netem.seed).unwrap_or(self.seed);
        // A direction that is not emulated only queues packets while the port does not accept them.
        let configs =
            links.map(|netem| netem.map_or_else(LinkConfig::default, |netem| netem.config));
        Ok(Shaped::new(port, configs, Dice::new(seed, 0)))
    }
}
