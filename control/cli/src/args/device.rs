//! Options that select the device of a stack. Each row of the device table has one option.

use clap::{Arg, ArgGroup, ArgMatches, Args, Command, Error, FromArgMatches, Id, ValueHint};
use towpath_uplink::{DEVICES, DeviceDriver, DeviceSpec, ParameterKind};

/// Device of a stack, at most one. For example, `--xdp eth1` selects `xdp:eth1`.
#[derive(Debug, Default)]
pub struct DeviceArgs(Option<DeviceSpec>);

/// Name of the clap group that contains the device options.
const GROUP: &str = "device";

impl DeviceArgs {
    /// Returns the selected device. `None` selects the rootless gateway.
    pub fn device(&self) -> Option<&DeviceSpec> {
        self.0.as_ref()
    }

    /// Returns the name of the selected device option if its value is optional, as that of `--tap`.
    pub fn option_without_value(&self) -> Option<String> {
        let driver = self.0.as_ref()?.driver();
        (driver.kind == ParameterKind::NewInterface).then(|| format!("--{}", driver.name))
    }
}

impl Args for DeviceArgs {
    fn group_id() -> Option<Id> {
        Some(GROUP.into())
    }

    fn augment_args(command: Command) -> Command {
        let names = DEVICES.iter().map(|driver| driver.name);
        let command = command.args(DEVICES.iter().map(option));
        command.group(ArgGroup::new(GROUP).args(names).multiple(false))
    }

    fn augment_args_for_update(command: Command) -> Command {
        Self::augment_args(command)
    }
}

impl FromArgMatches for DeviceArgs {
    fn from_arg_matches(matches: &ArgMatches) -> Result<Self, Error> {
        let mut device = Self::default();
        device.update_from_arg_matches(matches)?;
        Ok(device)
    }

    fn update_from_arg_matches(&mut self, matches: &ArgMatches) -> Result<(), Error> {
        let given = DEVICES.iter().find_map(|driver| matches.get_one::<DeviceSpec>(driver.name));
        self.0 = given.cloned().or(self.0.take());
        Ok(())
    }
}

/// Creates the option for a device from its row of the device table.
fn option(driver: &'static DeviceDriver) -> Arg {
    let option = Arg::new(driver.name)
        .long(driver.name)
        .value_name(driver.parameters)
        .value_parser(move |text: &str| DeviceSpec::new(driver, text))
        .help(driver.help)
        .long_help(format!("{}\n\n{}", driver.help, driver.long_help));
    let option = match driver.kind {
        ParameterKind::Interface => option,
        ParameterKind::NewInterface => {
            option.num_args(0..=1).require_equals(true).default_missing_value("")
        }
        ParameterKind::File | ParameterKind::FileAndOptions => {
            option.value_hint(ValueHint::AnyPath)
        }
        ParameterKind::Text => option.allow_hyphen_values(true),
    };
    // Do not require `--address` for an interface that the kernel uses, because `--ports` can
    // replace it.
    match driver.traits.needs_address.is_some() && driver.kind != ParameterKind::Interface {
        true => option.requires("address"),
        false => option,
    }
}
