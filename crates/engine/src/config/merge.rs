//! One layer over the other, and the rules that come of all of them.

use std::collections::BTreeMap;
use std::sync::Arc;

use comity_core::domain::Pattern;
use comity_core::problem::Problem;
use comity_core::rule::{Fields, Profile, RuleTable};
use serde_json::{Map, Value};

use super::Config;
use super::error::{ConfigError, Faults};
use super::layer::{Entry, Origin, Place};
use super::request::{self, Whose};
use crate::request::{RequestTable, SiteRequest};

/// The layers taken so far.
#[derive(Default)]
pub(super) struct Merge {
    pub(super) faults: Faults,
    config: Config,
    profile: Option<Profile>,
    domains: BTreeMap<Pattern, Fields>,
    /// How a message calls a rule's key that was set, by its canonical path.
    labels: BTreeMap<String, String>,
    rules_broken: bool,
    /// What requests are sent with, for all and by row.
    request: SiteRequest,
    requests: BTreeMap<Pattern, SiteRequest>,
}

impl Merge {
    /// Puts a layer over those taken before.
    pub(super) fn take_all(&mut self, layer: Vec<Entry>) {
        for entry in layer {
            self.take(entry);
        }
    }

    /// Checks what holds only between settings and makes the rules.
    pub(super) fn finish(self, unnamed: Profile) -> Result<Config, ConfigError> {
        let Self { mut faults, mut config, profile, domains, labels, rules_broken, request, mut requests } =
            self;
        config.profile_named = profile.is_some();
        let profile = profile.unwrap_or(unnamed);
        config.profile = profile.name;
        config.domains = domains.into_iter().collect();
        // The same rows as rules have, so that both match alike.
        let rows =
            config.domains.iter().map(|(row, _)| (row.clone(), requests.remove(row).unwrap_or_default()));
        config.request = Arc::new(RequestTable::new(request, rows.collect()));
        // Where a setting is missing because it could not be read, what the others come to means nothing.
        if !rules_broken && !faults.unread {
            match rules(&config, profile) {
                Ok(table) => config.rules = Arc::new(table),
                Err(problems) => {
                    for Problem { key, value, expected } in problems {
                        let merged = || format!("merged settings: {key}");
                        let label = labels.get(&key).cloned().unwrap_or_else(merged);
                        faults.value(&label, &value, &expected);
                    }
                }
            }
        }
        faults.into_result().map(|()| config)
    }

    fn take(&mut self, entry: Entry) {
        let Entry { origin, place, path, value } = entry;
        match place {
            Place::Setting if path == "profile" => self.name_profile(&origin.label(&path), &value),
            Place::Setting => {
                if let Err(expected) = self.config.set(&path, &value) {
                    self.faults.value(&origin.label(&path), &value.to_string(), &expected);
                }
            }
            Place::Row(row) => _ = self.domains.entry(row).or_default(),
            Place::Rule { row, key } if key == "request" => self.set_request(&origin, &path, row, &value),
            Place::Rule { row, key } => self.set_rule(&origin, &path, row, key, value),
            Place::Delay => {
                self.config.delay =
                    self.read(&origin, "", "min_delay", value).and_then(|fields| fields.min_delay);
            }
            Place::Learning => {
                self.config.learning =
                    self.read(&origin, "", "learning", value).and_then(|fields| fields.learning);
            }
        }
    }

    fn name_profile(&mut self, label: &str, value: &Value) {
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
        let Some(read) = self.read(origin, path, &key, value) else { return };
        let table = row.as_ref().map_or("default".to_owned(), |row| format!("domains.\"{row}\""));
        self.labels.insert(format!("{table}.{key}"), origin.label(&format!("{path}.{key}")));
        let fields = match row {
            Some(row) => self.domains.entry(row).or_default(),
            None => &mut self.config.default,
        };
        *fields = read.over(fields);
    }

    fn set_request(&mut self, origin: &Origin, path: &str, row: Option<Pattern>, value: &Value) {
        let whose = match &row {
            None => Whose::Everybodys,
            Some(row) if row.is_wildcard() => Whose::Wildcards,
            Some(_) => Whose::Hosts,
        };
        let site = match row {
            Some(row) => self.requests.entry(row).or_default(),
            None => &mut self.request,
        };
        site.www |= path.starts_with("domains.\"www.");
        for wrong in request::read(site, value, whose) {
            let key = if wrong.key.is_empty() { String::new() } else { format!(".{}", wrong.key) };
            let label = origin.label(&format!("{path}.request{key}"));
            self.faults.value(&label, &wrong.value, &wrong.expected);
        }
        // What a variable holds stands in no file.
        self.config.has_secrets |= site.has_literal_secret() && origin.is_file();
    }

    /// Reads one key of a rule that stands in the table at `path`.
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

/// The rules of `config`. A learning rule that was given for the run replaces that of every row, also of the
/// profile's; `--delay` is the table's own business.
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
