//! See [`towpath_fuzz::engine`].
#![no_main]

libfuzzer_sys::fuzz_target!(|data: &[u8]| towpath_fuzz::engine::run(data));
