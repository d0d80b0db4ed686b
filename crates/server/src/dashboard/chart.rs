//! Charts as inline SVG. Only shapes are drawn here, stretched to the space there is; axes are text beside them, so they
//! stay readable at any width. Each chart comes with a sentence and a table for those who don't see it.

use std::fmt::Write;

use comity::core::time::{Span, Timestamp};

/// One column of a chart: how much of each kind.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Column {
    pub(crate) from: Timestamp,
    /// How many of each kind, from the bottom up.
    pub(crate) parts: [u64; 3],
}

/// Columns over time.
#[derive(Debug, Clone)]
pub(crate) struct Columns {
    pub(crate) from: Timestamp,
    pub(crate) until: Timestamp,
    /// How long the interval of a column is.
    pub(crate) every: Span,
    pub(crate) columns: Vec<Column>,
}

/// The top of an axis, and what its lines are labelled with, from the top down.
#[derive(Debug, Clone, PartialEq)]
pub(crate) struct Axis {
    pub(crate) top: f64,
    pub(crate) labels: Vec<String>,
}

impl Axis {
    /// An axis for values up to `greatest`, with round numbers.
    pub(crate) fn up_to(greatest: f64, unit: &str) -> Self {
        let mut top = 1.0;
        if greatest > 0.0 {
            let size = 10_f64.powf(greatest.log10().floor());
            let steps = [1.0, 2.0, 4.0, 5.0, 10.0];
            top = steps
                .into_iter()
                .map(|step| step * size)
                .find(|top| *top >= greatest * 0.999)
                .unwrap_or(10.0 * size);
        }
        let label = |nth: u32| {
            let value = top * f64::from(nth) / f64::from(LINES);
            let text = if value.fract().abs() < 1e-9 { format!("{value:.0}") } else { trimmed(value) };
            if nth == 0 || unit.is_empty() { text } else { format!("{text} {unit}") }
        };
        Self { top, labels: (0..=LINES).rev().map(label).collect() }
    }
}

fn trimmed(value: f64) -> String {
    let text = if value < 0.1 { format!("{value:.3}") } else { format!("{value:.2}") };
    text.trim_end_matches('0').trim_end_matches('.').to_owned()
}

impl Columns {
    /// Values per second, as the axis shows them.
    pub(crate) fn axis(&self) -> Axis {
        let greatest = self.columns.iter().map(|column| column.parts.iter().sum::<u64>()).max().unwrap_or(0);
        Axis::up_to(greatest as f64 / self.every.as_secs_f64().max(1e-6), "/s")
    }

    /// The shapes, as HTML.
    pub(crate) fn svg(&self, title: &str) -> String {
        let axis = self.axis();
        let whole = self.until.since(self.from).as_secs_f64().max(1e-6);
        let wide = WIDTH * self.every.as_secs_f64() / whole;
        let mut svg = opening(title);
        for column in &self.columns {
            let x = WIDTH * column.from.since(self.from).as_secs_f64() / whole;
            let mut y = HEIGHT;
            for (part, class) in column.parts.iter().zip(["f-go", "f-stop", "f-mute"]) {
                let high = HEIGHT * *part as f64 / self.every.as_secs_f64() / axis.top;
                if *part > 0 {
                    y -= high;
                    // A single refusal among thousands of requests must be seen.
                    let (y, high) = if high < 1.5 { (y - (1.5 - high), 1.5) } else { (y, high) };
                    let _ = write!(
                        svg,
                        "<rect class=\"{class}\" x=\"{x:.2}\" y=\"{y:.2}\" width=\"{:.2}\" height=\"{high:.2}\"/>",
                        wide * 0.86
                    );
                }
            }
        }
        svg + "</svg>"
    }
}

/// A curve of steps: how long a delay was, over time, with the times at which a site was closed.
#[derive(Debug, Clone)]
pub(crate) struct Steps {
    pub(crate) from: Timestamp,
    pub(crate) until: Timestamp,
    /// When the value changed, and to how many seconds. Sorted.
    pub(crate) values: Vec<(Timestamp, f64)>,
    /// The share of an interval in which the site was closed.
    pub(crate) closed: Vec<(Timestamp, Span, f64)>,
}

impl Steps {
    pub(crate) fn axis(&self) -> Axis {
        Axis::up_to(self.values.iter().map(|(_, value)| *value).fold(0.0, f64::max), "s")
    }

    /// The shapes, as HTML.
    pub(crate) fn svg(&self, title: &str) -> String {
        let axis = self.axis();
        let whole = self.until.since(self.from).as_secs_f64().max(1e-6);
        let x = |at: Timestamp| (WIDTH * at.since(self.from).as_secs_f64() / whole).clamp(0.0, WIDTH);
        let y = |value: f64| HEIGHT - (HEIGHT - 2.0) * value / axis.top;
        let mut svg = opening(title);
        for (from, span, share) in &self.closed {
            let high = HEIGHT * share.clamp(0.0, 1.0);
            let (left, right) = (x(*from), x(*from + *span));
            let _ = write!(
                svg,
                "<rect class=\"f-hold\" x=\"{left:.2}\" y=\"{:.2}\" width=\"{:.2}\" height=\"{high:.2}\"/>",
                HEIGHT - high,
                right - left
            );
        }
        let mut path = String::new();
        for (at, value) in &self.values {
            let (x, y) = (x(*at), y(*value));
            let _ =
                if path.is_empty() { write!(path, "M{x:.2} {y:.2}") } else { write!(path, "H{x:.2}V{y:.2}") };
        }
        if !path.is_empty() {
            let _ = write!(svg, "<path class=\"curve\" d=\"{path}H{WIDTH}\"/>");
        }
        svg + "</svg>"
    }
}

/// The labels of a time axis, from left to right.
pub(crate) fn times(from: Timestamp, until: Timestamp) -> Vec<String> {
    let whole = until.since(from).as_micros();
    (0..=4).map(|nth| super::text::clock(from + Span::from_micros(whole / 4 * nth))).collect()
}

/// How much of a whole: a bar, as HTML. The number stands beside it, so it needs no name.
pub(crate) fn meter(parts: &[(u64, &str)], whole: u64) -> String {
    let mut svg = "<svg class=\"meter\" viewBox=\"0 0 100 4\" preserveAspectRatio=\"none\" aria-hidden=\"true\"><rect class=\"rest\" width=\"100\" height=\"4\"/>".to_owned();
    let mut x = 0.0;
    for (part, class) in parts {
        if *part > 0 && whole > 0 {
            let wide = (100.0 * *part as f64 / whole as f64).max(0.6);
            let _ = write!(svg, "<rect class=\"{class}\" x=\"{x:.2}\" width=\"{wide:.2}\" height=\"4\"/>");
            x += wide;
        }
    }
    svg + "</svg>"
}

fn opening(title: &str) -> String {
    let mut svg = format!(
        "<svg class=\"plot\" viewBox=\"0 0 {WIDTH} {HEIGHT}\" preserveAspectRatio=\"none\" role=\"img\" aria-label=\"{}\">",
        escaped(title)
    );
    for nth in 0..=LINES {
        let y = HEIGHT * f64::from(nth) / f64::from(LINES);
        let class = if nth == LINES { "axis" } else { "gridline" };
        let _ = write!(svg, "<line class=\"{class}\" x1=\"0\" x2=\"{WIDTH}\" y1=\"{y}\" y2=\"{y}\"/>");
    }
    svg
}

pub(crate) fn escaped(text: &str) -> String {
    text.replace('&', "&amp;").replace('"', "&quot;").replace('<', "&lt;").replace('>', "&gt;")
}

const WIDTH: f64 = 720.0;
const HEIGHT: f64 = 160.0;
/// Lines across a chart, above the bottom.
const LINES: u32 = 2;

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_axis_has_round_numbers_and_room_for_all_values() {
        assert_eq!(Axis::up_to(0.0, "/s").labels, ["1 /s", "0.5 /s", "0"]);
        assert_eq!(Axis::up_to(3.7, "/s").labels, ["4 /s", "2 /s", "0"]);
        assert_eq!(Axis::up_to(0.1, "s").labels, ["0.1 s", "0.05 s", "0"]);
        for greatest in [0.003, 0.9, 1.0, 7.0, 99.0, 12_345.0] {
            assert!(Axis::up_to(greatest, "").top >= greatest * 0.999, "{greatest}");
        }
    }

    #[test]
    fn a_chart_shows_a_single_refusal_among_many() {
        let from = Timestamp::from_secs(1_000_000);
        let columns = Columns {
            from,
            until: from + Span::from_secs(100),
            every: Span::from_secs(10),
            columns: vec![Column { from, parts: [10_000, 1, 0] }],
        };
        let svg = columns.svg("a \"title\" <b>");
        assert!(
            svg.contains("height=\"1.50\"") && svg.contains("aria-label=\"a &quot;title&quot; &lt;b&gt;\""),
            "{svg}"
        );
        assert!(!svg.contains("style="), "{svg}");
    }

    #[test]
    fn a_meter_never_hides_a_part() {
        assert!(meter(&[(1, "f-stop")], 1_000_000).contains("width=\"0.60\""));
        assert!(!meter(&[(0, "f-stop")], 0).contains("f-stop"));
    }
}
