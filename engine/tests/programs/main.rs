//! Programs on an engine: honest ones ([`channel`], [`options`], [`order`]) and others ([`hostile`],
//! [`stuck`]).

mod channel;
mod hostile;
mod options;
mod order;
mod program;
mod stuck;
