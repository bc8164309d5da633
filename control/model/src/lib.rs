//! The control protocol of a running `towpath run`, `router` or `proxy`: its types, and a client.
//!
//! Each run has a socket in a private folder of its user. A client sends one request, a line of
//! JSON; the run answers with one JSON document and closes. docs/control.md is the description for
//! other languages. The kernel tells both ends who the other is. A run answers its own user and
//! root; a client believes the user whose folder the socket is in. A run is known by that user and
//! its files there. Names and process ids mean runs of this user, unless [`Runs::of_user`] is given
//! another one.
//!
//! ```no_run
//! use towpath_model::{Change, Client, How, Route};
//!
//! fn main() -> Result<(), Box<dyn std::error::Error>> {
//!     // The only run or router of this user. Others: `Client::named("web")`,
//!     // `Client::of_process(1234)`.
//!     let client = Client::only()?;
//!     for interface in client.net()?.interfaces {
//!         println!("{} has {} addresses", interface.name, interface.addresses.len());
//!     }
//!     // Both changes or none, at one moment for each packet.
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
//! Reading order: `request`, `net`, `ports` and `acl` (the types), `client`. Then `server` and
//! `connections` (the run's end), `ask` (several runs at once), `bounded` (memory of what is read)
//! and `folder` (where their sockets lie).

#![forbid(unsafe_code)]
#![warn(missing_docs)]

mod acl;
mod ask;
mod bounded;
mod client;
mod connections;
pub mod folder;
mod net;
mod ports;
mod request;
mod server;
mod sockets;
mod text;
mod user;
pub mod wait;

pub use acl::{Acl, AclChange, AclDefault, AclRule};
pub use ask::{NoAnswer, Run, Told, ask_other_users, ask_user, runs_of};
pub use client::{Client, Error, Missing, Runs, Several};
pub use net::{
    Address, AddressState, Change, How, Interface, Kind, Neighbor, NeighborState, Net, Origin,
    Route, RouteKind, Traffic,
};
pub use ports::Port;
pub use request::{Call, Layer, Reply, RequestFault, RunKind, VERSION};
pub use server::{Instance, Listening, NoInstance, is_name};
pub use sockets::{Answer, FlowFigures, Proto, ShownSocket, Word};
pub use text::printable;
pub use towpath_wire::{MacAddr, Prefix};
pub use user::{user_id, user_name};
