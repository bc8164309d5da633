//! See [`towpath_fuzz::transit`].
#![no_main]

libfuzzer_sys::fuzz_target!(|data: &[u8]| towpath_fuzz::transit::run(data));
