<?php

declare(strict_types=1);

namespace Comity;

/** An error in the communication with the service. A problem with the site itself is an outcome, not an error. */
class ComityException extends \RuntimeException
{
}
