//! contrib/: the dashboard, the alerts and the systemd unit match the service.

use std::collections::BTreeSet;
use std::path::Path;

use serde_json::{Value, json};

use crate::comity::World;
use crate::log::wait_until;
use crate::service::{Service, ask};

/// B73
#[test]
fn every_metric_of_the_dashboard_and_the_alerts_exists() {
    let shown = shown();
    for file in ["grafana/comity.json", "prometheus/alerts.yml"] {
        let named = names(&read(file));
        assert!(named.len() >= 5, "{file}: {named:?}");
        let unknown: Vec<&String> = named.difference(&shown).collect();
        assert!(unknown.is_empty(), "{file}: {unknown:?} are not in:\n{shown:#?}");
    }
    // The dashboard shows all of them.
    let dashboard = names(&read("grafana/comity.json"));
    let family = |name: &String| !["_sum", "_count", "_bucket"].iter().any(|end| name.ends_with(end));
    let histograms = |name: &&String| shown.contains(&format!("{name}_bucket"));
    let missing: Vec<&String> = shown
        .iter()
        .filter(|name| family(name) && !dashboard.contains(*name))
        .filter(|name| !histograms(name) || !dashboard.contains(&format!("{name}_bucket")))
        .collect();
    assert!(missing.is_empty(), "the dashboard does not show {missing:?}");
}

/// Each panel has a unique title and a query.
#[test]
fn every_panel_of_the_dashboard_has_a_title_and_a_query() {
    let dashboard: Value = serde_json::from_str(&read("grafana/comity.json")).unwrap();
    let panels = dashboard["panels"].as_array().unwrap();
    let titles: BTreeSet<&str> = panels.iter().map(|panel| panel["title"].as_str().unwrap()).collect();
    assert_eq!(titles.len(), panels.len(), "{titles:?}");
    for panel in panels {
        let targets = panel["targets"].as_array().unwrap();
        assert!(!targets.is_empty(), "{panel}");
        for target in targets {
            assert!(target["expr"].as_str().unwrap().contains("comity_"), "{target}");
        }
    }
}

/// On a machine set up only by contrib/README.md, the service starts and requires the token. Everything happens below a
/// folder that stands in for that machine's root, as the user that systemd would create.
#[test]
fn the_unit_starts_after_following_only_the_readme() {
    let world = World::new();
    let root = world.path("root");
    for folder in ["usr/local/bin", "etc/systemd/system", "var/lib/comity", "run/credentials"] {
        std::fs::create_dir_all(root.join(folder)).unwrap();
    }
    let below = |text: &str| {
        ["/usr/local/", "/etc/", "/var/lib/"]
            .iter()
            .fold(text.to_owned(), |text, path| text.replace(path, &format!("{}{path}", root.display())))
    };
    let readme = read("README.md");
    let commands = readme.split("```sh\n").nth(1).and_then(|rest| rest.split("```").next()).unwrap();
    let mut token = String::new();
    for line in commands.lines().map(|line| line.split(" #").next().unwrap().trim()) {
        if line.starts_with("systemctl") {
            continue;
        }
        let line =
            below(line).replacen("0755 comity ", &format!("0755 {} ", env!("CARGO_BIN_EXE_comity")), 1);
        let mut shell = std::process::Command::new("/bin/sh");
        let path = format!("{}/usr/local/bin:/usr/bin:/bin", root.display());
        shell.args(["-c", &format!("umask 077; {line}")]).env_clear().env("PATH", path);
        shell.current_dir(Path::new(env!("CARGO_MANIFEST_DIR")).join("../../contrib"));
        let done = shell.output().unwrap();
        assert!(done.status.success(), "{line}: {}", String::from_utf8_lossy(&done.stderr));
        if line.contains("--make-token") {
            token = String::from_utf8(done.stdout).unwrap().trim().to_owned();
        }
    }
    assert!(!token.is_empty(), "a token was printed:\n{commands}");
    let mode = |path: &str| {
        std::os::unix::fs::PermissionsExt::mode(&std::fs::metadata(root.join(path)).unwrap().permissions())
            & 0o777
    };
    assert_eq!((mode("etc/comity/tokens"), mode("etc/comity/comity.toml")), (0o600, 0o644));

    let unit = std::fs::read_to_string(root.join("etc/systemd/system/comity.service")).unwrap();
    let settings = |key: &str| {
        let values = unit.lines().filter_map(|line| line.strip_prefix(&format!("{key}=")).map(str::to_owned));
        values.collect::<Vec<String>>()
    };
    assert_paths_exist(&unit, &root, &below);
    // The user and the folder for the store come from systemd; the README creates neither.
    assert_eq!((settings("DynamicUser"), settings("User")), (vec!["yes".to_owned()], vec![]));
    let state = format!("/var/lib/{}", settings("StateDirectory")[0]);
    assert_eq!(settings("WorkingDirectory"), [state.as_str()]);
    assert!(settings("ExecStart")[0].contains(&format!(" --store sqlite:{state}/")), "{unit}");
    let here = world.write("comity.service", &below(&unit));
    crate::documents::verify_unit(&here).unwrap_or_else(|said| panic!("{said}"));
    // What the README starts is what it installed.
    for line in commands.lines().filter(|line| line.starts_with("systemctl ") && !line.ends_with("reload")) {
        let name = line.split(' ').next_back().unwrap();
        assert!(root.join(format!("etc/systemd/system/{name}.service")).exists(), "{line}");
    }

    // LoadCredential makes a copy that only the service can read.
    let (name, from) =
        settings("LoadCredential")[0].split_once(':').map(|(a, b)| (a.to_owned(), below(b))).unwrap();
    let credentials = root.join("run/credentials");
    std::fs::copy(from, credentials.join(name)).unwrap();
    let exec = below(&settings("ExecStart")[0]) + " --listen 127.0.0.1:0 --json";
    let words: Vec<&str> = exec.split(' ').collect();
    let mut service = std::process::Command::new(words[0]);
    service.args(&words[1..]).env_clear().stdin(std::process::Stdio::null());
    for (key, value) in settings("Environment").iter().filter_map(|one| one.split_once('=')) {
        service.env(key, value.replace("%d", credentials.to_str().unwrap()));
    }
    service.current_dir(below(&settings("WorkingDirectory")[0]));
    as_nobody(&mut service, &world.path(""), &[&credentials, &root.join("var/lib/comity")]);
    let running = world.begin(service);
    wait_until("the service is listening", || running.shown().contains("listening"));
    let object: Value = serde_json::from_str(running.shown().lines().next().unwrap()).unwrap();
    assert_eq!(object["open"], false, "it requires a token: {object}");
    let address = object["listening"].as_str().unwrap().trim_start_matches("http://").parse().unwrap();
    let check = json!({ "domain": "a.example" }).to_string();
    assert_eq!(ask(address, "POST", "/v1/check", KIND, &check).unwrap().status, 401);
    let bearer = format!("{KIND}Authorization: Bearer {token}\r\n");
    let answer = ask(address, "POST", "/v1/check", &bearer, &check).unwrap();
    assert_eq!(answer.status, 200, "{}", answer.body);
    assert!(root.join("var/lib/comity/comity.db").exists());
}

/// Asserts that every path that a unit names was created by the README, is the state folder, or belongs to the system.
#[track_caller]
fn assert_paths_exist(unit: &str, root: &Path, below: &dyn Fn(&str) -> String) {
    let lines = unit.lines().filter(|line| !line.starts_with('#'));
    let words = lines.flat_map(|line| line.split([' ', '=', ':'])).filter(|word| word.starts_with('/'));
    let words: Vec<&str> = words.collect();
    assert!(words.len() >= 5, "{words:?}");
    for word in words {
        let made = below(word);
        let exists = Path::new(&made).exists() || made.starts_with(&below("/var/lib/comity/"));
        assert!(exists, "the unit needs {word}, which nothing creates in {}", root.display());
    }
}

/// If the tests run as root, runs the service as a user that owns only what systemd gives it.
pub(crate) fn as_nobody(command: &mut std::process::Command, world: &Path, owned: &[&Path]) {
    use std::os::unix::fs::{MetadataExt, PermissionsExt, chown};
    use std::os::unix::process::CommandExt;
    if std::fs::metadata(world).unwrap().uid() != 0 {
        return;
    }
    std::fs::set_permissions(world, std::fs::Permissions::from_mode(0o755)).unwrap();
    for folder in owned {
        chown(folder, Some(NOBODY), Some(NOBODY)).unwrap();
        for entry in std::fs::read_dir(folder).unwrap() {
            chown(entry.unwrap().path(), Some(NOBODY), Some(NOBODY)).unwrap();
        }
    }
    command.uid(NOBODY).gid(NOBODY);
}

const KIND: &str = "Content-Type: application/json\r\n";
/// The user id of nobody.
const NOBODY: u32 = 65_534;

/// systemd accepts the unit, and the unit doesn't block what the service needs.
#[test]
fn systemd_accepts_the_unit() {
    let world = World::new();
    let unit = read("systemd/comity.service").replace("/usr/local/bin/comity", env!("CARGO_BIN_EXE_comity"));
    let file = world.write("comity.service", &unit);
    crate::documents::verify_unit(&file).unwrap_or_else(|said| panic!("{said}"));
}

/// The names of all samples, after some of everything has happened.
fn shown() -> BTreeSet<String> {
    let world = World::new();
    let service = Service::start(&world);
    service.post("/v1/check", &json!({"domain": "a.example"}));
    service.post("/v1/acquire", &json!({"domain": "b.example"}));
    service.post("/v1/record", &json!({"domain": "a.example", "status": 429, "latency_ms": 5}));
    let text = ask(service.address, "GET", "/metrics", "", "").unwrap().body;
    let families = text.lines().filter_map(|line| line.strip_prefix("# TYPE ")?.split(' ').next());
    let samples = text.lines().filter(|line| !line.starts_with('#'));
    let samples = samples.filter_map(|line| line.split(['{', ' ']).next());
    families.chain(samples).map(str::to_owned).collect()
}

/// The names of metrics in a text.
fn names(text: &str) -> BTreeSet<String> {
    let word = |c: char| c.is_ascii_alphanumeric() || c == '_';
    text.split(|c| !word(c)).filter(|name| name.starts_with("comity_")).map(str::to_owned).collect()
}

fn read(file: &str) -> String {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../contrib").join(file);
    std::fs::read_to_string(&path).unwrap_or_else(|error| panic!("{}: {error}", path.display()))
}
