//! A link between two network namespaces: what `cargo lab bench --group loss` puts between client
//! and server.
//!
//! Frames that the kernel sends to a TAP device in one namespace come out of one in the other, both
//! ways, after a fixed time. Some are lost by seeded dice. The devices have no offloads, so that a
//! frame is a packet of at most the MTU. The program says `ready` when it carries frames, and
//! carries them until its standard input ends. Then it prints a JSON object with the counts of each
//! way.
//!
//! Reading order: `way` delays and drops frames, on a clock that it is told, by the link of
//! `core/link`. `carry` moves frames between that and the devices (`tap`).
#![allow(clippy::print_stdout)] // Its output is what it is for.

mod carry;
mod tap;
mod way;

use std::time::Duration;

use anyhow::{Context, Result};
use clap::Parser;
use towpath_link::{Chance, Dice, LinkConfig, Loss, Probability};

use tap::Tap;
use way::Way;

/// A link with delay and loss between TAP devices of two network namespaces. Needs root.
#[derive(Parser)]
struct Options {
    /// The one end: a namespace of ip-netns(8), and a TAP device in it.
    #[arg(long, num_args = 2, value_names = ["NAMESPACE", "DEVICE"], required = true)]
    from: Vec<String>,
    /// The other end.
    #[arg(long, num_args = 2, value_names = ["NAMESPACE", "DEVICE"], required = true)]
    to: Vec<String>,
    /// How long a frame is on its way, in microseconds; the round trip is twice that.
    #[arg(long, default_value_t = 0, value_parser = clap::value_parser!(u64).range(..=60_000_000))]
    delay_us: u64,
    /// How many of the frames are lost, from 0 to 1; each way has its own dice.
    #[arg(long, default_value = "0", value_parser = probability)]
    loss: Probability,
    /// The dice fall the same way for the same seed.
    #[arg(long, default_value_t = 0)]
    seed: u64,
    /// Bits per second of each way; without it a frame takes no time but the delay.
    #[arg(long, value_parser = clap::value_parser!(u64).range(1..))]
    rate: Option<u64>,
    /// Frames that each way holds at most, those that wait for the rate and those that are delayed;
    /// more are dropped.
    #[arg(long, default_value_t = 65536)]
    queue: usize,
}

fn main() -> Result<()> {
    let options = Options::parse();
    let config = LinkConfig {
        delay_ns: Duration::from_micros(options.delay_us).as_nanos() as u64,
        loss: Loss::Random(Chance::independent(options.loss)),
        rate: options.rate,
        limit: Some(options.queue),
        ..LinkConfig::default()
    };
    let ways = [0, 1].map(|way| Way::new(config, Dice::new(options.seed, way)));
    let open = |words: &[String]| Tap::open(&words[0], &words[1]);
    let ends = [open(&options.from)?, open(&options.to)?];
    println!("ready");
    println!("{}", carry::run(ends, ways, std::io::stdin())?);
    Ok(())
}

fn probability(word: &str) -> Result<Probability> {
    Probability::new(word.parse()?).context("a probability is between 0 and 1")
}
