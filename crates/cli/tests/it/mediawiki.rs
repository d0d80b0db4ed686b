//! Debian's MediaWiki on a free port, with its own database.

use std::io::Write;
use std::net::{TcpListener, TcpStream};
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::sync::OnceLock;

use tempfile::TempDir;

use crate::log::wait_until;

/// A wiki that runs until it is dropped.
pub(crate) struct MediaWiki {
    folder: TempDir,
    server: Child,
    port: u16,
}

/// A revision in the wiki's own database.
#[derive(Debug, PartialEq, Eq)]
pub(crate) struct Row {
    pub(crate) id: i64,
    pub(crate) page: i64,
    pub(crate) parent: i64,
    pub(crate) at: String,
    /// What is hidden: 1 the text, 2 the comment, 4 the user, 8 from administrators too.
    pub(crate) hidden: i64,
    pub(crate) sha1: String,
    pub(crate) size: i64,
    pub(crate) minor: bool,
    pub(crate) user: Option<String>,
    pub(crate) comment: Option<String>,
    /// The SHA-1 of the text of its main slot.
    pub(crate) text: Option<String>,
}

impl MediaWiki {
    pub(crate) fn start() -> Self {
        // Another program may take the port first, but not every time.
        (0..5).find_map(|_| Self::try_start()).expect("MediaWiki does not start")
    }

    fn try_start() -> Option<Self> {
        let folder = tempfile::tempdir().unwrap();
        let port = TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap().port();
        let data = folder.path().join("data");
        let server = format!("http://127.0.0.1:{port}");
        let mut install = Command::new("php");
        install.arg(tree().join("maintenance/install.php"));
        install.args(["--dbtype", "sqlite", "--dbname", "wiki", "--scriptpath", "", "--server", &server]);
        install.arg("--dbpath").arg(&data).arg("--confpath").arg(folder.path());
        install.args(["--pass", "a-long-password", "Test wiki", "admin"]);
        let installed = install.output().unwrap();
        assert!(installed.status.success(), "{}", String::from_utf8_lossy(&installed.stdout));
        let mut serve = Command::new("php");
        serve.args(["-S", &format!("127.0.0.1:{port}"), "-t"]).arg(tree());
        serve
            .env("PHP_CLI_SERVER_WORKERS", "4")
            .env("MW_CONFIG_FILE", folder.path().join("LocalSettings.php"));
        // Its workers are in its process group, and end with it.
        serve.process_group(0);
        serve.stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::null());
        let mut wiki = Self { server: serve.spawn().unwrap(), folder, port };
        wait_until("the wiki listens or ends", || {
            TcpStream::connect(("127.0.0.1", port)).is_ok() || wiki.server.try_wait().unwrap().is_some()
        });
        wiki.server.try_wait().unwrap().is_none().then_some(wiki)
    }

    /// The URL of its API.
    pub(crate) fn api(&self) -> String {
        format!("http://127.0.0.1:{}/api.php", self.port)
    }

    pub(crate) fn port(&self) -> u16 {
        self.port
    }

    /// Makes a revision of a page.
    pub(crate) fn edit(&self, title: &str, text: &str) {
        self.maintain("edit.php", &["--summary", &format!("on {title}"), title], text);
    }

    pub(crate) fn rename(&self, from: &str, to: &str) {
        self.rename_all(&format!("{from}|{to}\n"));
    }

    /// Moves pages: one `FROM|TO` per line.
    pub(crate) fn rename_all(&self, list: &str) {
        let list = self.write("moves", list);
        self.maintain("moveBatch.php", &[&list], "");
    }

    pub(crate) fn delete(&self, title: &str) {
        let list = self.write("deletions", &format!("{title}\n"));
        self.maintain("deleteBatch.php", &[&list], "");
    }

    pub(crate) fn restore(&self, title: &str) {
        self.maintain("undelete.php", &[title], "");
    }

    /// Uploads a file, or another version of it.
    pub(crate) fn upload(&self, name: &str, content: &[u8]) {
        let folder = self.folder.path().join("new");
        std::fs::create_dir_all(&folder).unwrap();
        let file = folder.join(name);
        std::fs::write(&file, content).unwrap();
        let folder = folder.display().to_string();
        let said = self.maintain("importImages.php", &["--overwrite", "--extensions=png", &folder], "");
        assert!(said.contains("Successfully") || said.contains("done."), "{said}");
        std::fs::remove_file(file).unwrap();
    }

    /// The folder of uploaded files.
    pub(crate) fn uploaded(&self) -> PathBuf {
        self.folder.path().join("images")
    }

    fn uploads(&self) -> String {
        format!("uploads-{}", self.port)
    }

    /// A bot password, which raises the API's limits.
    pub(crate) fn bot_password(&self) -> (String, String) {
        let password = "0123456789abcdef0123456789abcdef";
        let grants = ["--appid", "archive", "--grants", "basic,highvolume", "Admin", password];
        self.maintain("createBotPassword.php", &grants, "");
        ("Admin@archive".to_owned(), password.to_owned())
    }

    /// Adds to its settings.
    pub(crate) fn set(&self, php: &str) {
        let path = self.folder.path().join("LocalSettings.php");
        let before = std::fs::read_to_string(&path).unwrap();
        std::fs::write(&path, format!("{before}\n{php}\n")).unwrap();
    }

    /// Allows uploads; files are served at `base`, or by the wiki itself.
    pub(crate) fn take_uploads(&self, base: Option<&str>) {
        let uploaded = self.uploaded();
        std::fs::create_dir_all(&uploaded).unwrap();
        std::os::unix::fs::symlink(&uploaded, tree().join(self.uploads())).unwrap();
        let base =
            base.map_or_else(|| format!("/{}", self.uploads()), |base| format!("{base}/{}", self.uploads()));
        self.set(&format!(
            "$wgEnableUploads = true; $wgVerifyMimeType = false; $wgUploadDirectory = '{}'; $wgUploadPath = '{base}';",
            uploaded.display()
        ));
    }

    /// Lets only administrators edit a page.
    pub(crate) fn protect(&self, title: &str) {
        self.maintain("protect.php", &[title], "");
    }

    /// Imports a dump, and returns the output.
    pub(crate) fn import(&self, dump: &Path) -> String {
        self.maintain("importDump.php", &[&dump.display().to_string()], "")
    }

    /// Hides parts of all but the newest revision of a page (a wiki can't hide that one): 1 text, 2 comment, 4 user, 8
    /// from administrators too.
    pub(crate) fn hide(&self, title: &str, bits: i64) {
        let sql = "UPDATE revision SET rev_deleted = ?2
            WHERE rev_id IN (SELECT rev_id FROM revision JOIN page ON page_id = rev_page
                WHERE CAST(page_title AS TEXT) = ?1 AND rev_id < page_latest)";
        let changed = self.sql().execute(sql, rusqlite::params![title.replace(' ', "_"), bits]).unwrap();
        assert!(changed > 0, "{title}");
    }

    /// Its database.
    pub(crate) fn sql(&self) -> rusqlite::Connection {
        let sql = rusqlite::Connection::open(self.folder.path().join("data/wiki.sqlite")).unwrap();
        sql.busy_timeout(std::time::Duration::from_secs(10)).unwrap();
        sql
    }

    /// Every revision of the pages of a namespace.
    pub(crate) fn revisions(&self, namespace: i64) -> Vec<Row> {
        let sql = "SELECT rev_id, rev_page, coalesce(rev_parent_id, 0), CAST(rev_timestamp AS TEXT), rev_deleted,
                CAST(rev_sha1 AS TEXT), rev_len, rev_minor_edit, CAST(actor_name AS TEXT), CAST(comment_text AS TEXT),
                CAST(content_sha1 AS TEXT)
            FROM revision JOIN page ON page_id = rev_page JOIN actor ON actor_id = rev_actor
                JOIN revision_comment_temp ON revcomment_rev = rev_id JOIN comment ON comment_id = revcomment_comment_id
                JOIN slots ON slot_revision_id = rev_id AND slot_role_id = 1
                JOIN content ON content_id = slot_content_id
            WHERE page_namespace = ?1 ORDER BY rev_id";
        let connection = self.sql();
        let mut statement = connection.prepare(sql).unwrap();
        statement.query_map([namespace], Row::read).unwrap().map(Result::unwrap).collect()
    }

    /// Every page of a namespace: its id, its title, whether it is a redirect, its newest revision.
    pub(crate) fn pages(&self, namespace: i64) -> Vec<(i64, String, bool, i64)> {
        let sql = "SELECT page_id, replace(CAST(page_title AS TEXT), '_', ' '), page_is_redirect, page_latest
            FROM page WHERE page_namespace = ?1 ORDER BY page_id";
        let connection = self.sql();
        let mut statement = connection.prepare(sql).unwrap();
        let row = |row: &rusqlite::Row<'_>| Ok((row.get(0)?, row.get(1)?, row.get(2)?, row.get(3)?));
        statement.query_map([namespace], row).unwrap().map(Result::unwrap).collect()
    }

    fn write(&self, name: &str, text: &str) -> String {
        let path = self.folder.path().join(name);
        std::fs::write(&path, text).unwrap();
        path.display().to_string()
    }

    /// Runs a maintenance script, and returns its output.
    fn maintain(&self, script: &str, args: &[&str], input: &str) -> String {
        let mut command = Command::new("php");
        command.arg(tree().join("maintenance").join(script)).args(args);
        command.env("MW_CONFIG_FILE", self.folder.path().join("LocalSettings.php"));
        command.stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::piped());
        let mut child = command.spawn().unwrap();
        child.stdin.take().unwrap().write_all(input.as_bytes()).unwrap();
        let ended = child.wait_with_output().unwrap();
        let said = [ended.stdout, ended.stderr].concat();
        let said = String::from_utf8_lossy(&said).into_owned();
        assert!(ended.status.success(), "{script} {args:?}: {said}");
        said
    }
}

impl Row {
    /// Reads columns in the order of the fields.
    pub(crate) fn read(row: &rusqlite::Row<'_>) -> rusqlite::Result<Self> {
        Ok(Self {
            id: row.get(0)?,
            page: row.get(1)?,
            parent: row.get(2)?,
            at: row.get(3)?,
            hidden: row.get(4)?,
            sha1: row.get(5)?,
            size: row.get(6)?,
            minor: row.get(7)?,
            user: row.get(8)?,
            comment: row.get(9)?,
            text: row.get(10)?,
        })
    }
}

impl Drop for MediaWiki {
    fn drop(&mut self) {
        let group = format!("-{}", self.server.id());
        let _ = Command::new("kill").args(["-s", "TERM", "--", &group]).status();
        let _ = self.server.wait();
        let _ = std::fs::remove_file(tree().join(self.uploads()));
    }
}

/// A copy of the program that Debian installs, without the settings that all its wikis would share.
fn tree() -> &'static Path {
    static TREE: OnceLock<PathBuf> = OnceLock::new();
    TREE.get_or_init(|| {
        let tree = Path::new(env!("CARGO_TARGET_TMPDIR")).join("mediawiki");
        assert!(
            Path::new(INSTALLED).join("api.php").exists(),
            "{INSTALLED} is missing: ./test installs Debian's package mediawiki"
        );
        if !tree.exists() {
            let part = tree.with_extension(std::process::id().to_string());
            // Broken links are left out.
            let _ = Command::new("cp").arg("-rL").arg(INSTALLED).arg(&part).stderr(Stdio::null()).status();
            let _ = std::fs::remove_file(part.join("LocalSettings.php"));
            assert!(part.join("api.php").exists(), "{} could not be copied", INSTALLED);
            if std::fs::rename(&part, &tree).is_err() {
                // Another test was first.
                let _ = std::fs::remove_dir_all(&part);
            }
        }
        tree
    })
}

const INSTALLED: &str = "/usr/share/mediawiki";
