"""How the log is written: JSON lines on stderr, or coloured ones where a person reads along."""

from __future__ import annotations

import logging
import sys

import structlog


def set_up_logs() -> None:
    """Set up what every `structlog.get_logger` of this process writes to."""
    last: structlog.typing.Processor = structlog.processors.JSONRenderer()
    if sys.stderr.isatty():  # its own kind of traceback shows local variables, and so prompts
        last = structlog.dev.ConsoleRenderer(exception_formatter=structlog.dev.plain_traceback)
    logging.getLogger("aiohttp.server").setLevel(logging.CRITICAL)  # it reports clients that speak no HTTP
    structlog.configure(
        processors=[
            structlog.contextvars.merge_contextvars,
            structlog.processors.add_log_level,
            structlog.processors.TimeStamper(fmt="iso", utc=True),
            *([] if sys.stderr.isatty() else [structlog.processors.format_exc_info]),
            last,
        ],
        wrapper_class=structlog.make_filtering_bound_logger(logging.INFO),
        logger_factory=structlog.PrintLoggerFactory(sys.stderr),
        cache_logger_on_first_use=True,
    )
