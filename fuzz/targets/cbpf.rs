//! See [`towpath_fuzz::cbpf`].
#![no_main]

libfuzzer_sys::fuzz_target!(|data: &[u8]| towpath_fuzz::cbpf::run(data));
