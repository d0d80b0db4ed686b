//! What a store promises, one function a promise, run against every backend.
//!
//! [`promises`] lists them once; a new backend is one more line below it. Time is virtual throughout: `now` is
//! a parameter of the store, so nothing here sleeps. What only one backend promises is in its own module.

mod aside;
mod asking;
mod away;
mod backend;
mod claiming;
mod counts;
mod crash;
mod fetches;
mod file;
mod filling;
mod following;
mod forgetting;
mod holders;
mod holding;
mod items;
mod jobs;
mod lending;
mod overlap;
mod private;
mod process;
mod proofs;
mod reading;
mod reopening;
mod robots;
mod scraped;
mod scraping;
mod secrets;
mod settling;
mod sources;
mod sqlite;
mod status;
mod stored;
mod timeline;
mod wiki;

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
                lending:
                    a_permit_that_was_lent_comes_back_after_a_death,
                    a_permit_that_is_over_does_not_come_back,
                    a_hold_that_ended_lends_nothing;
                forgetting:
                    a_domain_with_nothing_learned_is_forgotten,
                    whatever_is_worth_keeping_stays,
                    a_domain_that_was_taken_since_stays,
                    a_domain_left_by_a_death_is_forgotten_after_a_day,
                    what_another_process_forgot_is_entered_anew,
                    a_hold_of_a_forgotten_domain_writes_nothing,
                    numbers_of_domains_are_never_given_out_twice;
                status:
                    what_a_holder_told_is_seen_while_it_lives,
                    a_wish_to_see_a_domain_is_answered_by_its_holder,
                    only_whoever_holds_a_domain_shows_it,
                    wishes_are_forgotten,
                    a_backlog_is_counted_by_domain_up_to_a_limit;
                wiki:
                    what_an_answer_brought_is_kept_with_how_far_it_is,
                    pages_are_whole_when_their_history_is,
                    pages_move_go_and_come_back,
                    what_is_hidden_is_marked_and_stays,
                    a_wiki_is_archived_by_one_at_a_time,
                    files_are_fetched_once;
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
                    what_was_forgiven_is_remembered,
                    a_moved_task_is_claimed_where_it_went,
                    a_moved_task_is_no_longer_its_former_holders,
                    a_hold_settles_tasks_of_its_own_domain_only,
                    a_fenced_settle_leaves_no_trace,
                    a_domain_that_is_given_up_is_skipped_and_the_rest_continues,
                    only_its_server_gives_a_lane_up;
                jobs:
                    a_job_is_opened_once_with_its_first_options,
                    a_job_is_made_with_its_tasks_or_not_at_all,
                    jobs_are_listed_newest_first,
                    a_job_finishes_when_nothing_waits,
                    a_job_does_not_finish_before_its_list_was_read,
                    a_job_that_ended_is_left_as_it_is,
                    a_cancelled_job_skips_what_waits_in_chunks,
                    what_was_under_way_when_its_job_ended_is_counted_once,
                    a_reopened_job_revives_what_failed_or_ended_with_it,
                    a_reopened_job_does_not_finish_before_it_is_swept,
                    a_revived_task_is_where_its_url_is;
                sources:
                    a_source_is_added_once_per_url,
                    a_change_sets_only_what_is_named,
                    an_interval_comes_back_exactly,
                    another_url_clears_the_cursor_and_is_listed_by_the_operator,
                    the_operator_may_list_where_a_source_moved,
                    a_url_that_another_source_has_is_refused,
                    a_removed_source_takes_everything_with_it,
                    settled_tasks_go_with_their_source_and_those_that_wait_stay,
                    enabling_forgets_failures,
                    a_config_that_makes_sense_again_forgets_failures,
                    another_kind_clears_the_cursor,
                    a_removed_source_keeps_nothing,
                    items_are_new_known_or_changed_by_their_hash,
                    the_same_identity_in_two_sources_is_two_items,
                    an_item_that_changed_keeps_its_state,
                    a_page_that_changed_is_to_be_scraped_again,
                    items_are_listed_in_pages,
                    items_that_may_not_be_scraped_are_left_out,
                    what_failed_is_listed_by_its_last_try,
                    runs_find_the_sources_that_have_unscraped_items;
                fetches:
                    what_was_read_moves_the_last_fetch_to_the_window_end,
                    what_was_not_read_leaves_the_cursor_byte_for_byte,
                    an_earlier_window_never_moves_the_last_fetch_back,
                    other_fields_of_the_cursor_survive,
                    failures_count_up_until_something_was_read,
                    a_source_that_is_gone_is_disabled,
                    a_source_that_moved_is_asked_there,
                    a_move_to_where_another_source_is_is_passed_over,
                    a_fetch_is_told_with_its_numbers,
                    old_fetches_are_forgotten;
                asking:
                    a_source_is_asked_by_one_at_a_time,
                    a_claim_brings_the_source_as_it_is_now,
                    a_source_is_left_by_whoever_has_it,
                    the_claim_of_the_dead_holds_nobody_up,
                    the_claim_of_the_silent_ends_with_their_lease,
                    what_comes_after_the_claim_was_lost_changes_nothing,
                    only_a_source_that_moved_is_told_to_have,
                    held_again_and_again_is_one_row;
                items:
                    the_first_scrape_of_a_source_is_enqueued,
                    longer_ago_than_the_interval_is_enqueued,
                    exactly_the_interval_ago_is_enqueued,
                    too_soon_is_deferred_with_its_numbers,
                    deferred_tasks_wake_spaced_by_the_interval,
                    a_sources_own_interval_goes_before_the_global_one,
                    a_source_without_an_interval_goes_by_the_global_one,
                    null_and_zero_switch_the_interval_off,
                    a_deferred_task_is_ready_at_its_wake_and_not_before,
                    sources_do_not_defer_each_other,
                    refusals_come_in_their_order,
                    an_item_that_waits_is_deferred_or_runs_is_enqueued_already,
                    a_bulk_stops_at_the_in_flight_cap,
                    deferred_items_do_not_count_for_the_cap_before_their_wake,
                    enqueueing_an_item_again_replaces_its_task,
                    a_late_word_on_a_replaced_task_is_not_taken,
                    a_task_knows_its_item_and_who_led_there,
                    an_item_enqueued_while_its_job_ended_is_not_lost;
                scraping:
                    a_scrape_that_begins_has_a_row_from_its_start,
                    a_task_that_runs_too_soon_is_deferred,
                    a_running_task_goes_by_the_interval_in_force,
                    a_short_wait_is_told_and_changes_nothing,
                    a_wait_beyond_patience_is_deferred,
                    a_retry_that_is_put_off_is_not_ready_sooner,
                    tasks_enqueued_together_wake_spaced_by_the_interval,
                    a_wake_of_a_clock_that_was_ahead_defers_nobody_for_long,
                    a_task_deferred_as_it_runs_comes_after_wakes_reserved,
                    a_clock_that_stepped_back_waits_one_interval,
                    a_task_whose_item_was_deleted_is_a_no_op,
                    a_task_whose_source_was_disabled_is_a_no_op,
                    a_task_whose_source_is_not_scraped_any_more_is_a_no_op,
                    a_task_whose_source_is_not_scraped_by_itself_any_more_goes_on,
                    a_task_whose_job_ended_is_a_no_op,
                    the_end_of_a_no_op_leaves_a_later_wish_alone,
                    a_no_op_that_was_never_settled_does_not_strand_its_item,
                    an_item_is_scraped_by_its_latest_task_only,
                    a_start_that_is_not_ours_is_fenced,
                    a_task_that_ended_starts_no_more,
                    a_scrape_called_off_leaves_no_row,
                    a_redirect_goes_on_in_the_same_row,
                    a_move_without_a_redirect_is_no_start,
                    an_interrupted_scrape_is_closed_and_counts,
                    a_scrape_interrupted_long_ago_begins_anew_at_once;
                scraped:
                    what_was_fetched_is_done,
                    an_empty_answer_is_partial,
                    what_was_given_up_has_failed,
                    a_retry_waits_again_and_has_its_row,
                    what_is_not_to_be_fetched_has_failed_with_its_reason,
                    a_scrape_that_is_skipped_under_way_is_closed,
                    an_attempt_that_failed_before_it_left_has_a_row,
                    a_fenced_settle_leaves_the_item_alone,
                    items_of_a_job_that_ended_have_failed_and_wait_again_when_it_is_reopened,
                    a_scrape_whose_job_ended_under_way_does_not_run_for_ever,
                    a_scrape_job_that_ended_is_opened_again_empty,
                    a_reopened_job_has_one_task_an_item,
                    somebody_elses_job_by_that_name_is_left_alone;
                overlap:
                    claims_at_once_bring_each_lane_once,
                    of_takes_at_once_one_succeeds,
                    the_same_urls_from_many_are_each_added_once,
                    of_settles_at_once_one_succeeds,
                    fifty_callers_share_one_store,
                    of_two_scrapes_of_a_source_at_once_one_begins,
                    an_item_enqueued_by_many_at_once_has_one_task,
                    wakes_reserved_at_once_are_spaced_by_the_interval;
                crash:
                    a_fetch_killed_before_its_end_keeps_items_and_moves_nothing;
                robots:
                    what_was_kept_comes_back,
                    what_is_old_is_forgotten_a_part_at_a_time,
                    a_newer_answer_replaces_the_older;
                counts:
                    what_many_count_is_added_up;
                secrets:
                    one_is_made_and_everybody_gets_it;
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
