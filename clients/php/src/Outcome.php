<?php

declare(strict_types=1);

namespace Comity;

/** The outcome of a request. */
enum Outcome: string
{
    case Success = 'success';
    /** Any other 4xx. */
    case Answered = 'answered';
    /** 429. */
    case RateLimited = 'rate_limited';
    /** 403. */
    case Blocked = 'blocked';
    /** 503. */
    case Unavailable = 'unavailable';
    case ServerError = 'server_error';
    case Timeout = 'timeout';
    case NetworkError = 'network_error';
    /** The request was not sent, or given up: nothing is learned from it. */
    case Abandoned = 'abandoned';
}
