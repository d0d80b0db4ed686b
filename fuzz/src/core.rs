//! What a server says about waiting, and what a database keeps of a site.

use comity_core::headers::{RetryAfter, Told};
use comity_core::pace::Pace;
use comity_core::time::{Span, Timestamp};

/// Header lines: what they ask for is never zero, and the same whatever the case of their names and the lines beside.
pub fn headers(data: &[u8]) {
    let now = Timestamp::from_secs(1_794_744_000);
    let lines: Vec<(&str, &[u8])> = data
        .split(|octet| *octet == b'\n')
        .filter_map(|line| {
            let colon = line.iter().position(|octet| *octet == b':')?;
            Some((std::str::from_utf8(&line[..colon]).ok()?, &line[colon + 1..]))
        })
        .collect();
    let told = Told::read(lines.iter().copied(), now);
    assert_ne!(told.retry_after, RetryAfter::After(Span::ZERO));
    assert_ne!(told.spent, Some(Span::ZERO));
    if let Some(quota) = told.quota {
        assert!(!quota.reset.is_zero() && quota.spacing() <= quota.reset);
        assert!(quota.spacing().times(quota.remaining.get()) >= quota.reset, "a quota spent too early");
    }
    let upper: Vec<(String, &[u8])> =
        lines.iter().map(|(name, value)| (name.to_ascii_uppercase(), *value)).collect();
    assert_eq!(Told::read(upper.iter().map(|(name, value)| (name.as_str(), *value)), now), told);
    if lines.len() < 50 {
        let more = [("server", &b"x"[..]), ("x-powered-by", b"1")];
        assert_eq!(Told::read(more.into_iter().chain(lines.iter().copied()), now), told);
    }
    let aged = told.aged(Span::from_secs(1));
    assert_eq!(aged.names_a_time(), told.names_a_time());
    for (_, value) in &lines {
        let Ok(text) = std::str::from_utf8(value) else { continue };
        let Some(span) = Span::from_decimal_secs(text.trim()) else { continue };
        let plain = format!("{}.{:06}", span.as_micros() / 1_000_000, span.as_micros() % 1_000_000);
        assert_eq!(Span::from_decimal_secs(&plain), Some(span), "{text:?}");
        let expected = if span.is_zero() { RetryAfter::Unusable } else { RetryAfter::After(span) };
        assert_eq!(RetryAfter::parse(text, now), expected, "{text:?}");
    }
}

/// What is read from a database is written as something that reads the same, and from then on as the same bytes.
pub fn paces(data: &[u8]) {
    let _ = Pace::decode(data);
    // The sum at the end would keep all but one input in four thousand million out.
    let sum =
        data.iter().fold(0x811c_9dc5_u32, |sum, byte| (sum ^ u32::from(*byte)).wrapping_mul(0x0100_0193));
    let Ok(pace) = Pace::decode(&[data, &sum.to_le_bytes()].concat()) else { return };
    let written = pace.encode();
    let again = Pace::decode(&written).unwrap_or_else(|error| panic!("{error}: {pace:?}"));
    assert_eq!(again, pace);
    assert_eq!(again.encode(), written);
}
