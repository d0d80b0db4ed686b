//! Looking at domains that other processes hold: nothing is taken from them.

use std::time::Duration;

use comity::gate::HandsOff;
use comity_core::intent::Intent;
use comity_core::time::Span;

use crate::support::{Beats, domain, ms, soon};
use crate::tenancy::{Place, by_hand, host, rule};

/// B81: whoever only looked made the holder hand its domain over.
#[tokio::test]
async fn looking_at_a_domain_leaves_it_to_its_holder() {
    let (place, (clock, _)) = (Place::new(), by_hand());
    let (a, b) = (place.process(&rule(60_000), &clock).await, place.process(&rule(60_000), &clock).await);
    a.send(&host()).await;
    let before = b.store.find_domain(host()).await.unwrap().unwrap();
    let reason = soon("a look", b.gate.peek(&host(), Intent::Fetch)).await.unwrap();
    assert_eq!(reason.map(|reason| reason.wait_ms()), Some(60_000));
    let (reasons, as_of) = soon("a look", b.gate.explain_as_of(&host(), Intent::Fetch)).await.unwrap();
    assert!(reasons[0].binds() && as_of == Some(clock.now()), "{reasons:?} {as_of:?}");
    let seen = soon("a look", b.gate.looker().unwrap().look(&host())).await.unwrap().unwrap();
    assert_eq!(seen.live(b.gate.rules(), clock.now()), a.gate.look(&host()));
    assert_eq!(b.store.find_domain(host()).await.unwrap().unwrap(), before, "neither taken nor wanted");
    assert!(a.gate.holds(&host()) && !b.gate.holds(&host()));

    // What nobody holds is not taken either.
    a.gate.close(HandsOff::Pass).await.unwrap();
    let reason = soon("a look", b.gate.peek(&host(), Intent::Fetch)).await.unwrap();
    assert_eq!(reason.map(|reason| reason.wait_ms()), Some(60_000));
    let left = b.store.find_domain(host()).await.unwrap().unwrap();
    assert_eq!((left.holder, left.epoch, b.gate.holds(&host())), (None, before.epoch, false));
    let unknown = soon("a look", b.gate.peek(&domain("unknown.example"), Intent::Fetch)).await.unwrap();
    assert_eq!(unknown, None);
    assert_eq!(b.store.find_domain(domain("unknown.example")).await.unwrap(), None, "nor entered");
}

/// B81: a holder that is silent is not waited for; what was saved is shown, and that it is no more than that.
#[tokio::test]
async fn what_a_silent_holder_does_not_show_is_said_to_be_old() {
    let (place, (clock, _)) = (Place::new(), by_hand());
    let doomed = place.doomed(&rule(60_000), &clock);
    doomed.process.send(&host()).await;
    let b = place.process(&rule(60_000), &clock).await;
    // It lives, and does nothing any more.
    doomed.runtime.shutdown_background();
    let (_, as_of) = soon("a look", b.gate.explain_as_of(&host(), Intent::Fetch)).await.unwrap();
    assert_eq!(as_of, None);
}

/// B81: of many domains the slowest are published with each beat, and no more than a hundred.
#[tokio::test]
async fn the_slowest_domains_are_published() {
    let (place, (clock, hands)) = (Place::new(), by_hand());
    let slow = "[domains.\"slow.example\"]\nmin_delay = \"90s\"\n";
    let toml = format!("{}\n{slow}", rule(10));
    let (a, b) = (place.process(&toml, &clock).await, place.process(&toml, &clock).await);
    for nth in 0..110 {
        a.send(&domain(&format!("{nth}.example"))).await;
    }
    a.send(&domain("slow.example")).await;
    Beats::of(&a.gate).advance(&hands, ms(2_500)).await;
    let seen = async {
        loop {
            let survey = b.gate.survey_all(3).await;
            if let Some(slowest) = survey.slowest.first() {
                return (slowest.domain.clone(), slowest.spacing, survey.slowest.len());
            }
            tokio::time::sleep(Duration::from_millis(20)).await;
        }
    };
    assert_eq!(soon("its sights", seen).await, (domain("slow.example"), Span::from_secs(90), 3));
    let working = b.store.working().await.unwrap();
    let counts: Vec<usize> = working.iter().filter_map(|one| Some(one.sights.as_array()?.len())).collect();
    assert_eq!(counts.iter().max(), Some(&100), "{counts:?}");
}
