<?php

declare(strict_types=1);

namespace Comity;

/**
 * @internal All calls with their retries and waits, without I/O: a flow is a generator that yields calls and is sent the
 * replies. So the same code serves the client, which blocks, and the middleware for Guzzle, which doesn't.
 */
final class Protocol
{
    public const BATCH = 1000;
    /** How long one call waits in line before it is repeated, so that a service that vanished is noticed. */
    private const WAIT_PER_CALL = 120_000;
    /** How long a caller in line waits for a service that is away, for example because it restarts. */
    private const OUTAGE_MAX = 30_000;
    private const LEASE_MAX = 600_000;

    /** @return array<string, string> */
    public static function site(string $target): array
    {
        return str_contains($target, '://') ? ['url' => $target] : ['domain' => $target];
    }

    /** @return array<string, mixed> */
    public static function ask(string $target, Intent $intent, ?int $leaseMs): array
    {
        return self::site($target) + ['intent' => $intent->value] + self::lease($leaseMs);
    }

    /** @return array<string, int> */
    public static function lease(?int $leaseMs): array
    {
        return $leaseMs === null ? [] : ['lease_ms' => max(1, min($leaseMs, self::LEASE_MAX))];
    }

    /** @return \Generator<int, Call, Reply, array<string, mixed>> */
    public static function call(Call $call): \Generator
    {
        try {
            $reply = yield $call;
        } catch (Unavailable $broken) {
            // A kept-alive connection may have been closed just as it was used. Retry once.
            if (!$broken->met) {
                throw $broken;
            }
            $reply = yield $call;
        }
        return $reply->read();
    }

    /** @return \Generator<int, Call, Reply, Decision> */
    public static function acquire(
        string $target,
        Intent $intent,
        ?int $leaseMs,
        int $maxWaitMs,
        int $delayMs = 0,
    ): \Generator {
        $body = self::ask($target, $intent, $leaseMs) + ['max_wait_ms' => max(0, $maxWaitMs)];
        $answer = yield from self::call(new Call('/v1/acquire', $body, self::key(), max(0, $maxWaitMs), $delayMs));
        return Decision::read($answer);
    }

    /**
     * Waits until the request may be sent. If the service was never reached, that is an error at once. If it goes away
     * while we are in line, it gets some time to come back.
     *
     * @return \Generator<int, Call, Reply, Decision>
     */
    public static function wait(string $target, Intent $intent, ?int $leaseMs, ?int $timeoutMs): \Generator
    {
        $deadline = $timeoutMs === null ? PHP_INT_MAX : self::now() + $timeoutMs;
        // The first call doesn't wait: if the site is paused, we learn that at once.
        [$maxWait, $pause, $met, $downSince] = [0, 0, false, null];
        while (true) {
            $askedAt = self::now() + $pause;
            $wait = min($maxWait, max(0, $deadline - $askedAt));
            try {
                $decision = yield from self::acquire($target, $intent, $leaseMs, $wait, $pause);
            } catch (Unavailable $away) {
                $met = $met || $away->met;
                $downSince ??= $askedAt;
                $now = self::now();
                if (!$met || $now >= $deadline || $now - $downSince > self::OUTAGE_MAX) {
                    throw $away;
                }
                $pause = max(0, min($away->retryAfterMs ?? 500, self::OUTAGE_MAX, $deadline - $now));
                continue;
            }
            [$met, $downSince, $pause] = [true, null, 0];
            if ($decision->proceed) {
                return $decision;
            }
            if ($decision->refused) {
                throw new Refused($decision);
            }
            $now = self::now();
            if ($now >= $deadline) {
                throw new TimedOut($decision);
            }
            // A service that shuts down, or lets nobody wait in line, answers at once: no busy loop.
            if ($decision->limit === 'stopping' || ($maxWait > 0 && $now - $askedAt < min($wait, 50))) {
                $pause = min(500, $deadline - $now);
            }
            $maxWait = self::WAIT_PER_CALL;
        }
    }

    public static function key(): string
    {
        return bin2hex(random_bytes(16));
    }

    /** Milliseconds of a clock that nobody sets. */
    public static function now(): int
    {
        return intdiv(hrtime(true), 1_000_000);
    }
}
