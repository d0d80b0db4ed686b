package comity

import (
	"context"
	"errors"
	"io"
	"net/http"
	"net/http/httptrace"
	"time"
)

// Transport is a http.RoundTripper that waits its turn before each request and records the outcome: when the body has
// been read or closed, or when the request failed. Redirects come here hop by hop, so each has its own permit.
//
// http.Client.Timeout includes the time in line. To limit only the request itself, use RequestTimeout.
type Transport struct {
	// Client asks the service; nil means one with the settings of the environment.
	Client *Client
	// Base sends the requests; nil means http.DefaultTransport.
	Base http.RoundTripper
	// Intent is what the requests are for; by default Fetch.
	Intent Intent
	// RequestTimeout is how long a request may take once it has its permit, including its body. Zero means no limit.
	RequestTimeout time.Duration
}

// A body that nobody reads for this long no longer counts as in flight.
const unreadMax = 5 * time.Second

// RoundTrip sends one request when its turn has come.
func (t *Transport) RoundTrip(request *http.Request) (*http.Response, error) {
	intent := t.Intent
	if intent == "" {
		intent = Fetch
	}
	permit, err := t.Client.Permit(request.Context(), request.URL.String(), WithIntent(intent))
	if err != nil {
		if request.Body != nil {
			request.Body.Close()
		}
		return nil, err
	}
	permit.KeepAlive()
	ctx, cancel := request.Context(), context.CancelFunc(func() {})
	if t.RequestTimeout > 0 {
		ctx, cancel = context.WithTimeout(ctx, t.RequestTimeout)
	}
	ctx = httptrace.WithClientTrace(ctx, &httptrace.ClientTrace{
		WroteRequest: func(httptrace.WroteRequestInfo) { permit.Sent() },
	})
	base := t.Base
	if base == nil {
		base = http.DefaultTransport
	}
	response, err := base.RoundTrip(request.WithContext(ctx))
	if err != nil {
		cancel()
		if outcomeOf(err) == Abandoned && !errors.Is(err, context.Canceled) {
			permit.Failed(NetworkError)
		}
		_, _ = permit.Done(err)
		return nil, err
	}
	permit.Answered(response.StatusCode, response.Header)
	// A failure is recorded at once: everybody has to know.
	if response.StatusCode >= 400 {
		_, _ = permit.Done(nil)
	}
	response.Body = newBody(response.Body, permit, cancel)
	return response, nil
}

// body is a response's body, whose permit ends with it.
type body struct {
	io.ReadCloser
	permit *Permit
	cancel context.CancelFunc
	unread *time.Timer
}

func newBody(inner io.ReadCloser, permit *Permit, cancel context.CancelFunc) io.ReadCloser {
	wrapped := &body{ReadCloser: inner, permit: permit, cancel: cancel}
	wrapped.unread = time.AfterFunc(unreadMax, func() { _, _ = permit.Done(nil) })
	// A connection that was upgraded is written to, too.
	if writer, ok := inner.(io.ReadWriteCloser); ok {
		return struct {
			*body
			io.Writer
		}{wrapped, writer}
	}
	return wrapped
}

func (b *body) Read(into []byte) (int, error) {
	b.unread.Stop()
	n, err := b.ReadCloser.Read(into)
	switch {
	case err == nil:
		b.unread.Reset(unreadMax)
	case err == io.EOF:
		_, _ = b.permit.Done(nil)
	default:
		if outcome := outcomeOf(err); outcome != Abandoned {
			b.permit.Failed(outcome)
		}
		_, _ = b.permit.Done(err)
	}
	return n, err
}

func (b *body) Close() error {
	b.unread.Stop()
	err := b.ReadCloser.Close()
	b.cancel()
	_, _ = b.permit.Done(nil)
	return err
}
