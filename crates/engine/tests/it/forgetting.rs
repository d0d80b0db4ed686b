//! Names that were asked about once do not stay for ever.

use std::sync::Arc;

use comity::clock::{Clock, Hands};
use comity::event::Events;
use comity::gate::Gate;
use comity::store::Store;
use comity::store::domains::{Parting, Released, Saved, Steering, Take};
use comity_core::domain::Domain;
use comity_core::intent::Intent;
use comity_core::pace::{Kept, Pace, Terms};
use comity_core::time::Span;

use crate::support::{at, config, domain};

/// B82: 400,000 random names that somebody had asked about stayed in the file.
#[tokio::test]
async fn domains_that_taught_nothing_are_forgotten_after_a_day() {
    let folder = tempfile::tempdir().unwrap();
    let store =
        comity::store::open(&format!("sqlite:{}", folder.path().join("comity.db").display())).unwrap();
    let rules = config("[domains.\"slow.example\"]\nmin_delay = \"72h\"\n").rules().clone();
    let names: Vec<Domain> = (0..NAMES).map(|nth| domain(&format!("random-{nth}.example"))).collect();
    let worth = ["asked.example", "slow.example", "learned.example", "last.example"].map(domain);
    let holder = store.register("before".to_owned(), at(0)).await.unwrap();
    for some in names.iter().chain(&worth).collect::<Vec<_>>().chunks(1_000) {
        let some: Vec<Domain> = some.iter().map(|name| (*name).clone()).collect();
        let released = store.take(holder, some, at(0)).await.unwrap().into_iter().map(|take| {
            let Take::Taken(taken) = take else { panic!("{take:?}") };
            let mut pace = Pace::default();
            let terms = Terms { rule: rules.rule_of(&taken.domain), crawl_delay: Span::ZERO };
            pace.admit(terms, Intent::Fetch, at(0));
            let mut kept = Kept::default();
            match taken.domain.as_str() {
                "asked.example" => kept.server = Some((at(0) + Span::from_hours(48), at(0))),
                "learned.example" => kept.delay = Span::from_secs(3),
                _ => {}
            }
            let saved = Saved { hold: taken.hold, kept, steering: Steering::default() };
            Released { saved, pace: pace.encode(), parting: Parting::HandOver }
        });
        let released = released.collect();
        store.release(holder, released, at(0)).await.unwrap();
    }
    store.deregister(holder, at(0)).await.unwrap();
    assert_eq!(count(&store).await, NAMES + 4);

    let (clock, hands) = Clock::manual(at(0) + Span::from_hours(24));
    let gate = Gate::with_store(rules, clock, Events::new(), store.clone(), "a test").await.unwrap();
    until(&store, &hands, NAMES + 4).await;
    until(&store, &hands, 4).await;
    let left: Vec<String> = store
        .list_domains(String::new(), String::new(), 100)
        .await
        .unwrap()
        .into_iter()
        .map(|row| row.domain)
        .collect();
    assert_eq!(left, ["asked.example", "last.example", "learned.example", "slow.example"]);
    assert!(gate.is_open());
}

/// Time passes until so many domains are known.
async fn until(store: &Arc<dyn Store>, hands: &Hands, expected: usize) {
    for _ in 0..2_000 {
        if count(store).await == expected {
            return;
        }
        // Not faster than it beats.
        hands.advance(Span::from_secs(2));
        tokio::time::sleep(std::time::Duration::from_millis(30)).await;
    }
    panic!("{} domains, not {expected}", count(store).await);
}

async fn count(store: &Arc<dyn Store>) -> usize {
    store.list_domains(String::new(), String::new(), u32::MAX).await.unwrap().len()
}

const NAMES: usize = 20_000;
