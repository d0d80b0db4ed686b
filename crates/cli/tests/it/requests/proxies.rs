//! HTTP and SOCKS proxies.

use crate::comity::World;

use super::hosts::{Speech, Town, moved, ok};
use super::{CANARY, assert_nowhere, command, fetch};

/// B75, B76: the proxy resolves hosts that the operator listed, and never gets hosts that a redirect names.
#[test]
fn requests_go_through_a_socks_proxy() {
    let (world, town) = (World::new(), Town::new());
    let (proxy, asked) = town.socks("me", CANARY);
    let inside = town.host(Speech::Plain, |_, _| ok());
    let to = inside.url("127.0.0.1", "/inside");
    let site = town.host(Speech::Plain, move |request, _| match request.path.as_str() {
        "/away" => moved(302, &to),
        _ => ok(),
    });
    let secure = town.host(Speech::Tls, |_, _| ok());
    let urls = [
        site.url("listed.invalid", "/a"),
        site.url("listed.invalid", "/away"),
        secure.url("site.localhost", "/b"),
    ];
    let through = format!("socks5h://me:${{PASSWORD}}@{proxy}");
    let args = [
        "--json", "fetch", &urls[0], &urls[1], &urls[2], "--job", "j", "--format", "none", "--proxy",
        &through,
    ];
    let mut given = command(&world, &town, &args);
    given.env("PASSWORD", CANARY);
    let done = world.begin(given).wait().expect(1);
    assert_eq!((&done.json()["fetched"], &done.json()["failed"]), (&2.into(), &1.into()), "{}", done.stdout);
    let asked = asked.lock().unwrap().clone();
    let names = [
        format!("listed.invalid:{}", site.address.port()),
        format!("site.localhost:{}", secure.address.port()),
    ];
    assert!(
        asked.iter().all(|asked| names.contains(asked)) && names.iter().all(|name| asked.contains(name)),
        "{asked:?}"
    );
    assert_eq!(inside.received().len(), 0);
    world
        .run(&["jobs", "show", "j"])
        .expect(0)
        .shows("blocked redirect or link to private address 127.0.0.1");
    assert_nowhere(&world, &[]);
    let wrong = format!("socks5h://me:{CANARY}-not@{proxy}");
    let args = [&urls[0], "--job", "k", "--format", "none", "--robots", "ignore", "--proxy", &wrong];
    fetch(&world, &town, &args.map(|arg| arg as &str)).expect(1);
    world.run(&["jobs", "show", "k"]).expect(0).shows("refused the user name or password");
    assert_nowhere(&world, &[]);
}

/// All kinds of proxies that `--proxy` accepts, for plain requests: HTTP, HTTPS, and SOCKS5 with names resolved here.
#[test]
fn a_job_goes_through_a_proxy_of_any_kind() {
    let (world, town) = (World::new(), Town::new());
    let (plain, secure) = (town.host(Speech::Plain, |_, _| ok()), town.host(Speech::Tls, |_, _| ok()));
    let (socks, asked) = town.socks("me", CANARY);
    let site = town.host(Speech::Plain, |_, _| ok());
    for (job, proxy) in [
        ("http", format!("http://me:${{PASSWORD}}@{}", plain.address)),
        ("https", format!("https://me:${{PASSWORD}}@{}", secure.address)),
        ("socks", format!("socks5://me:${{PASSWORD}}@{socks}")),
    ] {
        let url = match job {
            "socks" => site.url("127.0.0.1", "/socks"),
            job => format!("http://far.invalid/{job}"),
        };
        let args = ["--json", "fetch", &url, "--job", job, "--format", "none", "--robots", "ignore"];
        let mut given = command(&world, &town, &[&args[..], &["--proxy", &proxy]].concat());
        given.env("PASSWORD", CANARY);
        assert_eq!(world.begin(given).wait().expect(0).json()["fetched"], 1, "{job}");
    }
    for (host, path) in [(&plain, "http://far.invalid/http"), (&secure, "http://far.invalid/https")] {
        let received = host.received();
        assert_eq!((received.len(), received[0].path.as_str()), (1, path));
        assert!(received[0].head.contains("proxy-authorization: Basic "), "{}", received[0].head);
    }
    assert_eq!(*asked.lock().unwrap(), [format!("127.0.0.1:{}", site.address.port())]);
    assert_eq!(site.received().len(), 1);
    assert_nowhere(&world, &[]);
}

/// A site can have its own proxy; `none` means no proxy, whatever the environment says.
#[test]
fn a_site_has_its_own_proxy() {
    let (world, town) = (World::new(), Town::new());
    let proxy = town.host(Speech::Plain, |_, _| ok());
    let direct = town.host(Speech::Plain, |_, _| ok());
    let config =
        format!("[domains.\"far.invalid\".request]\nproxy = \"http://me:${{PASSWORD}}@{}\"\n", proxy.address);
    world.write("comity.toml", &config);
    let near = direct.url("127.0.0.1", "/near");
    let args = ["--json", "fetch", "http://far.invalid/far", &near, "--format", "none"];
    let mut given = command(&world, &town, &args);
    given.env("PASSWORD", CANARY);
    assert_eq!(world.begin(given).wait().expect(0).json()["fetched"], 2);
    let far = &proxy.pages()[0];
    assert_eq!(far.path, "http://far.invalid/far");
    assert!(far.head.contains("proxy-authorization: Basic "), "{}", far.head);
    assert!(direct.received().iter().all(|request| !request.head.contains("proxy-authorization")));

    let mut none = command(&world, &town, &["--json", "fetch", &near, "--format", "none", "--proxy", "none"]);
    none.env("PASSWORD", "x").env("http_proxy", format!("http://{}", proxy.address));
    world.begin(none).wait().expect(0);
    assert_eq!((proxy.pages().len(), direct.pages().len()), (1, 2));
    assert_nowhere(&world, &[]);
}

/// B75: it used to look as if the site were down.
#[test]
fn a_proxy_that_cannot_be_reached_is_named_without_its_password() {
    let (world, town) = (World::new(), Town::new());
    let site = town.host(Speech::Plain, |_, _| ok());
    let free = std::net::TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap();
    let url = site.url("127.0.0.1", "/a");
    for (job, proxy, why) in [
        ("refused", format!("http://me:{CANARY}@{free}"), format!("connection refused by proxy {free}")),
        ("tls", format!("https://me:{CANARY}@{free}"), format!("connection refused by proxy {free}")),
        ("socks", format!("socks5://me:{CANARY}@{free}"), format!("connection refused by proxy {free}")),
        (
            "name",
            format!("http://me:{CANARY}@proxy.invalid:3128"),
            "DNS lookup failed for proxy proxy.invalid".to_owned(),
        ),
    ] {
        fetch(&world, &town, &[&url, "--job", job, "--format", "none", "--proxy", &proxy]).expect(1);
        world.run(&["jobs", "show", job]).expect(0).shows(&why);
    }
    assert_eq!(site.received().len(), 0);
    assert_nowhere(&world, &[]);
}

/// Otherwise the only hint is that no certificate is trusted, and with `--quiet` there would be none at all.
#[test]
fn a_certificate_file_that_cannot_be_read_is_an_error() {
    let (world, town) = (World::new(), Town::new());
    let site = town.host(Speech::Tls, |_, _| ok());
    let url = site.url("127.0.0.1", "/a");
    let with = |name: &str, value: &str, args: &[&str]| {
        let mut given =
            command(&world, &town, &[args, &["fetch", &url, "--format", "none", "--job", "j"]].concat());
        given.env(name, value);
        world.begin(given).wait()
    };
    for args in [&[][..], &["--quiet"], &["--json"]] {
        let done = with("SSL_CERT_FILE", "/nope.pem", args).expect(2);
        done.says("SSL_CERT_FILE = \"/nope.pem\": certificates could not be read: ");
    }
    let text = world.write("text.pem", "not a certificate");
    let done = with("SSL_CERT_FILE", text.to_str().unwrap(), &[]).expect(2);
    done.says("text.pem\": no certificate found");
    world.run(&["jobs", "show", "j"]).expect(2).says("no such job");
    assert!(site.received().is_empty());
    // A folder that doesn't exist is no obstacle if the file is there.
    let done = with("SSL_CERT_DIR", "/nope", &[]).expect(0);
    done.says("WARN");
    done.says("/nope");
    let fine = world.begin(command(&world, &town, &["fetch", &url, "--format", "none"])).wait().expect(0);
    assert!(!fine.stderr.contains("SSL_CERT_FILE"), "{}", fine.stderr);
}
