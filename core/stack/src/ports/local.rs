//! Local ports of a stack: a table for each protocol, and the choice of ephemeral ports.

use super::bind_addr::PortProtocol;
use super::binds::{Binds, PortUse};
use super::ephemeral::{Ephemeral, PortChoice};
use super::holds::PortHolder;

/// Local ports of each protocol, as one shard (stack) sees them.
#[derive(Debug)]
pub(crate) struct LocalPorts {
    pub tcp: Binds,
    pub udp: Binds,
    pub echo: Binds,
    pub ephemeral: Ephemeral,
}

/// Kind of ports that one pass of [`LocalPorts::choose`] tries.
#[derive(Debug, Clone, Copy)]
pub(crate) struct PortPass {
    /// Whether only ports without connections are tried.
    pub vacant: bool,
    /// True to try ports with which the connection's flow belongs to this shard (stack); false to
    /// try ports with which it belongs to another shard.
    pub home: bool,
}

impl LocalPorts {
    /// Creates the ports from the tables of TCP, UDP and ICMP echo.
    pub fn new(binds: [Binds; 3], ephemeral: Ephemeral) -> Self {
        let [tcp, udp, echo] = binds;
        Self { tcp, udp, echo, ephemeral }
    }

    pub fn of(&self, table: PortProtocol) -> &Binds {
        match table {
            PortProtocol::Tcp => &self.tcp,
            PortProtocol::Udp => &self.udp,
            PortProtocol::Echo => &self.echo,
        }
    }

    pub fn of_mut(&mut self, table: PortProtocol) -> &mut Binds {
        match table {
            PortProtocol::Tcp => &mut self.tcp,
            PortProtocol::Udp => &mut self.udp,
            PortProtocol::Echo => &mut self.echo,
        }
    }

    /// Returns the number of ports in use plus the number of receiving sockets, of all protocols.
    pub fn len(&self) -> usize {
        self.tcp.len() + self.udp.len() + self.echo.len()
    }

    /// Chooses a free port within `range` ([`BindOptions::ports`](crate::BindOptions)), and binds a
    /// socket to it.
    pub fn hold_any(
        &mut self,
        table: PortProtocol,
        holder: &PortHolder,
        range: (u16, u16),
        hash: u64,
    ) -> PortChoice {
        let mut ephemeral = self.ephemeral.within(range);
        let chosen =
            self.of(table).hold_any(&mut ephemeral, hash, holder, table == PortProtocol::Udp);
        self.ephemeral.follow(&ephemeral);
        chosen
    }

    /// Chooses a port for a connection. The `passes` are tried in order, with candidates from
    /// `ephemeral`, until `is_allowed` returns true for a port.
    pub fn choose(
        &self,
        ephemeral: &mut Ephemeral,
        hash: u64,
        user: PortUse,
        passes: &[PortPass],
        is_allowed: impl Fn(u16, PortPass) -> bool,
    ) -> PortChoice {
        let mut chosen = PortChoice { port: None, tried: 0 };
        for &pass in passes {
            let is_free = |port| is_allowed(port, pass);
            let PortChoice { port, tried } =
                self.tcp.use_any(ephemeral, hash, user, pass.vacant, is_free);
            chosen = PortChoice { port, tried: chosen.tried + tried };
            if port.is_some() {
                break;
            }
        }
        chosen
    }

    /// Ends the use of a port by a connection, if the connection was counted as a user.
    pub fn end_use(&self, port: u16, user: PortUse) {
        if let Some(sharing) = user.sharing {
            self.tcp.unuse_port(port, user.local, sharing);
        }
    }
}
