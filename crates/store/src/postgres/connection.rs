//! One connection, with the runtime that drives it: it belongs to a thread, and whatever is done on it blocks that thread.

use std::sync::Arc;
use std::time::Duration;

use tokio::runtime::{Builder, Runtime};
use tokio_postgres::{AsyncMessage, Client, SimpleQueryMessage};
use tokio_rustls::rustls;

use super::failure::{Failure, Result};
use super::location::{Location, Tls, Verify};
use super::time::DB_US;

/// A connection to the primary server.
pub(super) struct Session {
    client: Client,
    // Declared after the client: its driver ends when the client is dropped.
    runtime: Runtime,
    patience: Duration,
}

/// Identifies a commit.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Stamp {
    /// Who commits.
    pub(super) id: i64,
    /// A random number.
    pub(super) n: i64,
}

/// What a server says about itself at the start of a transaction.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Server {
    /// Which line of history it writes: a promotion starts a new one.
    pub(super) history: u32,
    /// When it was started.
    pub(super) started: String,
    /// The id of the transaction.
    pub(super) xid: String,
}

impl Session {
    /// Connects to the first server of the URL that takes writes. `patience` limits each statement.
    pub(super) fn open(location: &Location, patience: Duration) -> Result<Self> {
        let runtime = Builder::new_current_thread()
            .enable_all()
            .build()
            .map_err(|error| Failure::Rejected(format!("could not start a runtime: {error}")))?;
        let tls = tokio_postgres_rustls::MakeRustlsConnect::new(tls(&location.tls)?);
        // Timers belong to the runtime, so they are made inside it.
        let limit = location.connect_max() + patience;
        let connect = async { tokio::time::timeout(limit, location.config.connect(tls)).await };
        let (client, connection) = runtime.block_on(connect).map_err(|_| Failure::Timeout)??;
        // Its end shows with the next statement.
        runtime.spawn(async { drop(connection.await) });
        Ok(Self { client, runtime, patience })
    }

    /// Like [`Self::open`], for a connection that listens: notifications are counted by `heard`.
    pub(super) fn listen(
        location: &Location,
        patience: Duration,
        heard: impl Fn() + Send + 'static,
    ) -> Result<Self> {
        let runtime = Builder::new_current_thread()
            .enable_all()
            .build()
            .map_err(|error| Failure::Rejected(format!("could not start a runtime: {error}")))?;
        let tls = tokio_postgres_rustls::MakeRustlsConnect::new(tls(&location.tls)?);
        // Timers belong to the runtime, so they are made inside it.
        let limit = location.connect_max() + patience;
        let connect = async { tokio::time::timeout(limit, location.config.connect(tls)).await };
        let (client, mut connection) = runtime.block_on(connect).map_err(|_| Failure::Timeout)??;
        runtime.spawn(async move {
            loop {
                match std::future::poll_fn(|cx| connection.poll_message(cx)).await {
                    Some(Ok(AsyncMessage::Notification(_))) => heard(),
                    Some(Ok(_)) => {}
                    Some(Err(_)) | None => return,
                }
            }
        });
        Ok(Self { client, runtime, patience })
    }

    pub(super) fn client(&self) -> &Client {
        &self.client
    }

    /// Runs a future of the client on this thread.
    pub(super) fn wait_for<T>(
        &self,
        future: impl Future<Output = std::result::Result<T, tokio_postgres::Error>>,
    ) -> Result<T> {
        let bounded = async { tokio::time::timeout(self.patience, future).await };
        Ok(self.runtime.block_on(bounded).map_err(|_| Failure::Timeout)??)
    }

    /// Lets the driver of the connection run for a while, or until `news` has something.
    pub(super) fn idle(&self, span: Duration, news: &tokio::sync::Notify) {
        let _ = self.runtime.block_on(async { tokio::time::timeout(span, news.notified()).await });
    }

    /// Starts a transaction and asks the server who it is, in one round trip. A server in recovery refuses. What is committed
    /// survives a crash, also if the server is set up to risk the last commits.
    ///
    /// Everything is looked up by indexes, a few hundred rows at a time: compiling a statement takes longer than running it, and
    /// reading a whole table instead is what the planner should not prefer.
    pub(super) fn begin(&self, schema: &str) -> Result<Server> {
        let sql = format!(
            "BEGIN ISOLATION LEVEL READ COMMITTED READ WRITE; SET LOCAL search_path = \"{schema}\"; SET LOCAL idle_in_transaction_session_timeout = '{IDLE_MAX}';
            SET LOCAL jit = off; SET LOCAL random_page_cost = 1.1;
            SELECT pg_current_xact_id()::text,
            ('x' || left(pg_walfile_name(pg_current_wal_lsn()), 8))::bit(32)::int8::text, pg_postmaster_start_time()::text,
            CASE WHEN current_setting('synchronous_commit') = 'off' THEN set_config('synchronous_commit', 'on', true) END"
        );
        let messages = self.wait_for(self.client.simple_query(&sql))?;
        let row = messages.iter().find_map(|message| match message {
            SimpleQueryMessage::Row(row) => Some(row),
            _ => None,
        });
        let column = |nth| row.and_then(|row| row.get(nth)).unwrap_or_default().to_owned();
        Ok(Server { xid: column(0), history: column(1).parse().unwrap_or_default(), started: column(2) })
    }

    /// Starts a transaction that only reads, and sees one state.
    pub(super) fn begin_reading(&self, schema: &str) -> Result<()> {
        let sql =
            format!("BEGIN ISOLATION LEVEL REPEATABLE READ READ ONLY; SET LOCAL search_path = \"{schema}\"");
        self.wait_for(self.client.batch_execute(&sql))
    }

    pub(super) fn commit(&self) -> Result<()> {
        self.wait_for(self.client.batch_execute("COMMIT"))
    }

    /// Commits together with a row that says so.
    pub(super) fn commit_stamped(&self, stamp: Stamp) -> Result<()> {
        let Stamp { id, n } = stamp;
        let sql = format!(
            "INSERT INTO stamp VALUES ({id}, {n}, {DB_US})
            ON CONFLICT (id) DO UPDATE SET n = excluded.n, at_us = excluded.at_us; COMMIT"
        );
        self.wait_for(self.client.batch_execute(&sql))
    }

    /// Ends a transaction that failed. False if the connection can't be used any more.
    pub(super) fn roll_back(&self) -> bool {
        !self.client.is_closed() && self.wait_for(self.client.batch_execute("ROLLBACK")).is_ok()
    }

    pub(super) fn is_closed(&self) -> bool {
        self.client.is_closed()
    }
}

/// The TLS settings of a location.
fn tls(tls: &Tls) -> Result<rustls::ClientConfig> {
    let provider = Arc::new(rustls::crypto::ring::default_provider());
    let builder = rustls::ClientConfig::builder_with_provider(provider.clone())
        .with_safe_default_protocol_versions()
        .map_err(|error| Failure::Rejected(format!("TLS: {error}")))?;
    let config = match tls.verify {
        Verify::Full => builder.with_root_certificates(roots(tls)?),
        Verify::Nothing => {
            builder.dangerous().with_custom_certificate_verifier(Arc::new(AnyCertificate(provider)))
        }
    };
    Ok(config.with_no_client_auth())
}

fn roots(tls: &Tls) -> Result<rustls::RootCertStore> {
    use rustls::pki_types::CertificateDer;
    use rustls::pki_types::pem::PemObject;
    let mut roots = rustls::RootCertStore::empty();
    match &tls.roots {
        Some(file) => {
            let refused = |what: String| Failure::Rejected(format!("sslrootcert={}: {what}", file.display()));
            let certificates =
                CertificateDer::pem_file_iter(file).map_err(|error| refused(error.to_string()))?;
            for certificate in certificates {
                let certificate = certificate.map_err(|error| refused(error.to_string()))?;
                roots.add(certificate).map_err(|error| refused(error.to_string()))?;
            }
            if roots.is_empty() {
                return Err(refused("expected a certificate in PEM".to_owned()));
            }
        }
        None => {
            let (_, _) = roots.add_parsable_certificates(rustls_native_certs::load_native_certs().certs);
        }
    }
    Ok(roots)
}

/// Accepts every certificate, as `sslmode=prefer` and `require` do everywhere; signatures are checked all the same.
#[derive(Debug)]
struct AnyCertificate(Arc<rustls::crypto::CryptoProvider>);

impl rustls::client::danger::ServerCertVerifier for AnyCertificate {
    fn verify_server_cert(
        &self,
        _end_entity: &rustls::pki_types::CertificateDer<'_>,
        _intermediates: &[rustls::pki_types::CertificateDer<'_>],
        _server_name: &rustls::pki_types::ServerName<'_>,
        _ocsp_response: &[u8],
        _now: rustls::pki_types::UnixTime,
    ) -> std::result::Result<rustls::client::danger::ServerCertVerified, rustls::Error> {
        Ok(rustls::client::danger::ServerCertVerified::assertion())
    }

    fn verify_tls12_signature(
        &self,
        message: &[u8],
        cert: &rustls::pki_types::CertificateDer<'_>,
        dss: &rustls::DigitallySignedStruct,
    ) -> std::result::Result<rustls::client::danger::HandshakeSignatureValid, rustls::Error> {
        rustls::crypto::verify_tls12_signature(message, cert, dss, &self.0.signature_verification_algorithms)
    }

    fn verify_tls13_signature(
        &self,
        message: &[u8],
        cert: &rustls::pki_types::CertificateDer<'_>,
        dss: &rustls::DigitallySignedStruct,
    ) -> std::result::Result<rustls::client::danger::HandshakeSignatureValid, rustls::Error> {
        rustls::crypto::verify_tls13_signature(message, cert, dss, &self.0.signature_verification_algorithms)
    }

    fn supported_verify_schemes(&self) -> Vec<rustls::SignatureScheme> {
        self.0.signature_verification_algorithms.supported_schemes()
    }
}

/// For how long a transaction may do nothing: the locks of a process that is stopped or cut off must not stop others for longer.
const IDLE_MAX: &str = "10s";
