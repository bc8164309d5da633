//! `towpath proxy run`: runs PROGRAM in a network namespace whose device leads to our gateway.
//!
//! The guardian creates the namespaces and the device, and sends the device to towpath. A thread of
//! this process connects the gateway to the device, in the host's namespace. Supervision, signals
//! and the end of the run work as in `towpath run`.

use std::io::Write;
use std::os::fd::AsFd;
use std::path::Path;

use anyhow::{Context, Result};
use towpath_pcap::CaptureFile;
use towpath_uplink::{Namespaced, Plan, PlanError, Remark, Tell};
use towpath_wire::Prefix;

use super::run_args::ProxyRunArgs;
use super::worker::{ProxyWorker, Work};
use crate::activation::{self, Activation};
use crate::child::{Ended, ProgramChild};
use crate::error::ExitCode;
use crate::guardian::{Job, Way, namespace::Namespace};
use crate::messages::Messages;
use crate::run::{parent_death_pipe, raise_descriptor_limit};
use crate::signals::{self, Signals};
use crate::supervise::{Observer, Run, asked_to_end};
use crate::uplink::in_options;
use crate::{program, recording, stats};

/// Maximum MTU of a TAP device in bytes (MAX_MTU in drivers/net/tun.c).
const MTU_MAX: u32 = 65_521;

/// Runs PROGRAM in a namespace, and returns its exit status. If a signal killed PROGRAM, this
/// process kills itself by the same signal.
///
/// # Errors
/// Returns any error with a message for the user.
pub fn run(args: &ProxyRunArgs) -> Result<u8> {
    let path = program::locate(&args.program[0])?;
    let recording = args.capture.pcap.as_deref().map(recording::open).transpose()?;
    let signals = Signals::block()?;
    let result = run_beside(args, &path, recording, &signals);
    if result.is_err() {
        // Unblock signals, so that Ctrl-C ends towpath while the caller prints the error, which may
        // block.
        signals.unblock();
    }
    result
}

fn run_beside(
    args: &ProxyRunArgs,
    path: &Path,
    recording: Option<Box<dyn Write + Send>>,
    signals: &Signals,
) -> Result<u8> {
    let messages = Messages::start(args.quiet).context("a thread for messages")?;
    let limits = args.capture.limits();
    let start = |out| recording::start(limits, out, messages.clone());
    let capture = recording.map(start).transpose()?;
    let (ended, alone) = within(args, path, capture.as_ref(), (&messages, signals))?;
    let is_recorded = capture.is_none_or(|capture| {
        let go_on = || !asked_to_end(signals).unwrap_or(true);
        recording::finish(&capture, &messages, go_on)
    });
    messages.finish(|| !asked_to_end(signals).unwrap_or(true));
    if let Some(child) = alone {
        child.finish();
    }
    Ok(match ended {
        // Fail if the capture is incomplete. Otherwise a script would assume that it is complete.
        Ended::Exited(0) if !is_recorded => ExitCode::Failed as u8,
        Ended::Exited(code) => code,
        Ended::Killed(signal) => signals::die(signal),
    })
}

/// Runs PROGRAM and waits for its end. Also returns the handle of PROGRAM's processes if none of
/// them is left.
fn within(
    args: &ProxyRunArgs,
    path: &Path,
    capture: Option<&CaptureFile>,
    (messages, signals): (&Messages, &Signals),
) -> Result<(Ended, Option<ProgramChild>)> {
    let mut activation = Activation::at_start();
    let plan = plan(args, &mut activation, messages)?;
    let namespaced = plan.namespaced().map_err(in_options)?;
    let published = plan.bind(&namespaced).map_err(in_options)?;
    let facts = published.facts.clone();
    let job = Job {
        path: path.to_owned(),
        words: args.program.clone(),
        way: Way::Namespace(namespace(args, &namespaced)),
        hostname: args.names.hostname.clone(),
        signals: signals.at_start(),
        output_to_error: args.capture.pcap.as_deref().is_some_and(recording::is_output),
        activation,
    };
    let limit = raise_descriptor_limit();
    let (_programs_end, keep) = parent_death_pipe()?;
    let (mut child, device) = {
        // Restore the descriptor limit with which towpath was started, because PROGRAM inherits it.
        let _own = limit.lowered();
        ProgramChild::in_namespace(&job, keep)?
    };
    device.remarks.iter().for_each(|remark| messages.say(remark));
    let work = Work {
        plan,
        namespaced,
        published,
        parts: device.parts,
        sockets: device.sockets,
        capture: capture.cloned(),
        messages: messages.clone(),
        inside: child.guardian(),
        words: words(args),
    };
    let worker = ProxyWorker::start(work)?;
    if !facts.is_empty() {
        messages.say(&format!("{facts}; Ctrl-C ends"));
    }
    child.go(&job)?;
    let name = args.program[0].to_string_lossy();
    let observer = WorkObserver { worker: &worker, messages, name: &name };
    let run = Run {
        child: &child,
        stack: worker.ended().as_fd(),
        leaves: None,
        signals,
        grace: args.stop_timeout,
        survived_after: args.survived_after,
        observer: &observer,
    };
    let outcome = run.supervise();
    let layers = worker.finish()?;
    if let Some(format) = args.stats {
        messages.put(stats::render(format, &layers)?);
    }
    let (ended, alone) = outcome?;
    Ok((ended, alone.then_some(child)))
}

fn words(args: &ProxyRunArgs) -> Vec<String> {
    let program = args.program.iter().map(|word| word.to_string_lossy().into_owned());
    ["proxy", "run", "--"].map(str::to_owned).into_iter().chain(program).collect()
}

/// Returns the configuration of the namespace in which PROGRAM runs.
fn namespace(args: &ProxyRunArgs, namespaced: &Namespaced) -> Namespace {
    let pair = |own: &Prefix| (own.addr(), own.len());
    Namespace {
        mtu: args.mtu,
        addresses: namespaced.addresses.iter().map(pair).collect(),
        routers: namespaced.routers.clone(),
        nameservers: namespaced.nameservers.clone(),
        hostname: args.names.hostname.clone(),
        hosts: namespaced.hosts.clone(),
        asked_for_sockets: !args.publish.is_empty(),
    }
}

/// Creates the plan of the uplink, after checking that options do not contradict each other.
fn plan(
    args: &ProxyRunArgs,
    activation: &mut Option<Activation>,
    messages: &Messages,
) -> Result<Plan> {
    let of_remarks = messages.clone();
    let tell = Tell::new(move |remark| {
        if let Remark::Warning(text) = remark {
            of_remarks.say(&text);
        }
    });
    let mut plan = Plan::new(None, tell);
    activation::publish(&args.publish, activation, &mut plan)?;
    plan.addresses.clone_from(&args.address);
    plan.mtu = Some(args.mtu);
    plan.host_loopback = !args.no_host_loopback;
    plan.dns = args.dns;
    plan.names = args.names.names();
    if args.mtu > MTU_MAX {
        let error = PlanError::Mtu { mtu: args.mtu, most: MTU_MAX, link: "a TAP device".into() };
        return Err(in_options(error));
    }
    plan.check().map_err(in_options)?;
    Ok(plan)
}

/// Handles events of the supervised run: tells the user, and stops the worker.
struct WorkObserver<'a> {
    worker: &'a ProxyWorker,
    messages: &'a Messages,
    name: &'a str,
}

impl Observer for WorkObserver<'_> {
    fn lingering(&self, delivers: bool) {
        let name = self.name;
        if delivers {
            let unsent = self.worker.unsent();
            self.messages.post(&format!(
                "{name} has ended, towpath is still sending its last {unsent} bytes; \
                 Ctrl-C cuts them off"
            ));
        } else {
            self.messages.post(&format!(
                "{name} has ended, processes that it started still run; Ctrl-C ends them"
            ));
        }
    }

    fn stop(&self) {
        self.worker.stop();
    }

    fn left_behind(&self) {
        self.messages.put_error(
            "processes of this run cannot be ended: they are another user's, or wait for a device",
        );
    }

    fn alone(&self) {
        self.worker.drain();
    }
}
