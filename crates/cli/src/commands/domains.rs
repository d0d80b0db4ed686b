//! `comity domains`.

use comity::clock::Clock;
use comity::config::Config;
use comity::core::pace::{Pace, Pinned, Terms};
use comity::core::time::{Span, Timestamp};
use comity::gate::{HandsOff, Live, Looker, Seen};
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
    let clock = Clock::of(&*store).await?;
    let seen = Looker::new(store, config.rules().clone(), clock.clone()).see(rows).await?;
    let now = clock.now();
    if global.json {
        let rows: Vec<Value> = seen.iter().map(|seen| object(config, seen, now)).collect();
        output::object(&json!({ "domains": rows }));
        return Ok(exit::DONE);
    }
    if seen.is_empty() {
        output::line("no such domains yet");
    }
    let line = |seen: &Seen| [seen.row.domain.clone(), sentence(config, seen, now)];
    table::align(&seen.iter().map(line).collect::<Vec<_>>());
    Ok(exit::DONE)
}

async fn show(global: &Global, config: &Config, domain: &str) -> anyhow::Result<u8> {
    let host = setup::host(domain)?;
    let store = setup::open_store(config)?;
    let clock = Clock::of(&*store).await?;
    let Some(seen) = Looker::new(store, config.rules().clone(), clock.clone()).look(&host).await? else {
        let name = config.rules().domain(&host);
        return Err(exit::usage(format!("domain = {domain:?}: nothing is known of {name} yet")));
    };
    let now = clock.now();
    if global.json {
        output::object(&object(config, &seen, now));
    } else {
        output::line(&format!("{}  {}", seen.row.domain, sentence(config, &seen, now)));
    }
    Ok(exit::DONE)
}

/// What was seen of a domain, unless its holder did not show it.
fn shown(config: &Config, seen: &Seen, now: Timestamp) -> Option<Live> {
    seen.as_of.and_then(|_| seen.live(config.rules(), now))
}

fn object(config: &Config, seen: &Seen, now: Timestamp) -> Value {
    let time = |at: Option<Timestamp>| at.map(|at| at.to_string());
    let (row, live) = (&seen.row, shown(config, seen, now));
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
        "as_of": time(seen.as_of),
        "age_ms": seen.as_of.map(|as_of| now.since(as_of).as_millis_up()),
    })
}

fn sentence(config: &Config, seen: &Seen, now: Timestamp) -> String {
    let mut parts = Vec::new();
    let row = &seen.row;
    let live = shown(config, seen, now);
    let (delay, floor) = live.map_or((row.kept.delay, row.kept.floor), |live| (live.delay, live.floor));
    match delay.is_zero() {
        true => parts.push("nothing learned".to_owned()),
        false => parts.push(format!("learned delay {delay}")),
    }
    if !floor.is_zero() {
        parts.push(format!("floor {floor}"));
    }
    if row.steering.pinned {
        parts.push("pinned".to_owned());
    }
    match row.steering.paused_at(now) {
        Some(Timestamp::MAX) => parts.push("paused until resumed".to_owned()),
        Some(until) => parts.push(format!("paused until {}", report::moment(until))),
        None => {}
    }
    // A deadline that is over is of no interest.
    if let Some((until, _)) = row.kept.server.filter(|(until, _)| *until > now) {
        parts.push(format!("the server asked to wait until {}", report::moment(until)));
    }
    if row.waiting > 0 {
        let tasks = if row.waiting == 1 { "task" } else { "tasks" };
        parts.push(format!("{} {tasks} waiting", row.waiting));
    }
    if let Some(holder) = &row.holder {
        let shown = match seen.as_of {
            Some(as_of) => format!(" ({} ago)", now.since(as_of).about()),
            None => " (which does not answer)".to_owned(),
        };
        parts.push(format!("held by {holder}{shown}"));
    }
    parts.join(", ")
}
