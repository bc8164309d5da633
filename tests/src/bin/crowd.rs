//! A server with very many idle connections, its clients, and a client that sends requests
//! continuously. `cargo lab crowd` measures with them; `cargo lab bench` measures round-trip times
//! with the last one.
//!
//! ```text
//! crowd serve PORT COUNT                 accepts COUNT connections on PORT and answers on PORT + 1
//! crowd answer PORT                      answers on PORT, one connection after the other
//! crowd hold HOST:PORT COUNT SOURCE...   opens COUNT connections, from these addresses
//! crowd ask HOST:PORT SECONDS            round trips: median, 99th percentile, number
//! ```
//!
//! Each command reports its progress on standard output, and keeps its connections until standard
//! input ends. `serve` and `hold` fork as many processes as the descriptor limit requires.
#![allow(clippy::print_stdout)] // The output is the purpose of this program.

use std::io::{PipeReader, PipeWriter, Read, Write};
use std::net::{IpAddr, SocketAddr, TcpListener, TcpStream};
use std::os::fd::OwnedFd;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail, ensure};
use rustix::io::Errno;
use rustix::net::{AddressFamily, SocketType, bind, connect, socket};
use rustix::process::{
    Resource, Rlimit, Signal, getrlimit, set_parent_process_death_signal, setrlimit,
};

/// Length of a request and of its response in bytes.
const ASKED: usize = 64;
/// Ports used by a client of the crowd, below the ephemeral range. Linux does not choose an
/// ephemeral port that any socket is bound to, regardless of the address.
const PORTS: std::ops::RangeInclusive<u16> = 1024..=32_767;

fn main() -> Result<()> {
    let words: Vec<String> = std::env::args().skip(1).collect();
    let words: Vec<&str> = words.iter().map(String::as_str).collect();
    match &words[..] {
        ["serve", port, count] => serve(port.parse()?, count.parse()?),
        ["answer", port] => answer_in_turn(port.parse()?),
        ["hold", to, count, sources @ ..] => {
            let sources =
                sources.iter().map(|source| source.parse()).collect::<Result<Vec<_>, _>>();
            hold(to.parse()?, count.parse()?, &sources?)
        }
        ["ask", to, seconds] => ask(to.parse()?, Duration::from_secs(seconds.parse()?)),
        _ => bail!(
            "serve PORT COUNT, answer PORT, hold HOST:PORT COUNT SOURCE..., or ask HOST:PORT \
             SECONDS"
        ),
    }
}

/// Returns the maximum number of connections per process.
fn share() -> Result<usize> {
    // Descriptors reserved for listeners, pipes, libraries and the engine.
    const OTHERS: u64 = 100;
    let limit = getrlimit(Resource::Nofile);
    let most = limit.maximum.or(limit.current).unwrap_or(1 << 20);
    setrlimit(Resource::Nofile, Rlimit { current: Some(most), maximum: limit.maximum })?;
    Ok(most.saturating_sub(OTHERS).max(1) as usize)
}

/// Forks processes that each `take` as many connections as possible. `take` is called with the
/// number of connections taken before, and the number to take. The processes end when the result is
/// dropped.
fn in_processes(
    count: usize,
    take: impl Fn(usize, usize) -> Result<Vec<OwnedFd>>,
) -> Result<Holders> {
    let share = share()?;
    let (held, mut holds) = std::io::pipe()?;
    let (mut end, ends) = std::io::pipe()?;
    let firsts = (0..count).step_by(share);
    for before in firsts.clone() {
        // SAFETY: the process has a single thread.
        if unsafe { nix::unistd::fork() }?.is_child() {
            // Die with the parent, because `take` may wait for connections that never arrive.
            set_parent_process_death_signal(Some(Signal::KILL))?;
            drop((held, ends));
            let connections = take(before, share.min(count - before))?;
            holds.write_all(&[1])?;
            drop(holds);
            end.read_to_end(&mut Vec::new())?;
            drop(connections);
            std::process::exit(0);
        }
    }
    Ok(Holders { held, processes: firsts.len(), _ends: ends })
}

/// Processes that hold connections.
struct Holders {
    held: PipeReader,
    processes: usize,
    _ends: PipeWriter,
}

impl Holders {
    /// Waits until all processes have their connections, or have ended.
    fn wait(&mut self) -> Result<()> {
        let mut all = Vec::new();
        self.held.read_to_end(&mut all)?;
        ensure!(all.len() == self.processes, "{} of {} processes", all.len(), self.processes);
        Ok(())
    }
}

/// Prints a line of progress for the process that waits for it.
fn say(what: &str) -> Result<()> {
    let mut out = std::io::stdout().lock();
    writeln!(out, "{what}")?;
    Ok(out.flush()?)
}

/// Waits for the end of standard input.
fn wait_for_the_end() -> Result<()> {
    std::io::stdin().read_to_end(&mut Vec::new())?;
    Ok(())
}

fn serve(port: u16, count: usize) -> Result<()> {
    let crowd = TcpListener::bind(("0.0.0.0", port))?;
    let asked = TcpListener::bind(("0.0.0.0", port + 1))?;
    let mut holders = in_processes(count, |_, count| {
        (0..count).map(|_| Ok(OwnedFd::from(crowd.accept()?.0))).collect()
    })?;
    std::thread::spawn(move || {
        for stream in asked.incoming().flatten() {
            std::thread::spawn(move || answer(stream));
        }
    });
    say(&format!("ready {}", std::process::id()))?;
    holders.wait()?;
    say("held")?;
    wait_for_the_end()
}

/// Answers connections one after the other on one thread, so that with `--inline` the thread that
/// drives the engine also answers.
fn answer_in_turn(port: u16) -> Result<()> {
    let asked = TcpListener::bind(("0.0.0.0", port))?;
    loop {
        answer(asked.accept()?.0);
    }
}

/// Answers requests until the client closes.
fn answer(mut stream: TcpStream) {
    let mut question = [0; ASKED];
    let _ = stream.set_nodelay(true);
    while stream.read_exact(&mut question).is_ok() && stream.write_all(&question).is_ok() {}
}

fn hold(to: SocketAddr, count: usize, sources: &[IpAddr]) -> Result<()> {
    let places = || {
        let ports = |source: &IpAddr| {
            let source = *source;
            PORTS.map(move |port| SocketAddr::new(source, port))
        };
        sources.iter().flat_map(ports)
    };
    ensure!(places().nth(count - 1).is_some(), "{count} connections from {} hosts", sources.len());
    let family = if to.is_ipv4() { AddressFamily::INET } else { AddressFamily::INET6 };
    // Returns `None` for an address in use, such as that of a connection in TIME-WAIT.
    let open = |from: SocketAddr| -> Option<Result<OwnedFd>> {
        let connected = || {
            let stream = socket(family, SocketType::STREAM, None)?;
            bind(&stream, &from)?;
            connect(&stream, &to)?;
            rustix::io::Result::Ok(stream)
        };
        match connected() {
            Err(Errno::ADDRINUSE) => None,
            result => Some(result.with_context(|| from.to_string())),
        }
    };
    let mut holders = in_processes(count, |before, count| {
        places().skip(before).filter_map(open).take(count).collect()
    })?;
    holders.wait()?;
    say("held")?;
    wait_for_the_end()
}

fn ask(to: SocketAddr, time: Duration) -> Result<()> {
    let mut stream = TcpStream::connect(to)?;
    stream.set_nodelay(true)?;
    let mut bytes = [0; ASKED];
    let mut took = Vec::new();
    let end = Instant::now() + time;
    while Instant::now() < end {
        let start = Instant::now();
        stream.write_all(&bytes)?;
        stream.read_exact(&mut bytes)?;
        took.push(start.elapsed());
    }
    took.sort_unstable();
    let micros = |part: f64| took[(took.len() as f64 * part) as usize].as_secs_f64() * 1e6;
    say(&format!("{:.1} {:.1} {}", micros(0.5), micros(0.99), took.len()))
}
