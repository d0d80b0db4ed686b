//! `comity domains`: lists, shows and changes what is known about domains, which users know as sites.

use comity::clock::Clock;
use comity::config::Config;
use comity::core::domain::Domain;
use comity::core::pace::{Pace, Pinned, Terms};
use comity::core::time::{Span, Timestamp};
use comity::gate::{CloseMode, DomainStatus, DomainView, Inspector};
use comity::store::Store;
use comity_server::ReleaseResponse;
use serde_json::{Value, json};

use super::{report, table};
use crate::args::{Domains, DomainsSet, Global};
use crate::live::duration;
use crate::{exit, output, setup};

pub(crate) async fn run(global: &Global, config: &Config, command: Domains) -> anyhow::Result<u8> {
    match command {
        Domains::List { like, limit } => list(global, config, like, limit).await,
        Domains::Show { domain } => show(global, config, &domain).await,
        Domains::Set(set) => {
            let (delay, floor) =
                (span("--delay", set.delay.as_deref())?, span("--floor", set.floor.as_deref())?);
            if let (Some(delay), Some(floor)) = (delay, floor)
                && floor > delay
            {
                return Err(exit::usage(format!(
                    "--floor = \"{floor}\": expected at most --delay ({delay})"
                )));
            }
            let pause = match set.pause.as_deref() {
                Some("forever") => Some(None),
                text => span("--pause", text)?.map(Some),
            };
            if delay.is_none() && floor.is_none() && pause.is_none() && !(set.pin || set.unpin || set.resume)
            {
                return Err(exit::usage("nothing to set; comity domains set --help lists the flags"));
            }
            let name = set.domain.clone();
            change(global, config, &name, move |pace, terms, now| {
                apply(pace, terms, now, &set, delay, floor, pause)
            })
            .await
        }
        Domains::Release { domain } => release(global, config, &domain).await,
        Domains::Reset { domain, deadline } => {
            // A misspelled store has nothing to reset.
            drop(setup::open_existing_store(config)?);
            match deadline {
                true => drop_deadline(global, config, &domain).await,
                false => {
                    change(global, config, &domain, |pace, _, now| {
                        pace.reset(now);
                    })
                    .await
                }
            }
        }
    }
}

fn span(flag: &str, text: Option<&str>) -> anyhow::Result<Option<Span>> {
    let parse = |text: &str| {
        Span::parse(text)
            .map_err(|error| exit::usage(format!("{flag} = {text:?}: expected {}", error.expected)))
    };
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

/// Ends the leases of permits that were never recorded, whichever process holds the domain.
async fn release(global: &Global, config: &Config, domain: &str) -> anyhow::Result<u8> {
    let host = setup::host(domain)?;
    let name = config.rules().domain(&host);
    let store = setup::open_existing_store(config)?;
    if store.find_domain(name.clone()).await?.is_none() {
        let known = known_ports(&*store, &name).await?;
        return Err(exit::usage(format!("nothing is known about {name} yet{known}")));
    }
    let gate = setup::gate(config, store, "domains").await?;
    let released = setup::with_timeout(gate.release(&host)).await?;
    let wait = gate.wait(&host);
    gate.close(CloseMode::HandOver).await?;
    if global.json {
        output::object(&serde_json::to_value(ReleaseResponse::of(&name, released, wait))?);
        return Ok(exit::DONE);
    }
    let permits = if released == 1 { "permit" } else { "permits" };
    output::line(&format!("{name}: {released} {permits} released"));
    Ok(exit::DONE)
}

/// Changes a domain, whichever process holds it: the holder hands it over for a moment.
async fn change(
    global: &Global,
    config: &Config,
    domain: &str,
    change: impl FnOnce(&mut Pace, Terms<'_>, Timestamp),
) -> anyhow::Result<u8> {
    let host = setup::host(domain)?;
    let store = setup::open_store(config)?;
    let gate = setup::gate(config, store, "domains").await?;
    setup::with_timeout(gate.with_pace(&host, change)).await?;
    gate.close(CloseMode::HandOver).await?;
    show(global, config, domain).await
}

/// Resets a domain, drops a deadline that its server stated, and makes the retries ready that wait for it.
async fn drop_deadline(global: &Global, config: &Config, domain: &str) -> anyhow::Result<u8> {
    let host = setup::host(domain)?;
    let name = config.rules().domain(&host);
    let store = setup::open_store(config)?;
    let gate = setup::gate(config, store.clone(), "domains").await?;
    let reset = |pace: &mut Pace, _: Terms<'_>, now| {
        pace.reset(now);
        pace.drop_server_deadline(now)
    };
    let dropped = setup::with_timeout(gate.with_pace(&host, reset)).await?;
    if dropped.is_some() {
        store.retry_now(name.clone(), gate.clock().now()).await?;
    }
    gate.close(CloseMode::HandOver).await?;
    output::remark(&match dropped {
        Some(until) => format!("{name}: dropped the server's deadline of {}", report::moment(until)),
        None => format!("{name}: the server has stated no deadline"),
    });
    show(global, config, domain).await
}

async fn list(global: &Global, config: &Config, like: String, limit: u32) -> anyhow::Result<u8> {
    let store = setup::open_existing_store(config)?;
    let rows = store.list_domains(like, String::new(), limit).await?;
    let clock = Clock::of(&*store).await?;
    let views = Inspector::new(store, config.rules().clone(), clock.clone()).inspect_rows(rows).await?;
    let now = clock.now();
    if global.json {
        let rows: Vec<Value> = views.iter().map(|view| object(config, view, now)).collect();
        output::object(&json!({ "domains": rows }));
        return Ok(exit::DONE);
    }
    if views.is_empty() {
        output::line("No matching sites");
    }
    let line = |view: &DomainView| [view.row.domain.clone(), sentence(config, view, now)];
    table::align(&views.iter().map(line).collect::<Vec<_>>());
    Ok(exit::DONE)
}

/// The ports of a host that are known as sites, to append to a message; each of them has a pace of its own.
async fn known_ports(store: &dyn Store, host: &Domain) -> anyhow::Result<String> {
    let start = format!("{host}:");
    let mut known = store.list_domains(start.clone(), String::new(), PORTS).await?;
    known.retain(|row| row.domain.starts_with(&start));
    let known: Vec<String> = known.into_iter().map(|row| row.domain).collect();
    Ok(if known.is_empty() { String::new() } else { format!("; did you mean {}?", known.join(" or ")) })
}

async fn show(global: &Global, config: &Config, domain: &str) -> anyhow::Result<u8> {
    let host = setup::host(domain)?;
    let store = setup::open_existing_store(config)?;
    let clock = Clock::of(&*store).await?;
    let Some(view) =
        Inspector::new(store.clone(), config.rules().clone(), clock.clone()).inspect(&host).await?
    else {
        let name = config.rules().domain(&host);
        let known = known_ports(&*store, &name).await?;
        return Err(exit::usage(format!("domain = {domain:?}: nothing is known about {name} yet{known}")));
    };
    let now = clock.now();
    if global.json {
        output::object(&object(config, &view, now));
    } else {
        output::line(&format!("{}  {}", view.row.domain, sentence(config, &view, now)));
    }
    Ok(exit::DONE)
}

/// The current status of a domain, unless its holder did not respond.
fn current_status(config: &Config, view: &DomainView, now: Timestamp) -> Option<DomainStatus> {
    view.as_of.and_then(|_| view.status(config.rules(), now))
}

fn object(config: &Config, view: &DomainView, now: Timestamp) -> Value {
    let time = |at: Option<Timestamp>| at.map(|at| at.to_string());
    let (row, live) = (&view.row, current_status(config, view, now));
    let (delay, floor) =
        live.as_ref().map_or((row.kept.delay, row.kept.floor), |live| (live.delay, live.floor));
    let next = live.as_ref().map(|live| live.next_available(now)).filter(|next| *next != Timestamp::MAX);
    json!({
        "domain": row.domain,
        "adaptive_delay_seconds": delay.as_secs_f64(),
        "adaptive_delay_floor_seconds": floor.as_secs_f64(),
        "server_until": time(row.kept.server.map(|(until, _)| until).filter(|until| *until > now)),
        "pinned": row.steering.pinned,
        "paused": row.steering.paused_at(now).is_some(),
        "paused_until": time(row.steering.paused_at(now).filter(|until| *until != Timestamp::MAX)),
        "holder": row.holder,
        "epoch": row.epoch,
        "waiting": row.waiting,
        "success_streak": live.as_ref().map(|live| live.streaks.success),
        "error_streak": live.as_ref().map(|live| live.streaks.error),
        "next_available": time(next),
        "last_success": time(live.as_ref().and_then(|live| live.last_success)),
        "last_request": time(live.as_ref().and_then(|live| live.last_start)),
        "as_of": time(view.as_of),
        "age_ms": view.as_of.map(|as_of| now.since(as_of).as_millis_up()),
    })
}

fn sentence(config: &Config, view: &DomainView, now: Timestamp) -> String {
    let mut parts = Vec::new();
    let row = &view.row;
    let live = current_status(config, view, now);
    let (delay, floor) =
        live.as_ref().map_or((row.kept.delay, row.kept.floor), |live| (live.delay, live.floor));
    match delay.is_zero() {
        true => parts.push("nothing learned".to_owned()),
        false => parts.push(format!("learned delay {}", delay.prose())),
    }
    if !floor.is_zero() {
        parts.push(format!("floor {}", floor.prose()));
    }
    if row.steering.pinned {
        parts.push("pinned".to_owned());
    }
    match row.steering.paused_at(now) {
        Some(Timestamp::MAX) => parts.push("paused until resumed".to_owned()),
        Some(until) => parts.push(format!("paused until {}", report::moment(until))),
        None => {}
    }
    // Deadlines in the past no longer matter.
    if let Some((until, _)) = row.kept.server.filter(|(until, _)| *until > now) {
        parts.push(format!("the server asked to wait until {}", report::moment(until)));
    }
    if let Some(live) = &live {
        parts.extend((!live.spacing.is_zero()).then(|| format!("{} between requests", live.spacing.prose())));
        let ago = live.last_start.map(|at| format!("last request {} ago", duration(now.since(at))));
        parts.extend(ago);
    }
    if row.waiting > 0 {
        let urls = if row.waiting == 1 { "URL" } else { "URLs" };
        parts.push(format!("{} {urls} waiting", row.waiting));
    }
    if let Some(holder) = &row.holder {
        let shown = match view.as_of {
            Some(as_of) => format!(" (as of {} ago)", now.since(as_of).prose()),
            None => " (not responding)".to_owned(),
        };
        parts.push(format!("in charge: {holder}{shown}"));
    }
    parts.join(", ")
}

/// How many ports of a host are named.
const PORTS: u32 = 3;
