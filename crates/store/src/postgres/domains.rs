//! Takes, saves and releases domains.

use std::collections::{BTreeMap, HashMap, HashSet};
use std::sync::atomic::Ordering;

use comity_core::domain::Domain;
use comity_core::pace::SavedLimits;
use comity_core::time::{Span, Timestamp};
use tokio_postgres::Row;

use super::failure::{Failure, Result};
use super::holders::HolderRow;
use super::param::{Param, text};
use super::replacement::History;
use super::time::HOLDER_US;
use super::tx::Tx;
use super::{Postgres, at, us};
use crate::domains::{
    DomainKey, DomainRow, DomainStore, HolderId, IdleDomains, LastHolderBuf, ReleaseMode, Released, Saved,
    Stated, Steering, Take, Taken, Tenure,
};
use crate::machine::{Machine, ThisMachine};
use crate::{Reply, StoreError};

impl DomainStore for Postgres {
    fn register(&self, name: String, now: Timestamp) -> Reply<'_, HolderId> {
        let shared = self.shared.clone();
        let registered = self.write(move |tx| {
            let histories = shared.histories.load(Ordering::SeqCst);
            Ok((tx.register(&name, now)?, histories))
        });
        Box::pin(async move {
            let (holder, histories) = registered.await?;
            self.shared.register(holder, histories);
            Ok(holder)
        })
    }

    fn beat(&self, holder: HolderId, now: Timestamp) -> Reply<'_, ()> {
        let shared = self.shared.clone();
        let beaten = self.write_now(move |tx| {
            if shared.may_have_lost(holder) {
                tx.end(holder, now)?;
                return Ok(false);
            }
            let measured = tx.renew_and_measure(holder, now, shared.best_offset())?;
            measured.into_iter().for_each(|offset| shared.note_offset(offset));
            tx.check_others(holder, now)?;
            Ok(measured.is_some())
        });
        Box::pin(async move { if beaten.await? { Ok(()) } else { Err(StoreError::Lost) } })
    }

    fn version(&self) -> Reply<'_, i64> {
        let version = self.shared.version();
        Box::pin(async move { Ok(version) })
    }

    fn wanted(&self, holder: HolderId) -> Reply<'_, Vec<DomainKey>> {
        self.write(move |tx| {
            let sql = "SELECT id FROM domain WHERE holder = $1 AND wanted_by IS NOT NULL ORDER BY id";
            let rows = tx.rows(sql, &[&holder.0])?;
            Ok(rows.iter().map(|row| DomainKey(row.get(0))).collect())
        })
    }

    fn take(&self, holder: HolderId, domains: Vec<Domain>, now: Timestamp) -> Reply<'_, Vec<Take>> {
        self.write(move |tx| {
            tx.require_holder(holder)?;
            let names: Vec<&str> = domains.iter().map(Domain::as_str).collect();
            let ids = tx.domain_ids(&names)?;
            tx.take_domains(holder, &ids, now)
        })
    }

    fn save(&self, holder: HolderId, saved: Vec<Saved>) -> Reply<'_, Vec<Tenure>> {
        self.write(move |tx| tx.save(holder, &saved))
    }

    fn restate(&self, stated: Vec<Stated>) -> Reply<'_, ()> {
        self.write(move |tx| tx.restate(&stated))
    }

    fn release(&self, holder: HolderId, released: Vec<Released>, now: Timestamp) -> Reply<'_, ()> {
        self.write(move |tx| tx.release(holder, &released, now))
    }

    fn deregister(&self, holder: HolderId, now: Timestamp) -> Reply<'_, ()> {
        self.shared.unregister(holder);
        self.write(move |tx| {
            tx.end(holder, now)?;
            tx.check_others(holder, now)?;
            tx.bury()
        })
    }

    fn list_domains(&self, like: String, after: String, limit: u32) -> Reply<'_, Vec<DomainRow>> {
        self.read(move |tx| {
            let sql = format!(
                "{} WHERE position($1 IN domain.domain) > 0 AND domain.domain > $2
                ORDER BY domain.domain LIMIT $3",
                select_rows()
            );
            let rows = tx.rows(&sql, &[&text(&like), &text(&after), &i64::from(limit)])?;
            Ok(rows.iter().map(row_of).collect())
        })
    }

    fn find_domain(&self, domain: Domain) -> Reply<'_, Option<DomainRow>> {
        self.read(move |tx| {
            let row = tx.row(&format!("{} WHERE domain.domain = $1", select_rows()), &[&domain.as_str()])?;
            Ok(row.as_ref().map(row_of))
        })
    }

    fn idle_domains(&self, after: DomainKey, before: Timestamp, limit: u32) -> Reply<'_, IdleDomains> {
        self.read(move |tx| tx.idle_domains(after, before, limit))
    }

    fn forget_domains(&self, idle: Vec<Tenure>, before: Timestamp) -> Reply<'_, u64> {
        self.write(move |tx| tx.forget_domains(&idle, before))
    }
}

impl Tx<'_> {
    /// The ids of domains, in the same order. New ones are created. No row is deleted before this transaction ends.
    pub(super) fn domain_ids(&mut self, names: &[&str]) -> Result<Vec<i64>> {
        let mut known: HashMap<String, i64> = HashMap::new();
        // A row may be deleted between two statements, but not every time.
        for _ in 0..CREATE_TRIES {
            let mut missing: Vec<&str> =
                names.iter().copied().filter(|name| !known.contains_key(*name)).collect();
            missing.sort_unstable();
            missing.dedup();
            if missing.is_empty() {
                let id = |name: &&str| known.get(*name).copied().unwrap_or_default();
                return Ok(names.iter().map(id).collect());
            }
            let find = "SELECT id, domain FROM domain WHERE domain = ANY($1) ORDER BY id FOR KEY SHARE";
            let found = self.rows(find, &[&missing])?;
            known.extend(found.iter().map(|row| (row.get(1), row.get(0))));
            missing.retain(|name| !known.contains_key(*name));
            if missing.is_empty() {
                continue;
            }
            // Sorted, so that two who create the same domains don't wait for each other.
            let create = "INSERT INTO domain (domain) SELECT name FROM unnest($1) AS new (name) ORDER BY name COLLATE \"C\"
                ON CONFLICT (domain) DO NOTHING RETURNING id, domain";
            let created = self.change_rows(create, &[&missing])?;
            known.extend(created.iter().map(|row| (row.get(1), row.get(0))));
        }
        Err(Failure::Rejected("domains are deleted as fast as they are added".to_owned()))
    }

    /// Takes those domains that no live process holds, and marks the others as wanted. The results are in the order of `ids`.
    /// The caller has made sure that the holder is alive.
    pub(super) fn take_domains(
        &mut self,
        holder: HolderId,
        ids: &[i64],
        now: Timestamp,
    ) -> Result<Vec<Take>> {
        // Who adds tasks keeps the rows from being deleted, which delays nobody here.
        let sql = format!(
            "SELECT id, holder, left_as, wanted_by, released_us, domain, epoch, pace, {KEPT}, history FROM domain
            WHERE id = ANY($1) ORDER BY id FOR NO KEY UPDATE"
        );
        let rows = self.rows(&sql, &[&ids])?;
        let history = self.history(now)?;
        let mut others: Vec<i64> = rows.iter().filter_map(|row| first_in_line(row, holder, now)).collect();
        others.sort_unstable();
        others.dedup();
        self.check_holders(&others, now)?;
        let states = self.holder_states(&others)?;
        let mut takes = Takes { history, ..Takes::default() };
        for row in &rows {
            let take = takes.decide(row, holder, &states, now);
            takes.by_id.insert(row.get(0), take);
        }
        self.write_takes(holder, &mut takes, now)?;
        Ok(ids.iter().map(|id| takes.pop(*id)).collect())
    }

    fn write_takes(&mut self, holder: HolderId, takes: &mut Takes, now: Timestamp) -> Result<()> {
        if !takes.wanted.is_empty() {
            let sql = "UPDATE domain SET wanted_by = $2 WHERE id = ANY($1) AND wanted_by IS DISTINCT FROM $2";
            if self.change(sql, &[&takes.wanted, &holder.0])? > 0 {
                self.tell();
            }
        }
        if takes.taken.is_empty() {
            return Ok(());
        }
        let (ids, epochs): (Vec<i64>, Vec<i64>) = takes.taken.iter().copied().unzip();
        let history = takes.history.map_or(0, |history| i64::from(history.id));
        let sql = "UPDATE domain SET holder = $3, epoch = taken.epoch, takes = takes + 1, left_as = 'held',
            wanted_by = NULL, history = $4 FROM unnest($1, $2) AS taken (id, epoch) WHERE domain.id = taken.id";
        self.change(sql, &[&ids, &epochs, &holder.0, &history])?;
        // Only a dead holder's permits are needed: a pace that was handed over contains them.
        let died = |id: &i64| matches!(takes.by_id.get(id), Some(Take::Taken(taken)) if matches!(taken.last_holder, LastHolderBuf::Died { .. }));
        let died: Vec<i64> = ids.into_iter().filter(died).collect();
        for (id, lent) in self.lent(&died, now)? {
            if let Some(Take::Taken(taken)) = takes.by_id.get_mut(&id) {
                taken.lent.push(lent);
            }
        }
        Ok(())
    }

    /// Saves what must survive a crash. Returns the tenures that are no longer valid.
    fn save(&mut self, holder: HolderId, saved: &[Saved]) -> Result<Vec<Tenure>> {
        let tenures: Vec<Tenure> = saved.iter().map(|saved| saved.tenure).collect();
        let held = self.hold_to_change(holder, &tenures)?;
        let lost = tenures.iter().zip(&held).filter(|(_, is_held)| !**is_held).map(|(tenure, _)| *tenure);
        let lost = lost.collect();
        // Of several for one domain, the last one counts.
        let valid = saved.iter().zip(held).filter(|(_, is_held)| *is_held).map(|(saved, _)| saved);
        let last: BTreeMap<i64, &Saved> = valid.map(|saved| (saved.tenure.key.0, saved)).collect();
        if !last.is_empty() {
            let columns = SavedColumns::of(last.into_values());
            let sql = format!("UPDATE domain SET {SET_SAVED} FROM {SAVED_ROWS} WHERE domain.id = saved.id");
            self.change(&sql, &columns.params())?;
        }
        Ok(lost)
    }

    /// Releases domains together with the lanes that were served on them.
    fn release(&mut self, holder: HolderId, released: &[Released], now: Timestamp) -> Result<()> {
        let tenures: Vec<Tenure> = released.iter().map(|released| released.saved.tenure).collect();
        // The lanes before their domains, as in a claim: otherwise each might wait for the other.
        let keys: Vec<i64> = tenures.iter().map(|tenure| tenure.key.0).collect();
        let sql = "SELECT 1 FROM lane WHERE domain_id = ANY($1) AND (holder = $2 OR (holder IS NULL AND due_us > $3))
            ORDER BY id FOR NO KEY UPDATE";
        self.rows(sql, &[&keys, &holder.0, &us(now)])?;
        let held = self.hold_to_change(holder, &tenures)?;
        // Of several for one domain, the first one counts.
        let valid = released.iter().zip(held).filter(|(_, is_held)| *is_held).map(|(released, _)| released);
        let first: BTreeMap<i64, &Released> =
            valid.rev().map(|released| (released.saved.tenure.key.0, released)).collect();
        if first.is_empty() {
            return Ok(());
        }
        let columns = SavedColumns::of(first.values().map(|released| &released.saved));
        let paces: Vec<&[u8]> = first.values().map(|released| &released.pace[..]).collect();
        let left_as = |released: &&Released| match released.mode {
            ReleaseMode::HandOver => "handed over",
            ReleaseMode::Stop => "stopped",
        };
        let left_as: Vec<&str> = first.values().map(left_as).collect();
        // If another process wants the domain, it continues with this pace.
        let sql = format!(
            "UPDATE domain SET {SET_SAVED}, holder = NULL, pace = rest.pace, released_us = $11,
                left_as = CASE WHEN wanted_by IS NULL THEN rest.left_as ELSE 'handed over' END
            FROM {SAVED_ROWS} JOIN unnest($1, $9, $10) AS rest (id, pace, left_as) ON rest.id = saved.id
            WHERE domain.id = saved.id"
        );
        let now = us(now);
        let mut params = columns.params();
        params.extend([&paces as &dyn Param, &left_as, &now]);
        self.change(&sql, &params)?;
        // Lanes that nobody serves become due now, for whoever was waiting for the domain.
        let sql = "UPDATE lane SET holder = NULL, due_us = $3 FROM (SELECT id FROM lane
                WHERE domain_id = ANY($1) AND (holder = $2 OR (holder IS NULL AND due_us > $3))
                ORDER BY id FOR NO KEY UPDATE) AS freed
            WHERE lane.id = freed.id";
        self.change(sql, &[&columns.ids, &holder.0, &now])?;
        self.tell();
        Ok(())
    }

    /// Which of these tenures are valid: the holder lives and nobody else took the domain. Those stay valid until this
    /// transaction ends.
    pub(super) fn hold(&mut self, holder: HolderId, tenures: &[Tenure]) -> Result<Vec<bool>> {
        self.lock_tenures(holder, tenures, "SHARE")
    }

    /// Like [`Self::hold`], for changing the rows.
    fn hold_to_change(&mut self, holder: HolderId, tenures: &[Tenure]) -> Result<Vec<bool>> {
        self.lock_tenures(holder, tenures, "NO KEY UPDATE")
    }

    fn lock_tenures(&mut self, holder: HolderId, tenures: &[Tenure], strength: &str) -> Result<Vec<bool>> {
        if tenures.is_empty() || self.may_have_lost(holder) {
            return Ok(vec![false; tenures.len()]);
        }
        let ids: Vec<i64> = tenures.iter().map(|tenure| tenure.key.0).collect();
        let sql = format!(
            "SELECT domain.id, domain.epoch FROM domain JOIN holder ON holder.id = domain.holder
            WHERE domain.id = ANY($1) AND domain.holder = $2 AND holder.died_us IS NULL
            ORDER BY domain.id FOR {strength} OF domain FOR KEY SHARE OF holder"
        );
        let rows = self.rows(&sql, &[&ids, &holder.0])?;
        let valid: HashSet<(i64, i64)> = rows.iter().map(|row| (row.get(0), row.get(1))).collect();
        Ok(tenures.iter().map(|tenure| valid.contains(&(tenure.key.0, tenure.epoch))).collect())
    }
}

/// What becomes of the domains that somebody wants to take.
#[derive(Debug, Default)]
struct Takes {
    by_id: BTreeMap<i64, Take>,
    /// The history that the server writes.
    history: Option<History>,
    /// Those that are taken, with their new epochs.
    taken: Vec<(i64, i64)>,
    /// Those whose holders are to see that they are wanted.
    wanted: Vec<i64>,
}

impl Takes {
    fn decide(&mut self, row: &Row, me: HolderId, states: &HashMap<i64, HolderRow>, now: Timestamp) -> Take {
        let (id, owner): (i64, Option<i64>) = (row.get(0), row.get(1));
        if owner == Some(me.0) {
            return Take::Ours;
        }
        if self.history.is_some_and(|history| !history.is_settled(ThisMachine.up())) {
            return Take::Held { by: "nobody yet: the database was replaced a moment ago".to_owned() };
        }
        let first = first_in_line(row, me, now).and_then(|first| states.get(&first));
        if let Some(HolderRow { name, died: None }) = first {
            if owner.is_some() {
                self.wanted.push(id);
            }
            return Take::Held { by: name.clone() };
        }
        // The row of a holder that unregistered is gone; what it did not release counts as lost now.
        let died = owner.map(|_| first.and_then(|first| first.died).unwrap_or(now));
        // Somebody may have used it later, in commits that a failover has lost.
        let died = died.max(self.history.and_then(|history| history.last_use(row.get(FIRST_KEPT + 7), now)));
        let Some(domain) = domain_of(row, 5) else {
            return Take::Held { by: "nobody, because its name cannot be read".to_owned() };
        };
        let last_holder = match (died, row.get::<_, &str>(2), row.get::<_, Option<Vec<u8>>>(7)) {
            (Some(latest), ..) => LastHolderBuf::Died { latest },
            (None, "new", _) => LastHolderBuf::None,
            (None, "handed over", Some(pace)) => LastHolderBuf::HandedOver(pace),
            (None, "stopped", Some(pace)) => LastHolderBuf::Stopped(pace),
            // No holder leaves a domain like this: state was lost.
            (None, ..) => LastHolderBuf::Died { latest: now },
        };
        let tenure = Tenure { key: DomainKey(id), epoch: next_epoch(row.get(6)) };
        self.taken.push((id, tenure.epoch));
        let (kept, steering) = kept(row, FIRST_KEPT);
        Take::Taken(Box::new(Taken { domain, tenure, kept, steering, last_holder, lent: Vec::new() }))
    }

    /// The result for a domain. Whoever asks again for one that was just taken holds it already.
    fn pop(&mut self, id: i64) -> Take {
        match self.by_id.get_mut(&id) {
            Some(take @ Take::Taken(_)) => std::mem::replace(take, Take::Ours),
            Some(take) => take.clone(),
            None => Take::Held { by: "nobody, because it was deleted".to_owned() },
        }
    }
}

/// What is saved of several domains, a column at a time.
#[derive(Debug, Default)]
struct SavedColumns {
    ids: Vec<i64>,
    delays: Vec<f64>,
    floors: Vec<f64>,
    floors_at: Vec<Option<i64>>,
    server_until: Vec<Option<i64>>,
    server_stated: Vec<Option<i64>>,
    pinned: Vec<bool>,
    paused_until: Vec<Option<i64>>,
}

impl SavedColumns {
    fn of<'a>(rows: impl Iterator<Item = &'a Saved>) -> Self {
        let mut columns = Self::default();
        for Saved { tenure, kept, steering } in rows {
            columns.ids.push(tenure.key.0);
            columns.delays.push(kept.delay.as_secs_f64());
            columns.floors.push(kept.floor.as_secs_f64());
            columns.floors_at.push(kept.floor_at.map(us));
            columns.server_until.push(kept.server.map(|(until, _)| us(until)));
            columns.server_stated.push(kept.server.map(|(_, stated_at)| us(stated_at)));
            columns.pinned.push(steering.pinned);
            columns.paused_until.push(steering.paused_until.map(us));
        }
        columns
    }

    /// The parameters of [`SAVED_ROWS`].
    fn params(&self) -> Vec<&dyn Param> {
        vec![
            &self.ids,
            &self.delays,
            &self.floors,
            &self.floors_at,
            &self.server_until,
            &self.server_stated,
            &self.pinned,
            &self.paused_until,
        ]
    }
}

/// Selects domains as shown to people.
pub(super) fn select_rows() -> String {
    format!(
        "SELECT domain.domain, {KEPT}, domain.holder, holder.name,
            holder.died_us IS NULL AND holder.until_us > {HOLDER_US},
            coalesce(holder.died_us, holder.until_us), left_as, pace, epoch,
            (SELECT count(*) FROM (SELECT 1 FROM lane JOIN task ON task.lane_id = lane.id AND task.state = 'waiting'
                WHERE lane.domain_id = domain.id LIMIT 1000) AS counted),
            domain.id, holder.machine
        FROM domain LEFT JOIN holder ON holder.id = domain.holder"
    )
}

/// Reads a row of [`select_rows`].
pub(super) fn row_of(row: &Row) -> DomainRow {
    let (kept, steering) = kept(row, 1);
    let (holder, name, lives): (Option<i64>, Option<String>, Option<bool>) =
        (row.get(8), row.get(9), row.get(10));
    let is_held = lives == Some(true);
    // If the time of death is unknown, assume that it died just now.
    let latest = holder.and(row.get(11)).map_or(Timestamp::MAX, at);
    let last_holder = match (holder, row.get::<_, &str>(12), row.get::<_, Option<Vec<u8>>>(13)) {
        _ if is_held => None,
        (None, "new", _) => Some(LastHolderBuf::None),
        (None, "handed over", Some(pace)) => Some(LastHolderBuf::HandedOver(pace)),
        (None, "stopped", Some(pace)) => Some(LastHolderBuf::Stopped(pace)),
        _ => Some(LastHolderBuf::Died { latest }),
    };
    DomainRow {
        domain: row.get(0),
        kept,
        steering,
        holder: name.filter(|_| is_held),
        epoch: row.get(14),
        last_holder,
        waiting: row.get::<_, i64>(15).max(0) as u64,
    }
}

/// The process that has a better right to a domain than `me`, if it is alive: its holder, or whoever it was released for a
/// moment ago.
fn first_in_line(row: &Row, me: HolderId, now: Timestamp) -> Option<i64> {
    let (owner, wanted_by): (Option<i64>, Option<i64>) = (row.get(1), row.get(3));
    let reserved_for = wanted_by.filter(|_| is_reserved(row.get(4), now));
    owner.or(reserved_for).filter(|first| *first != me.0)
}

/// Whether a domain was released so recently that the process that wanted it comes first.
fn is_reserved(released: Option<i64>, now: Timestamp) -> bool {
    // If our clock is behind the one that wrote this, the domain must not stay closed.
    released.map(at).is_some_and(|released_at| released_at <= now && now.since(released_at) < RESERVED)
}

/// The epoch of the next take. It is a later one, but nobody can tell which: if a failover loses a take, the next one must
/// not get the same epoch again.
fn next_epoch(last: i64) -> i64 {
    let step = 1 + super::random() % EPOCH_STEP_MAX;
    last.checked_add(step).unwrap_or(step)
}

/// Reads the saved limits and the operator's settings from the columns of [`KEPT`].
pub(super) fn kept(row: &Row, first: usize) -> (SavedLimits, Steering) {
    let seconds = |nth| Span::from_micros((row.get::<_, f64>(nth) * 1e6).round() as u64);
    let time = |nth| row.get::<_, Option<i64>>(nth).map(at);
    let kept = SavedLimits {
        delay: seconds(first),
        floor: seconds(first + 1),
        floor_at: time(first + 2),
        server: time(first + 3).zip(time(first + 4)),
    };
    (kept, Steering { pinned: row.get(first + 5), paused_until: time(first + 6) })
}

/// Reads a domain from a column. A spelling that is not canonical is skipped, because it would be a different row.
pub(super) fn domain_of(row: &Row, nth: usize) -> Option<Domain> {
    let text: &str = row.get(nth);
    Domain::read_back(text)
        .inspect_err(
            |error| tracing::warn!(domain = text, %error, "skipped an unreadable row of the table domain"),
        )
        .ok()
}

pub(super) const KEPT: &str =
    "adaptive_delay_seconds, adaptive_delay_floor_seconds, floor_confirmed_us, server_until_us,
    server_stated_us, pinned, paused_until_us";
/// Sets what is saved.
const SET_SAVED: &str = "adaptive_delay_seconds = saved.delay, adaptive_delay_floor_seconds = saved.floor,
    floor_confirmed_us = saved.floor_us, server_until_us = saved.until_us, server_stated_us = saved.stated_us,
    pinned = saved.pinned, paused_until_us = saved.paused_us";
/// The rows to save, from eight arrays.
const SAVED_ROWS: &str = "unnest($1, $2, $3, $4, $5, $6, $7, $8)
    AS saved (id, delay, floor, floor_us, until_us, stated_us, pinned, paused_us)";
/// The first of the columns [`KEPT`] where domains are taken.
const FIRST_KEPT: usize = 8;
/// For how long a released domain is reserved for the process that wanted it.
const RESERVED: Span = Span::from_millis(500);
/// Epochs are less than this apart, so that they can grow millions of times.
const EPOCH_STEP_MAX: i64 = 1 << 40;
const CREATE_TRIES: usize = 10;
