//! Which rule applies to a host. From strongest to weakest: rows of the configuration, rows of the profile, `[default]`
//! of the configuration, the profile's defaults.

use std::collections::HashMap;
use std::sync::Arc;

use smol_str::SmolStr;

use super::{Fields, History, Profile, Rule};
use crate::domain::{Domain, Pattern};
use crate::problem::Problems;
use crate::time::Span;

/// The rules of every domain, merged and checked once.
#[derive(Debug, Clone)]
pub struct RuleTable {
    config: Rows,
    profile: Rows,
    /// Keyed by the matching row of the configuration and of the profile, counted from 1; 0 if no row matches.
    rules: HashMap<(usize, usize), Arc<Rule>>,
    fallback: Arc<Rule>,
    /// The rule of the slowest member of each group.
    groups: HashMap<Domain, Arc<Rule>>,
}

impl RuleTable {
    /// Merges `profile` and the configuration. `delay` (from `--delay`) replaces every `min_delay`.
    ///
    /// Problems are reported with the key they have in a file: `default.min_delay`, `domains."X".burst`.
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
                // No host can match both rows if their patterns don't overlap.
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
                    // A problem in the defaults shows up again in every row, but is reported once.
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

    /// The rule that applies to `host`.
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

    /// The domain whose pace `host` uses: its group, or the host itself.
    pub fn domain(&self, host: &Domain) -> Domain {
        self.rule(host).group().unwrap_or(host).clone()
    }

    /// The rule to show for a domain: its own, or that of the slowest member if it is a group. A group has no rule
    /// itself; each request follows the rule of its host.
    pub fn rule_of(&self, domain: &Domain) -> &Arc<Rule> {
        self.groups.get(domain).unwrap_or_else(|| self.rule(domain))
    }

    /// Whether there are groups, that is, hosts that share a pace.
    pub fn has_groups(&self) -> bool {
        !self.groups.is_empty()
    }
}

/// The profile `standard` without configuration.
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

/// `None` for "no row matches", followed by all rows.
fn choices(rows: &[(Pattern, Fields)]) -> Vec<Option<&(Pattern, Fields)>> {
    std::iter::once(None).chain(rows.iter().map(Some)).collect()
}

fn fields<'a>(row: &Option<&'a (Pattern, Fields)>) -> &'a Fields {
    static NOTHING: std::sync::LazyLock<Fields> = std::sync::LazyLock::new(Fields::default);
    row.map_or(&NOTHING, |(_, fields)| fields)
}

/// The slowest rule of each group; a disabled rule is the fastest.
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

/// Makes all rules of a group remember as many starts as the most demanding of them needs.
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

/// Finds the row that matches a host. Used for every table that is keyed by hosts.
#[derive(Debug, Clone, Default)]
pub struct Rows {
    // Values are row numbers counted from 1.
    hosts: HashMap<(SmolStr, Option<u16>), usize>,
    suffixes: HashMap<(SmolStr, Option<u16>), usize>,
}

impl Rows {
    /// A lookup for rows with these patterns, in this order.
    pub fn new<'a>(patterns: impl Iterator<Item = &'a Pattern>) -> Self {
        let mut found = Self::default();
        for (nth, pattern) in patterns.enumerate() {
            let map = if pattern.is_wildcard() { &mut found.suffixes } else { &mut found.hosts };
            // If the same row appears twice, the later one wins.
            map.insert((pattern.host().into(), pattern.port()), nth + 1);
        }
        found
    }

    /// The row that matches a host, counted from 0: an exact host, otherwise the longest suffix.
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

    /// The row that matches a host, counted from 1: an exact host, otherwise the longest suffix; 0 if none matches.
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

    /// A row with the host's port wins over a row for all ports.
    fn either(map: &HashMap<(SmolStr, Option<u16>), usize>, host: &str, port: Option<u16>) -> Option<usize> {
        if map.is_empty() {
            return None;
        }
        let of = |port| map.get(&(SmolStr::from(host), port)).copied();
        port.and_then(|port| of(Some(port))).or_else(|| of(None))
    }
}
