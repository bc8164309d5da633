//! Test modules of one binary. A binary for each file would link the whole crate once per file.

mod cli;
mod crashes;
mod device;
mod ends;
mod fresh;
mod load;
mod outsiders;
mod private;
mod sim;
mod streams;
