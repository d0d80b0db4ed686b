//! Rows on their way from one store to another, column by column, as one statement for many rows takes them.

use super::table::{Kind, Table};

/// Some rows of a table.
#[derive(Debug)]
pub(crate) struct Batch {
    /// The values of each of the table's columns.
    pub(crate) columns: Vec<Values>,
    pub(crate) rows: usize,
    /// The size of their texts and blobs.
    bytes: usize,
}

/// The values of a column.
#[derive(Debug)]
pub(crate) enum Values {
    Integers(Vec<Option<i64>>),
    Reals(Vec<Option<f64>>),
    Flags(Vec<Option<bool>>),
    Texts(Vec<Option<String>>),
    Blobs(Vec<Option<Vec<u8>>>),
}

impl Batch {
    pub(crate) fn new(table: &Table) -> Self {
        let values = |kind| match kind {
            Kind::Integer => Values::Integers(Vec::new()),
            Kind::Real => Values::Reals(Vec::new()),
            Kind::Flag => Values::Flags(Vec::new()),
            Kind::Text => Values::Texts(Vec::new()),
            Kind::Blob => Values::Blobs(Vec::new()),
        };
        Self { columns: table.columns.iter().map(|column| values(column.kind)).collect(), rows: 0, bytes: 0 }
    }

    /// Adds a row; `read` appends the value of a column, and returns its size.
    pub(crate) fn push<E>(
        &mut self,
        mut read: impl FnMut(usize, &mut Values) -> Result<usize, E>,
    ) -> Result<(), E> {
        for (nth, values) in self.columns.iter_mut().enumerate() {
            self.bytes += read(nth, values)?;
        }
        self.rows += 1;
        Ok(())
    }

    /// Whether it should be written before more rows are added.
    pub(crate) fn is_full(&self) -> bool {
        self.rows >= ROWS_MAX || self.bytes >= BYTES_MAX
    }
}

const ROWS_MAX: usize = 5_000;
/// Both sides hold this much in memory, a few times.
const BYTES_MAX: usize = 8 << 20;
