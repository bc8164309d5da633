//! Programs on an engine: honest ones ([`channel`], [`device`], [`hosting`], [`leaving`],
//! [`options`], [`order`]) and others ([`greedy`], [`hostile`], [`reuse`], [`stuck`]). In [`apart`]
//! both are on an engine with threads of its own.

mod apart;
mod channel;
mod device;
mod greedy;
mod hostile;
mod hosting;
mod leaving;
mod options;
mod order;
mod program;
mod reuse;
mod stuck;
