package comity

import (
	"context"
	"errors"
	"time"
)

const (
	// How long one call waits in line before it is repeated, so that a service that vanished is noticed.
	waitPerCall = 2 * time.Minute
	// How long a caller in line waits for a service that is away, for example because it restarts.
	outageMax = 30 * time.Second
)

// Permit waits until the request may be sent, or the context ends. End the permit with Done; or use Do, which also renews
// the lease.
//
// If the service was never reached, that is an error at once. If it goes away while we are in line, it gets some time to
// come back.
func (c *Client) Permit(ctx context.Context, target string, options ...Option) (*Permit, error) {
	var (
		last      *Decision
		maxWait   time.Duration // The first call doesn't wait: if the site is paused, we learn that at once.
		met       bool
		downSince time.Time
	)
	for {
		askedAt := time.Now()
		wait := maxWait
		if deadline, ok := ctx.Deadline(); ok && time.Until(deadline) < wait {
			wait = time.Until(deadline)
			if wait < 0 {
				wait = 0
			}
		}
		decision, err := c.Acquire(ctx, target, wait, options...)
		var away *UnavailableError
		switch {
		case errors.Is(ctx.Err(), context.DeadlineExceeded) && last != nil && (err != nil || !decision.Proceed):
			return nil, &TimedOutError{*last}
		case errors.As(err, &away):
			met = met || away.Met
			if downSince.IsZero() {
				downSince = askedAt
			}
			if !met || time.Since(downSince) > outageMax {
				return nil, err
			}
			pause := 500 * time.Millisecond
			if away.RetryAfter > 0 {
				pause = away.RetryAfter
			}
			if pause > outageMax {
				pause = outageMax
			}
			if pauseFor(ctx, pause) != nil {
				return nil, err
			}
			continue
		case err != nil:
			return nil, err
		}
		met, downSince, last = true, time.Time{}, decision
		switch {
		case decision.Proceed && ctx.Err() != nil:
			// Nobody will send this request any more.
			_, _ = c.PermitOf(*decision).Done(context.Canceled)
			return nil, ctx.Err()
		case decision.Proceed:
			return c.PermitOf(*decision), nil
		case decision.Refused:
			return nil, &RefusedError{*decision}
		}
		// A service that shuts down, or lets nobody wait in line, answers at once: no busy loop.
		atOnce := maxWait > 0 && wait > 50*time.Millisecond && time.Since(askedAt) < 50*time.Millisecond
		if decision.Limit == "stopping" || atOnce {
			if pauseFor(ctx, 500*time.Millisecond) != nil {
				return nil, giveUp(ctx, *decision)
			}
		}
		if ctx.Err() != nil {
			return nil, giveUp(ctx, *decision)
		}
		maxWait = waitPerCall
	}
}

// Do waits for a permit, runs send with it, and records the outcome, also if send fails or panics. What send returns is
// returned. An outcome that can't be recorded is no error: the result of your request is worth more.
func (c *Client) Do(ctx context.Context, target string, send func(*Permit) error, options ...Option) error {
	permit, err := c.Permit(ctx, target, options...)
	if err != nil {
		return err
	}
	permit.KeepAlive()
	// After a panic the outcome is unknown.
	err = errPanicked
	defer func() { _, _ = permit.Done(err) }()
	err = send(permit)
	return err
}

// TryDo is for the workers of a job queue. It asks without waiting. If the site is free, it runs send and records the
// outcome, like Do. Otherwise, or if the site turns out to limit the rate, it returns how long to defer the job.
func (c *Client) TryDo(ctx context.Context, target string, send func(*Permit) error, options ...Option) (time.Duration, error) {
	decision, err := c.Check(ctx, target, options...)
	switch {
	case err != nil:
		return 0, err
	case decision.Refused:
		return 0, &RefusedError{*decision}
	case !decision.Proceed && (decision.Limit == "lease" || decision.Limit == "in_flight") && decision.Wait() > busyMax:
		return busyMax, nil
	case !decision.Proceed:
		return longer(decision.Wait(), time.Millisecond), nil
	}
	permit := c.PermitOf(*decision)
	permit.KeepAlive()
	err = errPanicked
	defer func() { _, _ = permit.Done(err) }()
	err = send(permit)
	recorded, failed := permit.Done(err)
	if failed == nil && recorded.Outcome == RateLimited {
		return longer(recorded.Wait(), time.Millisecond), nil
	}
	return 0, err
}

// How long a job waits at most while the site is busy with another request: how long that takes, nobody knows.
const busyMax = time.Second

func longer(a, b time.Duration) time.Duration {
	if a > b {
		return a
	}
	return b
}

var errPanicked = errors.New("panicked")

func giveUp(ctx context.Context, decision Decision) error {
	if errors.Is(ctx.Err(), context.DeadlineExceeded) {
		return &TimedOutError{decision}
	}
	return ctx.Err()
}

func pauseFor(ctx context.Context, pause time.Duration) error {
	timer := time.NewTimer(pause)
	defer timer.Stop()
	select {
	case <-ctx.Done():
		return ctx.Err()
	case <-timer.C:
		return nil
	}
}
