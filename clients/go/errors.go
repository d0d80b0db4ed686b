package comity

import (
	"context"
	"fmt"
	"time"
)

// UnavailableError means that the service can't be reached, did not answer in time, or answered 503. Retry later.
type UnavailableError struct {
	// Message says what happened, with the address of the service.
	Message string
	// Met is whether a service was there at all: it answered, or the connection broke.
	Met bool
	// RetryAfter is how long to wait before retrying, if the service said so.
	RetryAfter time.Duration
	// Err is the cause, if there is one.
	Err error
}

func (e *UnavailableError) Error() string { return e.Message }
func (e *UnavailableError) Unwrap() error { return e.Err }

// InvalidError means that the service refused the call (4xx), or that the server at this address isn't Comity. Retrying
// the same call doesn't help.
type InvalidError struct {
	// Status is the HTTP status.
	Status int
	// Detail says what is wrong.
	Detail string
	// Field, Value and Allowed are the field that is wrong, its value, and what is allowed.
	Field, Value, Allowed string
}

func (e *InvalidError) Error() string {
	if e.Detail != "" {
		return e.Detail
	}
	return fmt.Sprintf("the service answered HTTP %d", e.Status)
}

// RefusedError means that an operator paused the site. Waiting doesn't help until somebody resumes it.
type RefusedError struct {
	Decision Decision
}

func (e *RefusedError) Error() string { return e.Decision.Domain + ": " + e.Decision.Reason }

// TimedOutError means that the context's deadline passed before a permit was granted. It wraps
// context.DeadlineExceeded.
type TimedOutError struct {
	// Decision says why, and how long it would have taken.
	Decision Decision
}

func (e *TimedOutError) Error() string {
	wait := e.Decision.Wait().Round(100 * time.Millisecond)
	return fmt.Sprintf("%s: timed out waiting for a permit, %s remaining: %s", e.Decision.Domain, wait, e.Decision.Reason)
}
func (e *TimedOutError) Unwrap() error { return context.DeadlineExceeded }

// Timeout makes this a timeout for package net.
func (e *TimedOutError) Timeout() bool { return true }

// Temporary makes this a net.Error.
func (e *TimedOutError) Temporary() bool { return true }
