//! Links in front of a port, as `--netem` describes them.

use std::io;

use serde::{Deserialize, Serialize};
use towpath_link::{Dice, LinkConfig, Netem, NetemError};
use towpath_pool::Port;
use towpath_shape::Shaped;

/// A link each way, in the words of tc-netem(8).
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct NetemSpec {
    /// Packets that the stack sends. None: as without a link.
    pub egress: Option<String>,
    /// Packets that the stack receives. None: as without a link.
    pub ingress: Option<String>,
    /// Seed of the dice, unless the words have one.
    pub seed: u64,
}

impl NetemSpec {
    /// Parses the words of both directions.
    ///
    /// # Errors
    /// The first word that is not one of netem's.
    pub fn links(&self) -> Result<[Option<Netem>; 2], NetemError> {
        let parse = |words: &Option<String>| words.as_deref().map(str::parse::<Netem>).transpose();
        Ok([parse(&self.egress)?, parse(&self.ingress)?])
    }

    /// Puts the links in front of a port.
    ///
    /// # Errors
    /// As [`Self::links`], with the kind `InvalidData`.
    pub fn shaped<P: Port>(&self, port: P) -> io::Result<Shaped<P>> {
        let invalid = |error| io::Error::new(io::ErrorKind::InvalidData, error);
        let links = self.links().map_err(invalid)?;
        let seed = links.iter().flatten().find_map(|netem| netem.seed).unwrap_or(self.seed);
        // A way without words only takes memory when the port takes no packets.
        let configs =
            links.map(|netem| netem.map_or_else(LinkConfig::default, |netem| netem.config));
        Ok(Shaped::new(port, configs, Dice::new(seed, 0)))
    }
}
