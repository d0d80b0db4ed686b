package comity

import (
	"context"
	"crypto/x509"
	"errors"
	"io"
	"net"
	"net/http"
	"os"
	"strings"
	"syscall"
)

// outcomeOf is the outcome of a request that ended with this error, by its kind and never by its text. A cancelled
// request and a bug of the caller are abandoned: nothing is learned from them.
func outcomeOf(err error) Outcome {
	var (
		network   net.Error
		operation *net.OpError
		unknown   x509.UnknownAuthorityError
		invalid   x509.CertificateInvalidError
		name      x509.HostnameError
		own       *UnavailableError
		refused   *RefusedError
		timedOut  *TimedOutError
	)
	switch {
	case err == nil:
		return Success
	case errors.Is(err, context.Canceled), errors.As(err, &own), errors.As(err, &refused), errors.As(err, &timedOut):
		return Abandoned
	case errors.Is(err, context.DeadlineExceeded), errors.Is(err, os.ErrDeadlineExceeded):
		return Timeout
	case errors.As(err, &network) && network.Timeout():
		return Timeout
	case errors.As(err, &operation), errors.Is(err, io.ErrUnexpectedEOF), errors.Is(err, io.EOF),
		errors.Is(err, syscall.ECONNRESET), errors.Is(err, syscall.EPIPE),
		errors.As(err, &unknown), errors.As(err, &invalid), errors.As(err, &name):
		return NetworkError
	}
	return Abandoned
}

// rateLimitHeaders keeps the headers about rate limits and waiting. Cookies and all others never leave the process.
func rateLimitHeaders(headers http.Header) map[string]string {
	kept := map[string]string{}
	for name, values := range headers {
		name = strings.ToLower(name)
		if name == "date" || name == "retry-after" || strings.HasPrefix(name, "ratelimit") || strings.HasPrefix(name, "x-rate") {
			kept[name] = strings.Join(values, ", ")
		}
	}
	return kept
}
