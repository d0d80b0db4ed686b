//! `comity top`: what is running on a store, from the status that each process publishes there.

use std::collections::HashSet;
use std::io::IsTerminal;
use std::time::Duration;

use comity::clock::Clock;
use comity::config::Config;
use comity::core::task::JobState;
use comity::core::time::{Span, Timestamp};
use comity::redact::shell_word;
use comity::status::Status;
use comity::store::Store;
use comity::store::jobs::Job;
use comity::store::status::{LiveProcess, OldTransaction};
use serde_json::{Value, json};

use super::{report, table};
use crate::args::{Global, Top};
use crate::keys::Keys;
use crate::live::{self, Canvas, View};
use crate::signals::Signals;
use crate::{exit, output, setup};

pub(crate) async fn run(global: &Global, config: &Config, top: &Top) -> anyhow::Result<u8> {
    let mut store = setup::open_existing_store(config)?;
    let place = setup::location(config);
    let mut clock = Clock::of(&*store).await?;
    if global.json {
        let snapshot = Snapshot::read(&*store).await?;
        output::object(&snapshot.object());
        return Ok(exit::DONE);
    }
    if top.once || !std::io::stderr().is_terminal() {
        let (columns, unicode) = (table::columns().unwrap_or(COLUMNS), output::is_unicode());
        let canvas = Canvas { columns, rows: ROWS, colored: false, unicode };
        let snapshot = Snapshot::read(&*store).await?;
        snapshot.draw(&place, clock.now(), canvas).iter().for_each(|line| output::line(line));
        return Ok(exit::DONE);
    }
    let mut signals = Signals::new()?;
    let mut keys = Keys::listen();
    let place = if keys.is_some() { format!("{place} (q quits)") } else { place };
    let _view = View::of_result();
    let mut tick = tokio::time::interval(TICK);
    let mut snapshot = Snapshot::default();
    let mut read_at = Timestamp::MIN;
    loop {
        tokio::select! {
            _ = signals.next() => return Ok(exit::DONE),
            key = next_key(&mut keys) => {
                if matches!(key, b'q' | b'Q') {
                    return Ok(exit::DONE);
                }
            }
            _ = tick.tick() => {
                let now = clock.now();
                if now.since(read_at) >= READ_EVERY {
                    if store.location() == "memory" {
                        // There was no store. Somebody may have started to work since.
                        store = setup::open_existing_store(config)?;
                    }
                    // A process that starts while no other runs may have changed the store's time.
                    clock = Clock::of(&*store).await?;
                    (snapshot, read_at) = (Snapshot::read(&*store).await?, clock.now());
                }
                output::draw_view(snapshot.draw(&place, now, live::canvas()));
            }
        }
    }
}

/// Waits for a key, if keys are read.
async fn next_key(keys: &mut Option<Keys>) -> u8 {
    match keys {
        Some(keys) => keys.next().await,
        None => std::future::pending().await,
    }
}

/// What is running on the store, and which open jobs are not.
#[derive(Default)]
struct Snapshot {
    working: Vec<(LiveProcess, Option<Status>)>,
    /// Open jobs that no process works on.
    stopped: Vec<Job>,
    /// What keeps the database from cleaning up.
    old_transaction: Option<OldTransaction>,
}

impl Snapshot {
    async fn read(store: &dyn Store) -> anyhow::Result<Self> {
        let working = store.live_processes().await?.into_iter().map(|working| {
            // A newer version may publish a status that this one can't read; the process is listed anyway.
            let status =
                working.status.as_ref().and_then(|(json, _)| serde_json::from_value(json.clone()).ok());
            (working, status)
        });
        let working: Vec<(LiveProcess, Option<Status>)> = working.collect();
        let at_work =
            |(_, status): &(LiveProcess, Option<Status>)| Some(status.as_ref()?.work.as_ref()?.name.clone());
        let named: HashSet<String> = working.iter().filter_map(at_work).collect();
        let mut stopped = store.list_jobs().await?;
        stopped.retain(|job| {
            job.state == JobState::Running && job.counts.waiting() > 0 && !named.contains(&job.name)
        });
        stopped.truncate(STOPPED_MAX);
        let old_transaction = store.old_transaction(OLD_TRANSACTION).await?;
        Ok(Self { working, stopped, old_transaction })
    }

    fn draw(&self, place: &str, now: Timestamp, canvas: Canvas) -> Vec<String> {
        let count = self.working.len();
        let processes = if count == 1 { "process" } else { "processes" };
        let mut lines = vec![live::title(&format!("{count} {processes} running on {place}"), canvas)];
        let each = canvas.rows.saturating_sub(2) / count.max(1);
        for (working, status) in &self.working {
            lines.push(String::new());
            let since = live::duration(now.since(working.since));
            let age = working.status.as_ref().map(|(_, published_at)| now.since(*published_at));
            let age = age.map_or_else(String::new, |age| match age >= SILENT {
                true => {
                    format!(", not responding for {}: its sites are free for others", live::duration(age))
                }
                false => format!(", updated {} ago", age.countdown()),
            });
            lines.push(live::title(&format!("{}, running for {since}{age}", working.name), canvas));
            let Some(status) = status else {
                lines.push("  no status yet".to_owned());
                continue;
            };
            if status.work.is_none() {
                let Status { domains, in_line, in_flight, .. } = status;
                let noun = if *domains == 1 { "site" } else { "sites" };
                lines.push(format!("  {domains} {noun}, {in_line} waiting in line, {in_flight} in flight"));
            }
            let canvas = Canvas { rows: each.saturating_sub(2), ..canvas };
            lines.extend(live::draw(status, now, canvas));
        }
        if !self.stopped.is_empty() {
            lines.push(String::new());
        }
        for job in &self.stopped {
            let name = &job.name;
            let line = format!(
                "job {name} is stopped ({}); resume it: comity fetch --job {}",
                report::progress(job),
                shell_word(name)
            );
            lines.push(live::plain(&line, canvas));
        }
        if let Some(OldTransaction { age, owner }) = &self.old_transaction {
            lines.push(String::new());
            let age = live::duration(*age);
            lines.push(live::plain(
                &format!("warning: a transaction has been open for {age} ({owner})"),
                canvas,
            ));
            let why = "  PostgreSQL can't vacuum the tables meanwhile, and everything becomes slower; end it, see docs/fleet.md";
            lines.push(live::plain(why, canvas));
        }
        lines
    }

    fn object(&self) -> Value {
        let process = |(working, status): &(LiveProcess, Option<Status>)| {
            let published_at = working.status.as_ref().map(|(_, published_at)| published_at.to_string());
            json!({
                "name": working.name,
                "since": working.since.to_string(),
                "told_at": published_at,
                "status": status.as_ref().map(status_json),
            })
        };
        let processes: Vec<Value> = self.working.iter().map(process).collect();
        let stopped: Vec<Value> = self.stopped.iter().map(|job| report::summary(job, 0)).collect();
        let old_transaction = self
            .old_transaction
            .as_ref()
            .map(|OldTransaction { age, owner }| json!({ "age_ms": age.as_millis_up(), "owner": owner }));
        json!({ "processes": processes, "left": stopped, "old_transaction": old_transaction })
    }
}

/// A status as JSON. The number of 429s has the name it has everywhere, and an older one that scripts may rely on.
fn status_json(status: &Status) -> Value {
    let mut object = json!(status);
    if let Some(work) = &status.work {
        object["work"]["rate_limited"] = json!(work.rate_limited);
    }
    object
}

/// A process that published nothing for so long has lost its sites to whoever wants them: its lease has ended.
const SILENT: Span = Span::from_secs(10);
/// How often the store is read; processes publish their status every two seconds.
const READ_EVERY: Span = Span::from_secs(1);
/// How often the view is drawn, with countdowns that continue between reads.
const TICK: Duration = Duration::from_millis(250);
/// Columns of the output without a terminal: whoever reads it there has room for whole reasons.
const COLUMNS: usize = 500;
/// Rows of the output without a terminal.
const ROWS: usize = 200;
/// A transaction that is open for this long is shown.
const OLD_TRANSACTION: Span = Span::from_mins(5);
/// Maximum number of stopped jobs to show.
const STOPPED_MAX: usize = 5;

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_old_transaction_is_shown_with_its_owner_and_is_null_in_json_without_one() {
        let canvas = Canvas { columns: 200, rows: 50, colored: false, unicode: true };
        let fine = Snapshot::default();
        assert!(fine.object()["old_transaction"].is_null());
        assert!(!fine.draw("here", Timestamp::MIN, canvas).join("\n").contains("warning"));
        let owner = "app, pid 12, psql".to_owned();
        let old = OldTransaction { age: Span::from_mins(61), owner };
        let snapshot = Snapshot { old_transaction: Some(old), ..Snapshot::default() };
        let shown = snapshot.draw("here", Timestamp::MIN, canvas).join("\n");
        assert!(
            shown.contains("warning: a transaction has been open for 1h 1m (app, pid 12, psql)"),
            "{shown}"
        );
        assert!(shown.contains("PostgreSQL can't vacuum the tables"), "{shown}");
        let expected = json!({ "age_ms": 3_660_000, "owner": "app, pid 12, psql" });
        assert_eq!(snapshot.object()["old_transaction"], expected);
    }
}
