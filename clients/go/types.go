package comity

import "time"

// Intent is what a request is for. Rules can set separate limits for each.
type Intent string

// The intents.
const (
	Fetch  Intent = "fetch"
	Search Intent = "search"
	API    Intent = "api"
)

// Outcome is the outcome of a request.
type Outcome string

// The outcomes.
const (
	Success      Outcome = "success"
	OtherAnswer  Outcome = "answered"
	RateLimited  Outcome = "rate_limited"
	Blocked      Outcome = "blocked"
	SiteAway     Outcome = "unavailable"
	ServerError  Outcome = "server_error"
	Timeout      Outcome = "timeout"
	NetworkError Outcome = "network_error"
	Abandoned    Outcome = "abandoned"
)

// Decision says whether a request may be sent now, or else how long to wait and why.
type Decision struct {
	// Proceed is whether the request may be sent now. Check and Acquire have then reserved the slot.
	Proceed bool `json:"proceed"`
	// WaitMS is how long to wait before asking again, in milliseconds.
	WaitMS int64 `json:"wait_ms"`
	// Reason is the reason, as a sentence.
	Reason string `json:"reason"`
	// Domain is the site whose pace applies: a host, or a group of hosts.
	Domain string `json:"domain"`
	// Refused is whether an operator paused the site until further notice.
	Refused bool `json:"refused"`
	// WaitedMS is how long the call waited in line, in milliseconds.
	WaitedMS int64 `json:"waited_ms"`
	// Permit is the permit, to record the outcome with; empty if nothing was reserved.
	Permit string `json:"permit"`
	// LeaseMS is how long the permit counts as in flight if it is not recorded, in milliseconds.
	LeaseMS int64 `json:"lease_ms"`
	// Limit is what delays the request, in one word such as "min_delay".
	Limit string `json:"limit"`
	// Origin is where that limit comes from, such as "rule" or "server".
	Origin string `json:"origin"`
}

// Wait is how long to wait before asking again.
func (d Decision) Wait() time.Duration { return time.Duration(d.WaitMS) * time.Millisecond }

// Report is the outcome of a request: its permit, or else a URL or a domain; and a status or an outcome.
type Report struct {
	Permit string `json:"permit,omitempty"`
	// URL or Domain is for a request that was sent without a permit. It takes the role admin, if there are tokens.
	URL    string `json:"url,omitempty"`
	Domain string `json:"domain,omitempty"`
	Intent Intent `json:"intent,omitempty"`
	// Status is the HTTP status of the response.
	Status int `json:"status,omitempty"`
	// Outcome is for a request without a response.
	Outcome Outcome `json:"outcome,omitempty"`
	// Headers are those of the response that are about rate limits and waiting.
	Headers map[string]string `json:"headers,omitempty"`
	// RetryAfter is the Retry-After header, unchanged.
	RetryAfter string `json:"retry_after,omitempty"`
	// RateLimit is the RateLimit header, unchanged.
	RateLimit string `json:"ratelimit,omitempty"`
	// LatencyMS is how long ago the request was sent, in milliseconds; nil counts from the permit.
	LatencyMS *int64 `json:"latency_ms,omitempty"`
}

// Recorded is what recording a report changed.
type Recorded struct {
	// Domain is the site whose pace was updated.
	Domain string `json:"domain"`
	// Outcome is the outcome that was recorded.
	Outcome Outcome `json:"outcome"`
	// Standing is "fresh" if it counted, "late" if the request was sent before the latest failure, "repeated" if the
	// permit was recorded before.
	Standing string `json:"standing"`
	// WaitMS is how long until the next request may be sent, in milliseconds.
	WaitMS int64 `json:"wait_ms"`
	// HeldUntil is until when the site is closed because of this (RFC 3339), or empty.
	HeldUntil string `json:"held_until"`
	// AdaptiveDelaySeconds is the new learned delay, or nil if it did not change.
	AdaptiveDelaySeconds *float64 `json:"adaptive_delay_seconds"`
}

// Wait is how long until the next request may be sent.
func (r Recorded) Wait() time.Duration { return time.Duration(r.WaitMS) * time.Millisecond }

// The bodies of calls and of the remaining answers.
type (
	ask struct {
		URL       string `json:"url,omitempty"`
		Domain    string `json:"domain,omitempty"`
		Intent    Intent `json:"intent"`
		LeaseMS   int64  `json:"lease_ms,omitempty"`
		MaxWaitMS *int64 `json:"max_wait_ms,omitempty"`
	}
	asks struct {
		Checks []ask `json:"checks"`
	}
	decisions struct {
		Results []Decision `json:"results"`
	}
	reports struct {
		Records []Report `json:"records"`
	}
	recordeds struct {
		Results []Recorded `json:"results"`
	}
	renewal struct {
		Permit  string `json:"permit"`
		LeaseMS int64  `json:"lease_ms,omitempty"`
	}
	renewed struct {
		Renewed bool `json:"renewed"`
	}
	problem struct {
		Title   string `json:"title"`
		Detail  string `json:"detail"`
		Field   string `json:"field"`
		Value   string `json:"value"`
		Allowed string `json:"allowed"`
	}
)
