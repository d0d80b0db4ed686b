//! Which rule a domain goes by (B15): config rows over the profile's rows over `[default]` over the profile's.

use std::collections::HashMap;
use std::sync::Arc;

use compact_str::CompactString;

use super::{Fields, History, Profile, Rule};
use crate::domain::{Domain, Pattern};
use crate::problem::Problems;
use crate::time::Span;

/// The rules of every domain, merged and checked once.
#[derive(Debug, Clone)]
pub struct RuleTable {
    config: Rows,
    profile: Rows,
    /// By the matching config row and the matching profile row, each plus one, zero for none.
    rules: HashMap<(usize, usize), Arc<Rule>>,
    fallback: Arc<Rule>,
    /// By group, the rule of its slowest member.
    groups: HashMap<Domain, Arc<Rule>>,
}

impl RuleTable {
    /// Merges `profile` and the configuration. `delay` replaces every `min_delay` (the `--delay` of a run).
    ///
    /// Problems are told with the key they have in a file: `default.min_delay`, `domains."X".burst`.
    pub fn new(
        profile: &Profile,
        default: &Fields,
        rows: &[(Pattern, Fields)],
        delay: Option<Span>,
    ) -> Result<Self, Problems> {
        let forced = Fields { min_delay: delay, ..Fields::default() };
        let base = default.over(&profile.default);
        let mut problems = Problems::default();
        let mut rules = HashMap::new();
        let mut of_default = Vec::new();
        let configs = choices(rows);
        let profiles = choices(&profile.rows);
        for (c, config) in configs.iter().enumerate() {
            for (p, row) in profiles.iter().enumerate() {
                // A host cannot match two rows that share no host.
                if let (Some((config, _)), Some((row, _))) = (config, row)
                    && !config.overlaps(row)
                {
                    continue;
                }
                let layers = [&forced, fields(config), fields(row), &base];
                let merged = layers.iter().fold(Fields::default(), |above, below| above.over(below));
                let table =
                    config.map_or("default".to_owned(), |(pattern, _)| format!("domains.\"{pattern}\""));
                match Rule::new(&merged) {
                    Ok(rule) => _ = rules.insert((c, p), rule),
                    // A problem of the defaults is found again in every row, and is told once.
                    Err(wrong) if (c, p) == (0, 0) => {
                        of_default = wrong.0.clone();
                        problems.0.extend(wrong.0.into_iter().map(|problem| problem.inside("default")));
                    }
                    Err(wrong) => {
                        let own = wrong.0.into_iter().filter(|problem| !of_default.contains(problem));
                        problems.0.extend(own.map(|problem| problem.inside(&table)));
                    }
                }
            }
        }
        problems.0.dedup();
        problems.into_result()?;
        share_history(&mut rules);
        let rules: HashMap<_, _> = rules.into_iter().map(|(key, rule)| (key, Arc::new(rule))).collect();
        let fallback = rules.get(&(0, 0)).cloned().unwrap_or_default();
        let groups = slowest_of_groups(rules.values());
        let of = |rows: &[(Pattern, Fields)]| Rows::new(rows.iter().map(|(pattern, _)| pattern));
        Ok(Self { config: of(rows), profile: of(&profile.rows), rules, fallback, groups })
    }

    /// The rule that `host` goes by.
    pub fn rule(&self, host: &Domain) -> &Arc<Rule> {
        if self.config.is_empty() && self.profile.is_empty() {
            return &self.fallback;
        }
        let (name, port) = host.parts();
        match (self.config.find(name, port), self.profile.find(name, port)) {
            (0, 0) => &self.fallback,
            key => self.rules.get(&key).unwrap_or(&self.fallback),
        }
    }

    /// Whose pace `host` shares: its group's, or its own.
    pub fn domain(&self, host: &Domain) -> Domain {
        self.rule(host).group().unwrap_or(host).clone()
    }

    /// The rule that a domain is shown by: its own, or where it is a group that of its slowest member. A group has no
    /// row; what leaves goes by the rule of its host.
    pub fn rule_of(&self, domain: &Domain) -> &Arc<Rule> {
        self.groups.get(domain).unwrap_or_else(|| self.rule(domain))
    }

    /// Whether any hosts share a pace.
    pub fn has_groups(&self) -> bool {
        !self.groups.is_empty()
    }
}

/// Profile `standard` and nothing else.
impl Default for RuleTable {
    fn default() -> Self {
        Self {
            config: Rows::default(),
            profile: Rows::default(),
            rules: HashMap::new(),
            fallback: Arc::default(),
            groups: HashMap::new(),
        }
    }
}

/// No row, then every row.
fn choices(rows: &[(Pattern, Fields)]) -> Vec<Option<&(Pattern, Fields)>> {
    std::iter::once(None).chain(rows.iter().map(Some)).collect()
}

fn fields<'a>(row: &Option<&'a (Pattern, Fields)>) -> &'a Fields {
    static NOTHING: std::sync::LazyLock<Fields> = std::sync::LazyLock::new(Fields::default);
    row.map_or(&NOTHING, |(_, fields)| fields)
}

/// Of each group the rule that keeps the longest distance; one that is not paced at all comes last.
fn slowest_of_groups<'a>(rules: impl Iterator<Item = &'a Arc<Rule>>) -> HashMap<Domain, Arc<Rule>> {
    let baseline = |rule: &Rule| (rule.enabled(), rule.min_delay().max(rule.rate_delay()));
    let mut slowest: HashMap<Domain, Arc<Rule>> = HashMap::new();
    for rule in rules {
        let Some(group) = rule.group() else { continue };
        let known = slowest.entry(group.clone()).or_insert_with(|| rule.clone());
        if baseline(rule) > baseline(known) {
            *known = rule.clone();
        }
    }
    slowest
}

/// Rules of one group remember what the most demanding of them needs.
fn share_history(rules: &mut HashMap<(usize, usize), Rule>) {
    let mut needs: HashMap<Domain, History> = HashMap::new();
    for rule in rules.values() {
        if let Some(group) = rule.group() {
            let need = needs.entry(group.clone()).or_default();
            let mut widest = rule.clone();
            widest.remember(need);
            *need = *widest.history();
        }
    }
    for rule in rules.values_mut() {
        if let Some(need) = rule.group().and_then(|group| needs.get(group)).copied() {
            rule.remember(&need);
        }
    }
}

/// Rows by the hosts that they match: how every table that is keyed by hosts is looked up.
#[derive(Debug, Clone, Default)]
pub struct Rows {
    // Values are row numbers counted from 1.
    hosts: HashMap<(CompactString, Option<u16>), usize>,
    suffixes: HashMap<(CompactString, Option<u16>), usize>,
}

impl Rows {
    /// Rows with these patterns, in this order.
    pub fn new<'a>(patterns: impl Iterator<Item = &'a Pattern>) -> Self {
        let mut found = Self::default();
        for (nth, pattern) in patterns.enumerate() {
            let map = if pattern.is_wildcard() { &mut found.suffixes } else { &mut found.hosts };
            // The same row written twice: the later one goes.
            map.insert((pattern.host().into(), pattern.port()), nth + 1);
        }
        found
    }

    /// The number of the row that a host goes by, counted from 0: an exact host, else the longest suffix.
    pub fn row(&self, host: &Domain) -> Option<usize> {
        if self.is_empty() {
            return None;
        }
        let (name, port) = host.parts();
        self.find(name, port).checked_sub(1)
    }

    fn is_empty(&self) -> bool {
        self.hosts.is_empty() && self.suffixes.is_empty()
    }

    /// The number of the row that a host goes by: an exact host, else the longest suffix; 0 for none.
    fn find(&self, host: &str, port: Option<u16>) -> usize {
        let exact = Self::either(&self.hosts, host, port);
        let mut suffixes = host.match_indices('.').map(|(dot, _)| &host[dot + 1..]);
        let row = exact.or_else(|| {
            if self.suffixes.is_empty() {
                return None;
            }
            suffixes.find_map(|suffix| Self::either(&self.suffixes, suffix, port))
        });
        row.unwrap_or(0)
    }

    /// A row with the port comes before one for all ports.
    fn either(
        map: &HashMap<(CompactString, Option<u16>), usize>,
        host: &str,
        port: Option<u16>,
    ) -> Option<usize> {
        if map.is_empty() {
            return None;
        }
        let of = |port| map.get(&(CompactString::from(host), port)).copied();
        port.and_then(|port| of(Some(port))).or_else(|| of(None))
    }
}
