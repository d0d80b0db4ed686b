package comity_test

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net/http"
	"strings"
	"sync"
	"testing"
	"time"

	"comity"
)

func polite(w *world) *http.Client {
	return &http.Client{Transport: &comity.Transport{Client: w.client, Base: &http.Transport{}}}
}

// fetch reads a page to its end and returns its status.
func fetch(client *http.Client, url string) (int, error) {
	response, err := client.Get(url)
	if err != nil {
		return 0, err
	}
	defer response.Body.Close()
	_, err = io.Copy(io.Discard, response.Body)
	return response.StatusCode, err
}

func TestFiftyGoroutinesShareOnePaceAndNoneIsEarly(t *testing.T) {
	t.Parallel()
	world := start(t, "")
	site := world.site("open")
	client := polite(world)
	var group sync.WaitGroup
	for page := 0; page < 50; page++ {
		group.Add(1)
		go func(page int) {
			defer group.Done()
			if status, err := fetch(client, fmt.Sprintf("%s/%d", site.url, page)); err != nil || status != 200 {
				t.Error(status, err)
			}
		}(page)
	}
	group.Wait()
	if pages := site.withStatus(200); len(pages) != 50 {
		t.Errorf("%d pages", len(pages))
	}
	site.noneEarly(0.2, 0)
}

func TestARateLimitedResponseHoldsEveryCaller(t *testing.T) {
	t.Parallel()
	world := start(t, quick)
	site := world.site("limited")
	client := polite(world)
	var group sync.WaitGroup
	for page := 0; page < 15; page++ {
		group.Add(1)
		go func(page int) {
			defer group.Done()
			for status := 429; status == 429; {
				var err error
				if status, err = fetch(client, fmt.Sprintf("%s/%d", site.url, page)); err != nil {
					t.Error(err)
				}
			}
		}(page)
	}
	group.Wait()
	if len(site.withStatus(429)) == 0 || len(site.withStatus(200)) != 15 {
		t.Error(site.requests())
	}
	site.noneEarly(0.05, 2)
}

func TestEachHopOfARedirectHasItsOwnPermit(t *testing.T) {
	t.Parallel()
	world := start(t, "")
	site := world.site("absolute_redirect off; location = /a { return 302 /b; } location / { empty_gif; }")
	status, err := fetch(polite(world), site.url+"/a")
	must(t, err)
	if status != 200 || len(site.requests()) != 2 {
		t.Error(status, site.requests())
	}
	site.noneEarly(0.2, 0)
}

func TestABodyCountsAsInFlightUntilItIsReadOrClosedOrLeftAlone(t *testing.T) {
	t.Parallel()
	world := start(t, noDelay)
	site := world.site("open")
	client := polite(world)
	free := func() bool {
		decision, err := world.client.Check(ctx, site.url)
		must(t, err)
		if decision.Proceed {
			must(t, world.client.Release(ctx, *decision))
		}
		return decision.Proceed
	}
	for name, end := range map[string]func(io.ReadCloser){
		"read":   func(body io.ReadCloser) { _, _ = io.Copy(io.Discard, body) },
		"closed": func(body io.ReadCloser) { body.Close() },
		"left":   func(io.ReadCloser) {},
	} {
		response, err := client.Get(site.url)
		must(t, err)
		if free() {
			t.Errorf("%s: free before its end", name)
		}
		end(response.Body)
		until(t, name, free)
		response.Body.Close()
	}
}

func TestARequestThatFailsOrIsCancelledReturnsItsPermit(t *testing.T) {
	t.Parallel()
	world := start(t, noDelay+"backoff_base = \"10m\"\nbackoff_max = \"10m\"\n")
	dead := world.site("location / { return 444; }")
	if _, err := polite(world).Get(dead.url); err == nil {
		t.Error("no error")
	}
	if peek, err := world.client.Peek(ctx, dead.url); err != nil || peek.Limit != "backoff" {
		t.Errorf("%+v %v", peek, err)
	}
	arrived := make(chan struct{})
	transport := &comity.Transport{Client: world.client, Base: hanging(arrived)}
	cancelled, cancel := context.WithCancel(ctx)
	go func() {
		<-arrived
		cancel()
	}()
	request, err := http.NewRequestWithContext(cancelled, "GET", "http://hangs.example/", nil)
	must(t, err)
	if _, err := transport.RoundTrip(request); !errors.Is(err, context.Canceled) {
		t.Error(err)
	}
	if peek, err := world.client.Peek(ctx, "hangs.example"); err != nil || !peek.Proceed {
		t.Errorf("%+v %v", peek, err)
	}
	slow := &comity.Transport{Client: world.client, Base: hanging(make(chan struct{}, 1)), RequestTimeout: 50 * time.Millisecond}
	request, err = http.NewRequest("GET", "http://slow.example/", nil)
	must(t, err)
	if _, err := slow.RoundTrip(request); !errors.Is(err, context.DeadlineExceeded) {
		t.Error(err)
	}
	if peek, err := world.client.Peek(ctx, "slow.example"); err != nil || peek.Limit != "backoff" {
		t.Errorf("%+v %v", peek, err)
	}
}

func TestWithoutAPermitNothingIsSentAndTheBodyIsClosed(t *testing.T) {
	t.Parallel()
	body := &closed{Reader: strings.NewReader("hello")}
	request, err := http.NewRequest("POST", "http://example.org/", body)
	must(t, err)
	transport := &comity.Transport{Client: &comity.Client{Server: "127.0.0.1:1"}, Base: hanging(nil)}
	_, err = (&http.Client{Transport: transport}).Do(request)
	var away *comity.UnavailableError
	if !errors.As(err, &away) || !body.closed {
		t.Error(err, body.closed)
	}
}

// hanging is a site that never answers.
type hanging chan struct{}

func (h hanging) RoundTrip(request *http.Request) (*http.Response, error) {
	h <- struct{}{}
	<-request.Context().Done()
	return nil, request.Context().Err()
}

type closed struct {
	io.Reader
	closed bool
}

func (c *closed) Close() error {
	c.closed = true
	return nil
}
