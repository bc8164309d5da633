//! The control socket of a router.

use std::sync::Arc;

use anyhow::{Context, Result};
use towpath_engine::Remote;
use towpath_model::{Call, Instance, Listening, NoInstance, Reply, RunKind, Word};
use towpath_router::{DnsControl, TrackerSettings};

use super::config_keeper::ConfigKeeper;
use super::ports::PortChanger;
use super::report;
use crate::error::{ExitCode, Failure};
use crate::messages::Messages;
use crate::served::{ServedStack, StackResponder};

/// Creates the control socket of the router. Returns `None` if no directory can be used for it. The
/// user is told about this, and the router works without the socket.
///
/// # Errors
/// Fails if another run uses the name.
pub fn open(name: Option<Word>, messages: &Messages) -> Result<Option<Listening>> {
    match Instance::open(name) {
        Ok(listening) => Ok(Some(listening)),
        Err(taken @ NoInstance::NameTaken(_)) => {
            Err(Failure::error(ExitCode::Failed, taken.to_string()))
        }
        Err(error) => {
            messages.say(&format!("`towpath ip` cannot see this router: {error:#}"));
            Ok(None)
        }
    }
}

/// Describes the router for requests.
pub fn stack(
    remote: Remote,
    ports: Arc<PortChanger>,
    tracker: Option<TrackerSettings>,
    dns: Option<DnsControl>,
) -> ServedStack {
    let ports = Box::new(ports);
    ServedStack { remote, ports, logs: true, tracker, dns, layers: report::all_layers }
}

/// Answers requests of the control socket, until the returned value is dropped.
///
/// # Errors
/// Fails if no thread can be created.
pub fn serve(listening: Option<Listening>, keeper: ConfigKeeper) -> Result<Option<Instance>> {
    let Some(listening) = listening else { return Ok(None) };
    let words = std::env::args_os().skip(1).map(|word| word.to_string_lossy().into_owned());
    let stack = keeper.stack();
    let answer = move |call: Call, reply: &mut Reply| keeper.answer(call, reply);
    let responder = StackResponder::new(stack, answer);
    let served = listening.serve(RunKind::Router, words.collect(), responder);
    served.map(Some).context("a thread for answers")
}
