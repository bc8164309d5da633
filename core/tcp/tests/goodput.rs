//! How fast bytes move: a table of times that must not change unnoticed, and wires that do
//! everything wrong at once.

use std::fmt::Write;
use std::time::Duration;
use towpath_tcp::*;

use crate::world::Side::{A, B};
use crate::world::*;

/// Milliseconds that 1 MB takes, by the delay each way, the random loss of all packets, and
/// congestion control. The last column is CUBIC without SACK. Times with losses are means of
/// [`SEEDS`] runs, because the time of a single run may double if other packets are lost. Review
/// the differences before you update the table.
const TABLE: &str = "\
delay loss    CUBIC  NewReno  no SACK
 1 ms  0 %       13       13       13
 1 ms  1 %       82      102      134
 1 ms  3 %      160      223      414
 1 ms 10 %     2205     2808     6489
10 ms  0 %      130      130      130
10 ms  1 %      822     1025      891
10 ms  3 %     1601     2083     1781
10 ms 10 %     6220     7091    10045
50 ms  0 %      650      650      650
50 ms  1 %     4071     5023     4238
50 ms  3 %     7880    10124     8642
50 ms 10 %    25097    27262    29453
";

/// Number of runs per mean.
const SEEDS: u64 = 8;

/// Returns the mean time of transfers in milliseconds.
fn mean_ms(config: Config, delay: Duration, per_mille: u64, len: usize, seeds: u64) -> u128 {
    let seeds = if per_mille == 0 { 1 } else { seeds };
    let all = (1..=seeds).map(|seed| transfer_ms(config, delay, per_mille, len, seed));
    all.sum::<u128>() / u128::from(seeds)
}

fn transfer_ms(config: Config, delay: Duration, per_mille: u64, len: usize, seed: u64) -> u128 {
    let mut pair = Pair::connected_with(config, config);
    let (delay_ns, loss) = (delay.as_nanos() as u64, losses(per_mille));
    pair.lay([LinkConfig { delay_ns, loss, ..LinkConfig::default() }; 2], seed);
    for host in [&mut pair.a, &mut pair.b] {
        (host.send_capacity, host.recv_capacity) = (1 << 20, 1 << 20);
    }
    pair.write(A, len);
    let took = pair.run_until(Duration::from_secs(600), |pair| pair.b.received.len() == len);
    pair.assert_received(B, len);
    took.as_millis()
}

/// The columns of the tables.
fn columns() -> [Config; 3] {
    let plain = Config::default();
    [
        plain,
        Config { congestion: CongestionKind::NewReno, ..plain },
        Config { sack: false, ..plain },
    ]
}

#[test]
fn goodput_is_as_it_was() {
    let mut table = String::from("delay loss    CUBIC  NewReno  no SACK\n");
    for delay in [1, 10, 50] {
        for percent in [0, 1, 3, 10] {
            write!(table, "{delay:2} ms {percent:2} %").expect("a string takes all");
            for config in columns() {
                let took = mean_ms(config, ms(delay), 10 * percent, 1_000_000, SEEDS);
                write!(table, "{took:9}").expect("a string takes all");
            }
            table.push('\n');
        }
    }
    assert_eq!(table, TABLE, "\n{table}");
}

/// Prints means of 40 transfers of 4 MB.
#[test]
#[ignore = "prints a table to compare versions by"]
fn mean_goodput() {
    for delay in [1, 10, 50] {
        for percent in [1, 3, 10] {
            let mean = |config| mean_ms(config, ms(delay), 10 * percent, 4_000_000, 40);
            println!("{delay:2} ms {percent:2} % {:?}", columns().map(mean));
        }
    }
}

/// Packets are lost in both directions while both sides send. The buffer of one becomes smaller and
/// larger again, so that its window moves back over bytes that are on their way.
#[test]
fn a_window_that_shrinks_and_grows_survives_loss_both_ways() {
    for seed in 1..=30 {
        let mut pair = Pair::connected_with(
            Config { sack: seed % 3 != 0, ..Config::default() },
            Config::default(),
        );
        let [way, _] = pair.ways;
        pair.lay([LinkConfig { loss: losses(50), ..way }; 2], seed);
        let (len, mut dice) = (300_000, Dice::new(seed, 1000));
        pair.write(A, len);
        pair.write(B, len);
        let start = pair.now;
        while pair.a.received.len() < len || pair.b.received.len() < len {
            assert!(pair.now - start < Duration::from_secs(600), "seed {seed}");
            // Bytes in the buffer stay there, also those ahead of their turn.
            let held = pair.b.recv_fifo.len() + pair.b.recv_ahead.len();
            pair.b.recv_capacity = held.max([2304, 8192, 65_536, 262_144][dice.index(4)]);
            pair.b.reads = dice.falls(0.5);
            pair.turn(B);
            pair.run_for(ms(dice.below(60)));
        }
        pair.assert_received(A, len);
        pair.assert_received(B, len);
        assert_eq!(pair.a.state(), Some(State::Established), "seed {seed}");
    }
}
