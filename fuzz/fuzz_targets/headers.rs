//! See `comity_fuzz::headers`.
#![no_main]

libfuzzer_sys::fuzz_target!(|data: &[u8]| comity_fuzz::headers(data));
