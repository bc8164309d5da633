//! Local ports and addresses: the sockets that are bound to them, and the sockets that receive
//! packets for them.

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
