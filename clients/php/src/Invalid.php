<?php

declare(strict_types=1);

namespace Comity;

/** The service refused the call (4xx), or the server at this address isn't Comity. Retrying doesn't help. */
final class Invalid extends ComityException
{
    /** The field that is wrong, its value, and what is allowed. */
    public readonly ?string $field;
    public readonly ?string $value;
    public readonly ?string $allowed;

    /** @param array<string, mixed> $problem */
    public function __construct(public readonly int $status, array $problem)
    {
        parent::__construct($problem['detail'] ?? $problem['title'] ?? "the service answered HTTP $status", $status);
        $this->field = $problem['field'] ?? null;
        $this->value = $problem['value'] ?? null;
        $this->allowed = $problem['allowed'] ?? null;
    }
}
