package comity

import (
	"bytes"
	"context"
	"crypto/rand"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"net/http/httptrace"
	"net/url"
	"os"
	"strconv"
	"strings"
	"sync/atomic"
	"time"
)

// Client is a client for one service. Its zero value is ready to use, and so is a nil pointer: the address comes from
// COMITY_SERVER (or else it is http://127.0.0.1:7878), the token from COMITY_TOKEN. Goroutines may share it.
type Client struct {
	// Server is the address of the service.
	Server string
	// Token is the token, if the service requires one.
	Token string
	// Lease is how long a crashed program blocks a site; by default a minute. Longer requests are renewed.
	Lease time.Duration
	// Timeout is how long an answer may take on top of the time in line; by default 30 s.
	Timeout time.Duration
	// HTTPClient sends the calls to the service. The default uses no proxy.
	HTTPClient *http.Client
}

// Option changes one call.
type Option func(*ask)

// WithIntent says what the request is for; by default Fetch.
func WithIntent(intent Intent) Option {
	return func(a *ask) { a.Intent = intent }
}

// WithLease sets the lease of the permit, at most ten minutes.
func WithLease(lease time.Duration) Option {
	return func(a *ask) { a.LeaseMS = leaseMS(lease) }
}

const (
	leaseMax = 10 * time.Minute
	batchMax = 1000
)

// The waits before reports of a batch are retried that could not be recorded.
var recordRetries = []time.Duration{500 * time.Millisecond, time.Second, 2 * time.Second, 4 * time.Second, 0}

// As many connections as there are callers in line, and never the proxy of the environment, which is for the sites.
var direct = &http.Client{Transport: &http.Transport{MaxIdleConnsPerHost: 100, IdleConnTimeout: time.Minute}}

// Check asks, and reserves the slot if it is free. It doesn't wait. The target is a URL or a domain.
func (c *Client) Check(ctx context.Context, target string, options ...Option) (*Decision, error) {
	var decision Decision
	return &decision, c.post(ctx, "/v1/check", c.ask(target, options), &decision, true)
}

// Peek asks without reserving anything.
func (c *Client) Peek(ctx context.Context, target string, options ...Option) (*Decision, error) {
	var decision Decision
	body := c.ask(target, options)
	body.LeaseMS = 0
	return &decision, c.post(ctx, "/v1/peek", body, &decision, false)
}

// Acquire waits in line, for at most maxWait.
func (c *Client) Acquire(ctx context.Context, target string, maxWait time.Duration, options ...Option) (*Decision, error) {
	var decision Decision
	body := c.ask(target, options)
	ms := maxWait.Milliseconds()
	body.MaxWaitMS = &ms
	return &decision, c.post(ctx, "/v1/acquire", body, &decision, true)
}

// CheckAll asks for many, and answers in order.
func (c *Client) CheckAll(ctx context.Context, targets []string, options ...Option) ([]Decision, error) {
	var all []Decision
	for start := 0; start < len(targets); start += batchMax {
		var batch asks
		for _, target := range targets[start:smaller(start+batchMax, len(targets))] {
			batch.Checks = append(batch.Checks, c.ask(target, options))
		}
		var found decisions
		if err := c.post(ctx, "/v1/check/batch", batch, &found, true); err != nil {
			return all, err
		}
		all = append(all, found.Results...)
	}
	return all, nil
}

// Record reports the outcome of a request.
func (c *Client) Record(ctx context.Context, report Report) (*Recorded, error) {
	var recorded Recorded
	// A permit is recorded only once, however often it is sent, so it needs no idempotency key.
	return &recorded, c.post(ctx, "/v1/record", report, &recorded, report.Permit == "")
}

// RecordAll reports many outcomes. Those that can't be recorded at the moment are retried a few times.
func (c *Client) RecordAll(ctx context.Context, all []Report) ([]Recorded, error) {
	recorded := make([]Recorded, len(all))
	open := make([]int, len(all))
	for nth := range all {
		open[nth] = nth
	}
	for _, pause := range recordRetries {
		var unheard []int
		for start := 0; start < len(open); start += batchMax {
			part := open[start:smaller(start+batchMax, len(open))]
			var batch reports
			for _, nth := range part {
				batch.Records = append(batch.Records, all[nth])
			}
			var found recordeds
			if err := c.post(ctx, "/v1/record/batch", batch, &found, true); err != nil {
				return recorded, err
			}
			for at, nth := range part {
				if at >= len(found.Results) || found.Results[at].Standing == "unheard" {
					unheard = append(unheard, nth)
				} else {
					recorded[nth] = found.Results[at]
				}
			}
		}
		open = unheard
		if len(open) == 0 {
			return recorded, nil
		}
		if err := pauseFor(ctx, pause); err != nil {
			return recorded, err
		}
	}
	message := fmt.Sprintf("%d of %d reports could not be recorded", len(open), len(all))
	return recorded, &UnavailableError{Message: message, Met: true}
}

// Release gives a permit back: the request was not sent.
func (c *Client) Release(ctx context.Context, decision Decision) error {
	_, err := c.Record(ctx, Report{Permit: decision.Permit, Outcome: Abandoned})
	return err
}

// Renew restarts the lease, for a long request. It returns false if the lease had already ended.
func (c *Client) Renew(ctx context.Context, decision Decision, lease time.Duration) (bool, error) {
	var answer renewed
	err := c.post(ctx, "/v1/renew", renewal{decision.Permit, leaseMS(lease)}, &answer, false)
	return answer.Renewed, err
}

// CloseUntil closes a site until this time, for everybody who asks. It takes the role admin, if there are tokens.
func (c *Client) CloseUntil(ctx context.Context, target string, end time.Time, options ...Option) (*Recorded, error) {
	named := c.ask(target, options)
	return c.Record(ctx, Report{
		URL: named.URL, Domain: named.Domain, Intent: named.Intent,
		Status: http.StatusTooManyRequests, RetryAfter: retryAfter(end),
	})
}

func (c *Client) ask(target string, options []Option) ask {
	body := ask{Intent: Fetch}
	if c != nil {
		body.LeaseMS = leaseMS(c.Lease)
	}
	if strings.Contains(target, "://") {
		body.URL = target
	} else {
		body.Domain = target
	}
	for _, change := range options {
		change(&body)
	}
	return body
}

func (c *Client) server() (server, token string) {
	if c != nil {
		server, token = c.Server, c.Token
	}
	if server == "" {
		server = os.Getenv("COMITY_SERVER")
	}
	if server == "" {
		server = "http://127.0.0.1:7878"
	}
	if !strings.Contains(server, "://") {
		server = "http://" + server
	}
	if token == "" {
		token = os.Getenv("COMITY_TOKEN")
	}
	return strings.TrimRight(server, "/"), token
}

func (c *Client) timeout() time.Duration {
	if c == nil || c.Timeout == 0 {
		return 30 * time.Second
	}
	return c.Timeout
}

func (c *Client) post(ctx context.Context, path string, body, answer any, keyed bool) error {
	text, err := json.Marshal(body)
	if err != nil {
		return err
	}
	limit := c.timeout()
	if asked, ok := body.(ask); ok && asked.MaxWaitMS != nil {
		limit += time.Duration(*asked.MaxWaitMS) * time.Millisecond
	}
	key := ""
	if keyed {
		key = newKey()
	}
	err = c.once(ctx, path, text, key, limit, answer)
	var unavailable *UnavailableError
	// A kept-alive connection may have been closed just as it was used. Retry once; the key keeps that harmless.
	if errors.As(err, &unavailable) && unavailable.Met && unavailable.Err != nil && ctx.Err() == nil {
		err = c.once(ctx, path, text, key, limit, answer)
	}
	return err
}

func (c *Client) once(ctx context.Context, path string, body []byte, key string, limit time.Duration, answer any) error {
	server, token := c.server()
	var met atomic.Bool
	trace := &httptrace.ClientTrace{GotConn: func(httptrace.GotConnInfo) { met.Store(true) }}
	limited, cancel := context.WithTimeout(httptrace.WithClientTrace(ctx, trace), limit)
	defer cancel()
	request, err := http.NewRequestWithContext(limited, http.MethodPost, server+path, bytes.NewReader(body))
	if err != nil {
		return &InvalidError{Detail: "the address of the decision service: " + err.Error()}
	}
	request.Header.Set("Content-Type", "application/json")
	request.Header.Set("Accept", "application/json")
	if token != "" {
		request.Header.Set("Authorization", "Bearer "+token)
	}
	if key != "" {
		request.Header.Set("Idempotency-Key", key)
	}
	sender := direct
	if c != nil && c.HTTPClient != nil {
		sender = c.HTTPClient
	}
	response, err := sender.Do(request)
	var text []byte
	if err == nil {
		defer response.Body.Close()
		text, err = io.ReadAll(response.Body)
	}
	if err != nil {
		if ctx.Err() != nil {
			return ctx.Err()
		}
		var inner *url.Error
		if errors.As(err, &inner) {
			err = inner.Err
		}
		message := fmt.Sprintf("%s: the decision service can't be reached: %v", request.URL.Scheme+"://"+request.URL.Host, err)
		return &UnavailableError{Message: message, Met: met.Load(), Err: err}
	}
	return read(response, text, answer)
}

func read(response *http.Response, text []byte, answer any) error {
	status := response.StatusCode
	if status/100 == 2 {
		if err := json.Unmarshal(text, answer); err != nil {
			return &InvalidError{Status: status, Detail: "unexpected response from the server at this address: is it Comity?"}
		}
		return nil
	}
	var problem problem
	_ = json.Unmarshal(text, &problem)
	detail := problem.Detail
	if detail == "" {
		detail = problem.Title
	}
	// 409: our own call with the same key is still in progress. 408: the request got lost. Both are temporary.
	if status >= 500 || status == http.StatusRequestTimeout || status == http.StatusConflict {
		if detail == "" {
			detail = fmt.Sprintf("the service answered HTTP %d", status)
		}
		seconds, _ := strconv.ParseFloat(response.Header.Get("Retry-After"), 64)
		return &UnavailableError{Message: detail, Met: true, RetryAfter: time.Duration(seconds * float64(time.Second))}
	}
	return &InvalidError{Status: status, Detail: detail, Field: problem.Field, Value: problem.Value, Allowed: problem.Allowed}
}

func leaseMS(lease time.Duration) int64 {
	if lease > leaseMax {
		lease = leaseMax
	}
	return lease.Milliseconds()
}

func newKey() string {
	var key [16]byte
	if _, err := rand.Read(key[:]); err != nil {
		panic(err)
	}
	return hex.EncodeToString(key[:])
}

func smaller(a, b int) int {
	if a < b {
		return a
	}
	return b
}
