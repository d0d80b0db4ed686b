//! Takes, saves and releases domains.

use comity_core::domain::Domain;
use comity_core::pace::SavedLimits;
use comity_core::time::{Span, Timestamp};
use rusqlite::{OptionalExtension, Row, params};

use super::holders::{self, HolderState, Liveness, Proof};
use super::used_ids::Ids;
use super::writer::Tx;
use super::{Sqlite, at, us};
use crate::domains::{
    DomainKey, DomainRow, DomainStore, HolderId, IdleDomains, LastHolderBuf, ReleaseMode, Released, Saved,
    Stated, Steering, Take, Taken, Tenure,
};
use crate::{Reply, StoreError};

impl DomainStore for Sqlite {
    fn register(&self, name: String, now: Timestamp) -> Reply<'_, HolderId> {
        let (liveness, location) = (self.liveness.clone(), self.location.clone());
        let registered = self.writer.run(move |tx| {
            let holder = tx.register(&name, now)?;
            // The lock file comes before the commit: nobody must see a holder that is not alive yet.
            let proof = liveness.prove(holder.0);
            tx.save_proof(holder, proof.as_ref().ok().and_then(Proof::file_id))?;
            Ok((holder, proof))
        });
        Box::pin(async move {
            let (holder, proof) = registered.await?;
            let proof = proof.map_err(|error| {
                location.unavailable(format!("could not create a lock file next to it: {error}"))
            })?;
            self.open_store.proofs().insert(holder, proof);
            Ok(holder)
        })
    }

    fn beat(&self, holder: HolderId, now: Timestamp) -> Reply<'_, ()> {
        let (liveness, open_store, wall) =
            (self.liveness.clone(), self.open_store.clone(), self.machine.wall());
        let beaten = self.writer.run_checked(move |tx| {
            tx.note_time(now, wall)?;
            let renewed = tx.renew(holder, now)?;
            if let Some(proof) = open_store.proofs().get_mut(&holder) {
                liveness.renew(holder.0, proof);
                tx.save_proof(holder, proof.file_id())?;
            }
            tx.check_others(&liveness, holder, now)?;
            Ok(renewed)
        });
        Box::pin(async move { if beaten.await? { Ok(()) } else { Err(StoreError::Lost) } })
    }

    fn version(&self) -> Reply<'_, i64> {
        self.writer.version()
    }

    fn wanted(&self, holder: HolderId) -> Reply<'_, Vec<DomainKey>> {
        self.writer.run(move |tx| tx.wanted(holder))
    }

    fn take(&self, holder: HolderId, domains: Vec<Domain>, now: Timestamp) -> Reply<'_, Vec<Take>> {
        let liveness = self.liveness.clone();
        let taken = self.writer.run(move |tx| {
            if !tx.is_holder(holder)? {
                return Ok(None);
            }
            let take = |domain: &Domain| {
                let id = tx.domain_id(domain.as_str())?;
                tx.take(&liveness, holder, id, now)
            };
            domains.iter().map(take).collect::<rusqlite::Result<Vec<Take>>>().map(Some)
        });
        Box::pin(async move { taken.await?.ok_or(StoreError::Lost) })
    }

    fn save(&self, holder: HolderId, saved: Vec<Saved>) -> Reply<'_, Vec<Tenure>> {
        self.writer.run(move |tx| {
            let mut lost = Vec::new();
            for saved in &saved {
                if !tx.save(holder, saved)? {
                    lost.push(saved.tenure);
                }
            }
            Ok(lost)
        })
    }

    fn restate(&self, stated: Vec<Stated>) -> Reply<'_, ()> {
        self.writer.run(move |tx| {
            for Stated { domain, until, stated_at } in &stated {
                let id = tx.domain_id(domain.as_str())?;
                let sql = "UPDATE domains SET server_until_us = ?2, server_stated_us = ?3
                    WHERE id = ?1 AND (server_until_us IS NULL OR server_until_us < ?2)";
                tx.sql.prepare_cached(sql)?.execute(params![id, us(*until), us(*stated_at)])?;
            }
            Ok(())
        })
    }

    fn release(&self, holder: HolderId, released: Vec<Released>, now: Timestamp) -> Reply<'_, ()> {
        self.writer.run(move |tx| released.iter().try_for_each(|released| tx.release(holder, released, now)))
    }

    fn deregister(&self, holder: HolderId, now: Timestamp) -> Reply<'_, ()> {
        let (liveness, wall) = (self.liveness.clone(), self.machine.wall());
        let proof = self.open_store.proofs().remove(&holder);
        let left = self.writer.run(move |tx| {
            tx.note_time(now, wall)?;
            tx.unregister(&liveness, holder, now)?;
            tx.check_others(&liveness, HolderId(0), now)
        });
        Box::pin(async move {
            let left = left.await;
            // The holder counts as alive until others know that it stopped, or until telling them has failed.
            drop(proof);
            left
        })
    }

    fn list_domains(&self, like: String, after: String, limit: u32) -> Reply<'_, Vec<DomainRow>> {
        let liveness = self.liveness.clone();
        self.read(move |tx| tx.rows(&liveness, &like, &after, limit))
    }

    fn find_domain(&self, domain: Domain) -> Reply<'_, Option<DomainRow>> {
        let liveness = self.liveness.clone();
        self.read(move |tx| tx.row(&liveness, domain.as_str()))
    }

    fn idle_domains(&self, after: DomainKey, before: Timestamp, limit: u32) -> Reply<'_, IdleDomains> {
        self.writer.run(move |tx| tx.idle_domains(after, before, limit))
    }

    fn forget_domains(&self, idle: Vec<Tenure>, before: Timestamp) -> Reply<'_, u64> {
        self.writer.run(move |tx| tx.forget_domains(&idle, before))
    }
}

impl Tx<'_> {
    /// The id of a domain, which is created if it is new.
    pub(super) fn domain_id(&mut self, domain: &str) -> rusqlite::Result<i64> {
        if let Some(id) = self.cache.domain_ids.get(domain) {
            return Ok(*id);
        }
        let find = "SELECT id FROM domains WHERE domain = ?1";
        let found = self.sql.prepare_cached(find)?.query_row([domain], |row| row.get(0)).optional()?;
        let id = match found {
            Some(id) => id,
            None => {
                let id = self.unused_id(Ids::Domains)?;
                let sql = "INSERT INTO domains (id, domain) VALUES (?1, ?2)";
                self.sql.prepare_cached(sql)?.execute(params![id, domain])?;
                id
            }
        };
        if self.cache.domain_ids.len() >= REMEMBERED_MAX {
            self.cache.domain_ids.clear();
        }
        self.cache.domain_ids.insert(domain.to_owned(), id);
        Ok(id)
    }

    /// Takes a domain if no live process holds it.
    pub(super) fn take(
        &mut self,
        liveness: &Liveness,
        holder: HolderId,
        id: i64,
        now: Timestamp,
    ) -> rusqlite::Result<Take> {
        let sql = format!(
            "SELECT holder, left_as, wanted_by, released_us, domain, epoch, pace, {KEPT} FROM domains WHERE id = ?1"
        );
        let (owner, left_as, wanted_by, released, row) =
            self.sql.prepare_cached(&sql)?.query_row([id], |row| {
                let left_as = row.get::<_, String>(1).unwrap_or_default();
                Ok((row.get(0)?, left_as, row.get(2)?, row.get::<_, Option<i64>>(3)?, DomainToTake::of(row)))
            })?;
        let died = match (owner, wanted_by) {
            (Some(owner), _) if owner == holder.0 => return Ok(Take::Ours),
            (Some(owner), _) => match self.check_holder(liveness, owner, now)? {
                HolderState::Died(latest) => Some(latest),
                HolderState::Lives => {
                    let sql = "UPDATE domains SET wanted_by = ?2 WHERE id = ?1 AND wanted_by IS NOT ?2";
                    self.sql.prepare_cached(sql)?.execute([id, holder.0])?;
                    return Ok(Take::Held { by: holders::name(self.sql, owner)? });
                }
            },
            // It was released for another process, which gets some time to take it.
            (None, Some(other)) if other != holder.0 && is_reserved(released, now) => {
                if self.check_holder(liveness, other, now)? == HolderState::Lives {
                    return Ok(Take::Held { by: holders::name(self.sql, other)? });
                }
                None
            }
            (None, _) => None,
        };
        let DomainToTake { domain, epoch, pace, kept, steering } = row?;
        let tenure = Tenure { key: DomainKey(id), epoch: epoch + 1 };
        let sql =
            "UPDATE domains SET holder = ?2, epoch = ?3, left_as = 'held', wanted_by = NULL WHERE id = ?1";
        self.sql.prepare_cached(sql)?.execute([id, holder.0, tenure.epoch])?;
        let restored_at = match left_as.as_str() {
            "lost" => Some(self.restored_at(now)?.unwrap_or(now)),
            "new" => self.restored_recently(now)?,
            _ => None,
        };
        let last_holder = match (died, left_as.as_str(), pace) {
            // A restored copy does not know what the last holder did.
            _ if let Some(latest) = restored_at => LastHolderBuf::Died { latest },
            (Some(latest), ..) => LastHolderBuf::Died { latest },
            (None, "new", _) => LastHolderBuf::None,
            (None, "handed over", Some(pace)) => LastHolderBuf::HandedOver(pace),
            (None, "stopped", Some(pace)) => LastHolderBuf::Stopped(pace),
            // No holder leaves a domain like this: state was lost.
            (None, ..) => LastHolderBuf::Died { latest: now },
        };
        let taken = Taken { domain, tenure, kept, steering, last_holder, lent: Vec::new() };
        let lent = match taken.last_holder {
            // Only a dead holder's permits are needed: a pace that was handed over contains them.
            LastHolderBuf::Died { .. } => self.lent(id, now)?,
            _ => Vec::new(),
        };
        let taken = Taken { lent, ..taken };
        Ok(Take::Taken(Box::new(taken)))
    }

    /// Whether a tenure is still valid.
    pub(super) fn holds(&self, holder: HolderId, tenure: Tenure) -> rusqlite::Result<bool> {
        let sql = "SELECT 1 FROM domains WHERE id = ?1 AND holder = ?2 AND epoch = ?3";
        self.sql.prepare_cached(sql)?.exists([tenure.key.0, holder.0, tenure.epoch])
    }

    /// Saves what must survive a crash; false if the tenure is no longer valid.
    pub(super) fn save(&self, holder: HolderId, saved: &Saved) -> rusqlite::Result<bool> {
        let Saved { tenure, kept, steering } = saved;
        let sql = "UPDATE domains SET adaptive_delay_seconds = ?4, adaptive_delay_floor_seconds = ?5,
            floor_confirmed_us = ?6, server_until_us = ?7, server_stated_us = ?8, pinned = ?9,
            paused_until_us = ?10 WHERE id = ?1 AND holder = ?2 AND epoch = ?3
            AND EXISTS (SELECT 1 FROM holders WHERE holders.id = ?2 AND died_us IS NULL)";
        let changed = self.sql.prepare_cached(sql)?.execute(params![
            tenure.key.0,
            holder.0,
            tenure.epoch,
            kept.delay.as_secs_f64(),
            kept.floor.as_secs_f64(),
            kept.floor_at.map(us),
            kept.server.map(|(until, _)| us(until)),
            kept.server.map(|(_, stated_at)| us(stated_at)),
            steering.pinned,
            steering.paused_until.map(us),
        ])?;
        Ok(changed == 1)
    }

    /// Releases a domain together with the lanes that were served on it.
    pub(super) fn release(
        &self,
        holder: HolderId,
        released: &Released,
        now: Timestamp,
    ) -> rusqlite::Result<()> {
        let Saved { tenure, kept, steering } = &released.saved;
        let left_as = match released.mode {
            ReleaseMode::HandOver => "handed over",
            ReleaseMode::Stop => "stopped",
        };
        // If another process wants the domain, it continues with this pace.
        let sql = "UPDATE domains SET adaptive_delay_seconds = ?4, adaptive_delay_floor_seconds = ?5,
            floor_confirmed_us = ?6, server_until_us = ?7, server_stated_us = ?8, pinned = ?9,
            paused_until_us = ?10, holder = NULL, pace = ?11, released_us = ?12,
            left_as = iif(wanted_by IS NULL, ?13, 'handed over') WHERE id = ?1 AND holder = ?2 AND epoch = ?3
            AND EXISTS (SELECT 1 FROM holders WHERE holders.id = ?2 AND died_us IS NULL)";
        let changed = self.sql.prepare_cached(sql)?.execute(params![
            tenure.key.0,
            holder.0,
            tenure.epoch,
            kept.delay.as_secs_f64(),
            kept.floor.as_secs_f64(),
            kept.floor_at.map(us),
            kept.server.map(|(until, _)| us(until)),
            kept.server.map(|(_, stated_at)| us(stated_at)),
            steering.pinned,
            steering.paused_until.map(us),
            released.pace,
            us(now),
            left_as,
        ])?;
        if changed == 0 {
            return Ok(());
        }
        let id = tenure.key.0;
        // Lanes that nobody serves become due now, for whoever was waiting for the domain.
        let sql = "UPDATE lanes SET holder = NULL, due_us = ?3
            WHERE domain_id = ?1 AND (holder = ?2 OR (holder IS NULL AND due_us > ?3))";
        self.sql.prepare_cached(sql)?.execute(params![id, holder.0, us(now)])?;
        Ok(())
    }

    /// The domains of `holder` that others want.
    pub(super) fn wanted(&self, holder: HolderId) -> rusqlite::Result<Vec<DomainKey>> {
        self.sql
            .prepare_cached("SELECT id FROM domains WHERE holder = ?1 AND wanted_by IS NOT NULL")?
            .query_map([holder.0], |row| row.get(0).map(DomainKey))?
            .collect()
    }

    /// Domains as shown to people.
    pub(super) fn rows(
        &self,
        liveness: &Liveness,
        like: &str,
        after: &str,
        limit: u32,
    ) -> rusqlite::Result<Vec<DomainRow>> {
        let sql = format!("{ROWS} WHERE instr(domain, ?1) AND domain > ?2 ORDER BY domain LIMIT ?3");
        self.readable("domains", &sql, params![like, after, limit], |row| row_of(liveness, row))
    }

    /// One domain as shown to people.
    pub(super) fn row(&self, liveness: &Liveness, domain: &str) -> rusqlite::Result<Option<DomainRow>> {
        let sql = format!("{ROWS} WHERE domain = ?1");
        self.sql.prepare_cached(&sql)?.query_row([domain], |row| row_of(liveness, row)).optional()
    }

    /// The domain in that row, as shown to people; `None` if it is gone or cannot be read.
    pub(super) fn row_with_key(
        &self,
        liveness: &Liveness,
        key: DomainKey,
    ) -> rusqlite::Result<Option<DomainRow>> {
        let sql = format!("{ROWS} WHERE domains.id = ?1");
        self.readable("domains", &sql, [key.0], |row| row_of(liveness, row)).map(|mut rows| rows.pop())
    }
}

/// The part of a domain's row that matters to whoever takes it.
struct DomainToTake {
    domain: Domain,
    epoch: i64,
    pace: Option<Vec<u8>>,
    kept: SavedLimits,
    steering: Steering,
}

impl DomainToTake {
    fn of(row: &Row<'_>) -> rusqlite::Result<Self> {
        let (kept, steering) = kept(row, 7)?;
        Ok(Self { domain: domain_of(row, 4)?, epoch: row.get(5)?, pace: row.get(6)?, kept, steering })
    }
}

/// Whether a domain was released so recently that the process that wanted it comes first.
fn is_reserved(released: Option<i64>, now: Timestamp) -> bool {
    // If our clock is behind the one that wrote this, the domain must not stay closed.
    released.map(at).is_some_and(|released_at| released_at <= now && now.since(released_at) < RESERVED)
}

/// Reads a row of [`ROWS`].
fn row_of(liveness: &Liveness, row: &Row<'_>) -> rusqlite::Result<DomainRow> {
    let (kept, steering) = kept(row, 1)?;
    let (holder, name): (Option<i64>, Option<String>) = (row.get(8)?, row.get(9)?);
    let (died, until): (Option<i64>, Option<i64>) = (row.get(10)?, row.get(11)?);
    let proof: Option<String> = row.get(12)?;
    let has_died = |holder| died.is_some() || liveness.has_died(holder, proof.as_deref());
    let is_held = holder.is_some_and(|holder| name.is_some() && !has_died(holder));
    // If the time of death is unknown, assume that it died just now.
    let latest = holder.and(died.or(until)).map_or(Timestamp::MAX, at);
    let last_holder = match (holder, row.get::<_, String>(13)?.as_str(), row.get::<_, Option<Vec<u8>>>(14)?) {
        _ if is_held => None,
        (None, "new", _) => Some(LastHolderBuf::None),
        (None, "handed over", Some(pace)) => Some(LastHolderBuf::HandedOver(pace)),
        (None, "stopped", Some(pace)) => Some(LastHolderBuf::Stopped(pace)),
        _ => Some(LastHolderBuf::Died { latest }),
    };
    Ok(DomainRow {
        domain: row.get(0)?,
        kept,
        steering,
        holder: name.filter(|_| is_held),
        epoch: row.get(15)?,
        last_holder,
        waiting: row.get::<_, i64>(16)?.max(0) as u64,
    })
}

/// Reads the saved limits and the operator's settings from the columns of [`KEPT`].
pub(super) fn kept(row: &Row<'_>, first: usize) -> rusqlite::Result<(SavedLimits, Steering)> {
    let seconds = |nth| row.get::<_, f64>(nth).map(|secs| Span::from_micros((secs * 1e6).round() as u64));
    let time = |nth| row.get::<_, Option<i64>>(nth).map(|micros| micros.map(at));
    let kept = SavedLimits {
        delay: seconds(first)?,
        floor: seconds(first + 1)?,
        floor_at: time(first + 2)?,
        server: time(first + 3)?.zip(time(first + 4)?),
    };
    Ok((kept, Steering { pinned: row.get(first + 5)?, paused_until: time(first + 6)? }))
}

/// Reads a domain from a column. A spelling that is not canonical is an error, because it would be a different row.
pub(super) fn domain_of(row: &Row<'_>, nth: usize) -> rusqlite::Result<Domain> {
    let text: String = row.get(nth)?;
    Domain::read_back(&text).map_err(|error| {
        rusqlite::Error::FromSqlConversionFailure(nth, rusqlite::types::Type::Text, Box::new(error))
    })
}

pub(super) const KEPT: &str =
    "adaptive_delay_seconds, adaptive_delay_floor_seconds, floor_confirmed_us, server_until_us,
    server_stated_us, pinned, paused_until_us";
/// Selects domains as shown to people.
const ROWS: &str = "SELECT domain, adaptive_delay_seconds, adaptive_delay_floor_seconds, floor_confirmed_us,
    server_until_us, server_stated_us, pinned, paused_until_us,
    holder, holders.name, holders.died_us, holders.until_us, holders.proof, left_as, pace, epoch,
    (SELECT count(*) FROM (SELECT 1 FROM lanes JOIN tasks ON tasks.lane_id = lanes.id AND tasks.state = 'waiting'
        WHERE lanes.domain_id = domains.id LIMIT 1000))
    FROM domains LEFT JOIN holders ON holders.id = domains.holder";
/// For how long a released domain is reserved for the process that wanted it.
const RESERVED: Span = Span::from_millis(500);
/// The maximum number of domain and lane ids that the writer caches, to add tasks quickly.
pub(super) const REMEMBERED_MAX: usize = 200_000;
