//! See `comity_fuzz::paces`.
#![no_main]

libfuzzer_sys::fuzz_target!(|data: &[u8]| comity_fuzz::paces(data));
