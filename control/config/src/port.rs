//! Ports of a router: name, device and addresses, as of `--port` and of `[[port]]`.

use std::fmt;

use towpath_nat64::Nat64Config;
use towpath_router::{PlannedNeighbor, PlannedPort};
use towpath_uplink::{
    DEVICES, DeviceDriver, DeviceSpec, MTUS, ParameterKind, device_names, parse_cidr,
};
use towpath_wire::Prefix;

/// A port of a router.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct PortSettings {
    /// Name of the port.
    pub name: String,
    /// Device of the port, or the ports on which it is built.
    pub device: PortDevice,
    /// Addresses of the router on the port's link.
    pub addresses: Vec<Prefix>,
    /// Whether the port is an interface of the router, possibly without addresses.
    pub is_routed: bool,
    /// MTU in bytes; `None`: that of the device.
    pub mtu: Option<u32>,
    /// Whether the port is down.
    pub is_down: bool,
    /// Neighbours with a configured Ethernet address.
    pub neighbors: Vec<PlannedNeighbor>,
    /// Whether the port obtains its address by DHCP.
    pub by_dhcp: bool,
}

impl PortSettings {
    /// Creates a port with a device, and nothing else.
    pub fn new(name: impl Into<String>, device: PortDevice) -> Self {
        Self {
            name: name.into(),
            device,
            addresses: Vec::new(),
            is_routed: false,
            mtu: None,
            is_down: false,
            neighbors: Vec::new(),
            by_dhcp: false,
        }
    }

    /// Returns whether the port is an interface of the router. If not, other ports are built on it.
    pub fn is_interface(&self) -> bool {
        self.by_dhcp || self.is_routed
    }

    /// Sets the addresses of the port, which is an interface of the router then.
    pub fn set_addresses(&mut self, addresses: Vec<Prefix>) {
        self.addresses = addresses;
        self.is_routed = true;
    }

    /// Returns the port as a part of the router's plan.
    pub fn planned(&self) -> PlannedPort {
        PlannedPort {
            name: self.name.clone(),
            addresses: self.addresses.clone(),
            mtu: self.mtu,
            is_down: self.is_down,
            neighbors: self.neighbors.clone(),
        }
    }
}

/// Device of a port, or the ports on which it is built.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum PortDevice {
    /// A network device.
    Device(DeviceSpec),
    /// A VLAN on the port with this name, with this tag.
    Vlan(String, u16),
    /// A bridge that joins other ports to one link.
    Bridge {
        /// Names of the bridged ports.
        members: Vec<String>,
        /// Time in seconds for which a learned MAC address is kept after its last frame; `None` for
        /// the default.
        ageing: Option<u32>,
        /// Maximum number of MAC addresses that the bridge learns per port; `None` for the default.
        addresses: Option<u32>,
    },
    /// A translator between IPv6 hosts and IPv4 servers.
    Nat64(Nat64Config),
}

impl PortDevice {
    /// Returns the kind of the device, and the name of the interface or the ports below it.
    pub fn words(&self) -> (&'static str, String) {
        match self {
            Self::Device(spec) => (spec.driver().name, spec.parameters().to_owned()),
            Self::Vlan(parent, id) => ("vlan", format!("{parent}.{id}")),
            Self::Bridge { members, .. } => ("bridge", members.join("+")),
            Self::Nat64(config) => ("nat64", config.to_string()),
        }
    }

    /// Returns the settings of a translator.
    pub fn translator(&self) -> Option<&Nat64Config> {
        if let Self::Nat64(config) = self { Some(config) } else { None }
    }

    /// Returns the network device; `None` for a VLAN, a bridge or a translator.
    pub fn device(&self) -> Option<&DeviceSpec> {
        match self {
            Self::Device(spec) => Some(spec),
            Self::Vlan(..) | Self::Bridge { .. } | Self::Nat64(_) => None,
        }
    }
}

/// Writes the device as [`PortDevice::parse`] reads it.
impl fmt::Display for PortDevice {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let (kind, below) = self.words();
        write!(f, "{kind}:{below}")?;
        let Self::Bridge { ageing, addresses, .. } = self else { return Ok(()) };
        ageing.iter().try_for_each(|seconds| write!(f, ",ageing={seconds}"))?;
        addresses.iter().try_for_each(|count| write!(f, ",addresses={count}"))
    }
}

/// Maximum length of a port's name in bytes, equal to that of a kernel interface (IFNAMSIZ without
/// the NUL).
const NAME_LEN_MAX: usize = 15;

/// Checks a name of a port.
///
/// # Errors
/// Returns a sentence for the user.
pub fn check_port_name(name: &str) -> Result<(), String> {
    let is_word = |c: char| c.is_ascii_alphanumeric() || c == '_' || c == '-';
    if name.is_empty() || name.len() > NAME_LEN_MAX || !name.chars().all(is_word) {
        return Err(format!(
            "{name:?} is not a name of a port: expected 1 to {NAME_LEN_MAX} letters, \
             digits, '-' or '_'"
        ));
    }
    Ok(())
}

/// Expected syntax of `--port`, for error messages.
const PORT_FORM: &str =
    "expected NAME=packet:INTERFACE,ADDRESS/LENGTH, for example lan=packet:eth1,10.1.0.1/24";

/// Parses `NAME=DEVICE[,OPTION...][,ADDRESS/LENGTH...]`.
///
/// # Errors
/// Returns a sentence for the user.
pub fn parse_port(text: &str) -> Result<PortSettings, String> {
    let (name, rest) = text.split_once('=').ok_or(PORT_FORM)?;
    let (kind, rest) = rest.split_once(':').ok_or(PORT_FORM)?;
    check_port_name(name)?;
    let words = SplitPort::split(kind, rest);
    let mut port = PortSettings::new(name, words.device(kind)?);
    port.mtu = words.mtu.map(parse_mtu).transpose()?;
    port.addresses = words.addresses.into_iter().map(parse_cidr).collect::<Result<_, _>>()?;
    if let (Some(config), []) = (port.device.translator(), &port.addresses[..]) {
        port.addresses = config.addresses();
    }
    port.is_routed = !port.addresses.is_empty();
    Ok(port)
}

impl PortDevice {
    /// Parses `DEVICE[,OPTION...]`.
    ///
    /// # Errors
    /// Returns a sentence for the user.
    pub fn parse(text: &str) -> Result<Self, String> {
        let form = "expected DEVICE:PARAMETERS, for example packet:eth1";
        let (kind, rest) = text.split_once(':').ok_or_else(|| format!("{text:?}: {form}"))?;
        let words = SplitPort::split(kind, rest);
        if let Some(address) = words.addresses.first() {
            return Err(format!("{address:?} belongs to the key `addresses`, not to the device"));
        }
        match words.mtu {
            Some(_) => Err("the MTU belongs to the key `mtu`, not to the device".to_owned()),
            None => words.device(kind),
        }
    }
}

/// Words behind the kind of a port: parameters of the device, options, and addresses.
struct SplitPort<'a> {
    parameters: &'a str,
    options: Vec<&'a str>,
    mtu: Option<&'a str>,
    addresses: Vec<&'a str>,
}

impl<'a> SplitPort<'a> {
    fn split(kind: &str, text: &'a str) -> Self {
        let driver = DEVICES.iter().find(|driver| driver.name == kind);
        let (parameters, words) = match driver.map(|driver| driver.kind) {
            Some(ParameterKind::Text | ParameterKind::FileAndOptions) => split_text(text),
            _ => text.split_once(',').map_or((text, None), |(first, words)| (first, Some(words))),
        };
        let words = words.into_iter().flat_map(|words| words.split(','));
        let (mut options, addresses): (Vec<_>, Vec<_>) = words.partition(|word| word.contains('='));
        // A second MTU stays among the options, which the device refuses.
        let mtu = options.iter().position(|option| option.starts_with("mtu="));
        let mtu = mtu.and_then(|place| options.remove(place).strip_prefix("mtu="));
        Self { parameters, options, mtu, addresses }
    }

    fn device(&self, kind: &str) -> Result<PortDevice, String> {
        if let Some(driver) = DEVICES.iter().find(|driver| driver.name == kind) {
            refuse_options(kind, &self.options)?;
            return parse_device(driver, self.parameters);
        }
        match kind {
            "vlan" => {
                refuse_options(kind, &self.options)?;
                parse_vlan(self.parameters)
            }
            "bridge" => parse_bridge(self.parameters, &self.options),
            "nat64" => {
                refuse_options(kind, &self.options)?;
                Nat64Config::parse(self.parameters).map(PortDevice::Nat64)
            }
            _ => {
                let kinds = device_names(&["vlan", "bridge", "nat64"]);
                Err(format!("{kind:?} is not a kind of port: expected {kinds}; {PORT_FORM}"))
            }
        }
    }
}

/// Parses the MTU of a port.
///
/// # Errors
/// Returns a sentence for the user.
pub fn parse_mtu(text: &str) -> Result<u32, String> {
    let mtu = text.parse().ok().filter(|mtu| MTUS.contains(mtu));
    mtu.ok_or_else(|| {
        let (least, most) = (MTUS.start(), MTUS.end());
        format!("{text:?} is not an MTU of a port: expected {least} to {most} bytes")
    })
}

/// Parses the parameters of a device.
fn parse_device(driver: &'static DeviceDriver, parameters: &str) -> Result<PortDevice, String> {
    // Require a name, because rules, carrier changes and `towpath port` refer to a port's device by
    // its name.
    if driver.kind == ParameterKind::NewInterface && parameters.is_empty() {
        return Err(format!("{parameters:?} is not a name of an interface; {PORT_FORM}"));
    }
    let spec = DeviceSpec::new(driver, parameters).map_err(|why| format!("{why}; {PORT_FORM}"))?;
    Ok(PortDevice::Device(spec))
}

/// Splits the parameters of a device from the MTU and the addresses that follow. The parameters may
/// contain commas.
fn split_text(text: &str) -> (&str, Option<&str>) {
    let is_address = |word: &str| word.contains('/') && !word.contains('=');
    let is_own = |word: &str| is_address(word) || word.starts_with("mtu=");
    let mut end = text.len();
    while let Some(comma) = text[..end].rfind(',')
        && is_own(&text[comma + 1..end])
    {
        end = comma;
    }
    (&text[..end], text.get(end + 1..))
}

/// Returns an error if there are options that are valid only for a bridge.
fn refuse_options(kind: &str, options: &[&str]) -> Result<(), String> {
    match options.first() {
        Some(option) => Err(format!("{option:?} is for a bridge, not for {kind}; {PORT_FORM}")),
        None => Ok(()),
    }
}

fn parse_vlan(text: &str) -> Result<PortDevice, String> {
    let form = "expected vlan:PORT.ID, for example vlan:lan.10";
    let (port, id) = text.rsplit_once('.').ok_or_else(|| format!("{text:?}: {form}"))?;
    let number: u16 = id.parse().map_err(|_| format!("{id:?} is not a tag of a VLAN; {form}"))?;
    towpath_vlan::Vlan::tagged(number).map_err(|error| error.to_string())?;
    Ok(PortDevice::Vlan(port.to_owned(), number))
}

fn parse_bridge(text: &str, options: &[&str]) -> Result<PortDevice, String> {
    let members: Vec<_> = text.split('+').map(str::to_owned).collect();
    if members.len() < 2 {
        return Err(format!("{text:?}: expected bridge:PORT+PORT, for example bridge:a+b"));
    }
    let (mut ageing, mut addresses) = (None, None);
    for option in options {
        let (key, value) = option.split_once('=').unwrap_or((option, ""));
        let number: u32 = value.parse().ok().filter(|number| *number > 0).ok_or_else(|| {
            format!("{option:?}: expected a number from 1, as ageing=300 or addresses=1024")
        })?;
        let place = match key {
            "ageing" => &mut ageing,
            "addresses" => &mut addresses,
            _ => return Err(format!("{key:?} is no option of a bridge: ageing or addresses")),
        };
        if place.replace(number).is_some() {
            return Err(format!("{key} is given twice"));
        }
    }
    Ok(PortDevice::Bridge { members, ageing, addresses })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ports_have_a_name_a_device_and_addresses() {
        let port = parse_port("lan=packet:eth1,10.1.0.1/24,fd00:1::1/64").unwrap();
        let device = |text: &str| PortDevice::Device(DeviceSpec::parse(text).unwrap());
        assert_eq!((port.name.as_str(), port.device), ("lan", device("packet:eth1")));
        assert_eq!(port.addresses.len(), 2);
        assert_eq!(parse_port("w-1=tap:tw1,192.0.2.2/24").unwrap().device, device("tap:tw1"));
        let vlan = parse_port("o=vlan:lan.10,10.10.0.1/24").unwrap();
        assert_eq!(vlan.device, PortDevice::Vlan("lan".into(), 10));
        let bridge = parse_port("br=bridge:a+b,ageing=60,10.0.0.1/24").unwrap();
        let members = vec!["a".to_owned(), "b".to_owned()];
        let wanted = PortDevice::Bridge { members, ageing: Some(60), addresses: None };
        assert_eq!((bridge.device, bridge.addresses.len()), (wanted, 1));
        let nat64 = parse_port("n=nat64:64:ff9b::/96").unwrap();
        let addresses: Vec<_> = nat64.addresses.iter().map(ToString::to_string).collect();
        assert_eq!(addresses, ["198.18.0.1/16", "64:ff9b::c612:1/96"]);
        assert_eq!(nat64.device.to_string(), "nat64:64:ff9b::/96");
        let other = PortDevice::parse("nat64:2001:db8:1::/48=192.0.2.0/28").unwrap();
        assert_eq!(other.to_string(), "nat64:2001:db8:1::/48=192.0.2.0/28");
        let small = parse_port("lan=packet:eth1,mtu=1400,10.1.0.1/24").unwrap();
        assert_eq!((small.mtu, small.addresses.len()), (Some(1400), 1));
        let stream = parse_port("s=stream:/run/s,mtu=1400,10.1.0.1/24").unwrap();
        assert_eq!((stream.device, stream.mtu), (device("stream:/run/s"), Some(1400)));
        let memif = parse_port("m=memif:/run/m,id=2,mtu=9000,10.1.0.1/24").unwrap();
        assert_eq!((memif.device, memif.mtu), (device("memif:/run/m,id=2"), Some(9000)));
        let wrong = [
            ("lan=packet:eth1,mtu=1400,mtu=1500", "\"mtu=1500\" is for a bridge, not for packet"),
            ("lan=packet:eth1,mtu=1,10.1.0.1/24", "\"1\" is not an MTU of a port"),
            ("eth1", "expected NAME=packet:INTERFACE"),
            ("lan=eth1,10.1.0.1/24", "expected NAME=packet:INTERFACE"),
            ("=packet:eth1,10.1.0.1/24", "\"\" is not a name of a port"),
            ("l an=packet:eth1,10.1.0.1/24", "is not a name of a port"),
            ("lan=packet:,10.1.0.1/24", "\"\" is not a name of an interface"),
            ("lan=packet:e\0,10.1.0.1/24", "is not a name of an interface"),
            ("lan=dpkd:eth1,10.1.0.1/24", "expected tap, packet, xdp, "),
            ("lan=tap:,10.1.0.1/24", "\"\" is not a name of an interface"),
            ("lan=dpdk:,10.1.0.1/24", "dpdk needs EAL ARGS"),
            ("lan=memif:/run/m,rsize=99,10.1.0.1/24", "rsize=99: expected a number from 1 to 14"),
            ("lan=dpdk:--no-huge,10.1.0.1/33", "expected 1 to 32"),
            ("lan=packet:eth1,ageing=3", "is for a bridge, not for packet"),
            ("a=nat64:64:ff9b::/97", "is not a prefix for translation"),
            ("a=nat64:64:ff9b::/96=192.0.2.0/31", "is not a pool of addresses"),
            ("a=nat64:64:ff9b::/96=10.9.0.0/24", "represents no private addresses"),
            ("a=vlan:lan,10.1.0.1/24", "expected vlan:PORT.ID"),
            ("a=vlan:lan.4095,10.1.0.1/24", "4095 is no VLAN"),
            ("a=bridge:b,10.1.0.1/24", "expected bridge:PORT+PORT"),
            ("a=bridge:b+c,ageing=0,10.1.0.1/24", "expected a number from 1"),
            ("a=bridge:b+c,max=9,10.1.0.1/24", "\"max\" is no option of a bridge"),
            ("lan=packet:eth1,10.1.0.0/24", "network or broadcast"),
            ("lan=packet:eth1,", "expected ADDRESS/LENGTH"),
        ];
        for (text, wanted) in wrong {
            let error = parse_port(text).expect_err(text);
            assert!(error.contains(wanted), "{text}: {error}");
        }
    }

    #[test]
    fn each_device_can_be_a_port() {
        for driver in DEVICES {
            let text = format!("p={}:{},10.1.0.1/24,fd00::1/64", driver.name, driver.example);
            let port = parse_port(&text).expect(&text);
            let words = (driver.name, driver.example.to_owned());
            assert_eq!((port.device.words(), port.addresses.len()), (words, 2));
            let device = port.device.to_string();
            assert_eq!(PortDevice::parse(&device), Ok(port.device));
        }
    }
}
