//! Workloads that send one request at a time, and their cost in system calls and wake-ups.

use std::io::{BufRead, BufReader, Write};
use std::path::Path;
use std::process::Stdio;
use std::time::Duration;

use anyhow::{Context, Result, ensure};

use super::copies::{Copied, Copier};
use super::server::{Server, Words};
use super::threads::{Scheduled, scheduled, threads};
use super::tracer::{Calls, Tracer};
use crate::bench::cases::{self, PORT};
use crate::bench::cpu::descendants;
use crate::bench::sides::Side;
use crate::interrupt;
use crate::running::Running;

/// Unit of a workload, to which counts refer.
#[derive(Clone, Copy, PartialEq, Eq)]
pub enum Unit {
    Request,
    Connection,
    Mib,
}

/// Programs to start.
#[derive(Clone, Copy)]
pub struct Programs<'a> {
    /// Build to count.
    pub towpath: &'a Path,
    /// Directory of `lockstep` and `copies`.
    pub tools: &'a Path,
}

/// A server, its client, and the number of counted units.
pub struct Workload {
    pub name: &'static str,
    pub unit: Unit,
    server: Words,
    /// Command of `lab/load/src/bin/lockstep.rs`.
    client: &'static str,
    warm: u32,
    count: u32,
}

pub const WORKLOADS: &[Workload] = &[
    Workload {
        name: "redis GET",
        unit: Unit::Request,
        server: |_, _| cases::redis(),
        client: "redis",
        warm: 200,
        count: 2000,
    },
    Workload {
        name: "nginx, keep-alive",
        unit: Unit::Request,
        server: |_, scratch| cases::nginx(scratch),
        client: "http",
        warm: 200,
        count: 2000,
    },
    Workload {
        name: "nginx, connection each",
        unit: Unit::Connection,
        server: |_, scratch| cases::nginx(scratch),
        client: "connections",
        warm: 100,
        count: 500,
    },
    Workload {
        name: "bulk to the program",
        unit: Unit::Mib,
        server: bytes,
        client: "send",
        warm: 64,
        count: 512,
    },
    Workload {
        name: "bulk from the program",
        unit: Unit::Mib,
        server: bytes,
        client: "receive",
        warm: 64,
        count: 512,
    },
];

fn bytes(programs: &Path, _: &Path) -> Vec<String> {
    let program = programs.join("lockstep").display().to_string();
    vec![program, "serve".into(), PORT.to_string()]
}

/// Events of some processes during the counted part.
#[derive(Default)]
pub struct Cost {
    /// System calls by thread and number.
    pub calls: Calls,
    pub scheduled: Scheduled,
    /// Copies by thread and call site; `None` if copies were not counted.
    pub copied: Option<Vec<Copied>>,
}

/// Costs of engine and program, which are separate processes.
pub struct Costs {
    /// Cost of towpath's process; `None` on the kernel.
    pub engine: Option<Cost>,
    /// Cost of the program's processes.
    pub program: Cost,
    /// Number of requests, connections or MiB.
    pub count: u32,
}

/// Pause after which the effects of earlier work have ended, such as delayed acknowledgements,
/// polling threads and exiting processes.
const QUIET: Duration = Duration::from_millis(300);

impl Workload {
    /// Runs the workload on one side. Counts copies in a second pass with the same server, because
    /// the overhead would make time-driven events more frequent in the first pass.
    pub fn count(&self, side: Side, programs: Programs<'_>, has_copies: bool) -> Result<Costs> {
        let alone = one_at_a_time()?;
        let server = Server::start(self.server, side, &alone, programs)?;
        let tracer = Tracer::new()?;
        let mut client = Client::start(self, &server, &alone, programs.tools)?;
        let (engine, program) = processes(&server)?;
        interrupt::sleep(QUIET)?;
        let all: Vec<u32> = engine.iter().chain(&program).copied().collect();
        let owners = threads(&all)?;
        let before = [scheduled(&engine)?, scheduled(&program)?];
        tracer.begin(&owners.keys().copied().collect::<Vec<_>>())?;
        client.go_on()?;
        interrupt::sleep(QUIET)?;
        let calls = tracer.end()?;
        let after = [scheduled(&engine)?, scheduled(&program)?];
        let copied = has_copies.then(|| copies(&mut client, &all, programs.tools)).transpose()?;
        // New threads belong to the program if there is no engine process.
        let owners_after = threads(&all)?;
        let is_engines = |thread: &u32| {
            let owner = owners.get(thread).or_else(|| owners_after.get(thread));
            owner.is_some_and(|process| engine.contains(process))
        };
        let (of_engine, of_program) = calls.into_iter().partition(|((it, _), _)| is_engines(it));
        let cost = |calls, n: usize| {
            let is_own = |it: &&Copied| is_engines(&it.thread) == (n == 0);
            let copied = copied.as_ref().map(|all| all.iter().filter(is_own).cloned().collect());
            Cost { calls, scheduled: after[n].since(&before[n]), copied }
        };
        Ok(Costs {
            engine: (!engine.is_empty()).then(|| cost(of_engine, 0)),
            program: cost(of_program, 1),
            count: self.count,
        })
    }
}

/// Counts copies of processes while the client repeats the counted part.
fn copies(client: &mut Client, processes: &[u32], programs: &Path) -> Result<Vec<Copied>> {
    let copier = Copier::begin(programs, processes)?;
    client.go_on()?;
    interrupt::sleep(QUIET)?;
    copier.end()
}

/// Returns a wrapper that runs server, engine and client on one processor with SCHED_FIFO
/// (sched(7)). A woken thread then runs only when the current one sleeps, without interruption by
/// other processes. Otherwise notifications and polls would depend on which thread happens to
/// sleep.
fn one_at_a_time() -> Result<Vec<String>> {
    let status = std::fs::read_to_string("/proc/self/status")?;
    let all = status.lines().find_map(|line| line.strip_prefix("Cpus_allowed_list:"));
    let first = all.and_then(|all| all.trim().split([',', '-']).next()).context("a processor")?;
    Ok(["taskset", "-c", first, "chrt", "-f", "1"].map(str::to_owned).to_vec())
}

/// Returns the processes of towpath, if there is one, and of the program. The guardian belongs to
/// neither, because it sleeps.
fn processes(server: &Server) -> Result<(Vec<u32>, Vec<u32>)> {
    let first = server.pid();
    let below = descendants(first)?;
    let is_towpath = |pid: &u32| -> Result<bool> {
        Ok(std::fs::read_link(format!("/proc/{pid}/exe"))?.ends_with("towpath"))
    };
    let mut program = Vec::new();
    for pid in below {
        if !is_towpath(&pid)? {
            program.push(pid);
        }
    }
    if is_towpath(&first)? {
        ensure!(!program.is_empty(), "towpath has started no program");
        return Ok((vec![first], program));
    }
    program.push(first);
    Ok((Vec::new(), program))
}

/// A client that has completed its warm-up, which is not counted.
struct Client {
    running: Running,
    said: BufReader<std::process::ChildStdout>,
}

impl Client {
    fn start(
        workload: &Workload,
        server: &Server,
        wrap: &[String],
        programs: &Path,
    ) -> Result<Self> {
        let client = [
            programs.join("lockstep").display().to_string(),
            workload.client.into(),
            format!("{}:{PORT}", server.world.host()),
            workload.warm.to_string(),
            workload.count.to_string(),
        ];
        let line = [wrap, &client].concat();
        let mut command = server.world.command(server.world.client(), &line);
        command.stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::inherit());
        let mut child = command.spawn().context("the client")?;
        let said = BufReader::new(child.stdout.take().context("piped")?);
        let mut client = Self { running: Running(child), said };
        client.expect("ready")?;
        Ok(client)
    }

    /// Runs the counted part.
    fn go_on(&mut self) -> Result<()> {
        writeln!(self.running.0.stdin.as_mut().context("piped")?)?;
        self.expect("done")
    }

    fn expect(&mut self, what: &str) -> Result<()> {
        let mut line = String::new();
        self.said.read_line(&mut line)?;
        ensure!(line.trim() == what, "the client ended before it was {what}");
        Ok(())
    }
}
