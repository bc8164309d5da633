//! Measures how fast a device without a stack returns frames of 64 bytes with exchanged Ethernet
//! addresses, as testpmd does with `--forward-mode=macswap`:
//!
//! ```text
//! towpath-lab-bounce DEVICE INTERFACE SECONDS [BURST]   packet or xdp, at one end of a veth pair
//! towpath-lab-bounce pour INTERFACE SECONDS             frames from the other end, unpaced
//! towpath-lab-bounce memif SOCKET SECONDS               at the server's end of a memif link
//! towpath-lab-bounce memif-pour SOCKET SECONDS          frames from the client's end, unpaced
//! ```
//!
//! `cargo lab devices` runs both, each on its own processor. For `pour`, the kernel sends frames as
//! a network driver does: in batches, and without a socket (BPF_F_TEST_XDP_LIVE_FRAMES). The
//! bouncing end must therefore receive by NAPI: `ethtool -K INTERFACE gro on`.
//!
//! The bouncing device prints the number of frames that it sent, and the elapsed seconds.
#![forbid(unsafe_code)]
#![allow(clippy::print_stdout, clippy::print_stderr)] // Figures are for the caller.

use std::error::Error;
use std::time::{Duration, Instant};

use towpath_bpf::{Claim, Pour};
use towpath_interface::Interface;
use towpath_memif::MemifPort;
use towpath_packet::PacketSocket;
use towpath_pool::{Batch, Pool, Port};
use towpath_xdp::XdpSocket;

/// Ethernet addresses of the bouncing device and of the pouring device. The kernel's interfaces
/// have other addresses, so that the kernel's stacks drop the frames.
const HERE: [u8; 6] = [2, 0, 0, 0, 0, 0x11];
const THERE: [u8; 6] = [2, 0, 0, 0, 0, 0x22];
/// Frames per poll, unless given.
const BURST: usize = 64;
/// Number of polls between two reads of the clock.
const POLLS: usize = 64;
/// Number of frames per call to the kernel. Each call first waits for an RCU grace period, which
/// must be short compared to sending the frames.
const POURED: u32 = 1 << 20;

fn main() -> Result<(), Box<dyn Error>> {
    let arguments: Vec<_> = std::env::args().skip(1).collect();
    let words: Vec<&str> = arguments.iter().map(String::as_str).collect();
    let (device, interface, seconds, burst) = match words[..] {
        [device, interface, seconds] => (device, interface, seconds, BURST),
        [device, interface, seconds, burst] => (device, interface, seconds, burst.parse()?),
        _ => return Err("DEVICE INTERFACE SECONDS [BURST]".into()),
    };
    let time = Duration::from_secs(seconds.parse()?);
    let claim = |_: &Interface| Claim::Station { mac: HERE, addresses: Vec::new() };
    match device {
        "packet" => {
            let mut port = PacketSocket::open(interface, claim)?;
            bounce(&mut port, time, burst);
            print(port.counters().iter());
        }
        "xdp" => {
            let mut port = XdpSocket::from_parts(XdpSocket::open(interface, claim)?)?;
            bounce(&mut port, time, burst);
            print(port.counters().iter());
        }
        "memif" => {
            let mut port = MemifPort::open(format!("{interface},role=server").parse()?, |_| {})?;
            bounce(&mut port, time, burst);
            print(port.counters().iter());
        }
        "pour" => pour(interface, time)?,
        "memif-pour" => {
            let mut port = MemifPort::open(format!("{interface},role=client").parse()?, |_| {})?;
            pour_to(&mut port, time, burst);
            print(port.counters().iter());
        }
        _ => {
            return Err(format!("{device} is not packet, xdp, memif, pour or memif-pour").into());
        }
    }
    Ok(())
}

/// Bounces frames for `time`, which starts with the first frame.
fn bounce(port: &mut dyn Port, time: Duration, burst: usize) {
    let (mut pool, mut batch) = (Pool::default(), Batch::new());
    let start = Instant::now();
    let (mut frames, mut now, mut first) = (0_u64, start, None);
    while first.is_none_or(|first| now < first + time) {
        let now_ns = now.duration_since(start).as_nanos() as u64;
        for _ in 0..POLLS {
            port.poll(now_ns, &mut pool, &mut batch, burst);
            for packet in &mut batch {
                let Some((macs, _)) = packet.linear_mut().split_first_chunk_mut::<12>() else {
                    continue;
                };
                let (to, from) = macs.split_at_mut(6);
                to.swap_with_slice(from);
            }
            frames += port.submit(now_ns, &mut pool, &mut batch) as u64;
            // Drop frames that the device did not accept. Otherwise, their addresses would be
            // exchanged twice.
            batch.drain(..).for_each(|packet| pool.give(packet));
        }
        now = Instant::now();
        if first.is_none() && frames > 0 {
            first = Some(now);
            frames = 0;
        }
    }
    let took = first.map_or(0., |first| now.duration_since(first).as_secs_f64());
    println!("{frames} {took:.3}");
}

fn print(counters: impl Iterator<Item = (&'static str, u64)>) {
    for (name, value) in counters.filter(|(_, value)| *value > 0) {
        eprintln!("{name} {value}");
    }
}

/// Lets the kernel send frames for `time`.
fn pour(interface: &str, time: Duration) -> Result<(), Box<dyn Error>> {
    let socket = rustix::net::socket(
        rustix::net::AddressFamily::INET,
        rustix::net::SocketType::DGRAM,
        None,
    )?;
    let interface = Interface::find(rustix::fd::AsFd::as_fd(&socket), interface)?;
    let pour = Pour::new(interface.index)?;
    let frame = datagram();
    let end = Instant::now() + time;
    while Instant::now() < end {
        pour.frames(&frame, POURED)?;
    }
    Ok(())
}

/// Sends frames for `time` as fast as the port takes them, and drops those that come back.
fn pour_to(port: &mut dyn Port, time: Duration, burst: usize) {
    let (mut pool, mut batch) = (Pool::default(), Batch::new());
    let (frame, start) = (datagram(), Instant::now());
    let mut now = start;
    while now < start + time {
        let now_ns = now.duration_since(start).as_nanos() as u64;
        for _ in 0..POLLS {
            for _ in 0..burst {
                let mut packet = pool.take(frame.len());
                packet.push_back(frame.len()).expect("taken with room").copy_from_slice(&frame);
                batch.push_back(packet);
            }
            port.submit(now_ns, &mut pool, &mut batch);
            batch.drain(..).for_each(|packet| pool.give(packet));
            port.poll(now_ns, &mut pool, &mut batch, burst);
            batch.drain(..).for_each(|packet| pool.give(packet));
        }
        now = Instant::now();
    }
}

/// Returns a UDP datagram from port 9 to port 9 without a checksum. With the frame check sequence,
/// the frame has 64 bytes.
fn datagram() -> [u8; 60] {
    let ip = [0x45, 0, 0, 46, 0, 0, 0x40, 0, 64, 17, 0x26, 0xbb, 10, 1, 0, 1, 10, 1, 0, 2];
    let udp = [0, 9, 0, 9, 0, 26, 0, 0];
    let mut frame = [0; 60];
    frame[..6].copy_from_slice(&HERE);
    frame[6..12].copy_from_slice(&THERE);
    frame[12..14].copy_from_slice(&[8, 0]);
    frame[14..34].copy_from_slice(&ip);
    frame[34..42].copy_from_slice(&udp);
    frame
}
