//! See [`towpath_fuzz::device`].
#![no_main]

libfuzzer_sys::fuzz_target!(|data: &[u8]| towpath_fuzz::device::run(data));
