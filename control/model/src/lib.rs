//! Control protocol of a running `towpath run`, `router` or `proxy`: its types, and a client.
//!
//! Each run has a socket in a private directory of its user. A client sends one request as a line
//! of JSON; the run answers with one JSON document and closes. docs/control.md describes the
//! protocol for other languages. The kernel authenticates both ends. A run answers its own user and
//! root. A client trusts the owner of the directory. A run is identified by that user and its
//! files. Names and process ids refer to runs of this user, unless [`Runs::of_user`] selects
//! another one.
//!
//! ```no_run
//! use towpath_model::{Change, Client, How, Route};
//!
//! fn main() -> Result<(), Box<dyn std::error::Error>> {
//!     // The only run or router of this user. Alternatives: `Client::named("web")`,
//!     // `Client::of_process(1234)`.
//!     let client = Client::only()?;
//!     for interface in client.net()?.interfaces {
//!         println!("{} has {} addresses", interface.name, interface.addresses.len());
//!     }
//!     // Both changes are applied atomically, or none is.
//!     client.apply(&[
//!         Change::AddAddress { dev: "eth0".try_into()?, address: "10.9.0.1/24".parse()? },
//!         Change::SetRoute {
//!             route: Route {
//!                 to: "10.8.0.0/16".parse()?,
//!                 via: Some("10.9.0.2".parse()?),
//!                 ..Route::default()
//!             },
//!             how: How::Add,
//!         },
//!     ])?;
//!     Ok(())
//! }
//! ```
//!
//! A client can also subscribe to reports about changes and samples ([`Client::subscribe`]).
//!
//! Reading order: `request`, `net`, `lookup`, `ports`, `acl`, `flows`, `settings` and
//! `subscription` (types), `client` and `reports`. Then `server`, `connections` and `subscriber`
//! (the run's end), `changes` (differences to report), `ask` (concurrent queries), `bounded`
//! (limits on memory) and `folder` (directories of the sockets).

#![forbid(unsafe_code)]
#![warn(missing_docs)]

mod acl;
mod ask;
mod bounded;
mod changes;
mod client;
mod connections;
mod flows;
pub mod folder;
mod lookup;
mod net;
mod ports;
mod reports;
mod request;
mod server;
mod settings;
mod sockets;
mod subscriber;
mod subscription;
mod text;
mod user;
pub mod wait;

pub use acl::{Acl, AclChange, AclDefault, AclRule, AclSet};
pub use ask::{NoAnswer, Run, Told, ask_other_users, ask_user, runs_of};
pub use changes::NetView;
pub use client::{Client, Error, Missing, Runs, Several};
pub use flows::{FlowFilter, Nat, NatChange, NatRuleText, ShownFlow};
pub use lookup::{DestinationKind, FoundRoute, RouteLookup};
pub use net::{
    Address, AddressState, Change, How, Interface, Kind, Neighbor, NeighborState, Net, Origin,
    Route, RouteKind, Traffic, protocol_name,
};
pub use ports::Port;
pub use reports::Reports;
pub use request::{Call, Layer, Reply, RequestFault, RunKind, RunningConfig, VERSION};
pub use server::{CallResponder, Instance, Listening, NoInstance, is_name};
pub use settings::{TcpSetting, TcpSettingChange};
pub use sockets::{Answer, FlowFigures, Proto, ShownSocket, Word};
pub use subscriber::ReportSource;
pub use subscription::{
    ConnectionName, InterfaceAddress, ReportTopic, RunReport, SampledSocket, ShardSample,
    SocketsSample, Subscription,
};
pub use text::printable;
pub use towpath_wire::{MacAddr, Prefix};
pub use user::{user_id, user_name};
