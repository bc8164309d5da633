//! A simulated network between a program and its uplink.

use towpath_pool::Port;

use super::{DeviceEnd, RealPort, RealPorts, RealTime};
use crate::result::RealtimeResult;
use crate::run::WorldPace;
use crate::scenario::{Plan, ScenarioError};
use crate::units::Time;
use crate::world::World;

/// Value of `device` that marks the host of the scenario which stands for the program.
pub const PROGRAM: &str = "program";
/// Value of `device` that marks the host of the scenario which stands for the network behind the
/// program's uplink.
pub const UPLINK: &str = "uplink";

/// Time in ns between two checks whether the uplink has delivered its last bytes.
const ROUND_NS: u64 = 10_000_000;
/// Maximum number of checks until all bytes must be delivered, which take 5 s in total.
const ROUNDS_MAX: u64 = 500;
/// Maximum number of checks that wait until links have no packets. The number is low, because other
/// hosts may send packets all the time.
const LINK_ROUNDS_MAX: u64 = 100;

/// Plan of a simulated network that joins a program and its uplink.
#[derive(Debug, Clone)]
pub struct Through {
    plan: Plan,
}

impl Through {
    /// Creates the network from the plans of a scenario.
    ///
    /// # Errors
    /// Fails unless there is exactly one plan. In it, one host must have the device [`PROGRAM`],
    /// one must have [`UPLINK`], and the remaining hosts must have none.
    pub fn new(plans: Vec<Plan>) -> Result<Self, ScenarioError> {
        let error = |line, message: String| Err(ScenarioError { line, message });
        let Ok([plan]) = <[Plan; 1]>::try_from(plans) else {
            return error(None, "the scenario has variants, and a program runs once".into());
        };
        let mut found = [None, None];
        for (host, device) in plan.devices() {
            let (name, line) = (&plan.hosts[host].name, Some(device.line));
            let Some(at) = [PROGRAM, UPLINK].iter().position(|known| device.words == *known) else {
                return error(
                    line,
                    format!(
                        "the device of `{name}` is `{}`; expected `{PROGRAM}` for the program, or \
                         `{UPLINK}` for its uplink",
                        device.words
                    ),
                );
            };
            if let Some(first) = found[at].replace(name) {
                let words = &device.words;
                return error(
                    line,
                    format!("`{first}` and `{name}` both have the device `{words}`"),
                );
            }
        }
        for (place, words) in found.iter().zip([PROGRAM, UPLINK]) {
            if place.is_none() {
                return error(None, format!("no host has `device = \"{words}\"`; add it to one"));
            }
        }
        Ok(Self { plan })
    }

    /// Runs the network until the program's port is gone, and the uplink has delivered its bytes.
    /// The flows of the scenario end with its duration, the links do not. `macs` are the first
    /// bytes of the Ethernet addresses of simulated hosts.
    ///
    /// # Errors
    /// Fails if the uplink's device was removed, or no descriptors are available.
    pub fn run(
        self,
        program: Box<dyn Port + Send>,
        uplink: Box<dyn Port + Send>,
        macs: [u8; 4],
        max_lag: Time,
    ) -> Result<RealtimeResult, String> {
        let open = |words: &str, port| (words.to_owned(), RealPort { port, shared_mac: None });
        let mut ports = RealPorts::from([open(PROGRAM, program), open(UPLINK, uplink)]);
        let plan = Plan { macs, ..self.plan };
        let plan = plan.drawn(plan.seed);
        let mut world = World::new(&plan, plan.seed, None);
        let mut pace = RealTime::new(&mut ports, max_lag.0)?;
        pace.begin(&plan, &mut world)?;
        let wires = [PROGRAM, UPLINK].map(|words| pace.wire_of(words));
        let [Some(program), Some(uplink)] = wires else {
            return Err("the scenario lacks a host".into());
        };
        // Runs until a device is gone.
        if let Err(error) = pace.run_until(&mut world, u64::MAX, u64::MAX)
            && pace.gone.map(|at| pace.devices[at].wire) != Some(program)
        {
            return Err(error);
        }
        world.connect(program, None);
        for round in 0..ROUNDS_MAX {
            let port = world.exit(uplink).and_then(|exit| exit.port());
            let is_delivered = port.is_none_or(|port| port.undelivered() == 0);
            // Packets to the program have no receiver any more.
            let mut wires = world.wires.iter().enumerate();
            let is_quiet = wires.all(|(at, wire)| at == program || wire.held() == 0);
            if is_delivered && (is_quiet || round >= LINK_ROUNDS_MAX) {
                break;
            }
            let end = world.now + ROUND_NS;
            pace.run_until(&mut world, end, u64::MAX)?;
        }
        pace.end(&mut world).ok_or_else(|| "there is no result".into())
    }
}

impl RealTime<'_> {
    fn wire_of(&self, words: &str) -> Option<usize> {
        self.devices.iter().find(|device| device.words == words).map(|DeviceEnd { wire, .. }| *wire)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::scenario::read;

    fn scenario(devices: [&str; 2]) -> Result<Through, ScenarioError> {
        let [a, b] = devices;
        let text = format!(
            "title = \"x\"\nduration = \"1s\"\n[[host]]\nname = \"a\"\n{a}\n[[host]]\n\
             name = \"b\"\n{b}\n[[host]]\nname = \"c\"\n[[switch]]\nname = \"s\"\n\
             [[link]]\nbetween = [\"a\", \"s\"]\n[[link]]\nbetween = [\"b\", \"s\"]\n\
             [[link]]\nbetween = [\"c\", \"s\"]\n"
        );
        Through::new(read(&text)?)
    }

    #[test]
    fn a_scenario_needs_a_host_for_the_program_and_one_for_the_uplink() {
        let (program, uplink) = ("device = \"program\"", "device = \"uplink\"");
        assert!(scenario([program, uplink]).is_ok());
        let cases = [
            ([program, ""], "no host has `device = \"uplink\"`"),
            (["", uplink], "no host has `device = \"program\"`"),
            ([program, program], "line 8: `a` and `b` both have the device `program`"),
            ([program, "device = \"packet:v0\""], "line 8: the device of `b` is `packet:v0`"),
        ];
        for (devices, wanted) in cases {
            let error = scenario(devices).expect_err(wanted).to_string();
            assert!(error.contains(wanted), "{error}");
        }
    }

    #[test]
    fn default_addresses_of_real_hosts_are_not_reserved() {
        let devices = ["device = \"program\"", "device = \"uplink\""];
        let plan = scenario(devices).expect("both hosts").plan;
        let known = crate::realtime::addresses_of(&plan, 0).neighbors.into_keys();
        assert!(known.eq([plan.hosts[2].address]));
    }
}
