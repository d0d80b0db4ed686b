//! The transport against scripted servers on loopback.

mod guard;
mod limits;
mod pool;
mod proxies;
mod secure;
mod servers;
mod site_options;
mod tap;

use std::convert::Infallible;

use comity::transport::{Answered, Lead, Request, SendError, Settings, Transport, TransportError};
use comity_core::time::Span;
use url::Url;

/// Settings whose timeouts don't expire even on a busy machine. A test that waits for a timeout shortens that one.
fn settings() -> Settings {
    Settings {
        connect_timeout: Span::from_secs(60),
        first_byte_timeout: Span::from_secs(60),
        total_timeout: Span::from_secs(60),
        ..Settings::default()
    }
}

fn transport() -> Transport {
    Transport::new(settings()).unwrap()
}

async fn get(transport: &Transport, url: &str, lead: Lead) -> Result<Answered, TransportError> {
    let url = Url::parse(url).unwrap();
    let sent = transport.send(Request::new(&url, lead), || async { Ok::<(), Infallible>(()) }).await;
    sent.map_err(|error| match error {
        SendError::Failed(error) => error,
        SendError::Withheld(never) => match never {},
    })
}

/// The whole body of a listed URL.
async fn fetch(transport: &Transport, url: &str) -> Result<Vec<u8>, TransportError> {
    read(get(transport, url, Lead::Listed).await?).await
}

async fn read(mut answer: Answered) -> Result<Vec<u8>, TransportError> {
    let mut whole = Vec::new();
    while let Some(chunk) = answer.body.chunk().await {
        whole.extend_from_slice(&chunk?);
    }
    assert_eq!(answer.body.decoded_bytes(), whole.len() as u64);
    Ok(whole)
}
