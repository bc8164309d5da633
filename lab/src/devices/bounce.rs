//! Measures devices that return frames of 64 bytes without a stack: `lab/bounce` on a veth pair,
//! and DPDK's memory devices compared with testpmd.

use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::time::Duration;

use anyhow::{Context, Result, ensure};

use super::cases::Figure;
use super::contender::Contender;
use super::world::{CLIENT_END, SERVER_END, World};
use crate::bench::cpu;
use crate::running::Running;
use crate::{interrupt, workspace};

pub const NAME: &str = "bounce, 64 bytes";
pub const DPDK: &str = "macswap, 64 bytes";
/// Time in seconds for which the source sends before and after the measurement.
const MARGIN: u64 = 2;
/// Processors used by the source and by the device.
const SOURCE: &str = "0";
const DEVICE: &str = "1";
/// Number of frames that circulate in `net_ring0`, as with testpmd's `--tx-first`.
const SEEDS: &str = "32";
const MEMORY: &str = "--no-huge --no-pci";

/// Builds `lab/bounce`.
pub fn build(root: &Path) -> Result<PathBuf> {
    let release = workspace::build_lab(root, &["towpath-lab-bounce"])?;
    Ok(release.join("towpath-lab-bounce"))
}

/// Sends frames as fast as the kernel can, and measures the rate at which the device returns them.
pub fn measure(contender: Contender, bounce: &Path, seconds: u64) -> Result<Figure> {
    let world = World::new(contender, None)?;
    world.receive_by_napi()?;
    let socket = world.folder().join("memif.sock").display().to_string();
    let (source, client_end, server_end) = match contender.is_memif() {
        true => ("memif-pour", &*socket, &*socket),
        false => ("pour", CLIENT_END, SERVER_END),
    };
    let bounce = bounce.display().to_string();
    let line = |processor: &str, words: &[&str]| -> Vec<String> {
        let pinned = ["taskset", "-c", processor, &*bounce];
        pinned.iter().chain(words).map(|word| (*word).to_owned()).collect()
    };
    let pours = (seconds + 2 * MARGIN).to_string();
    let mut source = world.source(&line(SOURCE, &[source, client_end, &pours]));
    let mut source = Running(source.spawn().context("the source of frames")?);
    let seconds = seconds.to_string();
    let line = line(DEVICE, &[contender.name(), server_end, &seconds]);
    let mut device = world.server(&line);
    device.stdout(Stdio::piped()).stderr(Stdio::null());
    let all = cpu::busy()?;
    let begun = std::time::Instant::now();
    let device = device.spawn().context("the device")?;
    let output = device.wait_with_output()?;
    let elapsed = begun.elapsed().as_secs_f64();
    let all = (cpu::busy()? - all) / elapsed;
    source.stop();
    interrupt::check()?;
    ensure!(output.status.success(), "{line:?} failed");
    // The device polls continuously, so it uses one processor.
    Ok(Figure { rate: rate(&output.stdout, &line)?, server: 1., all })
}

/// Measures DPDK's memory devices. Returns their names, our program's rate, and testpmd's rate.
/// Empty without DPDK.
pub fn dpdk(root: &Path, seconds: u64) -> Result<Vec<(&'static str, f64, f64)>> {
    if !crate::debian::has_dpdk() {
        return Ok(Vec::new());
    }
    let what = ["-p", "towpath-dpdk", "--features", "dpdk", "--examples"];
    let bounce = workspace::build_release(root, &what)?.join("examples/bounce");
    let mut all = Vec::new();
    for (device, is_ring) in [("net_ring0", true), ("net_null0", false)] {
        interrupt::check()?;
        let arguments = format!("{MEMORY} -l {DEVICE} --vdev={device}");
        let mut command = Command::new(&bounce);
        command.args([&arguments, &seconds.to_string(), SEEDS]).stderr(Stdio::null());
        let output = command.output().context("bounce")?;
        let said = String::from_utf8_lossy(&output.stdout).into_owned();
        let rate = said.split("s: ").nth(1).and_then(|rest| rest.split(' ').next());
        let rate: f64 = rate.and_then(|word| word.parse().ok()).context(said)?;
        all.push((device, rate * 1e6, testpmd(device, is_ring, seconds)?));
    }
    Ok(all)
}

/// Returns testpmd's own rate: the median of the rates that it prints each second.
fn testpmd(device: &str, is_ring: bool, seconds: u64) -> Result<f64> {
    let mut command = Command::new("dpdk-testpmd");
    command.args(MEMORY.split(' ')).args(["--no-shconf", "--no-telemetry", "-l", "0,1"]);
    command.args([&format!("--vdev={device}"), "--", "--no-mlockall", "--forward-mode=macswap"]);
    command.args(["--total-num-mbufs=8192", "--stats-period=1"]);
    if is_ring {
        command.arg("--tx-first");
    }
    command.stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::null());
    let mut running = Running(command.spawn().context("dpdk-testpmd")?);
    interrupt::sleep(Duration::from_secs(seconds + MARGIN))?;
    running.stop();
    let mut said = String::new();
    let mut stdout = running.0.stdout.take().context("the output of testpmd")?;
    std::io::Read::read_to_string(&mut stdout, &mut said)?;
    // Skip the first rate of a port, which covers no time.
    let rates = said.split("Rx-pps:").skip(2).filter_map(|rest| rest.split_whitespace().next());
    let mut rates: Vec<f64> = rates.filter_map(|word| word.parse().ok()).collect();
    rates.sort_by(f64::total_cmp);
    rates.get(rates.len() / 2).copied().context("testpmd told no rate")
}

/// Parses the numbers of frames and seconds that the device prints, and returns their ratio.
fn rate(said: &[u8], line: &[String]) -> Result<f64> {
    let said = String::from_utf8_lossy(said);
    let numbers: Vec<f64> = said.split_whitespace().filter_map(|word| word.parse().ok()).collect();
    let [frames, seconds] = numbers[..] else { anyhow::bail!("{line:?} said: {said}") };
    Ok(frames / seconds)
}
