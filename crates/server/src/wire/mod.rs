//! The only types that become JSON, and are made of it, but for the events of `happenings`. What they mean is decided
//! elsewhere; one file for each kind of thing, as in `api`.

mod decide;
mod domains;
mod jobs;
mod lease;
mod record;
mod sources;

use comity::core::time::Timestamp;
use serde::de::Error;
use serde::{Deserialize, Deserializer, Serialize};
use utoipa::ToSchema;

pub use decide::Decision;
pub(crate) use decide::{Acquire, Ask, Asks, Decisions, Intent};
pub use domains::Explained;
pub(crate) use domains::{Domain, DomainChange, Domains, LiveDomain};
pub(crate) use jobs::{Added, Job, JobTask, JobUrl, Jobs, NewJob, NewTasks, Trouble};
pub use lease::Released;
pub(crate) use lease::{Renew, Renewed};
pub use record::Recorded;
pub(crate) use record::{Record, Recordeds, Records, RetryAfter};
pub(crate) use sources::{Source, Sources};

/// Whether the service lives, or is ready.
#[derive(Debug, Serialize, ToSchema)]
pub(crate) struct Health {
    /// `ok`, or what is wrong.
    pub(crate) status: String,
}

/// Why a request was refused (RFC 9457).
#[derive(Debug, Clone, Serialize, ToSchema)]
pub(crate) struct Problem {
    /// Which kind of problem it is.
    pub(crate) r#type: String,
    /// The kind in a few words.
    pub(crate) title: &'static str,
    /// The status of the answer.
    pub(crate) status: u16,
    /// What is wrong with this request.
    pub(crate) detail: String,
    /// The field that is wrong.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) field: Option<String>,
    /// What it held.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) value: Option<String>,
    /// What is allowed there.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) allowed: Option<String>,
}

/// An object, and not the list of its values that serde takes for one too.
#[derive(Debug)]
pub(crate) struct Object<T>(pub(crate) T);

impl<'de, T: Deserialize<'de>> Deserialize<'de> for Object<T> {
    fn deserialize<D: Deserializer<'de>>(from: D) -> Result<Self, D::Error> {
        struct Fields<T>(std::marker::PhantomData<T>);

        impl<'de, T: Deserialize<'de>> serde::de::Visitor<'de> for Fields<T> {
            type Value = Object<T>;

            fn expecting(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
                f.write_str("an object")
            }

            fn visit_map<A: serde::de::MapAccess<'de>>(self, fields: A) -> Result<Object<T>, A::Error> {
                T::deserialize(serde::de::value::MapAccessDeserializer::new(fields)).map(Object)
            }
        }

        from.deserialize_map(Fields(std::marker::PhantomData))
    }
}

/// A field that may be left out, but is not null when it is there.
fn present<'de, D: Deserializer<'de>, T: Deserialize<'de>>(from: D) -> Result<Option<T>, D::Error> {
    T::deserialize(from).map(Some)
}

/// A whole number that may be left out. `120.0` is one, as JSON has it.
fn whole<'de, D: Deserializer<'de>>(from: D) -> Result<Option<u64>, D::Error> {
    let number = serde_json::Number::deserialize(from)?;
    let float =
        || number.as_f64().filter(|float| (0.0..2_f64.powi(63)).contains(float) && float.fract() == 0.0);
    let whole = number.as_u64().or_else(|| float().map(|float| float as u64));
    let whole = whole.filter(|whole| i64::try_from(*whole).is_ok());
    whole
        .map(Some)
        .ok_or_else(|| D::Error::custom(format!("a number, expected a whole number from 0 to {}", i64::MAX)))
}

/// A moment as it is written; one that does not come is null.
pub(crate) fn moment(at: Option<Timestamp>) -> Option<String> {
    at.filter(|at| *at != Timestamp::MAX).map(|at| at.to_string())
}
