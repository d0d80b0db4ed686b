<?php

declare(strict_types=1);

namespace Comity;

/** The service can't be reached, did not answer in time, or answered 503. Retry later. */
final class Unavailable extends ComityException
{
    public function __construct(
        string $message,
        /** Whether a service was there at all: it answered, or the connection broke. */
        public readonly bool $met,
        /** How long to wait before retrying, if the service said so. */
        public readonly ?int $retryAfterMs = null,
        ?\Throwable $previous = null,
    ) {
        parent::__construct($message, 0, $previous);
    }
}
