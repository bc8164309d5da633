//! Programs on an engine: honest ones ([`channel`], [`options`], [`order`]) and others ([`greedy`], [`hostile`],
//! [`stuck`]).

mod channel;
mod greedy;
mod hostile;
mod options;
mod order;
mod program;
mod reuse;
mod stuck;
