//! Local ports and addresses: the sockets that hold them, and the sockets that receive their
//! packets.

pub(crate) mod bind_addr;
pub(crate) mod binds;
pub(crate) mod ephemeral;
pub(crate) mod holds;
pub(crate) mod local;
pub(crate) mod port;
pub(crate) mod port_set;
pub(crate) mod receiver_watch;
pub(crate) mod receivers;
pub(crate) mod users;
