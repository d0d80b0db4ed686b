//! What the site allows, as a function of the time it is asked: no clock, no network.
//!
//! The site is *open* with ten pages left, or *closed* until a moment. A request
//! - while open with pages left takes one: 200;
//! - while open with none left closes the site for 5 s from that request: 429;
//! - while closed is refused: 429, and the closing does not move;
//! - at the end of the closing or later finds the site open with ten pages again.
//!
//! Each 429 says `Retry-After: 5`, so it states the deadline "its own start + 5 s". Whoever waits as told comes after
//! the opening. **The ideal time for 100 pages is 45 s**: ten at once, the 11th request is refused and the wait begins;
//! nine such waits of 5 s, nine answers 429.

/// The seconds in each `Retry-After`.
pub(crate) const RETRY_AFTER_SECONDS: u64 = 5;
const CLOSED_US: u64 = RETRY_AFTER_SECONDS * 1_000_000;
const ALLOWANCE: u32 = 10;

/// What a request gets.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Answer {
    /// 200 with a page.
    Page,
    /// 429 with `Retry-After`.
    Refused,
}

/// Where the site stands; times are microseconds.
pub(crate) struct Site {
    left: u32,
    closed_until: u64,
    stated_deadline: u64,
}

impl Default for Site {
    fn default() -> Self {
        Self { left: ALLOWANCE, closed_until: 0, stated_deadline: 0 }
    }
}

impl Site {
    /// The answer to a request that arrived at `now`, and the latest deadline stated before it.
    pub(crate) fn request(&mut self, now: u64) -> (Answer, u64) {
        let deadline = self.stated_deadline;
        if self.left == 0 && self.closed_until != 0 && now >= self.closed_until {
            self.left = ALLOWANCE;
            self.closed_until = 0;
        }
        if self.left > 0 {
            self.left -= 1;
            return (Answer::Page, deadline);
        }
        if self.closed_until == 0 {
            self.closed_until = now + CLOSED_US;
        }
        // Two connections may hand in their arrivals in the other order: a deadline never moves back.
        self.stated_deadline = deadline.max(now + CLOSED_US);
        (Answer::Refused, deadline)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn ask(site: &mut Site, now: u64) -> Answer {
        site.request(now).0
    }

    #[test]
    fn ten_pages_then_closed_for_five_seconds_from_the_first_refusal() {
        let mut site = Site::default();
        for now in 1..=10 {
            assert_eq!(ask(&mut site, now), Answer::Page);
        }
        assert_eq!(ask(&mut site, 2_000_000), Answer::Refused);
        assert_eq!(ask(&mut site, 6_999_999), Answer::Refused);
        assert_eq!(ask(&mut site, 7_000_000), Answer::Page);
    }

    #[test]
    fn a_hundred_pages_cost_nine_refusals_and_forty_five_seconds() {
        let (mut site, mut now, mut pages, mut refusals) = (Site::default(), 0, 0, 0);
        while pages < 100 {
            match site.request(now) {
                (Answer::Page, deadline) => {
                    assert!(now >= deadline);
                    pages += 1;
                }
                (Answer::Refused, _) => {
                    refusals += 1;
                    now += CLOSED_US;
                }
            }
        }
        assert_eq!((refusals, now), (9, 45_000_000));
    }
}
