//! `comity proxy` and `comity exec`, with curl as the client and nginx as the judge. More programs are in `./test proxy`.

use std::os::unix::fs::PermissionsExt;
use std::os::unix::process::ExitStatusExt;
use std::process::{Child, Command, Stdio};

use crate::comity::{Running, World};
use crate::log::wait_until;
use crate::nginx::Nginx;

const SITES: &str = "[default]\nmin_delay = \"300ms\"\n[http]\nallow_private = [\"127.0.0.0/8\"]\n";

fn world() -> World {
    let world = World::new();
    world.write("comity.toml", SITES);
    world
}

/// A running proxy, and its address.
fn proxy(world: &World, flags: &[&str]) -> (Running, String) {
    let running = world.start(&[&["--json", "proxy", "--listen", "127.0.0.1:0"], flags].concat());
    wait_until("the proxy listens", || running.shown().contains("listening"));
    let line: serde_json::Value = serde_json::from_str(running.shown().lines().next().unwrap()).unwrap();
    let address = line["listening"].as_str().unwrap().to_owned();
    (running, address)
}

fn curl(proxy: &str, urls: &[String]) -> Child {
    let mut command = Command::new("curl");
    // curl bypasses proxies for this machine if the variable says so.
    command.args(["-sS", "-f", "--noproxy", "", "-x", proxy]).args(urls);
    command.stdout(Stdio::null()).stderr(Stdio::inherit()).spawn().unwrap()
}

/// The pages `/NAME/1` to `/NAME/count`.
fn pages(site: &Nginx, name: &str, count: usize) -> Vec<String> {
    (1..=count).map(|nth| format!("{}/{name}/{nth}", site.url())).collect()
}

/// No request was earlier than the rule allows. nginx notes milliseconds.
fn nothing_early(site: &Nginx, count: usize) {
    site.wait_for(count);
    let starts: Vec<i64> = site.log().iter().map(|hit| hit.start).collect();
    assert_eq!(starts.len(), count);
    let gaps: Vec<i64> = starts.windows(2).map(|two| two[1] - two[0]).collect();
    assert!(gaps.iter().all(|gap| *gap >= 297_000), "{gaps:?}");
}

#[test]
fn two_proxies_and_two_commands_keep_one_pace() {
    let (world, site) = (world(), Nginx::start(""));
    let (mut first, to_first) = proxy(&world, &[]);
    let (mut second, to_second) = proxy(&world, &[]);
    let clients = [curl(&to_first, &pages(&site, "a", 4)), curl(&to_second, &pages(&site, "b", 4))];
    for mut client in clients {
        assert!(client.wait().unwrap().success());
    }
    nothing_early(&site, 8);
    let counted: u64 = [&mut first, &mut second].map(requests_of).iter().sum();
    assert_eq!(counted, 8, "as many as nginx saw");
}

/// Stops a proxy, and returns how many requests it counted.
fn requests_of(proxy: &mut Running) -> u64 {
    proxy.signal("INT");
    wait_until("the proxy prints its counts", || proxy.shown().lines().count() == 2);
    let line: serde_json::Value = serde_json::from_str(proxy.shown().lines().last().unwrap()).unwrap();
    line["requests"].as_u64().unwrap()
}

#[test]
fn a_command_runs_behind_a_proxy_of_its_own() {
    let (world, site) = (world(), Nginx::start(""));
    let urls = pages(&site, "page", 3).join(" ");
    let script = format!("curl -sS -f --noproxy '' {urls} > pages; exit 7");
    let mut command = world.command(&["exec", "--", "/bin/sh", "-c", &script]);
    command.env("PATH", std::env::var("PATH").unwrap());
    let done = world.begin(command).wait().expect(7);
    done.says("comity: 3 requests, waited");
    nothing_early(&site, 3);
}

#[test]
fn a_command_gets_variables_for_proxies_and_certificates() {
    let world = world();
    let script = "echo $http_proxy; test \"$HTTPS_PROXY\" = \"$http_proxy\" && grep -c BEGIN \"$SSL_CERT_FILE\" && \
                  ls \"$NODE_EXTRA_CA_CERTS\" && echo $NO_PROXY";
    let mut command = world.command(&["exec", "--", "/bin/sh", "-c", script]);
    command.env("PATH", std::env::var("PATH").unwrap()).env("NO_PROXY", "intranet");
    let done = world.begin(command).wait().expect(0);
    let lines: Vec<&str> = done.stdout.lines().collect();
    assert!(lines[0].starts_with("http://comity:") && lines[0].contains("@127.0.0.1:"), "{lines:?}");
    assert!(lines[1].parse::<u32>().unwrap() > 1, "the system's certificates and ours: {lines:?}");
    assert!(!std::path::Path::new(lines[2]).exists(), "deleted at the end: {lines:?}");
    assert_eq!(lines[3], "intranet,localhost,127.0.0.1,::1");
}

#[test]
fn a_signal_reaches_the_command_and_its_end_is_the_exit_code() {
    let world = world();
    let script = "trap 'echo ended; exit 9' TERM; echo started; while :; do sleep 0.05; done";
    let mut command = world.command(&["exec", "--", "/bin/sh", "-c", script]);
    command.env("PATH", std::env::var("PATH").unwrap());
    let running = world.begin(command);
    wait_until("the command runs", || running.shown().contains("started"));
    running.signal("TERM");
    let done = running.wait().expect(9);
    assert!(done.stdout.contains("ended"));
    let killed = world.command(&["exec", "--", "/bin/sh", "-c", "kill -KILL $$"]).output().unwrap();
    assert_eq!((killed.status.code(), killed.status.signal()), (Some(137), None));
    world.run(&["exec", "--", "/no/such/command"]).expect(127).says("/no/such/command");
    world.run(&["exec"]).expect(2);
}

#[test]
fn the_proxy_is_closed_to_other_machines_without_tokens() {
    let world = world();
    world.run(&["proxy", "--listen", "0.0.0.0:0"]).expect(2).says("proxy.tokens");
    world.run(&["proxy", "--https", "often"]).expect(2).says("--https");
    world.run(&["proxy", "--https", "decrypt", "--listen", "127.0.0.1:0"]).expect(2).says("comity proxy ca");
}

#[test]
fn a_ca_is_made_once_and_its_key_is_for_its_owner_only() {
    let world = world();
    let done = world.run(&["proxy", "ca", "--domain", "example.org"]).expect(0);
    assert_eq!(done.stdout.trim(), "comity-ca/ca.pem");
    let mode = |name: &str| std::fs::metadata(world.path(name)).unwrap().permissions().mode() & 0o777;
    assert_eq!((mode("comity-ca"), mode("comity-ca/ca.key")), (0o700, 0o600));
    world.run(&["proxy", "ca"]).expect(2).says("there is a CA already");
    let (_running, address) = proxy(&world, &["--https", "decrypt"]);
    assert!(address.starts_with("http://127.0.0.1:"));
}
