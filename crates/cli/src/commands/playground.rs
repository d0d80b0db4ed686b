//! `comity playground`: runs the test sites until Ctrl-C, then prints what they counted.

use serde_json::{Value, json};

use super::table;
use crate::args::{self, Global};
use crate::playground::{Playground, SiteReport};
use crate::signals::Signals;
use crate::{exit, output};

pub(crate) async fn run(global: &Global, args: &args::Playground) -> anyhow::Result<u8> {
    if !args.listen.ip().is_loopback() {
        let what =
            format!("--listen = \"{}\": expected a loopback address such as 127.0.0.1:7979", args.listen);
        return Err(exit::usage(what));
    }
    let mut signals = Signals::new()?;
    let playground = Playground::start(args.listen)
        .map_err(|error| exit::usage(format!("--listen = \"{}\": {error}", args.listen)))?;
    if global.json {
        output::object(
            &json!({ "listening": format!("http://{}", playground.address()), "sites": sites(&playground) }),
        );
    } else if !global.quiet {
        let row = |site: SiteReport| [site.url + "/page/1", site.port_url, site.about.to_owned()];
        let rows: Vec<[String; 3]> = playground.reports().into_iter().map(row).collect();
        table::write(["by name", "by port", "behavior"], &rows);
        let example = |name: &str, rest: &str| playground.url(name) + rest;
        let examples = [
            (format!("sources add {} && comity run", example("harbour", "/")), "finds its feed"),
            (
                format!("fetch --sitemap {} --job garden", example("garden", "/sitemap.xml")),
                "every site has one",
            ),
            ("fetch --job garden --refresh".to_owned(), "unchanged pages are answered with 304"),
            (format!("fetch {}", example("garden", "/missing")), "answered with 404"),
        ];
        let examples = examples.map(|(command, what)| [format!("  comity {command}"), format!("# {what}")]);
        output::line("");
        output::line("To try in another terminal:");
        table::align(&examples);
        output::line("");
        output::line(&format!("Request counts: http://{}; press Ctrl-C to stop", playground.address()));
    }
    signals.next().await;
    match global.json {
        true => output::object(&json!({ "sites": sites(&playground) })),
        false => print_counts(&playground.reports()),
    }
    Ok(exit::DONE)
}

/// Prints what the sites counted.
pub(crate) fn print_counts(sites: &[SiteReport]) {
    let row = |site: &SiteReport| {
        let tally = site.tally;
        let number = |count: u64| count.to_string();
        [
            site.name.to_owned(),
            number(tally.pages),
            number(tally.refused),
            number(tally.early),
            site.about.to_owned(),
        ]
    };
    let rows: Vec<[String; 5]> = sites.iter().filter(|site| site.tally.requests > 0).map(row).collect();
    if rows.is_empty() {
        output::line("No requests");
        return;
    }
    table::write(["site", "pages", "429 or 503", "too early", "behavior"], &rows);
}

/// What the sites counted, as JSON.
pub(crate) fn sites(playground: &Playground) -> Vec<Value> {
    let one = |site: SiteReport| {
        let tally = site.tally;
        json!({
            "name": site.name,
            "url": site.url,
            "port_url": site.port_url,
            "about": site.about,
            "requests": tally.requests,
            "pages": tally.pages,
            "refused": tally.refused,
            "early": tally.early,
        })
    };
    playground.reports().into_iter().map(one).collect()
}
