<?php

declare(strict_types=1);

namespace Comity;

/** No permit was granted within the caller's timeout. */
final class TimedOut extends ComityException
{
    public function __construct(public readonly Decision $decision)
    {
        $wait = number_format($decision->waitMs / 1000, 1);
        parent::__construct("$decision->domain: timed out waiting for a permit, $wait s remaining: $decision->reason");
    }
}
