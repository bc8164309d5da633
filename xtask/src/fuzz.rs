//! Coverage-guided fuzzing: runs the harnesses of `fuzz/` with inputs that libFuzzer creates.
//!
//! libFuzzer needs only LLVM's pass that counts edges, which a stable compiler has. The compiler
//! has no sanitizers, but the code under test is safe Rust, and asserts its invariants.

use std::fs;
use std::io::Read;
use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::{Context, Result, bail, ensure};

#[derive(clap::Args)]
pub struct Options {
    /// The harness.
    target: Target,
    /// Stop after so many seconds [default: go on until something is found].
    #[arg(long)]
    seconds: Option<u64>,
    /// Run this input once instead, to see how it fails.
    #[arg(long, conflicts_with = "seconds")]
    input: Option<PathBuf>,
}

#[derive(Clone, Copy, clap::ValueEnum)]
enum Target {
    /// Socket filters with any instructions, run on any packets.
    Cbpf,
    /// Configuration files of routers, written and read again.
    Config,
    /// A TCP connection whose peer, program and clock are the input.
    Connection,
    /// A tracker that translates packets between two networks, in any order.
    Conntrack,
    /// Rings of an XDP socket and virtio-net headers, written by the input.
    Device,
    /// An engine with an attached program that does anything, and one that follows the protocol.
    Engine,
    /// Access lists from any text and any rules, compared with a linear search.
    Filter,
    /// Rings of a memif device, whose descriptors and indices are the input.
    Memif,
    /// A DNS forwarder whose clients and upstream servers send any messages.
    Nameserver,
    /// A sender whose ACKs and SACK blocks come from the input, and are valid at the end.
    Recovery,
    /// Packets of both IP versions, translated to the other one.
    Siit,
    /// A whole stack with one connection, whose FIFOs are in shared memory.
    Stack,
    /// A router with rules, for packets with any offload metadata and extension headers.
    Transit,
    /// Virtqueues of a virtual machine, whose descriptors and indices are the input.
    Vhost,
}

impl Target {
    fn name(self) -> &'static str {
        match self {
            Target::Cbpf => "cbpf",
            Target::Config => "config",
            Target::Connection => "connection",
            Target::Conntrack => "conntrack",
            Target::Device => "device",
            Target::Engine => "engine",
            Target::Filter => "filter",
            Target::Memif => "memif",
            Target::Nameserver => "nameserver",
            Target::Recovery => "recovery",
            Target::Siit => "siit",
            Target::Stack => "stack",
            Target::Transit => "transit",
            Target::Vhost => "vhost",
        }
    }
}

/// Options with which LLVM counts edges and records compared values for libFuzzer.
const COVERAGE: &str = "-Cpasses=sancov-module \
    -Cllvm-args=-sanitizer-coverage-level=4 \
    -Cllvm-args=-sanitizer-coverage-inline-8bit-counters \
    -Cllvm-args=-sanitizer-coverage-pc-table \
    -Cllvm-args=-sanitizer-coverage-trace-compares";
/// Maximum length of an input in bytes, for some hundred steps of a case, as in
/// `fuzz/tests/hostile.rs`.
const LEN_MAX: u32 = 4096;
/// Time in seconds after which an input counts as hanging. The slowest normal inputs take
/// milliseconds.
const PATIENCE: u32 = 20;

/// Number of random inputs in a new corpus. Each harness runs them in some seconds.
const SEEDS: u32 = 32;

/// Builds a target with coverage. Then runs libFuzzer, or a single input.
pub fn run(root: &Path, options: &Options) -> Result<()> {
    let name = options.target.name();
    let folder = root.join("target/fuzz");
    let binary = build(root, &folder, name)?;
    if let Some(input) = &options.input {
        let status = Command::new(binary).arg(input).status().context("the fuzz target")?;
        ensure!(status.success(), "{} fails: {status}", input.display());
        return Ok(());
    }
    let (corpus, findings) = (folder.join("corpus").join(name), folder.join("findings").join(name));
    for folder in [&corpus, &findings] {
        fs::create_dir_all(folder).with_context(|| folder.display().to_string())?;
    }
    if files(&corpus)?.is_empty() {
        sow(&corpus)?;
    }
    let before = files(&findings)?;
    let status = Command::new(binary)
        .arg(&corpus)
        .arg(format!("-artifact_prefix={}/", findings.display()))
        .arg(format!("-max_len={LEN_MAX}"))
        // Start with long inputs, because most faults need a connection that has existed for a
        // while.
        .arg("-len_control=0")
        .arg(format!("-timeout={PATIENCE}"))
        .arg(format!("-max_total_time={}", options.seconds.unwrap_or(0)))
        .arg("-print_final_stats=1")
        .current_dir(root)
        .status()
        .context("the fuzz target")?;
    if status.success() {
        println!("nothing found; inputs that reach new code are in {}", corpus.display());
        return Ok(());
    }
    let new: Vec<_> = files(&findings)?.into_iter().filter(|file| !before.contains(file)).collect();
    for file in &new {
        println!("found: {}", file.display());
        println!("again: cargo xtask fuzz {name} --input {}", file.display());
    }
    bail!("the fuzz target ended with {status}, {} inputs found", new.len())
}

/// Writes random inputs of maximum length to an empty corpus. Otherwise, libFuzzer needs an hour
/// with the slower harnesses to reach inputs of some hundred steps.
fn sow(corpus: &Path) -> Result<()> {
    let mut random = fs::File::open("/dev/urandom").context("/dev/urandom")?;
    for number in 0..SEEDS {
        let mut input = [0; LEN_MAX as usize];
        random.read_exact(&mut input).context("/dev/urandom")?;
        fs::write(corpus.join(format!("seed-{number}")), input)?;
    }
    Ok(())
}

/// Builds a target with coverage. A separate target folder is used, because the flags would
/// otherwise cause a rebuild of everything else.
fn build(root: &Path, folder: &Path, name: &str) -> Result<PathBuf> {
    let host = host()?;
    let status = Command::new(env!("CARGO"))
        .args([
            "build",
            "--profile",
            "fuzz",
            "--package",
            "towpath-fuzz",
            "--features",
            "libfuzzer",
        ])
        // Naming the host as target prevents cargo from building build scripts with the flags.
        .args(["--bin", name, "--target", &host])
        .env("RUSTFLAGS", COVERAGE)
        .env("CARGO_TARGET_DIR", folder)
        .current_dir(root)
        .status()
        .context("cargo build")?;
    ensure!(status.success(), "the build failed (libFuzzer is C++: it needs a compiler `c++`)");
    Ok(folder.join(host).join("fuzz").join(name))
}

fn host() -> Result<String> {
    let output = Command::new("rustc").arg("-vV").output().context("rustc -vV")?;
    let text = String::from_utf8(output.stdout)?;
    let host = text.lines().find_map(|line| line.strip_prefix("host: "));
    Ok(host.context("rustc -vV names no host")?.to_owned())
}

fn files(folder: &Path) -> Result<Vec<PathBuf>> {
    let entries = fs::read_dir(folder).with_context(|| folder.display().to_string())?;
    entries.map(|entry| Ok(entry?.path())).collect()
}
