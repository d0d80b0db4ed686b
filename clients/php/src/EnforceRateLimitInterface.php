<?php

declare(strict_types=1);

namespace Comity;

/** Manages the pace of requests per domain. Ask before every request, and record its outcome. */
interface EnforceRateLimitInterface
{
    public function check(RateLimitRequest $request): RateLimitDecision;

    public function record(string $domain, RequestOutcome $outcome): void;
}
