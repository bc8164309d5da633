//! See [`towpath_fuzz::nameserver`].
#![no_main]

libfuzzer_sys::fuzz_target!(|data: &[u8]| towpath_fuzz::nameserver::run(data));
