//! Tests several senders with their own rates (SO_MAX_PACING_RATE) on one link.

use std::num::NonZeroU64;

use towpath_direct::{NodeConfig, SocketHandle, WriteError};
use towpath_stack::SocketOption;

use crate::world::{Pair, events};

const SENDERS: usize = 20;
const SECONDS: u64 = 10;

fn fill(pair: &mut Pair, client: SocketHandle) {
    loop {
        match pair.a.send(client, &[7; 8192]) {
            Ok(_) => {}
            Err(error) => break assert_eq!(error, WriteError::Full),
        }
    }
}

/// Senders with a low rate reach it, regardless of other senders' rates.
#[test]
fn each_sender_has_its_own_rate() {
    let mut pair = Pair::with([NodeConfig::default(), NodeConfig::default()], false);
    let listener = pair.b.listen(([10, 0, 0, 2], 80).into(), 64).unwrap();
    let mut connections = Vec::new();
    for n in 0..SENDERS {
        let (client, server) = pair.connected(listener, 80);
        let rate = 20_000 * (n as u64 + 1);
        let option = SocketOption::MaxPacingRate(NonZeroU64::new(rate));
        assert_eq!(pair.a.set_option(client, option), Ok(()));
        connections.push((client, server, rate, 0u64));
    }
    for _ in 0..SECONDS * 50 {
        for (client, server, _, got) in &mut connections {
            fill(&mut pair, *client);
            if let Ok(bytes) = pair.b.discard(*server, usize::MAX) {
                *got += bytes as u64;
            }
        }
        pair.run(20);
        events(&mut pair.a);
        events(&mut pair.b);
    }
    for (client, _, rate, got) in connections {
        let ratio = got as f64 / (rate * SECONDS) as f64;
        assert!((0.97..=1.03).contains(&ratio), "{got} bytes at {rate} a second");
        let tcp = pair.a.info(client).and_then(|info| info.tcp).expect("a connection");
        assert_eq!((tcp.max_pacing_rate.map(NonZeroU64::get), tcp.total_retrans), (Some(rate), 0));
    }
}
