<?php

declare(strict_types=1);

namespace Comity;

use Psr\Http\Client\NetworkExceptionInterface;
use Psr\Http\Message\RequestInterface;

/** No permit was granted, so the request was not sent. The previous exception says why. */
final class NotSent extends ComityException implements NetworkExceptionInterface
{
    public function __construct(private readonly RequestInterface $request, ComityException $why)
    {
        parent::__construct($why->getMessage(), 0, $why);
    }

    public function getRequest(): RequestInterface
    {
        return $this->request;
    }
}
