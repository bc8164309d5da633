//! Options of a router's services.

#![allow(rustdoc::broken_intra_doc_links, reason = "brackets in texts of --help are no links")]

use clap::Args;
use towpath_uplink::DhcpSettings;

use super::port_arg::check_port_name;
use super::server_args::DhcpServerArg;
use crate::dhcp::parse_settings;

/// Options of services.
#[derive(Debug, Clone, Default, Args)]
pub struct ServiceArgs {
    /// Obtain the address of a port by DHCP: PORT[,lease=FILE][,hostname=NAME]
    ///
    /// The port needs no CIDR. Address, routes and nameservers are those of the server. lease=FILE
    /// keeps the lease for the next start; otherwise it is released at the end. May be given once
    /// for each port.
    #[arg(long, value_name = "PORT", value_parser = parse_dhcp)]
    pub dhcp: Vec<DhcpArg>,

    /// Serve addresses to the hosts of a port: PORT,pool=FIRST-LAST[,OPTION...]
    ///
    /// OPTION is lease=SECONDS (a day), dns=ADDRESS[+ADDRESS], domain=NAME, reserve=MAC@ADDRESS or
    /// leases=FILE. Unless dns is given, clients learn the nameservers of the router's own lease
    /// (--dhcp). leases keeps the leases for the next start. May be given once for each port.
    #[arg(long, value_name = "PORT", value_parser = DhcpServerArg::parse)]
    pub dhcp_server: Vec<DhcpServerArg>,
}

/// `--dhcp`.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct DhcpArg {
    /// Name of the port.
    pub port: String,
    pub settings: DhcpSettings,
}

pub fn parse_dhcp(text: &str) -> Result<DhcpArg, String> {
    let (port, settings) = match text.split_once(',') {
        Some((port, options)) => (port, parse_settings(options)?),
        None => (text, DhcpSettings::default()),
    };
    check_port_name(port)?;
    Ok(DhcpArg { port: port.to_owned(), settings })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn words_of_a_client() {
        let parsed = parse_dhcp("wan,lease=/var/lib/wan.lease,hostname=gate").expect("valid");
        let settings = DhcpSettings {
            lease_file: Some("/var/lib/wan.lease".into()),
            host_name: Some("gate".to_owned()),
        };
        assert_eq!(parsed, DhcpArg { port: "wan".to_owned(), settings });
        assert_eq!(parse_dhcp("wan").expect("valid").settings, DhcpSettings::default());
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
            let error = parse_dhcp(text).expect_err(text);
            assert!(error.contains(wanted), "{text}: {error}");
        }
    }
}
