//! All of these tests in one binary, because each file would be linked with the
//! whole crate otherwise.

mod every;
mod floods;
mod hostile;
