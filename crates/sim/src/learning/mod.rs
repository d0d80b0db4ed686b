//! How well a learning rule finds a hidden limit: simulated sites, rules to compare, scores and a table.
//!
//! - `limiter`: families of rate limits as sites implement them
//! - `spec`: a site with its parameters, random ones from a seed
//! - `clients`: Comity's own pace, and a fixed pace; `peers`: rules that others use
//! - `play`: clients and a site in virtual time
//! - `score`: goodput against the best fixed pace, refusals; `table`: many sites, summarized
//!
//! Time is in seconds here, because the rules of others are defined that way. Only rate limits are simulated: failures,
//! crashes and clocks are in [`crate::world`].

mod clients;
mod limiter;
mod peers;
mod play;
mod score;
mod spec;
mod table;

pub use clients::{Client, Comity, Feedback, FixedPace, Poll};
pub use limiter::{Limiter, Verdict};
pub use peers::{Aimd, AutoThrottle, AwsAdaptive, RateThrottle};
pub use play::{Event, Played, play};
pub use score::{Contestant, Score, best_fixed_pace, score};
pub use spec::{Family, Hint, SiteSpec};
pub use table::{Summary, fairness, report, sites, stepping, story};
