//! See [`towpath_fuzz::connection`].
#![no_main]

libfuzzer_sys::fuzz_target!(|data: &[u8]| towpath_fuzz::connection::run(data));
