//! Local ports and addresses: which socket holds which, and which socket takes a packet.

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
