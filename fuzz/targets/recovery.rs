//! See [`towpath_fuzz::recovery`].
#![no_main]

libfuzzer_sys::fuzz_target!(|data: &[u8]| towpath_fuzz::recovery::run(data));
