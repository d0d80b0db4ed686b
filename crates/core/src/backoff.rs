//! How long to wait after the nth consecutive failure: exponential or linear backoff, or none.
//!
//! A ladder only computes waits. Counting failures, and resetting the count, happens in [`crate::pace`].

use crate::time::Span;

/// How the wait grows with each consecutive penalty.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Ladder {
    /// `base`, twice `base`, four times `base` …, at most `max`.
    Exponential {
        /// The first wait.
        base: Span,
        /// The longest wait.
        max: Span,
    },
    /// `base`, twice `base`, three times `base` …, at most `max`.
    Linear {
        /// The first wait, and how much each further penalty adds.
        base: Span,
        /// The longest wait.
        max: Span,
    },
    /// No wait after failures.
    None,
}

impl Ladder {
    /// The wait after the `penalties`th consecutive penalty, counted from 1; `None` if this ladder never waits.
    pub fn wait(self, penalties: u32) -> Option<Span> {
        let rungs = penalties.saturating_sub(1);
        match self {
            Self::Exponential { base, max } => Some(doubled(base, rungs).min(max)),
            Self::Linear { base, max } => Some(base.times(u64::from(rungs) + 1).min(max)),
            Self::None => None,
        }
    }

    /// The wait of the limiter's `backoff(attempt)`: the same ladder, with attempts counted from 0.
    pub fn backoff(self, attempt: u32) -> Option<Span> {
        self.wait(attempt.saturating_add(1))
    }
}

/// `base · 2^times`, saturating.
fn doubled(base: Span, times: u32) -> Span {
    base.times(1_u64.checked_shl(times).unwrap_or(u64::MAX))
}

#[cfg(test)]
mod tests {
    use super::*;

    const SECOND: Span = Span::from_secs(1);

    fn waits(ladder: Ladder) -> Vec<u64> {
        (1..=9).map(|n| ladder.wait(n).map_or(0, |span| span.as_micros() / SECOND.as_micros())).collect()
    }

    /// B18, document 3
    #[test]
    fn each_ladder_has_the_documented_waits() {
        let (base, five_minutes) = (Span::from_secs(5), Span::from_secs(300));
        let exponential = Ladder::Exponential { base, max: Span::from_secs(60) };
        assert_eq!(waits(exponential), [5, 10, 20, 40, 60, 60, 60, 60, 60]);
        let linear = Ladder::Linear { base, max: Span::from_secs(30) };
        assert_eq!(waits(linear), [5, 10, 15, 20, 25, 30, 30, 30, 30]);
        assert_eq!(waits(Ladder::None), [0; 9]);
        let archiver = Ladder::Exponential { base, max: five_minutes };
        assert_eq!(waits(archiver), [5, 10, 20, 40, 80, 160, 300, 300, 300]);
    }

    /// B19, document 2
    #[test]
    fn backoff_counts_from_zero_and_never_overflows() {
        let ladder = Ladder::Exponential { base: Span::from_secs(5), max: Span::from_secs(300) };
        let at = |attempt| ladder.backoff(attempt).unwrap().as_secs_up();
        assert_eq!([0, 1, 2, 3].map(at), [5, 10, 20, 40]);
        assert_eq!([63, 64, 1_000, u32::MAX].map(at), [300; 4]);
        let linear = Ladder::Linear { base: Span::MAX, max: Span::from_secs(30) };
        assert_eq!(linear.wait(u32::MAX), Some(Span::from_secs(30)));
    }
}
