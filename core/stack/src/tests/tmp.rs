use super::world::*;
#[test]
fn sizes() {
    let mut w = World::new(LinkConfig::default());
    w.a.host.capacity = (4096, 4096);
    let (listener, _) = w.a.listen("127.0.0.1:80", 8);
    let t = std::time::Instant::now();
    let c0 = w.a.stack.counters().tcp_received;
    let n = 150_000u32;
    for _ in 0..n {
        let c = w.a.connect_with("127.0.0.1:80", 4096, 4096);
        w.a.turn(); 
        let s = w.a.accept(listener).unwrap();
        w.a.close(c.id); w.a.turn(); w.a.close(s.id); w.a.turn();
        w.a.host.events.clear();
        w.a.now.0 += 1_000_000;
    }
    eprintln!("{} ns a connection, {} packets, {:?} probed {}", t.elapsed().as_nanos() / n as u128, w.a.stack.counters().tcp_received - c0, w.a.stack.usage(), w.a.stack.counters().ports_probed);
    drop(w);
    // bulk
    let mut w = World::new(LinkConfig::default());
    let (listener, _) = w.a.listen("127.0.0.1:80", 8);
    let client = w.a.connect_with("127.0.0.1:80", 1<<20, 1<<20);
    w.a.host.capacity = (1<<20, 1<<20);
    w.wait(10, "accept", |w| !w.a.host.accepted.is_empty());
    let server = w.a.accept(listener).unwrap();
    let (mut dt, mut got) = (0, 0usize);
    let bytes = vec![1; 1<<20];
    while got < 2 << 30 {
        w.a.write(&client, &bytes);
        let t = std::time::Instant::now();
        w.a.turn();
        dt += t.elapsed().as_nanos();
        got += w.a.read(&server).len();
        w.a.host.events.clear();
        w.a.now.0 += 10_000;
    }
    eprintln!("{} Gbit/s in turns over loopback, test buffers included", got as u128 * 8 / dt);
}
