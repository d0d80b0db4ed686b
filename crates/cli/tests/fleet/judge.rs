//! The one judge of all tests: the sites' logs. Per domain, no two requests are closer than the delay, and each came from the
//! process in charge; every URL was fetched, and only what may have been in flight at a fault was fetched twice.

use std::collections::{BTreeMap, HashMap};

use crate::database::Database;
use crate::log::{Hit, assert_spaced};
use crate::sites::Visit;

/// What is expected of all sites.
#[derive(Debug, Clone)]
pub(crate) struct Ruling {
    pub(crate) delay_ms: i64,
    /// The prefixes of the paths, and how many URLs each site has with this prefix.
    pub(crate) urls: Vec<(&'static str, usize)>,
}

/// A time in which what a process fetched may not have been saved.
#[derive(Debug, Clone)]
pub(crate) struct Fault {
    pub(crate) by: String,
    pub(crate) from: i64,
    pub(crate) until: i64,
}

/// Who was in charge of domains, as the database recorded it.
#[derive(Debug, Default)]
pub(crate) struct Holds {
    /// By domain, in order: when it got another holder, and which; none if it was released.
    takes: HashMap<String, Vec<(i64, Option<i64>)>>,
    /// The processes of holders, by their user agents.
    who: HashMap<i64, String>,
    /// When holders were declared dead.
    deaths: HashMap<i64, i64>,
}

/// SQL that makes a store record its holders.
pub(crate) fn recording(schema: &str) -> String {
    format!(
        "CREATE TABLE {schema}.record (at bigint NOT NULL, domain text, holder bigint, name text);
        CREATE FUNCTION {schema}.record_take() RETURNS trigger LANGUAGE plpgsql AS $$ BEGIN
            INSERT INTO {schema}.record VALUES ((extract(epoch FROM clock_timestamp()) * 1000000)::bigint, NEW.domain,
                NEW.holder, (SELECT name FROM {schema}.holder WHERE id = NEW.holder));
            RETURN NULL; END $$;
        CREATE FUNCTION {schema}.record_death() RETURNS trigger LANGUAGE plpgsql AS $$ BEGIN
            INSERT INTO {schema}.record VALUES ((extract(epoch FROM clock_timestamp()) * 1000000)::bigint, NULL,
                NEW.id, NEW.name);
            RETURN NULL; END $$;
        CREATE TRIGGER record_take AFTER UPDATE ON {schema}.domain FOR EACH ROW
            WHEN (NEW.holder IS DISTINCT FROM OLD.holder) EXECUTE FUNCTION {schema}.record_take();
        CREATE TRIGGER record_death AFTER UPDATE ON {schema}.holder FOR EACH ROW
            WHEN (NEW.died_us IS NOT NULL AND OLD.died_us IS NULL) EXECUTE FUNCTION {schema}.record_death();
        CREATE TRIGGER record_new AFTER INSERT ON {schema}.domain FOR EACH ROW
            WHEN (NEW.holder IS NOT NULL) EXECUTE FUNCTION {schema}.record_take();"
    )
}

/// Reads what a store recorded. `started` are the processes, by their user agents.
pub(crate) fn holds(database: &Database, schema: &str, started: &[(String, u32)]) -> Option<Holds> {
    let rows = database.sql(&format!(
        "SELECT at, coalesce(domain, ''), coalesce(holder, 0), coalesce(name, '') FROM {schema}.record ORDER BY at"
    ));
    let mut holds = Holds::default();
    for row in rows.lines() {
        let columns: Vec<&str> = row.split('|').collect();
        let (at, holder): (i64, i64) = (columns[0].parse().unwrap(), columns[2].parse().unwrap());
        let by = started.iter().find(|(_, id)| columns[3].ends_with(&format!(", pid {id}")));
        if let Some((by, _)) = by {
            holds.who.insert(holder, by.clone());
        }
        match columns[1] {
            "" => drop(holds.deaths.insert(holder, at)),
            domain => {
                let take = (at, Some(holder).filter(|holder| *holder != 0));
                holds.takes.entry(domain.to_owned()).or_default().push(take);
            }
        }
    }
    Some(holds)
}

/// Panics unless everything is as it should be.
pub(crate) fn judge(logs: &[(String, Vec<Visit>)], ruling: &Ruling, faults: &[Fault], holds: Option<&Holds>) {
    for (domain, visits) in logs {
        let hit = |visit: &Visit| {
            let Visit { at, path, by, status } = visit;
            let path = format!("{path} by {by}");
            Hit { start: *at, answered: *at, done: *at, path, status: *status, connection: 0 }
        };
        let hits: Vec<Hit> = visits.iter().map(hit).collect();
        if let Some(holds) = holds {
            visits.iter().for_each(|visit| holds.check(domain, visit));
        }
        assert_spaced(&hits, ruling.delay_ms);
        check_counts(domain, visits, ruling, faults);
    }
}

fn check_counts(domain: &str, visits: &[Visit], ruling: &Ruling, faults: &[Fault]) {
    let mut pages: BTreeMap<&str, Vec<&Visit>> = BTreeMap::new();
    // A page that was refused is fetched again.
    visits.iter().filter(|visit| visit.status == 200).for_each(|visit| {
        pages.entry(visit.path.as_str()).or_default().push(visit);
    });
    for (prefix, count) in &ruling.urls {
        for nth in 0..*count {
            let path = format!("/{prefix}{nth}");
            assert!(pages.contains_key(path.as_str()), "{domain}{path} was never fetched:\n{}", text(visits));
        }
    }
    for (path, fetched) in pages {
        for again in fetched.windows(2) {
            let first = again[0];
            let is_excused = |fault: &Fault| {
                (fault.by == first.by || fault.by == "*") && (fault.from..=fault.until).contains(&first.at)
            };
            assert!(
                faults.iter().any(is_excused),
                "{domain}{path} was fetched by {} at {} and again by {} at {}; faults: {faults:?}\n{}",
                first.by,
                first.at,
                again[1].by,
                again[1].at,
                text(visits)
            );
        }
    }
}

impl Holds {
    fn check(&self, domain: &str, visit: &Visit) {
        let takes = self.takes.get(domain).map(Vec::as_slice).unwrap_or_default();
        let before =
            |slack: i64| takes.iter().rev().find(|(at, _)| *at <= visit.at + slack).and_then(|take| take.1);
        let is_by = |holder: &i64| self.who.get(holder) == Some(&visit.by);
        // The two clocks are one, but it is read twice.
        let holder = before(0).filter(is_by).or_else(|| before(-SLACK_US).filter(is_by));
        let Some(holder) = holder else {
            panic!(
                "{domain}{} was fetched at {} by {}, who was not in charge: {takes:?} {:?}",
                visit.path, visit.at, visit.by, self.who
            )
        };
        if let Some(died) = self.deaths.get(&holder) {
            assert!(
                *died >= visit.at,
                "{domain}{} was fetched at {} by {}, who was declared dead at {died}",
                visit.path,
                visit.at,
                visit.by
            );
        }
    }
}

fn text(visits: &[Visit]) -> String {
    let zero = visits.first().map_or(0, |visit| visit.at);
    let line = |visit: &Visit| {
        format!("{:>9} µs  {} {} by {}\n", visit.at - zero, visit.status, visit.path, visit.by)
    };
    visits.iter().map(line).collect()
}

/// A request that leaves at the last moment arrives a moment later.
const SLACK_US: i64 = 20_000;
