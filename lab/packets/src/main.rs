//! Cost of a packet in Towpath's core: the side of `cargo lab packets` that is ours.
//!
//! Reading order: `device` is a device in memory, `write` sends datagrams into it, `echo` sends
//! back those that come from it. `headers` emits and parses headers.
//!
//! [`towpath_lab_measure`] says how they are measured and what is printed.
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
