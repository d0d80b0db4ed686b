<?php

declare(strict_types=1);

namespace Comity;

/** @internal One request to the service. */
final readonly class Call
{
    public function __construct(
        public string $path,
        /** @var array<string, mixed> */
        public array $body,
        /** The idempotency key: if the connection breaks, the repeated call doesn't reserve a second slot. */
        public ?string $key = null,
        /** How long the call may wait in line, on top of the client's timeout. */
        public int $maxWaitMs = 0,
        /** How long to wait before the call is made. */
        public int $delayMs = 0,
    ) {
    }
}
