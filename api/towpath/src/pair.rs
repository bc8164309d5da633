//! Two hosts, connected by a link in memory.

use towpath_channel::{ChannelPort, pair};
use towpath_pool::{LinkType, Port};
use towpath_uplink::{NetemSpec, Shape, parse_cidr};

use crate::builder::{Builder, random_unless};
use crate::engine::Recipe;
use crate::error::StartError;
use crate::fork::Origin;
use crate::handler::HandlerServices;
use crate::place::StackAddresses;
use crate::stack::Stack;

/// Default MTU of the link between the two hosts in bytes, as for Ethernet.
const MTU: u32 = 1500;
/// Addresses of the first and of the second host.
const ADDRESSES: [[&str; 2]; 2] = [["10.0.0.1/24", "fd00::1/64"], ["10.0.0.2/24", "fd00::2/64"]];

impl Builder {
    /// Starts two hosts connected by a link in memory: [`Stack::pair`] with the values of
    /// [`Self::mtu`], [`Self::netem`], [`Self::seed`] and [`Self::linger`].
    ///
    /// # Errors
    /// Returns [`StartError::Option`] if the builder has another link, or more than one shard.
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

    /// Starts the first (`end` = 0) or second (`end` = 1) host of a pair.
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
        // Each host applies delay and loss to the packets that it sends. The delayed packets keep
        // the host alive until they arrive. Each host needs its own seed; otherwise both directions
        // would lose the same packets.
        shape.tcp = self.tcp_defaults()?;
        let netem = self.netem_both(&seed)?;
        shape.netem = netem.map(|netem| NetemSpec {
            ingress: None,
            seed: netem.seed.wrapping_add(end),
            ..netem
        });
        let mut config = shape.config(&port);
        config.resolver = self.resolver();
        // Do not let the stack send packets larger than the MTU. A kernel would divide them into
        // segments, but the host at the other end is a stack of this library.
        config.interfaces.iter_mut().for_each(|interface| interface.kernel_cuts = false);
        let addresses = addresses.iter().map(|prefix| prefix.addr()).collect();
        let place = StackAddresses { addresses, published: Vec::new() };
        let port: Box<dyn Port + Send> = match &shape.netem {
            Some(netem) => Box::new(netem.shaped(port).map_err(StartError::System)?),
            None => Box::new(port),
        };
        let ports = vec![vec![port]];
        // Event handlers of the builder run only on the first host.
        let services = if end == 0 { self.services()? } else { HandlerServices::default() };
        let (recording, followed) = (None, None);
        let recipe = Recipe { config, ports, seed, recording, services, followed };
        Stack::begin(recipe, place, self.linger, origin)
    }
}
