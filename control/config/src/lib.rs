//! Configuration of a router, which is read from a TOML file, from command-line options, or from a
//! running router.
//!
//! ```text
//!   FILE.toml ── ConfigFile::parse ─┐
//!   options of the command line ────┼─► RouterConfig ─► check ─► Plan of a router
//!   running router ─────────────────┘        │
//!                                            ├─► to_toml ─► FILE.toml
//!                                            └─► settings ─► ConfigDelta of two configurations
//! ```
//!
//! - [`RouterConfig`]: the configuration; [`ConfigConflict`]: parts that contradict each other;
//! - [`ConfigFile`]: content of a file, with the places of its parts; [`ConfigError`]: its first
//!   error;
//! - [`PortSettings`], [`DhcpClientSettings`], [`DhcpServerSettings`]: ports and their services;
//! - [`KEYS`], [`FileOption`]: the keys of a file;
//! - [`Setting`], [`ConfigDelta`]: comparison of configurations.
//!
//! The crate opens no device and reads no file.

#![forbid(unsafe_code)]
#![warn(missing_docs)]

mod advert;
mod config;
mod dhcp_client;
mod dhcp_server;
mod dns;
mod document;
mod error;
mod file;
mod keys;
pub mod layers;
mod port;
mod render;
mod route;
mod settings;

pub use advert::AdvertSettings;
pub use config::{ConfigConflict, ConfigPart, NAT64_PORT, PORTS_MAX, RouterConfig, nat_id};
pub use dhcp_client::{DhcpClientSettings, parse_dhcp_options};
pub use dhcp_server::DhcpServerSettings;
pub use dns::{Dns64Prefix, DnsSettings, StaticHost};
pub use error::{ConfigError, unknown};
pub use file::ConfigFile;
pub use keys::{ConfigKey, FileOption, FileOptionKind, KEYS, OptionCheck};
pub use port::{PortDevice, PortSettings, check_port_name, parse_port};
pub use route::{RouteText, parse_route};
pub use settings::{ConfigDelta, RouteSetting, Setting};
