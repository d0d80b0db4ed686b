//! All processes on a store share one time, whatever their wall clocks read.

use std::sync::Arc;

use comity_store::time::StoreTime;

use crate::backend::Backend;
use crate::machine::TestMachine;
use crate::process::{Process, at};

/// B7
pub(crate) async fn a_new_process_adopts_the_time_of_the_running_ones(backend: &dyn Backend) {
    let machine = TestMachine::default();
    let one = start(backend, &machine, "one").await;
    let first = join(&one).await;
    for step in [3_600, -7_200] {
        machine.step(step);
        let other = start(backend, &machine, "other").await;
        assert_agree(first, join(&other).await);
        let inspector = backend.open_on(Arc::new(machine.clone())).await.store;
        assert_agree(first, inspector.time().await.unwrap());
        other.store.deregister(other.holder, first.now).await.unwrap();
    }
}

/// B7: two processes start at once, with wall clocks an hour apart.
pub(crate) async fn two_processes_that_join_at_once_agree(backend: &dyn Backend) {
    let ahead = TestMachine::default();
    ahead.step(3_600);
    let one = start(backend, &TestMachine::default(), "one").await;
    let other = start(backend, &ahead, "other").await;
    let (first, second) = one.overlap(join(&one), join(&other)).await;
    assert_agree(first, second);
    assert_agree(first, one.store.time().await.unwrap());
    assert_agree(first, other.store.time().await.unwrap());
}

async fn start(backend: &dyn Backend, machine: &TestMachine, name: &str) -> Process {
    Process::start_on(backend, Arc::new(machine.clone()), name, at(0)).await
}

async fn join(process: &Process) -> StoreTime {
    process.store.join_time(process.holder).await.unwrap()
}

/// Asserts that both derive the same boot time. A database that answers with its own clock may take a while to answer;
/// the wall clocks are an hour apart.
#[track_caller]
fn assert_agree(one: StoreTime, other: StoreTime) {
    let [one, other] = [one, other].map(|time| time.now - time.up);
    let apart = one.since(other).max(other.since(one));
    assert!(apart.as_secs_f64() < 60.0, "{apart:?} apart");
}
