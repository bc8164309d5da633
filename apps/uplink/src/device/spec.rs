//! Devices in the user's notation, such as `xdp:eth1`.

use std::fmt;

use super::driver::{DeviceDriver, DeviceRequest, OpenDevice, ParameterKind};
use super::table::DEVICES;
use crate::plan_error::Result;

/// Device in the user's notation: a driver and its parameters, such as `xdp:eth1`.
///
/// ```
/// use towpath_uplink::DeviceSpec;
///
/// let device = DeviceSpec::parse("xdp:eth1")?;
/// assert_eq!((device.driver().name, device.parameters()), ("xdp", "eth1"));
/// assert!(DeviceSpec::parse("pakket:eth1").unwrap_err().contains("expected tap, packet, xdp"));
/// # Ok::<(), String>(())
/// ```
#[derive(Clone)]
pub struct DeviceSpec {
    driver: &'static DeviceDriver,
    parameters: String,
}

impl DeviceSpec {
    /// Parses `DEVICE:PARAMETERS`.
    ///
    /// # Errors
    /// Returns an error message.
    pub fn parse(text: &str) -> std::result::Result<Self, String> {
        let (name, parameters) = text.split_once(':').ok_or_else(|| {
            format!("{text:?}: expected DEVICE:PARAMETERS, for example packet:eth1")
        })?;
        let driver = DEVICES.iter().find(|driver| driver.name == name);
        let driver =
            driver.ok_or_else(|| format!("{name:?} is not a device: expected {}", names(&[])))?;
        Self::new(driver, parameters)
    }

    /// Creates the spec of a device with these parameters.
    ///
    /// # Errors
    /// Returns an error message.
    pub fn new(
        driver: &'static DeviceDriver,
        parameters: &str,
    ) -> std::result::Result<Self, String> {
        check(driver, parameters)?;
        Ok(Self { driver, parameters: parameters.to_owned() })
    }

    /// Returns the driver of the device.
    pub fn driver(&self) -> &'static DeviceDriver {
        self.driver
    }

    /// Returns the parameters: the text after the colon.
    pub fn parameters(&self) -> &str {
        &self.parameters
    }

    /// Returns the name of the interface if the device is one that the kernel's own stack uses as
    /// well.
    pub fn interface(&self) -> Option<&str> {
        (self.driver.kind == ParameterKind::Interface).then_some(&self.parameters)
    }

    /// Returns the name of the kernel interface whose carrier state (link up or down) is that of
    /// the device.
    pub fn link(&self) -> Option<&str> {
        let kinds = [ParameterKind::Interface, ParameterKind::NewInterface];
        let has_link = kinds.contains(&self.driver.kind) && !self.parameters.is_empty();
        has_link.then_some(&self.parameters)
    }

    /// Returns a noun for messages, such as "a TAP device", or the name of an interface.
    pub fn noun(&self) -> &str {
        self.driver.traits.noun.unwrap_or(&self.parameters)
    }

    /// Opens the device.
    ///
    /// # Errors
    /// Returns a [`PlanError`](crate::PlanError). All descriptors are closed then.
    pub fn open(&self, request: &DeviceRequest<'_>) -> Result<OpenDevice> {
        (self.driver.open)(&self.parameters, request)
    }
}

/// Checks that the parameters are valid for the driver.
fn check(driver: &DeviceDriver, parameters: &str) -> std::result::Result<(), String> {
    let DeviceDriver { name, parameters: placeholder, kind, check, .. } = driver;
    let is_part = |c: char| c != '/' && !c.is_whitespace() && !c.is_control();
    match kind {
        ParameterKind::Interface if parameters.is_empty() || !parameters.chars().all(is_part) => {
            Err(format!("{parameters:?} is not a name of an interface, as {}", driver.example))
        }
        ParameterKind::NewInterface if !parameters.is_empty() => {
            towpath_tap::check_name(parameters).map_err(|error| error.to_string())
        }
        ParameterKind::File | ParameterKind::FileAndOptions | ParameterKind::Text
            if parameters.is_empty() =>
        {
            Err(format!("{name} needs {placeholder}, for example {name}:{}", driver.example))
        }
        _ => check.map_or(Ok(()), |check| check(parameters)),
    }
}

/// Lists the names of all devices, followed by the names in `more`, as part of a sentence.
pub fn names(more: &[&str]) -> String {
    let mut all: Vec<_> = DEVICES.iter().map(|driver| driver.name).collect();
    all.extend(more);
    let last = all.pop().unwrap_or_default();
    format!("{} or {last}", all.join(", "))
}

impl PartialEq for DeviceSpec {
    fn eq(&self, other: &Self) -> bool {
        (self.driver.name, &self.parameters) == (other.driver.name, &other.parameters)
    }
}

impl Eq for DeviceSpec {}

impl fmt::Display for DeviceSpec {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}:{}", self.driver.name, self.parameters)
    }
}

impl fmt::Debug for DeviceSpec {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "DeviceSpec({self})")
    }
}
