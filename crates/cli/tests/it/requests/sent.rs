//! Methods and bodies of jobs that were created through the service.

use serde_json::json;

use crate::comity::World;
use crate::service::{Service, post};

use super::hosts::{Speech, Town, moved, ok};

#[test]
fn a_job_of_the_service_can_post() {
    let (world, town) = (World::new(), Town::new());
    let other = town.host(Speech::Plain, |_, _| ok());
    let to = other.url("127.0.0.1", "/taken");
    let host = town.host(Speech::Plain, move |request, _| match request.path.as_str() {
        "/see-other" => moved(303, "/done"),
        "/again" => moved(307, "/done"),
        "/away" => moved(307, &to),
        "/broken" => Some((500, String::new())),
        _ => ok(),
    });
    let url = |path: &str| host.url("127.0.0.1", path);
    let service = Service::start(&world);
    let typed = json!({ "Content-Type": "application/json" });
    let urls = json!([
        url("/plain"),
        { "url": url("/form"), "method": "POST", "body": "{\"a\":1}", "headers": typed },
        { "url": url("/form"), "body": "{\"a\":2}" },
        { "url": url("/form"), "method": "POST", "body": "{\"a\":1}" },
        { "url": url("/form"), "method": "PUT", "body": "{\"a\":1}" },
        { "url": url("/see-other"), "body": "s" },
        { "url": url("/again"), "body": "r" },
        { "url": url("/away"), "body": "w" },
        { "url": url("/broken"), "body": "b" },
    ]);
    let job = post(service.address, "/v1/jobs", &json!({ "name": "j", "urls": urls })).expect(201);
    assert_eq!(job["tasks"], 8, "{job}");
    let secret =
        json!({ "name": "k", "urls": [{ "url": url("/x"), "headers": { "Authorization": "hunter2" } }] });
    let refused = post(service.address, "/v1/jobs", &secret).body;
    assert!(refused.contains("credentials are not saved") && !refused.contains("hunter2"), "{refused}");
    service.stop().expect(0);
    let pace = ["--delay", "20ms", "--learning", "off", "--max-retries", "2"];
    let done =
        world.run(&[&["--json", "fetch", "--job", "j", "--format", "none"][..], &pace].concat()).expect(1);
    assert_eq!((&done.json()["fetched"], &done.json()["failed"]), (&6.into(), &2.into()), "{}", done.stdout);
    let mut got: Vec<String> = host
        .pages()
        .iter()
        .map(|page| format!("{} {} {}", page.head.split(' ').next().unwrap(), page.path, page.body))
        .collect();
    got.sort();
    assert_eq!(
        got,
        [
            "GET /done ",
            "GET /plain ",
            "POST /again r",
            "POST /away w",
            "POST /broken b",
            "POST /done r",
            "POST /form {\"a\":1}",
            "POST /form {\"a\":2}",
            "POST /see-other s",
            "PUT /form {\"a\":1}",
        ]
    );
    assert!(
        host.pages()
            .iter()
            .any(|page| page.body == "{\"a\":1}" && page.has("content-type: application/json"))
    );
    assert_eq!(other.received().len(), 0, "a body is sent only to listed hosts");
    world.run(&["jobs", "show", "j"]).expect(0).shows("does not receive the request body");
}
