//! One file per command, and what several commands share:
//!
//! - `session`: the pipeline and workers of `run` and `scrape`
//! - `remote`: asking a running service instead of the store
//! - `report`, `table`, `failures`, `hints`: how jobs, tables and failures are printed, and what to type next
//! - `parse`, `stream`: times in flags, and rows on stdout

mod backup;
mod config;
mod decide;
mod demo;
mod domains;
mod failures;
mod fetch;
mod hints;
pub(crate) mod items;
mod jobs;
mod parse;
mod playground;
mod proxy;
mod prune;
mod remote;
mod report;
mod run;
mod scrape;
mod serve;
mod session;
mod shell;
mod sources;
mod store;
mod stream;
mod table;
mod top;
mod wiki;

use comity::config::Overrides;

use crate::args::{Args, Command};
use crate::{output, setup};
pub(crate) use remote::Unreachable;

/// Runs the command, and returns its exit code.
pub(crate) async fn run(args: Args) -> anyhow::Result<u8> {
    let Args { global, command } = args;
    let config = || {
        let config = setup::config_without_warning(&global, Overrides::default())?;
        output::log(&config.log, &global);
        anyhow::Ok(config)
    };
    Ok(match command {
        Command::Fetch(fetch) => fetch::run(&global, *fetch).await?,
        Command::Run(run) => run::run(&global, run).await?,
        Command::Scrape(scrape) => scrape::run(&global, scrape).await?,
        Command::Demo(demo) => demo::run(&global, &demo).await?,
        Command::Playground(playground) => playground::run(&global, &playground).await?,
        Command::Serve(serve) => serve::run(&global, serve).await?,
        Command::Proxy(args) => proxy::run(&global, args).await?,
        Command::Exec(args) => proxy::exec(&global, args).await?,
        Command::Wiki(command) => wiki::run(&global, command).await?,
        Command::Config(command) => config::run(&global, &command)?,
        Command::Profiles { name } => config::profiles(&global, name.as_deref())?,
        Command::Completions(completions) => shell::completions(&completions),
        Command::Man(man) => shell::man(&global, &man)?,
        Command::Jobs(command) => jobs::run(&global, &config()?, command).await?,
        Command::Domains(command) => domains::run(&global, &config()?, command).await?,
        Command::Sources(command) => sources::run(&global, &config()?, command).await?,
        Command::Items(command) => items::run(&global, &config()?, command).await?,
        Command::Prune(prune) => prune::run(&global, &config()?, &prune).await?,
        Command::Backup(backup) => backup::run(&global, &config()?, &backup).await?,
        Command::Store(command) => {
            config()?;
            store::run(&global, command).await?
        }
        Command::Check(check) => decide::check(&global, &config()?, check).await?,
        Command::Record(record) => decide::record(&global, &config()?, record).await?,
        Command::Top(top) => top::run(&global, &config()?, &top).await?,
        Command::Explain(explain) => decide::explain(&global, &config()?, explain).await?,
    })
}
