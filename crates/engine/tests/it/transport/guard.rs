//! Blocked addresses (B76), and errors without secrets (B75).

use std::net::IpAddr;
use std::sync::Arc;

use comity::transport::{Allowance, Lead, Refusal, Settings, Transport, TransportError};
use comity_core::time::Span;

use super::servers::{Server, answer};
use super::{get, read, settings, transport};
use crate::support::ClosedPort;

/// Allows everything.
pub(super) struct Everything;

/// Allows one host.
struct Host(&'static str);

impl Allowance for Everything {
    fn allows_host(&self, _: &str) -> bool {
        true
    }

    fn allows_address(&self, _: IpAddr) -> bool {
        true
    }
}

impl Allowance for Host {
    fn allows_host(&self, host: &str) -> bool {
        host == self.0
    }

    fn allows_address(&self, _: IpAddr) -> bool {
        false
    }
}

fn refusal(result: Result<comity::transport::Answered, TransportError>) -> Refusal {
    match result {
        Err(error @ TransportError::Refused { refusal, .. }) => {
            assert!(error.is_final());
            refusal
        }
        Err(other) => panic!("{other}"),
        Ok(_) => panic!("not refused"),
    }
}

/// B76
#[tokio::test]
async fn remote_responses_cannot_lead_to_private_addresses() {
    let server = Server::answering(answer("", b"")).await;
    let port = server.address.port();
    for host in ["127.0.0.1", "localhost", "2130706433", "0x7f.1", "[::ffff:127.0.0.1]", "10.0.0.1"] {
        let url = format!("http://{host}:{port}/");
        let refused = refusal(get(&transport(), &url, Lead::Remote).await);
        assert!(matches!(refused, Refusal::NotPublic(_)), "{host}");
    }
    assert!(server.heads().is_empty());
    for host in ["127.0.0.1", "localhost"] {
        let url = format!("http://{host}:{port}/");
        get(&transport(), &url, Lead::Listed).await.unwrap();
        let allowing = |allowance| Transport::new(Settings { allowance, ..settings() }).unwrap();
        get(&allowing(Arc::new(Host(host))), &url, Lead::Remote).await.unwrap();
        get(&allowing(Arc::new(Everything)), &url, Lead::Remote).await.unwrap();
        refusal(get(&allowing(Arc::new(Host("other"))), &url, Lead::Remote).await);
    }
}

/// B76
#[tokio::test]
async fn metadata_endpoints_are_blocked_even_if_listed() {
    for url in
        ["http://169.254.169.254/latest", "http://metadata.google.internal./", "http://[::ffff:a9fe:a9fe]/"]
    {
        for lead in [Lead::Listed, Lead::Remote] {
            assert_eq!(refusal(get(&transport(), url, lead).await), Refusal::Metadata, "{url}");
        }
    }
}

/// B75, B76
#[tokio::test]
async fn user_info_is_not_sent_to_urls_from_remote_responses() {
    let server = Server::answering(answer("", b"")).await;
    let transport = Transport::new(Settings { allowance: Arc::new(Everything), ..settings() }).unwrap();
    let url = server.url("/").replace("//", "//me:secret@");
    read(get(&transport, &url, Lead::Remote).await.unwrap()).await.unwrap();
    assert!(!server.heads()[0].contains("authorization"));
}

/// B75
#[tokio::test]
async fn errors_contain_no_secrets() {
    let closed = ClosedPort::new();
    let broken = Server::answering_once("HTTP/1.1 200 OK\r\nset-cookie: secret\r\nsecret").await;
    let large = Server::answering(answer(&"set-cookie: secret\r\n".repeat(9_000), b"")).await;
    // None of these speaks TLS.
    let transport =
        Transport::new(Settings { connect_timeout: Span::from_millis(800), ..settings() }).unwrap();
    for address in [closed.address(), broken.address, large.address] {
        for (scheme, lead) in [("http", Lead::Listed), ("https", Lead::Listed), ("http", Lead::Remote)] {
            let url = format!("{scheme}://me:secret@{address}/secret?token=secret");
            let Err(error) = get(&transport, &url, lead).await else { panic!("{url}") };
            let mut text = format!("{error:?}");
            let mut cause: Option<&dyn std::error::Error> = Some(&error);
            while let Some(error) = cause {
                text += &error.to_string();
                cause = error.source();
            }
            assert!(!text.contains("secret") && !text.contains("c2VjcmV0"), "{text}");
        }
    }
}
