//! See [`towpath_fuzz::siit`].
#![no_main]

libfuzzer_sys::fuzz_target!(|data: &[u8]| towpath_fuzz::siit::run(data));
