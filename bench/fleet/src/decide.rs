//! Decisions: permits for random sites, from a gate on a shared store.

use std::fmt::Write as _;
use std::net::UdpSocket;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use comity::clock::Clock;
use comity::config::{Config, Overrides, Sources};
use comity::core::domain::Domain;
use comity::core::headers::PacingHints;
use comity::core::intent::Intent;
use comity::core::outcome::Answer;
use comity::core::pace::Departure;
use comity::core::rule::Profile;
use comity::core::time::Span;
use comity::event::Events;
use comity::gate::{CloseMode, Gate};

use crate::{KINDS, Outcome, clock, site};

/// What a process of the fleet does.
struct Part {
    process: u8,
    sites: u32,
    step: u32,
    seconds: u64,
}

pub(crate) fn run(store: &str, judge: &str, numbers: &[&str]) -> Outcome<()> {
    let numbers: Vec<u64> = numbers.iter().map(|word| word.parse()).collect::<Result<_, _>>()?;
    let [process, sites, step, _processes, seconds, delay_ms] = numbers[..] else {
        return Err("six numbers".into());
    };
    let part = Part { process: process as u8, sites: sites as u32, step: step as u32, seconds };
    let judge: u16 = judge.parse()?;
    let runtime = tokio::runtime::Builder::new_multi_thread().worker_threads(1).enable_all().build()?;
    runtime.block_on(decide(store, judge, part, delay_ms))
}

async fn decide(store: &str, judge: u16, part: Part, delay_ms: u64) -> Outcome<()> {
    let mut text =
        "robots = \"ignore\"\n[default]\nlearning = \"off\"\nin_flight = \"unlimited\"\n".to_owned();
    for kind in 0..KINDS {
        let delay = delay_ms * u64::from(kind + 1);
        write!(text, "[domains.\"*.k{kind}.test\"]\nmin_delay = \"{delay}ms\"\nburst = \"unlimited\"\n")?;
    }
    let config = Config::load(Sources {
        default_profile: Profile::standard(),
        file: Some(("bench", &text)),
        env: Vec::new(),
        overrides: Overrides::default(),
    })?;
    let url = store.to_owned();
    let store = tokio::task::spawn_blocking(move || comity::store::open(&url)).await??;
    let name = format!("bench {}", part.process);
    let gate = Gate::with_store(config.rules().clone(), Clock::new(), Events::new(), store, &name).await?;
    let socket = Arc::new(UdpSocket::bind(("127.0.0.1", 0))?);
    socket.connect(("127.0.0.1", judge))?;
    let (part, decisions) = (Arc::new(part), Arc::new(AtomicU64::new(0)));
    let began = clock();
    let until = began + Duration::from_secs(part.seconds);
    let mut workers = tokio::task::JoinSet::new();
    for nth in 0..WORKERS {
        let (gate, socket, part, decisions) = (gate.clone(), socket.clone(), part.clone(), decisions.clone());
        workers.spawn(async move {
            let mut random = fastrand::Rng::with_seed(nth * 1_000 + u64::from(part.process));
            while clock() < until {
                let own =
                    random.u32(0..part.sites / part.step) * part.step + u32::from(part.process) % part.step;
                let Ok(host) = Domain::parse(&site(own).0) else { return };
                let left = until.saturating_duration_since(clock());
                let Ok(Ok(mut permit)) = tokio::time::timeout(left, gate.acquire(&host, Intent::Fetch)).await
                else {
                    return;
                };
                match permit.depart() {
                    Departure::Go => {}
                    Departure::Wait { .. } if permit.depart_within(PATIENCE).await => {}
                    Departure::Wait { .. } => continue,
                }
                let [a, b, c, d] = own.to_be_bytes();
                if socket.send(&[a, b, c, d, part.process]).is_err() {
                    return;
                }
                decisions.fetch_add(1, Ordering::Relaxed);
                permit.record(&Answer::of_status(200, PacingHints::default()));
            }
        });
    }
    while workers.join_next().await.is_some() {}
    let seconds = began.elapsed().as_secs_f64();
    let decisions = decisions.load(Ordering::Relaxed);
    println!("{}", serde_json::json!({ "decisions": decisions, "seconds": seconds }));
    gate.close(CloseMode::Stop).await?;
    Ok(())
}

/// Callers at a time in each process.
const WORKERS: u64 = 256;
/// How long a permit waits if its site is held again.
const PATIENCE: Span = Span::from_secs(1);
