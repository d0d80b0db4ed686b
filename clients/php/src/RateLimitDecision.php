<?php

declare(strict_types=1);

namespace Comity;

final readonly class RateLimitDecision
{
    public function __construct(
        public bool $proceed,
        /** 0 if proceed is true */
        public int $waitMs,
        /** Why waiting. */
        public ?string $reason = null,
    ) {
    }
}
