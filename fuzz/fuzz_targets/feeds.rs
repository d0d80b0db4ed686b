//! See `comity_fuzz::feeds`.
#![no_main]

libfuzzer_sys::fuzz_target!(|data: &[u8]| comity_fuzz::feeds(data));
