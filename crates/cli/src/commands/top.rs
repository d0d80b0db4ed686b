//! `comity top`: what runs on a store, as the processes there tell it.

use std::collections::HashSet;
use std::io::IsTerminal;
use std::time::Duration;

use comity::clock::Clock;
use comity::config::Config;
use comity::core::task::JobState;
use comity::core::time::{Span, Timestamp};
use comity::status::Status;
use comity::store::Store;
use comity::store::jobs::Job;
use comity::store::status::Working;
use serde_json::{Value, json};

use super::report;
use crate::args::{Global, Top};
use crate::live::{self, Canvas, View};
use crate::signals::Signals;
use crate::{exit, output, setup};

pub(crate) async fn run(global: &Global, config: &Config, top: &Top) -> anyhow::Result<u8> {
    let store = setup::open_store(config)?;
    let mut clock = Clock::of(&*store).await?;
    if global.json {
        let seen = Seen::look(&*store).await?;
        output::object(&seen.object());
        return Ok(exit::DONE);
    }
    if top.once || !std::io::stderr().is_terminal() {
        let canvas = Canvas { columns: COLUMNS, rows: ROWS, coloured: false, unicode: output::is_unicode() };
        let seen = Seen::look(&*store).await?;
        seen.draw(&store.place(), clock.now(), canvas).iter().for_each(|line| output::line(line));
        return Ok(exit::DONE);
    }
    let mut signals = Signals::new()?;
    let _view = View::begin(global);
    let mut tick = tokio::time::interval(TICK);
    let mut seen = Seen::default();
    let mut looked_at = Timestamp::MIN;
    loop {
        tokio::select! {
            _ = signals.next() => return Ok(exit::DONE),
            _ = tick.tick() => {
                let now = clock.now();
                if now.since(looked_at) >= LOOK {
                    // Whoever starts alone may have set the time.
                    clock = Clock::of(&*store).await?;
                    (seen, looked_at) = (Seen::look(&*store).await?, clock.now());
                }
                output::draw_view(seen.draw(&store.place(), now, live::canvas()));
            }
        }
    }
}

/// What runs, and what nobody works on.
#[derive(Default)]
struct Seen {
    working: Vec<(Working, Option<Status>)>,
    /// Jobs that are not done, and that nobody works on.
    left: Vec<Job>,
}

impl Seen {
    async fn look(store: &dyn Store) -> anyhow::Result<Self> {
        let working = store.working().await?.into_iter().map(|working| {
            // A newer version may tell what is not understood here; that it runs is still true.
            let status =
                working.told.as_ref().and_then(|(told, _)| serde_json::from_value(told.clone()).ok());
            (working, status)
        });
        let working: Vec<(Working, Option<Status>)> = working.collect();
        let at_work =
            |(_, status): &(Working, Option<Status>)| Some(status.as_ref()?.work.as_ref()?.name.clone());
        let named: HashSet<String> = working.iter().filter_map(at_work).collect();
        let mut left = store.list_jobs().await?;
        left.retain(|job| {
            job.state == JobState::Running && job.counts.waiting() > 0 && !named.contains(&job.name)
        });
        left.truncate(LEFT_MAX);
        Ok(Self { working, left })
    }

    fn draw(&self, place: &str, now: Timestamp, canvas: Canvas) -> Vec<String> {
        let count = self.working.len();
        let processes = if count == 1 { "process works" } else { "processes work" };
        let mut lines = vec![live::title(&format!("{count} {processes} on {place}"), canvas)];
        let each = canvas.rows.saturating_sub(2) / count.max(1);
        for (working, status) in &self.working {
            lines.push(String::new());
            let since = now.since(working.since).about();
            let age = working.told.as_ref().map(|(_, told_at)| now.since(*told_at).about());
            let age = age.map_or_else(String::new, |age| format!(", seen {age} ago"));
            lines.push(live::title(&format!("{}, for {since}{age}", working.name), canvas));
            let Some(status) = status else {
                lines.push("  has not told anything yet".to_owned());
                continue;
            };
            if status.work.is_none() {
                let Status { domains, in_line, in_flight, .. } = status;
                lines.push(format!("  {domains} domains, {in_line} in line, {in_flight} on the wire"));
            }
            let canvas = Canvas { rows: each.saturating_sub(2), ..canvas };
            lines.extend(live::draw(status, now, canvas));
        }
        if !self.left.is_empty() {
            lines.push(String::new());
        }
        for job in &self.left {
            let name = &job.name;
            let how =
                format!("nobody works on job {name} ({}): comity fetch --job {name}", report::progress(job));
            lines.push(live::plain(&how, canvas));
        }
        lines
    }

    fn object(&self) -> Value {
        let process = |(working, status): &(Working, Option<Status>)| {
            let told_at = working.told.as_ref().map(|(_, told_at)| told_at.to_string());
            json!({ "name": working.name, "since": working.since.to_string(), "told_at": told_at, "status": status })
        };
        let processes: Vec<Value> = self.working.iter().map(process).collect();
        let left: Vec<Value> = self.left.iter().map(|job| report::summary(job, 0)).collect();
        json!({ "processes": processes, "left": left })
    }
}

/// Processes tell what they are at every two seconds; the time runs on in between.
const LOOK: Span = Span::from_secs(1);
const TICK: Duration = Duration::from_millis(250);
/// Where there is no terminal.
const COLUMNS: usize = 120;
const ROWS: usize = 200;
/// Jobs that nobody works on, at most.
const LEFT_MAX: usize = 5;
