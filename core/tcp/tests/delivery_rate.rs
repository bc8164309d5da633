//! The rate of delivery is that of the path, in bytes of payload a second.

use std::num::NonZeroU64;
use std::time::Duration;
use towpath_tcp::*;

use crate::world::Side::{A, B};
use crate::world::*;

/// Sends `len` bytes over a link of `bytes_per_second` with a delay of 10 ms each way.
fn transferred(config: Config, bytes_per_second: u64, loss: u64, len: usize) -> Pair {
    let mut pair = Pair::connected_with(config, config);
    let (rate, delay_ns) = (Some(bytes_per_second * 8), 10_000_000);
    let link = LinkConfig { delay_ns, ..LinkConfig::default() };
    pair.lay([LinkConfig { rate, loss: losses(loss), ..link }, link], 7);
    for host in [&mut pair.a, &mut pair.b] {
        (host.send_capacity, host.recv_capacity) = (4 << 20, 4 << 20);
    }
    pair.write(A, len);
    pair.run_until(Duration::from_secs(600), |pair| pair.b.received.len() == len);
    // The last acknowledgement ends the flight.
    pair.run_for(ms(100));
    pair
}

fn info(pair: &mut Pair) -> Info {
    let (now, buffers) = (pair.now, pair.a.buffers());
    pair.a.connection().info(now, buffers)
}

fn ratio(pair: &mut Pair, bytes_per_second: u64) -> f64 {
    info(pair).delivery_rate as f64 / bytes_per_second as f64
}

#[test]
fn equals_the_rate_of_the_path() {
    for bytes_per_second in [100_000, 1_000_000, 10_000_000] {
        let len = bytes_per_second as usize * 3;
        let mut pair = transferred(Config::default(), bytes_per_second, 0, len);
        // Headers are a part of the link's rate.
        let ratio = ratio(&mut pair, bytes_per_second);
        assert!((0.90..=1.0).contains(&ratio), "{ratio} of {bytes_per_second}");
        assert_eq!(info(&mut pair).unacked, 0);
    }
}

#[test]
fn does_not_exceed_the_rate_of_a_path_that_loses() {
    for sack in [true, false] {
        let config = Config { sack, ..Config::default() };
        let mut pair = transferred(config, 1_000_000, 20, 3_000_000);
        let ratio = ratio(&mut pair, 1_000_000);
        assert!((0.05..=1.01).contains(&ratio), "SACK {sack}: {ratio}");
    }
}

/// The last segment is acknowledged late, which is why the rate is read before.
#[test]
fn equals_a_pacing_rate_below_that_of_the_path() {
    let max_pacing_rate = NonZeroU64::new(200_000);
    let config = Config { max_pacing_rate, ..Config::default() };
    let mut pair = Pair::connected_with(config, Config::default());
    pair.set_delay(ms(50));
    pair.write(A, 400_000);
    pair.run_for(ms(1500));
    let ratio = ratio(&mut pair, 200_000);
    assert!((0.9..=1.1).contains(&ratio), "{ratio}");
}

#[test]
fn is_zero_while_single_segments_go_to_and_fro() {
    let mut pair = Pair::connected();
    for _ in 0..10 {
        pair.write(A, 100);
        pair.run_for(ms(100));
        pair.write(B, 100);
        pair.run_for(ms(100));
    }
    assert_eq!((info(&mut pair).delivery_rate, info(&mut pair).bytes_acked), (0, 1000));
}
