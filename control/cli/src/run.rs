//! Implements `towpath run`, from the options to the exit status.

use std::io::Write;
use std::os::fd::{AsFd, OwnedFd};
use std::path::Path;
use std::sync::Arc;
use std::sync::mpsc::{Sender, channel};
use std::thread::JoinHandle;

use anyhow::{Context, Result, anyhow};
use rustix::fs::Mode;
use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};
use towpath_engine::{Engine, Left, Remote, Report};
use towpath_model::{Call, Instance, NoInstance, Reply, RunKind};
use towpath_uplink::{
    Connected, Followed, Layer, LeaseClient, LinkChange, MtuFollower, Plan, random, record_drops,
};

use crate::activation::Activation;
use crate::args::RunArgs;
use crate::child::{Ended, ProgramChild};
use crate::dhcp;
use crate::error::{ExitCode, Failure};
use crate::guardian::{Job, Way};
use crate::hints;
use crate::inline::{self, LaunchServer};
use crate::messages::Messages;
use crate::preload::{self, PreloadFile};
use crate::served::{self, ServedStack, StackResponder};
use crate::signals::{self, Signals};
use crate::supervise::{Observer, Run, asked_to_end};
use crate::through::SimulatedPath;
use crate::unintercepted::ExecGate;
use crate::uplink::{conflict, in_options, plan};
use crate::{program, recording, stats};

/// Runs PROGRAM on a stack, and returns its exit status. If a signal killed PROGRAM, this process
/// kills itself by the same signal.
pub fn run(args: &RunArgs) -> Result<u8> {
    let path = program::preflight(&args.program[0]).map_err(|error| advised(error, args))?;
    args.check_inline()?;
    let library = preload::library(args.inline)?;
    let recording = args.capture.pcap.as_deref().map(recording::open).transpose()?;
    let signals = Signals::block()?;
    let result = run_beside(args, &path, &library, recording, &signals);
    if result.is_err() {
        // Unblock signals, so that Ctrl-C ends towpath while the caller prints the error, which may
        // block.
        signals.unblock();
    }
    result
}

/// Runs PROGRAM with signals blocked in this process, and forwards received signals to PROGRAM.
fn run_beside(
    args: &RunArgs,
    path: &Path,
    library: &PreloadFile,
    recording: Option<Box<dyn Write + Send>>,
    signals: &Signals,
) -> Result<u8> {
    let messages = Messages::start(args.quiet).context("a thread for messages")?;
    library.remarks().for_each(|remark| messages.say(&remark));
    let limits = args.capture.limits();
    let start = |out| recording::start(limits, out, messages.clone());
    let capture = recording.map(start).transpose()?;
    let mut activation = Activation::at_start();
    let path_through = args.through.as_deref().map(SimulatedPath::read).transpose()?;
    let plan = plan(args, capture.clone(), &mut activation, &messages)?;
    let limit = raise_descriptor_limit();

    let (lifeline, keep) = parent_death_pipe()?;
    let link = StackLink { plan: plan.clone(), through: path_through };
    let mut stack = begin_stack(args, link, &messages, lifeline, library)?;
    let host = stack.host.clone();
    let leases = match (stack.dhcp.take(), &host) {
        (Some(client), Host::Here(remote)) => {
            Some(dhcp::obtain(client, remote, &messages, signals, args.dns.is_some())?)
        }
        _ => None,
    };
    let instance = serve(host.clone(), args, &messages, &plan)?;

    let job = job(args, path, library, (signals, activation));
    let child = {
        // Restore the descriptor limit with which towpath was started, because PROGRAM inherits it.
        let _own = limit.lowered();
        ProgramChild::start(&job, stack.control.as_fd(), keep)?
    };
    if let Host::There(desk) = &host {
        desk.set_program(child.program());
    }
    let follower = stack.follow_mtu(&messages);
    let name = args.program[0].to_string_lossy();
    let observer = RunObserver { host, messages: &messages, name: &name };
    let stack = stack.handed_over();
    let run = Run {
        child: &child,
        stack: stack.ended.as_fd(),
        leaves: stack.leaves.as_ref().map(AsFd::as_fd),
        signals,
        grace: args.stop_timeout,
        survived_after: args.survived_after,
        observer: &observer,
    };
    let ended = run.supervise();
    drop((instance, follower));
    let outcome = stack.finish(&observer.host)?;
    leases.into_iter().for_each(|thread| drop(thread.join()));
    if !outcome.attached {
        messages.put_error(&never_used(&name, library));
    }
    let how = ended.as_ref().ok().map(|(how, _)| *how);
    put_stats(args, &messages, &name, &outcome, how)?;
    let go_on = || !asked_to_end(signals).unwrap_or(true);
    let is_recorded = capture.is_none_or(|capture| recording::finish(&capture, &messages, go_on));
    // Wait until all messages are written, even if their reader is slow. A signal ends the wait.
    messages.finish(go_on);
    let (ended, alone) = ended?;
    if alone {
        child.finish();
    }
    Ok(status(ended, is_recorded, !outcome.attached && args.strict))
}

/// Returns the exit status of a run. `is_recorded` is false if the capture is incomplete.
/// `is_refused` means failure. If a signal killed PROGRAM, kills this process by the same signal.
fn status(ended: Ended, is_recorded: bool, is_refused: bool) -> u8 {
    match ended {
        _ if is_refused => ExitCode::Failed as u8,
        // Fail if the capture is incomplete. Otherwise a script would assume that it is complete.
        Ended::Exited(0) if !is_recorded => ExitCode::Failed as u8,
        Ended::Exited(code) => code,
        Ended::Killed(signal) => signals::die(signal),
    }
}

/// Returns the error message for a PROGRAM that has not loaded the preload library.
fn never_used(name: &str, library: &PreloadFile) -> String {
    let library = library.of_program().display();
    format!(
        "{name} never used the stack: {library} was not loaded into it, or is not Towpath's library"
    )
}

/// Starts the stack, and prints its addresses for the user.
fn begin_stack(
    args: &RunArgs,
    link: StackLink,
    messages: &Messages,
    lifeline: OwnedFd,
    library: &PreloadFile,
) -> Result<StackThread> {
    let stack = if args.inline {
        StackThread::inline(&link.plan, messages, &lifeline, library.path())?
    } else {
        StackThread::start(link, messages.clone(), lifeline)?
    };
    if !stack.facts.is_empty() {
        messages.say(&format!("{}; Ctrl-C ends", stack.facts));
    }
    Ok(stack)
}

/// Returns the job for the guardian, the helper process that starts PROGRAM: the program with its
/// environment.
fn job(
    args: &RunArgs,
    path: &Path,
    library: &PreloadFile,
    (signals, activation): (&Signals, Option<Activation>),
) -> Job {
    Job {
        path: path.to_owned(),
        words: args.program.clone(),
        hostname: args.names.hostname.clone(),
        way: Way::Library(library.of_program().to_owned()),
        signals: signals.at_start(),
        output_to_error: args.capture.pcap.as_deref().is_some_and(recording::is_output),
        activation,
    }
}

/// Prints the counters if `--stats` was given. If PROGRAM's process ended without reporting them,
/// prints a message with its exit status `how`.
fn put_stats(
    args: &RunArgs,
    messages: &Messages,
    name: &str,
    outcome: &Outcome,
    how: Option<Ended>,
) -> Result<()> {
    let Some(format) = args.stats else { return Ok(()) };
    if let (true, true, Some(how)) = (outcome.layers.is_empty(), outcome.attached, how) {
        messages.put_error(&stats::missing(name, how));
    }
    messages.put(stats::render(format, &outcome.layers)?);
    Ok(())
}

/// Adds advice to an error about PROGRAM, if the user probably meant the first word as the value of
/// an option.
fn advised(error: anyhow::Error, args: &RunArgs) -> anyhow::Error {
    let [value, dashes, ..] = &args.program[..] else { return error };
    let stats = || args.stats.map(|_| "--stats".to_owned());
    let option = args.device.option_without_value().or_else(stats);
    match option.filter(|_| dashes == "--") {
        Some(option) => {
            let value = value.to_string_lossy();
            error.context(format!("a value of {option} is joined to it, {option}={value}"))
        }
        None => error,
    }
}

/// Creates the parent-death pipe. Programs inherit the read end, and towpath and the guardian keep
/// write ends. If both are killed, the pipe hangs up, and the kernel kills the programs.
pub fn parent_death_pipe() -> Result<(OwnedFd, OwnedFd)> {
    let (read, write) = rustix::pipe::pipe_with(rustix::pipe::PipeFlags::CLOEXEC)?;
    // Make the pipe readable but not writable for all users. Processes open it again, possibly
    // after changing their user, and none of them may write to it.
    rustix::fs::fchmod(&read, Mode::RUSR | Mode::RGRP | Mode::ROTH)?;
    Ok((read, write))
}

/// Returns whether any process has attached to the engine. The preload library does so when it is
/// loaded.
fn has_attached(report: &Report) -> bool {
    report.counters.engine.iter().any(|(name, count)| *name == "requests" && *count > 0)
}

/// Results of a stack after it has ended.
pub struct Outcome {
    /// Whether PROGRAM has attached to the stack.
    pub attached: bool,
    /// Final counters of the stack; empty if it ended without a report.
    pub layers: Vec<Layer>,
}

/// Where the stack runs: in this or in another process.
#[derive(Clone)]
enum Host {
    /// The stack runs on a thread of this process.
    Here(Remote),
    /// The stack runs in PROGRAM's process (`--inline`).
    There(LaunchServer),
}

/// Link of a stack that is to be opened.
struct StackLink {
    plan: Plan,
    /// Simulated network in front of the uplink.
    through: Option<SimulatedPath>,
}

/// Thread that runs the stack, or receives the reports of a stack in PROGRAM's process. Contains
/// PROGRAM's control socket until PROGRAM is started.
struct StackThread {
    facts: String,
    followed: Option<Followed>,
    /// DHCP client whose leases are not applied yet; `None` without DHCP.
    dhcp: Option<LeaseClient>,
    host: Host,
    control: OwnedFd,
    rest: RunningStack,
}

/// A running stack, after PROGRAM has received its control socket.
struct RunningStack {
    /// Pipe that hangs up when the stack has ended for any reason.
    ended: OwnedFd,
    /// Descriptor that is readable while PROGRAM is in exit(3): see [`Run::leaves`].
    leaves: Option<OwnedFd>,
    thread: JoinHandle<Outcome>,
}

/// Message from the stack's thread that the uplink is open.
struct UplinkReady {
    facts: String,
    followed: Option<Followed>,
    dhcp: Option<LeaseClient>,
    remote: Remote,
    control: OwnedFd,
}

impl StackThread {
    /// Starts the stack on a thread, and waits until its uplink is ready. The uplink is created on
    /// the thread because a `Port` is not `Send`.
    fn start(link: StackLink, messages: Messages, lifeline: OwnedFd) -> Result<Self> {
        let (ended, alive) = rustix::pipe::pipe_with(rustix::pipe::PipeFlags::CLOEXEC)?;
        let (sender, receiver) = channel();
        let thread =
            std::thread::Builder::new().name("towpath-engine".into()).spawn(move || {
                let _alive = alive;
                let StackLink { plan, through } = link;
                let report = turn(&plan, through, &messages, lifeline, &sender);
                let layers = towpath_uplink::layers(&report.counters, &plan.port_counters());
                Outcome { attached: has_attached(&report), layers }
            })?;
        let ready = receiver.recv().map_err(|_| anyhow!("the stack's thread ended"))??;
        let UplinkReady { facts, followed, dhcp, remote, control } = ready;
        let host = Host::Here(remote);
        Ok(Self {
            facts,
            followed,
            dhcp,
            host,
            control,
            rest: RunningStack { ended, leaves: None, thread },
        })
    }

    /// Prepares a stack in PROGRAM's process, which will receive the launch spec. `library` is the
    /// path of the library that programs load which PROGRAM executes.
    fn inline(
        plan: &Plan,
        messages: &Messages,
        lifeline: &OwnedFd,
        library: &Path,
    ) -> Result<Self> {
        let (ended, alive) = rustix::pipe::pipe_with(rustix::pipe::PipeFlags::CLOEXEC)?;
        let inline::Begun { facts, control, desk, listener, leaves, followed } =
            inline::begin(plan, messages, lifeline.as_fd(), library)?;
        let thread = std::thread::Builder::new().name("towpath-home".into()).spawn(move || {
            let _alive = alive;
            listener.hear()
        })?;
        let host = Host::There(desk);
        let leaves = Some(leaves);
        let rest = RunningStack { ended, leaves, thread };
        Ok(Self { facts, followed, dhcp: None, host, control, rest })
    }

    /// Starts to adopt MTU changes of the kernel interface below the stack's interface, if there is
    /// one.
    fn follow_mtu(&self, messages: &Messages) -> Option<MtuFollower> {
        let (followed, messages) = (self.followed.clone()?, messages.clone());
        let failed = messages.clone();
        let interface = followed.interface.clone();
        let follower = match self.host.clone() {
            Host::Here(remote) => {
                MtuFollower::of_engine(followed, remote, move |text| messages.post(text))
            }
            Host::There(desk) => MtuFollower::start(vec![followed], move |all, place, change| {
                if change == LinkChange::Mtu {
                    desk.set_mtu(all[place].stack_mtu());
                    messages.post(&all[place].sentence());
                }
            }),
        };
        let say = |error| failed.say(&format!("the MTU of {interface} is not followed: {error}"));
        follower.map_err(say).ok()
    }

    /// Closes this process's copy of PROGRAM's control socket. The stack counts as in use while any
    /// copy is open, so it would otherwise never end.
    fn handed_over(self) -> RunningStack {
        drop(self.control);
        self.rest
    }
}

impl RunningStack {
    /// Stops the stack, and waits for its final report.
    fn finish(self, host: &Host) -> Result<Outcome> {
        host.stop();
        self.thread.join().map_err(|_| anyhow!("internal error: the stack's thread panicked"))
    }
}

fn turn(
    plan: &Plan,
    through: Option<SimulatedPath>,
    messages: &Messages,
    lifeline: OwnedFd,
    ready: &Sender<Result<UplinkReady>>,
) -> Report {
    let prepare = || -> Result<(Engine, UplinkReady, Vec<JoinHandle<()>>)> {
        let seed = random()?;
        let mut uplink = plan.build(&seed).map_err(in_options)?;
        let through = through.map(|network| network.join(&mut uplink, messages)).transpose()?;
        let mut engine =
            Engine::with_shards(uplink.config, uplink.ports, seed).context("the stack")?;
        if let Some(file) = &plan.capture {
            record_drops(&mut engine, file);
        }
        let told = messages.clone();
        engine.on_conflict(move |found| told.post(&conflict(found)));
        let mut gate = ExecGate::new(messages.clone(), plan.strict);
        engine.set_parent_death_pipe(lifeline);
        engine.on_unintercepted(move |outsider| gate.may_pass(outsider));
        let control = engine.attach().context("the channel")?;
        let remote = engine.remote();
        let Connected { facts, followed, notices, replay, dhcp, .. } = uplink;
        let mut reporters: Vec<_> = through.into_iter().collect();
        if let Some(notices) = notices {
            let hints = hints::start(notices, remote.clone(), messages.clone());
            reporters.push(hints.context("a thread for hints")?);
        }
        if let Some(end) = replay {
            let (remote, messages) = (remote.clone(), messages.clone());
            let tell = move || end.wait(&remote).iter().for_each(|text| messages.post(text));
            let thread = std::thread::Builder::new().name("towpath-replay".into()).spawn(tell);
            reporters.push(thread.context("a thread for the replay")?);
        }
        Ok((engine, UplinkReady { facts, followed, dhcp, remote, control }, reporters))
    };
    let (engine, first, reporters) = match prepare() {
        Ok((engine, ready, reporters)) => (Some(engine), Ok(ready), reporters),
        Err(error) => (None, Err(error), Vec::new()),
    };
    // The send cannot fail, because the receiver waits for this message.
    let _ = ready.send(first);
    let report = engine.map_or_else(Report::default, Engine::run);
    // Wait for the threads that report events. The threads end after their last messages, because
    // the engine has dropped its ports.
    reporters.into_iter().for_each(|thread| drop(thread.join()));
    report
}

impl Host {
    fn stop(&self) {
        match self {
            Self::Here(remote) => remote.stop(),
            Self::There(desk) => desk.stop(),
        }
    }

    /// Returns the number of undelivered bytes; `None` if the stack has ended.
    fn unsent(&self) -> Option<u64> {
        match self {
            Self::Here(remote) => remote.left().ok().map(|Left { unsent, .. }| unsent),
            Self::There(desk) => desk.unsent(),
        }
    }
}

struct RunObserver<'a> {
    host: Host,
    messages: &'a Messages,
    name: &'a str,
}

impl Observer for RunObserver<'_> {
    fn lingering(&self, delivers: bool) {
        let name = self.name;
        if !delivers {
            let what = match self.host {
                Host::Here(_) => "has ended",
                Host::There(_) => "has ended with the stack that was in its process",
            };
            self.messages.post(&format!(
                "{name} {what}, processes that it started still run; Ctrl-C ends them"
            ));
        } else if let Some(unsent) = self.host.unsent() {
            self.messages.post(&format!(
                "{name} has ended, towpath is still sending its last {unsent} bytes; Ctrl-C cuts \
                 them off"
            ));
        }
    }

    fn stop(&self) {
        self.host.stop();
    }

    fn left_behind(&self) {
        self.messages.put_error(
            "processes of this run cannot be ended: they are another user's, or wait for a device",
        );
    }
}

/// Starts to answer requests on the run's control socket. Returns the socket, which has the run's
/// name if it has one.
fn serve(host: Host, args: &RunArgs, messages: &Messages, plan: &Plan) -> Result<Option<Instance>> {
    let words = args.program.iter().map(|word| word.to_string_lossy().into_owned());
    let program: Vec<String> = words.collect();
    let listening = match Instance::open(args.name.clone()) {
        Ok(listening) => listening,
        Err(taken @ NoInstance::NameTaken(_)) => {
            return Err(Failure::error(ExitCode::Failed, taken.to_string()));
        }
        Err(error) => {
            messages.say(&format!("`towpath ss` and `ip` cannot see this run: {error:#}"));
            return Ok(None);
        }
    };
    let instance = match host {
        Host::Here(remote) => {
            let stack = Arc::new(ServedStack::of_run(remote, Arc::clone(&plan.port_counters)));
            let served = Arc::clone(&stack);
            let answer = move |call: Call, reply: &mut Reply| served::answer(&served, call, reply);
            listening.serve(RunKind::Run, program, StackResponder::new(stack, answer))
        }
        Host::There(desk) => {
            let answer = move |call: Call, reply: &mut Reply| desk.answer(&call, reply);
            listening.serve(RunKind::Run, program, answer)
        }
    };
    Ok(Some(instance.context("a thread for answers")?))
}

/// Descriptor limits (RLIMIT_NOFILE) before and after raising the soft limit. The limit is raised
/// because the gateway needs one descriptor for each flow.
pub struct DescriptorLimit {
    before: Rlimit,
    raised: Rlimit,
}

/// Raises the soft limit on descriptors to the hard limit.
pub fn raise_descriptor_limit() -> DescriptorLimit {
    let before = getrlimit(Resource::Nofile);
    let raised = Rlimit { current: before.maximum, maximum: before.maximum };
    let limit = DescriptorLimit { before, raised };
    limit.set(raised);
    limit
}

impl DescriptorLimit {
    /// Restores the previous descriptor limit until the result is dropped. Open descriptors above
    /// it stay open.
    pub fn lowered(&self) -> impl Drop + use<'_> {
        struct Raise<'a>(&'a DescriptorLimit);
        impl Drop for Raise<'_> {
            fn drop(&mut self) {
                self.0.set(self.0.raised);
            }
        }
        self.set(self.before);
        Raise(self)
    }

    fn set(&self, limit: Rlimit) {
        // Ignore errors: the gateway then supports fewer flows.
        let _ = setrlimit(Resource::Nofile, limit);
    }
}
