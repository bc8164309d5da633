//! Opens and closes published ports of a program whose sockets are in a kernel, for example in
//! another network namespace. A port is open while the program listens. We poll for this, because
//! kernels do not report new listeners.
//!
//! Cost: a poll covers at most [`PORTS_PER_LOOK`] ports with up to four queries each. With more
//! ports, it takes several polls to cover all of them.

use std::collections::BTreeMap;
use std::fmt;
use std::io;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};

use crate::config::{ForwardProtocol, GatewayConfig};
use crate::limits::PORTS_PER_LOOK;
use crate::listeners::Bound;
use crate::notice::Notice;
use crate::published::PublishedPort;

/// Query to the kernel of a program: whether a packet to the address `program` would reach a
/// socket. Packets to loopback addresses arrive on the loopback interface, all others on the
/// device.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct SocketQuestion {
    /// Protocol of the packet. For TCP the query looks for a listener, for UDP for an unconnected
    /// socket.
    pub protocol: ForwardProtocol,
    /// Destination address and port of the packet.
    pub program: SocketAddr,
}

/// The kernel (network namespace) in which the sockets of a program are.
pub trait ProgramKernel {
    /// Answers each query with whether a packet would reach a socket, in the order of the queries.
    ///
    /// # Errors
    /// Fails if the kernel did not answer. The next poll tries again.
    fn reached(&mut self, questions: &[SocketQuestion]) -> io::Result<Vec<bool>>;

    /// Returns whether a connected UDP socket is bound to `program`.
    ///
    /// # Errors
    /// Fails if the kernel did not answer. The next poll tries again.
    fn has_peer(&mut self, program: SocketAddr) -> io::Result<bool>;
}

/// Published ports of a program whose sockets are in a [`ProgramKernel`]. A port accepts clients
/// after a poll has found a matching socket, until a poll finds none.
pub struct PolledPorts {
    ports: Vec<Port>,
    /// Index of the first port that the next poll covers.
    next: usize,
    tell: Box<dyn Fn(Notice) + Send>,
}

/// Port of the program, with the host ports that are published for it.
#[derive(Debug)]
struct Port {
    protocol: ForwardProtocol,
    doors: Vec<PublishedPort>,
    /// Addresses of the program to which clients of these published ports are connected.
    programs: Vec<SocketAddr>,
    /// The program's loopback addresses, with this port. Empty after the user was notified that the
    /// program listens only on loopback.
    loopbacks: Vec<SocketAddr>,
}

impl PolledPorts {
    /// Creates the ports of `bound`, which refuse clients at first. A gateway with the
    /// configuration `config` must serve them
    /// ([`Gateway::serve_bound`](crate::Gateway::serve_bound)). [`Self::look`] passes notices for
    /// the user to `tell`.
    pub fn new<'a>(
        config: &GatewayConfig,
        bound: impl IntoIterator<Item = &'a Bound>,
        tell: impl Fn(Notice) + Send + 'static,
    ) -> Self {
        let mut ports: BTreeMap<_, Vec<PublishedPort>> = BTreeMap::new();
        for bound in bound {
            let which = bound.which;
            let key = (which.protocol == ForwardProtocol::Udp, which.port);
            ports.entry(key).or_default().push(PublishedPort::new(config, bound));
        }
        let port = |((is_udp, number), doors)| {
            let protocol = if is_udp { ForwardProtocol::Udp } else { ForwardProtocol::Tcp };
            Port::new(protocol, number, doors)
        };
        Self { ports: ports.into_iter().map(port).collect(), next: 0, tell: Box::new(tell) }
    }

    /// Returns whether no port is published.
    pub fn is_empty(&self) -> bool {
        self.ports.is_empty()
    }

    /// Queries `kernel` about the next ports, and opens or shuts them accordingly. Returns whether
    /// any port changed its state.
    ///
    /// # Errors
    /// Returns errors of `kernel`. Ports without an answer keep their state until the next poll.
    pub fn look(&mut self, kernel: &mut impl ProgramKernel) -> io::Result<bool> {
        let count = PORTS_PER_LOOK.min(self.ports.len());
        let order = |n| (self.next + n) % self.ports.len();
        let now: Vec<_> = (0..count).map(order).collect();
        let asked: Vec<_> = now.iter().flat_map(|n| self.ports[*n].questions()).collect();
        self.next = now.last().map_or(0, |last| (last + 1) % self.ports.len());
        let answers = kernel.reached(&asked)?;
        let mut answers = asked.into_iter().zip(answers);
        let mut changed = false;
        for n in now {
            let port = &mut self.ports[n];
            let own = answers.by_ref().take(port.programs.len() + port.loopbacks.len());
            let reached = own.filter(|(_, reached)| *reached).map(|(asked, _)| asked.program);
            let reached: Vec<_> = reached.collect();
            changed |= port.settle(&reached, kernel, &self.tell)?;
        }
        Ok(changed)
    }
}

impl fmt::Debug for PolledPorts {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("PolledPorts").field("ports", &self.ports).finish_non_exhaustive()
    }
}

impl Port {
    fn new(protocol: ForwardProtocol, number: u16, doors: Vec<PublishedPort>) -> Self {
        let mut programs: Vec<_> = doors.iter().flat_map(|door| door.programs.clone()).collect();
        programs.sort();
        programs.dedup();
        let loopback = |program: &SocketAddr| match program.ip() {
            IpAddr::V4(_) => SocketAddr::new(Ipv4Addr::LOCALHOST.into(), number),
            IpAddr::V6(_) => SocketAddr::new(Ipv6Addr::LOCALHOST.into(), number),
        };
        let loopbacks = programs.iter().map(loopback).collect();
        Self { protocol, doors, programs, loopbacks }
    }

    fn questions(&self) -> impl Iterator<Item = SocketQuestion> {
        let all = self.programs.iter().chain(&self.loopbacks);
        all.map(|program| SocketQuestion { protocol: self.protocol, program: *program })
    }

    /// Opens or shuts the host ports that are published for this port of the program. `reached`
    /// contains the addresses at which the program would receive packets. Returns whether any port
    /// changed its state.
    fn settle(
        &mut self,
        reached: &[SocketAddr],
        kernel: &mut impl ProgramKernel,
        tell: &dyn Fn(Notice),
    ) -> io::Result<bool> {
        let mut changed = false;
        let is_reached = |program: &SocketAddr| reached.contains(program);
        for door in &mut self.doors {
            let mut is_open = door.programs.iter().any(is_reached);
            if !is_open && door.is_open && self.protocol == ForwardProtocol::Udp {
                // Keep the port open while a socket is connected to a client. `nc -u -l`, for
                // example, connects its socket to its first client and serves only that client.
                for program in &door.programs {
                    is_open |= kernel.has_peer(*program)?;
                }
            }
            changed |= door.set(is_open, tell);
        }
        let is_open = self.doors.iter().any(|door| door.is_open);
        if !is_open
            && self.loopbacks.iter().any(is_reached)
            && let Some(notice) = self.doors.first().and_then(PublishedPort::loopback_only)
        {
            self.loopbacks.clear();
            tell(notice);
        }
        Ok(changed)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::config::Forward;
    use std::net::TcpStream;
    use std::sync::mpsc::channel;

    /// Simulated program kernel with a list of sockets.
    #[derive(Default)]
    struct Listed {
        reached: Vec<SocketAddr>,
        peers: Vec<SocketAddr>,
        asked: Vec<usize>,
    }

    impl ProgramKernel for Listed {
        fn reached(&mut self, questions: &[SocketQuestion]) -> io::Result<Vec<bool>> {
            self.asked.push(questions.len());
            let is = |question: &SocketQuestion| self.reached.contains(&question.program);
            Ok(questions.iter().map(is).collect())
        }

        fn has_peer(&mut self, program: SocketAddr) -> io::Result<bool> {
            Ok(self.peers.contains(&program))
        }
    }

    fn addr(text: &str) -> SocketAddr {
        text.parse().unwrap()
    }

    fn bound(protocol: ForwardProtocol, ports: std::ops::Range<u16>) -> Vec<Bound> {
        let forward = |port| Forward { host: addr("127.0.0.1:0"), port, protocol };
        Bound::all(&ports.map(forward).collect::<Vec<_>>()).unwrap()
    }

    #[test]
    fn a_port_is_open_between_two_looks_that_say_so() {
        let bound = bound(ForwardProtocol::Tcp, 80..82);
        let mut ports = PolledPorts::new(&GatewayConfig::default(), &bound, drop);
        let mut kernel = Listed::default();
        let is_open = || [0, 1].map(|n: usize| TcpStream::connect(bound[n].host).is_ok());
        for (program, wanted) in [
            ("10.0.2.15:80", [true, false]),
            ("[fd00:2::15]:81", [false, true]),
            ("127.0.0.1:80", [false, false]),
            ("10.0.2.15:82", [false, false]),
        ] {
            kernel.reached = vec![addr(program)];
            let before = is_open();
            assert_eq!(ports.look(&mut kernel).unwrap(), before != wanted);
            assert_eq!(is_open(), wanted, "{program}");
        }
    }

    #[test]
    fn a_datagram_socket_that_took_a_peer_keeps_its_port_open_and_opens_none() {
        let bound = bound(ForwardProtocol::Udp, 53..54);
        let mut ports = PolledPorts::new(&GatewayConfig::default(), &bound, drop);
        let program = addr("10.0.2.15:53");
        let mut kernel = Listed { peers: vec![program], ..Listed::default() };
        let mut look = |kernel: &mut Listed| {
            ports.look(kernel).unwrap();
            ports.ports[0].doors[0].is_open
        };
        assert!(!look(&mut kernel), "a socket of a client");
        kernel.reached = vec![program];
        assert!(look(&mut kernel));
        kernel.reached.clear();
        assert!(look(&mut kernel), "its server has a peer now");
        kernel.peers.clear();
        assert!(!look(&mut kernel));
    }

    #[test]
    fn a_listener_on_loopback_alone_is_named_once_and_asked_for_no_more() {
        let bound = bound(ForwardProtocol::Tcp, 80..81);
        let (tell, notices) = channel();
        let tell = move |notice| tell.send(notice).unwrap();
        let mut ports = PolledPorts::new(&GatewayConfig::default(), &bound, tell);
        let mut kernel = Listed { reached: vec![addr("127.0.0.1:80")], ..Listed::default() };
        for _ in 0..2 {
            ports.look(&mut kernel).unwrap();
        }
        assert_eq!(kernel.asked, [4, 2]);
        let (protocol, program) = (ForwardProtocol::Tcp, addr("10.0.2.15:80"));
        let wanted = Notice::LoopbackOnly { protocol, host: bound[0].host, program };
        assert_eq!(notices.try_iter().collect::<Vec<_>>(), [wanted]);
    }

    #[test]
    fn a_long_list_is_looked_at_in_turn() {
        let most = PORTS_PER_LOOK as u16;
        let bound = bound(ForwardProtocol::Tcp, 1..most + 3);
        let mut ports = PolledPorts::new(&GatewayConfig::default(), &bound, drop);
        let last = SocketAddr::new([10, 0, 2, 15].into(), most + 2);
        let mut kernel = Listed { reached: vec![last], ..Listed::default() };
        let open = |ports: &PolledPorts| {
            let doors = ports.ports.iter().flat_map(|port| &port.doors);
            doors.filter(|door| door.is_open).count()
        };
        ports.look(&mut kernel).unwrap();
        assert_eq!(open(&ports), 0);
        ports.look(&mut kernel).unwrap();
        assert_eq!(open(&ports), 1);
        assert_eq!(kernel.asked, [4 * PORTS_PER_LOOK; 2]);
        assert_eq!(ports.next, (2 * PORTS_PER_LOOK) % ports.ports.len());
    }

    #[test]
    fn a_kernel_without_an_answer_changes_nothing() {
        struct Silent;
        impl ProgramKernel for Silent {
            fn reached(&mut self, _: &[SocketQuestion]) -> io::Result<Vec<bool>> {
                Err(io::ErrorKind::WouldBlock.into())
            }

            fn has_peer(&mut self, _: SocketAddr) -> io::Result<bool> {
                Err(io::ErrorKind::WouldBlock.into())
            }
        }
        let bound = bound(ForwardProtocol::Tcp, 80..81);
        let mut ports = PolledPorts::new(&GatewayConfig::default(), &bound, drop);
        let mut kernel = Listed { reached: vec![addr("10.0.2.15:80")], ..Listed::default() };
        ports.look(&mut kernel).unwrap();
        assert!(ports.look(&mut Silent).is_err());
        assert!(TcpStream::connect(bound[0].host).is_ok());
    }
}
