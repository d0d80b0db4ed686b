//! Lists of sites and their histories, for people: whoever holds a site, looking neither takes it nor waits for long.

use comity::core::outcome::Outcome;
use comity::gate::{CloseMode, DomainSummary};
use comity::store::activity::{DomainQuery, DomainSort, Order, TRAFFIC_INTERVAL};
use comity_core::intent::Intent;
use comity_core::time::{Span, Timestamp};

use crate::shared_store::{DiskStore, Process, host, manual_clock, rule};
use crate::support::{Heartbeats, a_moment, domain, manual_gate, ms, retry_after, soon, success};

async fn listed(process: &Process, sort: DomainSort) -> Vec<DomainSummary> {
    let query = DomainQuery { sort, order: Order::Descending, limit: 50, ..DomainQuery::default() };
    soon("a list", process.gate.page_domains(query)).await.unwrap().domains
}

/// B81: of sites held here the latest is shown; of others, what their holders published or reported.
#[tokio::test]
async fn a_list_shows_what_each_holder_knows_and_takes_nothing() {
    let (disk, (clock, control)) = (DiskStore::new(), manual_clock());
    let (a, b) = (disk.process(&rule(1_000), &clock).await, disk.process(&rule(1_000), &clock).await);
    let (ours, theirs) = (domain("ours.example"), domain("theirs.example"));
    control.advance(ms(1_000));
    b.ask(&ours).await.record(&success());
    a.ask(&theirs).await.record(&retry_after(Span::from_secs(90)));
    let before = b.store.find_domain(theirs.clone()).await.unwrap().unwrap();
    Heartbeats::of(&a.gate).advance(&control, ms(6_000)).await;
    let seen = async {
        loop {
            let list = listed(&b, DomainSort::HeldUntil).await;
            if list.first().is_some_and(|first| first.domain == theirs && first.reason.is_some()) {
                return list;
            }
            a_moment().await;
        }
    };
    let list = soon("what the other process publishes", seen).await;
    let (first, second) = (&list[0], &list[1]);
    assert_eq!((first.limit.as_deref(), first.holder.as_deref()), (Some("retry_after"), Some("a test")));
    assert!(first.held_until.is_some() && first.as_of.is_some(), "{first:?}");
    let last = first.last.unwrap();
    assert_eq!((last.outcome, last.status), (Outcome::RateLimited, Some(429)));
    assert_eq!((&second.domain, second.held_until), (&ours, None));
    assert_eq!(second.as_of, Some(clock.now()), "it is held here");
    assert_eq!(second.last.map(|last| last.outcome), Some(Outcome::Success));
    let after = b.store.find_domain(theirs.clone()).await.unwrap().unwrap();
    assert_eq!((after.holder, after.epoch), (before.holder, before.epoch));
    assert!(a.gate.holds(&theirs) && !b.gate.holds(&theirs));

    let trouble = soon("a look", b.gate.trouble(5)).await.unwrap();
    assert_eq!(trouble.iter().map(|one| one.domain.as_str()).collect::<Vec<_>>(), ["theirs.example"]);
    assert!(trouble[0].until.is_some() && !trouble[0].why.is_empty(), "{trouble:?}");
}

/// B81
#[tokio::test]
async fn the_latest_attempts_are_shown_whoever_holds_the_site() {
    let (disk, (clock, control)) = (DiskStore::new(), manual_clock());
    let (a, b) = (disk.process(&rule(1_000), &clock).await, disk.process(&rule(1_000), &clock).await);
    for _ in 0..3 {
        a.send(&host()).await;
        control.advance(ms(1_000));
    }
    a.ask(&host()).await.record(&retry_after(Span::from_secs(30)));
    let own = soon("a look", a.gate.timeline(&host())).await.unwrap();
    let outcomes: Vec<Outcome> = own.attempts.iter().map(|attempt| attempt.outcome).collect();
    assert_eq!(outcomes, [Outcome::Success, Outcome::Success, Outcome::Success, Outcome::RateLimited]);
    assert!(own.attempts.iter().all(|attempt| attempt.delay == ms(1_000)), "{own:?}");
    let seen = soon("a view", b.gate.timeline(&host())).await.unwrap();
    assert_eq!(seen.attempts, own.attempts);
    assert!(a.gate.holds(&host()) && !b.gate.holds(&host()));
    let counted = own.samples.iter().map(|sample| (sample.requests, sample.rate_limited)).collect::<Vec<_>>();
    assert_eq!(counted, [(4, 1)], "also what was not reported yet");
}

/// What a process knew last is reported when it stops, and what happened stays in the history.
#[tokio::test]
async fn what_happened_is_known_after_its_process_stopped() {
    let (disk, (clock, control)) = (DiskStore::new(), manual_clock());
    let a = disk.process(&rule(1_000), &clock).await;
    control.advance(ms(1_000));
    a.ask(&host()).await.record(&retry_after(Span::from_secs(90)));
    a.gate.close(CloseMode::Stop).await.unwrap();
    let b = disk.process(&rule(1_000), &clock).await;
    let seen = soon("a look", b.gate.timeline(&host())).await.unwrap();
    let samples: Vec<_> =
        seen.samples.iter().map(|sample| (sample.requests, sample.rate_limited, sample.held)).collect();
    assert_eq!((seen.attempts.len(), samples), (0, vec![(1, 1, Span::from_secs(90))]));
    let list = listed(&b, DomainSort::LastAnswer).await;
    assert_eq!((list.len(), list[0].last.and_then(|last| last.status)), (1, Some(429)));
    assert_eq!((list[0].holder.as_deref(), list[0].limit.as_deref()), (None, Some("retry_after")));
    let traffic = b.store.traffic(Timestamp::MIN, TRAFFIC_INTERVAL).await.unwrap();
    assert_eq!(traffic.iter().map(|point| point.traffic.outcome(Outcome::RateLimited)).sum::<u64>(), 1);
}

#[tokio::test]
async fn what_waits_is_grouped_by_reason() {
    let (gate, _control) = manual_gate(&rule(60_000));
    let mut waiting = Vec::new();
    for nth in 0..3 {
        let host = domain(&format!("{nth}.example"));
        let permit = gate.acquire(&host, Intent::Fetch).await.unwrap();
        match nth {
            0 => drop(permit.record(&retry_after(Span::from_secs(90)))),
            _ => drop(permit.record(&success())),
        }
        for _ in 0..=nth {
            let (gate, host) = (gate.clone(), host.clone());
            waiting.push(tokio::spawn(async move { gate.acquire(&host, Intent::Fetch).await.map(drop) }));
        }
    }
    while gate.status(9).in_line < 6 {
        a_moment().await;
    }
    let status = gate.status(1);
    let groups: Vec<_> = status
        .waits
        .iter()
        .map(|group| (&*group.reason, &*group.origin, group.sites, group.in_line))
        .collect();
    assert_eq!(groups, [("min_delay", "rule", 2, 5), ("retry_after", "server", 1, 1)]);
    assert_eq!((status.lines, status.store_ms), (3, None));
    waiting.iter().for_each(tokio::task::JoinHandle::abort);
}
