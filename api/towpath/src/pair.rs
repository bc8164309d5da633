//! Two hosts on a link in memory.

use towpath_channel::{ChannelPort, pair};
use towpath_pool::{LinkType, Port};
use towpath_uplink::{NetemSpec, Shape, parse_cidr};

use crate::builder::{Builder, random_unless};
use crate::engine::Recipe;
use crate::error::StartError;
use crate::fork::Origin;
use crate::place::StackAddresses;
use crate::stack::Stack;

/// Longest packet between the hosts unless the builder was told otherwise, in bytes. Programs
/// meet that of Ethernet outside of tests; segments cross the link uncut, so that it costs no
/// time.
const MTU: u32 = 1500;
/// Addresses of either host.
const ADDRESSES: [[&str; 2]; 2] = [["10.0.0.1/24", "fd00::1/64"], ["10.0.0.2/24", "fd00::2/64"]];

impl Builder {
    /// Starts two hosts that are joined by a link in memory: [`Stack::pair`] with the values of
    /// [`Self::mtu`], [`Self::netem`], [`Self::seed`] and [`Self::linger`].
    ///
    /// # Errors
    /// [`StartError::Option`] where the builder was told of a link other than that of
    /// [`Self::netem`], or of shards.
    ///
    /// ```
    /// use std::time::Duration;
    ///
    /// let builder = towpath::Stack::builder().mtu(9000).linger(Duration::ZERO);
    /// let (server, client) = builder.pair()?;
    /// # Ok::<(), towpath::StartError>(())
    /// ```
    pub fn pair(self) -> Result<(Stack, Stack), StartError> {
        self.refuse_for_pair()?;
        let mtu = self.mtu_or(MTU)?;
        let (one, other) = pair(LinkType::Ip, mtu).map_err(StartError::System)?;
        let [first, second] = ADDRESSES;
        Ok((self.end(one, first, mtu, 0)?, self.end(other, second, mtu, 1)?))
    }

    /// Host number `end` of a link.
    fn end(
        &self,
        port: ChannelPort,
        addresses: [&str; 2],
        mtu: u32,
        end: u64,
    ) -> Result<Stack, StartError> {
        let origin = Origin::here()?;
        let seed = random_unless(self.seed)?;
        let addresses = addresses.map(|cidr| parse_cidr(cidr).expect("an address"));
        let mut shape = Shape::ip_link(addresses.to_vec(), mtu);
        // Each host shapes what it sends, so that packets under way keep it alive until they have
        // arrived. Each has dice of its own: equal ones would lose the same packets both ways.
        let netem = self.netem_both(&seed)?;
        shape.netem = netem.map(|netem| NetemSpec {
            ingress: None,
            seed: netem.seed.wrapping_add(end),
            ..netem
        });
        let mut config = shape.config(&port);
        // No kernel behind the link cuts packets.
        config.interfaces.iter_mut().for_each(|interface| interface.kernel_cuts = false);
        let addresses = addresses.iter().map(|prefix| prefix.addr()).collect();
        let place = StackAddresses { addresses, published: Vec::new() };
        let port: Box<dyn Port + Send> = match &shape.netem {
            Some(netem) => Box::new(netem.shaped(port).map_err(StartError::System)?),
            None => Box::new(port),
        };
        let ports = vec![vec![port]];
        let recipe = Recipe { config, ports, seed, recording: None };
        Stack::begin(recipe, place, self.linger, origin)
    }
}
