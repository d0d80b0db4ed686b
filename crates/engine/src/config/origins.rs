//! The rule of a host, with where each of its values was written.
//!
//! The rules themselves are made in [`comity_core::rule`]. Here, the same layers are searched from the strongest to the weakest
//! for the one that sets each value.

use std::fmt;

use comity_core::domain::{Domain, Pattern};
use comity_core::rule::{Fields, Profile, Rows};

use super::Config;

/// The rule of a host, value by value.
#[derive(Debug, Clone, PartialEq)]
pub struct RuleOrigins {
    /// The host.
    pub host: Domain,
    /// The domain whose pace it uses: the host itself, or its group.
    pub domain: Domain,
    /// The row of the configuration that matches the host, if any.
    pub row: Option<Pattern>,
    /// The profile.
    pub profile: &'static str,
    /// The values of the rule, in the order of the documentation. What isn't listed is not limited.
    pub fields: Vec<FieldOrigin>,
}

/// A value of a rule.
#[derive(Debug, Clone, PartialEq)]
pub struct FieldOrigin {
    /// Its key, such as `min_delay` or `learn.step`.
    pub key: String,
    /// Its value, as TOML writes it.
    pub value: String,
    /// Which layer sets it.
    pub source: FieldSource,
    /// Where that was written, if it was.
    pub place: Option<Place>,
}

/// A layer of rules.
#[derive(Debug, Clone, PartialEq)]
pub enum FieldSource {
    /// `--delay`, which replaces every `min_delay`.
    Delay,
    /// `--learning`, which replaces every `learning`.
    Learning,
    /// The row of the configuration with this pattern: `[domains."X"]`.
    Row {
        /// The pattern.
        pattern: Pattern,
    },
    /// The row of the profile with this pattern.
    ProfileRow {
        /// The pattern.
        pattern: Pattern,
    },
    /// `[default]` of the configuration.
    Default,
    /// The profile, for all domains.
    Profile,
    /// Built in: neither the configuration nor the profile says anything.
    BuiltIn,
}

/// Where a value was written. Shows itself as `comity.toml:12`, or as the name of a variable or flag.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Place {
    /// The file, variable or flag.
    pub origin: String,
    /// The line in the file, counted from 1.
    pub line: Option<usize>,
}

impl Config {
    /// The rule of `host`, with where each value comes from.
    pub fn explain_rule(&self, host: &Domain) -> RuleOrigins {
        let profile = Profile::named(self.profile).unwrap_or_else(|_| Profile::standard());
        let row = row_of(&self.domains, host);
        let profile_row = row_of(&profile.rows, host);
        let standard = Profile::standard();
        let forced_delay = Fields { min_delay: self.delay, ..Fields::default() };
        let forced_learning = Fields { learning: self.learning, ..Fields::default() };
        let mut layers = vec![(FieldSource::Delay, &forced_delay), (FieldSource::Learning, &forced_learning)];
        if let Some((pattern, fields)) = row {
            layers.push((FieldSource::Row { pattern: pattern.clone() }, fields));
        }
        if let Some((pattern, fields)) = profile_row {
            layers.push((FieldSource::ProfileRow { pattern: pattern.clone() }, fields));
        }
        layers.push((FieldSource::Default, &self.default));
        layers.push((FieldSource::Profile, &profile.default));
        layers.push((FieldSource::BuiltIn, &standard.default));
        let mut fields: Vec<FieldOrigin> = Vec::new();
        let merged = layers.iter().fold(Fields::default(), |above, (_, below)| above.over(below));
        for (key, value) in values(&merged) {
            let sets = |(_, fields): &&(FieldSource, &Fields)| values(fields).any(|(known, _)| known == key);
            let Some((source, _)) = layers.iter().find(sets) else { continue };
            let (source, place) = (source.clone(), self.place_of(source, &key));
            fields.push(FieldOrigin { key, value, source, place });
        }
        RuleOrigins {
            host: host.clone(),
            domain: self.rules.domain(host),
            row: row.map(|(pattern, _)| pattern.clone()),
            profile: self.profile,
            fields,
        }
    }

    /// Where a value of this layer was written.
    fn place_of(&self, source: &FieldSource, key: &str) -> Option<Place> {
        let table = match source {
            FieldSource::Row { pattern } => format!("domains.\"{pattern}\""),
            FieldSource::Default => "default".to_owned(),
            FieldSource::Delay => return Some(Place { origin: "--delay".to_owned(), line: None }),
            FieldSource::Learning => return Some(Place { origin: "--learning".to_owned(), line: None }),
            FieldSource::ProfileRow { .. } | FieldSource::Profile | FieldSource::BuiltIn => return None,
        };
        // A variable may set a table as a whole, whose keys have no places of their own.
        let mut path = format!("{table}.{key}");
        loop {
            if let Some(label) = self.labels.get(&path) {
                return Some(Place { origin: label.origin.clone(), line: label.line });
            }
            let (above, _) = path.rsplit_once('.').filter(|(above, _)| above.len() > table.len())?;
            path = above.to_owned();
        }
    }
}

impl fmt::Display for Place {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.origin)?;
        self.line.map_or(Ok(()), |line| write!(f, ":{line}"))
    }
}

fn row_of<'a>(rows: &'a [(Pattern, Fields)], host: &Domain) -> Option<&'a (Pattern, Fields)> {
    Rows::new(rows.iter().map(|(pattern, _)| pattern)).row(host).and_then(|nth| rows.get(nth))
}

/// The values that are set, as TOML writes them.
fn values(fields: &Fields) -> impl Iterator<Item = (String, String)> {
    let lines: Vec<(String, String)> = fields
        .to_toml()
        .lines()
        .filter_map(|line| line.split_once(" = ").map(|(key, value)| (key.to_owned(), value.to_owned())))
        .collect();
    lines.into_iter()
}
