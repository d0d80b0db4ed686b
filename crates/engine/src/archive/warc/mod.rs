//! Exchanges as they were on the wire, in WARC 1.1 files (ISO 28500:2017).
//!
//! - here: an archive, one exchange that is recorded, and the records it becomes
//! - `exchange`: what passes on a connection; `head` and `chunks` read along
//! - `record`, `digest`: how a record is written
//! - `volume`: the files; `reading` reads them back; `spool` is where long bodies wait
//! - `seen`: which payloads are there already
//!
//! What is written is told in `docs/warc.md`. Two things are not as one might expect. The payload digest of a chunked
//! answer covers the framing too, because that is what `warcio check` and the indexers calculate, although the
//! standard means the payload alone; whether two payloads are the same is decided by the payload alone. And a file is
//! not synchronised to the disk by us: as with files of single pages, that is the system's.

#[cfg(feature = "fuzzing")]
pub use self::reading::{WarcRead, read_warc};

mod chunks;
mod digest;
mod exchange;
mod head;
mod reading;
mod record;
mod seen;
mod spool;
mod volume;

use std::fs::{self, File};
use std::io::{self, Read};
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, Weak};

use url::{Position, Url};

use self::digest::Digest;
use self::exchange::{Passed, Scene};
use self::record::{Header, Id};
use self::seen::{Original, Seen};
use self::spool::Spool;
use self::volume::Volumes;
use super::{ArchiveError, names};
use crate::clock::Clock;
use crate::config::{Config, RobotsPolicy};
use crate::transport::{Phase, TransportError, Witness};

/// An archive of exchanges.
#[derive(Debug)]
pub struct Warc(Arc<Inner>);

#[derive(Debug)]
struct Inner {
    volumes: Mutex<Volumes>,
    seen: Mutex<Seen>,
    folder: PathBuf,
    clock: Clock,
}

/// An exchange that is recorded. Dropped unfinished, it leaves nothing behind.
pub(crate) struct Recording {
    warc: Arc<Inner>,
    scene: Arc<Scene>,
    witness: Arc<dyn Witness>,
    url: String,
}

/// How the reading of an answer ended.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Ending {
    /// It was read to its end.
    Whole,
    /// It was given up, for this reason in the words of the standard.
    Cut(&'static str),
    /// The connection broke: that is no answer.
    Lost,
}

impl Warc {
    /// The archive of a job in `folder`, which is made when it is not there. What an earlier process of the job left
    /// behind is made whole.
    pub fn open(folder: &Path, job: &str, config: &Config, clock: Clock) -> Result<Self, ArchiveError> {
        fs::create_dir_all(folder).map_err(at(folder))?;
        // It is better to know now that nothing can be written here.
        spool::nameless(folder).map_err(at(folder))?;
        let (stem, about) = (stem(job), about(job, config));
        let file_max = config.warc.file_max.bytes();
        let volumes = Volumes::new(folder.to_owned(), stem, about, file_max, clock.clone());
        let mut seen = Seen::new(SEEN_MAX);
        let named = volumes.named().map_err(at(folder))?;
        volumes.recover(|payload, original| seen.add(payload, original)).map_err(at(folder))?;
        let inner = Arc::new(Inner {
            volumes: Mutex::new(volumes),
            seen: Mutex::new(seen),
            folder: folder.to_owned(),
            clock,
        });
        if !named.is_empty() {
            let weak = Arc::downgrade(&inner);
            // Nobody waits for it: what is not known yet is written once more.
            std::thread::spawn(move || remember(&weak, named));
        }
        Ok(Self(inner))
    }

    /// Begins to record the exchange for `url`.
    pub(crate) fn record(&self, url: &Url) -> Recording {
        let inner = &self.0;
        let scene = Arc::new(Scene::new(inner.clock.clone(), inner.folder.clone()));
        Recording { warc: inner.clone(), witness: scene.clone(), scene, url: target(url) }
    }

    /// The last file gets its name, and nothing is recorded any more.
    pub(crate) fn close(&self) -> Result<(), ArchiveError> {
        self.0.volumes().close().map_err(at(&self.0.folder))
    }
}

impl Drop for Warc {
    fn drop(&mut self) {
        // Whoever wants to know whether that worked has closed it before.
        let _ = self.close();
    }
}

impl Recording {
    /// Who has to see the exchange.
    pub(crate) fn witness(&self) -> &Arc<dyn Witness> {
        &self.witness
    }

    /// The exchange is over: its records are written, and there for others to read.
    pub(crate) async fn finish(self, ending: Ending) -> Result<(), ArchiveError> {
        let wrong = at(&self.warc.folder);
        let passed = match self.scene.take(ending) {
            Ok(passed) => passed,
            Err(error) => return Err(wrong(error)),
        };
        let Some(passed) = passed else { return Ok(()) };
        let is_long = passed.body.len() > spool::MEMORY_MAX as u64;
        let (warc, url) = (self.warc, self.url);
        let write = move || warc.write(&url, passed, ending);
        // A long body takes a while, in which others want to use this thread.
        let written = match is_long {
            true => tokio::task::spawn_blocking(write).await.unwrap_or_else(|error| Err(error.into())),
            false => write(),
        };
        written.map_err(wrong)
    }
}

impl Ending {
    /// What an error while the body was read makes of it.
    pub(crate) fn of(cause: &TransportError) -> Self {
        match cause {
            TransportError::BodyTooLarge { .. } => Self::Cut("length"),
            TransportError::TimedOut(Phase::Total) => Self::Cut("time"),
            TransportError::Decode { .. } => Self::Cut("unspecified"),
            _ => Self::Lost,
        }
    }
}

impl Inner {
    /// Writes what passed as a request and a response, or as a request and a revisit.
    fn write(&self, url: &str, passed: Passed, ending: Ending) -> io::Result<()> {
        let Passed { began_at, server, request, head, body, .. } = passed;
        let (request_id, id) = (Id::random()?, Id::random()?);
        let original = passed.payload.and_then(|payload| self.seen().find(&payload));
        let mut packed = Spool::new(&self.folder);

        let mut header = Header::new(if original.is_some() { "revisit" } else { "response" }, id, began_at);
        header.add("WARC-Target-URI", url);
        header.add_some("WARC-IP-Address", server);
        header.add("WARC-Concurrent-To", request_id);
        if let Some(original) = &original {
            header.add("WARC-Profile", SAME_PAYLOAD);
            header.add("WARC-Refers-To", original.id);
            header.add("WARC-Refers-To-Target-URI", &original.url);
            header.add("WARC-Refers-To-Date", &original.date);
            header.add("WARC-Block-Digest", Digest::of(&head));
            header.add("WARC-Payload-Digest", original.digest);
            header.add("WARC-Truncated", "length");
            header.add("Content-Type", "application/http;msgtype=response");
            header.pack(head.len() as u64, &mut &head[..], &mut packed)?;
        } else {
            header.add("WARC-Block-Digest", passed.block_digest);
            header.add_some("WARC-Payload-Digest", passed.body_digest);
            header.add_some("WARC-Truncated", cut(ending, passed.is_whole));
            header.add("Content-Type", "application/http;msgtype=response");
            let length = head.len() as u64 + body.len();
            header.pack(length, &mut (&head[..]).chain(body.into_reader()?), &mut packed)?;
        }

        let mut header = Header::new("request", request_id, began_at);
        header.add("WARC-Target-URI", url);
        header.add_some("WARC-IP-Address", server);
        header.add("WARC-Concurrent-To", id);
        header.add("WARC-Block-Digest", Digest::of(&request));
        header.add("Content-Type", "application/http;msgtype=request");
        header.pack(request.len() as u64, &mut &request[..], &mut packed)?;

        self.volumes().append(packed)?;
        // Only now there is something to refer to.
        if let (None, Some(payload), Some(digest)) = (original, passed.payload, passed.body_digest) {
            let original = Original { id, url: url.into(), date: began_at.to_string().into(), digest };
            self.seen().add(payload, original);
        }
        Ok(())
    }

    fn volumes(&self) -> MutexGuard<'_, Volumes> {
        self.volumes.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn seen(&self) -> MutexGuard<'_, Seen> {
        self.seen.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// Why a record is shorter than the answer, if it is.
fn cut(ending: Ending, is_whole: bool) -> Option<&'static str> {
    match ending {
        // It may have been given up when everything was there, because of what it would have become decoded.
        _ if is_whole => None,
        Ending::Cut(reason) => Some(reason),
        Ending::Whole | Ending::Lost => Some("unspecified"),
    }
}

/// Reads what earlier processes of the job wrote, the newest first, for as long as there is room to remember it.
fn remember(warc: &Weak<Inner>, files: Vec<PathBuf>) {
    let mut bytes_left = REMEMBERED_MAX;
    for path in files {
        let Ok(file) = File::open(path) else { continue };
        let bytes = file.metadata().map_or(0, |metadata| metadata.len());
        if bytes > bytes_left || !warc.upgrade().is_some_and(|warc| warc.seen().has_room()) {
            return;
        }
        bytes_left -= bytes;
        reading::read(file, |payload, original| {
            if let Some(warc) = warc.upgrade() {
                warc.seen().add(payload, original);
            }
        });
    }
}

/// What an exchange is found by: no user info, no fragment.
fn target(url: &Url) -> String {
    format!("{}{}", &url[..Position::AfterScheme], "://") + &url[Position::BeforeHost..Position::AfterQuery]
}

/// What the names of a job's files begin with.
fn stem(job: &str) -> String {
    match names::safe(job, STEM_MAX) {
        empty if empty.is_empty() => "comity".to_owned(),
        stem => names::no_device(stem),
    }
}

/// What the first record of a file says.
fn about(job: &str, config: &Config) -> String {
    let robots = match config.robots {
        RobotsPolicy::Obey => "obey",
        RobotsPolicy::Ignore => "ignore",
    };
    let job: String = job.chars().map(|c| if c.is_control() { '_' } else { c }).collect();
    let fields = [
        ("software", concat!("Comity/", env!("CARGO_PKG_VERSION"))),
        ("format", "WARC File Format 1.1"),
        ("conformsTo", "https://iipc.github.io/warc-specifications/specifications/warc-format/warc-1.1/"),
        ("isPartOf", &job),
        ("robots", robots),
        ("http-header-user-agent", &config.user_agent()),
    ];
    fields.iter().map(|(name, value)| format!("{name}: {value}\r\n")).collect()
}

fn at(place: &Path) -> impl FnOnce(io::Error) -> ArchiveError + use<> {
    let place = place.to_owned();
    move |cause| ArchiveError { place, cause }
}

const SAME_PAYLOAD: &str = "http://netpreserve.org/warc/1.1/revisit/identical-payload-digest";
const STEM_MAX: usize = 80;
/// What is remembered of payloads: about 200,000 of them.
const SEEN_MAX: usize = 48 << 20;
/// Of what earlier processes wrote, this much is looked at.
const REMEMBERED_MAX: u64 = 2 << 30;
