<?php

declare(strict_types=1);

namespace Comity;

/** What recording an outcome changed. */
final readonly class Recorded
{
    public function __construct(
        /** The site whose pace was updated. */
        public string $domain,
        /** The outcome that was recorded. */
        public string $outcome,
        /** fresh if it counted, late if the request was sent before the latest failure, repeated if it was known. */
        public string $standing,
        /** How long until the next request may be sent. */
        public int $waitMs,
        /** Until when the site is closed because of this (RFC 3339), or null. */
        public ?string $heldUntil,
        /** The new learned delay, or null if it did not change. */
        public ?float $adaptiveDelaySeconds,
    ) {
    }

    /** @param array<string, mixed> $answer */
    public static function read(array $answer): self
    {
        return new self(
            $answer['domain'],
            $answer['outcome'],
            $answer['standing'],
            $answer['wait_ms'],
            $answer['held_until'] ?? null,
            $answer['adaptive_delay_seconds'] ?? null,
        );
    }
}
