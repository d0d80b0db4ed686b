//! The command `comity` as people run it: real processes, real servers on loopback, judged by the servers' logs.
//!
//! - `comity`: a folder of its own for each test, and processes in it
//! - `nginx`, `site`, `mediawiki`: the servers, and what they logged
//! - `log`: how a log is judged
//! - `follow`: sources and what became of them
//! - `service`: `comity serve`, and asking it
//! - the rest: one module a subject

mod comity;
mod follow;
mod log;
mod mediawiki;
mod nginx;
mod service;
mod site;

mod basics;
mod clock_steps;
mod config;
mod contrib;
mod decide;
mod domains;
mod examples;
mod feeds;
mod hostile;
mod input;
mod jobs;
mod killed;
mod memory;
mod redirects;
mod robots;
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
mod signals;
mod sources;
mod stopped;
mod trouble;
mod wiki;
mod wiki_answers;
mod wiki_archived;
mod wiki_files;
