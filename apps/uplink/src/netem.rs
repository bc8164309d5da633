//! Links in front of a port, as `--netem` describes them.

use std::io;

use serde::{Deserialize, Serialize};
use towpath_link::{Dice, LinkConfig, Netem};
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
    /// Puts the links in front of a port.
    ///
    /// # Errors
    /// The words are not those of netem.
    pub fn shaped<P: Port>(&self, port: P) -> io::Result<Shaped<P>> {
        let parse = |words: &Option<String>| words.as_deref().map(str::parse::<Netem>).transpose();
        let invalid = |error| io::Error::new(io::ErrorKind::InvalidData, error);
        let links = [parse(&self.egress).map_err(invalid)?, parse(&self.ingress).map_err(invalid)?];
        let seed = links.iter().flatten().find_map(|netem| netem.seed).unwrap_or(self.seed);
        // A way without words only takes memory when the port takes no packets.
        let configs =
            links.map(|netem| netem.map_or_else(LinkConfig::default, |netem| netem.config));
        Ok(Shaped::new(port, configs, Dice::new(seed, 0)))
    }
}
