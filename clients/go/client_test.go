package comity_test

import (
	"context"
	"encoding/json"
	"errors"
	"net/http"
	"net/http/httptest"
	"strings"
	"syscall"
	"testing"
	"time"

	"comity"
)

var ctx = context.Background()

// quick is faster than the limited site allows.
const quick = "[default]\nmin_delay = \"50ms\"\nlearning = \"off\"\n"

const noDelay = "[default]\nmin_delay = \"0s\"\nlearning = \"off\"\n"

func TestCheckReservesTheSlotAndRecordReportsTheOutcome(t *testing.T) {
	t.Parallel()
	client := start(t, "").client
	decision, err := client.Check(ctx, "http://www.example.org/a")
	must(t, err)
	if !decision.Proceed || decision.Domain != "example.org" {
		t.Fatalf("%+v", decision)
	}
	again, err := client.Check(ctx, "example.org")
	must(t, err)
	if again.Proceed || again.Wait() <= 0 || again.Reason == "" {
		t.Fatalf("%+v", again)
	}
	report := comity.Report{Permit: decision.Permit, Status: 429, RetryAfter: "600"}
	recorded, err := client.Record(ctx, report)
	must(t, err)
	if recorded.Outcome != comity.RateLimited || recorded.HeldUntil == "" || recorded.Wait() < 5*time.Minute {
		t.Fatalf("%+v", recorded)
	}
	repeated, err := client.Record(ctx, report)
	must(t, err)
	if repeated.Standing != "repeated" {
		t.Fatalf("%+v", repeated)
	}
	if peek, err := client.Peek(ctx, "example.org"); err != nil || peek.Limit != "retry_after" {
		t.Fatalf("%+v %v", peek, err)
	}
}

func TestBatchesAreAnsweredInOrder(t *testing.T) {
	t.Parallel()
	client := start(t, "").client
	decisions, err := client.CheckAll(ctx, []string{"a.example", "http://b.example/", "a.example"})
	must(t, err)
	if len(decisions) != 3 || !decisions[0].Proceed || !decisions[1].Proceed || decisions[2].Proceed {
		t.Fatalf("%+v", decisions)
	}
	recorded, err := client.RecordAll(ctx, []comity.Report{
		{Permit: decisions[0].Permit, Status: 200}, {Permit: decisions[1].Permit, Outcome: comity.Timeout},
	})
	must(t, err)
	if recorded[0].Domain != "a.example" || recorded[1].Outcome != comity.Timeout {
		t.Fatalf("%+v", recorded)
	}
}

func TestHoweverASendEndsItsPermitIsRecorded(t *testing.T) {
	t.Parallel()
	client := start(t, "").client
	for _, one := range []struct {
		domain, limit string
		send          func(*comity.Permit) error
	}{
		{"broken.long.example", "backoff", func(*comity.Permit) error { return syscall.ECONNRESET }},
		{"slow.long.example", "backoff", func(*comity.Permit) error { return context.DeadlineExceeded }},
		{"mine.long.example", "min_delay", func(*comity.Permit) error { return errors.New("a bug of my own") }},
		{"cancelled.long.example", "min_delay", func(*comity.Permit) error { return context.Canceled }},
		{"panics.long.example", "min_delay", func(*comity.Permit) error { panic("a bug of my own") }},
		{"fine.long.example", "min_delay", func(*comity.Permit) error { return nil }},
		{"closed.long.example", "retry_after", func(permit *comity.Permit) error {
			permit.CloseUntil(time.Now().Add(10 * time.Minute))
			return nil
		}},
	} {
		func() {
			defer func() { _ = recover() }()
			_ = client.Do(ctx, one.domain, one.send)
		}()
		peek, err := client.Peek(ctx, one.domain)
		must(t, err)
		if peek.Limit != one.limit {
			t.Errorf("%s: %s, expected %s", one.domain, peek.Limit, one.limit)
		}
	}
}

func TestAJobIsDeferredUntilItsSiteIsFree(t *testing.T) {
	t.Parallel()
	client := start(t, "").client
	ran := 0
	work := func(status int, headers http.Header) func(*comity.Permit) error {
		return func(permit *comity.Permit) error {
			ran++
			permit.Answered(status, headers)
			return errors.New("as the job sees it")
		}
	}
	if wait, err := client.TryDo(ctx, "free.long.example", work(500, nil)); wait != 0 || err == nil {
		t.Error(wait, err)
	}
	limited := work(429, http.Header{"Retry-After": {"600"}})
	if wait, err := client.TryDo(ctx, "limited.long.example", limited); wait < 5*time.Minute || err != nil {
		t.Error(wait, err)
	}
	if wait, err := client.TryDo(ctx, "limited.long.example", limited); wait < 5*time.Minute || err != nil {
		t.Error(wait, err)
	}
	_, err := client.Check(ctx, "busy.example")
	must(t, err)
	if wait, err := client.TryDo(ctx, "busy.example", limited); wait <= 0 || wait > time.Second || err != nil {
		t.Error(wait, err)
	}
	if ran != 2 {
		t.Error(ran)
	}
}

func TestAPermitThatWasReleasedBlocksNobody(t *testing.T) {
	t.Parallel()
	client := start(t, noDelay).client
	decision, err := client.Check(ctx, "example.org")
	must(t, err)
	must(t, client.Release(ctx, *decision))
	again, err := client.Check(ctx, "example.org")
	must(t, err)
	if !again.Proceed {
		t.Fatalf("%+v", again)
	}
}

func TestTheLeaseOfALongRequestIsRenewedUntilItEnds(t *testing.T) {
	t.Parallel()
	client := start(t, noDelay).client
	var decision comity.Decision
	must(t, client.Do(ctx, "example.org", func(permit *comity.Permit) error {
		decision = permit.Decision
		time.Sleep(6 * time.Second)
		if other, err := client.Check(ctx, "example.org"); err != nil || other.Limit != "lease" {
			t.Errorf("%+v %v", other, err)
		}
		return nil
	}, comity.WithLease(4*time.Second)))
	if renewed, err := client.Renew(ctx, decision, time.Second); err != nil || renewed {
		t.Fatalf("%v %v", renewed, err)
	}
}

func TestAPermitThatIsForgottenBlocksItsSiteNoLongerThanItsLease(t *testing.T) {
	t.Parallel()
	client := start(t, noDelay).client
	_, err := client.Permit(ctx, "example.org", comity.WithLease(500*time.Millisecond))
	must(t, err)
	if next, err := client.Acquire(ctx, "example.org", 30*time.Second); err != nil || !next.Proceed {
		t.Fatalf("%+v %v", next, err)
	}
}

func TestATimeoutAndAPauseAreErrorsThatSayWhy(t *testing.T) {
	t.Parallel()
	world := start(t, "")
	_, err := world.client.CloseUntil(ctx, "closed.example", time.Now().Add(10*time.Minute))
	must(t, err)
	limited, cancel := context.WithTimeout(ctx, 5*time.Second)
	defer cancel()
	_, err = world.client.Permit(limited, "closed.example")
	var timedOut *comity.TimedOutError
	if !errors.As(err, &timedOut) || timedOut.Decision.Limit != "retry_after" || !errors.Is(err, context.DeadlineExceeded) {
		t.Fatalf("%v", err)
	}
	change, err := http.NewRequest("PATCH", world.server+"/v1/domains/paused.example", strings.NewReader(`{"paused": true}`))
	must(t, err)
	change.Header.Set("Content-Type", "application/json")
	answer, err := http.DefaultClient.Do(change)
	must(t, err)
	answer.Body.Close()
	_, err = world.client.Permit(ctx, "paused.example")
	var refused *comity.RefusedError
	if !errors.As(err, &refused) {
		t.Fatalf("%v", err)
	}
}

func TestAnInvalidCallNamesTheField(t *testing.T) {
	t.Parallel()
	_, err := start(t, "").client.Check(ctx, "example.org", comity.WithIntent("post"))
	var invalid *comity.InvalidError
	if !errors.As(err, &invalid) || invalid.Status != 422 || invalid.Field != "intent" || !strings.Contains(invalid.Allowed, "fetch") {
		t.Fatalf("%v", err)
	}
}

func TestACallerWhoCancelsLeavesTheLine(t *testing.T) {
	t.Parallel()
	world := start(t, "")
	_, err := world.client.CloseUntil(ctx, "example.org", time.Now().Add(10*time.Minute))
	must(t, err)
	cancelled, cancel := context.WithCancel(ctx)
	ended := make(chan error)
	go func() {
		_, err := world.client.Permit(cancelled, "example.org")
		ended <- err
	}()
	until(t, "in line", func() bool { return world.waiting("example.org") == 1 })
	cancel()
	if err := <-ended; !errors.Is(err, context.Canceled) {
		t.Fatalf("%v", err)
	}
	until(t, "out of line", func() bool { return world.waiting("example.org") == 0 })
}

func TestAServiceThatIsAwayIsAClearError(t *testing.T) {
	t.Parallel()
	client := &comity.Client{Server: "http://127.0.0.1:1"}
	_, err := client.Permit(ctx, "example.org")
	var away *comity.UnavailableError
	if !errors.As(err, &away) || away.Met || !strings.HasPrefix(err.Error(), "http://127.0.0.1:1: the decision service can't be reached: ") {
		t.Fatalf("%v", err)
	}
}

func TestACallerInLineSurvivesARestartOfTheService(t *testing.T) {
	t.Parallel()
	world := start(t, "")
	must(t, world.client.Do(ctx, "example.org", func(permit *comity.Permit) error {
		permit.Answered(429, http.Header{"Retry-After": {"3"}})
		return nil
	}))
	granted := make(chan error)
	go func() { granted <- world.client.Do(ctx, "example.org", func(*comity.Permit) error { return nil }) }()
	until(t, "in line", func() bool { return world.waiting("example.org") == 1 })
	world.do(map[string]any{"do": "stop"})
	world.do(map[string]any{"do": "start"})
	must(t, <-granted)
}

func TestTheTokenIsSentAndOnlyHeadersAboutWaitingAreReported(t *testing.T) {
	t.Parallel()
	var reported struct{ Headers map[string]string }
	server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if r.Header.Get("Authorization") != "Bearer secret" {
			t.Error("without the token")
		}
		if r.URL.Path == "/v1/record" {
			_ = json.NewDecoder(r.Body).Decode(&reported)
		}
		_, _ = w.Write([]byte(`{"proceed": true, "permit": "p1.x", "domain": "example.org"}`))
	}))
	defer server.Close()
	client := &comity.Client{Server: server.URL, Token: "secret"}
	must(t, client.Do(ctx, "https://example.org/", func(permit *comity.Permit) error {
		permit.Answered(503, http.Header{"Set-Cookie": {"a=b"}, "Retry-After": {"7"}, "X-Ratelimit-Reset": {"9"}})
		return nil
	}))
	if len(reported.Headers) != 2 || reported.Headers["retry-after"] != "7" || reported.Headers["x-ratelimit-reset"] != "9" {
		t.Fatalf("%v", reported.Headers)
	}
}

func TestPathsFieldsAndWordsAreThoseOfTheService(t *testing.T) {
	t.Parallel()
	comity.WhatOpenAPISays(t, start(t, "").server)
}
