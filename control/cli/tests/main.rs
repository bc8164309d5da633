//! All test modules in a single binary, because one binary per file would link the crate
//! repeatedly.

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
