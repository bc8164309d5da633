//! Programs on an engine: honest ones ([`channel`], [`leaving`], [`options`], [`order`]) and others
//! ([`greedy`], [`hostile`], [`reuse`], [`stuck`]).

mod channel;
mod greedy;
mod hostile;
mod leaving;
mod options;
mod order;
mod program;
mod reuse;
mod stuck;
