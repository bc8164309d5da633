//! Order of connections: a client's connections reach the program in the order in which they were
//! made, through any gateways. The tests turn the shards in random order, as threads would.

use std::io::Write;
use std::net::{Ipv4Addr, SocketAddr, TcpStream};
use std::time::{Duration, Instant};

use rustix::net::{AddressFamily, SocketType, bind, connect, socket};
use towpath_gateway::{Forward, ForwardProtocol, Gateway, GatewayConfig};
use towpath_link::Dice;
use towpath_stack::{BindOptions, DropReason, Family, SocketKind};

use crate::world::{PATIENCE, Sock, USERS_OF_A_SHARD, World, in_namespace};

/// A host with several shards, and the random generator that selects the shard to turn.
struct Shards {
    worlds: Vec<World>,
    dice: Dice,
}

impl Shards {
    fn new(count: usize, seed: u64) -> Self {
        Self { worlds: World::shards(count), dice: Dice::new(seed, 0) }
    }

    /// Turns randomly selected shards `times` times.
    fn turn(&mut self, times: usize) {
        for _ in 0..times {
            let shard = self.dice.index(self.worlds.len());
            self.worlds[shard].turn();
        }
    }

    fn until(&mut self, what: &str, mut done: impl FnMut(&mut Self) -> bool) {
        let deadline = Instant::now() + PATIENCE;
        while !done(self) {
            self.turn(8);
            assert!(Instant::now() < deadline, "waited too long for {what}");
        }
    }

    /// Turns all shards, and advances the stopped time by a millisecond.
    fn pass_a_millisecond(&mut self) {
        self.turn(8 * self.worlds.len());
        for world in &mut self.worlds {
            world.advance(Duration::from_millis(1));
        }
    }

    /// Returns the number of packets that the program's stack has dropped for this reason.
    fn dropped(&self, reason: DropReason) -> u64 {
        let of = |world: &World| world.stack.net.counters().data.drops.of(reason);
        self.worlds.iter().map(of).sum()
    }

    fn publish(&mut self, port: u16) -> SocketAddr {
        let host = SocketAddr::from((Ipv4Addr::UNSPECIFIED, 0));
        let forward = Forward { host, port, protocol: ForwardProtocol::Tcp };
        let take = |world: &World| {
            let spare = Gateway::new(GatewayConfig::default(), 1).unwrap();
            world.gateway.replace(spare)
        };
        let mut gateways: Vec<_> = self.worlds.iter().map(take).collect();
        let bound = Gateway::listen_all(&mut gateways, &[forward]).unwrap();
        for (world, gateway) in self.worlds.iter().zip(gateways) {
            world.gateway.replace(gateway);
        }
        bound[0]
    }

    fn listen(&mut self, shard: usize, port: u16, backlog: u32) -> Sock {
        let world = &mut self.worlds[shard];
        let user = world.user();
        let id = world.stack.open(SocketKind::Stream, Family::V4, user).unwrap();
        let addr = SocketAddr::from(([10, 0, 2, 15], port));
        world.stack.bind(id, addr, BindOptions::default()).unwrap();
        world.stack.listen(id, backlog).unwrap();
        Sock { id, user }
    }

    /// Accepts all connections in a listener's queue.
    fn accept(&mut self, shard: usize, listener: Sock, accepted: &mut Vec<Sock>) {
        let world = &mut self.worlds[shard];
        while let Some((user, id, _)) = world.program.accepted.pop_front() {
            world.stack.accepted(listener.id);
            accepted.push(Sock { id, user });
        }
    }

    /// Returns the names of the connections, which each client sends first.
    fn names(&mut self, accepted: &[Sock]) -> Vec<u32> {
        let mut names = Vec::new();
        for sock in accepted {
            let mut bytes = Vec::new();
            self.until("its name", |shards| {
                let world = &mut shards.worlds[(sock.user / USERS_OF_A_SHARD) as usize];
                bytes.extend(world.read(*sock));
                bytes.len() == 4
            });
            names.push(u32::from_le_bytes(bytes.try_into().unwrap()));
        }
        names
    }

    fn flows(&self) -> Vec<usize> {
        self.worlds.iter().map(|world| world.gateway.borrow().tcp_flows()).collect()
    }

    fn counter(&self, name: &str) -> u64 {
        self.worlds.iter().map(|world| world.counter(name)).sum()
    }
}

/// Connects a client from one of this host's addresses, and sends its name.
fn client(from: Ipv4Addr, port: u16, name: u32) -> TcpStream {
    let socket = socket(AddressFamily::INET, SocketType::STREAM, None).unwrap();
    bind(&socket, &SocketAddr::from((from, 0))).unwrap();
    connect(&socket, &SocketAddr::from((from, port))).unwrap();
    let mut stream = TcpStream::from(socket);
    stream.write_all(&name.to_le_bytes()).unwrap();
    stream
}

const CLIENTS: u32 = 200;

/// Connects clients with at most `turns` turns between two of them, and checks their order. Returns
/// the number of flows of each gateway.
fn arrive_in_order(count: usize, from: Ipv4Addr, turns: usize) -> Vec<usize> {
    let mut shards = Shards::new(count, turns as u64);
    let shard = count / 2;
    let listener = shards.listen(shard, 80, 512);
    let port = shards.publish(80).port();
    let (mut clients, mut accepted) = (Vec::new(), Vec::new());
    for name in 0..CLIENTS {
        clients.push(client(from, port, name));
        let turns = shards.dice.index(turns + 1);
        shards.turn(turns);
        shards.accept(shard, listener, &mut accepted);
    }
    shards.until("all clients", |shards| {
        shards.accept(shard, listener, &mut accepted);
        accepted.len() == CLIENTS as usize
    });
    let what = format!("of {count} from {from}, {turns} turns");
    assert!(shards.names(&accepted).into_iter().eq(0..CLIENTS), "{what}");
    assert!(count == 1 || shards.counter("accept_waited") > 0, "{what}");
    shards.flows()
}

/// At any rate of arrival, all gateways get about as many connections.
#[test]
fn connections_arrive_in_the_order_in_which_they_were_made() {
    for count in [1, 2, 4] {
        for turns in [0, 2, 20, 100] {
            let flows = arrive_in_order(count, Ipv4Addr::LOCALHOST, turns);
            let part = CLIENTS as usize / count;
            assert!(flows.iter().all(|flows| flows.abs_diff(part) <= part / 8), "{flows:?}");
        }
    }
}

/// A visible client keeps its ports, so that exactly one gateway can own each connection.
#[test]
fn so_do_those_of_a_client_that_is_seen() {
    in_namespace(|| {
        for count in [2, 4] {
            for turns in [0, 2, 20, 100] {
                let flows = arrive_in_order(count, Ipv4Addr::new(192, 0, 2, 1), turns);
                let part = CLIENTS as usize / count;
                // Ports are distributed randomly. A quarter is at least six standard deviations
                // below the mean.
                assert!(flows.iter().all(|flows| *flows > part / 4), "{flows:?}");
            }
        }
    });
}

/// Retransmitted handshakes, because the program's queue is full, delay other connections only
/// briefly.
#[test]
fn who_finds_a_full_queue_is_not_waited_for() {
    for count in [2, 4] {
        let mut shards = Shards::new(count, 1);
        let listener = shards.listen(0, 80, 8);
        let port = shards.publish(80).port();
        let clients: Vec<_> =
            (0..CLIENTS).map(|name| client(Ipv4Addr::LOCALHOST, port, name)).collect();
        // If connections waited for these handshakes, they would wait until the program accepts
        // below.
        shards.until("all to be given to the gateways", |shards| {
            shards.flows().iter().sum::<usize>() == clients.len()
        });
        assert!(shards.worlds[0].program.accepted.len() <= 9);
        let mut accepted = Vec::new();
        shards.until("all to be accepted", |shards| {
            shards.accept(0, listener, &mut accepted);
            std::thread::sleep(Duration::from_micros(100));
            accepted.len() == clients.len()
        });
        let mut names = shards.names(&accepted);
        assert!(names[..9].is_sorted(), "{names:?}");
        names.sort_unstable();
        assert!(names.into_iter().eq(0..CLIENTS));
    }
}

/// Clients that exceed the program's accept queue wait in line. When the program accepts, the next
/// clients connect with their bytes, and no retransmission timeout of TCP occurs. A program that
/// accepts nothing receives few SYNs.
#[test]
fn a_crowd_gets_in_in_order_and_as_fast_as_the_program_accepts() {
    const QUEUE: u32 = 9;
    for count in [1, 2] {
        let mut shards = Shards::new(count, 7);
        let listener = shards.listen(0, 80, QUEUE - 1);
        let port = shards.publish(80).port();
        shards.worlds.iter_mut().for_each(|world| world.stop_time(true));
        let _clients: Vec<_> =
            (0..CLIENTS).map(|name| client(Ipv4Addr::LOCALHOST, port, name)).collect();
        // Each gateway in turn waits for clients of the other gateway that find no place
        // (`accept_waited`).
        let mut milliseconds = 0;
        while milliseconds < 200 || shards.flows().iter().sum::<usize>() < CLIENTS as usize {
            shards.pass_a_millisecond();
            milliseconds += 1;
            assert!(milliseconds < 2000, "{:?} flows", shards.flows());
        }
        // Each client sends at most one SYN. In addition, the first client in the line of each
        // gateway retransmits after 1, 2, 4 … ms, and then every 50 ms.
        let in_vain = shards.dropped(DropReason::ListenOverflow);
        let repeated = count as u64 * (7 + milliseconds / 50);
        assert!(in_vain <= u64::from(CLIENTS - QUEUE) + repeated, "{in_vain} SYNs");

        let (mut accepted, mut milliseconds) = (Vec::new(), 0);
        while accepted.len() < CLIENTS as usize {
            shards.accept(0, listener, &mut accepted);
            shards.pass_a_millisecond();
            milliseconds += 1;
            assert!(milliseconds < 1000, "{} are in", accepted.len());
        }
        // The first client waits at most 50 ms, and each further `QUEUE` clients a few ms.
        assert!(milliseconds < 50 + 5 * CLIENTS / QUEUE, "{milliseconds} milliseconds");
        let in_vain = shards.dropped(DropReason::ListenOverflow);
        assert!(in_vain < 4 * u64::from(CLIENTS), "{in_vain} SYNs");
        // A dropped final ACK of a handshake would be repeated only after a timeout of TCP.
        assert_eq!(shards.dropped(DropReason::AcceptOverflow), 0);

        shards.worlds.iter_mut().for_each(|world| world.stop_time(false));
        let mut names = shards.names(&accepted);
        if count == 1 {
            assert!(names.is_sorted(), "{names:?}");
        }
        names.sort_unstable();
        assert!(names.into_iter().eq(0..CLIENTS));
    }
}
