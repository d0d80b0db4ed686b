//! One attempt: a request that leaves with a permit, and where its answer leads.

use bytes::Bytes;
use comity_core::domain::Domain;
use comity_core::headers::Told;
use comity_core::time::{Span, Timestamp};
use comity_store::tasks::Lead;
use http::HeaderMap;
use http::header::LOCATION;
use url::Url;

use crate::clock::micros;
use crate::gate::{Permit, Recall};
use crate::transport::{Answered, Body, Depart, Line, Request, SendError, Transport, TransportError};

/// Why a request did not get an answer.
#[derive(Debug)]
pub(crate) enum Unsent {
    /// It was not its time after all, or there was no descriptor for it; nothing was sent.
    Withheld,
    /// The connection did not work.
    Broken(TransportError),
}

/// Sends one request; it leaves when the connection is open and the permit still says so (B25).
pub(crate) async fn send(
    transport: &Transport,
    request: Request<'_>,
    permit: &mut Permit,
) -> Result<Answered, Unsent> {
    let recall = permit.recall();
    let sent = unless_recalled(recall, transport.send(request, Departing(permit))).await;
    hung_up(permit, &sent).await;
    let answered = sent.map_err(|error| match error {
        SendError::Withheld(()) => Unsent::Withheld,
        // Nor could it be: that is our own trouble, and it takes its place in line again.
        SendError::Failed(cause) if cause.is_ours() => Unsent::Withheld,
        SendError::Failed(cause) => Unsent::Broken(cause),
    })?;
    note_answered(&answered, permit);
    Ok(answered)
}

/// Goes on with a request until it is recalled: then it makes way for others that wait.
pub(crate) async fn unless_recalled<T, E: From<TransportError>>(
    recall: Recall,
    request: impl Future<Output = Result<T, E>>,
) -> Result<T, E> {
    tokio::select! {
        biased;
        done = request => done,
        () = recall.comes() => Err(TransportError::GivenUp.into()),
    }
}

/// A request whose connection is of no more use ends when that is closed: until then it takes room (B10).
pub(crate) async fn hung_up<T, E>(permit: &Permit, sent: &Result<T, SendError<E>>) {
    if let Err(SendError::Failed(_)) = sent {
        permit.hung_up().await;
    }
}

/// Reads a body piece by piece; one that drips makes way for others that wait, like an answer that does not come.
pub(crate) async fn read_on<E: From<TransportError>>(
    body: &mut Body,
    permit: &mut Permit,
    mut piece: impl FnMut(Bytes) -> Result<(), E>,
) -> Result<(), E> {
    let recall = permit.recall();
    let read = unless_recalled(recall, async {
        while let Some(chunk) = body.chunk().await {
            let chunk = chunk?;
            permit.came(chunk.len());
            piece(chunk)?;
        }
        Ok(())
    })
    .await;
    if read.is_err() {
        body.give_up();
        permit.hung_up().await;
    }
    read
}

/// A plain request for a URL that somebody led to.
pub(crate) fn request(url: &Url, lead: Lead) -> Request<'_> {
    Request::new(url, lead)
}

/// The head of an answer is there; the start of its request is when it was written.
pub(crate) fn note_answered(answered: &Answered, permit: &mut Permit) {
    permit.answered(answered.written_at.map(|written_at| micros(written_at.elapsed())));
}

/// A permit whose connection is open.
pub(crate) struct Departing<'a>(pub(crate) &'a mut Permit);

impl Depart<()> for Departing<'_> {
    async fn depart(&mut self) -> Result<(), ()> {
        if self.0.departs(PATIENCE).await { Ok(()) } else { Err(()) }
    }

    fn takes(&mut self, line: Line) {
        self.0.takes(line);
    }
}

/// What the headers of an answer ask of us.
pub(crate) fn told(headers: &HeaderMap, now: Timestamp) -> Told {
    Told::read(headers.iter().map(|(name, value)| (name.as_str(), value.as_bytes())), now)
}

/// Where an answer leads.
#[derive(Debug, PartialEq, Eq)]
pub(crate) enum Next {
    /// There.
    To(Url),
    /// Where nobody may follow.
    Astray,
}

/// Where an answer leads, if it is a redirect.
pub(crate) fn next_hop(url: &Url, status: u16, headers: &HeaderMap) -> Option<Next> {
    if !matches!(status, 301 | 302 | 303 | 307 | 308) {
        return None;
    }
    let location = headers.get(LOCATION)?;
    let joined = std::str::from_utf8(location.as_bytes()).ok().and_then(|text| url.join(text.trim()).ok());
    Some(match joined {
        Some(mut next) if Domain::of(&next).is_some() => {
            next.set_fragment(None);
            Next::To(next)
        }
        _ => Next::Astray,
    })
}

/// Who leads to `next`: the operator, if it is the very host that was listed (B76).
pub(crate) fn lead(listed: &Url, first: Lead, next: &Url) -> Lead {
    let place = |url: &Url| (url.host_str().map(str::to_owned), url.port_or_known_default());
    let host = |url: &Url| url.host_str().map(str::to_owned);
    // From http to https of the same host is the same place; another port of it is not.
    let same = place(listed) == place(next)
        || host(listed) == host(next) && listed.port().is_none() && next.port().is_none();
    if first == Lead::Listed && same { Lead::Listed } else { Lead::Remote }
}

/// A request whose connection is open waits this long for its departure, and then takes its place in line again. So a
/// source whose interval is its site's pace is not put off for a few milliseconds.
pub(crate) const PATIENCE: Span = Span::from_millis(250);

#[cfg(test)]
mod tests {
    use super::*;

    fn url(text: &str) -> Url {
        Url::parse(text).unwrap()
    }

    /// B76
    #[test]
    fn only_the_listed_host_itself_stays_listed() {
        let listed = url("http://example.org/a");
        for (next, expected) in [
            ("http://example.org/b", Lead::Listed),
            ("https://example.org/", Lead::Listed),
            ("http://example.org:8080/", Lead::Remote),
            ("http://www.example.org/", Lead::Remote),
            ("http://127.0.0.1/", Lead::Remote),
        ] {
            assert_eq!(lead(&listed, Lead::Listed, &url(next)), expected, "{next}");
            assert_eq!(lead(&listed, Lead::Remote, &url(next)), Lead::Remote, "{next}");
        }
        assert_eq!(
            lead(&url("http://127.0.0.1:80/"), Lead::Listed, &url("http://127.0.0.1:8080/")),
            Lead::Remote
        );
    }

    #[test]
    fn redirects_lead_to_http_and_https_only() {
        let hop = |status, location: &str| {
            let mut headers = HeaderMap::new();
            headers.insert(LOCATION, location.parse().unwrap());
            next_hop(&url("http://example.org/a/b"), status, &headers)
        };
        assert_eq!(hop(302, "../c#x"), Some(Next::To(url("http://example.org/c"))));
        assert_eq!(hop(301, "//other.example/"), Some(Next::To(url("http://other.example/"))));
        assert_eq!(hop(308, "file:///etc/passwd"), Some(Next::Astray));
        assert_eq!(hop(307, "http://"), Some(Next::Astray));
        assert_eq!(hop(302, "http://victim../"), Some(Next::Astray), "a name that cannot be read back (B82)");
        assert_eq!(hop(302, "http://victim:0/"), Some(Next::Astray));
        assert_eq!((hop(200, "/c"), hop(304, "/c")), (None, None));
        assert_eq!(next_hop(&url("http://example.org/"), 302, &HeaderMap::new()), None);
    }
}
