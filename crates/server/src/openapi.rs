//! What can be asked, as OpenAPI describes it: made of the types and handlers themselves. What a type cannot say
//! (exactly one of two fields, the problems that every path may answer with) is added here.

use serde_json::{Map, Value, json};
use utoipa::OpenApi;

use crate::api::{decide, domains, health, jobs, lease, record, sources, stream};
use crate::problem::MEDIA_TYPE;
use crate::wire;

#[derive(OpenApi)]
#[openapi(
    info(
        title = "Comity",
        description = "Ask before you fetch, tell what came of it: one brain that decides when the next request to a site may leave."
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
    components(schemas(wire::Problem))
)]
struct Described;

/// What can be asked, as OpenAPI describes it.
pub fn openapi() -> Value {
    let mut whole = serde_json::to_value(Described::openapi()).unwrap_or_default();
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
    // What is given up is the permit.
    record["not"] = json!({
        "required": ["outcome"],
        "properties": { "outcome": { "const": "abandoned" } },
        "not": { "required": ["permit"] },
    });
    // Nothing is closed until then that is opened.
    whole["components"]["schemas"]["DomainChange"]["not"] =
        json!({ "required": ["paused", "paused_until"], "properties": { "paused": { "const": false } } });
    // Headers that hold no secret, with values that can be sent.
    whole["components"]["schemas"]["JobTask"]["properties"]["headers"] = json!({
        "type": "object",
        "description": "Headers that hold no secret, such as `content-type`. Credentials come from whoever fetches.",
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

/// The problems that a path may answer with.
fn add_problems(path: &str, method: &str, operation: &mut Value) {
    let open = matches!(path, "/healthz" | "/readyz" | "/openapi.json");
    let body = operation.get("requestBody").is_some();
    let takes = |operation: &Value| operation.get("parameters").is_some();
    let mut statuses: Vec<(u16, &str)> = Vec::new();
    if !open {
        statuses.extend([
            (401, "No token, or one that is not known"),
            (403, "The token, or the page that asks, may not"),
        ]);
    }
    if body {
        statuses.extend([
            (400, "Not JSON"),
            (408, "The body did not come in time"),
            (413, "The body is too large"),
            (415, "The body is not said to be JSON"),
        ]);
    }
    if body || takes(operation) {
        statuses.push((422, "A field is wrong"));
    }
    // A page of jobs begins after one that there is.
    if path.contains('{') || (path == "/v1/jobs" && method == "get") {
        statuses.push((404, "Not found"));
    }
    if (path.starts_with("/v1/jobs") || path.starts_with("/v1/domains/") || body)
        && (method != "get" || path.ends_with("explain"))
    {
        statuses.push((409, "Not as things stand"));
    }
    if path != "/healthz" && path != "/openapi.json" && path != "/metrics" {
        statuses.push((503, "The store does not work, or there is no room"));
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

    /// Names of operations that are not their own lead generated clients astray.
    #[test]
    fn every_operation_has_a_name_of_its_own() {
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
    fn every_path_is_described_once_and_refuses_with_problems() {
        let described = openapi();
        let paths = described["paths"].as_object().unwrap();
        assert_eq!(paths.len(), 23, "{:?}", paths.keys());
        let check = &paths["/v1/check"]["post"]["responses"];
        for status in ["200", "400", "401", "403", "408", "409", "413", "415", "422", "503"] {
            assert!(check.get(status).is_some(), "{status}: {check}");
        }
    }
}
