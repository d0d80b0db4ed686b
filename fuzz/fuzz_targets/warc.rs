//! See `comity_fuzz::warc`.
#![no_main]

libfuzzer_sys::fuzz_target!(|data: &[u8]| comity_fuzz::warc(data));
