//! See [`towpath_fuzz::memif`].
#![no_main]

libfuzzer_sys::fuzz_target!(|data: &[u8]| towpath_fuzz::memif::run(data));
