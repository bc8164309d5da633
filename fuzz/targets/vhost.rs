//! See [`towpath_fuzz::vhost`].
#![no_main]

libfuzzer_sys::fuzz_target!(|data: &[u8]| towpath_fuzz::vhost::run(data));
