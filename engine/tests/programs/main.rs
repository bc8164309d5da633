//! Programs on an engine: honest ones ([`channel`]) and others ([`hostile`]).

mod channel;
mod hostile;
mod program;
