//! The dashboard's access: sessions, roles, forms. How its pages look and work is tested in Chromium (`tests/browser`).

use comity::config::{Role, Token};
use http::Method;
use serde_json::json;

use crate::server::{TestResponse, TestServer, config, serve, serve_with};

const VIEW: &str = "view-token-for-tests";
const ADMIN: &str = "admin-token-for-tests";

async fn with_tokens() -> TestServer {
    let lines = [(Role::View, VIEW), (Role::Admin, ADMIN)].map(|(role, token)| Token::of(role, token).line());
    serve_with(config(&format!("[serve]\ntokens = {lines:?}\n"))).await
}

fn text(response: &TestResponse) -> String {
    String::from_utf8(response.body.to_vec()).unwrap()
}

fn location(response: &TestResponse) -> &str {
    response.headers["location"].to_str().unwrap()
}

/// The cookie that a response sets, as a request sends it back.
fn cookie(response: &TestResponse) -> String {
    let set = response.headers["set-cookie"].to_str().unwrap();
    assert!(set.contains("HttpOnly; SameSite=Strict"), "{set}");
    set.split(';').next().unwrap().to_owned()
}

fn form_token(page: &str) -> &str {
    page.split("name=\"form_token\" value=\"").nth(1).unwrap().split('"').next().unwrap()
}

async fn get(server: &TestServer, path: &str, cookie: &str) -> TestResponse {
    let host = server.address().to_string();
    server.request(Method::GET, path).header("host", &host).header("cookie", cookie).send().await
}

async fn post(server: &TestServer, path: &str, cookie: &str, form: &str) -> TestResponse {
    let host = server.address().to_string();
    let ask = server.request(Method::POST, path).header("host", &host).header("cookie", cookie);
    ask.header("content-type", "application/x-www-form-urlencoded").body(form.to_owned()).send().await
}

/// Logs in, and returns the cookie of the session.
async fn login(server: &TestServer, token: &str) -> String {
    let form = get(server, "/login", "").await;
    let before = cookie(&form);
    let page = text(&form);
    let answer = format!("form_token={}&token={token}", form_token(&page));
    let done = post(server, "/login", &before, &answer).await;
    assert_eq!((done.status, location(&done)), (303, "/"));
    let session = cookie(&done);
    assert_ne!(session, before, "a login begins with a new id");
    session
}

/// When sessions end by themselves is tested where they are kept.
#[tokio::test]
async fn a_session_begins_with_a_login_and_ends_when_somebody_logs_out() {
    let server = with_tokens().await;
    assert_eq!(location(&get(&server, "/jobs?state=done", "").await), "/login?to=%2Fjobs%3Fstate%3Ddone");
    let session = login(&server, VIEW).await;
    let page = get(&server, "/", &session).await;
    assert_eq!(page.status, 200);
    let page = text(&page);
    let out = post(&server, "/logout", &session, &format!("form_token={}", form_token(&page))).await;
    assert_eq!(location(&out), "/login?out=yes");
    assert_eq!(get(&server, "/", &session).await.status, 303);
}

#[tokio::test]
async fn a_reload_that_removes_a_token_ends_its_sessions() {
    let server = with_tokens().await;
    let (view, admin) = (login(&server, VIEW).await, login(&server, ADMIN).await);
    let rest = Token::of(Role::Admin, ADMIN).line();
    server.reload(config(&format!("[serve]\ntokens = [{rest:?}]\n"))).await.unwrap();
    assert_eq!(get(&server, "/", &view).await.status, 303);
    assert_eq!(get(&server, "/live", &view).await.status, 401);
    assert_eq!(get(&server, "/", &admin).await.status, 200);
}

#[tokio::test]
async fn a_cookie_is_good_for_pages_only() {
    let server = with_tokens().await;
    let session = login(&server, ADMIN).await;
    assert_eq!(get(&server, "/v1/domains", &session).await.status, 401);
    let asked = server.request(Method::GET, "/").header("authorization", &format!("Bearer {ADMIN}"));
    assert_eq!(asked.send().await.status, 303, "and a token is good for programs only");
}

#[tokio::test]
async fn forms_need_the_token_of_their_session_and_the_role_admin() {
    let server = with_tokens().await;
    let asked = server.request(Method::POST, "/v1/jobs").header("authorization", &format!("Bearer {ADMIN}"));
    let new = json!({ "name": "nightly", "urls": ["https://a.example/1", "https://a.example/2"] });
    let made = asked.header("content-type", "application/json").body(new.to_string()).send().await;
    assert_eq!(made.status, 201);

    let (view, admin) = (login(&server, VIEW).await, login(&server, ADMIN).await);
    let page = text(&get(&server, "/jobs/nightly/cancel", &admin).await);
    assert!(page.contains("Skips 2 waiting URLs."), "{page}");
    let good = format!("form_token={}", form_token(&page));
    let views = text(&get(&server, "/jobs/nightly", &view).await);
    assert!(!views.contains("/jobs/nightly/cancel"));
    for (session, form) in [(&admin, ""), (&admin, "form_token=x"), (&view, good.as_str())] {
        assert_eq!(post(&server, "/jobs/nightly/cancel", session, form).await.status, 403, "{form}");
    }
    let own = format!("form_token={}", form_token(&views));
    assert_eq!(post(&server, "/jobs/nightly/cancel", &view, &own).await.status, 403);
    assert_eq!(post(&server, "/jobs/nightly/cancel", &admin, &good).await.status, 303);
    let audit = text(&get(&server, "/audit", &view).await);
    assert!(audit.contains("cancel job nightly") && audit.contains("admin token "), "{audit}");
    assert!(audit.contains("Skips 2 waiting URLs"), "{audit}");
}

#[tokio::test]
async fn without_tokens_pages_are_open_to_this_machine_and_forms_are_still_checked() {
    let server = serve("").await;
    let page = get(&server, "/", "").await;
    let session = cookie(&page);
    assert_eq!(page.status, 200);
    assert!(text(&page).contains("No login"));
    assert_eq!(location(&get(&server, "/login", "").await), "/");
    server.check("a.example").await;
    let question = text(&get(&server, "/sites/a.example/pause", &session).await);
    let good = format!("form_token={}&for=1h", form_token(&question));
    assert_eq!(post(&server, "/sites/a.example/pause", "", &good).await.status, 403);
    let forged = server.request(Method::POST, "/sites/a.example/pause").header("cookie", &session);
    let forged = forged.header("origin", "http://evil.example").body(good.clone()).send().await;
    assert_eq!(forged.status, 403);
    assert_eq!(post(&server, "/sites/a.example/pause", &session, &good).await.status, 303);
    assert_eq!(server.get("/v1/domains/a.example").await.ok()["paused"], true);
}

#[tokio::test]
async fn the_host_is_checked_with_tokens_too() {
    let server = with_tokens().await;
    for (host, status) in [("evil.example", 403), ("localhost:7878", 303)] {
        let asked = server.request(Method::GET, "/").header("host", host).send().await;
        assert_eq!(asked.status, status, "{host}");
    }
}

/// A link in a mail or on another site may lead to a page; nothing else from there works.
#[tokio::test]
async fn links_from_elsewhere_lead_to_pages() {
    let server = serve("").await;
    let from_elsewhere = |path: &'static str, mode: &'static str, to: &'static str| {
        let asked = server.request(Method::GET, path).header("sec-fetch-site", "cross-site");
        asked.header("sec-fetch-mode", mode).header("sec-fetch-dest", to).send()
    };
    assert_eq!(from_elsewhere("/", "navigate", "document").await.status, 200);
    assert_eq!(from_elsewhere("/", "navigate", "iframe").await.status, 403);
    assert_eq!(from_elsewhere("/", "cors", "empty").await.status, 403);
    assert_eq!(from_elsewhere("/v1/domains", "navigate", "document").await.status, 403);
}
