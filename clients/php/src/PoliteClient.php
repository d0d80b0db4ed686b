<?php

declare(strict_types=1);

namespace Comity;

use Psr\Http\Client\ClientInterface;
use Psr\Http\Message\RequestInterface;
use Psr\Http\Message\ResponseInterface;

/** Decorates a PSR-18 client: it waits its turn before each request, and records the outcome. */
final class PoliteClient implements ClientInterface
{
    /**
     * @param int|null $timeoutMs how long to wait for a permit; by default as long as it takes
     */
    public function __construct(
        private readonly ClientInterface $inner,
        private readonly Client $client = new Client(),
        private readonly Intent $intent = Intent::Fetch,
        private readonly ?int $timeoutMs = null,
    ) {
    }

    public function sendRequest(RequestInterface $request): ResponseInterface
    {
        try {
            $permit = $this->client->permit((string) $request->getUri(), $this->intent, $this->timeoutMs);
        } catch (ComityException $why) {
            throw new NotSent($request, $why);
        }
        try {
            $response = $permit->response($this->inner->sendRequest($request));
        } catch (\Throwable $error) {
            $permit->done($error);
            throw $error;
        }
        $permit->done();
        return $response;
    }
}
