package comity

import (
	"context"
	"net/http"
	"strconv"
	"sync"
	"time"
)

// Permit is the right to send one request, now. Report the response, and call Done. Safe for concurrent use.
type Permit struct {
	// Decision is what the service decided.
	Decision Decision

	client    *Client
	grantedAt time.Time
	stop      chan struct{}

	mutex    sync.Mutex
	report   *Report
	reportAt time.Time
	sentAt   time.Time

	keep     sync.Once
	once     sync.Once
	recorded *Recorded
	err      error
}

// PermitOf is the permit of a decision of Check or Acquire that says proceed.
func (c *Client) PermitOf(decision Decision) *Permit {
	return &Permit{Decision: decision, client: c, grantedAt: time.Now(), stop: make(chan struct{})}
}

// KeepAlive renews the lease until Done, so that a long request keeps its place. It is only for those who are sure to
// call Done: a permit that is forgotten would block its site as long as the process lives.
func (p *Permit) KeepAlive() {
	p.keep.Do(func() { go p.renew(time.Duration(p.Decision.LeaseMS) * time.Millisecond) })
}

// Sent reports that the request is being written right now: the pace then counts from here.
func (p *Permit) Sent() {
	p.mutex.Lock()
	defer p.mutex.Unlock()
	p.sentAt = time.Now()
}

// Answered reports the response.
func (p *Permit) Answered(status int, headers http.Header) {
	if status < 100 || status > 999 {
		p.set(&Report{Outcome: ServerError})
		return
	}
	p.set(&Report{Status: status, Headers: rateLimitHeaders(headers)})
}

// Failed reports an outcome without a response, or one that the status doesn't show: an API that answers 200 but means
// RateLimited.
func (p *Permit) Failed(outcome Outcome) {
	p.set(&Report{Outcome: outcome})
}

// CloseUntil reports that the site is closed until this time: nobody sends it a request before.
func (p *Permit) CloseUntil(end time.Time) {
	p.set(&Report{Status: http.StatusTooManyRequests, RetryAfter: retryAfter(end)})
}

// Done records the outcome: what was reported; or else what the error means, or a success if it is nil. Only the first
// call counts. It doesn't depend on the context of the request, which may have been cancelled.
func (p *Permit) Done(err error) (*Recorded, error) {
	p.once.Do(func() {
		close(p.stop)
		ctx, cancel := context.WithTimeout(context.Background(), p.client.timeout())
		defer cancel()
		p.recorded, p.err = p.client.Record(ctx, p.result(err))
	})
	return p.recorded, p.err
}

// result is what Done records.
func (p *Permit) result(err error) Report {
	p.mutex.Lock()
	defer p.mutex.Unlock()
	report := Report{Outcome: outcomeOf(err)}
	if p.report != nil {
		report = *p.report
	}
	report.Permit = p.Decision.Permit
	// Without better knowledge, a success counts from its response, since a connection may have been opened first. But a
	// failure must not look more recent than it is.
	started := p.grantedAt
	switch {
	case !p.sentAt.IsZero():
		started = p.sentAt
	case report.Outcome == Success, report.Status > 0 && report.Status < 400:
		started = time.Now()
		if !p.reportAt.IsZero() {
			started = p.reportAt
		}
	}
	latency := time.Since(started).Milliseconds()
	report.LatencyMS = &latency
	return report
}

func (p *Permit) set(report *Report) {
	p.mutex.Lock()
	defer p.mutex.Unlock()
	p.report, p.reportAt = report, time.Now()
}

func (p *Permit) renew(lease time.Duration) {
	if lease <= 0 {
		return
	}
	ticker := time.NewTicker(lease/2 + time.Millisecond)
	defer ticker.Stop()
	for {
		select {
		case <-p.stop:
			return
		case <-ticker.C:
			ctx, cancel := context.WithTimeout(context.Background(), p.client.timeout())
			// If it fails, the next one may work. The permit can be recorded in any case.
			_, _ = p.client.Renew(ctx, p.Decision, lease)
			cancel()
		}
	}
}

// retryAfter is the time as a Retry-After: whole seconds, never too few.
func retryAfter(end time.Time) string {
	seconds := (time.Until(end) + time.Second - 1) / time.Second
	if seconds < 0 {
		seconds = 0
	}
	return strconv.FormatInt(int64(seconds), 10)
}
