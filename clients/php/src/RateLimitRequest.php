<?php

declare(strict_types=1);

namespace Comity;

final readonly class RateLimitRequest
{
    public function __construct(
        public string $domain,
        /** fetch, search or api */
        public string $requestIntent,
    ) {
    }
}
