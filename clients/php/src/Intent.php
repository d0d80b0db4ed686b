<?php

declare(strict_types=1);

namespace Comity;

/** What a request is for. Rules can set separate limits for each. */
enum Intent: string
{
    case Fetch = 'fetch';
    case Search = 'search';
    case Api = 'api';
}
