//! Sizes in bytes as people write them: `64MiB`, `10MB`, `512KiB`, `4096`.

use std::fmt;

/// A number of bytes.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Size(u64);

impl Size {
    /// A size in bytes.
    pub const fn from_bytes(bytes: u64) -> Self {
        Self(bytes)
    }

    /// A size in kibibytes.
    pub const fn from_kib(kib: u64) -> Self {
        Self(kib.saturating_mul(1 << 10))
    }

    /// A size in mebibytes.
    pub const fn from_mib(mib: u64) -> Self {
        Self(mib.saturating_mul(1 << 20))
    }

    /// Parses a whole number, optionally with a unit; case does not matter.
    pub fn parse(text: &str) -> Option<Self> {
        let text = text.trim();
        let digits = text.find(|c: char| !c.is_ascii_digit()).unwrap_or(text.len());
        let (number, unit) = text.split_at(digits);
        let unit = unit.trim_start();
        let size = match unit {
            "" => Some(1),
            _ => UNITS.iter().find(|(name, _)| name.eq_ignore_ascii_case(unit)).map(|(_, size)| *size),
        };
        number.parse::<u64>().ok()?.checked_mul(size?).map(Self)
    }

    /// The number of bytes.
    pub const fn bytes(self) -> u64 {
        self.0
    }
}

/// The exact value in the largest binary unit that divides it.
impl fmt::Display for Size {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let binary = UNITS.iter().filter(|(name, _)| name.ends_with("iB"));
        match binary.rev().find(|(_, size)| self.0 >= *size && self.0.is_multiple_of(*size)) {
            Some((name, size)) => write!(f, "{}{name}", self.0 / size),
            None => write!(f, "{}B", self.0),
        }
    }
}

/// Ascending.
const UNITS: [(&str, u64); 9] = [
    ("B", 1),
    ("KB", 1_000),
    ("KiB", 1 << 10),
    ("MB", 1_000_000),
    ("MiB", 1 << 20),
    ("GB", 1_000_000_000),
    ("GiB", 1 << 30),
    ("TB", 1_000_000_000_000),
    ("TiB", 1 << 40),
];

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sizes_with_and_without_units_are_parsed() {
        for (text, bytes, shown) in [
            ("0", 0, "0B"),
            ("4096", 4_096, "4KiB"),
            ("64MiB", 67_108_864, "64MiB"),
            ("64 mib", 67_108_864, "64MiB"),
            ("10MB", 10_000_000, "10000000B"),
            ("512KiB", 524_288, "512KiB"),
            ("1TiB", 1 << 40, "1TiB"),
            ("7B", 7, "7B"),
        ] {
            let size = Size::parse(text).unwrap_or_else(|| panic!("{text}"));
            assert_eq!((size.bytes(), size.to_string().as_str()), (bytes, shown), "{text}");
            assert_eq!(Size::parse(&size.to_string()), Some(size));
        }
    }

    #[test]
    fn invalid_sizes_are_rejected() {
        for text in
            ["", "MiB", "-1", "+1", "1.5MiB", "1 000", "1e3", "64M", "99999999999999999999", "18446745TB"]
        {
            assert_eq!(Size::parse(text), None, "{text}");
        }
    }
}
