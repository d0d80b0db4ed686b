//! The store's time. One row records when this machine booted, on the store's timeline. If the time is set, every
//! deadline and start time that matters to a decision moves with it. Times that only people read stay as they were
//! written.

use comity_core::pace::Pace;
use comity_core::time::Timestamp;
use comity_core::timeline::{ClockReading, Joined, Occupancy, Shift, Timeline};
use rusqlite::{OptionalExtension, params};

use super::holders::Liveness;
use super::writer::Tx;
use super::{Sqlite, at, us};
use crate::domains::HolderId;
use crate::time::{StoreTime, TimeStore};
use crate::{LEASE, Reply};

impl TimeStore for Sqlite {
    fn time(&self) -> Reply<'_, StoreTime> {
        let machine = self.machine.clone();
        self.writer.run(move |tx| {
            let reading = machine.read();
            Ok(StoreTime { now: Timeline::now(tx.timeline()?.as_ref(), &reading), up: reading.up })
        })
    }

    fn join_time(&self, holder: HolderId) -> Reply<'_, StoreTime> {
        let (machine, liveness) = (self.machine.clone(), self.liveness.clone());
        self.writer.run(move |tx| {
            let reading = machine.read();
            let now = tx.join_time(&liveness, holder, &reading)?;
            Ok(StoreTime { now, up: reading.up })
        })
    }
}

impl Tx<'_> {
    pub(super) fn timeline(&self) -> rusqlite::Result<Option<Timeline>> {
        let sql = "SELECT boot, booted_us, last_us, wall_us FROM timeline";
        let mut statement = self.sql.prepare_cached(sql)?;
        let read = |row: &rusqlite::Row<'_>| {
            Ok(Timeline {
                // One that can't be read is another boot.
                boot: row.get_ref(0)?.as_bytes().map(|boot| String::from_utf8_lossy(boot).into_owned())?,
                booted_at: at(row.get(1)?),
                last: at(row.get(2)?),
                wall: at(row.get(3)?),
            })
        };
        statement.query_row([], read).optional()
    }

    /// Records that `now` was read on the timeline while the wall clock read `wall`.
    pub(super) fn note_time(&self, now: Timestamp, wall: Timestamp) -> rusqlite::Result<()> {
        let sql = "UPDATE timeline SET last_us = ?1, wall_us = ?2 WHERE last_us <= ?1";
        self.sql.prepare_cached(sql)?.execute([us(now), us(wall)]).map(|_| ())
    }

    fn join_time(
        &self,
        liveness: &Liveness,
        holder: HolderId,
        reading: &ClockReading,
    ) -> rusqlite::Result<Timestamp> {
        let known = self.timeline()?;
        let company = match self.has_live_peers(liveness, holder, Timeline::now(known.as_ref(), reading))? {
            true => Occupancy::Shared,
            false => Occupancy::Alone,
        };
        let Joined { now, timeline, shift } = Timeline::join(known.as_ref(), reading, company);
        if let Some(shift) = shift {
            self.shift(shift)?;
        }
        self.sql.execute("DELETE FROM timeline", [])?;
        let Timeline { boot, booted_at, last, wall } = timeline;
        let sql = "INSERT INTO timeline (boot, booted_us, last_us, wall_us) VALUES (?1, ?2, ?3, ?4)";
        self.sql.execute(sql, params![boot, us(booted_at), us(last), us(wall)])?;
        let sql = "UPDATE holders SET since_us = ?2, until_us = ?3 WHERE id = ?1";
        self.sql.execute(sql, params![holder.0, us(now), us(now + LEASE)])?;
        Ok(now)
    }

    /// Moves everything that decisions depend on.
    pub(super) fn shift(&self, shift: Shift) -> rusqlite::Result<()> {
        let (by, from, to) = (shift.micros(), us(shift.from), us(shift.to));
        // If the time is set back, what was due stays due, and what happened stays in the past.
        let future = from.min(to);
        for sql in [
            "UPDATE domains SET server_until_us = server_until_us + ?1, server_stated_us = server_stated_us + ?1,
                floor_confirmed_us = floor_confirmed_us + ?1, released_us = released_us + ?1",
            "UPDATE holders SET since_us = since_us + ?1, until_us = until_us + ?1, died_us = died_us + ?1",
            "UPDATE identity SET restored_us = restored_us + ?1 WHERE restored_us > 0",
            "UPDATE permits SET granted_us = granted_us + ?1, until_us = until_us + ?1",
        ] {
            self.sql.execute(sql, [by])?;
        }
        for sql in [
            "UPDATE lanes SET due_us = due_us + ?1 WHERE due_us > ?2",
            "UPDATE tasks SET ready_us = ready_us + ?1 WHERE state = 'waiting' AND ready_us > ?2",
            "UPDATE items SET wake_us = wake_us + ?1 WHERE wake_us > ?2",
            "UPDATE sources SET retry_us = retry_us + ?1 WHERE retry_us > ?2",
            "UPDATE robots SET fetched_us = fetched_us + ?1 WHERE fetched_us > ?2",
        ] {
            self.sql.execute(sql, [by, future])?;
        }
        // Scrapes of long ago delay nothing, and people read them.
        let sql = "UPDATE scrape_logs SET started_us = started_us + ?1 WHERE started_us > ?2";
        self.sql.execute(sql, [by, future.saturating_sub(RECENT_US)])?;
        self.shift_cursors(shift)?;
        self.shift_paces(shift)
    }

    /// Moves the wait that a server's caching headers asked for, which counts from when they arrived.
    fn shift_cursors(&self, shift: Shift) -> rusqlite::Result<()> {
        let mut select = self.sql.prepare(
            "SELECT id, cursor_json ->> '$.not_before' FROM sources
            WHERE json_valid(cursor_json) AND cursor_json ->> '$.not_before' IS NOT NULL",
        )?;
        let rows = select.query_map([], |row| Ok((row.get(0)?, row.get(1)?)))?;
        let rows: Vec<(i64, String)> = rows.collect::<rusqlite::Result<_>>()?;
        let sql = "UPDATE sources SET cursor_json = json_set(cursor_json, '$.not_before', ?2) WHERE id = ?1";
        let mut update = self.sql.prepare(sql)?;
        for (id, not_before) in rows {
            // An unreadable value delays nothing.
            let Ok(not_before) = Timestamp::parse(&not_before) else { continue };
            if not_before > shift.from.min(shift.to) {
                update.execute(params![id, shift.of(not_before).to_string()])?;
            }
        }
        Ok(())
    }

    fn shift_paces(&self, shift: Shift) -> rusqlite::Result<()> {
        let mut select = self.sql.prepare(
            "SELECT id, pace FROM domains WHERE pace IS NOT NULL AND id > ?1
            ORDER BY id LIMIT 1000",
        )?;
        let mut update = self.sql.prepare("UPDATE domains SET pace = ?2 WHERE id = ?1")?;
        let mut after = i64::MIN;
        loop {
            let rows = select.query_map([after], |row| Ok((row.get(0)?, row.get(1)?)))?;
            let rows: Vec<(i64, Vec<u8>)> = rows.collect::<rusqlite::Result<_>>()?;
            let Some((last, _)) = rows.last() else { return Ok(()) };
            after = *last;
            for (id, bytes) in rows {
                // An unreadable pace counts as lost when the domain is taken.
                if let Ok(mut pace) = Pace::decode(&bytes) {
                    pace.shift_times(shift);
                    update.execute(params![id, pace.encode()])?;
                }
            }
        }
    }
}

/// Scrapes older than this no longer delay any other.
const RECENT_US: i64 = 86_400_000_000;
