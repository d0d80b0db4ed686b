//! Stores exchanges as they were on the wire, in WARC 1.1 files (ISO 28500:2017).
//!
//! - this file: the archive, the recording of an exchange, and the records written for it
//! - `exchange`: records the traffic on a connection, with the help of `head` and `chunks`
//! - `record`, `digest`: the format of a record
//! - `volume`: the files; `reader` reads them back; `spool` buffers long bodies
//! - `known_payloads`: which payloads are in the archive already
//!
//! What is written is documented in `docs/warc.md`. Two details may be unexpected. The payload digest of a chunked
//! response includes the framing, because that is what `warcio check` and indexers calculate, although the standard
//! means the payload alone; identical payloads are recognized by the payload alone. And records are not synced to disk
//! one by one: as with files of single pages, that is left to the operating system.

#[cfg(feature = "fuzzing")]
pub use self::reader::{WarcRead, read_warc};

mod chunks;
mod digest;
mod exchange;
mod head;
mod known_payloads;
mod reader;
mod record;
mod spool;
mod volume;

use std::fs::{self, File};
use std::io::{self, Read};
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, Weak};

use url::{Position, Url};

use self::digest::Digest;
use self::exchange::{RecordedExchange, Recorder};
use self::known_payloads::{KnownPayloads, Original};
use self::record::{Header, Id};
use self::spool::Spool;
use self::volume::Volumes;
pub(super) use self::volume::is_warc_file;
use super::{ArchiveError, Reach, names};
use crate::clock::Clock;
use crate::config::{Config, RobotsPolicy};
use crate::transport::{Phase, TransportError, Witness};

/// An archive of exchanges.
#[derive(Debug)]
pub struct Warc(Arc<Inner>);

#[derive(Debug)]
struct Inner {
    volumes: Mutex<Volumes>,
    known_payloads: Mutex<KnownPayloads>,
    folder: PathBuf,
    clock: Clock,
}

/// An exchange being recorded. If it is dropped before it is finished, nothing is written.
pub(crate) struct Recording {
    warc: Arc<Inner>,
    recorder: Arc<Recorder>,
    witness: Arc<dyn Witness>,
    url: String,
}

/// How reading a response ended.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Ending {
    /// It was read completely.
    Complete,
    /// It was truncated, for this reason in the words of the standard.
    Truncated(&'static str),
    /// The connection broke, so there is no response.
    Lost,
}

impl Warc {
    /// Opens the archive of a job in `folder`, which is created if it doesn't exist. Files that an earlier process of
    /// the job left open are recovered.
    pub fn open(folder: &Path, job: &str, config: &Config, clock: Clock) -> Result<Self, ArchiveError> {
        fs::create_dir_all(folder).map_err(at(folder))?;
        // Find out now whether the folder is writable.
        spool::anonymous_file(folder).map_err(at(folder))?;
        let (stem, about) = (stem(job), about(job, config));
        let file_max = config.warc.file_max.bytes();
        let volumes = Volumes::new(folder.to_owned(), stem, about, file_max, clock.clone());
        let mut known = KnownPayloads::new(KNOWN_MAX);
        let finished = volumes.finished().map_err(at(folder))?;
        volumes.recover(|payload, original| known.add(payload, original)).map_err(at(folder))?;
        let inner = Arc::new(Inner {
            volumes: Mutex::new(volumes),
            known_payloads: Mutex::new(known),
            folder: folder.to_owned(),
            clock,
        });
        if !finished.is_empty() {
            let weak = Arc::downgrade(&inner);
            // Nothing waits for this: payloads that are not loaded yet are simply written again.
            std::thread::spawn(move || load_known_payloads(&weak, finished));
        }
        Ok(Self(inner))
    }

    /// Starts recording the exchange for `url`.
    pub(crate) fn record(&self, url: &Url) -> Recording {
        let inner = &self.0;
        let recorder = Arc::new(Recorder::new(inner.clock.clone(), inner.folder.clone()));
        Recording { warc: inner.clone(), witness: recorder.clone(), recorder, url: target(url) }
    }

    /// Finishes the last file. Nothing can be recorded after that.
    pub(crate) fn close(&self) -> Result<(), ArchiveError> {
        self.0.volumes().close().map_err(at(&self.0.folder))
    }
}

impl Drop for Warc {
    fn drop(&mut self) {
        // To see errors, call `close` before.
        let _ = self.close();
    }
}

impl Recording {
    /// The witness to pass to the transport.
    pub(crate) fn witness(&self) -> &Arc<dyn Witness> {
        &self.witness
    }

    /// Ends the exchange and writes its records, which others can read from now on.
    pub(crate) async fn finish(self, ending: Ending) -> Result<(), ArchiveError> {
        let to_error = at(&self.warc.folder);
        let exchange = match self.recorder.take(ending) {
            Ok(exchange) => exchange,
            Err(error) => return Err(to_error(error)),
        };
        let Some(exchange) = exchange else { return Ok(()) };
        let is_long = exchange.body.len() > spool::MEMORY_MAX as u64;
        let (warc, url) = (self.warc, self.url);
        let write = move || warc.write(&url, exchange, ending);
        // Writing a long body takes a while and would block the thread.
        let written = match is_long {
            true => tokio::task::spawn_blocking(write).await.unwrap_or_else(|error| Err(error.into())),
            false => write(),
        };
        written.map_err(to_error)
    }
}

impl Ending {
    /// The ending for an error while the body was read.
    pub(crate) fn of(cause: &TransportError) -> Self {
        match cause {
            TransportError::BodyTooLarge { .. } => Self::Truncated("length"),
            TransportError::TimedOut(Phase::Total) => Self::Truncated("time"),
            TransportError::Decode { .. } => Self::Truncated("unspecified"),
            _ => Self::Lost,
        }
    }
}

impl Inner {
    /// Writes an exchange as a request and a response, or as a request and a revisit.
    fn write(&self, url: &str, exchange: RecordedExchange, ending: Ending) -> io::Result<()> {
        let RecordedExchange { began_at, server, request, head, body, .. } = exchange;
        let (request_id, id) = (Id::random()?, Id::random()?);
        let original = exchange.payload.and_then(|payload| self.known_payloads().find(&payload));
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
            header.add("WARC-Block-Digest", exchange.block_digest);
            header.add_some("WARC-Payload-Digest", exchange.body_digest);
            header.add_some("WARC-Truncated", truncation_reason(ending, exchange.is_complete));
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
        // Revisits may refer to it only after it was written.
        if let (None, Some(payload), Some(digest)) = (original, exchange.payload, exchange.body_digest) {
            let original = Original { id, url: url.into(), date: began_at.to_string().into(), digest };
            self.known_payloads().add(payload, original);
        }
        Ok(())
    }

    fn volumes(&self) -> MutexGuard<'_, Volumes> {
        self.volumes.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn known_payloads(&self) -> MutexGuard<'_, KnownPayloads> {
        self.known_payloads.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// Why a record is shorter than the response, if it is.
fn truncation_reason(ending: Ending, is_complete: bool) -> Option<&'static str> {
    match ending {
        // All bytes may have arrived even if reading failed, because the decoded body was too large or invalid.
        _ if is_complete => None,
        Ending::Truncated(reason) => Some(reason),
        Ending::Complete | Ending::Lost => Some("unspecified"),
    }
}

/// Loads the payloads that earlier processes of the job wrote, newest files first, as long as there is room in memory.
fn load_known_payloads(warc: &Weak<Inner>, files: Vec<PathBuf>) {
    let mut bytes_left = LOADED_MAX;
    for path in files {
        let Ok(file) = File::open(path) else { continue };
        let bytes = file.metadata().map_or(0, |metadata| metadata.len());
        if bytes > bytes_left || !warc.upgrade().is_some_and(|warc| warc.known_payloads().has_room()) {
            return;
        }
        bytes_left -= bytes;
        reader::read(file, |payload, original| {
            if let Some(warc) = warc.upgrade() {
                warc.known_payloads().add(payload, original);
            }
        });
    }
}

/// The URL under which an exchange is recorded: without user info and fragment.
fn target(url: &Url) -> String {
    format!("{}{}", &url[..Position::AfterScheme], "://") + &url[Position::BeforeHost..Position::AfterQuery]
}

/// The start of the file names of a job.
fn stem(job: &str) -> String {
    match names::safe(job, STEM_MAX) {
        empty if empty.is_empty() => "comity".to_owned(),
        stem => names::no_device(stem),
    }
}

/// The content of the first record of a file (`warcinfo`).
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

fn at(path: &Path) -> impl FnOnce(io::Error) -> ArchiveError + use<> {
    let path = path.to_owned();
    move |cause| ArchiveError { path, cause, reach: Reach::Archive }
}

const SAME_PAYLOAD: &str = "http://netpreserve.org/warc/1.1/revisit/identical-payload-digest";
const STEM_MAX: usize = 80;
/// The memory for known payloads, enough for about 200,000.
const KNOWN_MAX: usize = 48 << 20;
/// How much of the files of earlier processes is read.
const LOADED_MAX: u64 = 2 << 30;
