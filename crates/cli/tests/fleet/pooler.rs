//! PgBouncer in transaction mode, in front of a server.

use std::path::PathBuf;
use std::process::{Child, Stdio};

use crate::database::{Database, as_postgres, free_port, fresh_folder};
use crate::log::wait_until;
use crate::machines::Hub;

/// A running pooler; it ends with this process, however that ends.
pub(crate) struct Pooler {
    pub(crate) port: u16,
    folder: PathBuf,
    _keeper: Child,
}

impl Pooler {
    /// A pooler that uses at most `connections` of a server.
    pub(crate) fn start(database: &Database, connections: usize) -> Self {
        let (folder, port) = (fresh_folder(), free_port());
        let mut hosts = vec!["127.0.0.1", Hub::get().databases.as_str()];
        hosts.dedup();
        let config = format!(
            "[databases]\npostgres = host=127.0.0.1 port={} user=postgres\n[pgbouncer]\nlisten_addr = {}\n\
             listen_port = {port}\nunix_socket_dir =\nauth_type = any\npool_mode = transaction\n\
             default_pool_size = {connections}\nlogfile = {}/log\nserver_idle_timeout = 5\n",
            database.port,
            hosts.join(","),
            folder.display()
        );
        let file = folder.join("pgbouncer.ini");
        std::fs::write(&file, config).unwrap();
        let script = "trap '' INT TERM HUP; \"$1\" -q \"$2/pgbouncer.ini\" & server=$!; read -r _; kill -KILL $server; rm -rf \"$2\"";
        let keeper = as_postgres("sh".as_ref())
            .args(["-c", script, "keeper", "/usr/sbin/pgbouncer"])
            .arg(&folder)
            .stdin(Stdio::piped())
            .stdout(Stdio::null())
            .stderr(Stdio::null())
            .spawn()
            .expect("the Debian package pgbouncer is missing: run ./test fleet");
        wait_until("PgBouncer listens", || std::net::TcpStream::connect(("127.0.0.1", port)).is_ok());
        Self { port, folder, _keeper: keeper }
    }

    /// What the pooler logged.
    pub(crate) fn log(&self) -> String {
        std::fs::read_to_string(self.folder.join("log")).unwrap_or_default()
    }
}
