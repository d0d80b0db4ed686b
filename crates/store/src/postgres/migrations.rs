//! Creates the tables, and migrates those of older versions.

use super::connection::Session;
use super::failure::{Failure, Result};
use super::param::Param;

/// What is in the place of a store.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Found {
    /// Nothing: there is no such schema, or it is empty.
    Nothing,
    /// A store of this version.
    Current,
    /// A store of an older version.
    Older(i64),
    /// A store of a newer version.
    Newer(i64),
    /// The schema belongs to another program.
    Foreign,
}

/// The version that this program writes.
pub(super) const KNOWN: i64 = MIGRATIONS.len() as i64;

/// Refuses servers that lack something, before anything is created.
pub(super) fn check_server(session: &Session) -> Result<()> {
    let sql = "SELECT current_setting('server_version_num')::int8, current_setting('server_encoding')";
    let rows = session.wait_for(session.client().query_typed(sql, &[]))?;
    check_version(rows.first().map_or(0, |row| row.get(0)))?;
    match rows.first().map(|row| row.get::<_, String>(1)) {
        Some(encoding) if encoding != "UTF8" => {
            let what = format!(
                "the encoding of this database is {encoding}: expected UTF8 (createdb --encoding UTF8)"
            );
            Err(Failure::Rejected(what))
        }
        _ => Ok(()),
    }
}

fn check_version(number: i64) -> Result<()> {
    if number < OLDEST {
        let (major, oldest) = (number / 10_000, OLDEST / 10_000);
        return Err(Failure::Rejected(format!(
            "this server is PostgreSQL {major}: expected version {oldest} or later"
        )));
    }
    Ok(())
}

/// Looks what there is, without changing anything.
pub(super) fn find(session: &Session, schema: &str) -> Result<Found> {
    let sql = "SELECT EXISTS (SELECT 1 FROM pg_class JOIN pg_namespace ON pg_namespace.oid = relnamespace WHERE nspname = $1),
        to_regclass(quote_ident($1) || '.schema_version') IS NOT NULL";
    let schema_name = schema.to_owned();
    let params: [(&(dyn tokio_postgres::types::ToSql + Sync), _); 1] =
        [(&schema_name, schema_name.type_of())];
    let rows = session.wait_for(session.client().query_typed(sql, &params))?;
    let (is_used, is_ours) = rows.first().map_or((false, false), |row| (row.get(0), row.get(1)));
    if !is_ours {
        return Ok(if is_used { Found::Foreign } else { Found::Nothing });
    }
    let sql = format!("SELECT coalesce(max(version), 0) FROM \"{schema}\".schema_version");
    let rows = session.wait_for(session.client().query_typed(&sql, &[]))?;
    Ok(match rows.first().map_or(0, |row| row.get::<_, i64>(0)) {
        0 => Found::Nothing,
        version if version == KNOWN => Found::Current,
        version if version < KNOWN => Found::Older(version),
        version => Found::Newer(version),
    })
}

/// Creates or migrates the tables. Two processes that start at once do it one after the other.
pub(super) fn migrate(session: &Session, schema: &str, id: &[u8]) -> Result<()> {
    begin(session, schema, id)?;
    session.commit()
}

/// Begins a transaction in which the tables are created or migrated; nobody else sees them before its end.
pub(super) fn begin(session: &Session, schema: &str, id: &[u8]) -> Result<()> {
    // Whoever may not create schemas can be given an empty one.
    let there = format!("SELECT to_regnamespace('\"{schema}\"') IS NOT NULL");
    let rows = session.wait_for(session.client().query_typed(&there, &[]))?;
    let create = match rows.first().is_some_and(|row| row.get(0)) {
        true => String::new(),
        false => format!("CREATE SCHEMA IF NOT EXISTS \"{schema}\"; "),
    };
    let begin = format!(
        "BEGIN; SELECT pg_advisory_xact_lock(hashtextextended('comity schema {schema}', 0));
        {create}SET LOCAL search_path = \"{schema}\";
        CREATE TABLE IF NOT EXISTS schema_version (version bigint NOT NULL)"
    );
    session.wait_for(session.client().batch_execute(&begin))?;
    let rows = session.wait_for(
        session.client().query_typed("SELECT coalesce(max(version), 0) FROM schema_version", &[]),
    )?;
    let found: i64 = rows.first().map_or(0, |row| row.get(0));
    for (nth, migration) in MIGRATIONS.iter().enumerate().skip(found.max(0) as usize) {
        session.wait_for(session.client().batch_execute(migration))?;
        let version = nth as i64 + 1;
        session.wait_for(
            session
                .client()
                .execute_typed("INSERT INTO schema_version VALUES ($1)", &[(&version, version.type_of())]),
        )?;
    }
    if found == 0 {
        let id = id.to_owned();
        session.wait_for(
            session.client().execute_typed("INSERT INTO identity (id) VALUES ($1)", &[(&id, id.type_of())]),
        )?;
    }
    Ok(())
}

/// One file per version. A released one is never changed.
const MIGRATIONS: [&str; 1] = [include_str!("migrations/001.sql")];
/// The oldest server that has everything that is used.
const OLDEST: i64 = 140_000;

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_old_server_is_refused_with_the_version_it_needs() {
        assert!(check_version(150_018).is_ok());
        assert!(check_version(140_000).is_ok());
        let refused = check_version(130_012).unwrap_err().what();
        assert_eq!(refused, "this server is PostgreSQL 13: expected version 14 or later");
    }
}
