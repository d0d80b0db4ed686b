//! Combines the layers, and builds the rules from the result.

use std::collections::BTreeMap;
use std::sync::Arc;

use comity_core::domain::Pattern;
use comity_core::problem::Problem;
use comity_core::rule::{Fields, Profile, RuleTable};
use serde_json::{Map, Value};

use super::Config;
use super::error::{ConfigError, Faults, Label};
use super::layer::{Entry, Origin, Target};
use super::request::{self, Scope};
use crate::request::{RequestTable, SiteRequest};

/// The layers taken so far.
#[derive(Default)]
pub(super) struct Merge {
    pub(super) faults: Faults,
    config: Config,
    profile: Option<Profile>,
    domains: BTreeMap<Pattern, Fields>,
    /// Where the rule keys that were set were written, by canonical path.
    labels: BTreeMap<String, Label>,
    rules_broken: bool,
    /// Request options for all sites.
    request: SiteRequest,
    /// Request options by row.
    requests: BTreeMap<Pattern, SiteRequest>,
}

impl Merge {
    /// Applies a layer, which overrides those applied before.
    pub(super) fn take_all(&mut self, layer: Vec<Entry>) {
        for entry in layer {
            self.take(entry);
        }
    }

    /// Checks the settings against each other and builds the rules.
    pub(super) fn finish(self, default_profile: Profile) -> Result<Config, ConfigError> {
        let Self { mut faults, mut config, profile, domains, labels, rules_broken, request, mut requests } =
            self;
        config.profile_named = profile.is_some();
        let profile = profile.unwrap_or(default_profile);
        config.profile = profile.name;
        config.domains = domains.into_iter().collect();
        // Use the rows of the rules, so that both match the same hosts.
        let rows =
            config.domains.iter().map(|(row, _)| (row.clone(), requests.remove(row).unwrap_or_default()));
        config.request = Arc::new(RequestTable::new(request, rows.collect()));
        // If a setting could not be read, the combination of the others would only produce misleading problems.
        if !rules_broken && !faults.unparsed {
            match rules(&config, profile) {
                Ok(table) => config.rules = Arc::new(table),
                Err(problems) => {
                    for Problem { key, value, expected } in problems {
                        let label = labels.get(&key).cloned().unwrap_or_else(|| merged(&key, &labels));
                        faults.value(&label, &value, &expected);
                    }
                }
            }
        }
        config.labels = Arc::new(labels);
        faults.into_result().map(|()| config)
    }

    fn take(&mut self, entry: Entry) {
        let Entry { origin, target, path, value } = entry;
        match target {
            Target::Setting if path == "profile" => self.name_profile(&origin.label(&path), &value),
            Target::Setting => {
                if let Err(expected) = self.config.set(&path, &value) {
                    self.faults.value(&origin.label(&path), &value.to_string(), &expected);
                }
            }
            Target::Row(row) => _ = self.domains.entry(row).or_default(),
            Target::Rule { row, key } if key == "request" => self.set_request(&origin, &path, row, &value),
            Target::Unusable { key } if key == "request" => {
                let invalid = request::read(&mut SiteRequest::default(), &value, Scope::Host);
                report_request(&mut self.faults, &origin, &path, invalid);
            }
            Target::Unusable { key } => _ = self.read(&origin, &path, &key, value),
            Target::Rule { row, key } => self.set_rule(&origin, &path, row, key, value),
            Target::Delay => {
                self.config.delay =
                    self.read(&origin, "", "min_delay", value).and_then(|fields| fields.min_delay);
            }
            Target::Learning => {
                self.config.learning =
                    self.read(&origin, "", "learning", value).and_then(|fields| fields.learning);
            }
        }
    }

    fn name_profile(&mut self, label: &Label, value: &Value) {
        match value.as_str().and_then(|name| Profile::named(name).ok()) {
            Some(profile) => self.profile = Some(profile),
            None => {
                self.rules_broken = true;
                let names = Profile::NAMES.map(|name| format!("{name:?}")).join(", ");
                self.faults.value(label, &value.to_string(), &format!("one of {names}"));
            }
        }
    }

    fn set_rule(&mut self, origin: &Origin, path: &str, row: Option<Pattern>, key: String, value: Value) {
        let nested: Vec<String> = keys_below(&value, &key);
        let Some(read) = self.read(origin, path, &key, value) else { return };
        let table = row.as_ref().map_or("default".to_owned(), |row| format!("domains.\"{row}\""));
        for key in nested {
            self.labels.insert(format!("{table}.{key}"), origin.label(&format!("{path}.{key}")));
        }
        let fields = match row {
            Some(row) => self.domains.entry(row).or_default(),
            None => &mut self.config.default,
        };
        *fields = read.over(fields);
    }

    fn set_request(&mut self, origin: &Origin, path: &str, row: Option<Pattern>, value: &Value) {
        let scope = match &row {
            None => Scope::All,
            Some(row) if row.is_wildcard() => Scope::Wildcard,
            Some(_) => Scope::Host,
        };
        let site = match row {
            Some(row) => self.requests.entry(row).or_default(),
            None => &mut self.request,
        };
        site.www |= path.starts_with("domains.\"www.");
        let invalid = request::read(site, value, scope);
        // Secrets from variables are not in the file.
        self.config.has_secrets |= site.has_literal_secret() && origin.is_file();
        report_request(&mut self.faults, origin, path, invalid);
    }

    /// Reads one key of a rule from the table at `path`.
    fn read(&mut self, origin: &Origin, path: &str, key: &str, value: Value) -> Option<Fields> {
        let problems = match Fields::read(&Map::from_iter([(key.to_owned(), value)])) {
            Ok(fields) => return Some(fields),
            Err(problems) => problems,
        };
        self.rules_broken = true;
        for Problem { key, value, expected } in problems.0 {
            self.faults.value(&origin.label(&format!("{path}.{key}")), &value, &expected);
        }
        None
    }
}

/// `key`, and the keys of the tables below it.
fn keys_below(value: &Value, key: &str) -> Vec<String> {
    let mut keys = vec![key.to_owned()];
    for (name, value) in value.as_object().into_iter().flatten() {
        keys.extend(keys_below(value, &format!("{key}.{name}")));
    }
    keys
}

fn report_request(faults: &mut Faults, origin: &Origin, path: &str, invalid: Vec<request::InvalidKey>) {
    for invalid in invalid {
        let key = if invalid.key.is_empty() { String::new() } else { format!(".{}", invalid.key) };
        let label = origin.label(&format!("{path}.request{key}"));
        faults.value(&label, &invalid.value, &invalid.expected);
    }
}

/// The label of a key that nobody set, and that doesn't fit what was set: the position is that of its table, if it has
/// one.
fn merged(key: &str, labels: &BTreeMap<String, Label>) -> Label {
    let names = super::lines::names(key);
    let table = &names[..names.len().saturating_sub(1)];
    let sibling =
        labels.iter().find(|(other, _)| !table.is_empty() && super::lines::names(other).starts_with(table));
    let place = sibling.map(|(_, label)| label.clone()).filter(|label| label.line.is_some());
    let key = Some(key.to_owned());
    match place {
        Some(place) => Label { key, ..place },
        None => Label { key, ..Label::of("merged settings") },
    }
}

/// Builds the rules of `config`. `--learning` replaces the learning rule of every row, including those of the profile;
/// `--delay` is applied by [`RuleTable::new`].
fn rules(config: &Config, mut profile: Profile) -> Result<RuleTable, Vec<Problem>> {
    let (mut default, mut rows) = (config.default.clone(), config.domains.clone());
    if config.learning.is_some() {
        default.learning = config.learning;
        for (_, fields) in rows.iter_mut().chain(&mut profile.rows) {
            fields.learning = config.learning;
        }
    }
    RuleTable::new(&profile, &default, &rows, config.delay).map_err(|problems| problems.0)
}
