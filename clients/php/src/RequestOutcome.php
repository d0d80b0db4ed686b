<?php

declare(strict_types=1);

namespace Comity;

enum RequestOutcome: string
{
    case Success = 'success';
    /** 429 */
    case RateLimited = 'rate_limited';
    /** 5xx */
    case ServerError = 'server_error';
    case Timeout = 'timeout';
}
