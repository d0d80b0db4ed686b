//! A transaction: how the parts of the store run their statements.

use std::collections::HashMap;

use comity_core::time::Span;
use tokio_postgres::Row;
use tokio_postgres::types::{ToSql, Type};

use super::connection::Session;
use super::failure::{Failure, Result};
use super::liveness::LeaseWatch;
use super::param::Param;
use super::shared::Shared;
use crate::domains::HolderId;
use crate::machine::{Machine, ThisMachine};

/// A connection inside a transaction. Methods block the thread of the connection.
pub(super) struct Tx<'a> {
    session: &'a Session,
    /// Whether anything was changed.
    changed: bool,
    /// Whether other processes should look soon.
    news: bool,
    pub(super) watch: &'a LeaseWatch,
    /// The store that this is a transaction of; a copy has none.
    shared: Option<&'a Shared>,
    /// Which history the server writes.
    history: u32,
    /// The machine's uptime when this was asked for.
    asked: Span,
}

impl<'a> Tx<'a> {
    pub(super) fn new(session: &'a Session, watch: &'a LeaseWatch) -> Self {
        Self {
            session,
            changed: false,
            news: false,
            watch,
            shared: None,
            history: 0,
            asked: ThisMachine.up(),
        }
    }

    /// For work that was asked for at this uptime of the machine.
    pub(super) fn asked_at(self, asked: Span) -> Self {
        Self { asked, ..self }
    }

    /// For a store in use, which knows what its holders may have lost, on a server that writes this history.
    pub(super) fn in_use(self, shared: &'a Shared, history: u32) -> Self {
        Self { shared: Some(shared), history, ..self }
    }

    /// The store in use, and which history its server writes.
    pub(super) fn server(&self) -> Option<(&'a Shared, u32)> {
        self.shared.map(|shared| (shared, self.history))
    }

    /// Whether commits of a holder of this process may be lost: then it may not write, even if its rows are there.
    pub(super) fn may_have_lost(&self, holder: HolderId) -> bool {
        self.shared.is_some_and(|shared| shared.may_have_lost(holder))
    }

    /// How long ago this was asked for. A caller's `now` is that old: it may have waited for other work, for a lock, or for
    /// the database.
    pub(super) fn age(&self) -> Span {
        ThisMachine.up().less(self.asked)
    }

    /// The rows of a query that changes nothing.
    pub(super) fn rows(&mut self, sql: &str, params: &[&dyn Param]) -> Result<Vec<Row>> {
        let typed: Vec<_> = params.iter().map(typed).collect();
        self.session.wait_for(self.session.client().query_typed(sql, &typed))
    }

    /// The only row of a query that changes nothing, if there is one. More than one is an error.
    pub(super) fn row(&mut self, sql: &str, params: &[&dyn Param]) -> Result<Option<Row>> {
        let mut rows = self.rows(sql, params)?;
        match rows.len() {
            0 | 1 => Ok(rows.pop()),
            n => Err(Failure::Rejected(format!("expected one row, got {n}: {sql}"))),
        }
    }

    /// The only row of a query that always has one.
    pub(super) fn one(&mut self, sql: &str, params: &[&dyn Param]) -> Result<Row> {
        self.row(sql, params)?.ok_or_else(|| Failure::Rejected(format!("expected a row: {sql}")))
    }

    /// Whether a query returns anything.
    pub(super) fn exists(&mut self, sql: &str, params: &[&dyn Param]) -> Result<bool> {
        self.rows(sql, params).map(|rows| !rows.is_empty())
    }

    /// Runs a statement that changes rows; returns how many.
    pub(super) fn change(&mut self, sql: &str, params: &[&dyn Param]) -> Result<u64> {
        let typed: Vec<_> = params.iter().map(typed).collect();
        let changed = self.session.wait_for(self.session.client().execute_typed(sql, &typed))?;
        self.changed |= changed > 0;
        Ok(changed)
    }

    /// The rows of a statement that changes rows and returns them (`RETURNING`).
    pub(super) fn change_rows(&mut self, sql: &str, params: &[&dyn Param]) -> Result<Vec<Row>> {
        let rows = self.rows(sql, params)?;
        self.changed |= !rows.is_empty();
        Ok(rows)
    }

    /// Waits until no other transaction holds this lock, and holds it until the end of this one. The name says what it is
    /// about, the key which of them: locks with other names or keys are independent.
    pub(super) fn lock(&mut self, name: &str, key: i64) -> Result<()> {
        let sql = "SELECT pg_advisory_xact_lock(hashtextextended(current_schema() || ' ' || $1, $2))";
        self.rows(sql, &[&name, &key]).map(|_| ())
    }

    /// Tells other processes with the commit that there is something for them.
    pub(super) fn tell(&mut self) {
        self.news = true;
    }

    /// Whether the transaction changed anything.
    pub(super) fn has_changed(&self) -> bool {
        self.changed
    }

    /// Whether other processes should look.
    pub(super) fn has_news(&self) -> bool {
        self.news && self.changed
    }
}

fn typed<'a>(param: &'a &'a dyn Param) -> (&'a (dyn ToSql + Sync), Type) {
    (*param, param.type_of())
}

/// Rows by the key in their first column.
pub(super) fn by_key(rows: Vec<Row>) -> HashMap<i64, Row> {
    rows.into_iter().map(|row| (row.get(0), row)).collect()
}
