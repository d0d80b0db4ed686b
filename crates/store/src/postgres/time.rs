//! The store's time: the database's clock plus an offset that all running processes share. The offset is 0 unless the
//! database's clock stepped while they ran, because their own clocks did not step with it. A process that joins alone returns
//! to the database's clock, and everything stored that a wait depends on moves by the difference; times that only people read
//! stay as they were written.
//!
//! Leases are not watched with this clock: see `liveness`.

use std::collections::VecDeque;
use std::sync::PoisonError;

use comity_core::pace::Pace;
use comity_core::time::{Span, Timestamp};
use comity_core::timeline::Shift;
use serde_json::Value;

use super::failure::{Failure, Result};
use super::param::text;
use super::shared::Shared;
use super::tx::Tx;
use super::{Postgres, at, us};
use crate::domains::HolderId;
use crate::machine::Machine;
use crate::time::{StoreTime, TimeStore};
use crate::{LEASE, Reply};

impl TimeStore for Postgres {
    fn time(&self) -> Reply<'_, StoreTime> {
        let (machine, shared) = (self.machine.clone(), self.shared.clone());
        self.write_now(move |tx| {
            let offset = match tx.offset_of_others(HolderId(0))? {
                Some(offset) => offset,
                // What this process has stored is on the timeline that it used last.
                None if shared.knows_time() => tx.one("SELECT offset_us FROM timeline", &[])?.get(0),
                None => 0,
            };
            Ok(shared.steady(tx.store_time(offset, &*machine)?))
        })
    }

    fn join_time(&self, holder: HolderId) -> Reply<'_, StoreTime> {
        let (machine, shared) = (self.machine.clone(), self.shared.clone());
        self.write(move |tx| {
            let offset = tx.join_offset(holder)?;
            let read = tx.store_time(offset, &*machine)?;
            let time = shared.steady(read);
            let offset = offset + us(time.now).saturating_sub(us(read.now));
            let sql = "UPDATE holder SET since_us = $2, until_us = $3, offset_us = $4, beat = beat + 1
                WHERE id = $1 AND died_us IS NULL";
            match tx.change(sql, &[&holder.0, &us(time.now), &us(time.now + LEASE), &offset])? {
                0 => Err(Failure::Lost),
                _ => {
                    shared.note_offset(offset);
                    Ok(time)
                }
            }
        })
    }
}

/// The last differences that heartbeats measured between the clock of this process and the database's. Each is too small by as long
/// as the heartbeat took to arrive, so the largest is the best.
#[derive(Debug, Default)]
pub(super) struct Offsets(VecDeque<i64>);

impl Offsets {
    /// The best one.
    pub(super) fn best(&self) -> Option<i64> {
        self.0.iter().copied().max()
    }

    pub(super) fn note(&mut self, offset: i64) {
        // One of the two clocks was set.
        if self.best().is_some_and(|best| best.abs_diff(offset) >= TOLERANCE.as_micros()) {
            self.0.clear();
        }
        self.0.push_back(offset);
        if self.0.len() > OFFSETS {
            self.0.pop_front();
        }
    }
}

impl Shared {
    pub(super) fn best_offset(&self) -> Option<i64> {
        self.offsets.lock().unwrap_or_else(PoisonError::into_inner).best()
    }

    pub(super) fn note_offset(&self, offset: i64) {
        self.offsets.lock().unwrap_or_else(PoisonError::into_inner).note(offset);
    }

    fn knows_time(&self) -> bool {
        self.booted_at.lock().unwrap_or_else(PoisonError::into_inner).is_some()
    }

    /// A process that reads the time again continues with the clock it has, unless the store's time was changed: each answer
    /// takes another while, and a clock must not step by that.
    fn steady(&self, time: StoreTime) -> StoreTime {
        let booted_at = time.now - time.up;
        let mut known = self.booted_at.lock().unwrap_or_else(PoisonError::into_inner);
        match *known {
            // Offsets from the clock of the server before say nothing about the clock of this one, until the heartbeats of those
            // that continue have replaced them.
            Some(known) if self.is_new_server() || apart(known, booted_at) < TOLERANCE => {
                StoreTime { now: known + time.up, ..time }
            }
            _ => {
                *known = Some(booted_at);
                // What was seen at times of another clock says nothing about how long others have been silent.
                self.watch.clear();
                time
            }
        }
    }
}

impl Tx<'_> {
    /// The database's clock plus an offset, and this machine's uptime.
    fn store_time(&mut self, offset: i64, machine: &dyn Machine) -> Result<StoreTime> {
        // The uptime is read after the answer, so a clock made of both is behind the database's by the time the answer took.
        // If it were read before the question, the clock would be ahead by the time the question took, and a process whose
        // question took long would see deadlines pass that have not passed for the others.
        //
        // A site that changes hands is early by as much as the clocks of its holders differ: the fastest of a few answers counts.
        let mut fastest: Option<(Span, StoreTime)> = None;
        for _ in 0..SAMPLES_MAX {
            let asked = machine.up();
            let row = self.one(&format!("SELECT {DB_US}"), &[])?;
            let up = machine.up();
            let took = up.less(asked);
            let time = StoreTime { now: at(row.get::<_, i64>(0).saturating_add(offset)), up };
            if fastest.as_ref().is_none_or(|(least, _)| took < *least) {
                fastest = Some((took, time));
            }
            if took < FAST {
                break;
            }
        }
        fastest.map(|(_, time)| time).ok_or(Failure::Timeout)
    }

    /// Like [`Self::renew`], with the best of a few measurements if those before say nothing: one of the two clocks was set.
    pub(super) fn renew_and_measure(
        &mut self,
        holder: HolderId,
        now: Timestamp,
        best: Option<i64>,
    ) -> Result<Option<i64>> {
        let first = self.renew(holder, now, now + self.age(), best)?;
        let Some(mut measured) = first else { return Ok(None) };
        if best.is_some_and(|best| best.abs_diff(measured) < TOLERANCE.as_micros()) {
            return Ok(first);
        }
        for _ in 0..SAMPLES {
            let clock = us(now + self.age());
            let database: i64 = self.one(&format!("SELECT {DB_US}"), &[])?.get(0);
            measured = measured.max(clock.saturating_sub(database));
        }
        self.change("UPDATE holder SET offset_us = $2 WHERE id = $1", &[&holder.0, &measured])?;
        Ok(Some(measured))
    }

    /// The offset that the running processes use, except for `me`: that of the last heartbeat. `None` if none is running.
    fn offset_of_others(&mut self, me: HolderId) -> Result<Option<i64>> {
        // A lease that seems to have ended is no reason to ignore it: perhaps the database's clock stepped. That of a process
        // which is about to join is a guess.
        let sql = "SELECT offset_us FROM holder
            WHERE died_us IS NULL AND offset_us IS NOT NULL AND id <> $1 ORDER BY beat > 0 DESC, until_us DESC, id LIMIT 1";
        Ok(self.row(sql, &[&me.0])?.map(|row| row.get(0)))
    }

    /// The offset for a process that joins. If it is alone, that is 0.
    fn join_offset(&mut self, holder: HolderId) -> Result<i64> {
        // Of two that join at once, the second must see what the first decided.
        let last: i64 = self.one("SELECT offset_us FROM timeline FOR UPDATE", &[])?.get(0);
        if let Some(offset) = self.offset_of_others(holder)? {
            return Ok(offset);
        }
        if last.unsigned_abs() >= TOLERANCE.as_micros() {
            let to = at(self.one(&format!("SELECT {DB_US}"), &[])?.get(0));
            self.shift(Shift { from: at(us(to).saturating_add(last)), to })?;
            self.change("UPDATE timeline SET offset_us = 0", &[])?;
        }
        Ok(0)
    }

    /// Moves everything that decisions depend on.
    fn shift(&mut self, shift: Shift) -> Result<()> {
        let (by, from, to) = (shift.micros(), us(shift.from), us(shift.to));
        for (table, columns) in [
            ("domain", &["server_until_us", "server_stated_us", "floor_confirmed_us", "released_us"][..]),
            ("holder", &["since_us", "until_us", "died_us"]),
            ("permit", &["granted_us", "until_us"]),
        ] {
            let moved = columns.iter().map(|column| format!("{column} = {}", moved(column)));
            let set = moved.collect::<Vec<_>>().join(", ");
            self.change(&format!("UPDATE {table} SET {set}"), &[&by])?;
        }
        // If the time is set back, what was due stays due, and what happened stays in the past.
        let future = from.min(to);
        // Scrapes of long ago delay nothing, and people read them.
        let recent = future.saturating_sub(RECENT_US);
        for (table, column, after, condition) in [
            ("lane", "due_us", future, "true"),
            ("task", "ready_us", future, "state = 'waiting'"),
            ("item", "wake_us", future, "true"),
            ("source", "retry_us", future, "true"),
            ("robots_file", "fetched_us", future, "true"),
            ("scrape_log", "started_us", recent, "true"),
        ] {
            let moved = moved(column);
            let sql = format!("UPDATE {table} SET {column} = {moved} WHERE {column} > $2 AND {condition}");
            self.change(&sql, &[&by, &after])?;
        }
        self.shift_cursors(shift)?;
        self.shift_paces(shift)
    }

    /// Moves the wait that a server's caching headers asked for, which counts from when they arrived.
    fn shift_cursors(&mut self, shift: Shift) -> Result<()> {
        let sql = "SELECT id, cursor_json FROM source WHERE cursor_json LIKE '%\"not_before\"%'";
        let (mut ids, mut cursors) = (Vec::new(), Vec::new());
        for row in self.rows(sql, &[])? {
            // An unreadable value delays nothing.
            let Ok(mut cursor) = serde_json::from_str::<Value>(row.get(1)) else { continue };
            let Some(not_before) = cursor["not_before"].as_str() else { continue };
            let Ok(not_before) = Timestamp::parse(not_before) else { continue };
            if not_before > shift.from.min(shift.to) {
                cursor["not_before"] = shift.of(not_before).to_string().into();
                ids.push(row.get::<_, i64>(0));
                cursors.push(text(&cursor.to_string()).into_owned());
            }
        }
        let sql = "UPDATE source SET cursor_json = moved.cursor FROM unnest($1, $2) AS moved (id, cursor)
            WHERE source.id = moved.id";
        self.change(sql, &[&ids, &cursors]).map(|_| ())
    }

    fn shift_paces(&mut self, shift: Shift) -> Result<()> {
        let select = "SELECT id, pace FROM domain WHERE pace IS NOT NULL AND id > $1 ORDER BY id LIMIT 1000";
        let update = "UPDATE domain SET pace = moved.pace FROM unnest($1, $2) AS moved (id, pace)
            WHERE domain.id = moved.id";
        let mut after = i64::MIN;
        loop {
            let rows = self.rows(select, &[&after])?;
            let Some(last) = rows.last() else { return Ok(()) };
            after = last.get(0);
            // An unreadable pace counts as lost when the domain is taken.
            let moved = rows.iter().filter_map(|row| {
                let mut pace = Pace::decode(row.get(1)).ok()?;
                pace.shift_times(shift);
                Some((row.get::<_, i64>(0), pace.encode()))
            });
            let (ids, paces): (Vec<i64>, Vec<Vec<u8>>) = moved.unzip();
            self.change(update, &[&ids, &paces])?;
        }
    }
}

fn apart(one: Timestamp, other: Timestamp) -> Span {
    one.since(other).max(other.since(one))
}

/// A time in a column, moved by $1. The beginning and the end of time stay.
fn moved(column: &str) -> String {
    let (first, last) = (-9_000_000_000_000_000_000_i64, 9_000_000_000_000_000_000_i64);
    format!("CASE WHEN {column} BETWEEN {first} AND {last} THEN {column} + $1 ELSE {column} END")
}

/// The database's clock.
pub(super) const DB_US: &str = "(extract(epoch FROM clock_timestamp()) * 1000000)::bigint";
/// A holder's clock, whose row the query names `holder`.
pub(super) const HOLDER_US: &str =
    "((extract(epoch FROM clock_timestamp()) * 1000000)::bigint + coalesce(holder.offset_us, 0))";
/// Clocks that are less than this apart count as the same.
const TOLERANCE: Span = Span::from_secs(1);
/// How often the database is asked for the time by a process that joins, unless an answer is fast enough.
const SAMPLES_MAX: usize = 25;
/// The same when a clock was set.
const SAMPLES: usize = 10;
/// An answer that is fast enough.
const FAST: Span = Span::from_micros(800);
/// How many heartbeats count. If the database's clock is set by less than [`TOLERANCE`], all of them are from after that soon.
const OFFSETS: usize = 8;
/// Scrapes older than this no longer delay any other.
const RECENT_US: i64 = 86_400_000_000;

#[cfg(test)]
mod tests {
    use super::super::connection::Server;
    use super::super::location::Location;
    use super::super::outages::Outages;
    use super::*;

    fn read(now: i64) -> StoreTime {
        StoreTime { now: Timestamp::from_micros(now), up: Span::from_micros(100) }
    }

    fn shared() -> Shared {
        let location = Location::parse("postgres://db.example/store").unwrap();
        Shared::new(location.clone(), Outages::new(location, Span::ZERO))
    }

    fn meet(shared: &Shared, history: u32) {
        let server = Server { history, started: String::new(), xid: String::new() };
        shared.meet(&server).unwrap();
    }

    /// B7
    #[test]
    fn a_clock_steps_only_if_the_time_of_the_store_was_changed() {
        let shared = shared();
        meet(&shared, 1);
        assert_eq!(shared.steady(read(5_000_000)), read(5_000_000));
        for slow in [5_000_300, 4_500_000, 5_999_999] {
            assert_eq!(shared.steady(read(slow)), read(5_000_000));
        }
        assert_eq!(shared.steady(read(6_000_000)), read(6_000_000));
    }

    /// B9: processes that join take over the clock of those that run.
    #[test]
    fn a_slow_heartbeat_does_not_spoil_the_offset() {
        let mut offsets = Offsets::default();
        assert_eq!(offsets.best(), None);
        for (measured, best) in [(-60_000, -60_000), (-400, -400), (-90_000, -400), (2_000_000, 2_000_000)] {
            offsets.note(measured);
            assert_eq!(offsets.best(), Some(best));
        }
        // The database's clock was set ahead a little.
        (0..OFFSETS).for_each(|_| offsets.note(1_700_000));
        assert_eq!(offsets.best(), Some(1_700_000));
    }

    /// B7: a standby whose clock is an hour off was promoted.
    #[test]
    fn a_clock_does_not_follow_the_clock_of_a_new_server() {
        let shared = shared();
        meet(&shared, 1);
        shared.steady(read(5_000_000));
        meet(&shared, 2);
        assert_eq!(shared.steady(read(3_605_000_000)), read(5_000_000));
    }
}
