//! See `comity_fuzz::dates`.
#![no_main]

libfuzzer_sys::fuzz_target!(|data: &[u8]| comity_fuzz::dates(data));
