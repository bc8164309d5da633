//! Measures the cost of a packet in Towpath's core, for `cargo lab packets`.
//!
//! Reading order: `device` is an in-memory device. `write` sends datagrams to the device, `echo`
//! returns datagrams from it, and `headers` emits and parses headers.
//!
//! [`towpath_lab_measure`] describes the measurement and the output.
#![forbid(unsafe_code)]

mod device;
mod echo;
mod headers;
mod owner;
mod write;

use std::error::Error;

use towpath_lab_measure::{Counting, Run};

#[global_allocator]
static ALLOCATOR: Counting = Counting;

fn main() -> Result<(), Box<dyn Error>> {
    let mut run = Run::from_arguments()?;
    write::measure(&mut run)?;
    echo::measure(&mut run)?;
    headers::measure(&mut run)
}
