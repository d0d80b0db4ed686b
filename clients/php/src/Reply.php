<?php

declare(strict_types=1);

namespace Comity;

/** @internal The response to a call. */
final readonly class Reply
{
    public function __construct(public int $status, public ?string $retryAfter, public string $body)
    {
    }

    /** @return array<string, mixed> */
    public function read(): array
    {
        $answer = json_decode($this->body, true);
        if ($this->status >= 200 && $this->status < 300) {
            if (is_array($answer)) {
                return $answer;
            }
            $detail = 'unexpected response from the server at this address: is it Comity?';
            throw new Invalid($this->status, ['detail' => $detail]);
        }
        $problem = is_array($answer) ? $answer : [];
        // 409: our own call with the same key is still in progress. 408: the request got lost. Both are temporary.
        if ($this->status >= 500 || $this->status === 408 || $this->status === 409) {
            $message = $problem['detail'] ?? $problem['title'] ?? "the service answered HTTP $this->status";
            $pause = is_numeric($this->retryAfter) ? (int) max(0, $this->retryAfter * 1000) : null;
            throw new Unavailable($message, true, $pause);
        }
        throw new Invalid($this->status, $problem);
    }
}
