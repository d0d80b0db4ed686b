//! See `comity_fuzz::permits`.
#![no_main]

libfuzzer_sys::fuzz_target!(|data: &[u8]| comity_fuzz::permits(data));
