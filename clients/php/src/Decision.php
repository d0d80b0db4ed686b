<?php

declare(strict_types=1);

namespace Comity;

/** Whether a request may be sent now, or else how long to wait and why. */
final readonly class Decision
{
    public function __construct(
        /** Whether the request may be sent now. `check` and `acquire` have then reserved the slot. */
        public bool $proceed,
        /** How long to wait before asking again. */
        public int $waitMs,
        /** The reason, as a sentence. */
        public string $reason,
        /** The site whose pace applies: a host, or a group of hosts. */
        public string $domain,
        /** Whether an operator paused the site until further notice. */
        public bool $refused,
        /** How long the call waited in line. */
        public int $waitedMs,
        /** The permit, to record the outcome with; null if nothing was reserved. */
        public ?string $permit,
        /** How long the permit counts as in flight if it is not recorded. */
        public ?int $leaseMs,
        /** What delays the request, in one word such as min_delay. */
        public ?string $limit,
        /** Where that limit comes from, such as rule or server. */
        public ?string $origin,
    ) {
    }

    /** @param array<string, mixed> $answer */
    public static function read(array $answer): self
    {
        return new self(
            $answer['proceed'],
            $answer['wait_ms'],
            $answer['reason'],
            $answer['domain'],
            $answer['refused'] ?? false,
            $answer['waited_ms'] ?? 0,
            $answer['permit'] ?? null,
            $answer['lease_ms'] ?? null,
            $answer['limit'] ?? null,
            $answer['origin'] ?? null,
        );
    }
}
