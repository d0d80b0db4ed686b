//! See `comity_fuzz::sitemaps`.
#![no_main]

libfuzzer_sys::fuzz_target!(|data: &[u8]| comity_fuzz::sitemaps(data));
