<?php

declare(strict_types=1);

namespace Comity;

use GuzzleHttp\Exception\ConnectException;
use Psr\Http\Client\NetworkExceptionInterface;
use Psr\Http\Message\ResponseInterface;

/** The right to send one request, now. Report the response, and call `done`. */
final class Permit
{
    private readonly int $grantedAt;
    private int $renewedAt;
    private ?int $sentAt = null;
    private ?int $resultAt = null;
    /** @var array<string, mixed>|null */
    private ?array $result = null;
    private bool $done = false;
    private ?Recorded $recorded = null;

    public function __construct(private readonly Client $client, public readonly Decision $decision)
    {
        $this->grantedAt = $this->renewedAt = Protocol::now();
    }

    /** A permit that was forgotten blocks nobody. */
    public function __destruct()
    {
        $this->done(new \LogicException('the permit was never recorded'));
    }

    /** Reports that the request was written this long ago: the pace then counts from there. */
    public function sent(int $agoMs = 0): void
    {
        $this->sentAt = max($this->grantedAt, Protocol::now() - $agoMs);
    }

    /** Reports the response. Returns it, so that you can wrap the call that fetches. */
    public function response(ResponseInterface $response): ResponseInterface
    {
        $this->answered($response->getStatusCode(), $response->getHeaders());
        return $response;
    }

    /**
     * Reports a response by its status and headers. Only headers about rate limits and waiting leave the process.
     *
     * @param array<string, string|list<string>> $headers
     */
    public function answered(int $status, array $headers = []): void
    {
        $kept = [];
        foreach ($headers as $name => $value) {
            $name = strtolower((string) $name);
            if (preg_match('/^(date$|retry-after$|ratelimit|x-rate)/', $name)) {
                $kept[$name] = implode(', ', (array) $value);
            }
        }
        // No server can send another status, so it was made up by whoever called.
        $known = $status >= 100 && $status <= 999;
        $this->report($known ? ['status' => $status] + ($kept ? ['headers' => $kept] : []) : ['outcome' => 'server_error']);
    }

    /** Reports an outcome; for an API that says in its body that it is rate limited, for example. */
    public function outcome(Outcome $outcome): void
    {
        $this->report(['outcome' => $outcome->value]);
    }

    /** Reports that the site is closed until this time: nobody sends it a request before. */
    public function closeUntil(\DateTimeInterface $time): void
    {
        $this->report(['status' => 429, 'retry_after' => self::secondsUntil($time)]);
    }

    /** Restarts the lease if half of it is over. Call it now and then during a long request. */
    public function keep(): void
    {
        $lease = $this->decision->leaseMs ?? 60_000;
        if (!$this->done && Protocol::now() - $this->renewedAt > $lease / 2) {
            $this->renewedAt = Protocol::now();
            try {
                $this->client->renew($this->decision, $lease);
            } catch (ComityException) {
                // The next one may work, and the permit can be recorded in any case.
            }
        }
    }

    /**
     * Records the outcome: what was reported; or else what the error means, or a success without one. Never throws: if
     * the service is away, the result of your request is worth more than the report about it. Only the first call counts.
     */
    public function done(?\Throwable $error = null): ?Recorded
    {
        if ($this->done || $this->decision->permit === null) {
            return $this->recorded;
        }
        $this->done = true;
        try {
            $this->recorded = $this->client->record($this->toReport($error));
        } catch (ComityException $failure) {
            trigger_error("could not record the outcome of a request: {$failure->getMessage()}", E_USER_WARNING);
        }
        return $this->recorded;
    }

    /** @internal A `Retry-After`: whole seconds, never too few. */
    public static function secondsUntil(\DateTimeInterface $time): string
    {
        return (string) max(0, (int) ceil((float) $time->format('U.u') - microtime(true)));
    }

    /** @return array<string, mixed> what `done` records */
    private function toReport(?\Throwable $error): array
    {
        $result = $this->result ?? ['outcome' => ($error === null ? Outcome::Success : self::outcomeOf($error))->value];
        // Without better knowledge, a success counts from its response, since a connection may have been opened first.
        // But a failure must not look more recent than it is.
        $success = ($result['status'] ?? 999) < 400 || ($result['outcome'] ?? null) === 'success';
        $started = $this->sentAt ?? ($success ? $this->resultAt ?? Protocol::now() : $this->grantedAt);
        return $result + ['permit' => $this->decision->permit, 'latency_ms' => Protocol::now() - $started];
    }

    /** The outcome of a request that ended with this exception, by its class and never by its text. */
    private static function outcomeOf(\Throwable $error): Outcome
    {
        if ($error instanceof ComityException) {
            return Outcome::Abandoned;
        }
        if ($error instanceof NetworkExceptionInterface || $error instanceof ConnectException) {
            $context = method_exists($error, 'getHandlerContext') ? $error->getHandlerContext() : [];
            // CURLE_OPERATION_TIMEDOUT
            return ($context['errno'] ?? null) === 28 ? Outcome::Timeout : Outcome::NetworkError;
        }
        // Guzzle's for a response that broke off. One with a response is reported by `response`.
        if (is_a($error, 'GuzzleHttp\Exception\RequestException') && $error->getResponse() === null) {
            $errno = $error->getHandlerContext()['errno'] ?? null;
            return match ($errno) { null => Outcome::Abandoned, 28 => Outcome::Timeout, default => Outcome::NetworkError };
        }
        return Outcome::Abandoned;
    }

    /** @param array<string, mixed> $result */
    private function report(array $result): void
    {
        $this->result = $result;
        $this->resultAt = Protocol::now();
    }
}
