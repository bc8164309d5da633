//! Options of a router's services.

#![allow(rustdoc::broken_intra_doc_links, reason = "brackets in texts of --help are no links")]

use clap::Args;
use towpath_config::{AdvertSettings, DhcpClientSettings, DhcpServerSettings, DnsSettings};

/// Options of services.
#[derive(Debug, Clone, Default, Args)]
pub struct ServiceArgs {
    /// Obtain the address of a port by DHCP: PORT[,lease=FILE][,hostname=NAME]
    ///
    /// The port needs no CIDR, because address, routes and nameservers are those of the server.
    /// lease=FILE stores the lease for the next start. Otherwise, the lease is released at the end.
    /// May be given once for each port.
    #[arg(long, value_name = "PORT", value_parser = DhcpClientSettings::parse)]
    pub dhcp: Vec<DhcpClientSettings>,

    /// Serve addresses to the hosts of a port: PORT,pool=FIRST-LAST[,OPTION...]
    ///
    /// OPTION is lease=SECONDS (a day), dns=ADDRESS[+ADDRESS], domain=NAME, reserve=MAC@ADDRESS or
    /// leases=FILE. Unless dns is given, clients learn the nameservers of the router's own lease
    /// (--dhcp). leases keeps the leases for the next start. May be given once for each port.
    #[arg(long, value_name = "PORT", value_parser = DhcpServerSettings::parse)]
    pub dhcp_server: Vec<DhcpServerSettings>,

    /// Send router advertisements to the hosts of a port: PORT[,OPTION...]
    ///
    /// Hosts obtain IPv6 addresses in the networks of the port, and the router as their gateway.
    /// OPTION is interval=SECONDS (600), lifetime=SECONDS of the gateway (1800), valid=SECONDS and
    /// preferred=SECONDS of prefixes (5400 and 2700), mtu=BYTES, dns=ADDRESS[+ADDRESS],
    /// search=DOMAIN[+DOMAIN], managed or other. With --dns, hosts learn the router as nameserver.
    /// May be given once for each port.
    #[arg(long, value_name = "PORT", value_parser = AdvertSettings::parse)]
    pub ra: Vec<AdvertSettings>,

    /// Forward DNS for the hosts of ports: PORT[+PORT...][,OPTION...]
    ///
    /// OPTION is upstream=ADDRESS[+ADDRESS], domain=NAME of local names (home.arpa),
    /// host=NAME@ADDRESS, port=NUMBER (53), or pending=NUMBER of queries of a client. dns64 creates
    /// IPv6 addresses of --nat64 for names with IPv4 addresses alone. Limits of the cache are
    /// entries=NUMBER, memory=BYTES, ttl-min=SECONDS and ttl-max=SECONDS. Unless upstream is given,
    /// the nameservers of the router's own lease are asked, or those of this host. DHCP
    /// servers of these ports announce the router as nameserver (docs/dns.md).
    #[arg(long, value_name = "PORT", value_parser = DnsSettings::parse)]
    pub dns: Option<DnsSettings>,
}
