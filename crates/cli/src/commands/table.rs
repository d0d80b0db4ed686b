//! Prints tables, aligned by display width: a wide character takes two columns, a combining accent none.

use console::{Alignment, Term, measure_text_width, pad_str, truncate_str};

use crate::output;

/// Prints a header and rows. Only the last column may be of any length.
pub(crate) fn write<const N: usize>(head: [&str; N], rows: &[[String; N]]) {
    let head = head.map(str::to_owned);
    align(&std::iter::once(head).chain(rows.iter().cloned()).collect::<Vec<_>>());
}

/// Prints rows without a header.
pub(crate) fn align<const N: usize>(rows: &[[String; N]]) {
    let rows: Vec<[String; N]> =
        rows.iter().map(|row| row.clone().map(|cell| output::sanitized(&cell))).collect();
    let mut widths = [0; N];
    for row in &rows {
        for (width, cell) in widths.iter_mut().zip(row) {
            *width = (*width).max(measure_text_width(cell));
        }
    }
    for row in &rows {
        let cells = row.iter().zip(widths).map(|(cell, width)| pad_str(cell, width, Alignment::Left, None));
        output::line(cells.collect::<Vec<_>>().join("  ").trim_end());
    }
}

/// The start of `text` on one line, shortened to at most `columns` columns.
pub(crate) fn cut(text: &str, columns: usize) -> String {
    let text = output::sanitized(&text.replace(['\n', '\r', '\t'], " "));
    truncate_str(&text, columns, "…").into_owned()
}

/// Columns for a name in a row whose other cells take about `others`: what is left of the terminal, or 40.
pub(crate) fn room(others: usize) -> usize {
    columns().map_or(NAME, |columns| columns.saturating_sub(others).clamp(NAME_MIN, NAME_MAX))
}

/// The columns of the terminal on stdout, if it is one that knows its size.
pub(crate) fn columns() -> Option<usize> {
    let size = Term::stdout().size_checked();
    size.map(|(_, columns)| usize::from(columns)).filter(|columns| *columns > 0)
}

const NAME: usize = 40;
const NAME_MIN: usize = 16;
const NAME_MAX: usize = 60;

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn text_is_shortened_by_display_width() {
        assert_eq!(cut("short", 5), "short");
        assert_eq!(cut("longer", 5), "long…");
        assert_eq!(cut("新聞新聞", 5), "新聞…");
        assert_eq!(cut("a\nb\u{1b}", 9), "a b\u{fffd}");
    }
}
