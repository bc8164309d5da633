//! Flows between a program's stack and host sockets, over the link type `crate::OVER`.

mod forward;
mod leaving;
mod line;
mod slots;
mod tcp;
mod udp;
