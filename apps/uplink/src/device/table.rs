//! Table of device drivers. To add a kind of device, create a module with its driver, and add its
//! name here.

use super::driver::{DeviceDriver, Unpack};

/// Creates the tables of drivers from modules that define `DRIVER` and `UNPACK`. There are two
/// tables, because the preloaded library uses only `UNPACK` and must not contain code that opens
/// devices.
macro_rules! devices {
    ($($module:ident),*) => {
        /// Drivers of all devices, in the order of `--help`.
        pub static DEVICES: &[DeviceDriver] = &[$(super::$module::DRIVER),*];

        static UNPACKERS: &[(&str, Option<Unpack>)] =
            &[$((super::$module::DRIVER.name, super::$module::UNPACK)),*];
    };
}

devices!(tap, packet, xdp, dpdk, stream, vhost, memif, replay);

/// Returns the function that creates the port of a device in PROGRAM's process. `name` is the name
/// of the device's driver.
pub(crate) fn unpacker(name: &str) -> Option<Unpack> {
    UNPACKERS.iter().find(|(known, _)| *known == name).and_then(|(_, unpack)| *unpack)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::device::{DeviceSpec, ParameterKind};

    #[test]
    fn each_device_parses_from_its_example_and_is_documented() {
        let page = concat!(env!("CARGO_MANIFEST_DIR"), "/../../docs/devices.md");
        let page = std::fs::read_to_string(page).expect("the page about devices");
        for driver in DEVICES {
            let text = format!("{}:{}", driver.name, driver.example);
            let spec = DeviceSpec::parse(&text).expect(&text);
            assert_eq!(spec.to_string(), text);
            assert_eq!(spec, DeviceSpec::new(driver, driver.example).expect(&text));
            assert!(page.contains(&format!("`{text}`")), "docs/devices.md lacks `{text}`");
            assert!(page.contains(&format!("`--{}", driver.name)), "{text}");
            assert!(!driver.help.is_empty() && !driver.long_help.is_empty(), "{text}");
        }
    }

    #[test]
    fn names_are_words_that_differ() {
        for (at, driver) in DEVICES.iter().enumerate() {
            assert!(driver.name.bytes().all(|byte| byte.is_ascii_lowercase()), "{}", driver.name);
            assert!(DEVICES[..at].iter().all(|other| other.name != driver.name));
        }
    }

    #[test]
    fn devices_move_to_another_process_if_they_can_be_packed() {
        for driver in DEVICES {
            assert_eq!(driver.pack.is_ok(), unpacker(driver.name).is_some(), "{}", driver.name);
        }
    }

    #[test]
    fn parameters_are_checked_by_their_kind() {
        let wrong = [
            ("eth1", "expected DEVICE:PARAMETERS, for example packet:eth1"),
            ("pakket:eth1", "\"pakket\" is not a device: expected tap, packet, xdp, "),
            ("packet:", "\"\" is not a name of an interface"),
            ("xdp:a/b", "\"a/b\" is not a name of an interface"),
            ("tap:a b", "\"a b\" is no interface name"),
            ("dpdk:", "dpdk needs EAL ARGS"),
            ("replay:", "replay needs FILE"),
            ("memif:", "memif needs SOCKET"),
            ("memif:/run/memif.sock,id=x", "id=x: expected a number from 0 to 4294967295"),
        ];
        for (text, wanted) in wrong {
            let error = DeviceSpec::parse(text).expect_err(text);
            assert!(error.contains(wanted), "{text}: {error}");
        }
        let tap = DeviceSpec::parse("tap:").expect("towpath chooses the name");
        assert_eq!((tap.parameters(), tap.interface(), tap.link()), ("", None, None));
        let packet = DeviceSpec::parse("packet:eth1").expect("an interface");
        assert_eq!((packet.interface(), packet.link()), (Some("eth1"), Some("eth1")));
        assert!(DEVICES.iter().any(|driver| driver.kind == ParameterKind::Text));
    }
}
