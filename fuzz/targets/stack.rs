//! See [`towpath_fuzz::stack`].
#![no_main]

libfuzzer_sys::fuzz_target!(|data: &[u8]| towpath_fuzz::stack::run(data));
