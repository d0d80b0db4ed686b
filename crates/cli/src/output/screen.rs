//! A block of lines at the bottom of a terminal that is redrawn in place.
//!
//! Each redraw is one write: move up to the start of the block, overwrite every line, and erase what is left below, so
//! nothing flickers. Other output goes above the block. What the lines say is decided elsewhere.

use std::io::Write;

use console::{Term, measure_text_width};

/// A terminal with a block of lines at its bottom; the cursor is below it.
pub(super) struct Screen {
    term: Term,
    /// The block as it was last drawn.
    block: Vec<String>,
    /// The width of the terminal when the block was drawn.
    columns: usize,
}

impl Screen {
    /// The terminal on stderr, if there is one that can be drawn on.
    pub(super) fn open() -> Option<Self> {
        let term = Term::stderr();
        (term.is_term() && !super::is_dumb()).then(|| Self { term, block: Vec::new(), columns: usize::MAX })
    }

    /// The current number of rows and columns.
    pub(super) fn size(&self) -> (usize, usize) {
        let (rows, columns) = self.term.size_checked().unwrap_or((24, 80));
        // A terminal that doesn't know its size reports 0.
        let (rows, columns) = (if rows == 0 { 24 } else { rows }, if columns == 0 { 80 } else { columns });
        (usize::from(rows), usize::from(columns))
    }

    /// Draws the block over the previous one.
    pub(super) fn draw(&mut self, block: Vec<String>) {
        let (rows, columns) = self.size();
        let block: Vec<String> = block.into_iter().take(rows.saturating_sub(1)).collect();
        if block == self.block && columns == self.columns {
            return;
        }
        let mut frame = self.up();
        if columns != self.columns {
            // Terminals remember which lines they wrapped, and would join them again.
            frame += "\x1b[J";
        }
        for line in &block {
            frame += line;
            // Erase after the text and not before it, so that an unchanged line never goes blank.
            frame += "\x1b[K\n";
        }
        frame += "\x1b[J";
        self.write(&frame);
        (self.block, self.columns) = (block, columns);
    }

    /// Writes whole lines above the block.
    pub(super) fn above(&mut self, text: &str) {
        let mut frame = self.up() + "\x1b[J" + text;
        if !frame.ends_with('\n') {
            frame.push('\n');
        }
        frame.extend(self.block.iter().flat_map(|line| [line.as_str(), "\n"]));
        self.write(&frame);
        self.columns = self.size().1;
    }

    /// Erases the block; the next draw brings it back.
    pub(super) fn erase(&mut self) {
        if !self.block.is_empty() {
            let frame = self.up() + "\x1b[J";
            self.write(&frame);
            self.block.clear();
        }
    }

    /// The escape sequence that moves the cursor to the start of the block.
    fn up(&self) -> String {
        let rows = rows_of(&self.block, self.columns, self.size().1);
        if rows == 0 { "\r".to_owned() } else { format!("\r\x1b[{rows}A") }
    }

    fn write(&mut self, frame: &str) {
        // Ignored if the terminal is gone.
        let _ = self.term.write_all(frame.as_bytes());
        let _ = self.term.flush();
    }
}

/// How many rows a block takes that was drawn for `drawn` columns and is shown on `columns`: a terminal that became
/// narrower wraps lines that no longer fit.
fn rows_of(block: &[String], drawn: usize, columns: usize) -> usize {
    if columns >= drawn {
        return block.len();
    }
    block.iter().map(|line| measure_text_width(line).div_ceil(columns.max(1)).max(1)).sum()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_narrower_terminal_wraps_lines() {
        let block = ["a".repeat(70), "\x1b[33mshort\x1b[0m".to_owned(), String::new()];
        assert_eq!(rows_of(&block, 80, 80), 3);
        assert_eq!(rows_of(&block, 80, 120), 3);
        assert_eq!(rows_of(&block, 80, 40), 4);
        assert_eq!(rows_of(&block, 80, 20), 6);
        assert_eq!(rows_of(&block, usize::MAX, 80), 3);
    }
}
