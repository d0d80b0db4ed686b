//! A store in PostgreSQL, machines, and processes on them that fetch from the sites.

use std::cell::RefCell;

use crate::comity::{Done, Running, World};
use crate::database::Database;
use crate::judge::{self, Fault, Ruling};
use crate::log::{now_us, wait_until};
use crate::machines::Machine;
use crate::sites::Sites;

/// Everything that a test about many machines needs.
pub(crate) struct Fleet<'a> {
    pub(crate) world: World,
    pub(crate) sites: Sites,
    pub(crate) database: &'a Database,
    pub(crate) schema: String,
    pub(crate) started: RefCell<Vec<(String, u32)>>,
    pub(crate) faults: RefCell<Vec<Fault>>,
}

/// Three processes that share all sites. One machine has the first, which began the job `one`; the other machine has one that
/// joined it, and one with a job of its own, `two`, so that sites change hands all the time.
pub(crate) struct Team {
    pub(crate) first: Member,
    pub(crate) joined: Member,
    pub(crate) rival: Member,
    urls: (usize, usize),
}

impl Team {
    /// Waits for the end of all three, and for both jobs; returns what they reported.
    pub(crate) fn finish(self, fleet: &Fleet<'_>) -> Vec<Done> {
        let members = [self.first, self.joined, self.rival];
        let done = members.map(|member| member.process.wait().expect(0));
        fleet.wait_for_jobs(self.urls);
        done.into()
    }

    /// Like [`Self::finish`], without the first one, which was killed.
    pub(crate) fn finish_without_first(self, fleet: &Fleet<'_>) -> Vec<Done> {
        fleet.kill(self.first);
        let done = [self.joined, self.rival].map(|member| member.process.wait().expect(0));
        fleet.wait_for_jobs(self.urls);
        done.into()
    }
}

/// A running process of a fleet.
pub(crate) struct Member {
    /// The user agent of its requests.
    pub(crate) by: String,
    pub(crate) process: Running,
}

impl<'a> Fleet<'a> {
    /// A fleet on `database` whose store exists, and in which takeovers are recorded.
    pub(crate) fn new(database: &'a Database, sites: Sites) -> Self {
        let schema = Database::schema();
        let fleet = Self {
            world: World::new(),
            sites,
            database,
            schema,
            started: RefCell::default(),
            faults: RefCell::default(),
        };
        let store = fleet.url(&format!("127.0.0.1:{}", database.port));
        fleet.world.run(&["--store", &store, "check", "http://a.example/"]).expect(0);
        database.sql(&judge::recording(&fleet.schema));
        fleet
    }

    /// The URL of the store for whoever reaches the database at `address`.
    pub(crate) fn url(&self, address: &str) -> String {
        format!("postgres://postgres@{address}/postgres?schema={}&sslmode=disable", self.schema)
    }

    /// A machine that reaches the database.
    pub(crate) fn machine(&self) -> Machine {
        Machine::start(self.database.port)
    }

    /// Starts `comity fetch` with more arguments on a machine.
    pub(crate) fn fetch(&self, machine: &Machine, args: &[&str]) -> Member {
        self.fetch_from(machine, &self.url(&machine.database(self.database.port)), args)
    }

    /// Like [`Self::fetch`], with another URL of the store.
    pub(crate) fn fetch_from(&self, machine: &Machine, store: &str, args: &[&str]) -> Member {
        let by = format!("m{}", self.started.borrow().len());
        let mut command = machine.command(env!("CARGO_BIN_EXE_comity"));
        command.args(["--log-format", "json", "fetch", "--robots", "ignore", "--format", "none"]).args(args);
        command.current_dir(self.world.path("")).env_clear().stdin(std::process::Stdio::null());
        command.env("COMITY_STORE", store).env("COMITY_HTTP_USER_AGENT", &by);
        command.env("COMITY_HTTP_CONTACT", "ops@example.org");
        let process = self.world.begin(command);
        self.started.borrow_mut().push((by.clone(), process.id()));
        Member { by, process }
    }

    /// Starts a team, whose jobs have this many URLs per site, and waits until sites have changed hands. `stores` are the URLs of
    /// the store for each machine.
    pub(crate) fn team(&self, machines: [&Machine; 2], stores: [&str; 2], urls: (usize, usize)) -> Team {
        let (one, two) = (self.list("one", urls.0), self.list("two", urls.1));
        let args = |list| ["--input", list, "--delay", "200ms", "--job"];
        let first = self.fetch_from(machines[0], stores[0], &[&args(&one)[..], &["one"]].concat());
        self.sites.wait_for(10);
        let joined = self.fetch_from(machines[1], stores[1], &["--job", "one"]);
        let rival = self.fetch_from(machines[1], stores[1], &[&args(&two)[..], &["two"]].concat());
        let by = rival.by.clone();
        wait_until("sites have changed hands", || self.sites.last_by(&by).is_some());
        Team { first, joined, rival, urls }
    }

    /// A team whose machines reach the database directly.
    pub(crate) fn direct_team(&self, one: &Machine, other: &Machine, urls: (usize, usize)) -> Team {
        let store = |machine: &Machine| self.url(&machine.database(self.database.port));
        self.team([one, other], [&store(one), &store(other)], urls)
    }

    fn wait_for_jobs(&self, (one, two): (usize, usize)) {
        let sites = self.sites.logs().len();
        self.wait_for_job("one", one * sites);
        self.wait_for_job("two", two * sites);
    }

    /// What is expected of a team.
    pub(crate) fn judge_team(&self, (one, two): (usize, usize)) {
        self.judge(&Ruling { delay_ms: 200, urls: vec![("one", one), ("two", two)] });
    }

    /// Writes a list of URLs, `count` per site, and returns its path.
    pub(crate) fn list(&self, prefix: &str, count: usize) -> String {
        self.world.write(prefix, &self.sites.list(prefix, count)).to_str().unwrap().to_owned()
    }

    /// Notes that what a process fetched between `before_us` before now and `after_us` after it may not have been saved.
    pub(crate) fn note_fault(&self, by: &str, before_us: i64, after_us: i64) {
        let now = now_us();
        self.faults.borrow_mut().push(Fault {
            by: by.to_owned(),
            from: now - before_us,
            until: now + after_us,
        });
    }

    /// Kills a process with SIGKILL.
    pub(crate) fn kill(&self, member: Member) {
        self.note_fault(&member.by, UNSAVED_US, 0);
        member.process.kill();
    }

    /// Waits until a job is done, and checks that with the store.
    pub(crate) fn wait_for_job(&self, job: &str, urls: usize) {
        let sql = format!("SELECT state, done, tasks FROM {}.job WHERE name = '{job}'", self.schema);
        let expected = format!("done|{urls}|{urls}");
        let mut last = String::new();
        wait_until(&format!("job {job} is done"), || {
            last = self.database.sql(&sql);
            last == expected
        });
    }

    /// Judges by the logs of the sites, and by who held what.
    pub(crate) fn judge(&self, ruling: &Ruling) {
        let holds = judge::holds(self.database, &self.schema, &self.started.borrow());
        judge::judge(&self.sites.logs(), ruling, &self.faults.borrow(), holds.as_ref());
    }

    /// Judges by the logs of the sites alone: the records of the database are lost, or its clock is another one.
    pub(crate) fn judge_by_logs(&self, ruling: &Ruling) {
        judge::judge(&self.sites.logs(), ruling, &self.faults.borrow(), None);
    }
}

/// How long before a kill a page may have been fetched without being saved: fetched pages are saved together.
pub(crate) const UNSAVED_US: i64 = 1_500_000;
