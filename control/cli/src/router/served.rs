//! A running router as the answers of the control protocol see it.

use std::sync::Arc;

use anyhow::{Context, Result};
use towpath_engine::{Applied, Gone, NetState, Refused, SocketEntry};
use towpath_filter::Rules;
use towpath_model::{Instance, Listening, NoInstance, Reply, RunKind, Word};
use towpath_router::RouterRemote;
use towpath_stack::net::{Change, RuleSet};
use towpath_uplink::{Layer, now_ns};

use super::args::PortArg;
use super::open::Left;
use super::{layers, report};
use crate::error::{ExitCode, Failure};
use crate::messages::Messages;
use crate::port::{Device, OfTally};
use crate::served::{self, Stack};

/// A router that is asked from the thread of the control socket.
struct Host {
    remote: RouterRemote,
    ports: Vec<PortArg>,
    counters: Vec<Left>,
}

impl Host {
    /// Wants the counters of all ports, and returns when each has told its own.
    fn ask_ports(&self) -> Result<(), Gone> {
        let asked: Vec<_> = self.counters.iter().map(|port| (port, port.ask())).collect();
        // The router turns between two jobs: ports tell their counters then.
        served::until_notified(
            || asked.iter().all(|(port, asked)| port.is_told(*asked)),
            || self.remote.ask(|_| ()).map_err(|_| Gone),
        )
    }
}

impl Stack for Host {
    /// A router has no programs: it answers ARP, neighbour discovery and ping by itself.
    fn sockets(&self) -> Result<Vec<SocketEntry>, Gone> {
        Ok(Vec::new())
    }

    fn net(&self) -> Result<NetState, Gone> {
        let look = |router: &mut towpath_router::Router| {
            NetState::of(&router.stack().net, towpath_stack::Instant(now_ns()))
        };
        self.remote.ask(look).map_err(|_| Gone)
    }

    fn links(&self) -> Vec<(String, Vec<String>)> {
        let below = |port: &PortArg| layers::kernel_interfaces(&self.ports, port);
        self.ports.iter().map(|port| (port.name.clone(), below(port))).collect()
    }

    fn layers(&self) -> Result<Vec<Layer>, Gone> {
        self.ask_ports()?;
        let layers = self.remote.ask(|router| report::layers(router)).map_err(|_| Gone)?;
        Ok(report::with_ports(layers, &self.ports, &self.counters))
    }

    fn ports(&self) -> Result<Vec<Device>, Gone> {
        self.ask_ports()?;
        let ports = self.ports.iter().zip(&self.counters).map(|(port, left)| {
            let (driver, device) = port.device.words();
            Device {
                name: port.name.clone(),
                driver: driver.to_owned(),
                device: Some(device),
                links: layers::kernel_interfaces(&self.ports, port),
                counters: OfTally::from(&**left).counters,
            }
        });
        Ok(ports.collect())
    }

    fn apply(&self, changes: Vec<Change>) -> Result<Result<Applied, Refused>, Gone> {
        let applied = Applied { changes: changes.len() };
        let apply = move |router: &mut towpath_router::Router| router.apply(now_ns(), &changes);
        let made = self.remote.ask(apply).map_err(|_| Gone)?;
        Ok(made.map(|()| applied))
    }

    fn rules(&self) -> Result<Option<Arc<RuleSet>>, Gone> {
        self.remote.ask(|router| router.rules().cloned()).map_err(|_| Gone)
    }

    fn set_rules(&self, rules: Option<Rules>) -> Result<(), Gone> {
        self.remote.ask(|router| router.set_rules(rules)).map_err(|_| Gone)
    }

    const LOGS: bool = true;
}

/// The socket on which the router will answer. None where no folder can have it, which the user is
/// told: packets are forwarded all the same.
///
/// # Errors
/// The name is another run's.
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

/// Answers from now on, until the result is dropped.
///
/// # Errors
/// There is no thread to be had.
pub fn serve(
    listening: Option<Listening>,
    remote: RouterRemote,
    ports: &[PortArg],
    counters: &[Left],
) -> Result<Option<Instance>> {
    let Some(listening) = listening else { return Ok(None) };
    let host = Host { remote, ports: ports.to_vec(), counters: counters.to_vec() };
    let answer = move |call, reply: &mut Reply| served::answer(&host, call, reply);
    let words = std::env::args_os().skip(1).map(|word| word.to_string_lossy().into_owned());
    let served = listening.serve(RunKind::Router, words.collect(), answer);
    served.map(Some).context("a thread for answers")
}
