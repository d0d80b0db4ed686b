//! How a table is described, and the statements that read it. Which tables there are is in `tables`.

/// A table.
#[derive(Debug)]
pub(crate) struct Table {
    /// Its name in SQLite.
    pub(crate) sqlite: &'static str,
    /// Its name in PostgreSQL.
    pub(crate) postgres: &'static str,
    /// The first columns are its key: that many.
    pub(crate) key: usize,
    pub(crate) ids: Ids,
    pub(crate) columns: &'static [Column],
    /// Columns that are not copied.
    pub(crate) left_out: &'static [&'static str],
    /// Rows are copied if the rows exist that these columns refer to.
    pub(crate) parents: &'static [Parent],
}

/// Where a table's next id comes from. In PostgreSQL, each of these has a sequence.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Ids {
    /// It has none of its own.
    None,
    /// SQLite gives out the highest one plus one.
    Highest,
    /// SQLite has the highest one that was ever used in this column of `identity`.
    Noted(&'static str),
    /// SQLite has the highest one that was ever used (`AUTOINCREMENT`).
    Counted,
}

/// A column.
#[derive(Debug)]
pub(crate) struct Column {
    /// Its name in SQLite.
    pub(crate) sqlite: &'static str,
    /// Its name in PostgreSQL.
    pub(crate) postgres: &'static str,
    pub(crate) kind: Kind,
    /// The expression to copy, if it is not the column as it is.
    pub(crate) expression: Option<&'static str>,
}

/// The type of a column. Times are integers.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Kind {
    Integer,
    Real,
    Flag,
    Text,
    Blob,
}

/// A column that refers to the id of another table.
#[derive(Debug)]
pub(crate) struct Parent {
    pub(crate) column: &'static str,
    pub(crate) sqlite: &'static str,
    pub(crate) postgres: &'static str,
}

/// A kind of database, as far as names are concerned.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Dialect {
    Sqlite,
    Postgres,
}

impl Table {
    pub(crate) fn name(&self, dialect: Dialect) -> &'static str {
        if dialect == Dialect::Sqlite { self.sqlite } else { self.postgres }
    }

    /// Whether it is known under that name, and has such a column.
    pub(super) fn has(&self, table: &str, column: &str) -> bool {
        let dialect = if self.sqlite == table { Dialect::Sqlite } else { Dialect::Postgres };
        self.name(dialect) == table
            && (self.columns.iter().any(|known| known.name(dialect) == column)
                || self.left_out.contains(&column))
    }

    /// The columns to write: `"id", "name"`.
    pub(crate) fn column_names(&self, dialect: Dialect) -> String {
        let names = self.columns.iter().map(|column| format!("\"{}\"", column.name(dialect)));
        names.collect::<Vec<_>>().join(", ")
    }

    /// Reads the rows to copy, in the order of their keys.
    pub(crate) fn select(&self, dialect: Dialect) -> String {
        let expressions = self.columns.iter().map(|column| match column.expression {
            Some(expression) => expression.to_owned(),
            None => format!("\"{}\"", column.name(dialect)),
        });
        let expressions = expressions.collect::<Vec<_>>().join(", ");
        let key = self.columns[..self.key].iter().map(|column| format!("\"{}\"", column.name(dialect)));
        let key = key.collect::<Vec<_>>().join(", ");
        format!("SELECT {expressions} FROM {}{} ORDER BY {key}", self.name(dialect), self.condition(dialect))
    }

    /// Counts the rows to copy.
    pub(crate) fn count(&self, dialect: Dialect) -> String {
        format!("SELECT count(*) FROM {}{}", self.name(dialect), self.condition(dialect))
    }

    fn condition(&self, dialect: Dialect) -> String {
        let exist = self.parents.iter().map(|Parent { column, sqlite, postgres }| {
            let parent = if dialect == Dialect::Sqlite { sqlite } else { postgres };
            format!("{column} IN (SELECT id FROM {parent})")
        });
        let exist = exist.collect::<Vec<_>>().join(" AND ");
        if exist.is_empty() { exist } else { format!(" WHERE {exist}") }
    }
}

impl Column {
    pub(crate) fn name(&self, dialect: Dialect) -> &'static str {
        if dialect == Dialect::Sqlite { self.sqlite } else { self.postgres }
    }

    /// Copies an expression in place of the column.
    pub(super) const fn reading(self, expression: &'static str) -> Self {
        Self { expression: Some(expression), ..self }
    }
}

const fn of(name: &'static str, kind: Kind) -> Column {
    Column { sqlite: name, postgres: name, kind, expression: None }
}

pub(super) const fn int(name: &'static str) -> Column {
    of(name, Kind::Integer)
}

pub(super) const fn real(name: &'static str) -> Column {
    of(name, Kind::Real)
}

pub(super) const fn flag(name: &'static str) -> Column {
    of(name, Kind::Flag)
}

pub(super) const fn text(name: &'static str) -> Column {
    of(name, Kind::Text)
}

pub(super) const fn blob(name: &'static str) -> Column {
    of(name, Kind::Blob)
}
