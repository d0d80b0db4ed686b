//! What an operator can do to a site: pause, resume, set, pin, unpin, release permits, reset. Each asks first.

use axum::extract::State;
use axum::response::Response;
use comity::core::domain::Domain;
use comity::core::time::Span;

use super::confirm::{self, Field, FieldKind, Question};
use super::guard::{Action, Values, Viewer};
use super::page::{Failure, Section, Shell, go, state};
use super::site::WAITING_MAX;
use super::text::counted;
use crate::api::domains::{self, Change};
use crate::api::{Path, domain, lease};
use crate::audit::Deed;
use crate::problem::{Kind, Problem};
use crate::service::Service;
use crate::state::ServingState;
use crate::wire::DomainChange;

/// What can be done to a site.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum SiteAction {
    Pause,
    Resume,
    Set,
    Pin,
    Unpin,
    Release,
    Reset,
}

impl SiteAction {
    const ALL: [Self; 7] =
        [Self::Pause, Self::Resume, Self::Set, Self::Pin, Self::Unpin, Self::Release, Self::Reset];

    fn name(self) -> &'static str {
        match self {
            Self::Pause => "pause",
            Self::Resume => "resume",
            Self::Set => "set",
            Self::Pin => "pin",
            Self::Unpin => "unpin",
            Self::Release => "release",
            Self::Reset => "reset",
        }
    }

    fn parse(name: &str) -> Result<Self, Failure> {
        let found = Self::ALL.into_iter().find(|action| action.name() == name);
        found.ok_or_else(|| Failure(Problem::new(Kind::NotFound, "there is no such page")))
    }

    fn title(self, site: &Domain) -> String {
        match self {
            Self::Pause => format!("Pause {site}?"),
            Self::Resume => format!("Resume {site}?"),
            Self::Set => format!("Set the learned delay of {site}?"),
            Self::Pin => format!("Pin the learned delay of {site}?"),
            Self::Unpin => format!("Unpin the learned delay of {site}?"),
            Self::Release => format!("Release the permits of {site}?"),
            Self::Reset => format!("Reset {site}?"),
        }
    }

    fn button(self) -> &'static str {
        match self {
            Self::Pause => "Pause this site",
            Self::Resume => "Resume this site",
            Self::Set => "Set the delay",
            Self::Pin => "Pin the delay",
            Self::Unpin => "Unpin the delay",
            Self::Release => "Release the permits",
            Self::Reset => "Reset this site",
        }
    }

    fn remark(self) -> &'static str {
        match self {
            Self::Pause => {
                "Requests in flight are finished. Nothing is lost: what waits continues when you resume the site."
            }
            Self::Resume => "All other limits still apply.",
            Self::Set => "The delay changes again with the site's answers, unless it is pinned.",
            Self::Pin => "The site's answers no longer change the learned delay. Retry-After still applies.",
            Self::Unpin => "From now on, the site's answers change the learned delay again.",
            Self::Release => {
                "Use it if a program that asked for a permit has crashed. Requests that are really in flight no longer count, so more may be sent at once than the rule allows."
            }
            Self::Reset => {
                "What was learned, and the backoff after failures, are forgotten. What the server asked for stays, unless you drop that too: then it may answer 429 again."
            }
        }
    }
}

/// What the action would change, with numbers.
async fn impact(action: SiteAction, state: &ServingState, site: &Domain) -> Result<String, Failure> {
    let waiting = state.store.waiting_for(site.clone(), WAITING_MAX).await?;
    let more = if waiting >= u64::from(WAITING_MAX) { "more than " } else { "" };
    let urls = format!("{more}{}", counted(waiting, "waiting URL", "waiting URLs"));
    let status = domains::status_of(state, site).await?;
    let learned = status.as_ref().map_or(Span::ZERO, |status| status.delay).prose().to_string();
    Ok(match action {
        SiteAction::Pause => format!("Stops {urls}"),
        SiteAction::Resume => format!("Lets {urls} continue"),
        SiteAction::Set => format!("Changes the pace of {urls}; the learned delay is {learned}"),
        SiteAction::Pin | SiteAction::Unpin => format!("Concerns {urls}; the learned delay is {learned}"),
        SiteAction::Release => {
            let held = status.map_or(0, |status| status.in_flight as u64);
            format!("Releases {}; {urls}", counted(held, "permit", "permits"))
        }
        SiteAction::Reset => format!("Forgets the learned delay of {learned}; {urls}"),
    })
}

/// Asks first.
pub(super) async fn ask(
    State(service): State<Service>,
    viewer: Viewer,
    Path((name, action)): Path<(String, String)>,
) -> Result<Response, Failure> {
    let (host, action) = (domain(&name)?, SiteAction::parse(&action)?);
    let state = state(&service)?;
    let site = state.gate.rules().domain(&host);
    let impact = impact(action, &state, &site).await?;
    let status = domains::status_of(&state, &site).await?;
    let seconds = |span: Option<Span>| span.unwrap_or_default().as_secs_f64().to_string();
    let fields = match action {
        SiteAction::Set => vec![
            Field {
                name: "delay",
                label: "Learned delay, in seconds",
                kind: FieldKind::Seconds,
                value: seconds(status.as_ref().map(|status| status.delay)),
                hint: "",
            },
            Field {
                name: "floor",
                label: "Floor, in seconds",
                kind: FieldKind::Seconds,
                value: seconds(status.as_ref().map(|status| status.floor)),
                hint: "The shortest learned delay to try.",
            },
        ],
        SiteAction::Pause => vec![Field {
            name: "for",
            label: "For how long",
            kind: FieldKind::Choice(PAUSES.map(|(value, text, _)| (value, text)).to_vec()),
            value: "resumed".to_owned(),
            hint: "",
        }],
        SiteAction::Reset => vec![Field {
            name: "deadline",
            label: "Also drop what the server asked for",
            kind: FieldKind::Check,
            value: String::new(),
            hint: "",
        }],
        _ => Vec::new(),
    };
    let path = super::sites::path(site.as_str());
    let title = action.title(&site);
    let question = Question {
        shell: Shell::new(&service, viewer.clone(), Section::Sites, title.clone()).every(0),
        title,
        impact: format!("{impact}."),
        remarks: vec![action.remark()],
        fields,
        button: action.button(),
        is_grave: matches!(action, SiteAction::Reset | SiteAction::Release),
        path: format!("{path}/{}", action.name()),
        back: path,
    };
    confirm::ask(&viewer, question)
}

/// Does it.
pub(super) async fn act(
    State(service): State<Service>,
    Path((name, action)): Path<(String, String)>,
    form: Action,
) -> Result<Response, Failure> {
    let (host, action) = (domain(&name)?, SiteAction::parse(&action)?);
    let (site, impact) = {
        let state = state(&service)?;
        let site = state.gate.rules().domain(&host);
        let impact = impact(action, &state, &site).await?;
        (site, impact)
    };
    let (impact, change) = details(action, &form.values, impact, service.now())?;
    let deed = Deed::new(action.name(), format!("site {site}"), impact);
    let doing = async {
        match (action, change) {
            (_, Some(change)) => domains::apply_change(&service, &site, &change).await,
            (SiteAction::Reset, None) => {
                domains::apply_reset(&service, &site, form.values.get("deadline") == "yes").await
            }
            (_, None) => lease::release_all(&service, &site).await.map(drop),
        }
    };
    deed.carry_out(&service, form.viewer.caller, doing).await?;
    Ok(go(&super::sites::path(site.as_str()), action.name()))
}

/// The impact with what was filled in, and the change to make, if it is one.
fn details(
    action: SiteAction,
    values: &Values,
    impact: String,
    now: comity::core::time::Timestamp,
) -> Result<(String, Option<Change>), Failure> {
    let change = |change: DomainChange| Change::parse(&change).map(Some).map_err(Failure);
    let none = DomainChange::default;
    let seconds = |name: &str| {
        let text = values.get(name);
        let wrong = || Failure(Problem::field(name, &format!("{text:?}"), "seconds from 0 to 86400"));
        text.parse::<f64>().map_err(|_| wrong())
    };
    match action {
        SiteAction::Set => {
            let (delay, floor) = (seconds("delay")?, seconds("floor")?);
            let set = DomainChange {
                adaptive_delay_seconds: Some(delay),
                adaptive_delay_floor_seconds: Some(floor),
                ..none()
            };
            Ok((format!("{impact}; set to {delay} s, floor {floor} s"), change(set)?))
        }
        SiteAction::Pin => Ok((impact, change(DomainChange { pinned: Some(true), ..none() })?)),
        SiteAction::Unpin => Ok((impact, change(DomainChange { pinned: Some(false), ..none() })?)),
        SiteAction::Resume => Ok((impact, change(DomainChange { paused: Some(false), ..none() })?)),
        SiteAction::Pause => {
            let found = PAUSES.iter().find(|(value, ..)| *value == values.get("for"));
            let (_, text, length) = found.copied().unwrap_or(PAUSES[0]);
            let until = length.map(|length| (now + length).to_string());
            let pause = DomainChange { paused: Some(true), paused_until: until, ..none() };
            Ok((format!("{impact}; {}", text.to_lowercase()), change(pause)?))
        }
        SiteAction::Reset if values.get("deadline") == "yes" => {
            Ok((format!("{impact}; also drops what the server asked for"), None))
        }
        SiteAction::Reset | SiteAction::Release => Ok((impact, None)),
    }
}

/// For how long a site can be paused.
const PAUSES: [(&str, &str, Option<Span>); 4] = [
    ("resumed", "Until it is resumed", None),
    ("10m", "For 10 minutes", Some(Span::from_secs(600))),
    ("1h", "For an hour", Some(Span::from_secs(3_600))),
    ("1d", "For a day", Some(Span::from_secs(86_400))),
];
