//! See `comity_fuzz::opml`.
#![no_main]

libfuzzer_sys::fuzz_target!(|data: &[u8]| comity_fuzz::opml(data));
