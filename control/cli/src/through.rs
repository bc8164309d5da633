//! `towpath run --through`: a simulated network between PROGRAM's stack and its uplink.

use std::path::Path;
use std::thread::JoinHandle;

use anyhow::{Context, Result};
use towpath_sim::{MAX_LAG, RealtimeResult, Through};
use towpath_uplink::{Connected, random};

use crate::error::{ExitCode, Failure};
use crate::messages::Messages;

/// Default maximum length of IP packets in bytes, as on the Ethernet of simulated hosts.
pub const MTU: u32 = 1500;

/// Maximum length of IP packets on the link between the stack and the network. The stack's own MTU
/// applies to TCP; UDP datagrams may be longer.
const LINK_MTU: u32 = 65_535;

/// A simulated network that is to be joined to a stack.
pub struct SimulatedPath {
    network: Through,
    /// Path of the scenario, for messages.
    name: String,
}

impl SimulatedPath {
    /// Reads a scenario.
    ///
    /// # Errors
    /// Fails with the path and the line of the first error.
    pub fn read(scenario: &Path) -> Result<Self> {
        let name = scenario.display().to_string();
        let wrong = |error: String| Failure::error(ExitCode::Failed, format!("{name}: {error}"));
        let text = std::fs::read_to_string(scenario).map_err(|error| wrong(error.to_string()))?;
        let plans = towpath_sim::read(&text).map_err(|error| wrong(error.to_string()))?;
        let network = Through::new(plans).map_err(|error| wrong(error.to_string()))?;
        Ok(Self { network, name })
    }

    /// Connects the simulated network between the stack and its uplink, and runs it on a thread.
    /// The thread ends when the stack has dropped its port.
    ///
    /// # Errors
    /// Fails if there are no descriptors or threads.
    pub fn join(self, connected: &mut Connected, messages: &Messages) -> Result<JoinHandle<()>> {
        let Self { network, name } = self;
        let [ports] = &mut connected.ports[..] else {
            return Err(anyhow::anyhow!("internal error: the stack has several shards"));
        };
        let uplink = ports.pop().context("internal error: the stack has no port")?;
        let (stack, program) = towpath_channel::pair(uplink.link_type(), LINK_MTU)
            .context("a link to the simulated network")?;
        for interface in &mut connected.config.interfaces {
            interface.offloads = towpath_pool::Port::offloads(&stack);
            // The gateway is behind the network now, which may lose packets.
            interface.in_process = false;
        }
        ports.push(Box::new(stack));
        let messages = messages.clone();
        let [a, b, c, ..] = random()?;
        let macs = [2, a, b, c];
        let run = move || match network.run(Box::new(program), uplink, macs, MAX_LAG) {
            Ok(result) => late(&result).into_iter().for_each(|text| messages.post(&text)),
            Err(error) => messages.post(&format!("{name}: the simulated network ended: {error}")),
        };
        std::thread::Builder::new()
            .name("towpath-sim".into())
            .spawn(run)
            .context("a thread for the simulated network")
    }
}

/// Returns a warning if the network was behind real time.
fn late(result: &RealtimeResult) -> Option<String> {
    let RealtimeResult { lag, late, max_lag_s, .. } = result;
    (*late > 0).then(|| {
        format!(
            "the simulated network was late: {late} of {} events by more than {:.0} ms, and up to \
             {:.0} ms; the delays that the program saw are longer than those of the scenario",
            lag.count,
            max_lag_s * 1e3,
            lag.max_s * 1e3
        )
    })
}
