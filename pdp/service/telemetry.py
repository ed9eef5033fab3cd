"""Metrics, logs with request ids, traces that continue the caller's."""

from __future__ import annotations

import logging
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any, Final

import orjson

if TYPE_CHECKING:
    from pdp.service.settings import ServiceSettings

_PLAIN: Final = frozenset(vars(logging.makeLogRecord({})))


class JsonLines(logging.Formatter):
    """One line of JSON for each record: time, level, logger, message, what was given as `extra`, and an error."""

    def format(self, record: logging.LogRecord) -> str:
        """Return the line."""
        line: dict[str, Any] = {
            "time": datetime.fromtimestamp(record.created, UTC).isoformat(timespec="milliseconds"),
            "level": record.levelname.lower(),
            "logger": record.name,
            "message": record.getMessage(),
            **{name: value for name, value in vars(record).items() if name not in _PLAIN and name != "color_message"},
        }
        if record.exc_info:
            line["error"] = self.formatException(record.exc_info)
        return orjson.dumps(line, default=str).decode(errors="replace")


def log_config(settings: ServiceSettings) -> dict[str, Any]:
    """Return the configuration of logging for one process, as of `logging.config`."""
    level = settings.log_level.upper()
    return {
        "version": 1,
        "disable_existing_loggers": False,
        "formatters": {
            "json": {"()": JsonLines},
            "text": {"format": "%(asctime)s %(levelname)s %(name)s: %(message)s"},
        },
        "handlers": {"err": {"class": "logging.StreamHandler", "formatter": settings.log_format}},
        "loggers": {name: {"handlers": ["err"], "level": level, "propagate": False} for name in ("pdp", "uvicorn")},
    }
