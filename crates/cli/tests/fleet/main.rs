//! Many machines on one store in PostgreSQL, with faults that are real: processes are killed and stopped, networks cut,
//! servers restarted and replaced. `./test fleet` runs these tests; the sites' logs judge them.
//!
//! - `fleet`: a store, machines, and processes on them
//! - `machines`: network namespaces, or the loopback interface for whoever is not root
//! - `database`, `pooler`: PostgreSQL and PgBouncer; `proxy`: a network that delays and loses single messages
//! - `sites`, `judge`: what is fetched, and the rules that every log is judged by
//! - the rest: one module per kind of fault

// These come from the other integration tests, which use more of them.
#[path = "../it/comity.rs"]
#[allow(dead_code, reason = "shared with the other tests")]
mod comity;
#[path = "../it/log.rs"]
#[allow(dead_code, reason = "shared with the other tests")]
mod log;
#[path = "../it/site.rs"]
#[allow(dead_code, reason = "shared with the other tests")]
mod site;

mod database;
mod fleet;
mod judge;
mod machines;
mod pooler;
mod proxy;
mod sites;

mod clocks;
mod cut;
mod failover;
mod killed;
mod late_answers;
mod old_transaction;
mod pooled;
mod refused;
mod restarted;
mod stopped;

/// How often something is done, that is done `times` in a usual run: ten times as often with `COMITY_FLEET_SOAK`.
fn soak(times: usize) -> usize {
    if std::env::var_os("COMITY_FLEET_SOAK").is_some() { times * 10 } else { times }
}
