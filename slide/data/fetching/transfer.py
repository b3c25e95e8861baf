"""One file over HTTP, by as many connections as are needed.

Google Drive's confirmation pages are read by gdown. `slide.data.fetching.download` says why the
rest of gdown is not used.
"""

import errno
import json
import re
import time
from collections.abc import Iterator
from contextlib import suppress
from itertools import count
from pathlib import Path
from typing import NamedTuple
from urllib.parse import urljoin

import requests
from requests import exceptions

from slide.data.fetching.fetch import FetchError
from slide.data.fetching.unpack import MAX_BYTES, ensure_space
from slide.runtime import VERSION
from slide.utils.progress_bar import ProgressBar

__all__ = ["discard", "transfer"]

RECEIVED_BYTES = 1 << 16  # A cut connection loses fewer bytes than that.
# A transfer ends after so many connections in a row that bring less. PAUSE is in seconds.
TRIES = 4
PAUSE = 1.0
# Seconds to wait for a connection, and for the next bytes.
TIMEOUTS = 10.0, 60.0
# Pages before the file: Google Drive asks whether to download without a virus scan.
MAX_PAGES = 3
PAGE_BYTES = 1 << 20
PAGE_STARTS = (b"<!doctype html", b"<html")
# The server may answer after some seconds.
BUSY = (500, 502, 503, 504)


class _Offer(NamedTuple):
    """What a server says of a file. A partial file is resumed if the server says the same again."""

    total: int | None
    validator: str | None


class _InterruptedTransferError(Exception):
    """The connection failed, and the next one may bring more."""


class _UnreachableServerError(_InterruptedTransferError):
    """There is no connection. It may come back if there was one before."""


def transfer(url: str, path: Path, *, size: int | None = None, hashed: bool = False) -> bool:
    """Fetches a file.

    A partial file at ``path`` is resumed if the server still offers the same file and can send a
    part of it. A note beside it, ``<name>.json``, says what the server offered. After a cut
    connection there is another one, as long as connections bring more bytes. Confirmation pages of
    Google Drive are answered.

    Args:
        url: http or https.
        path: where to write. After an error the file is incomplete.
        size: expected length in bytes, if known.
        hashed: the caller compares the file with a hash. Then a complete file of an earlier call is
            taken as it is; else only if the server still offers that file.

    Returns:
        Whether the file was put together from several connections.

    Raises:
        FetchError: the file cannot be fetched, or it is another file; the message says why.
        OSError: the disk is full, or the like.
    """
    most = _length(path)
    resumed, failures = most > 0, 0
    with requests.Session() as session:
        session.headers.update({"User-Agent": f"slide/{VERSION}", "Accept-Encoding": "identity"})
        for attempt in count():
            try:
                _try(session, url, path, size, hashed)
                break
            except _InterruptedTransferError as error:
                length = _length(path)
                failures = 0 if length >= most + RECEIVED_BYTES else failures + 1
                most = max(most, length)
                never_there = attempt == 0 and isinstance(error, _UnreachableServerError)
                if failures == TRIES or never_there:
                    raise FetchError(str(error)) from error
            resumed = True
            time.sleep(PAUSE * failures)
    return resumed


def discard(path: Path) -> None:
    """Removes what `transfer` wrote."""
    path.unlink(missing_ok=True)
    _note(path).unlink(missing_ok=True)


def _try(session: requests.Session, url: str, path: Path, size: int | None, hashed: bool) -> None:
    noted, kept = _read_note(path), _length(path)
    complete = noted is not None and noted.total == kept and size in (None, kept)
    if complete and hashed:
        return
    response = _open_file(session, url)
    try:
        offer = _offer(response)
        if size is not None and offer.total not in (None, size):
            raise FetchError(f"has {offer.total} bytes, not {size}")
        if complete and _is_same(offer, noted):
            return
        if complete or offer != noted or offer.total is None:
            kept = 0
        if kept:
            response.close()
            response = _open_rest(session, response.url, kept, offer)
            if response.status_code != requests.codes.partial:
                kept, offer = 0, _offer(response)
        total = _write_body(response, path, kept, offer)
    finally:
        response.close()
    if size not in (None, total):
        discard(path)
        raise FetchError(f"has {total} bytes, not {size}")
    _write_note(path, offer._replace(total=total))


def _open_file(session: requests.Session, url: str) -> requests.Response:
    """Returns the answer that holds the file."""
    for _ in range(MAX_PAGES):
        response = _get(session, url, {})
        attached = "attachment" in response.headers.get("Content-Disposition", "")
        if attached or not response.headers.get("Content-Type", "").startswith("text/html"):
            return response
        with response:
            url = urljoin(response.url, _next_url(next(_body_chunks(response, PAGE_BYTES), b"")))
    raise FetchError("answers one page after the other instead of the file")


def _open_rest(session: requests.Session, url: str, start: int, offer: _Offer) -> requests.Response:
    """Returns the answer with the bytes from ``start`` on, or with all bytes."""
    headers = {"Range": f"bytes={start}-"}
    if offer.validator is not None:
        headers["If-Range"] = offer.validator
    response = _get(session, url, headers)
    expected = f"bytes {start}-{(offer.total or 0) - 1}/{offer.total}"
    partial = response.status_code == requests.codes.partial
    if partial and response.headers.get("Content-Range") == expected:
        return response
    response.close()  # The server sends no parts, or the file has changed.
    return _open_file(session, url)


def _get(session: requests.Session, url: str, headers: dict[str, str]) -> requests.Response:
    try:
        response = session.get(url, headers=headers, stream=True, timeout=TIMEOUTS)
    except (exceptions.SSLError, exceptions.ProxyError) as error:
        raise FetchError(_reason(error)) from error
    except (exceptions.ConnectionError, exceptions.Timeout) as error:
        raise _UnreachableServerError(_reason(error)) from error
    except (exceptions.RequestException, ValueError) as error:  # ValueError: a malformed address.
        raise FetchError(_reason(error)) from error
    none_left = response.status_code == requests.codes.requested_range_not_satisfiable
    if not response.ok and not (none_left and "Range" in headers):
        response.close()
        said = f"answers {response.status_code} {response.reason}"
        if response.status_code in BUSY:
            raise _InterruptedTransferError(said)
        raise FetchError(said)
    return response


def _next_url(page: bytes) -> str:
    """Returns the address of the file, if a page names one."""
    # Imported here: it takes long, and few addresses need it.
    from gdown.download import get_url_from_gdrive_confirmation
    from gdown.exceptions import FileURLRetrievalError

    text = page.decode("utf-8", "replace")
    try:
        return get_url_from_gdrive_confirmation(text)
    except FileURLRetrievalError as error:
        raise FetchError(_page_instead(text)) from error


def _page_instead(text: str) -> str:
    title = re.search(r"<title[^>]*>(.*?)</title>", text, re.DOTALL | re.IGNORECASE)
    named = f" ('{' '.join(title[1].split())[:80]}')" if title else ""
    return f"answers a web page{named} instead of the file"


def _write_body(response: requests.Response, path: Path, start: int, offer: _Offer) -> int:
    """Appends an answer to the first ``start`` bytes; returns the length of the file."""
    if offer.total is not None:
        if offer.total > MAX_BYTES:
            raise FetchError(f"has {offer.total} bytes, more than {MAX_BYTES}")
        ensure_space(path.parent, offer.total - start, "the file")
    bar = ProgressBar(
        total=offer.total,
        initial=start,
        unit="B",
        unit_scale=True,
        desc=response.url.partition("?")[0].rpartition("/")[2],
    )
    length = start
    try:
        with bar, path.open("ab") as file:
            file.truncate(start)
            _write_note(path, offer)
            for chunk in _body_chunks(response, RECEIVED_BYTES):
                if length == 0 and chunk.lstrip()[:16].lower().startswith(PAGE_STARTS):
                    raise FetchError(_page_instead(chunk.decode("utf-8", "replace")))
                length += len(chunk)
                if length > MAX_BYTES:
                    raise FetchError(f"has more than {MAX_BYTES} bytes")
                file.write(chunk)
                bar.update(len(chunk))
    except OSError as error:
        if error.errno in (errno.ENOSPC, errno.EDQUOT):
            message = f"no space left after {length} bytes, which the next call goes on with"
            raise OSError(error.errno, message, str(path)) from error
        raise
    if offer.total is not None and length != offer.total:
        if length > offer.total:
            discard(path)
        raise _InterruptedTransferError(f"sends {length} of {offer.total} bytes")
    return length


def _body_chunks(response: requests.Response, size: int) -> Iterator[bytes]:
    try:
        yield from response.iter_content(size)
    except exceptions.RequestException as error:
        raise _InterruptedTransferError(_reason(error)) from error


def _offer(response: requests.Response) -> _Offer:
    headers = response.headers
    # The length of an encoded answer is not the length of the file.
    plain = headers.get("Content-Encoding", "identity") == "identity"
    length = headers.get("Content-Length", "")
    strong = not headers.get("ETag", "W/").startswith("W/")
    return _Offer(
        int(length) if plain and length.isdigit() else None,
        headers["ETag"] if strong else headers.get("Last-Modified"),
    )


def _is_same(offer: _Offer, noted: _Offer | None) -> bool:
    """Whether an offer is that of a complete file; without a validator nobody can tell."""
    if noted is None or offer.validator is None or offer.validator != noted.validator:
        return False
    return offer.total in (None, noted.total)


def _reason(error: Exception) -> str:
    """Says why a connection failed, in a few words."""
    if isinstance(error, exceptions.ConnectTimeout):
        return f"no connection within {TIMEOUTS[0]:g} s"
    if isinstance(error, exceptions.ReadTimeout) or "Read timed out" in str(error):
        return f"no answer for {TIMEOUTS[1]:g} s"
    if isinstance(error, exceptions.ChunkedEncodingError):
        return "the connection was cut"
    inner = error.args[0] if error.args else error
    inner = getattr(inner, "reason", inner)  # In urllib3's MaxRetryError.
    return re.sub(r"^(<[^>]*>|\w+\(host=[^)]*\)): ", "", str(inner))  # Without the object's name.


def _length(path: Path) -> int:
    return path.stat().st_size if path.exists() else 0


def _note(path: Path) -> Path:
    return path.with_name(path.name + ".json")


def _read_note(path: Path) -> _Offer | None:
    with suppress(OSError, ValueError, TypeError):
        return _Offer(**json.loads(_note(path).read_text()))
    return None


def _write_note(path: Path, offer: _Offer) -> None:
    _note(path).write_text(json.dumps(offer._asdict()))
