<?php

declare(strict_types=1);

namespace Comity;

/** A client for the decision service. Keep it: it reuses its connection. */
final class Client
{
    public readonly string $server;
    private readonly ?string $token;
    private ?\CurlHandle $curl = null;

    /**
     * @param string|null $server  the address of the service; by default COMITY_SERVER, or else http://127.0.0.1:7878
     * @param string|null $token   the token, if the service requires one; by default COMITY_TOKEN
     * @param int|null    $leaseMs how long a permit counts as in flight if it isn't recorded. Choose it by how long your
     *                             requests may take; by default a minute, at most ten
     */
    public function __construct(
        ?string $server = null,
        #[\SensitiveParameter] ?string $token = null,
        public readonly ?int $leaseMs = null,
        public readonly int $timeoutMs = 30_000,
    ) {
        $server ??= getenv('COMITY_SERVER') ?: 'http://127.0.0.1:7878';
        $this->server = rtrim(str_contains($server, '://') ? $server : "http://$server", '/');
        $this->token = $token ?? (getenv('COMITY_TOKEN') ?: null);
    }

    /** Asks, and reserves the slot if it is free. Doesn't wait. */
    public function check(string $target, Intent $intent = Intent::Fetch, ?int $leaseMs = null): Decision
    {
        $body = Protocol::ask($target, $intent, $leaseMs ?? $this->leaseMs);
        return Decision::read($this->run(Protocol::call(new Call('/v1/check', $body, Protocol::key()))));
    }

    /** Asks without reserving anything. */
    public function peek(string $target, Intent $intent = Intent::Fetch): Decision
    {
        return Decision::read($this->run(Protocol::call(new Call('/v1/peek', Protocol::ask($target, $intent, null)))));
    }

    /** Waits in line, for at most this long. */
    public function acquire(
        string $target,
        int $maxWaitMs = 30_000,
        Intent $intent = Intent::Fetch,
        ?int $leaseMs = null,
    ): Decision {
        return $this->run(Protocol::acquire($target, $intent, $leaseMs ?? $this->leaseMs, $maxWaitMs));
    }

    /**
     * Reports the outcome of a request: a `permit` (or a `url` or `domain`), and a `status` or an `outcome`.
     *
     * @param array<string, mixed> $report
     */
    public function record(array $report): Recorded
    {
        // A permit is recorded only once, however often it is sent, so it needs no idempotency key.
        $key = isset($report['permit']) ? null : Protocol::key();
        return Recorded::read($this->run(Protocol::call(new Call('/v1/record', $report, $key))));
    }

    /**
     * Asks for many, in order.
     *
     * @param list<string> $targets
     * @return list<Decision>
     */
    public function checkMany(array $targets, Intent $intent = Intent::Fetch, ?int $leaseMs = null): array
    {
        $found = [];
        foreach (array_chunk($targets, Protocol::BATCH) as $chunk) {
            $ask = fn (string $target) => Protocol::ask($target, $intent, $leaseMs ?? $this->leaseMs);
            $body = ['checks' => array_map($ask, $chunk)];
            $answer = $this->run(Protocol::call(new Call('/v1/check/batch', $body, Protocol::key())));
            array_push($found, ...array_map(Decision::read(...), $answer['results']));
        }
        return $found;
    }

    /**
     * Reports many outcomes. Those that can't be recorded at the moment are retried a few times.
     *
     * @param list<array<string, mixed>> $reports
     * @return list<Recorded>
     */
    public function recordMany(array $reports): array
    {
        $recorded = [];
        foreach ([0, 500, 1000, 2000, 4000] as $delay) {
            $open = array_diff_key($reports, $recorded);
            foreach (array_chunk($open, Protocol::BATCH, true) as $chunk) {
                $call = new Call('/v1/record/batch', ['records' => array_values($chunk)], Protocol::key(), 0, $delay);
                $results = $this->run(Protocol::call($call))['results'];
                foreach (array_keys($chunk) as $at => $nth) {
                    if ($results[$at]['standing'] !== 'unheard') {
                        $recorded[$nth] = Recorded::read($results[$at]);
                    }
                }
            }
            if (count($recorded) === count($reports)) {
                ksort($recorded);
                return $recorded;
            }
        }
        $failed = count($reports) - count($recorded);
        throw new Unavailable("$failed of " . count($reports) . ' reports could not be recorded', true);
    }

    /** Gives a permit back: the request was not sent. */
    public function release(Decision $decision): void
    {
        $this->record(['permit' => $decision->permit, 'outcome' => Outcome::Abandoned->value]);
    }

    /** Restarts the lease, for a long request. False if it had already ended. */
    public function renew(Decision $decision, ?int $leaseMs = null): bool
    {
        $body = ['permit' => $decision->permit] + Protocol::lease($leaseMs ?? $this->leaseMs ?? $decision->leaseMs);
        return $this->run(Protocol::call(new Call('/v1/renew', $body)))['renewed'];
    }

    /** Closes a site until this time, for everybody. If the service has tokens, that takes the role admin. */
    public function closeUntil(string $target, \DateTimeInterface $time, Intent $intent = Intent::Fetch): Recorded
    {
        $report = ['intent' => $intent->value, 'status' => 429, 'retry_after' => Permit::secondsUntil($time)];
        return $this->record(Protocol::site($target) + $report);
    }

    /** Waits until the request may be sent. Record its outcome with `done`, or use `withPermit`. */
    public function permit(
        string $target,
        Intent $intent = Intent::Fetch,
        ?int $timeoutMs = null,
        ?int $leaseMs = null,
    ): Permit {
        return new Permit($this, $this->run(Protocol::wait($target, $intent, $leaseMs ?? $this->leaseMs, $timeoutMs)));
    }

    /**
     * Waits for a permit, calls `$send` with it, and records the outcome, also if `$send` throws.
     *
     * @template R
     * @param callable(Permit): R $send
     * @return R
     */
    public function withPermit(
        string $target,
        callable $send,
        Intent $intent = Intent::Fetch,
        ?int $timeoutMs = null,
        ?int $leaseMs = null,
    ): mixed {
        $permit = $this->permit($target, $intent, $timeoutMs, $leaseMs);
        try {
            $result = $send($permit);
        } catch (\Throwable $error) {
            $permit->done($error);
            throw $error;
        }
        $permit->done();
        return $result;
    }

    /** @return array<string, string> the headers of a call */
    public function headers(Call $call): array
    {
        $headers = ['Content-Type' => 'application/json', 'Accept' => 'application/json'];
        if ($this->token !== null) {
            $headers['Authorization'] = "Bearer $this->token";
        }
        return $call->key === null ? $headers : $headers + ['Idempotency-Key' => $call->key];
    }

    /** @internal The error if the service gives no answer. */
    public function unreachable(string $why, bool $met, ?\Throwable $previous = null): Unavailable
    {
        $parts = parse_url($this->server);
        $address = $parts['scheme'] . '://' . ($parts['host'] ?? '') . (isset($parts['port']) ? ":$parts[port]" : '');
        return new Unavailable("$address: the decision service can't be reached: $why", $met, null, $previous);
    }

    private function run(\Generator $flow): mixed
    {
        while ($flow->valid()) {
            try {
                $reply = $this->send($flow->current());
            } catch (Unavailable $away) {
                $flow->throw($away);
                continue;
            }
            $flow->send($reply);
        }
        return $flow->getReturn();
    }

    private function send(Call $call): Reply
    {
        usleep($call->delayMs * 1000);
        $this->curl ??= curl_init();
        $headers = $this->headers($call);
        $retryAfter = null;
        curl_setopt_array($this->curl, [
            CURLOPT_URL => $this->server . $call->path,
            CURLOPT_POSTFIELDS => json_encode($call->body, JSON_THROW_ON_ERROR),
            CURLOPT_HTTPHEADER => array_map(fn ($name) => "$name: $headers[$name]", array_keys($headers)),
            CURLOPT_RETURNTRANSFER => true,
            CURLOPT_PROTOCOLS => CURLPROTO_HTTP | CURLPROTO_HTTPS,
            // The proxy of the environment is for the sites.
            CURLOPT_PROXY => '',
            CURLOPT_NOSIGNAL => true,
            CURLOPT_TIMEOUT_MS => $this->timeoutMs + $call->maxWaitMs,
            CURLOPT_HEADERFUNCTION => function (\CurlHandle $_, string $line) use (&$retryAfter): int {
                if (stripos($line, 'retry-after:') === 0) {
                    $retryAfter = trim(substr($line, 12));
                }
                return strlen($line);
            },
        ]);
        $body = curl_exec($this->curl);
        if ($body === false) {
            $met = curl_getinfo($this->curl, CURLINFO_PRIMARY_PORT) > 0 && curl_errno($this->curl) !== CURLE_COULDNT_CONNECT;
            $error = $this->unreachable(curl_error($this->curl), $met);
            $this->curl = null;
            throw $error;
        }
        return new Reply(curl_getinfo($this->curl, CURLINFO_RESPONSE_CODE), $retryAfter, $body);
    }
}
