//! Logging in with a token, and out again.

use askama::Template;
use axum::extract::State;
use axum::response::{IntoResponse, Redirect, Response};
use http::HeaderValue;
use http::header::SET_COOKIE;

use super::guard::{Form, Values, Viewer};
use super::page::{Failure, show};
use super::{LOGIN, assets, session};
use crate::service::Service;

#[derive(Template)]
#[template(path = "login.html")]
struct LoginPage {
    style: &'static str,
    form_token: String,
    to: String,
    /// Whether a token was just refused.
    refused: bool,
    logged_out: bool,
}

/// The form for the token.
pub(super) async fn form(viewer: Viewer, values: Values) -> Result<Response, Failure> {
    let to = local(values.get("to"));
    if viewer.open {
        return Ok(Redirect::to(&to).into_response());
    }
    show(&LoginPage {
        style: assets::style_path(),
        form_token: viewer.form_token,
        to,
        refused: values.get("refused") == "yes",
        logged_out: values.get("out") == "yes",
    })
}

/// Begins a session with a token.
pub(super) async fn login(State(service): State<Service>, form: Form) -> Result<Response, Failure> {
    let to = local(form.values.get("to"));
    let token = form.values.get("token");
    let caller = service.supervisor().with_access(|access| access.caller_with(token));
    let Some(caller) = caller else {
        tracing::warn!("dashboard: somebody tried to log in with an unknown token");
        let back = super::text::encoded(&to);
        return Ok(Redirect::to(&format!("{LOGIN}?refused=yes&to={back}")).into_response());
    };
    // The session gets a new id, so that nobody who knew the old one has a part in it.
    let id = service.sessions().begin(caller, service.now());
    tracing::info!(role = caller.role.as_str(), "dashboard: logged in");
    let mut response = Redirect::to(&to).into_response();
    let cookie = session::set_cookie(&session::cookie_name(service.port()), &id, form.encrypted);
    if let Ok(cookie) = HeaderValue::from_str(&cookie) {
        response.headers_mut().append(SET_COOKIE, cookie);
    }
    Ok(response)
}

/// Ends the session.
pub(super) async fn logout(State(service): State<Service>, form: Form) -> Response {
    service.sessions().end(&form.viewer.session);
    Redirect::to(&format!("{LOGIN}?out=yes")).into_response()
}

/// The page to go to after the login, which has to be one of ours.
fn local(to: &str) -> String {
    let is_path = to.starts_with('/') && !to.starts_with("//") && !to.contains(['\\', '\r', '\n', '\t']);
    if is_path && !to.starts_with(LOGIN) { to.to_owned() } else { "/".to_owned() }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_login_leads_to_pages_of_this_service_only() {
        assert_eq!(local("/jobs?like=a"), "/jobs?like=a");
        for elsewhere in
            ["", "//evil.example", "https://evil.example", "/\\evil.example", "/\t/evil.example", "/login"]
        {
            assert_eq!(local(elsewhere), "/", "{elsewhere}");
        }
    }
}
