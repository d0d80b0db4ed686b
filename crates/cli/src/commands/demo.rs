//! `comity demo`: a site on loopback that says 429, a job that fetches all of it, and the site's own count of who
//! came too early. Needs no network and leaves nothing behind.

use std::io::{BufRead, BufReader, Write};
use std::net::{TcpListener, TcpStream};
use std::sync::{Arc, Mutex, PoisonError};

use comity::clock::Clock;
use comity::core::time::{Span, Timestamp};
use serde_json::json;

use super::fetch;
use crate::args::{Fetch, Format, Global};
use crate::{exit, output};

pub(crate) async fn run(global: &Global) -> anyhow::Result<u8> {
    let folder = std::env::temp_dir().join(format!("comity-demo-{}", std::process::id()));
    std::fs::create_dir_all(&folder)?;
    let result = play(global, &folder).await;
    let _ = std::fs::remove_dir_all(&folder);
    result
}

async fn play(global: &Global, folder: &std::path::Path) -> anyhow::Result<u8> {
    let site = Site::start()?;
    if !global.json {
        output::line(&format!(
            "A site on {} that answers {ALLOWED} requests and then says 429 with Retry-After: {}. {PAGES} pages.",
            site.address,
            RETRY_AFTER.as_secs_up(),
        ));
        output::line("Comity learns nothing beforehand and sends as fast as the site allows.");
        output::line("");
    }
    let quiet = Global {
        store: Some(format!("sqlite:{}", folder.join("demo.db").display())),
        log_level: global.log_level.clone().or_else(|| Some("warn".to_owned())),
        ..global.clone()
    };
    let code = fetch::run(&quiet, job(&site.address, folder)).await?;
    let log = site.log();
    let ok = code == exit::DONE && log.early == 0 && log.pages == PAGES;
    if global.json {
        output::object(&json!({ "pages": log.pages, "refused": log.refused, "early": log.early }));
    } else {
        output::line("");
        output::line(&format!(
            "The site counted {} pages, {} refusals, and {} requests that came too early.",
            log.pages, log.refused, log.early
        ));
        output::line(
            "On your own URLs: comity fetch --input urls.txt --out pages (comity --help shows the rest)",
        );
    }
    Ok(if ok { exit::DONE } else { exit::FAILURES })
}

fn job(address: &str, folder: &std::path::Path) -> Fetch {
    Fetch {
        urls: (1..=PAGES).map(|page| format!("http://{address}/page/{page}")).collect(),
        input: None,
        job: Some("demo".to_owned()),
        out: Some(folder.join("pages")),
        format: Some(Format::Files),
        concurrency: None,
        delay: Some("0s".to_owned()),
        learning: Some("off".to_owned()),
        robots: None,
        max_retries: None,
        strict: false,
    }
}

/// A site that allows a few requests and then wants to be left alone for a while.
struct Site {
    address: String,
    state: Arc<Mutex<State>>,
}

#[derive(Debug, Clone, Copy, Default)]
struct Log {
    pages: u32,
    refused: u32,
    early: u32,
}

struct State {
    clock: Clock,
    left: u32,
    closed_until: Option<Timestamp>,
    log: Log,
}

impl Site {
    fn start() -> std::io::Result<Self> {
        let listener = TcpListener::bind("127.0.0.1:0")?;
        let address = listener.local_addr()?.to_string();
        let state = State { clock: Clock::new(), left: ALLOWED, closed_until: None, log: Log::default() };
        let state = Arc::new(Mutex::new(state));
        let shared = state.clone();
        std::thread::spawn(move || {
            for stream in listener.incoming().flatten() {
                let state = shared.clone();
                std::thread::spawn(move || serve(stream, &state));
            }
        });
        Ok(Self { address, state })
    }

    fn log(&self) -> Log {
        self.state.lock().unwrap_or_else(PoisonError::into_inner).log
    }
}

/// Answers the requests of one connection until it is closed.
fn serve(stream: TcpStream, state: &Mutex<State>) -> Option<()> {
    let mut reader = BufReader::new(stream.try_clone().ok()?);
    let mut stream = stream;
    loop {
        let mut first = String::new();
        reader.read_line(&mut first).ok().filter(|read| *read > 0)?;
        let mut line = String::new();
        while reader.read_line(&mut line).ok()? > 2 {
            line.clear();
        }
        let path = first.split(' ').nth(1)?.to_owned();
        let answer = state.lock().unwrap_or_else(PoisonError::into_inner).answer(&path);
        stream.write_all(answer.as_bytes()).ok()?;
    }
}

impl State {
    fn answer(&mut self, path: &str) -> String {
        if path == "/robots.txt" {
            return "HTTP/1.1 404 Not Found\r\nContent-Length: 0\r\n\r\n".to_owned();
        }
        let now = self.clock.now();
        if self.closed_until.is_some_and(|until| now < until) {
            self.log.early += 1;
        } else if self.closed_until.take().is_some() {
            self.left = ALLOWED;
        }
        if self.left == 0 {
            self.closed_until.get_or_insert(now + RETRY_AFTER);
            self.log.refused += 1;
            let secs = RETRY_AFTER.as_secs_up();
            return format!(
                "HTTP/1.1 429 Too Many Requests\r\nRetry-After: {secs}\r\nContent-Length: 0\r\n\r\n"
            );
        }
        self.left -= 1;
        self.log.pages += 1;
        let body = format!("this is {path}\n");
        format!("HTTP/1.1 200 OK\r\nContent-Type: text/plain\r\nContent-Length: {}\r\n\r\n{body}", body.len())
    }
}

const PAGES: u32 = 60;
const ALLOWED: u32 = 10;
const RETRY_AFTER: Span = Span::from_secs(3);
