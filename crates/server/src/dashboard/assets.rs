//! The style, the script and the icon of the dashboard, served from the program itself. Their paths contain a hash, so that
//! browsers keep them until they change.

use std::sync::LazyLock;

use axum::response::{IntoResponse, Response};
use http::header::{CACHE_CONTROL, CONTENT_TYPE};
use xxhash_rust::xxh3::xxh3_64;

use super::page::Failure;
use crate::api::Path;
use crate::problem::{Kind, Problem};

/// The path of the style.
pub(crate) fn style_path() -> &'static str {
    static PATH: LazyLock<String> = LazyLock::new(|| path("style", STYLE, "css"));
    &PATH
}

/// The path of the script.
pub(crate) fn script_path() -> &'static str {
    static PATH: LazyLock<String> = LazyLock::new(|| path("dashboard", SCRIPT, "js"));
    &PATH
}

fn path(name: &str, content: &str, ending: &str) -> String {
    format!("/assets/{name}-{:016x}.{ending}", xxh3_64(content.as_bytes()))
}

/// Sends one of the files. The hash in its name needn't be the current one: a page may be older than the program.
pub(super) async fn file(Path(name): Path<String>) -> Result<Response, Failure> {
    let (content, kind) = match name.split('-').next() {
        Some("style") if name.ends_with(".css") => (STYLE, "text/css; charset=utf-8"),
        Some("dashboard") if name.ends_with(".js") => (SCRIPT, "text/javascript; charset=utf-8"),
        _ => return Err(Failure(Problem::new(Kind::NotFound, "there is no such file"))),
    };
    Ok(([(CONTENT_TYPE, kind), (CACHE_CONTROL, "public, max-age=31536000, immutable")], content)
        .into_response())
}

pub(super) async fn icon() -> Response {
    ([(CONTENT_TYPE, "image/svg+xml"), (CACHE_CONTROL, "public, max-age=86400")], ICON).into_response()
}

const STYLE: &str = include_str!("assets/style.css");
const SCRIPT: &str = include_str!("assets/dashboard.js");
const ICON: &str = include_str!("assets/icon.svg");
