//! Adds tasks, identified by URL, method and body, and reads back what they send.

use comity_core::time::Timestamp;
use rusqlite::{CachedStatement, Connection, Row, params};
use xxhash_rust::xxh3::xxh3_64_with_seed;

use super::us;
use super::writer::Tx;
use crate::tasks::{NewTask, RequestParts};

/// Adds tasks. Its statement is looked up once for all of them.
pub(super) struct Insert<'a> {
    sql: &'a Connection,
    plain: CachedStatement<'a>,
}

impl<'a> Tx<'a> {
    pub(super) fn insert(&self) -> rusqlite::Result<Insert<'a>> {
        let plain = "INSERT INTO tasks (id, job_id, lane_id, url, url_key, lead, ready_us)
            VALUES (?1, ?2, ?3, ?4, ?5, ?6, ?7) ON CONFLICT (job_id, url_key) DO NOTHING";
        Ok(Insert { sql: self.sql, plain: self.sql.prepare_cached(plain)? })
    }
}

impl Insert<'_> {
    /// Adds a task with this unused id, unless the job has one with the same URL, method and body. If different tasks
    /// have the same key, the later one gets the next free key.
    pub(super) fn add(
        &mut self,
        id: i64,
        job: i64,
        lane: i64,
        task: &NewTask,
        now: Timestamp,
    ) -> rusqlite::Result<bool> {
        let sends = task.sends.as_deref();
        let mut key = key_of(job, task);
        loop {
            let lead = task.lead.as_str();
            let inserted = match sends {
                None => self.plain.execute(params![id, job, lane, task.url, key, lead, us(now)])?,
                Some(RequestParts { method, body, headers }) => {
                    let sql = "INSERT INTO tasks
                        (id, job_id, lane_id, url, url_key, lead, ready_us, method, body, headers)
                        VALUES (?1, ?2, ?3, ?4, ?5, ?6, ?7, ?8, ?9, ?10) ON CONFLICT (job_id, url_key) DO NOTHING";
                    let headers = serde_json::json!(headers).to_string();
                    let mut insert = self.sql.prepare_cached(sql)?;
                    let ready = us(now);
                    insert
                        .execute(params![id, job, lane, task.url, key, lead, ready, method, body, headers])?
                }
            };
            if inserted == 1 {
                return Ok(true);
            }
            let sql = "SELECT 1 FROM tasks WHERE job_id = ?1 AND url_key = ?2 AND url = ?3
                AND coalesce(method, 'GET') = ?4 AND coalesce(body, x'') = ?5";
            let method = sends.map_or("GET", |sends| &sends.method);
            let body = sends.map_or(&[][..], |sends| &sends.body);
            if self.sql.prepare_cached(sql)?.exists(params![job, key, task.url, method, body])? {
                return Ok(false);
            }
            key = key.wrapping_add(1);
        }
    }
}

/// What a task sends; `None` for a plain GET.
pub(super) fn request_of(row: &Row<'_>) -> rusqlite::Result<Option<Box<RequestParts>>> {
    let Some(method) = row.get(16)? else { return Ok(None) };
    let headers: Option<String> = row.get(18)?;
    let headers = serde_json::from_str(headers.as_deref().unwrap_or("[]"));
    let headers = headers.map_err(|error| {
        rusqlite::Error::FromSqlConversionFailure(18, rusqlite::types::Type::Text, Box::new(error))
    })?;
    Ok(Some(Box::new(RequestParts {
        method,
        body: row.get::<_, Option<_>>(17)?.unwrap_or_default(),
        headers,
    })))
}

/// The key under which a task is looked up.
fn key_of(job: i64, task: &NewTask) -> i64 {
    let plain = xxh3_64_with_seed(task.url.as_bytes(), job as u64);
    let key = match &task.sends {
        None => plain,
        // Headers alone do not make a different task.
        Some(sends) if sends.method == "GET" && sends.body.is_empty() => plain,
        Some(sends) => xxh3_64_with_seed(&sends.body, xxh3_64_with_seed(sends.method.as_bytes(), plain)),
    };
    key as i64
}
