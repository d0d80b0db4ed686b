//! Request options, and which hosts must not receive them: judged by what hosts received.
//!
//! - here: headers, cookies, credentials, timeouts, certificates, and what a job stores of them
//! - `leaks`: redirects
//! - `proxies`: HTTP and SOCKS proxies
//! - `sent`: methods and bodies
//! - `hosts`: the test hosts

mod hosts;
mod leaks;
mod proxies;
mod sent;

use std::io::Read;
use std::path::Path;
use std::process::Command;

use crate::comity::{Done, World};
use hosts::{Speech, Town, ok};

/// A secret that must not leak.
const CANARY: &str = "canary-7f3a9c";

const QUICK: [&str; 6] = ["--delay", "20ms", "--learning", "off", "--max-retries", "0"];

/// The command, which trusts the town's certificate authority.
fn command(world: &World, town: &Town, args: &[&str]) -> Command {
    let root = world.write("root.pem", &town.root);
    let mut command = world.command(&[args, &QUICK].concat());
    command.env("SSL_CERT_FILE", root);
    command
}

fn fetch(world: &World, town: &Town, args: &[&str]) -> Done {
    world.begin(command(world, town, &[&["--json", "fetch"], args].concat())).wait()
}

/// Asserts that no file contains the secret: store, logs, pages, index, WARC files. `but` are the files the test put it
/// in.
#[track_caller]
fn assert_nowhere(world: &World, but: &[&str]) {
    fn walk(folder: &Path, but: &[&str]) {
        for entry in std::fs::read_dir(folder).unwrap().map(Result::unwrap) {
            let (path, name) = (entry.path(), entry.file_name().to_string_lossy().into_owned());
            if path.is_dir() {
                walk(&path, but);
            } else if !but.contains(&name.as_str()) {
                let bytes = std::fs::read(&path).unwrap();
                let mut whole = Vec::new();
                let _ = flate2::read::MultiGzDecoder::new(&bytes[..]).read_to_end(&mut whole);
                for bytes in [&bytes, &whole] {
                    let text = String::from_utf8_lossy(bytes);
                    assert!(!text.contains(CANARY), "in {}", path.display());
                }
            }
        }
    }
    walk(&world.path(""), but);
}

/// B75, B86
#[test]
fn headers_cookies_and_credentials_reach_the_listed_hosts_and_nothing_else() {
    let (world, town) = (World::new(), Town::new());
    let one = town.host(Speech::Plain, |_, _| ok());
    let two = town.host(Speech::Tls, |_, _| ok());
    let urls = [one.url("127.0.0.1", "/a"), two.url("site.localhost", "/b")];
    let mut command = command(
        &world,
        &town,
        &[
            "--json",
            "fetch",
            &urls[0],
            &urls[1],
            "--format",
            "warc",
            "--out",
            "archive",
            "-H",
            "Accept-Language: de",
            "-H",
            "X-Api-Key: key ${KEY}",
            "--cookie",
            "a=${KEY}; b=2",
            "--auth-bearer-env",
            "TOKEN",
            "-A",
            "Reader/2.0",
        ],
    );
    command.env("KEY", CANARY).env("TOKEN", format!("t-{CANARY}"));
    let done = world.begin(command).wait().expect(0);
    assert_eq!(done.json()["fetched"], 2);
    for host in [&one, &two] {
        let page = &host.pages()[0];
        for line in [
            "accept-language: de",
            &format!("x-api-key: key {CANARY}"),
            &format!("cookie: a={CANARY}; b=2"),
            &format!("authorization: Bearer t-{CANARY}"),
            "user-agent: Reader/2.0",
        ] {
            assert!(page.has(line), "{line}\n{}", page.head);
        }
        let robots = &host.received()[0];
        assert_eq!(robots.path, "/robots.txt");
        assert!(robots.has("user-agent: Reader/2.0") && !robots.head.contains(CANARY), "{}", robots.head);
    }
    let warc = std::fs::read_dir(world.path("archive")).unwrap().next().unwrap().unwrap().path();
    let mut text = String::new();
    flate2::read::MultiGzDecoder::new(std::fs::File::open(warc).unwrap()).read_to_string(&mut text).unwrap();
    assert!(text.contains("accept-language: de") && !text.contains("x-api-key"), "{text}");
    assert_nowhere(&world, &[]);
}

/// B71, B86: the section of a site is matched like rules.
#[test]
fn a_sites_section_goes_to_that_host_only() {
    let (world, town) = (World::new(), Town::new());
    let host = town.host(Speech::Tls, |_, _| ok());
    let port = host.address.port();
    world.write("secret-basic", &format!("me:{CANARY}\n"));
    let config = format!(
        "[default.request]\nheaders = {{ \"Accept-Language\" = \"fr\" }}\n\
         [domains.\"site.localhost:{port}\".request]\nbasic_file = \"secret-basic\"\nuser_agent = \"Own/1\"\n\
         headers = {{ \"X-Key\" = \"${{KEY}}\" }}\ncookies = {{ id = \"${{KEY}}\" }}\nrobots_credentials = true\n\
         [domains.\"*.example.localhost\".request]\nheaders = {{ \"X-Key\" = \"${{KEY}}\" }}\n"
    );
    world.write("comity.toml", &config);
    let urls = ["site.localhost", "www.site.localhost", "other.localhost"].map(|name| host.url(name, "/"));
    let args = ["--json", "fetch", &urls[0], &urls[1], &urls[2], "--format", "none"];
    let mut given = command(&world, &town, &args);
    given.env("KEY", CANARY);
    world.begin(given).wait().expect(0);
    let requests = host.received();
    let named = |name: &str, path: &str| {
        let line = format!("host: {name}:{port}");
        requests.iter().find(|request| request.path == path && request.has(&line)).unwrap().clone()
    };
    let own = named("site.localhost", "/");
    let basic = format!("authorization: Basic {}", base64(&format!("me:{CANARY}")));
    for line in [&basic, &format!("x-key: {CANARY}"), &format!("cookie: id={CANARY}")] {
        assert!(own.has(line), "{line}\n{}", own.head);
        assert!(named("site.localhost", "/robots.txt").has(line), "{line}");
    }
    assert!(own.has("user-agent: Own/1") && own.has("accept-language: fr"));
    // `www.` shares the pace and the user agent, but is another host.
    let www = named("www.site.localhost", "/");
    assert!(www.has("user-agent: Own/1") && !www.head.contains(CANARY) && !www.has(&basic), "{}", www.head);
    let other = named("other.localhost", "/");
    assert!(other.has("accept-language: fr") && !other.has("user-agent: Own/1"), "{}", other.head);
    assert!(!other.head.contains(CANARY) && !other.head.contains("authorization"));
    assert_nowhere(&world, &["secret-basic"]);
}

/// A missing variable or file fails the URLs that need it, and nothing else.
#[test]
fn a_site_whose_secret_is_missing_fails_alone() {
    let (world, town) = (World::new(), Town::new());
    let host = town.host(Speech::Plain, |_, _| ok());
    let port = host.address.port();
    world.write(
        "comity.toml",
        &format!(
            "[domains.\"site.localhost:{port}\".request]\nbearer_env = \"SITE_TOKEN\"\n\
             headers = {{ \"X-Key\" = \"${{file:no-such-key}}\" }}\n\
             [domains.\"other.localhost:{port}\".request]\nproxy = \"${{SITE_PROXY}}\"\n"
        ),
    );
    let lacks = [
        format!("domains.\"site.localhost:{port}\".request.bearer_env: the variable SITE_TOKEN is not set"),
        format!(
            "domains.\"site.localhost:{port}\".request.headers.x-key: the file no-such-key cannot be read"
        ),
        format!("domains.\"other.localhost:{port}\".request.proxy: the variable SITE_PROXY is not set"),
    ];
    let checked = world.run(&["config", "check"]).expect(0);
    for lack in &lacks {
        checked.shows(&format!("Warning: {lack}"));
        checked.shows("; this site can't be fetched without it");
    }
    let url = |name: &str| host.url(name, "/a");
    let (site, www, other, plain) =
        (url("site.localhost"), url("www.site.localhost"), url("other.localhost"), url("127.0.0.1"));
    world.write("urls.txt", &[site.clone(), www.clone(), other.clone(), plain.clone()].join("\n"));
    let args = ["--input", "urls.txt", "--job", "all", "--format", "none"];
    let done = fetch(&world, &town, &args).expect(1);
    assert_eq!((&done.json()["fetched"], &done.json()["failed"]), (&2.into(), &2.into()), "{done:?}");
    let failed = world.run(&["jobs", "show", "all", "--failed"]).expect(0);
    lacks.iter().for_each(|lack| failed.shows(lack));
    let hosts: Vec<String> = host.received().iter().map(|request| request.head.clone()).collect();
    let asked = |name: &str| hosts.iter().any(|head| head.contains(&format!("host: {name}:{port}")));
    assert!(asked("127.0.0.1") && asked("www.site.localhost"), "{hosts:?}");
    assert!(!asked("site.localhost") && !asked("other.localhost"), "not even robots.txt: {hosts:?}");

    // Without anything else to fetch, it doesn't start, and nothing is stored.
    let alone = fetch(&world, &town, &[&site, &other, "--job", "alone", "--format", "none"]).expect(2);
    lacks.iter().for_each(|lack| alone.says(lack));
    world.run(&["jobs", "show", "alone"]).expect(2).says("no such job");
    fetch(&world, &town, &["--sitemap", &site, "--job", "alone", "--format", "none"]).expect(2);
    world.run(&["sources", "add", &site]).expect(2).says(&lacks[0]);
    world.run(&["jobs", "retry", "all"]).expect(0);
    fetch(&world, &town, &["--job", "all"]).expect(2).says(&lacks[0]);

    // With the secrets, what failed is fetched with them.
    world.write("no-such-key", CANARY);
    let mut given = command(&world, &town, &["--json", "fetch", "--job", "all"]);
    given.env("SITE_TOKEN", CANARY).env("SITE_PROXY", "none");
    assert_eq!(world.begin(given).wait().expect(0).json()["fetched"], 4);
    let page =
        host.pages().into_iter().find(|page| page.has(&format!("host: site.localhost:{port}"))).unwrap();
    assert!(page.has(&format!("authorization: Bearer {CANARY}")), "{}", page.head);
    assert_nowhere(&world, &["no-such-key"]);
}

/// A source is fetched as soon as its secret exists: there is no backoff, because nothing was sent.
#[test]
fn a_source_whose_secret_is_missing_fails_alone() {
    use crate::follow::{add, numbered, states, world};
    use crate::site::{Answer, Site};
    let site = Site::start(|asked| match asked.path {
        "/feed" => Answer { status: 200, body: numbered("a", 1), ..Answer::default() },
        path => Answer::page(path),
    });
    let world = world(&[]);
    let other = site.url().replace("127.0.0.1", "other.localhost");
    add(&world, &(site.url() + "/feed"), &[]);
    add(&world, &(other.clone() + "/feed"), &[]);
    let config = std::fs::read_to_string(world.path("comity.toml")).unwrap();
    let port = site.authority().split(':').next_back().unwrap().to_owned();
    let section = format!("\n[domains.\"other.localhost:{port}\".request]\nbearer_env = \"SITE_TOKEN\"\n");
    world.write("comity.toml", &(config + &section));
    let ran = world.run(&["run"]).expect(1);
    ran.shows("2 sources due: 1 fetched, 1 failed");
    ran.shows("the variable SITE_TOKEN is not set");
    assert_eq!(states(&world), ["done"]);
    let mut given = world.command(&["run"]);
    given.env("SITE_TOKEN", "t");
    world.begin(given).wait().expect(0).shows("2 sources due: 2 fetched");
    assert_eq!(states(&world).len(), 2);
}

fn base64(text: &str) -> String {
    let alphabet = b"ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/";
    let mut out = String::new();
    for part in text.as_bytes().chunks(3) {
        let bits =
            part.iter().fold(0_u32, |bits, byte| bits << 8 | u32::from(*byte)) << (8 * (3 - part.len()));
        for nth in 0..4 {
            let letter = alphabet[(bits >> (18 - 6 * nth)) as usize & 63];
            out.push(if nth <= part.len() { char::from(letter) } else { '=' });
        }
    }
    out
}

/// B75: a job stores only names; a resume names each missing value.
#[test]
fn a_resume_requires_values_that_were_not_stored() {
    let (world, town) = (World::new(), Town::new());
    // It is killed while the page is in flight.
    let host = town.host(Speech::Plain, |request, _| match request.path.as_str() {
        "/slow" => None,
        _ => ok(),
    });
    let slow = host.url("127.0.0.1", "/slow");
    world.write("secret-token", &format!("{CANARY}\n"));
    let literal = format!("X-Literal: {CANARY}");
    let cookie = format!("c={CANARY}");
    let args = [
        "fetch",
        &slow,
        "--job",
        "j",
        "-H",
        "X-Key: ${KEY}",
        "-H",
        &literal,
        "-H",
        "Accept-Language: de",
        "--cookie",
        &cookie,
        "--auth-bearer-file",
        "secret-token",
        "--format",
        "none",
    ];
    let mut first = command(&world, &town, &args);
    first.env("KEY", CANARY);
    let running = world.begin(first);
    host.wait_for(2);
    running.kill();
    assert_nowhere(&world, &["secret-token"]);

    let resumed = fetch(&world, &town, &["--job", "j"]).expect(2);
    for said in [
        "-H x-key: the variable KEY is not set",
        "the header x-literal has to be given again",
        "the cookie c has to be given again",
    ] {
        resumed.says(said);
    }
    std::fs::rename(world.path("secret-token"), world.path("secret-moved")).unwrap();
    resumed_without(&world, &town, &["-H", &literal, "--cookie", &cookie], "secret-token cannot be read");
    std::fs::rename(world.path("secret-moved"), world.path("secret-token")).unwrap();

    let more = host.url("127.0.0.1", "/more");
    let mut again =
        command(&world, &town, &["fetch", &more, "--job", "j", "-H", &literal, "--cookie", &cookie]);
    again.env("KEY", CANARY);
    let running = world.begin(again);
    crate::log::wait_until("the rest is requested", || host.pages().len() >= 3);
    running.kill();
    for page in &host.pages()[1..] {
        for line in [
            format!("x-key: {CANARY}"),
            format!("x-literal: {CANARY}"),
            format!("cookie: c={CANARY}"),
            format!("authorization: Bearer {CANARY}"),
            "accept-language: de".to_owned(),
        ] {
            assert!(page.has(&line), "{line}\n{}", page.head);
        }
    }
    assert_nowhere(&world, &["secret-token"]);
}

fn resumed_without(world: &World, town: &Town, args: &[&str], said: &str) {
    let mut resumed = command(world, town, &[&["fetch", "--job", "j"], args].concat());
    resumed.env("KEY", CANARY);
    world.begin(resumed).wait().expect(2).says(said);
}

/// RFC 6265: the cookie jar is private, survives a kill -9, and contains only cookies for their own host.
#[test]
fn a_cookie_jar_keeps_the_cookies_that_sites_set() {
    use std::os::unix::fs::PermissionsExt;
    let (world, town) = (World::new(), Town::new());
    let set = |pair: &str| format!("Set-Cookie: {pair}\r\n");
    let cookies = [
        format!("id={CANARY}; Path=/; HttpOnly"),
        "deep=1; Path=/deep".to_owned(),
        "wide=1; Domain=localhost".to_owned(),
        "foreign=1; Domain=other.localhost".to_owned(),
        "safe=1; Secure".to_owned(),
        "gone=1; Max-Age=0".to_owned(),
    ];
    let login: String = cookies.iter().map(|cookie| set(cookie)).collect();
    let host = town.host(Speech::Plain, move |request, _| match request.path.as_str() {
        "/login" => Some((200, login.clone())),
        "/slow" => None,
        _ => ok(),
    });
    let url = |path: &str| host.url("site.localhost", path);
    let args =
        ["fetch", &url("/login"), &url("/slow"), "--job", "j", "--cookie-jar", "jar", "--format", "none"];
    let running = world.begin(command(&world, &town, &args));
    let jar = world.path("jar");
    // The jar is written while the next page is requested.
    crate::log::wait_until("it is logged in", || host.pages().len() == 2 && jar.exists());
    running.kill();
    assert_eq!(std::fs::metadata(&jar).unwrap().permissions().mode() & 0o777, 0o600);
    let text = std::fs::read_to_string(&jar).unwrap();
    assert_eq!(text.lines().filter(|line| line.contains("\t")).count(), 2, "{text}");

    let deep = url("/deep/er");
    let other = host.url("other.localhost", "/");
    let running = world.begin(command(&world, &town, &["fetch", &deep, &other, "--job", "j"]));
    crate::log::wait_until("the rest is requested", || host.pages().len() >= 5);
    running.kill();
    for page in host.pages() {
        let expected = match page.path.as_str() {
            "/deep/er" => Some(format!("cookie: deep=1; id={CANARY}")),
            "/slow" => Some(format!("cookie: id={CANARY}")),
            _ => None,
        };
        let sent = page.head.lines().find(|line| line.starts_with("cookie:")).map(str::to_owned);
        assert_eq!(sent, expected, "{}", page.path);
    }
    assert!(
        host.received()
            .iter()
            .all(|request| request.path != "/robots.txt" || !request.head.contains("cookie"))
    );
    assert_nowhere(&world, &["jar"]);
}

#[test]
fn a_cookies_file_of_a_browser_is_read() {
    let (world, town) = (World::new(), Town::new());
    let host = town.host(Speech::Plain, |_, _| ok());
    let file = format!(
        "# Netscape HTTP Cookie File\n.site.localhost\tTRUE\t/\tFALSE\t0\ta\t{CANARY}\n\
         #HttpOnly_site.localhost\tFALSE\t/x\tFALSE\t4000000000\tb\t2\n\
         site.localhost\tFALSE\t/\tTRUE\t0\tsecure\t3\nsite.localhost\tFALSE\t/\tFALSE\t100\told\t4\n"
    );
    world.write("cookies.txt", &file);
    let urls = [host.url("site.localhost", "/x"), host.url("other.localhost", "/")];
    fetch(&world, &town, &[&urls[0], &urls[1], "--cookies", "cookies.txt", "--format", "none"]).expect(0);
    let sent: Vec<_> = host.pages().iter().map(|page| page.head.contains("cookie:")).collect();
    assert_eq!(sent.iter().filter(|sent| **sent).count(), 1);
    let page = host.pages().into_iter().find(|page| page.path == "/x").unwrap();
    assert!(page.has(&format!("cookie: a={CANARY}; b=2")), "{}", page.head);
    assert_nowhere(&world, &["cookies.txt"]);
    world.write("cookies.txt", "what is this\n");
    let wrong = fetch(&world, &town, &[&urls[0], "--cookies", "cookies.txt", "--format", "none"]).expect(2);
    wrong.says("line 1: expected seven tab-separated columns");
}

#[test]
fn insecure_skips_verification_for_one_host() {
    let (world, town) = (World::new(), Town::new());
    let trusted = town.host(Speech::Unsigned, |_, _| ok());
    let other = town.host(Speech::Unsigned, |_, _| ok());
    let urls = [
        trusted.url("127.0.0.1", "/"),
        other.url("site.localhost", "/"),
        trusted.url("other.localhost", "/"),
    ];
    let args =
        [&urls[0], &urls[1], &urls[2], "--format", "none", "--robots", "ignore", "--insecure", "127.0.0.1"];
    let done = fetch(&world, &town, &args.map(|arg| arg as &str)).expect(1);
    assert_eq!((&done.json()["fetched"], &done.json()["failed"]), (&1.into(), &2.into()));
    assert_eq!((trusted.received().len(), other.received().len()), (1, 0));
    done.says("the TLS certificate of 127.0.0.1 is not verified");
    // Each failure says what is wrong and what to type, in one warning.
    for host in ["site.localhost", "other.localhost"] {
        let remedy = format!("authority (to accept it anyway: comity fetch --insecure {host})");
        let warnings = done.stderr.lines().filter(|line| line.contains(" WARN ") && line.contains(&remedy));
        assert_eq!(warnings.count(), 1, "{host}: {}", done.stderr);
    }

    let port = trusted.address.port();
    world.write("comity.toml", &format!("[domains.\"127.0.0.1:{port}\".request]\ninsecure = true\n"));
    fetch(&world, &town, &[&urls[0], "--format", "none", "--job", "b"]).expect(0).says("is not verified");
    for config in
        ["[default.request]\ninsecure = true\n", "[domains.\"*.localhost\".request]\ninsecure = true\n"]
    {
        world.write("comity.toml", config);
        world
            .run(&["config", "check"])
            .expect(2)
            .says("request.insecure = true: expected this only for a single host");
    }
}

/// Each flag for credentials, from a variable and from a file, and both spellings of the flag for headers.
#[test]
fn credentials_come_from_variables_and_files() {
    let (world, town) = (World::new(), Town::new());
    let host = town.host(Speech::Plain, |_, _| ok());
    world.write("secret-basic", &format!("me:{CANARY}\n"));
    world.write("secret-bearer", CANARY);
    let basic = format!("authorization: Basic {}", base64(&format!("me:{CANARY}")));
    let bearer = format!("authorization: Bearer {CANARY}");
    let key = format!("x-key: {CANARY}");
    for (nth, (flag, value, expected)) in [
        ("--auth-basic-env", "USER_AND_PASSWORD", &basic),
        ("--auth-basic-file", "secret-basic", &basic),
        ("--auth-bearer-env", "TOKEN", &bearer),
        ("--auth-bearer-file", "secret-bearer", &bearer),
        ("--header", "X-Key: ${TOKEN}", &key),
        ("-H", "X-Key: ${file:secret-bearer}", &key),
    ]
    .into_iter()
    .enumerate()
    {
        let url = host.url("127.0.0.1", &format!("/{nth}"));
        let mut given =
            command(&world, &town, &["fetch", &url, "--format", "none", "--robots", "ignore", flag, value]);
        given.env("USER_AND_PASSWORD", format!("me:{CANARY}")).env("TOKEN", CANARY);
        world.begin(given).wait().expect(0);
        assert!(host.pages()[nth].has(expected), "{flag}: {}", host.pages()[nth].head);
    }
    let url = host.url("127.0.0.1", "/no");
    let mut wrong = command(&world, &town, &["fetch", &url, "--auth-basic-env", "TOKEN"]);
    wrong.env("TOKEN", CANARY);
    world.begin(wrong).wait().expect(2).says("--auth-basic-env: expected user:password");
    assert_nowhere(&world, &["secret-basic", "secret-bearer"]);
}

/// A site can have its own timeouts; other sites have those of `[http]`.
#[test]
fn timeouts_can_be_set_for_one_site() {
    let (world, town) = (World::new(), Town::new());
    let hangs = town.host(Speech::Plain, |_, _| None);
    let fine = town.host(Speech::Plain, |_, _| ok());
    let port = hangs.address.port();
    let urls = [hangs.url("127.0.0.1", "/a"), fine.url("127.0.0.1", "/b")];
    for (key, why) in [
        ("first_byte_timeout", "timed out waiting for the response"),
        ("total_timeout", "timed out waiting for the response"),
    ] {
        let section = format!("[domains.\"127.0.0.1:{port}\".request]\n{key} = \"300ms\"\n");
        world.write("comity.toml", &section);
        let args = [&urls[0], &urls[1], "--job", key, "--format", "none", "--robots", "ignore"];
        let done = fetch(&world, &town, &args.map(|arg| arg as &str)).expect(1);
        assert_eq!((&done.json()["fetched"], &done.json()["failed"]), (&1.into(), &1.into()), "{key}");
        world.run(&["jobs", "show", key]).expect(0).shows(why);
    }
}

#[test]
fn timeout_and_user_agent_apply_to_the_job() {
    let (world, town) = (World::new(), Town::new());
    let slow = town.host(Speech::Plain, |_, _| None);
    let url = slow.url("127.0.0.1", "/");
    let args = ["--format", "none", "--robots", "ignore", "--timeout", "300ms", "--job", "slow"];
    fetch(&world, &town, &[&[&url as &str], &args[..]].concat()).expect(1);
    world.run(&["jobs", "show", "slow"]).expect(0).shows("timed out");

    // Its robots.txt has a group for one of the user agents.
    let site = crate::site::Site::start(|asked| match asked.path {
        "/robots.txt" => crate::site::Answer {
            body: "User-agent: Reader\nDisallow: /no\n\nUser-agent: *\nAllow: /\n".to_owned(),
            ..crate::site::Answer::status(200)
        },
        path => crate::site::Answer::page(path),
    });
    let urls = ["/no", "/yes"].map(|path| format!("{}{path}", site.url()));
    let done = fetch(&world, &town, &[&urls[0], &urls[1], "--format", "none", "-A", "Reader/1.0"]).expect(0);
    assert_eq!((&done.json()["fetched"], &done.json()["skipped"]), (&1.into(), &1.into()));
    let authority = site.authority();
    let config = format!("[domains.\"{authority}\".request]\nuser_agent = \"Other/1\"\n");
    world.write("comity.toml", &config);
    let done = fetch(&world, &town, &[&urls[0], "--format", "none"]).expect(0);
    assert_eq!(done.json()["fetched"], 1);
}

/// B71, B75: all errors at once, with key and value, and without secrets.
#[test]
fn all_invalid_request_options_are_reported_at_once() {
    let (world, town) = (World::new(), Town::new());
    let line_break = format!("X-Key: a\r\nHost: {CANARY}");
    let args = [
        "http://127.0.0.1:9/",
        "-H",
        "Host: evil",
        "-H",
        "Transfer-Encoding: chunked",
        "-H",
        &line_break,
        "--cookie",
        CANARY,
        "--auth-basic-env",
        "not a name",
        "--timeout",
        "soon",
        "--insecure",
        "*",
    ];
    let wrong = fetch(&world, &town, &args).expect(2);
    for said in [
        "Host is derived from the URL",
        "Transfer-Encoding is derived from the body",
        "a line break in a value would start another header",
        "--cookie: expected NAME=VALUE",
        "--auth-basic-env: expected the name of a variable",
        "expected a duration above zero",
        "expected a single host",
    ] {
        assert!(wrong.stderr.contains(said) || wrong.stdout.contains(said), "{said}\n{wrong:?}");
    }
    world.write(
        "comity.toml",
        &format!(
            "[default.request]\nbearer_env = \"TOKEN\"\nheaders = {{ \"X-Key\" = \"{CANARY}\" }}\n\
             [domains.\"a.example\".request]\nuser_agnt = \"x\"\nbearer_env = \"{CANARY}.x\"\ntotal_timeout = \"soon\"\n\
             headers = {{ Host = \"{CANARY}\" }}\nproxy = \"ftp://{CANARY}\"\n"
        ),
    );
    let wrong = world.run(&["config", "check"]).expect(2);
    for said in [
        "default.request.bearer_env = ***: expected credentials only under",
        "default.request.headers.X-Key = ***: expected credentials only under",
        "domains.\"a.example\".request.user_agnt = \"***\": expected a key that exists; did you mean user_agent?",
        "domains.\"a.example\".request.total_timeout = \"soon\": expected a duration",
        "domains.\"a.example\".request.headers.Host = \"***\": expected another header: Host is derived from the URL",
        "domains.\"a.example\".request.proxy = \"***\": expected the address of a proxy",
        "expected the name of a variable such as",
    ] {
        let said = said.replace("= ***", "= \"***\"");
        assert!(wrong.stderr.contains(&said), "{said}\n{}", wrong.stderr);
    }
    std::fs::remove_file(world.path("comity.toml")).unwrap();
    assert_nowhere(&world, &[]);
}

/// B75
#[test]
fn a_configuration_with_a_secret_gets_a_warning_if_others_can_read_it() {
    use std::os::unix::fs::PermissionsExt;
    let world = World::new();
    let warns = |text: &str, mode: u32| {
        let file = world.write("comity.toml", text);
        std::fs::set_permissions(file, std::fs::Permissions::from_mode(mode)).unwrap();
        world.run(&["config", "check"]).expect(0).stderr.contains("can be read by every user")
    };
    let section = |line: &str| format!("[domains.\"a.example\".request]\n{line}\n");
    let literal = section("headers = { \"X-Key\" = \"hunter2\" }");
    assert!(warns(&literal, 0o644));
    assert!(!warns(&literal, 0o600));
    assert!(warns(&section("cookies = { id = \"hunter2\" }"), 0o644));
    assert!(warns(&section("proxy = \"http://me:hunter2@proxy:1\""), 0o644));
    for harmless in [
        "headers = { \"X-Key\" = \"${KEY}\" }",
        "headers = { Accept = \"text/html\" }",
        "bearer_env = \"KEY\"",
    ] {
        assert!(!warns(&section(harmless), 0o644), "{harmless}");
    }
    // Not with every command.
    assert!(warns(&literal, 0o644));
    for args in [&["config", "check", "--quiet"][..], &["jobs", "list"], &["explain", "a.example"]] {
        let said = world.run(args).expect(0).stderr;
        assert!(!said.contains("can be read by every user"), "{args:?}: {said}");
    }
}
