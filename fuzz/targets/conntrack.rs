//! See [`towpath_fuzz::conntrack`].
#![no_main]

libfuzzer_sys::fuzz_target!(|data: &[u8]| towpath_fuzz::conntrack::run(data));
