//! What a long piece of work looks like while it runs: how far it is, how long it takes, what holds it back.
//!
//! - here: who is shown what, and Ctrl-C
//! - `job`: how far a job is; `forecast`: how long the rest takes
//! - `draw`: the lines it becomes
//!
//! On a terminal it is drawn in place; elsewhere it is a line now and then. Either way the gate tells it to the store,
//! for `comity top`.

mod draw;
mod forecast;
mod job;

use std::future::Future;
use std::pin::pin;
use std::time::Duration;

use comity::core::time::{Span, Timestamp};
use comity::status::Status;

pub(crate) use draw::{Canvas, draw, plain, title};
pub(crate) use forecast::Limits;
pub(crate) use job::{Beside, JobView};

use crate::args::Global;
use crate::signals::{Asked, Signals};
use crate::{exit, output};

/// Work that is watched while it runs.
pub(crate) trait Watched {
    /// What it is at.
    async fn status(&mut self) -> (Status, Timestamp);

    /// Asks it to stop; what is finished first, such as "2 requests in flight".
    fn stop(&mut self) -> String;

    /// What is said when somebody does not want to wait for that.
    fn stopped_at_once(&self) -> String;
}

/// Shows how far it is and listens for Ctrl-C until the work is done; what it came to, and whether it was interrupted.
pub(crate) async fn watch<T>(
    global: &Global,
    watched: &mut impl Watched,
    working: impl Future<Output = T>,
    signals: &mut Signals,
) -> (T, bool) {
    let mut view = View::begin(global);
    let mut working = pin!(working);
    let mut tick = tokio::time::interval(TICK);
    tick.set_missed_tick_behavior(tokio::time::MissedTickBehavior::Delay);
    let mut interrupted = false;
    loop {
        tokio::select! {
            done = &mut working => return (done, interrupted),
            _ = tick.tick() => {
                let (status, now) = watched.status().await;
                view.show(&status, now);
            }
            asked = signals.next() => match asked {
                Asked::Reload => {}
                Asked::Stop if interrupted => {
                    drop(view);
                    output::remark(&watched.stopped_at_once());
                    exit::at_once();
                }
                Asked::Stop => {
                    interrupted = true;
                    output::stopping(&watched.stop());
                }
            },
        }
    }
}

/// Where it is shown.
pub(crate) struct View {
    kind: Kind,
}

enum Kind {
    Drawn,
    Lines { last: Option<Timestamp> },
    Quiet,
}

impl View {
    pub(crate) fn begin(global: &Global) -> Self {
        let kind = match global.quiet {
            true => Kind::Quiet,
            false if output::begin_view() => Kind::Drawn,
            false => Kind::Lines { last: None },
        };
        Self { kind }
    }

    pub(crate) fn show(&mut self, status: &Status, now: Timestamp) {
        match &mut self.kind {
            Kind::Quiet => {}
            Kind::Drawn => output::draw_view(draw(status, now, canvas())),
            Kind::Lines { last } => {
                let something = status.work.as_ref().is_some_and(|work| work.all != Some(0));
                if something && last.is_none_or(|last| now.since(last) >= LINES_EVERY) {
                    *last = Some(now);
                    output::remark(&draw::line(status, now));
                }
            }
        }
    }
}

impl Drop for View {
    fn drop(&mut self) {
        output::end_view();
    }
}

/// The terminal as it is now.
pub(crate) fn canvas() -> Canvas {
    let (rows, columns) = output::view_size();
    Canvas { columns, rows, coloured: output::coloured(), unicode: output::is_unicode() }
}

/// How often it is looked at.
const TICK: Duration = Duration::from_millis(125);
/// Without a terminal, progress is told this often.
const LINES_EVERY: Span = Span::from_secs(10);
