//! What the site allows, as a function of when it is asked: no clock, no network.
//!
//! The site is either *open* with up to ten pages left, or *closed* until a point in time. A request
//! - while it is open with pages left takes one: 200;
//! - while it is open with none left closes the site for 5 s: 429;
//! - while it is closed is refused and does not extend that time: 429;
//! - at the end of that time or later finds it open with ten pages again.
//!
//! Each 429 has `Retry-After: 5`, so it states the deadline "its own start + 5 s". A client that waits that long
//! arrives after the site has opened. **The ideal time for 100 pages is 45 s**: ten pages at once, then the 11th
//! request is refused and the wait starts; nine such waits of 5 s, and nine 429 responses.

/// The seconds in each `Retry-After`.
pub(crate) const RETRY_AFTER_SECONDS: u64 = 5;
const CLOSED_US: u64 = RETRY_AFTER_SECONDS * 1_000_000;
const ALLOWANCE: u32 = 10;

/// The response to a request.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Answer {
    /// 200 with a page.
    Page,
    /// 429 with `Retry-After`.
    Refused,
}

/// The state of the site; times are in microseconds.
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
    /// The response to a request that arrived at `now`, and the latest deadline stated before it.
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
        // Two connections may report their arrivals out of order: a deadline never moves back.
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
