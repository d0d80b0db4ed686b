//! The JSON objects of the API, one file per kind of resource, as in `api`. Nothing else is read from or written as
//! JSON, except the events in `sse`. These types only describe the format; what to do with them is decided elsewhere.
//!
//! Their doc comments are the text of the OpenAPI description. `#[schema(as = …)]` is the name of a type there, which
//! generated clients rely on.

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

pub use decide::DecisionResponse;
pub(crate) use decide::{
    AcquireRequest, CheckBatchRequest, CheckRequest, DecisionBatchResponse, IntentParam,
};
pub use domains::ExplainResponse;
pub(crate) use domains::{DomainChange, DomainListResponse, DomainResponse, LiveDomain};
pub(crate) use jobs::{
    AddTasksResponse, JobListResponse, JobResponse, JobTask, JobUrl, NewJob, NewTasks, UnfetchedUrl,
};
pub use lease::ReleaseResponse;
pub(crate) use lease::{RenewRequest, RenewResponse};
pub use record::RecordResponse;
pub(crate) use record::{RecordBatchRequest, RecordBatchResponse, RecordRequest, RetryAfter};
pub(crate) use sources::{SourceListResponse, SourceResponse};

/// Whether the service is alive, or ready.
#[derive(Debug, Serialize, ToSchema)]
#[schema(as = Health)]
pub(crate) struct HealthResponse {
    /// Always `ok`. Otherwise the response is a problem.
    pub(crate) status: String,
}

/// Why a request was refused: problem details (RFC 9457).
#[derive(Debug, Clone, Serialize, ToSchema)]
#[schema(as = Problem)]
pub(crate) struct ProblemDetails {
    /// The kind of problem, as a URN such as `urn:comity:problem:invalid`.
    pub(crate) r#type: String,
    /// The kind of problem in a few words.
    pub(crate) title: &'static str,
    /// The HTTP status of this response.
    pub(crate) status: u16,
    /// What is wrong with this request, and what to do about it.
    pub(crate) detail: String,
    /// The field that is invalid.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) field: Option<String>,
    /// The value of that field, shortened and without secrets.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) value: Option<String>,
    /// What is allowed in that field.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) allowed: Option<String>,
}

/// A value that must be a JSON object. By default serde would also accept an array of the field values.
#[derive(Debug)]
pub(crate) struct JsonObject<T>(pub(crate) T);

impl<'de, T: Deserialize<'de>> Deserialize<'de> for JsonObject<T> {
    fn deserialize<D: Deserializer<'de>>(from: D) -> Result<Self, D::Error> {
        struct Fields<T>(std::marker::PhantomData<T>);

        impl<'de, T: Deserialize<'de>> serde::de::Visitor<'de> for Fields<T> {
            type Value = JsonObject<T>;

            fn expecting(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
                f.write_str("an object")
            }

            fn visit_map<A: serde::de::MapAccess<'de>>(self, fields: A) -> Result<JsonObject<T>, A::Error> {
                T::deserialize(serde::de::value::MapAccessDeserializer::new(fields)).map(JsonObject)
            }
        }

        from.deserialize_map(Fields(std::marker::PhantomData))
    }
}

/// Reads a field that may be left out but must not be null.
fn present<'de, D: Deserializer<'de>, T: Deserialize<'de>>(from: D) -> Result<Option<T>, D::Error> {
    T::deserialize(from).map(Some)
}

/// Reads a whole number that may be left out. `120.0` is a whole number too, as in JSON Schema.
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

/// A time as text (RFC 3339). A time that never comes is null.
pub(crate) fn time_text(at: Option<Timestamp>) -> Option<String> {
    at.filter(|at| *at != Timestamp::MAX).map(|at| at.to_string())
}
