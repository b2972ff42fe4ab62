"""What is the address of a server: one that every library on the way to it can take."""

from __future__ import annotations

from urllib.parse import urlsplit

import httpx


def check_address(url: str) -> None:
    """Raise `ValueError` unless `url` is http or https, with a host that can be looked up, and has no secrets."""
    parts = urlsplit(url)
    if parts.scheme not in ("http", "https") or not parts.hostname or parts.query or parts.fragment:
        raise ValueError("not an address")
    if parts.username is not None or parts.port == 0:  # asking for the port raises when it is no number
        raise ValueError("a token in an address is for everyone to read")
    try:
        found = httpx.URL(url)
    except httpx.InvalidURL as error:
        raise ValueError(str(error)) from None
    _ = found.host  # which httpx reads back from the form it sends: a bare "xn--" raises
    found.raw_host.decode("ascii").encode("idna")  # as the socket does: an empty or too long label raises
