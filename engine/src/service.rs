//! Services: servers and clients that run in the engine.

use std::os::fd::BorrowedFd;

use towpath_direct::{DirectConfig, NodeEvent, PrivateSockets, SetUpError};
use towpath_tcp::Instant;

/// A server or client that runs on the engine's thread, with sockets of the engine's stack. The
/// buffers of its sockets are in private memory, which is not shared with other processes.
///
/// Its methods must not block, because the same thread handles packets.
pub trait Service: Send {
    /// Returns the limits of the service's sockets, and their default buffer sizes.
    fn limits(&self) -> DirectConfig {
        DirectConfig::default()
    }

    /// Opens the first sockets of the service. Called once, when the service is added.
    ///
    /// # Errors
    /// Returns an error of `sockets` if one cannot be opened; then the service does not start.
    fn start(&mut self, sockets: &mut dyn PrivateSockets) -> Result<(), SetUpError>;

    /// Handles an event of one of the service's sockets.
    fn on_event(&mut self, event: NodeEvent, sockets: &mut dyn PrivateSockets);

    /// Handles timers, and messages of other threads. Called in every iteration of the shard's
    /// event loop, after [`Self::on_event`]. Returns whether it used a socket or has more work; the
    /// event loop then runs again without a sleep.
    fn on_turn(&mut self, now: Instant, sockets: &mut dyn PrivateSockets) -> bool {
        let _ = (now, sockets);
        false
    }

    /// Returns the time at which [`Self::on_turn`] must be called, if no event occurs before.
    /// `None`: no time.
    fn next_timeout(&self) -> Option<Instant> {
        None
    }

    /// Returns an eventfd by which other threads request a call of [`Self::on_turn`]. Called once,
    /// after [`Self::start`]. The descriptor must stay open as long as the service exists.
    fn notification(&self) -> Option<BorrowedFd<'_>> {
        None
    }
}

/// Reason why a service does not start.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum ServiceError {
    /// The engine has several shards, but the service can run in only one.
    #[error("services need an engine with one shard")]
    SeveralShards,
    /// The number of services differs from the number of shards on the engine's thread.
    #[error("expected a service for each of {0} shards")]
    Shards(usize),
    /// A socket could not be opened.
    #[error(transparent)]
    Socket(#[from] SetUpError),
    /// The shard cannot wait for the service's notification descriptor, because of this error.
    #[error("waiting for a service's notification: {0}")]
    Notification(std::io::Error),
}

#[cfg(test)]
mod tests {
    use std::net::SocketAddr;
    use std::os::fd::BorrowedFd;
    use std::sync::{Arc, Mutex};
    use std::time::Duration;

    use towpath_direct::{Node, NodeConfig, SocketHandle};
    use towpath_pool::{Batch, LinkType, Offloads, Pool, Port};
    use towpath_stack::net::{Forwarding, InterfaceConfig};
    use towpath_tcp::Instant;

    use super::*;
    use crate::clock::Clock;
    use crate::{Engine, EngineConfig};

    /// Test service that sends datagrams and bytes of streams back to the sender.
    struct Echo {
        address: SocketAddr,
        /// Streams whose clients have sent their FIN.
        ended: Vec<SocketHandle>,
    }

    impl Service for Echo {
        fn start(&mut self, sockets: &mut dyn PrivateSockets) -> Result<(), SetUpError> {
            sockets.udp(self.address)?;
            sockets.listen(self.address, 16)?;
            Ok(())
        }

        fn on_event(&mut self, event: NodeEvent, sockets: &mut dyn PrivateSockets) {
            match event {
                NodeEvent::Incoming(listener) => while sockets.accept(listener).is_some() {},
                NodeEvent::Readable(socket) => {
                    while let Some(datagram) = sockets.recv_from(socket) {
                        let to = datagram.meta.remote;
                        sockets.send_to(socket, to, &datagram.bytes).expect("the client is there");
                    }
                    self.echo(sockets, socket);
                }
                NodeEvent::Writable(socket) => self.echo(sockets, socket),
                NodeEvent::PeerClosed(socket) => {
                    self.ended.push(socket);
                    self.echo(sockets, socket);
                }
                _ => {}
            }
        }
    }

    impl Echo {
        fn new(address: &str) -> Self {
            Self { address: address.parse().expect("an address"), ended: Vec::new() }
        }

        /// Sends back as many bytes of a stream as fit in the send buffer. If the client has sent
        /// its FIN, closes the stream after all bytes are sent back. An earlier close, with unread
        /// bytes, would reset it.
        fn echo(&mut self, sockets: &mut dyn PrivateSockets, socket: SocketHandle) {
            let Ok(unread) = sockets.slices(socket).map(|slices| slices.concat()) else { return };
            let sent = sockets.send(socket, &unread).unwrap_or(0);
            sockets.discard(socket, sent).expect("as many were there");
            if sent == unread.len() && self.ended.contains(&socket) {
                self.ended.retain(|ended| *ended != socket);
                sockets.shutdown(socket);
                sockets.close(socket);
            }
        }
    }

    const START: Instant = Instant(1_000_000_000);
    /// Address and port of the service. The address is the router's on a link to which the host is
    /// not connected.
    const SERVICE: &str = "10.2.0.1:7";

    /// End 0 or 1 of a simulated wire. The mutex contains the packets queued for each end.
    struct WireEnd(usize, Arc<Mutex<[Batch; 2]>>);

    impl Port for WireEnd {
        fn poll(&mut self, _: u64, _: &mut Pool, out: &mut Batch, max: usize) -> usize {
            let packets = &mut self.1.lock().expect("no panic")[self.0];
            let n = packets.len().min(max);
            out.extend(packets.drain(..n));
            n
        }

        fn submit(&mut self, _: u64, pool: &mut Pool, batch: &mut Batch) -> usize {
            batch.iter_mut().for_each(|packet| packet.linearize(pool));
            let packets = &mut self.1.lock().expect("no panic")[1 - self.0];
            let n = batch.len();
            packets.append(batch);
            n
        }

        fn offloads(&self) -> Offloads {
            Offloads::default()
        }

        fn link_type(&self) -> LinkType {
            LinkType::Ip
        }

        fn wake_fd(&self) -> Option<BorrowedFd<'_>> {
            None
        }

        fn next_timeout_ns(&self) -> Option<u64> {
            None
        }
    }

    /// A simulated network: a router with the test service, and a host on one of its links.
    struct World {
        engine: Engine,
        host: Node,
        now: Instant,
    }

    impl World {
        fn new() -> Self {
            Self::with_programs(EngineConfig::default().channels_max)
        }

        fn with_programs(channels_max: u32) -> Self {
            let wires = [(); 2].map(|()| Arc::default());
            let end = |n: usize, side| Box::new(WireEnd(side, Arc::clone(&wires[n])));
            let ports: Vec<Box<dyn Port + Send>> = vec![end(0, 0), end(1, 0)];
            let interface = |name: &str, address: &str, port: &dyn Port| InterfaceConfig {
                name: name.into(),
                link: port.link_type(),
                mac: towpath_wire::MacAddr([2, 0, 0, 0, 1, address.as_bytes()[3]]),
                mtu: 1500,
                offloads: port.offloads(),
                addresses: vec![address.parse().expect("a prefix")],
                slaac: false,
                any_address: false,
                kernel_cuts: false,
                in_process: false,
            };
            let interfaces = vec![
                interface("in", "10.1.0.1/24", &*ports[0]),
                interface("out", "10.2.0.1/24", &*ports[1]),
            ];
            let mut config = EngineConfig { interfaces, channels_max, ..EngineConfig::default() };
            config.stack.net.forwarding = Some(Forwarding::default());
            let mut engine = Engine::with_clock(config, vec![ports], [7; 32], Clock::ByHand(START))
                .expect("memory");
            let service = Echo::new(SERVICE);
            engine.add_service(Box::new(service)).expect("the address is there");
            let mut host: Node = Node::new(NodeConfig::default(), [9; 32], START);
            let iface =
                host.add_port("eth0", end(0, 1), &["10.1.0.2/24".parse().expect("a prefix")]);
            let router = "10.1.0.1".parse().expect("an address");
            assert!(host.stack.net.add_route(towpath_wire::Prefix::ALL_V4, Some(router), iface, 0));
            Self { engine, host, now: START }
        }

        fn turn(&mut self) {
            const STEP: Duration = Duration::from_micros(100);
            self.now += STEP;
            self.host.turn(self.now);
            self.engine.pass(STEP);
            self.engine.shard.do_turn();
        }

        fn until<T>(&mut self, mut done: impl FnMut(&mut Node) -> Option<T>) -> T {
            for _ in 0..100_000 {
                self.turn();
                if let Some(result) = done(&mut self.host) {
                    return result;
                }
            }
            panic!("it did not happen within ten seconds");
        }
    }

    #[test]
    fn answers_datagrams_from_private_memory() {
        let mut world = World::new();
        let socket = world.host.udp("10.1.0.2:0".parse().expect("an address")).expect("a port");
        for len in [0, 1, 1400, 9000] {
            let bytes = vec![len as u8; len];
            let to = SERVICE.parse().expect("an address");
            world.host.send_to(socket, to, &bytes).expect("a route");
            let answer = world.until(|host| host.recv_from(socket));
            assert_eq!((answer.bytes, answer.meta.remote), (bytes, to));
        }
    }

    #[test]
    fn answers_without_programs() {
        let mut world = World::with_programs(0);
        let socket = world.host.udp("10.1.0.2:0".parse().expect("an address")).expect("a port");
        let to = SERVICE.parse().expect("an address");
        world.host.send_to(socket, to, b"hello").expect("a route");
        assert_eq!(world.until(|host| host.recv_from(socket)).bytes, b"hello");
        answers_stream(world);
    }

    #[test]
    fn answers_streams_from_private_memory() {
        answers_stream(World::new());
    }

    fn answers_stream(mut world: World) {
        let client = world.host.connect(SERVICE.parse().expect("an address")).expect("a route");
        let bytes: Vec<u8> = (0..3_000_000_u32).map(|n| (n ^ n >> 9) as u8).collect();
        let (mut sent, mut received) = (0, Vec::new());
        let mut piece = vec![0; 65536];
        let ended = world.until(|host| {
            sent += host.send(client, &bytes[sent..]).unwrap_or(0);
            if sent == bytes.len() {
                host.shutdown(client);
            }
            match host.recv(client, &mut piece) {
                Ok(0) => return Some(true),
                Ok(n) => received.extend_from_slice(&piece[..n]),
                Err(_) => {}
            }
            None
        });
        assert!(ended && received == bytes);
    }

    #[test]
    fn is_beside_the_sockets_of_programs() {
        let mut world = World::new();
        world.turn();
        // The service's socket is bound, but uses no slot in shared memory.
        assert_eq!(world.engine.shard.sockets.slots.len(), 0);
        let busy = Echo::new(SERVICE);
        let refused = world.engine.add_service(Box::new(busy));
        assert!(matches!(refused, Err(ServiceError::Socket(SetUpError::Bind(_)))), "{refused:?}");
        let ports = vec![Vec::new(), Vec::new()];
        let mut several = Engine::with_shards(EngineConfig::default(), ports, [7; 32]).unwrap();
        let service = Echo::new("127.0.0.1:7");
        let refused = several.add_service(Box::new(service));
        assert!(matches!(refused, Err(ServiceError::SeveralShards)));
    }
}
