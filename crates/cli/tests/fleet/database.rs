//! PostgreSQL servers: started on free ports in temporary folders, and stopped when this process ends, however it ends.

use std::io::Write;
use std::os::unix::fs::chown;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::sync::OnceLock;
use std::sync::atomic::{AtomicU32, Ordering};

use tempfile::TempDir;

use crate::log::wait_until;
use crate::machines::Hub;

/// A running server.
pub(crate) struct Database {
    pub(crate) port: u16,
    folder: PathBuf,
    /// Set in the environment of the server.
    preload: Option<String>,
    _keeper: Child,
}

/// How a server differs from the usual one.
#[derive(Debug, Clone, Default)]
pub(crate) struct Options {
    /// More lines for its configuration file.
    pub(crate) settings: &'static str,
    /// Its clock, as libfaketime reads it from a file; the file is `clock` in the folder of the server.
    pub(crate) clock: Option<&'static str>,
}

impl Database {
    /// The server that tests share that leave it as it is.
    pub(crate) fn shared() -> &'static Self {
        static SERVER: OnceLock<Database> = OnceLock::new();
        SERVER.get_or_init(|| Self::start(&Options::default()))
    }

    pub(crate) fn start(options: &Options) -> Self {
        let folder = fresh_folder();
        let data = folder.join("data");
        // Servers are copies of one that was never started.
        let copied =
            as_postgres(Path::new("cp")).args(["-r"]).arg(template().join("data")).arg(&data).status();
        assert!(copied.unwrap().success());
        Self::run(folder, options)
    }

    /// A standby of this server, which has all of its data when this returns.
    pub(crate) fn standby(&self) -> Self {
        let folder = fresh_folder();
        let made = as_postgres(&program("pg_basebackup"))
            .args([
                "-h",
                "127.0.0.1",
                "-U",
                "postgres",
                "-R",
                "-c",
                "fast",
                "-p",
                &self.port.to_string(),
                "-D",
            ])
            .arg(folder.join("data"))
            .output()
            .unwrap();
        assert!(made.status.success(), "{}", String::from_utf8_lossy(&made.stderr));
        Self::run(folder, &Options::default())
    }

    fn run(folder: PathBuf, options: &Options) -> Self {
        let port = free_port();
        let mut hosts = vec!["127.0.0.1", Hub::get().databases.as_str()];
        hosts.dedup();
        let settings = format!(
            "port = {port}\nlisten_addresses = '{}'\nunix_socket_directories = ''\nmax_connections = 200\n\
             fsync = off\nfull_page_writes = off\nlogging_collector = off\nmax_wal_size = 256MB\n{}\n",
            hosts.join(","),
            options.settings
        );
        let data = folder.join("data");
        let mut file = std::fs::OpenOptions::new().append(true).open(data.join("postgresql.conf")).unwrap();
        file.write_all(settings.as_bytes()).unwrap();
        let rules = "host all guarded all scram-sha-256\nhostnossl all coded all reject\n\
                     host all all 127.0.0.1/32 trust\nhost all all 198.18.0.0/15 trust\n\
                     host replication all 127.0.0.1/32 trust\n";
        std::fs::write(data.join("pg_hba.conf"), rules).unwrap();
        let preload = options.clock.map(|clock| {
            std::fs::write(folder.join("clock"), clock).unwrap();
            faketime()
        });
        // It stops when this process ends, because then its standard input is closed.
        let script =
            "trap '' INT TERM HUP; read -r _; \"$1\" -D \"$2/data\" -m immediate stop; rm -rf \"$2\"";
        let keeper = as_postgres(Path::new("sh"))
            .args(["-c", script, "keeper"])
            .arg(program("pg_ctl"))
            .arg(&folder)
            .stdin(Stdio::piped())
            .stdout(Stdio::null())
            .stderr(Stdio::null())
            .spawn()
            .unwrap();
        let server = Self { port, folder, preload, _keeper: keeper };
        server.control(&["start"]);
        server
    }

    /// Runs `pg_ctl`, and waits for what it does.
    pub(crate) fn control(&self, args: &[&str]) {
        let mut command = as_postgres(Path::new("env"));
        if let Some(library) = &self.preload {
            command.arg(format!("LD_PRELOAD={library}"));
            command.arg(format!("FAKETIME_TIMESTAMP_FILE={}", self.folder.join("clock").display()));
            command.args(["FAKETIME_NO_CACHE=1", "FAKETIME_DONT_FAKE_MONOTONIC=1"]);
        }
        command.arg(program("pg_ctl")).arg("-D").arg(self.folder.join("data"));
        command.arg("-l").arg(self.folder.join("log")).args(["-w", "-t", "120"]).args(args);
        // A server inherits these, and whoever reads them would wait for its end.
        let done = command.stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::null()).status().unwrap();
        assert!(done.success(), "pg_ctl {args:?}:\n{}", self.log());
    }

    /// What the server logged.
    pub(crate) fn log(&self) -> String {
        std::fs::read_to_string(self.folder.join("log")).unwrap_or_default()
    }

    /// Sets the clock of a server that was started with one.
    pub(crate) fn set_clock(&self, clock: &str) {
        std::fs::write(self.folder.join("clock"), clock).unwrap();
    }

    /// Runs SQL as the superuser, and returns what psql prints.
    #[track_caller]
    pub(crate) fn sql(&self, sql: &str) -> String {
        let done = self.psql().args(["-c", sql, "postgres"]).output().unwrap();
        assert!(done.status.success(), "{sql}\n{}", String::from_utf8_lossy(&done.stderr));
        String::from_utf8(done.stdout).unwrap().trim_end().to_owned()
    }

    /// A program that runs SQL as the superuser.
    pub(crate) fn psql(&self) -> Command {
        let mut psql = Command::new(program("psql"));
        psql.args(["-h", "127.0.0.1", "-U", "postgres", "-X", "-qAt", "-v", "ON_ERROR_STOP=1"]);
        psql.args(["-p", &self.port.to_string()]);
        psql
    }

    /// The name of a schema that no other test uses.
    pub(crate) fn schema() -> String {
        static NTH: AtomicU32 = AtomicU32::new(0);
        format!("fleet_{}", NTH.fetch_add(1, Ordering::Relaxed))
    }
}

/// A folder that belongs to the user who runs the servers.
pub(crate) fn fresh_folder() -> PathBuf {
    let folder = tempfile::Builder::new().prefix("comity-fleet-").tempdir().unwrap().keep();
    give_to_postgres(&folder);
    folder
}

/// Makes a file or folder belong to the user who runs the servers.
pub(crate) fn give_to_postgres(path: &Path) {
    if is_root() {
        chown(path, Some(id_of("-u")), Some(id_of("-g"))).unwrap();
    }
}

/// The folder that servers are copied from; it is there for as long as this process.
fn template() -> &'static Path {
    static TEMPLATE: OnceLock<TempDir> = OnceLock::new();
    let folder = TEMPLATE.get_or_init(|| {
        let folder = tempfile::Builder::new().prefix("comity-fleet-").tempdir().unwrap();
        give_to_postgres(folder.path());
        let made = as_postgres(&program("initdb"))
            .args(["--no-sync", "--auth=trust", "--username=postgres", "--encoding=UTF8", "--locale=C", "-D"])
            .arg(folder.path().join("data"))
            .output()
            .unwrap();
        assert!(made.status.success(), "{}", String::from_utf8_lossy(&made.stderr));
        folder
    });
    folder.path()
}

/// A program of the newest server.
fn program(name: &str) -> PathBuf {
    let versions = std::fs::read_dir("/usr/lib/postgresql");
    let versions = versions.expect("the Debian package postgresql is missing: run ./test fleet");
    let mut folders: Vec<PathBuf> = versions.flatten().map(|version| version.path().join("bin")).collect();
    folders.retain(|folder| folder.join("initdb").exists());
    folders.sort();
    folders.pop().expect("the Debian package postgresql is missing: run ./test fleet").join(name)
}

fn faketime() -> String {
    let folders = std::fs::read_dir("/usr/lib").unwrap().flatten();
    let mut libraries = folders.map(|folder| folder.path().join("faketime/libfaketime.so.1"));
    let library = libraries.find(|library| library.exists());
    library.expect("the Debian package faketime is missing: run ./test fleet").display().to_string()
}

/// A command that runs as the user of Debian's package, if this process is root: PostgreSQL refuses to run as root.
pub(crate) fn as_postgres(program: &Path) -> Command {
    let mut command = match is_root() {
        true => Command::new("runuser"),
        false => return Command::new(program),
    };
    command.args(["-u", "postgres", "--"]).arg(program).current_dir("/");
    command
}

pub(crate) fn is_root() -> bool {
    rustix::process::geteuid().is_root()
}

fn id_of(flag: &str) -> u32 {
    let asked = Command::new("id").args([flag, "postgres"]).output().unwrap();
    String::from_utf8_lossy(&asked.stdout).trim().parse().unwrap()
}

pub(crate) fn free_port() -> u16 {
    std::net::TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap().port()
}

/// Waits until a query returns what is expected.
#[track_caller]
pub(crate) fn wait_for_sql(database: &Database, sql: &str, expected: &str) {
    wait_until(sql, || database.sql(sql) == expected);
}
