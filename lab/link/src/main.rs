//! A link between two network namespaces, which `cargo lab bench --group loss` puts between client
//! and server.
//!
//! Each frame that the kernel sends to the TAP device of one namespace arrives at the other device
//! after a fixed delay, in both directions. Frames are lost at random, with a given seed. The
//! devices have no offloads, so that a frame is a packet of at most the MTU. The program prints
//! `ready` when it carries frames, and continues until its standard input ends. Then it prints a
//! JSON object with the counts of each direction.
//!
//! Reading order: `way` delays and drops frames using `core/link`, with the time as an argument.
//! `carry` moves frames between `way` and the devices (`tap`).
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
    /// First end: a namespace of ip-netns(8), and a TAP device in it.
    #[arg(long, num_args = 2, value_names = ["NAMESPACE", "DEVICE"], required = true)]
    from: Vec<String>,
    /// Second end: a namespace and a TAP device.
    #[arg(long, num_args = 2, value_names = ["NAMESPACE", "DEVICE"], required = true)]
    to: Vec<String>,
    /// One-way delay in microseconds; the round trip takes twice as long.
    #[arg(long, default_value_t = 0, value_parser = clap::value_parser!(u64).range(..=60_000_000))]
    delay_us: u64,
    /// Probability of loss, from 0 to 1; each direction has its own random generator.
    #[arg(long, default_value = "0", value_parser = probability)]
    loss: Probability,
    /// Seed of the random losses; equal seeds give equal losses.
    #[arg(long, default_value_t = 0)]
    seed: u64,
    /// Rate of each direction in bits per second; unlimited unless given.
    #[arg(long, value_parser = clap::value_parser!(u64).range(1..))]
    rate: Option<u64>,
    /// Maximum number of frames that each direction holds, queued or delayed; further ones are
    /// dropped.
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
