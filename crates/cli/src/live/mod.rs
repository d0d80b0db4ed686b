//! The live view of long work: progress, time left, and which sites hold it back.
//!
//! - here: the loop that shows it and handles Ctrl-C
//! - `job`: the progress of a job; `forecast`: how long the rest will take
//! - `draw`: turns a status into lines
//!
//! On a terminal the view is redrawn in place; elsewhere a line is printed every few seconds. Either way the gate
//! publishes the status in the store, for `comity top`.

mod draw;
mod forecast;
mod job;

use std::future::Future;
use std::pin::pin;
use std::time::Duration;

use comity::core::time::{Span, Timestamp};
use comity::status::Status;

pub(crate) use draw::{Canvas, draw, duration, plain, thousands, title};
pub(crate) use forecast::Limits;
pub(crate) use job::{JobView, SideWork};

use crate::args::Global;
use crate::signals::{Signal, Signals};
use crate::{exit, output};

/// Work that is watched while it runs.
pub(crate) trait Watched {
    /// The current status.
    async fn status(&mut self) -> (Status, Timestamp);

    /// Asks the work to stop, and returns what still has to finish, such as "2 requests in flight".
    fn stop(&mut self) -> String;

    /// What to print after a second Ctrl-C, which doesn't wait for that.
    fn quit_message(&self) -> String;
}

/// Shows progress and listens for Ctrl-C until the work is done. Returns its result, and whether it was interrupted.
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
            signal = signals.next() => match signal {
                Signal::Reload => {}
                Signal::Stop if interrupted => {
                    drop(view);
                    output::remark(&watched.quit_message());
                    exit::quit_now();
                }
                Signal::Stop => {
                    interrupted = true;
                    output::stopping(&watched.stop());
                }
            },
        }
    }
}

/// How progress is shown: drawn in place, printed as lines, or not at all.
pub(crate) struct View {
    kind: Kind,
}

enum Kind {
    Drawn,
    /// None until there is something to show.
    Lines {
        next_at: Option<Timestamp>,
    },
    Quiet,
}

impl View {
    pub(crate) fn begin(global: &Global) -> Self {
        let kind = match global.quiet {
            true => Kind::Quiet,
            false if !output::is_json_log() && !output::is_piping_rows() && output::begin_view() => {
                Kind::Drawn
            }
            false => Kind::Lines { next_at: None },
        };
        Self { kind }
    }

    /// A view that is the command's result, so that it is drawn whatever the log looks like.
    pub(crate) fn of_result() -> Self {
        output::begin_view();
        Self { kind: Kind::Drawn }
    }

    pub(crate) fn show(&mut self, status: &Status, now: Timestamp) {
        match &mut self.kind {
            Kind::Quiet => {}
            Kind::Drawn => output::draw_view(draw(status, now, canvas())),
            Kind::Lines { next_at } => {
                let has_work = status.work.as_ref().is_some_and(|work| work.all != Some(0));
                // At first, nothing is known that would be worth a line.
                if has_work && now >= *next_at.get_or_insert(now + FIRST_LINE) {
                    *next_at = Some(now + LINES_EVERY);
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

/// The current size and abilities of the terminal.
pub(crate) fn canvas() -> Canvas {
    let (rows, columns) = output::view_size();
    Canvas { columns, rows, colored: output::use_color(), unicode: output::is_unicode() }
}

/// How often the status is read and drawn.
const TICK: Duration = Duration::from_millis(125);
/// When progress is printed for the first time without a terminal.
const FIRST_LINE: Span = Span::from_millis(1_500);
/// How often progress is printed without a terminal.
const LINES_EVERY: Span = Span::from_secs(10);
