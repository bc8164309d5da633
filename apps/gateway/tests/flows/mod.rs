//! Flows of a stack into sockets of the host, and back, over the link that `crate::OVER` names.

mod forward;
mod leaving;
mod line;
mod slots;
mod tcp;
mod udp;
