//! The command `comity` as people run it: real processes, real servers on loopback, judged by the servers' logs.
//!
//! - `comity`: a folder of its own for each test, and processes in it
//! - `nginx`, `site`: the servers, and what they logged
//! - `log`: how a log is judged
//! - `follow`: sources and what became of them
//! - the rest: one module a subject

mod comity;
mod follow;
mod log;
mod nginx;
mod site;

mod basics;
mod clock_steps;
mod config;
mod decide;
mod domains;
mod examples;
mod feeds;
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
mod shared;
mod signals;
mod sources;
mod stopped;
mod trouble;
