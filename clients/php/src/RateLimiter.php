<?php

declare(strict_types=1);

namespace Comity;

/** `EnforceRateLimitInterface` by the decision service: all processes that ask it share one pace per domain. */
final class RateLimiter implements EnforceRateLimitInterface
{
    /** @var array<string, list<Decision>> what may be sent and was not recorded yet, by the domain that was asked for */
    private array $open = [];

    public function __construct(private readonly Client $client = new Client())
    {
    }

    /** Permits that nobody recorded, because of an exception for example, block nobody. */
    public function __destruct()
    {
        foreach (array_merge(...array_values($this->open)) as $decision) {
            try {
                $this->client->release($decision);
            } catch (ComityException) {
                // The lease ends anyway.
            }
        }
    }

    /** Asks, and reserves the slot if it is free. Doesn't wait. */
    public function check(RateLimitRequest $request): RateLimitDecision
    {
        $intent = Intent::tryFrom($request->requestIntent)
            ?? throw new \ValueError("requestIntent = \"$request->requestIntent\": expected one of fetch, search, api");
        $decision = $this->client->check($request->domain, $intent);
        if (!$decision->proceed) {
            return new RateLimitDecision(false, max(1, $decision->waitMs), $decision->reason);
        }
        $this->open[$request->domain][] = $decision;
        return new RateLimitDecision(true, 0);
    }

    /**
     * Records the outcome of the oldest request to the domain that was not recorded. A request that was sent without
     * asking again, after a wait, is recorded too; if the service has tokens, that takes the role admin.
     *
     * @param string|null $retryAfter the `Retry-After` header of the response, unchanged
     */
    public function record(string $domain, RequestOutcome $outcome, ?string $retryAfter = null): void
    {
        $report = ['outcome' => $outcome->value];
        if ($retryAfter !== null && $retryAfter !== '') {
            $report['retry_after'] = $retryAfter;
        }
        $decision = isset($this->open[$domain]) ? array_shift($this->open[$domain]) : null;
        $report += $decision !== null ? ['permit' => $decision->permit] : Protocol::site($domain);
        $this->client->record($report);
        if (($this->open[$domain] ?? null) === []) {
            unset($this->open[$domain]);
        }
    }
}
