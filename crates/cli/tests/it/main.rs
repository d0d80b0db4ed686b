//! The command `comity` as people run it: real processes, real servers on loopback, judged by the servers' logs.
//!
//! - `comity`: a folder of its own for each test, and processes in it
//! - `nginx`, `site`, `wire`, `mediawiki`: the servers, and what they logged
//! - `archive`: WARC files, read by others
//! - `log`: how a log is judged
//! - `follow`: sources and what became of them
//! - `service`: `comity serve`, and asking it
//! - `terminal`: a terminal, and what it shows
//! - `documents`: the documentation, followed as a reader follows it
//! - the rest: one module a subject

mod archive;
mod comity;
mod follow;
mod log;
mod mediawiki;
mod nginx;
mod service;
mod site;
mod terminal;
mod wire;

mod away;
mod basics;
mod clock_steps;
mod config;
mod contrib;
mod decide;
mod demo;
mod descriptors;
mod documents;
mod domains;
mod examples;
mod feeds;
mod hooks;
mod hostile;
mod house;
mod input;
mod items;
mod items_shared;
mod jobs;
mod jobs_out;
mod killed;
mod live;
mod memory;
mod redirects;
mod refresh;
mod requests;
mod results;
mod robots;
mod rows;
mod run;
mod run_killed;
mod run_midway;
mod run_watch;
mod scrape;
mod serve;
mod serve_crowd;
mod serve_faults;
mod serve_pace;
mod shared;
mod shell;
mod signals;
mod sitemaps;
mod slow_sites;
mod sources;
mod stopped;
mod strangers;
mod trouble;
mod upkeep;
mod warc;
mod warc_killed;
mod wiki;
mod wiki_answers;
mod wiki_archived;
mod wiki_files;
