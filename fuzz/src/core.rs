//! Headers by which a server asks to wait, and the saved state of a site.

use comity_core::headers::{PacingHints, RetryAfter};
use comity_core::pace::Pace;
use comity_core::time::{Span, Timestamp};

/// Whatever header lines ask for, it is never zero, and does not depend on the case of names or on other lines.
pub fn headers(data: &[u8]) {
    let now = Timestamp::from_secs(1_794_744_000);
    let lines: Vec<(&str, &[u8])> = data
        .split(|octet| *octet == b'\n')
        .filter_map(|line| {
            let colon = line.iter().position(|octet| *octet == b':')?;
            Some((std::str::from_utf8(&line[..colon]).ok()?, &line[colon + 1..]))
        })
        .collect();
    let hints = PacingHints::read(lines.iter().copied(), now);
    assert_ne!(hints.retry_after, RetryAfter::After(Span::ZERO));
    assert_ne!(hints.exhausted_for, Some(Span::ZERO));
    if let Some(quota) = hints.quota {
        assert!(!quota.reset.is_zero() && quota.spacing() <= quota.reset);
        assert!(quota.spacing().times(quota.remaining.get()) >= quota.reset, "a quota spent too early");
    }
    let upper: Vec<(String, &[u8])> =
        lines.iter().map(|(name, value)| (name.to_ascii_uppercase(), *value)).collect();
    assert_eq!(PacingHints::read(upper.iter().map(|(name, value)| (name.as_str(), *value)), now), hints);
    if lines.len() < 50 {
        let more = [("server", &b"x"[..]), ("x-powered-by", b"1")];
        assert_eq!(PacingHints::read(more.into_iter().chain(lines.iter().copied()), now), hints);
    }
    let aged = hints.aged(Span::from_secs(1));
    assert_eq!(aged.has_deadline(), hints.has_deadline());
    for (_, value) in &lines {
        let Ok(text) = std::str::from_utf8(value) else { continue };
        let Some(span) = Span::from_decimal_secs(text.trim()) else { continue };
        let plain = format!("{}.{:06}", span.as_micros() / 1_000_000, span.as_micros() % 1_000_000);
        assert_eq!(Span::from_decimal_secs(&plain), Some(span), "{text:?}");
        let expected = if span.is_zero() { RetryAfter::Unusable } else { RetryAfter::After(span) };
        assert_eq!(RetryAfter::parse(text, now), expected, "{text:?}");
    }
}

/// State read from a database is written as something that reads the same, and from then on as the same bytes.
pub fn paces(data: &[u8]) {
    let _ = Pace::decode(data);
    // Without a valid checksum, all but one in four billion inputs would be rejected.
    let sum =
        data.iter().fold(0x811c_9dc5_u32, |sum, byte| (sum ^ u32::from(*byte)).wrapping_mul(0x0100_0193));
    let Ok(pace) = Pace::decode(&[data, &sum.to_le_bytes()].concat()) else { return };
    let written = pace.encode();
    let again = Pace::decode(&written).unwrap_or_else(|error| panic!("{error}: {pace:?}"));
    assert_eq!(again, pace);
    assert_eq!(again.encode(), written);
}
