//! DHCP client of a port: the words of `--dhcp`, and the keys of `[[dhcp]]`.

use towpath_uplink::{DhcpSettings, parse_hostname};

use crate::port::check_port_name;

/// DHCP client of a port.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct DhcpClientSettings {
    /// Name of the port.
    pub port: String,
    /// Settings of the client.
    pub settings: DhcpSettings,
}

impl DhcpClientSettings {
    /// Parses `PORT[,lease=FILE][,hostname=NAME]`.
    ///
    /// # Errors
    /// Returns a sentence for the user.
    pub fn parse(text: &str) -> Result<Self, String> {
        let (port, settings) = match text.split_once(',') {
            Some((port, options)) => (port, parse_dhcp_options(options)?),
            None => (text, DhcpSettings::default()),
        };
        check_port_name(port)?;
        Ok(Self { port: port.to_owned(), settings })
    }
}

/// Parses `lease=FILE,hostname=NAME`.
///
/// # Errors
/// Returns a sentence for the user.
pub fn parse_dhcp_options(options: &str) -> Result<DhcpSettings, String> {
    let mut settings = DhcpSettings::default();
    for option in options.split(',') {
        let (key, value) = option.split_once('=').unwrap_or((option, ""));
        if !set_dhcp_option(&mut settings, key, value)? {
            return Err(format!("{key} is given twice"));
        }
    }
    Ok(settings)
}

/// Sets an option of a client. Returns false if the option was set before.
///
/// # Errors
/// Returns a sentence for the user.
pub fn set_dhcp_option(
    settings: &mut DhcpSettings,
    key: &str,
    value: &str,
) -> Result<bool, String> {
    if !matches!(key, "lease" | "hostname") {
        return Err(format!("{key:?} is no option of --dhcp: lease=FILE or hostname=NAME"));
    }
    if value.is_empty() {
        return Err(format!("{key} needs a value: lease=FILE or hostname=NAME"));
    }
    Ok(match key {
        "lease" => settings.lease_file.replace(value.into()).is_none(),
        _ => settings.host_name.replace(parse_hostname(value)?).is_none(),
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn parses_the_words_of_a_client() {
        let parsed =
            DhcpClientSettings::parse("wan,lease=/var/lib/wan.lease,hostname=gate").expect("valid");
        let settings = DhcpSettings {
            lease_file: Some("/var/lib/wan.lease".into()),
            host_name: Some("gate".to_owned()),
        };
        assert_eq!(parsed, DhcpClientSettings { port: "wan".to_owned(), settings });
        let plain = DhcpClientSettings::parse("wan").expect("valid");
        assert_eq!(plain.settings, DhcpSettings::default());
        let wrong = [
            ("", "is not a name of a port"),
            ("w an", "is not a name of a port"),
            ("wan,", "\"\" is no option of --dhcp"),
            ("wan,lease", "lease needs a value"),
            ("wan,hostname=-x", ""),
            ("wan,lease=a,lease=b", "lease is given twice"),
            ("wan,mtu=1", "\"mtu\" is no option of --dhcp"),
        ];
        for (text, wanted) in wrong {
            let error = DhcpClientSettings::parse(text).expect_err(text);
            assert!(error.contains(wanted), "{text}: {error}");
        }
    }
}
