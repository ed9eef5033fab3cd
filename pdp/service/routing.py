"""Which endpoint answers a request. The paths that are asked for most have no parameters, and are looked up."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Any, Concatenate, Final

from pdp.service.requests import HttpError

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable

    from starlette.requests import Request
    from starlette.responses import Response

    Endpoint = Callable[Concatenate[Request, ...], Awaitable[Response]]

_PARAMETER: Final = re.compile(r"\{(\w+)\}")


class Routes:
    """Endpoints by path and method. A path may have parameters, `/v1/runs/{run_id}/end`, each a part of it.

    An endpoint is called with the request, and with the parameters by their names. `parts`: routes that these begin
    with.
    """

    def __init__(self, *parts: Routes) -> None:
        self.paths: dict[str, dict[str, Endpoint]] = {}
        self._patterns: dict[str, re.Pattern[str]] = {}
        for part in parts:
            for path, methods in part.paths.items():
                for method, endpoint in methods.items():
                    self.at(path, method)(endpoint)

    def at(self, path: str, *methods: str) -> Callable[[Endpoint], Endpoint]:
        """Return what lets an endpoint answer these methods of a path, and returns it."""

        def added(endpoint: Endpoint) -> Endpoint:
            self.paths.setdefault(path, {}).update(dict.fromkeys(methods, endpoint))
            if "{" in path:
                self._patterns[path] = re.compile(_PARAMETER.sub(r"(?P<\1>[^/]+)", path))
            return endpoint

        return added

    def find(self, method: str, path: str) -> tuple[str, Endpoint, dict[str, Any]]:
        """Return the path as it is stated here, its endpoint, and the parameters; HttpError 404 or 405."""
        stated, parameters = path, {}
        if path not in self.paths or path in self._patterns:
            for stated, pattern in self._patterns.items():  # noqa: B007 - the one that breaks the loop
                if match := pattern.fullmatch(path):
                    parameters = match.groupdict()
                    break
            else:
                raise HttpError(404, "Not Found")
        methods = self.paths[stated]
        if method not in methods:
            raise HttpError(405, "Method Not Allowed", headers={"Allow": ", ".join(sorted(methods))})
        return stated, methods[method], parameters
