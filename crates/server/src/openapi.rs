//! The OpenAPI description of the API, generated from the handlers and their types. Their doc comments are its text.
//! What types can't express is added here: exactly one of two fields, and the error responses of every path.

use serde_json::{Map, Value, json};
use utoipa::OpenApi;

use crate::api::{decide, domains, health, jobs, lease, record, sources, stream};
use crate::problem::MEDIA_TYPE;
use crate::wire;

#[derive(OpenApi)]
#[openapi(
    info(
        title = "Comity",
        description = "Decides when the next request to a site may be sent. Ask before you fetch, and report the outcome: all programs that do so share one pace per site."
    ),
    paths(
        decide::check,
        decide::check_batch,
        decide::peek,
        decide::acquire,
        record::record,
        record::record_batch,
        lease::renew,
        domains::list,
        domains::show,
        domains::change,
        domains::reset,
        domains::explain,
        lease::release,
        jobs::list,
        jobs::create,
        jobs::show,
        jobs::add,
        jobs::cancel,
        jobs::retry,
        sources::list,
        sources::show,
        stream::events,
        health::healthz,
        health::readyz,
        health::metrics,
        health::description,
    ),
    components(schemas(wire::ProblemDetails))
)]
struct Description;

/// The OpenAPI description of the API.
pub fn openapi() -> Value {
    let mut whole = serde_json::to_value(Description::openapi()).unwrap_or_default();
    for schema in ["Ask", "Acquire"] {
        whole["components"]["schemas"][schema]["oneOf"] = one_of(&["url", "domain"]);
    }
    whole["components"]["schemas"]["JobUrl"]["oneOf"][0]["maxLength"] = json!(8192);
    let record = &mut whole["components"]["schemas"]["Record"];
    let without = |fields: &[&str]| json!({ "not": { "anyOf": fields.iter().map(|field| json!({ "required": [field] })).collect::<Vec<_>>() } });
    let mut by_permit = without(&["url", "domain", "intent"]);
    by_permit["required"] = json!(["permit"]);
    record["allOf"] = json!([
        { "oneOf": one_of(&["outcome", "status"]) },
        { "oneOf": [
            by_permit,
            { "required": ["url"], "not": { "anyOf": [{ "required": ["permit"] }, { "required": ["domain"] }] } },
            { "required": ["domain"], "not": { "anyOf": [{ "required": ["permit"] }, { "required": ["url"] }] } },
        ] },
    ]);
    // "abandoned" requires a permit.
    record["not"] = json!({
        "required": ["outcome"],
        "properties": { "outcome": { "const": "abandoned" } },
        "not": { "required": ["permit"] },
    });
    // `paused_until` contradicts `paused: false`.
    whole["components"]["schemas"]["DomainChange"]["not"] =
        json!({ "required": ["paused", "paused_until"], "properties": { "paused": { "const": false } } });
    // Only headers that are never secret are accepted, with values that are valid in HTTP.
    whole["components"]["schemas"]["JobTask"]["properties"]["headers"] = json!({
        "type": "object",
        "description": "Request headers, such as `content-type`. Headers that may contain secrets are refused: credentials are not saved with a job, but configured where `comity fetch` runs.",
        "propertyNames": { "enum": comity::request::header::harmless() },
        "additionalProperties": { "type": "string", "pattern": "^[\\t -~]+$", "maxLength": 16384 },
    });
    if let Some(paths) = whole["paths"].as_object_mut() {
        for (path, methods) in paths {
            for (method, operation) in methods.as_object_mut().into_iter().flatten() {
                add_problems(path, method, operation);
            }
        }
    }
    whole["components"]["securitySchemes"] = json!({ "token": { "type": "http", "scheme": "bearer" } });
    whole["security"] = json!([{ "token": [] }, {}]);
    whole
}

fn one_of(fields: &[&str]) -> Value {
    fields.iter().map(|field| json!({ "required": [field] })).collect()
}

/// Adds the error responses of an operation.
fn add_problems(path: &str, method: &str, operation: &mut Value) {
    let is_public = matches!(path, "/healthz" | "/readyz" | "/openapi.json");
    let has_body = operation.get("requestBody").is_some();
    let has_parameters = operation.get("parameters").is_some();
    let mut statuses: Vec<(u16, &str)> = Vec::new();
    if !is_public {
        statuses.extend([
            (401, "The token is missing or unknown"),
            (403, "The token's role does not allow this, the Host header names another host, or a web page of another site sent the request"),
        ]);
    }
    if has_body {
        statuses.extend([
            (400, "The request body is not valid JSON"),
            (408, "The request body took too long to arrive"),
            (413, "The request body is too large"),
            (415, "The Content-Type is not application/json"),
        ]);
    }
    if has_body || has_parameters {
        statuses.push((
            422,
            "A field or parameter is invalid; `field`, `value` and `allowed` are which one, its value, and what is expected",
        ));
    }
    // The `after` of a page of jobs must name an existing job.
    if path.contains('{') || (path == "/v1/jobs" && method == "get") {
        statuses.push((404, "Not found"));
    }
    if (path.starts_with("/v1/jobs") || path.starts_with("/v1/domains/") || has_body)
        && (method != "get" || path.ends_with("explain"))
    {
        statuses.push((409, "The current state does not allow this, such as a job that has ended or an Idempotency-Key that is still in progress"));
    }
    if path != "/healthz" && path != "/openapi.json" && path != "/metrics" {
        statuses.push((503, "The store is unavailable, a limit is reached, another process is in charge of the site, or the service is shutting down; retry after the seconds in `Retry-After`"));
    }
    let Some(responses) = operation["responses"].as_object_mut() else { return };
    for (status, description) in statuses {
        let schema = json!({ "$ref": "#/components/schemas/Problem" });
        let content = Map::from_iter([(MEDIA_TYPE.to_owned(), json!({ "schema": schema }))]);
        responses.insert(status.to_string(), json!({ "description": description, "content": content }));
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Duplicate operation ids break generated clients.
    #[test]
    fn every_operation_id_is_unique() {
        let described = openapi();
        let methods = described["paths"].as_object().unwrap().values();
        let operations = methods.flat_map(|methods| methods.as_object().unwrap().values());
        let mut names: Vec<&str> =
            operations.map(|operation| operation["operationId"].as_str().unwrap()).collect();
        let count = names.len();
        names.sort_unstable();
        names.dedup();
        assert_eq!(names.len(), count, "{names:?}");
    }

    #[test]
    fn every_path_is_described_with_its_error_responses() {
        let described = openapi();
        let paths = described["paths"].as_object().unwrap();
        assert_eq!(paths.len(), 23, "{:?}", paths.keys());
        let check = &paths["/v1/check"]["post"]["responses"];
        for status in ["200", "400", "401", "403", "408", "409", "413", "415", "422", "503"] {
            assert!(check.get(status).is_some(), "{status}: {check}");
        }
    }
}
