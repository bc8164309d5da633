//! All of these tests in one binary, because each file would be linked with the
//! whole crate otherwise.

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
