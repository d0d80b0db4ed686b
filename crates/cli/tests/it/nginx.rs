//! Debian's nginx on a free port in a temporary folder, and its log.

use std::net::{TcpListener, TcpStream};
use std::path::PathBuf;
use std::process::{Child, Command, Stdio};
use std::time::Duration;

use serde_json::Value;
use tempfile::TempDir;

use crate::log::{Hit, wait_until};

/// An nginx that runs until it is dropped.
pub(crate) struct Nginx {
    child: Child,
    folder: TempDir,
    port: u16,
}

impl Nginx {
    /// Answers every path with a page, except for `locations`, in which `{PORT}` is replaced by its port.
    pub(crate) fn start(locations: &str) -> Self {
        assert!(
            std::path::Path::new(NGINX).exists(),
            "{NGINX} is missing: install Debian's package nginx (apt-get install -y nginx-light)"
        );
        // Another program may take the port first, but not every time.
        (0..5).find_map(|_| Self::try_start(locations)).expect("nginx does not start")
    }

    fn try_start(locations: &str) -> Option<Self> {
        // In memory if possible: while nginx waits for a busy disk, it logs requests later than they came.
        let folder = tempfile::tempdir_in("/dev/shm").or_else(|_| tempfile::tempdir()).unwrap();
        let port = TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap().port();
        std::fs::create_dir(folder.path().join("www")).unwrap();
        let configuration = folder.path().join("nginx.conf");
        std::fs::write(&configuration, configure(&folder.path().display().to_string(), port, locations))
            .unwrap();
        let mut command = first();
        command.arg("-c").arg(&configuration).arg("-p").arg(folder.path());
        command.stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::null());
        let mut nginx = Self { child: command.spawn().unwrap(), folder, port };
        // The pid file is written once it listens.
        let listens = nginx.folder.path().join("pid");
        wait_until("nginx listens or ends", || listens.exists() || nginx.child.try_wait().unwrap().is_some());
        wait_until("nginx answers or ends", || {
            TcpStream::connect(("127.0.0.1", port)).is_ok() || nginx.child.try_wait().unwrap().is_some()
        });
        nginx.child.try_wait().unwrap().is_none().then_some(nginx)
    }

    /// Answers on `count` hosts, with these `locations`.
    pub(crate) fn on_hosts(count: usize, locations: &str) -> (Self, Vec<String>) {
        let hosts: Vec<String> =
            (0..count).map(|nth| format!("127.9.{}.{}", nth / 200, nth % 200 + 1)).collect();
        let listens: String = hosts.iter().map(|host| format!("listen {host}:{{PORT}};\n")).collect();
        let nginx = Self::start(&format!("{listens}{locations}"));
        let urls = hosts.iter().map(|host| format!("http://{host}:{}", nginx.port)).collect();
        (nginx, urls)
    }

    pub(crate) fn url(&self) -> String {
        format!("http://127.0.0.1:{}", self.port)
    }

    /// The log so far, in the order of starts.
    pub(crate) fn log(&self) -> Vec<Hit> {
        let text = std::fs::read_to_string(self.folder.path().join("access.log")).unwrap_or_default();
        let whole = text.rfind('\n').map_or("", |end| &text[..end]);
        let mut hits: Vec<Hit> = whole.lines().map(read).collect();
        hits.sort_by_key(|hit| hit.start);
        hits
    }

    /// Writes a file of the site, for locations that serve files.
    pub(crate) fn put(&self, path: &str, body: impl AsRef<[u8]>) {
        let file = self.www().join(path.trim_start_matches('/'));
        std::fs::create_dir_all(file.parent().unwrap()).unwrap();
        // Atomically: requests in the meantime get the old file or the new one.
        let new = self.folder.path().join("new");
        std::fs::write(&new, body).unwrap();
        std::fs::rename(new, file).unwrap();
    }

    /// The folder that files are served from.
    pub(crate) fn www(&self) -> PathBuf {
        self.folder.path().join("www")
    }

    /// The finished requests with their headers: `path`, `status`, `if_none_match`, `user_agent` …
    pub(crate) fn asked(&self) -> Vec<Value> {
        let text = std::fs::read_to_string(self.folder.path().join("asked.log")).unwrap_or_default();
        let whole = text.rfind('\n').map_or("", |end| &text[..end]);
        whole.lines().map(|line| serde_json::from_str(line).unwrap()).collect()
    }

    pub(crate) fn wait_for(&self, count: usize) {
        wait_until(&format!("{count} requests"), || self.log().len() >= count);
    }
}

impl Drop for Nginx {
    fn drop(&mut self) {
        let _ = Command::new("kill").args(["-s", "TERM", &self.child.id().to_string()]).status();
        for _ in 0..200 {
            if !matches!(self.child.try_wait(), Ok(None)) {
                return;
            }
            std::thread::sleep(Duration::from_millis(10));
        }
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// `$msec $request_time $host $server_port $uri $status $connection`
fn read(line: &str) -> Hit {
    let mut words = line.split(' ');
    let mut word = || words.next().unwrap_or_else(|| panic!("{line}"));
    let (end, took) = (micros(word()), micros(word()));
    let (_host, _port, path, status, connection) = (word(), word(), word(), word(), word());
    Hit {
        start: end - took,
        answered: end,
        done: end,
        path: path.to_owned(),
        status: status.parse().unwrap(),
        connection: connection.parse().unwrap(),
    }
}

/// `1792108800.123` as microseconds.
fn micros(text: &str) -> i64 {
    let (secs, millis) = text.split_once('.').unwrap();
    secs.parse::<i64>().unwrap() * 1_000_000 + millis.parse::<i64>().unwrap() * 1_000
}

/// nginx with a higher priority, if that is allowed: it logs when it read a request, and if it has to wait for a core,
/// it logs starts that are too late.
fn first() -> Command {
    let allowed = Command::new("chrt").args(["--fifo", "1", "true"]).stderr(Stdio::null()).status();
    if !allowed.is_ok_and(|status| status.success()) {
        return Command::new(NGINX);
    }
    let mut command = Command::new("chrt");
    command.args(["--fifo", "1", NGINX]);
    command
}

fn configure(folder: &str, port: u16, locations: &str) -> String {
    let locations = locations.replace("{PORT}", &port.to_string());
    format!(
        "user root; daemon off; worker_processes 1; pid {folder}/pid;
error_log {folder}/error.log warn;
events {{ worker_connections 2048; }}
http {{
    default_type text/html;
    log_format starts '$msec $request_time $host $server_port $uri $status $connection';
    access_log {folder}/access.log starts;
    log_format asked escape=json '{{\"path\":\"$uri\",\"query\":\"$args\",\"method\":\"$request_method\",\"status\":$status,\"accept\":\"$http_accept\",'
        '\"if_none_match\":\"$http_if_none_match\",\"if_modified_since\":\"$http_if_modified_since\",'
        '\"user_agent\":\"$http_user_agent\",\"encoding\":\"$sent_http_content_encoding\"}}';
    access_log {folder}/asked.log asked;
    client_body_temp_path {folder}/body; proxy_temp_path {folder}/proxy; fastcgi_temp_path {folder}/fastcgi;
    uwsgi_temp_path {folder}/uwsgi; scgi_temp_path {folder}/scgi;
    limit_req_zone $server_port zone=strict:64k rate=4r/s;
    limit_req_zone $server_port zone=stricter:64k rate=40r/m;
    server {{
        listen 127.0.0.1:{port};
        root {folder}/www;
        {locations}
        location / {{ return 200 'page $uri\n'; }}
    }}
}}
"
    )
}

const NGINX: &str = "/usr/sbin/nginx";
