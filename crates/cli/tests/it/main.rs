//! The command `comity` as people run it: real processes and real servers on loopback, judged by the servers' logs.
//!
//! - `comity`: a temporary folder per test, and `comity` processes in it
//! - `nginx`, `site`, `wire`, `mediawiki`: the servers and their logs; `postgres_server`: a server for stores
//! - `archive`: WARC files, read with other tools
//! - `log`: assertions on a server's log
//! - `follow`: feeds, sources and their items
//! - `service`: `comity serve`, and requests to it
//! - `terminal`: a terminal and its screen
//! - `documents`: runs the documentation the way a reader would
//! - the rest: one module per subject

mod archive;
mod comity;
mod follow;
mod log;
mod mediawiki;
mod nginx;
#[path = "../../../store/tests/it/postgres/server.rs"]
#[expect(dead_code, reason = "the tests of the stores need all of it")]
mod postgres_server;
mod service;
mod site;
mod terminal;
mod wire;

mod basics;
mod clock_steps;
mod config;
mod contrib;
mod decide;
mod demo;
mod descriptors;
mod documents;
mod domains;
mod duplicate_items;
mod examples;
mod explain;
mod feeds;
mod hooks;
mod hostile;
mod input;
mod items;
mod job_counts;
mod job_remove;
mod job_results;
mod jobs;
mod json_log;
mod killed;
mod live;
mod max_wait;
mod memory;
mod out_folder;
mod proxy;
mod redirects;
mod refresh;
mod requests;
mod results;
mod robots;
mod rows;
mod run;
mod run_killed;
mod run_midway;
mod run_summary;
mod run_watch;
mod scrape;
mod serve;
mod serve_crowd;
mod serve_faults;
mod serve_pace;
mod shared_store;
mod shell;
mod signals;
mod sigstop;
mod sitemaps;
mod slow_sites;
mod sources;
mod store_copy;
mod store_errors;
mod store_files;
mod store_missing;
mod store_unavailable;
mod unread_input;
mod untrusted_names;
mod unusable_pages;
mod upkeep;
mod warc;
mod warc_killed;
mod wiki;
mod wiki_answers;
mod wiki_archived;
mod wiki_files;
