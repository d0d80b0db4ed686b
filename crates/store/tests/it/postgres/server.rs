//! A PostgreSQL server for the tests of this process: started on a free port in a temporary folder when the first test needs
//! it, and stopped when this process ends, however it ends.

use std::io::Write;
use std::os::unix::fs::chown;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::sync::OnceLock;
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::Duration;

/// A running server.
pub(crate) struct Server {
    port: u16,
    _keeper: Child,
}

impl Server {
    /// The server that all tests of this process share.
    pub(crate) fn shared() -> &'static Self {
        static SERVER: OnceLock<Server> = OnceLock::new();
        SERVER.get_or_init(Self::start)
    }

    /// The URL of a schema that no other test uses.
    pub(crate) fn fresh_url(&self) -> String {
        static NTH: AtomicU32 = AtomicU32::new(0);
        let nth = NTH.fetch_add(1, Ordering::Relaxed);
        format!("postgres://postgres@127.0.0.1:{}/postgres?schema=test_{nth}&sslmode=disable", self.port)
    }

    /// Runs SQL as the superuser, and returns what psql prints.
    pub(crate) fn run_sql(&self, sql: &str) -> String {
        let mut psql = Command::new(binaries().join("psql"));
        psql.args([
            "-h",
            "127.0.0.1",
            "-U",
            "postgres",
            "-X",
            "-qAt",
            "-v",
            "ON_ERROR_STOP=1",
            "-c",
            sql,
            "postgres",
        ]);
        let done = psql.args(["-p", &self.port.to_string()]).output().unwrap();
        assert!(done.status.success(), "{}", String::from_utf8_lossy(&done.stderr));
        String::from_utf8(done.stdout).unwrap()
    }

    /// A session that runs the SQL on its standard input and prints values only.
    pub(crate) fn psql(&self) -> Child {
        let mut psql = Command::new(binaries().join("psql"));
        psql.args(["-h", "127.0.0.1", "-U", "postgres", "-X", "-q", "-A", "-t", "-v", "ON_ERROR_STOP=1"]);
        psql.args(["-p", &self.port.to_string(), "postgres"]);
        psql.stdin(Stdio::piped()).stdout(Stdio::piped()).spawn().unwrap()
    }

    fn start() -> Self {
        let folder = tempfile::Builder::new().prefix("comity-postgres-").tempdir().unwrap().keep();
        let bin = binaries();
        // PostgreSQL refuses to run as root.
        let is_root = rustix_uid() == 0;
        if is_root {
            let (uid, gid) = (id_of("-u"), id_of("-g"));
            chown(&folder, Some(uid), Some(gid)).unwrap();
        }
        let data = folder.join("data");
        let mut initdb = as_postgres(is_root, &bin.join("initdb"));
        let made = initdb
            .args(["--no-sync", "--auth=trust", "--username=postgres", "--encoding=UTF8", "--locale=C", "-D"])
            .arg(&data)
            .output();
        let made = made.unwrap();
        assert!(made.status.success(), "{}", String::from_utf8_lossy(&made.stderr));
        let port = free_port();
        let settings = format!(
            "port = {port}\nlisten_addresses = '127.0.0.1'\nunix_socket_directories = ''\nmax_connections = 400\n\
             fsync = off\nsynchronous_commit = on\nlogging_collector = off\nmax_wal_size = 256MB\n"
        );
        let mut file = std::fs::OpenOptions::new().append(true).open(data.join("postgresql.conf")).unwrap();
        file.write_all(settings.as_bytes()).unwrap();
        // Only this user needs a password.
        let rules = "host all guarded 127.0.0.1/32 scram-sha-256\nhost all all 127.0.0.1/32 trust\n";
        std::fs::write(data.join("pg_hba.conf"), rules).unwrap();
        // It stops when this process ends, because then its standard input is closed.
        let script = "\"$1\" -D \"$2\" >\"$3/log\" 2>&1 & server=$!; read -r _; kill -INT $server; wait $server; rm -rf \"$3\"";
        let keeper = as_postgres(is_root, Path::new("sh"))
            .args(["-c", script, "keeper"])
            .arg(bin.join("postgres"))
            .arg(&data)
            .arg(&folder)
            .stdin(Stdio::piped())
            .spawn()
            .unwrap();
        let mut looks = 0;
        while !is_ready(&bin, port) {
            assert!(looks < 1_200, "PostgreSQL did not start: see {}", folder.join("log").display());
            looks += 1;
            std::thread::sleep(Duration::from_millis(50));
        }
        Self { port, _keeper: keeper }
    }
}

fn is_ready(bin: &Path, port: u16) -> bool {
    let asked = Command::new(bin.join("pg_isready"))
        .args(["-q", "-h", "127.0.0.1", "-p", &port.to_string()])
        .status();
    asked.is_ok_and(|status| status.success())
}

/// The folder with the newest server's programs.
fn binaries() -> PathBuf {
    let versions = std::fs::read_dir("/usr/lib/postgresql")
        .expect("the Debian package postgresql is missing: run ./test");
    let mut folders: Vec<PathBuf> = versions.flatten().map(|version| version.path().join("bin")).collect();
    folders.retain(|folder| folder.join("initdb").exists());
    folders.sort();
    folders.pop().expect("the Debian package postgresql is missing: run ./test")
}

/// A command that runs as the user of Debian's package, if this process is root.
fn as_postgres(is_root: bool, program: &Path) -> Command {
    if !is_root {
        return Command::new(program);
    }
    let mut command = Command::new("runuser");
    command.args(["-u", "postgres", "--"]).arg(program);
    command
}

fn id_of(flag: &str) -> u32 {
    let asked = Command::new("id").args([flag, "postgres"]).output().unwrap();
    String::from_utf8_lossy(&asked.stdout).trim().parse().unwrap()
}

fn rustix_uid() -> u32 {
    let asked = Command::new("id").arg("-u").output().unwrap();
    String::from_utf8_lossy(&asked.stdout).trim().parse().unwrap()
}

fn free_port() -> u16 {
    std::net::TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap().port()
}
