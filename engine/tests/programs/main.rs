//! Programs on an engine: honest ones ([`channel`], [`options`]) and others ([`hostile`]).

mod channel;
mod hostile;
mod options;
mod program;
