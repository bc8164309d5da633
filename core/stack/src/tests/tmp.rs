use super::world::*;
use crate::*;
#[test]
fn sizes() {
    eprintln!("connection {} stream+test bufs {} place {} halfopen {} tw {}", size_of::<towpath_tcp::Connection>(), size_of::<crate::socket::Stream<Programs>>(), size_of::<crate::socket::Socket<Programs>>()+8, size_of::<crate::handshake::HalfOpenFlow>()+16, size_of::<crate::time_wait::TimeWaitFlow>()+16);
    let mut w = World::new(LinkConfig::default());
    let (listener, _) = w.a.listen("127.0.0.1:80", 8);
    let client = w.a.connect("127.0.0.1:80");
    w.wait(10, "accept", |w| !w.a.host.accepted.is_empty());
    let server = w.a.accept(listener).unwrap();
    w.run(1000);
    let t = std::time::Instant::now();
    let n = 200_000;
    for _ in 0..n {
        w.a.write(&client, b"request");
        w.a.turn();
        assert_eq!(w.a.read(&server).len(), 7);
        w.a.write(&server, b"answer");
        w.a.turn();
        assert_eq!(w.a.read(&client).len(), 6);
        w.a.host.events.clear();
        w.a.now.0 += 1000;
    }
    eprintln!("{} ns a round trip over loopback, {} packets, allocated {}", t.elapsed().as_nanos() / n, w.a.stack.counters().tcp_received, w.a.pool.allocated());
    let t = std::time::Instant::now();
    let c0 = w.a.stack.counters().tcp_received;
    let n = 20_000u32;
    for i in 0..n {
        let c = w.a.connect_with("127.0.0.1:80", 16, 16);
        w.a.turn(); 
        let s = w.a.accept(listener).unwrap();
        w.a.close(c.id); w.a.turn(); w.a.close(s.id); w.a.turn();
        w.a.host.events.clear();
        w.a.now.0 += 1000_000;
        if i == 0 { eprintln!("state {:?}", w.a.stack.usage()); }
    }
    eprintln!("{} ns a connection, {} packets, {:?} probed {}", t.elapsed().as_nanos() / n as u128, w.a.stack.counters().tcp_received - c0, w.a.stack.usage(), w.a.stack.counters().ports_probed);
}
