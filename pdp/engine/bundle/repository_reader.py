"""Reading a bundle repository, as a folder or over HTTP: the index when it has changed, and a bundle that it pins."""

from __future__ import annotations

import os
import ssl
import time
from abc import ABC, abstractmethod
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final
from urllib.parse import urlsplit

from pdp.engine.bundle.file import MAX_BUNDLE
from pdp.engine.bundle.repository_index import INDEX, MAX_INDEX, Channel, Index, Published, parse_index
from pdp.engine.seconds import check_seconds
from pdp.errors import BundleError, EngineError, UsageError
from pdp.json import digest

if TYPE_CHECKING:
    from collections.abc import Mapping

TIMEOUT: Final = 30.0
"""Default time for one file over HTTP, in seconds."""

_CHUNK: Final = 256 * 1024
_NOT_MODIFIED: Final = 304
_CHECK: Final = "check the address, and that it is served"
_LONGEST: Final = 3600.0
_SHOWN: Final = 200


class RepositoryReader(ABC):
    """A repository that is read and never written. Not to be shared between threads."""

    name: str
    """Where it is, for messages."""

    def __init__(self) -> None:
        self._index: Index | None = None

    def index(self) -> Index:
        """Return the index as it is now. It is read again only where it has changed.

        Raises:
            EngineError: the repository cannot be reached.
            BundleError: what is there is no index.
        """
        content = self._changed()
        if content is not None or self._index is None:
            try:
                self._index = parse_index(content or b"", f"{self.name}/{INDEX}")
            except BundleError:
                # Else the next look would find it unchanged, and take the one before for it.
                self._forget()
                raise
        return self._index

    def current(self, channel: Channel) -> Published:
        """Return what a channel decides by.

        Raises:
            EngineError, BundleError: as of `index`; also when nothing was published there.
        """
        found = self.index().current(channel)
        if found is None:
            raise BundleError(
                f"{self.name}: nothing was published in the channel {channel}", hint="publish there: pdp bundle publish"
            )
        return found

    def fetch(self, published: Published) -> bytes:
        """Return the file of a bundle, which is exactly the one that the index pins.

        Raises:
            EngineError: the repository cannot be reached, or answered with something else: a transfer that was cut.
        """
        content = self._file(published.path)
        if digest(content) != published.digest:
            raise EngineError(
                f"{self.name}/{published.path}: not the file that the index names, or a part of it",
                hint="it is asked for again; if it stays so, the repository was changed by hand",
            )
        return content

    @abstractmethod
    def _changed(self) -> bytes | None:
        """Return the index's bytes, or None if they are those of the last time."""

    @abstractmethod
    def _forget(self) -> None:
        """Return the whole index the next time."""

    @abstractmethod
    def _file(self, path: str) -> bytes:
        """Return a file of the repository."""


class FolderReader(RepositoryReader):
    """A repository that is a folder."""

    def __init__(self, folder: Path) -> None:
        super().__init__()
        self.name = str(folder)
        self._folder = folder
        self._seen: tuple[int, int, int] | None = None

    def _changed(self) -> bytes | None:
        path = self._folder / INDEX
        try:
            with path.open("rb") as file:
                found = os.fstat(file.fileno())
                seen = (found.st_ino, found.st_size, found.st_mtime_ns)
                if seen == self._seen:
                    return None
                content = file.read(MAX_INDEX + 1)
        except OSError as error:
            raise EngineError(
                f"{path}: cannot be read: {error.strerror}", hint="name a repository made by `pdp bundle publish`"
            ) from error
        if len(content) > MAX_INDEX:
            raise BundleError(f"{path}: larger than {MAX_INDEX} bytes", hint="is this a bundle repository?")
        self._seen = seen
        return content

    def _forget(self) -> None:
        self._seen = None

    def _file(self, path: str) -> bytes:
        file = self._folder / path
        try:
            with file.open("rb") as opened:
                return opened.read(MAX_BUNDLE + 1)
        except OSError as error:
            raise EngineError(
                f"{file}: cannot be read: {error.strerror}", hint="restore it from a copy of the repository"
            ) from error


class HttpReader(RepositoryReader):
    """A repository served as static files over HTTP. The index is asked for with its ETag.

    Args:
        url: `http://HOST/PATH` or `https://HOST/PATH` of the folder.
        timeout: seconds for one file, from the first to the last byte.
        ca_file: certificates (PEM) to trust for `https` instead of the system's.
        headers: sent along, such as `Authorization`. Shown nowhere.

    Raises:
        UsageError: an argument that cannot be used.
    """

    def __init__(
        self,
        url: str,
        *,
        timeout: float = TIMEOUT,
        ca_file: Path | None = None,
        headers: Mapping[str, str] | None = None,
    ) -> None:
        super().__init__()
        check_seconds("timeout", timeout, most=_LONGEST)
        scheme = _scheme(url)
        try:
            context = ssl.create_default_context(cafile=ca_file) if scheme == "https" else None
        except OSError as error:
            raise UsageError(f"{ca_file}: no certificates in PEM form: {error.strerror}") from error
        self.name = url.rstrip("/")
        self._timeout = timeout
        self._headers = {"Accept-Encoding": "identity", **(headers or {})}
        self._tag: str | None = None
        self._opener = _opener(context)

    def _changed(self) -> bytes | None:
        headers = {} if self._tag is None else {"If-None-Match": self._tag}
        content, self._tag = self._get(INDEX, MAX_INDEX, {**headers, "Cache-Control": "no-cache"})
        return content

    def _forget(self) -> None:
        self._tag = None

    def _file(self, path: str) -> bytes:
        return self._get(path, MAX_BUNDLE, {})[0] or b""

    def _get(self, path: str, most: int, headers: Mapping[str, str]) -> tuple[bytes | None, str | None]:
        """Return a file and its ETag; no file where the server says that it has not changed."""
        from http.client import HTTPException  # noqa: PLC0415 - only who reads over HTTP pays for it
        from urllib.error import HTTPError  # noqa: PLC0415
        from urllib.request import Request  # noqa: PLC0415

        url = f"{self.name}/{path}"
        deadline = time.monotonic() + self._timeout
        request = Request(url, headers={**self._headers, **headers})  # noqa: S310 - http and https alone, see above
        try:
            with self._opener.open(request, timeout=self._timeout) as response:
                return self._body(response, url, most, deadline), response.headers.get("ETag")
        except HTTPError as error:
            with error:
                if error.code == _NOT_MODIFIED and "If-None-Match" in headers:
                    return None, headers["If-None-Match"]
            raise EngineError(f"{url}: the server answers {error.code}", hint=_CHECK) from error
        except TimeoutError as error:
            raise EngineError(f"{url}: no whole answer within {self._timeout:g} s", hint=_CHECK) from error
        except (OSError, HTTPException) as error:
            cause = getattr(error, "reason", error)
            if isinstance(cause, TimeoutError):
                raise EngineError(f"{url}: no whole answer within {self._timeout:g} s", hint=_CHECK) from error
            raise EngineError(f"{url}: cannot be had: {_said(cause)}", hint=_CHECK) from error
        except ValueError:
            # Without its text and cause, which may quote a header.
            raise UsageError(
                f"{url}: cannot be asked for", hint="check the address, the headers and the environment's proxy"
            ) from None

    def _body(self, response: Any, url: str, most: int, deadline: float) -> bytes:
        body = bytearray()
        # Piece by piece, as a server that sends a byte now and then would never exceed the socket's time-out.
        while piece := response.read1(_CHUNK):
            body += piece
            if len(body) > most:
                raise EngineError(f"{url}: larger than {most} bytes", hint="is this a bundle repository?")
            if time.monotonic() > deadline:
                raise TimeoutError
        length = response.headers.get("Content-Length")
        if length is not None and length != str(len(body)):
            raise EngineError(f"{url}: cut off after {len(body)} of {length:.20} bytes", hint="it is asked for again")
        return bytes(body)


def open_repository(
    where: str | Path,
    *,
    timeout: float = TIMEOUT,
    ca_file: Path | None = None,
    headers: Mapping[str, str] | None = None,
) -> RepositoryReader:
    """Return a reader for a folder or a URL; the other arguments and errors are those of `HttpReader`."""
    if isinstance(where, str) and "://" in where:
        return HttpReader(where, timeout=timeout, ca_file=ca_file, headers=headers)
    return FolderReader(Path(where))


def _scheme(url: str) -> str:
    """Return the scheme of a repository's address, once all of it can be used."""
    try:
        parts = urlsplit(url)
        named = parts.scheme in {"http", "https"} and parts.hostname and not parts.query and not parts.fragment
        # What is read lazily, or only by whoever opens a connection: the port, and a name that DNS can have.
        usable = named and parts.port != 0 and (parts.hostname or "").encode("idna")
        secret = parts.username is not None or parts.password is not None
    except ValueError:
        usable, secret = False, "@" in url
    if secret:
        raise UsageError("a repository's address holds a password", hint="give it as a header: Authorization")
    # `urlsplit` leaves line breaks out, as if they were not there.
    if not usable or not parts.path.isascii() or not url.isprintable() or " " in url:
        raise UsageError(f"{_printable(url)}: not the address of a repository", hint="such as https://HOST/bundles")
    return parts.scheme


def _opener(context: ssl.SSLContext | None) -> Any:
    from urllib import request  # noqa: PLC0415 - only who reads over HTTP pays for it

    # No redirections, files or FTP: a repository is where the operator says. The environment's proxies apply.
    opener = request.OpenerDirector()
    handlers: list[request.BaseHandler] = [
        request.ProxyHandler(),
        request.HTTPHandler(),
        request.HTTPSHandler(context=context),
        request.HTTPDefaultErrorHandler(),
        request.HTTPErrorProcessor(),
    ]
    for handler in handlers:
        opener.add_handler(handler)
    return opener


def _said(cause: Any) -> str:
    text = getattr(cause, "strerror", None) or str(cause) or type(cause).__name__
    return _printable(str(text))


def _printable(text: str) -> str:
    return "".join(letter if letter.isprintable() else "?" for letter in text[:_SHOWN])
