//! See `comity_fuzz::robots`.
#![no_main]

libfuzzer_sys::fuzz_target!(|data: &[u8]| comity_fuzz::robots(data));
