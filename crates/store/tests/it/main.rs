//! What a store promises, one function a promise, run against every backend.
//!
//! [`promises`] lists them once; a new backend is one more line below it. Time is virtual throughout: `now` is
//! a parameter of the store, so nothing here sleeps. What only one backend promises is in its own module.

mod backend;
mod claiming;
mod crash;
mod filling;
mod holders;
mod holding;
mod jobs;
mod overlap;
mod process;
mod robots;
mod settling;
mod sqlite;
mod stored;

/// Runs every promise against one backend of [`backend`].
macro_rules! promises {
    ($backend:ident) => {
        mod $backend {
            run! { $backend
                holders:
                    a_holder_that_is_silent_for_its_lease_loses,
                    what_a_lost_holder_writes_is_passed_over,
                    a_holder_whose_domain_was_taken_overwrites_nothing,
                    a_holder_that_beats_is_never_taken_for_dead,
                    an_observer_that_slept_takes_nobody_for_dead,
                    a_death_frees_domains_and_lanes_at_once,
                    a_death_is_dated_by_the_clock_of_whoever_notices,
                    whoever_stops_without_releasing_counts_as_dead,
                    a_clean_stop_leaves_nothing_to_mourn,
                    numbers_are_never_given_out_twice;
                holding:
                    a_new_domain_is_new_and_each_taking_has_a_later_epoch,
                    a_pace_comes_back_byte_for_byte,
                    a_wish_reaches_the_holder,
                    the_version_moves_when_another_writes,
                    a_wish_is_told_until_it_is_granted,
                    a_wish_within_one_store_is_told,
                    what_somebody_wants_is_handed_over_even_by_one_that_stops,
                    whoever_wanted_it_comes_first,
                    the_wish_of_the_dead_blocks_nobody;
                stored:
                    learned_delays_come_back_to_the_microsecond,
                    deadlines_come_back_after_a_death,
                    an_operators_word_survives_whoever_holds,
                    a_hold_of_an_earlier_taking_writes_nothing,
                    people_see_domains_in_pages;
                filling:
                    what_a_job_has_already_is_added_once,
                    a_lane_keeps_the_order_in_which_it_was_filled,
                    a_job_that_ended_takes_no_tasks,
                    two_jobs_may_have_the_same_url,
                    who_led_to_a_url_stays_known;
                claiming:
                    a_claim_brings_lanes_with_their_first_tasks,
                    a_lane_is_served_by_one,
                    a_lane_on_a_held_domain_is_parked_and_the_domain_wanted,
                    a_lane_whose_first_task_is_later_comes_back_then,
                    an_empty_lane_goes_and_comes_back_with_a_task,
                    blocked_lanes_do_not_hide_free_ones,
                    a_crowded_domain_is_one_lane,
                    a_lane_read_in_pieces_brings_each_task_once,
                    a_retried_task_is_read_after_those_ready_before_it,
                    a_parked_lane_is_due_when_said,
                    only_its_server_parks_a_lane;
                settling:
                    each_step_is_counted,
                    a_finished_task_is_never_settled_twice,
                    a_hold_that_ended_settles_nothing,
                    a_postponed_task_spends_nothing,
                    one_attempt_that_fails_is_no_retry,
                    a_moved_task_is_claimed_where_it_went,
                    a_moved_task_is_no_longer_its_former_holders,
                    a_hold_settles_tasks_of_its_own_domain_only,
                    a_fenced_settle_leaves_no_trace;
                jobs:
                    a_job_is_opened_once_with_its_first_options,
                    jobs_are_listed_newest_first,
                    a_job_finishes_when_nothing_waits,
                    a_job_does_not_finish_before_its_list_was_read,
                    a_job_that_ended_is_left_as_it_is,
                    a_cancelled_job_skips_what_waits_in_chunks,
                    what_was_under_way_when_its_job_ended_is_counted_once,
                    a_reopened_job_revives_what_failed_or_ended_with_it,
                    a_reopened_job_does_not_finish_before_it_is_swept,
                    a_revived_task_is_where_its_url_is;
                overlap:
                    claims_at_once_bring_each_lane_once,
                    of_takes_at_once_one_succeeds,
                    the_same_urls_from_many_are_each_added_once,
                    of_settles_at_once_one_succeeds,
                    fifty_callers_share_one_store;
                robots:
                    what_was_kept_comes_back,
                    a_newer_answer_replaces_the_older;
            }
        }
    };
}

/// A module for each area and a test for each promise.
macro_rules! run {
    ($backend:ident $($area:ident: $($promise:ident),+;)+) => {
        $(mod $area {
            $(#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
            async fn $promise() {
                crate::$area::$promise(crate::backend::$backend()).await;
            })+
        })+
    };
}

promises!(memory);
promises!(sqlite_file);
