//! URLs with unusual hosts, through a list and the store and back.

use std::collections::BTreeSet;

use comity::archive::Archive;
use comity::store::tasks::Claim;
use comity_core::domain::Domain;
use url::Url;

use crate::client::QUICK;
use crate::jobs::{Worker, fill};

/// B82, B15: each URL that a list accepts is claimed with the domain it was accepted for, and none is set aside.
#[tokio::test]
async fn every_accepted_url_is_claimed_for_its_own_domain() {
    let mut random = fastrand::Rng::with_seed(15);
    let lines: BTreeSet<String> = (0..6_000)
        .map(|nth| {
            let host: String = (0..random.usize(1..5)).map(|_| PARTS[random.usize(..PARTS.len())]).collect();
            let host = if random.u8(..30) == 0 { host.repeat(40) } else { host };
            let scheme = if random.bool() { "http" } else { "https" };
            format!("{scheme}://{host}/{nth}")
        })
        .collect();
    let lines: Vec<String> = lines.into_iter().collect();
    let accepted: Vec<(Url, Domain)> = lines
        .iter()
        .filter_map(|line| Url::parse(line).ok())
        .filter_map(|url| Domain::of(&url).map(|domain| (url, domain)))
        .collect();
    assert!((1_000..5_500).contains(&accepted.len()), "{}", accepted.len());

    let worker = Worker::start(QUICK).await;
    let pool = worker.pool(Archive::Nothing).await;
    fill(&pool, &lines).await;
    let (store, now) = (&worker.store, worker.gate.clock().now());
    let job = worker.job().await;
    let holder = store.register("another".to_owned(), now).await.unwrap();
    let mut claimed = BTreeSet::new();
    loop {
        let claim = Claim { job: job.id, lanes: 1_000, tasks: 10_000 };
        let lanes = store.claim(holder, claim, now).await.unwrap();
        if lanes.is_empty() {
            break;
        }
        for lane in lanes {
            for task in lane.tasks {
                assert_eq!(Domain::of_url(&task.url).as_ref(), Ok(&lane.domain), "{}", task.url);
                claimed.insert((task.url, lane.domain.as_str().to_owned()));
            }
        }
    }
    let expected = |(url, domain): (Url, Domain)| (String::from(url), domain.as_str().to_owned());
    assert_eq!(claimed, accepted.into_iter().map(expected).collect());
    assert_eq!(worker.job().await.counts.failed, 0);
}

/// Parts of hosts that parsers disagree about.
const PARTS: [&str; 33] = [
    "a",
    "b.",
    "www.",
    "WWW.",
    "example.org",
    "EXAMPLE.ORG.",
    "localhost",
    "xn--mnchen-3ya",
    "xn--a",
    "münchen",
    "ß",
    "。",
    "．",
    "%2e",
    "%41",
    "*",
    "_",
    "-",
    "..",
    "09",
    "0x7f",
    "127.1",
    "[::1]",
    "[::ffff:1.2.3.4]",
    "[fe80::1%25eth0]",
    ":80",
    ":443",
    ":8080",
    ":0",
    "user:secret@",
    "א",
    "\u{ad}",
    "a-label-of-forty-characters-012345678901.",
];
