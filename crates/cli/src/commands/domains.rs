//! `comity domains`.

use comity::clock::Clock;
use comity::config::Config;
use comity::core::pace::{Pace, Pinned, Terms};
use comity::core::time::{Span, Timestamp};
use comity::gate::HandsOff;
use comity::store::domains::DomainRow;
use comity_server::Released;
use serde_json::{Value, json};

use super::{report, table};
use crate::args::{Domains, DomainsSet, Global};
use crate::{exit, output, setup};

pub(crate) async fn run(global: &Global, config: &Config, command: Domains) -> anyhow::Result<u8> {
    match command {
        Domains::List { like, limit } => list(global, config, like, limit).await,
        Domains::Show { domain } => show(global, config, &domain).await,
        Domains::Set(set) => {
            let (delay, floor) =
                (span("--delay", set.delay.as_deref())?, span("--floor", set.floor.as_deref())?);
            let pause = match set.pause.as_deref() {
                Some("forever") => Some(None),
                text => span("--pause", text)?.map(Some),
            };
            if delay.is_none() && floor.is_none() && pause.is_none() && !(set.pin || set.unpin || set.resume)
            {
                return Err(exit::usage("nothing to set; comity domains set --help shows what can be"));
            }
            let name = set.domain.clone();
            change(global, config, &name, move |pace, terms, now| {
                apply(pace, terms, now, &set, delay, floor, pause)
            })
            .await
        }
        Domains::Release { domain } => release(global, config, &domain).await,
        Domains::Reset { domain } => {
            change(global, config, &domain, |pace, _, now| {
                pace.reset(now);
            })
            .await
        }
    }
}

fn span(flag: &str, text: Option<&str>) -> anyhow::Result<Option<Span>> {
    let parse = |text: &str| Span::parse(text).map_err(|error| exit::usage(format!("{flag}: {error}")));
    text.map(parse).transpose()
}

fn apply(
    pace: &mut Pace,
    terms: Terms<'_>,
    now: Timestamp,
    set: &DomainsSet,
    delay: Option<Span>,
    floor: Option<Span>,
    pause: Option<Option<Span>>,
) {
    if delay.is_some() || floor.is_some() {
        let floor = floor.unwrap_or(pace.learned().floor());
        pace.set_learned(terms, delay.unwrap_or(pace.learned().delay()), floor, now);
    }
    if set.pin || set.unpin {
        pace.pin(if set.pin { Pinned::Yes } else { Pinned::No });
    }
    if let Some(pause) = pause {
        pace.pause(pause.map(|span| now + span));
    }
    if set.resume {
        pace.resume();
    }
}

/// Ends the leases of permits that nobody recorded, wherever the domain is held.
async fn release(global: &Global, config: &Config, domain: &str) -> anyhow::Result<u8> {
    let host = setup::host(domain)?;
    let name = config.rules().domain(&host);
    let store = setup::open_store(config)?;
    if store.find_domain(name.clone()).await?.is_none() {
        return Err(exit::usage(format!("nothing is known of {name} yet")));
    }
    let gate = setup::gate(config, store, "domains").await?;
    let released = setup::in_time(gate.release(&host)).await?;
    let wait = gate.wait(&host);
    gate.close(HandsOff::Pass).await?;
    if global.json {
        output::object(&serde_json::to_value(Released::of(&name, released, wait))?);
        return Ok(exit::DONE);
    }
    let permits = if released == 1 { "permit" } else { "permits" };
    output::line(&format!("{name}: {released} {permits} released"));
    Ok(exit::DONE)
}

/// Changes a domain, wherever it is held: whoever holds it hands it over for the moment.
async fn change(
    global: &Global,
    config: &Config,
    domain: &str,
    change: impl FnOnce(&mut Pace, Terms<'_>, Timestamp),
) -> anyhow::Result<u8> {
    let host = setup::host(domain)?;
    let store = setup::open_store(config)?;
    let gate = setup::gate(config, store, "domains").await?;
    setup::in_time(gate.with_pace(&host, change)).await?;
    gate.close(HandsOff::Pass).await?;
    show(global, config, domain).await
}

async fn list(global: &Global, config: &Config, like: String, limit: u32) -> anyhow::Result<u8> {
    let store = setup::open_store(config)?;
    let rows = store.list_domains(like, String::new(), limit).await?;
    let now = Clock::new().now();
    if global.json {
        let rows: Vec<Value> = rows.iter().map(|row| object(row, now)).collect();
        output::object(&json!({ "domains": rows }));
        return Ok(exit::DONE);
    }
    if rows.is_empty() {
        output::line("no such domains yet");
    }
    table::align(&rows.iter().map(|row| [row.domain.to_string(), sentence(row, now)]).collect::<Vec<_>>());
    Ok(exit::DONE)
}

async fn show(global: &Global, config: &Config, domain: &str) -> anyhow::Result<u8> {
    let host = setup::host(domain)?;
    let store = setup::open_store(config)?;
    let name = config.rules().domain(&host);
    let Some(row) = store.find_domain(name.clone()).await? else {
        return Err(exit::usage(format!("domain = {domain:?}: nothing is known of {name} yet")));
    };
    let now = Clock::new().now();
    if global.json {
        output::object(&object(&row, now));
    } else {
        output::line(&format!("{}  {}", row.domain, sentence(&row, now)));
    }
    Ok(exit::DONE)
}

fn object(row: &DomainRow, now: Timestamp) -> Value {
    let time = |at: Option<Timestamp>| at.map(|at| at.to_string());
    let pace = row.pace.as_deref().and_then(|bytes| Pace::decode(bytes).ok());
    json!({
        "domain": row.domain,
        "adaptive_delay_seconds": row.kept.delay.as_secs_f64(),
        "adaptive_delay_floor_seconds": row.kept.floor.as_secs_f64(),
        "server_until": time(row.kept.server.map(|(until, _)| until)),
        "pinned": row.steering.pinned,
        "paused": row.steering.paused_at(now).is_some(),
        "paused_until": time(row.steering.paused_at(now).filter(|until| *until != Timestamp::MAX)),
        "holder": row.holder,
        "epoch": row.epoch,
        "waiting": row.waiting,
        "success_streak": pace.as_ref().map(|pace| pace.learned().success_streak()),
        "error_streak": pace.as_ref().map(|pace| pace.learned().error_streak()),
        "last_success": time(pace.as_ref().and_then(Pace::last_success)),
        "last_request": time(pace.as_ref().and_then(Pace::last_start)),
    })
}

fn sentence(row: &DomainRow, now: Timestamp) -> String {
    let mut parts = Vec::new();
    match row.kept.delay.is_zero() {
        true => parts.push("nothing learnt".to_owned()),
        false => parts.push(format!("learned delay {}", row.kept.delay)),
    }
    if !row.kept.floor.is_zero() {
        parts.push(format!("floor {}", row.kept.floor));
    }
    if row.steering.pinned {
        parts.push("pinned".to_owned());
    }
    match row.steering.paused_at(now) {
        Some(Timestamp::MAX) => parts.push("paused until resumed".to_owned()),
        Some(until) => parts.push(format!("paused until {}", report::moment(until))),
        None => {}
    }
    if let Some((until, _)) = row.kept.server {
        parts.push(format!("the server asked to wait until {}", report::moment(until)));
    }
    if row.waiting > 0 {
        parts.push(format!("{} tasks wait", row.waiting));
    }
    if let Some(holder) = &row.holder {
        parts.push(format!("held by {holder}"));
    }
    parts.join(", ")
}
