//! What happened on domains, and lists of domains in the orders that people ask for.

use comity_core::outcome::Outcome;
use comity_core::time::{Span, Timestamp};
use comity_store::Store;
use comity_store::activity::{
    DomainActivity, DomainCursor, DomainQuery, DomainReport, DomainSort, INTERVAL, LastAnswer, ListedDomain,
    Order, Sample, Traffic,
};
use comity_store::domains::{DomainKey, ReleaseMode, Tenure};

use crate::backend::Backend;
use crate::process::{Process, at, domain, ms};

fn activity(nth: u64) -> DomainActivity {
    DomainActivity {
        delay: ms(1_000 + nth),
        learned: ms(500 * (nth % 3)),
        held_until: nth.is_multiple_of(2).then_some(at(100 + nth as i64)),
        limit: Some("min_delay".to_owned()),
        success_streak: nth as u32,
        error_streak: 0,
        last: Some(LastAnswer { at: at(nth as i64), outcome: Outcome::RateLimited, status: Some(429) }),
    }
}

fn sample(from: Timestamp, requests: u64) -> Sample {
    let (rate_limited, failed) = (1, 2);
    Sample { from, span: INTERVAL, requests, rate_limited, failed, held: ms(1_500), learned: ms(700) }
}

/// The interval that the second is in begins.
fn slot(secs: i64) -> Timestamp {
    let length = INTERVAL.as_micros() as i64;
    Timestamp::from_micros(at(secs).as_micros() - at(secs).as_micros().rem_euclid(length))
}

async fn report(one: &Process, tenure: Tenure, activity: DomainActivity, samples: Vec<Sample>, secs: i64) {
    let report = DomainReport { tenure, activity, samples };
    one.store.report_activity(Traffic::default(), vec![report], at(secs)).await.unwrap();
}

fn query(sort: DomainSort, order: Order, like: &str, limit: u32) -> DomainQuery {
    DomainQuery { like: like.to_owned(), sort, order, after: None, limit }
}

/// The names on all pages, in their order.
async fn names(store: &dyn Store, mut query: DomainQuery) -> Vec<String> {
    let mut names = Vec::new();
    loop {
        let page = store.page_domains(query.clone()).await.unwrap();
        assert!(page.domains.len() <= query.limit as usize);
        names.extend(page.domains.iter().map(|listed| listed.row.domain.clone()));
        let Some(next) = page.next else { return names };
        assert_eq!(page.domains.len(), query.limit as usize, "only the last page is shorter");
        assert_eq!(next.to_string().parse::<DomainCursor>().as_ref(), Ok(&next));
        query.after = Some(next);
    }
}

async fn listed(store: &dyn Store, name: &str) -> ListedDomain {
    let page = store.page_domains(query(DomainSort::Delay, Order::Descending, name, 9)).await.unwrap();
    let found: Vec<ListedDomain> = page.domains.into_iter().filter(|one| one.row.domain == name).collect();
    assert_eq!(found.len(), 1, "{name}");
    found.into_iter().next().unwrap()
}

/// Eight domains with activity, and two without.
async fn ten_domains(one: &Process) {
    for nth in 0..10_u64 {
        let tenure = one.taken(&format!("site-{nth}.example"), at(0)).await.tenure;
        if nth < 8 {
            // Not in the order in which they are sorted.
            report(one, tenure, activity(nth * 5 % 8), vec![], 1).await;
        }
    }
}

/// What is not known comes last in either direction. On a tie, older domains are less.
pub(crate) async fn domains_are_listed_in_every_order_page_by_page(backend: &dyn Backend) {
    let (one, other) =
        (Process::start(backend, "one", at(0)).await, Process::start(backend, "other", at(0)).await);
    ten_domains(&one).await;
    let nth_of = |name: &str| name["site-".len()..].split('.').next().unwrap().parse::<u64>().unwrap();
    for sort in DomainSort::ALL {
        let key = |nth: u64| {
            let activity = activity(nth * 5 % 8);
            match sort {
                DomainSort::Name => nth,
                DomainSort::Delay => activity.delay.as_micros(),
                DomainSort::Learned => activity.learned.as_micros(),
                DomainSort::HeldUntil => {
                    activity.held_until.map_or(0, |until| until.since(at(0)).as_micros())
                }
                DomainSort::LastAnswer => activity.last.unwrap().at.since(at(0)).as_micros(),
                DomainSort::Waiting => 0,
            }
        };
        let known = if sort == DomainSort::Name { 10 } else { 8 };
        for (order, limit) in [(Order::Ascending, 3), (Order::Descending, 1), (Order::Descending, 4)] {
            let mut expected: Vec<u64> = (0..known).collect();
            expected.sort_by_key(|nth| (key(*nth), *nth));
            if order == Order::Descending {
                expected.reverse();
            }
            expected.extend(known..10);
            for like in ["", "site-"] {
                let found = names(&*other.store, query(sort, order, like, limit)).await;
                let found: Vec<u64> = found.iter().map(|name| nth_of(name)).collect();
                assert_eq!(found, expected, "{sort:?} {order:?} {like:?} {limit}");
            }
        }
    }
    assert_eq!(one.wanted().await, [], "looking takes no domain");
}

pub(crate) async fn domains_are_found_by_a_part_of_their_name(backend: &dyn Backend) {
    let one = Process::start(backend, "one", at(0)).await;
    ten_domains(&one).await;
    let tenure = one.taken("other_50.example", at(0)).await.tenure;
    report(&one, tenure, activity(1), vec![], 1).await;
    for sort in DomainSort::ALL {
        let found = names(&*one.store, query(sort, Order::Descending, "-7", 2)).await;
        assert_eq!(found, ["site-7.example"], "{sort:?}");
        // These stand for themselves.
        for like in ["_5", "r_50", "other_50.example"] {
            assert_eq!(
                names(&*one.store, query(sort, Order::Ascending, like, 2)).await,
                ["other_50.example"]
            );
        }
        for like in ["SITE", "nobody", "site-*", "site-?", "site_7", "%7"] {
            let page = one.store.page_domains(query(sort, Order::Ascending, like, 2)).await.unwrap();
            assert_eq!((page.domains.len(), page.next, page.found), (0, None, 0), "{like}");
        }
    }
    let page = one.store.page_domains(query(DomainSort::Name, Order::Ascending, "", 1)).await.unwrap();
    assert_eq!(page.found, 11, "on all pages");
}

pub(crate) async fn what_a_holder_reports_is_listed(backend: &dyn Backend) {
    let (one, other) =
        (Process::start(backend, "one", at(0)).await, Process::start(backend, "other", at(0)).await);
    let tenure = one.taken("a.example", at(0)).await.tenure;
    let new = listed(&*other.store, "a.example").await;
    assert_eq!((new.row.holder.as_deref(), &new.reported), (Some("one"), &None));
    report(&one, tenure, activity(4), vec![], 7).await;
    let seen = listed(&*other.store, "a.example").await;
    assert_eq!(seen.reported, Some((activity(4), at(7))));
    // A later report without an answer keeps the last one.
    let quiet = DomainActivity { last: None, held_until: None, limit: None, ..activity(5) };
    report(&one, tenure, quiet.clone(), vec![], 8).await;
    let expected = DomainActivity { last: activity(4).last, ..quiet };
    assert_eq!(listed(&*other.store, "a.example").await.reported, Some((expected.clone(), at(8))));

    one.release(tenure, b"pace", ReleaseMode::HandOver, at(9)).await;
    let left = DomainActivity { delay: ms(9), ..expected.clone() };
    report(&one, tenure, left.clone(), vec![], 9).await;
    assert_eq!(
        listed(&*other.store, "a.example").await.reported,
        Some((left.clone(), at(9))),
        "what it knew last"
    );
    other.taken("a.example", at(10)).await;
    report(&one, tenure, activity(6), vec![], 11).await;
    let seen = listed(&*other.store, "a.example").await;
    assert_eq!((seen.row.holder.as_deref(), seen.reported), (Some("other"), Some((left, at(9)))), "too late");
}

pub(crate) async fn what_happened_under_several_holders_is_added_up(backend: &dyn Backend) {
    let (one, other) =
        (Process::start(backend, "one", at(0)).await, Process::start(backend, "other", at(0)).await);
    let tenure = one.taken("a.example", at(0)).await.tenure;
    let history = async |name: &str| other.store.domain_history(domain(name)).await.unwrap();
    assert_eq!(history("a.example").await, []);
    report(&one, tenure, activity(1), vec![sample(slot(0), 5)], 1).await;
    assert_eq!(history("a.example").await, [sample(slot(0), 5)]);
    one.release(tenure, b"pace", ReleaseMode::HandOver, at(2)).await;
    let second = other.taken("a.example", at(3)).await.tenure;
    let next = slot(0) + INTERVAL;
    let now = next.since(at(0)).as_secs_up() as i64 + 1;
    report(&other, second, activity(1), vec![sample(slot(0), 2), sample(next, 3)], now).await;
    // The first holder reports last.
    report(&one, tenure, activity(1), vec![sample(slot(0), 1)], now).await;
    let first = Sample { requests: 8, rate_limited: 3, failed: 6, held: ms(4_500), ..sample(slot(0), 0) };
    assert_eq!(history("a.example").await, [first, sample(next, 3)]);
    assert_eq!(history("unknown.example").await, []);

    // After a day, it is forgotten, also that of domains that nobody uses any more.
    let quiet = one.taken("quiet.example", at(0)).await.tenure;
    report(&one, quiet, activity(1), vec![sample(slot(0), 5)], 1).await;
    let (late, hour) = (now + 26 * 3_600, slot(now + 26 * 3_600));
    report(&other, second, activity(1), vec![sample(hour, 1)], late).await;
    assert_eq!(history("a.example").await, [sample(hour, 1)]);
    assert_eq!(history("quiet.example").await, []);
}

pub(crate) async fn a_deleted_domain_leaves_no_history(backend: &dyn Backend) {
    let one = Process::start(backend, "one", at(0)).await;
    let tenure = one.taken("a.example", at(0)).await.tenure;
    report(&one, tenure, activity(1), vec![sample(slot(0), 5)], 1).await;
    one.release(tenure, b"pace", ReleaseMode::Stop, at(2)).await;
    let idle = one.store.idle_domains(DomainKey(0), at(9), 9).await.unwrap();
    let idle = idle.domains.iter().map(|idle| idle.tenure).collect();
    assert_eq!(one.store.forget_domains(idle, at(9)).await.unwrap(), 1);
    // Nobody knows any more which domain this was.
    report(&one, tenure, activity(2), vec![sample(slot(0), 5)], 10).await;
    one.taken("a.example", at(11)).await;
    assert_eq!(one.store.domain_history(domain("a.example")).await.unwrap(), []);
    assert_eq!(listed(&*one.store, "a.example").await.reported, None);
}

pub(crate) async fn traffic_of_all_processes_is_summed_by_interval(backend: &dyn Backend) {
    let (one, other) =
        (Process::start(backend, "one", at(0)).await, Process::start(backend, "other", at(0)).await);
    let of = |success, rate_limited| {
        let mut traffic = Traffic { retries: 1, bytes: 10, ..Traffic::default() };
        traffic.outcomes[Outcome::Success as usize] = success;
        traffic.outcomes[Outcome::RateLimited as usize] = rate_limited;
        traffic
    };
    for (process, traffic, secs) in [(&one, of(5, 0), 1), (&other, of(7, 1), 9), (&one, of(1, 2), 61)] {
        process.store.report_activity(traffic, vec![], at(secs)).await.unwrap();
    }
    one.store.report_activity(Traffic::default(), vec![], at(120)).await.unwrap();
    let points = async |every| {
        let points = other.store.traffic(at(-60), Span::from_secs(every)).await.unwrap();
        let shown = points.iter().map(|point| {
            let (traffic, from) = (point.traffic, point.from);
            (
                from.since(at(0)).as_secs_up(),
                traffic.outcome(Outcome::Success),
                traffic.requests(),
                traffic.retries,
            )
        });
        shown.collect::<Vec<_>>()
    };
    assert_eq!(points(10).await, [(0, 12, 13, 2), (60, 1, 3, 1)]);
    assert_eq!(points(600).await, [(0, 13, 16, 3)]);
    assert_eq!(other.store.traffic(at(60), Span::from_secs(10)).await.unwrap().len(), 1);
    // After a day, it is gone.
    one.store.report_activity(of(1, 1), vec![], at(26 * 3_600)).await.unwrap();
    assert_eq!(points(10).await, [(26 * 3_600, 1, 2, 1)]);
}

/// Counting is limited, so that nobody waits for it long.
pub(crate) async fn waiting_tasks_are_counted_in_parts(backend: &dyn Backend) {
    let one = Process::start(backend, "one", at(0)).await;
    let urls = ["https://a.example/1", "https://b.example/1", "https://b.example/2", "https://c.example/1"];
    one.job_of("first", &urls, at(0)).await;
    one.job_of("second", &["https://b.example/3"], at(0)).await;
    one.taken("d.example", at(0)).await;
    let waiting = async |name: &str| listed(&*one.store, name).await.waiting;
    assert_eq!(waiting("b.example").await, 0, "not counted yet");
    let next = one.store.count_waiting(DomainKey(0), 3).await.unwrap().unwrap();
    assert_eq!((waiting("a.example").await, waiting("b.example").await), (1, 3));
    assert_eq!(one.store.count_waiting(next, 3).await.unwrap(), None);
    let by_waiting = query(DomainSort::Waiting, Order::Descending, "", 2);
    let expected = ["b.example", "c.example", "a.example", "d.example"];
    assert_eq!(names(&*one.store, by_waiting.clone()).await, expected);
    let page = one.store.page_domains(by_waiting).await.unwrap();
    assert_eq!(page.domains[0].row.waiting, 3);
    let count = async |name: &str, most| one.store.waiting_for(domain(name), most).await.unwrap();
    assert_eq!(
        (count("b.example", 99).await, count("b.example", 2).await, count("x.example", 9).await),
        (3, 2, 0)
    );
}
