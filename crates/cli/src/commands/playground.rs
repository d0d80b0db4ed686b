//! `comity playground`.

use serde_json::{Value, json};

use super::table;
use crate::args::{Global, Playground as Typed};
use crate::playground::{Counted, Playground};
use crate::signals::Signals;
use crate::{exit, output};

pub(crate) async fn run(global: &Global, typed: &Typed) -> anyhow::Result<u8> {
    if !typed.listen.ip().is_loopback() {
        let what = format!("--listen {}: expected a loopback address such as 127.0.0.1:7979", typed.listen);
        return Err(exit::usage(what));
    }
    let mut signals = Signals::new()?;
    let playground =
        Playground::start(typed.listen).map_err(|error| exit::usage(format!("--listen: {error}")))?;
    if global.json {
        output::object(
            &json!({ "listening": format!("http://{}", playground.address()), "sites": sites(&playground) }),
        );
    } else if !global.quiet {
        let row = |site: Counted| [site.url + "/page/1", site.port_url, site.about.to_owned()];
        let rows: Vec<[String; 3]> = playground.counted().into_iter().map(row).collect();
        table::write(["by name", "by port", "what it is"], &rows);
        output::line("");
        output::line(&format!("the list, with counts: http://{}; Ctrl-C ends it", playground.address()));
    }
    signals.next().await;
    match global.json {
        true => output::object(&json!({ "sites": sites(&playground) })),
        false => tell(&playground.counted()),
    }
    Ok(exit::DONE)
}

/// What the sites counted, for people.
pub(crate) fn tell(sites: &[Counted]) {
    let row = |site: &Counted| {
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
    let asked: Vec<[String; 5]> = sites.iter().filter(|site| site.tally.requests > 0).map(row).collect();
    if asked.is_empty() {
        output::line("nobody asked for anything");
        return;
    }
    table::write(["site", "pages", "refusals", "early", "what it is"], &asked);
}

/// The same for machines.
pub(crate) fn sites(playground: &Playground) -> Vec<Value> {
    let one = |site: Counted| {
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
    playground.counted().into_iter().map(one).collect()
}
