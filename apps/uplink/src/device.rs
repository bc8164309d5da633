//! Network devices: one table of drivers for `towpath run`, routers and the library.
//!
//! ```text
//!   "xdp:eth1" ── DeviceSpec::parse ── open(&DeviceRequest) ──► OpenDevice: ports, address, MTU
//! ```
//!
//! Each kind of device has a file with a [`DeviceDriver`]: its name, help texts, properties and
//! functions to open it. `table` lists the drivers.

mod dpdk;
pub(crate) mod driver;
mod interface;
mod memif;
mod packet;
mod replay;
pub(crate) mod spec;
mod stream;
mod table;
mod tap;
mod vhost;
mod xdp;

pub use driver::{
    DeviceDriver, DeviceRequest, DeviceSite, DeviceTraits, DeviceUse, OpenDevice, ParameterKind,
};
pub use spec::DeviceSpec;
pub use table::DEVICES;

pub(crate) use table::unpacker;
