//! A router between links in memory, with one shard and with two.

use std::sync::mpsc::channel;
use std::thread::{self, JoinHandle};
use std::time::{Duration, Instant};

use towpath_channel::{ChannelPort, pair};
use towpath_conntrack::TrackerLimits;
use towpath_engine::{Change, EngineConfig, Remote, Report};
use towpath_filter::RuleList;
use towpath_pool::{Batch, LinkType, Pool, Port};
use towpath_router::{OpenPort, Plan, PlannedPort, Settings, TrackerSettings, router};
use towpath_stack::IfaceId;
use towpath_stack::net::SourceCheck;

/// Limit on every wait, after which the test says what did not happen.
const PATIENCE: Duration = Duration::from_secs(50);

/// Other ends of the queues of a port.
type Ends = Vec<ChannelPort>;

fn port(shards: usize) -> (OpenPort, Ends) {
    let (mut queues, mut ends) = (Vec::<Box<dyn Port + Send>>::new(), Vec::new());
    for _ in 0..shards {
        let (queue, end) = pair(LinkType::Ip, 1500).expect("descriptors");
        queues.push(Box::new(queue));
        ends.push(end);
    }
    (OpenPort { queues, mac: [0; 6], mtu: 1500 }, ends)
}

fn plan(rules: Option<&str>) -> Plan {
    let planned = |name: &str, address: &str| PlannedPort {
        name: name.to_owned(),
        addresses: vec![address.parse().expect("a prefix")],
        ..PlannedPort::default()
    };
    let rules = rules.map(|text| RuleList::parse(text).expect("rules"));
    let ports = vec![planned("lan", "10.1.0.1/24"), planned("wan", "10.2.0.1/24")];
    Plan { ports, routes: Vec::new(), rules, nat: Vec::new() }
}

fn settings() -> Settings {
    let engine = EngineConfig { busy_poll: Duration::ZERO, ..EngineConfig::default() };
    let tracker = TrackerSettings { limits: TrackerLimits::default(), key: [1, 2] };
    Settings { source_check: SourceCheck::Off, neighbors_max: 16, tracker, engine }
}

struct Running {
    remote: Remote,
    thread: JoinHandle<Report>,
}

impl Running {
    fn stop(self) -> Report {
        self.remote.stop();
        self.thread.join().expect("it does not panic")
    }
}

/// A datagram of 10.1.0.9 to 10.2.0.9.
fn datagram(number: u8) -> Vec<u8> {
    let mut packet = vec![0x45, 0, 0, 32, 0, 0, 0, 0, 64, 17, 0, 0, 10, 1, 0, 9, 10, 2, 0, 9];
    let words = packet.chunks_exact(2).map(|word| u32::from(word[0]) << 8 | u32::from(word[1]));
    let sum: u32 = words.sum();
    let sum = !((sum & 0xffff) + (sum >> 16)) as u16;
    packet[10..12].copy_from_slice(&sum.to_be_bytes());
    packet.extend([0x10, number, 0, 9, 0, 12, 0, 0, 1, 2, 3, number]);
    packet
}

fn send(end: &mut ChannelPort, bytes: &[u8]) {
    let (mut pool, mut batch) = (Pool::default(), Batch::new());
    let mut packet = pool.take(bytes.len());
    packet.push_back(bytes.len()).expect("room").copy_from_slice(bytes);
    batch.push_back(packet);
    assert_eq!(end.submit(0, &mut pool, &mut batch), 1);
}

fn receive(end: &mut ChannelPort) -> Vec<u8> {
    let (mut pool, mut batch, start) = (Pool::default(), Batch::new(), Instant::now());
    while end.poll(0, &mut pool, &mut batch, 1) == 0 {
        assert!(start.elapsed() < PATIENCE, "no packet");
        thread::sleep(Duration::from_millis(1));
    }
    batch[0].linear().to_vec()
}

#[test]
fn forwards_on_every_queue() {
    for shards in [1, 2] {
        let ((lan, mut lan_ends), (wan, mut wan_ends)) = (port(shards), port(shards));
        let engine = router(&plan(None), settings(), vec![lan, wan], [7; 32]).expect("a router");
        let remote = engine.remote();
        let running = Running { remote, thread: thread::spawn(|| engine.run()) };
        for (n, (lan, wan)) in lan_ends.iter_mut().zip(&mut wan_ends).enumerate() {
            send(lan, &datagram(n as u8));
            let forwarded = receive(wan);
            assert_eq!((forwarded[8], forwarded[31]), (63, n as u8), "TTL and payload");
        }
        let counters = running.remote.counters().expect("it runs");
        assert!(counters.net.contains(&("forwarded", shards as u64)));
        assert_eq!(running.remote.sockets(), Ok(Vec::new()));
        running.stop();
    }
}

#[test]
fn lets_no_program_in() {
    let ((lan, _lan), (wan, _wan)) = (port(1), port(1));
    let mut engine = router(&plan(None), settings(), vec![lan, wan], [7; 32]).expect("a router");
    assert!(engine.attach().is_err());
}

#[test]
fn judges_the_first_packet_by_the_rules_and_logs_it() {
    let ((lan, mut lan_ends), (wan, _wan)) = (port(1), port(1));
    let plan = plan(Some("acl add id 7 in lan action drop log"));
    let mut engine = router(&plan, settings(), vec![lan, wan], [7; 32]).expect("a router");
    let (tell, told) = channel();
    engine.on_logged(move |logged| tell.send(logged.rule).expect("the test waits"));
    send(&mut lan_ends[0], &datagram(0));
    let running = Running { remote: engine.remote(), thread: thread::spawn(|| engine.run()) };
    assert_eq!(told.recv_timeout(PATIENCE), Ok(7));
    assert!(running.stop().counters.net.contains(&("forwarded", 0)));
}

#[test]
fn reports_a_removed_device_of_each_shard_and_forwards_on_others() {
    for shards in [1, 2] {
        let ((lan, mut lan_ends), (wan, mut wan_ends)) = (port(shards), port(shards));
        let (dmz, dmz_ends) = port(shards);
        let mut plan = plan(None);
        let addresses = vec!["10.3.0.1/24".parse().expect("a prefix")];
        plan.ports.push(PlannedPort {
            name: "dmz".to_owned(),
            addresses,
            ..PlannedPort::default()
        });
        let engine = router(&plan, settings(), vec![lan, wan, dmz], [7; 32]);
        let mut engine = engine.expect("a router");
        let (tell, told) = channel();
        engine.on_device_gone(move |iface| tell.send(iface).expect("the test waits"));
        let running = Running { remote: engine.remote(), thread: thread::spawn(|| engine.run()) };
        drop(dmz_ends);
        for _ in 0..shards {
            assert_eq!(told.recv_timeout(PATIENCE), Ok(IfaceId(3)));
        }
        let down = Change::SetUp { iface: IfaceId(3), up: false };
        assert!(running.remote.apply(vec![down]).expect("it runs").is_ok());
        send(&mut lan_ends[0], &datagram(1));
        assert_eq!(receive(&mut wan_ends[0])[31], 1);
        running.stop();
        assert!(told.try_recv().is_err(), "a device is reported once");
    }
}
