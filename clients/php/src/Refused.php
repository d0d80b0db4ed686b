<?php

declare(strict_types=1);

namespace Comity;

/** An operator paused the site until further notice. Waiting doesn't help until somebody resumes it. */
final class Refused extends ComityException
{
    public function __construct(public readonly Decision $decision)
    {
        parent::__construct("$decision->domain: $decision->reason");
    }
}
