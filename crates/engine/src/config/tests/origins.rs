//! Where each value of a rule was written.

use super::*;

/// `key = value (source, place)`, one line per value that the profile doesn't set.
fn explained(config: &Config, host: &str) -> Vec<String> {
    let rule = config.explain_rule(&Domain::parse(host).unwrap());
    let own = rule.fields.iter().filter(|field| field.source != FieldSource::Profile);
    let source = |source: &FieldSource| match source {
        FieldSource::Row { pattern } | FieldSource::ProfileRow { pattern } => pattern.to_string(),
        other => format!("{other:?}"),
    };
    let place = |place: &Option<Place>| place.as_ref().map_or("nowhere".to_owned(), Place::to_string);
    own.map(|field| {
        format!("{} = {} ({}, {})", field.key, field.value, source(&field.source), place(&field.place))
    })
    .collect()
}

#[test]
fn each_value_of_a_rule_names_the_line_that_sets_it() {
    let file = "profile = \"collector\"\n[default]\nmin_delay = \"2s\"\n\n[domains.\"reuters.com\"]\nburst = 9\n\
                learn.step = \"4s\"\n[domains.\"*.example.org\"]\ngroup = \"all\"\n\
                [domains.\"*.example.org\".intent.search]\nmin_delay = \"10s\"\n";
    let config = of_file(file);
    assert_eq!(
        explained(&config, "reuters.com"),
        [
            "min_delay = \"3s\" (reuters.com, nowhere)",
            "burst = 9 (reuters.com, comity.toml:6)",
            "backoff = \"exponential\" (reuters.com, nowhere)",
            "learn.step = \"4s\" (reuters.com, comity.toml:7)",
        ]
    );
    let group = config.explain_rule(&Domain::parse("a.example.org").unwrap());
    assert_eq!(
        (group.domain.as_str(), group.row.unwrap().to_string()),
        ("group:all", "*.example.org".to_owned())
    );
    assert_eq!(
        explained(&config, "a.example.org"),
        [
            "min_delay = \"2s\" (Default, comity.toml:3)",
            "group = \"all\" (*.example.org, comity.toml:9)",
            "intent.search.min_delay = \"10s\" (*.example.org, comity.toml:11)",
        ]
    );
    assert_eq!(explained(&config, "b.example"), ["min_delay = \"2s\" (Default, comity.toml:3)"]);
}

#[test]
fn values_from_variables_and_flags_name_them() {
    let overrides = Overrides { delay: text("7s"), learning: text("off"), ..Overrides::default() };
    let env = [("COMITY_DEFAULT_BURST", "3")];
    let config = load("[default]\nmin_delay = \"2s\"\nburst = 5", &env, overrides).unwrap();
    assert_eq!(
        explained(&config, "a.example"),
        [
            "min_delay = \"7s\" (Delay, --delay)",
            "burst = 3 (Default, COMITY_DEFAULT_BURST)",
            "learning = \"off\" (Learning, --learning)",
        ]
    );
}

/// The values are those of the rule that applies.
#[test]
fn what_is_explained_is_what_applies() {
    let config = of_file("[domains.\"a.example\"]\nmin_delay = \"3s\"\nin_flight = 4");
    let host = Domain::parse("a.example").unwrap();
    let rule = config.explain_rule(&host);
    let value =
        |key: &str| rule.fields.iter().find(|field| field.key == key).map(|field| field.value.as_str());
    assert_eq!((value("min_delay"), value("in_flight")), (Some("\"3s\""), Some("4")));
    assert_eq!(
        (rule.profile, rule.fields.iter().filter(|field| field.key == "enabled").count()),
        ("standard", 1)
    );
    assert_eq!(config.rules().rule(&host).in_flight(), Some(4));
}
