//! Databases that cannot be used: what is reported, that the exit code says so, and that nothing is left half-written.

use std::path::Path;
use std::process::{Command, Stdio};

use crate::comity::{Done, World};
use crate::database::{Database, Options, fresh_folder, give_to_postgres, is_root};
use crate::fleet::Fleet;
use crate::judge::Ruling;
use crate::log::wait_until;
use crate::sites::Sites;

/// What a store's URL says after the database.
const PLAIN: &str = "sslmode=disable";

/// Runs a command that needs the store.
fn try_store(world: &World, address: &str, options: &str) -> Done {
    let store = format!("postgres://{address}/postgres?schema={}&{options}", Database::schema());
    world.run(&["--store", &store, "check", "http://a.example/"])
}

#[test]
#[ignore = "./test fleet"]
fn a_wrong_password_and_a_missing_role_are_reported_without_the_password() {
    let (world, database) = (World::new(), Database::shared());
    database.sql("CREATE ROLE guarded LOGIN PASSWORD 'right'");
    let port = database.port;
    let done = try_store(&world, &format!("guarded:hunter2@127.0.0.1:{port}"), PLAIN).expect(3);
    done.says("password authentication failed for user \"guarded\"");
    assert!(!done.stderr.contains("hunter2"), "{}", done.stderr);
    try_store(&world, &format!("nobody@127.0.0.1:{port}"), PLAIN)
        .expect(3)
        .says("role \"nobody\" does not exist");
    let nowhere = format!("postgres@127.0.0.1:{}", crate::database::free_port());
    let input = world.write("list", "http://a.example/\n");
    let store = format!("postgres://{nowhere}/postgres?{PLAIN}");
    let input = input.to_str().unwrap();
    let fetch = world.run(&["--store", &store, "fetch", "--input", input, "--job", "one"]).expect(3);
    fetch.says("refused");
}

#[test]
#[ignore = "./test fleet"]
fn a_server_without_tls_or_with_a_certificate_of_somebody_else_is_refused() {
    let world = World::new();
    let plain = Database::shared().port;
    let without = try_store(&world, &format!("postgres@127.0.0.1:{plain}"), "sslmode=require").expect(3);
    without.says("TLS");
    let certificate = rcgen::generate_simple_self_signed(["localhost".to_owned()]).unwrap();
    let other = rcgen::generate_simple_self_signed(["localhost".to_owned()]).unwrap();
    let folder = fresh_folder();
    let keys =
        [("server.crt", certificate.cert.pem()), ("server.key", certificate.signing_key.serialize_pem())];
    for (name, text) in keys {
        std::fs::write(folder.join(name), text).unwrap();
        give_to_postgres(&folder.join(name));
        let mode = std::os::unix::fs::PermissionsExt::from_mode(0o600);
        std::fs::set_permissions(folder.join(name), mode).unwrap();
    }
    let (right, wrong) =
        (world.write("right.pem", &certificate.cert.pem()), world.write("wrong.pem", &other.cert.pem()));
    let database = Database::start(&Options::default());
    database.sql(&format!("ALTER SYSTEM SET ssl_cert_file = '{}'", folder.join("server.crt").display()));
    database.sql(&format!("ALTER SYSTEM SET ssl_key_file = '{}'", folder.join("server.key").display()));
    database.sql("ALTER SYSTEM SET ssl = on");
    database.sql("SELECT pg_reload_conf()");
    wait_until("TLS is on", || database.sql("SHOW ssl") == "on");
    let address = |host: &str| format!("postgres@{host}:{}", database.port);
    let full = |roots: &Path| format!("sslmode=verify-full&sslrootcert={}", roots.display());
    try_store(&world, &address("localhost"), &full(&right)).expect(0);
    try_store(&world, &address("localhost"), "sslmode=require").expect(0);
    for (host, roots) in [("localhost", &wrong), ("127.0.0.1", &right)] {
        let done = try_store(&world, &address(host), &full(roots)).expect(3);
        done.says("certificate");
    }
    std::fs::remove_dir_all(folder).unwrap();
}

#[test]
#[ignore = "./test fleet"]
fn a_standby_is_refused() {
    let (world, primary) = (World::new(), Database::start(&Options::default()));
    let standby = primary.standby();
    let done = try_store(&world, &format!("postgres@127.0.0.1:{}", standby.port), PLAIN).expect(3);
    done.says("this server accepts no writes: it is a standby, or set to read-only");
    // Of several servers, the one that takes writes is used, whichever is first.
    let both = format!("postgres@127.0.0.1:{},127.0.0.1:{}", standby.port, primary.port);
    try_store(&world, &both, PLAIN).expect(0);
}

/// B74: whoever cannot connect waits, and continues.
#[test]
#[ignore = "./test fleet"]
fn a_server_without_free_connections_is_reported_and_waited_for() {
    let database = Database::start(&Options { settings: "max_connections = 12", ..Options::default() });
    database.sql("CREATE ROLE someone LOGIN; GRANT CREATE ON DATABASE postgres TO someone");
    let fleet = Fleet::new(&database, Sites::start(2));
    let machine = fleet.machine();
    let input = fleet.list("p", 40);
    let first = fleet.fetch(&machine, &["--input", &input, "--job", "one", "--delay", "200ms"]);
    fleet.sites.wait_for(4);
    let mut others = Vec::new();
    wait_until("all connections are in use", || {
        let mut psql = database.psql();
        psql.args(["-U", "someone", "-c", "SELECT pg_sleep(600)", "postgres"])
            .stdout(Stdio::null())
            .stderr(Stdio::null());
        others.push(psql.spawn().unwrap());
        std::thread::sleep(std::time::Duration::from_millis(200));
        others.iter_mut().any(|other| other.try_wait().unwrap().is_some())
    });
    let refused = try_store(&fleet.world, &format!("someone@127.0.0.1:{}", database.port), PLAIN);
    let refused = refused.expect(3);
    assert!(
        refused.stderr.contains("too many clients") || refused.stderr.contains("connection slots"),
        "{}",
        refused.stderr
    );
    for mut other in others {
        let _ = other.kill();
        other.wait().unwrap();
    }
    database
        .sql("SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE query LIKE 'SELECT pg_sleep%'");
    first.process.wait().expect(0);
    fleet.judge(&Ruling { delay_ms: 200, urls: vec![("p", 40)] });
}

/// B74: a list is added in parts, each of them whole, and the same command continues where the disk became full.
#[test]
#[ignore = "./test fleet"]
fn a_full_disk_is_reported_and_leaves_nothing_half_written() {
    if !is_root() {
        eprintln!("no small disk without root");
        return;
    }
    let disk = SmallDisk::new("20m");
    let database = Database::start(&Options::default());
    database.sql(&format!("CREATE TABLESPACE small LOCATION '{}'", disk.data.display()));
    database.sql("CREATE DATABASE small TABLESPACE small");
    let world = World::new();
    let store = format!("postgres://postgres@127.0.0.1:{}/small?{PLAIN}", database.port);
    let urls: String =
        (0..60_000).map(|nth| format!("http://127.0.0.1:9/{nth}/{:0>150}\n", nth * 7)).collect();
    let input = world.write("list", &urls);
    world.write("comity.toml", "[upkeep]\npatience = \"2s\"\n");
    // Nothing is fetched: the job is only filled.
    let args = ["--store", &store, "fetch", "--input", input.to_str().unwrap(), "--job", "one"];
    let args = [&args[..], &["--robots", "ignore", "--format", "none", "--delay", "1h"]].concat();
    let done = world.run(&args).expect(3);
    // The server says so in one way or the other.
    let is_named =
        ["No space left on device", "Check free disk space"].iter().any(|what| done.stderr.contains(what));
    assert!(is_named && done.stderr.contains("gave up after waiting"), "{}", done.stderr);
    let count = |what: &str| {
        let mut psql = database.psql();
        let done = psql.args(["-c", &format!("SELECT {what}"), "small"]).output().unwrap();
        assert!(done.status.success(), "{}", String::from_utf8_lossy(&done.stderr));
        String::from_utf8(done.stdout).unwrap().trim_end().to_owned()
    };
    assert_eq!(count("sum(tasks) FROM comity.job"), count("count(*) FROM comity.task"));
    disk.resize("400m");
    let mut again = world.start(&args);
    wait_until("the whole list is in the job", || {
        assert!(!again.is_over(), "{}", again.said());
        count("tasks FROM comity.job") == "60000"
    });
    assert_eq!(count("count(*) FROM comity.task"), "60000");
    assert_eq!(count("count(DISTINCT url) FROM comity.task"), "60000");
    drop(again);
    database.control(&["stop", "-m", "immediate"]);
}

/// A file system in memory; it is unmounted when this is dropped.
struct SmallDisk {
    folder: std::path::PathBuf,
    data: std::path::PathBuf,
}

impl SmallDisk {
    fn new(size: &str) -> Self {
        let folder = fresh_folder();
        let mounted = Command::new("mount")
            .args(["-t", "tmpfs", "-o", &format!("size={size}"), "comity-test"])
            .arg(&folder)
            .status();
        assert!(mounted.unwrap().success(), "mount");
        let data = folder.join("data");
        std::fs::create_dir(&data).unwrap();
        give_to_postgres(&data);
        give_to_postgres(&folder);
        Self { folder, data }
    }

    fn resize(&self, size: &str) {
        let options = format!("remount,size={size}");
        assert!(Command::new("mount").args(["-o", &options]).arg(&self.folder).status().unwrap().success());
    }
}

impl Drop for SmallDisk {
    fn drop(&mut self) {
        let _ = Command::new("umount").arg("--lazy").arg(&self.folder).status();
        let _ = std::fs::remove_dir(&self.folder);
    }
}
