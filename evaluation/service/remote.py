"""Has submissions scored by a server: uploads what it lacks, posts, waits, and writes what in-process scoring would."""

from __future__ import annotations

import hashlib
import logging
import math
import re
import time
from collections.abc import Callable
from pathlib import Path
from types import TracebackType
from typing import Any, TypeVar

import httpx
from pydantic import BaseModel, ValidationError

from evaluation.curves import write_curves
from evaluation.results import write_results
from evaluation.runs import RECORD, Run, read_record
from evaluation.service import wire
from evaluation.service.access import TOKEN, TOKEN_FILE
from evaluation.service.address import check_address
from evaluation.service.answers import BlobNames, Posted, Scored
from evaluation.service.formats import TABLE, table_bytes
from evaluation.service.wire import Blob, Bundle, Encoder
from evaluation.submission import Submission
from partitions.errors import BadInput, RunFailed

PATIENCE = 120.0
"""Seconds for which a server may stay away before the run ends."""
FIRST_PATIENCE = 10.0
"""The same at the start, when the address may be wrong and nothing is lost yet."""
FIRST_PAUSE, LONGEST_PAUSE = 0.2, 5.0
"""Seconds between two tries: twice as long each time."""
WAIT = 20.0
"""Seconds for which the server is asked to hold an answer back until a submission is scored."""
TIMEOUT = httpx.Timeout(30.0, read=120.0, write=120.0)
TRIES = 3
"""How often what the server lacks is uploaded before a bundle is posted."""
RESUME = "the same command goes on from the cache"

log = logging.getLogger("lethe.evaluator")
Answer = TypeVar("Answer", bound=BaseModel)


class Remote:
    """An evaluator behind HTTP (`evaluation.evaluator.Evaluator`).

    Parameters
    ----------
    url : str
        Of the server, such as ``http://127.0.0.1:8799``.
    run_folder : Path
        Of the run; its ``run.json`` names the run to the server.
    token : str
        Empty: none is sent.
    on_progress : callable, optional
        Gets a line when something happens that is worth telling.
    patience : float
        Seconds for which connection errors and answers of 500 and above are tried again.
    client : httpx.Client, optional
        To be used instead of one of its own; its base URL is the server's.

    Raises
    ------
    BadInput
        When the server does not take this token or these bundles.
    RunFailed
        When it does not answer.
    """

    def __init__(
        self,
        url: str,
        run_folder: Path,
        *,
        token: str = "",
        on_progress: Callable[[str], None] = lambda text: None,
        patience: float = PATIENCE,
        client: httpx.Client | None = None,
    ) -> None:
        self.url, self._run_folder, self._tell, self._patience = url.rstrip("/"), run_folder, on_progress, patience
        try:
            check_address(self.url)
        except ValueError:
            allowed = "an address such as http://127.0.0.1:8799, without user and password"
            raise BadInput("evaluator", self.url, allowed) from None
        headers = {"Authorization": f"Bearer {token}"} if token else {}
        # a proxy of the environment must not see weights
        self._client = client or httpx.Client(base_url=self.url, headers=headers, timeout=TIMEOUT, trust_env=False)
        self._encoder, self._sent = Encoder(), set[str]()
        self._ids: dict[str, str] = {}
        self.run = ""
        self._check()

    def __enter__(self) -> Remote:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        self.close()

    def close(self) -> None:
        """Close the connections."""
        self._client.close()

    def submit(self, submission: Submission) -> None:
        """Upload what the server lacks and post; it is scored while the run goes on."""
        bundle, blobs = self._encoder.encode(submission)
        if not self.run:
            self._put_run()
        for left in reversed(range(TRIES)):
            self._upload(blobs)
            reply = self._ask("POST", "/api/submissions", json={"run": self.run, "bundle": bundle.model_dump()})
            if reply.status_code < 300:
                break
            lacks = reply.status_code == 422 and "a blob that the server has" in reply.text
            if not lacks or not left:
                raise self._refused(reply, f"{submission.model.method} {submission.model.checkpoint}")
            self._sent.clear()  # its store was emptied meanwhile
        id = self._read(Posted, reply).id
        if id != bundle.id:
            raise RunFailed(
                f"evaluator {self.url}: it read another bundle than was sent; use the same Lethe at both ends"
            )
        self._ids.pop(id, None)
        self._ids[id] = _name(bundle)

    def finish(self) -> None:
        """Wait for every submission and write its rows; raises `RunFailed` when one failed."""
        for number, (id, name) in enumerate(list(self._ids.items()), start=1):
            scored = self._wait(id, name, f"{number} of {len(self._ids)}")
            write_results(self._run_folder, [_numbers(row.model_dump()) for row in scored.rows])
            write_curves(self._run_folder, [_numbers(row.model_dump()) for row in scored.curves])
        if self._ids:
            self._put_run()
            self._tell(f"{len(self._ids)} models scored at {self.url}, run {self.run}")
        self._ids.clear()

    # ------------------------------------------------------------------ what is asked
    def _check(self) -> None:
        reply = self._ask("GET", "/api/health", patience=min(self._patience, FIRST_PATIENCE))
        try:
            version = reply.json()["bundle_version"] if reply.status_code == 200 else None
        except (ValueError, KeyError, TypeError, RecursionError):
            version = None
        if reply.status_code in (401, 403):
            raise self._refused(reply, "the token")
        if version is None:
            allowed = "the address of a `lethe evaluator serve`, and something else answers there"
            raise BadInput("evaluator", self.url, allowed, "check host and port")
        if version != wire.VERSION:
            allowed = f"a server that takes bundles of version {wire.VERSION}, and this one takes {version}"
            raise BadInput("evaluator", self.url, allowed, "use the same Lethe at both ends")

    def _put_run(self) -> None:
        """Tell the server the run's record and its recorded rounds."""
        record = _finite(read_record(self._run_folder))
        self.run = self.run or run_id(self._run_folder, record)
        rounds = self._rounds()
        if rounds is not None:
            self._upload({rounds.sha256: rounds})
        named = {"name": self._run_folder.name[:200], "record": record, "rounds": rounds and rounds.sha256}
        reply = self._ask("PUT", f"/api/runs/{self.run}", json=named)
        if reply.status_code >= 300:
            raise self._refused(reply, RECORD)

    def _rounds(self) -> Blob | None:
        """Return the recorded rounds as a blob; None without any. They are for figures: no run fails over them."""
        try:
            frame = Run(self._run_folder).rounds
            if frame.empty:
                return None
            data = table_bytes(frame)
        except (ValueError, OSError, KeyError, RunFailed) as error:
            log.warning("the recorded rounds do not travel: %s", error)
            return None
        return Blob(hashlib.sha256(data).hexdigest(), TABLE, lambda: data)

    def _upload(self, blobs: dict[str, Blob]) -> None:
        unknown = [sha for sha in blobs if sha not in self._sent]
        if not unknown:
            return
        reply = self._ask("POST", "/api/blobs/missing", json={"sha256": unknown})
        if reply.status_code >= 300:
            raise self._refused(reply, "blobs")
        for sha in self._read(BlobNames, reply).sha256:
            if sha not in blobs:
                raise self._not_an_evaluator("it asks for a blob that nobody named")
            headers = {"Content-Type": blobs[sha].kind}
            reply = self._ask("PUT", f"/api/blobs/{sha}", content=blobs[sha].make(), headers=headers)
            if reply.status_code >= 300:
                raise self._refused(reply, "a table or weights")
        self._sent.update(unknown)

    def _wait(self, id: str, name: str, which: str) -> Scored:
        told = time.monotonic()
        while True:
            reply = self._ask("GET", f"/api/submissions/{id}", params={"wait": WAIT})
            if reply.status_code >= 300:
                raise self._refused(reply, name)
            found = self._read(Scored, reply)
            if found.status == "done":
                return found
            if found.status == "failed":
                raise RunFailed(f"evaluator {self.url} could not score {name}: {found.reason}; {RESUME}")
            if time.monotonic() - told >= WAIT / 2:
                told = time.monotonic()
                self._tell(f"waiting for {self.url}: {name}, {which}, is {found.status}")

    def _ask(self, method: str, path: str, patience: float | None = None, **parts: Any) -> httpx.Response:
        """Send a request until it is answered, for as long as patience lasts; it may be sent twice."""
        patience = self._patience if patience is None else patience
        until, pause = time.monotonic() + patience, FIRST_PAUSE
        while True:
            try:
                reply = self._client.request(method, path, **parts)
                problem = f"it answered {reply.status_code} ({_said(reply)})"
                if reply.status_code < 500:
                    return reply
            except httpx.UnsupportedProtocol:
                raise BadInput("evaluator", self.url, "a URL that begins with http:// or https://") from None
            except httpx.HTTPError as error:
                problem = " ".join(str(error).split()) or type(error).__name__
            if time.monotonic() + pause > until:
                remedy = f"start it again or correct --evaluator; {RESUME}"
                raise RunFailed(f"evaluator {self.url} did not answer for {patience:g} s: {problem}; {remedy}")
            if pause == FIRST_PAUSE:
                self._tell(f"{self.url} does not answer ({problem}): trying again for up to {patience:g} s")
            time.sleep(pause)
            pause = min(LONGEST_PAUSE, 2 * pause)

    def _read(self, kind: type[Answer], reply: httpx.Response) -> Answer:
        """Return an answer, checked: a proxy on the way may answer 200 with a page of its own."""
        try:
            return kind.model_validate(reply.json())
        except (ValueError, RecursionError) as error:
            raise self._not_an_evaluator(_first_problem(error)) from None

    def _not_an_evaluator(self, problem: str) -> RunFailed:
        remedy = f"see what lies between here and it, a proxy perhaps; {RESUME}"
        return RunFailed(f"evaluator {self.url} did not answer as an evaluator does: {problem}; {remedy}")

    def _refused(self, reply: httpx.Response, what: str) -> BadInput | RunFailed:
        if reply.status_code in (401, 403):
            remedy = f"set {TOKEN} or {TOKEN_FILE} to the server's token"
            return BadInput("evaluator", self.url, f"a server that takes this token ({_said(reply)})", remedy)
        return RunFailed(f"evaluator {self.url} refused {what}: {_said(reply)}; {RESUME}")


def run_id(folder: Path, record: dict[str, Any]) -> str:
    """Return the name by which a server knows a run: that of its folder, and when and where it was first started."""
    host = record.get("environment", {}).get("host", "")
    mark = hashlib.sha256(f"{host}|{record['created']!r}".encode()).hexdigest()[:10]
    stem = re.sub(r"[^A-Za-z0-9._-]+", "-", folder.name)[:150].strip("-.") or "run"
    return f"{stem}-{mark}"


def _name(bundle: Bundle) -> str:
    return f"{bundle.model.method} {bundle.model.checkpoint} ({bundle.labels.request})"


def _said(reply: httpx.Response) -> str:
    """Return the server's own line, or the beginning of whatever it sent."""
    try:
        text = str(reply.json()["message"])
    except (ValueError, KeyError, TypeError, RecursionError):
        text = reply.text
    return " ".join(text.split())[:500]


def _first_problem(error: Exception) -> str:
    """Say in a line what is wrong with an answer."""
    if isinstance(error, ValidationError):
        first = error.errors()[0]
        return f"{'.'.join(map(str, first['loc'])) or 'its answer'}: {first['msg']}"[:200]
    return "its answer is no JSON"


def _numbers(row: dict[str, Any]) -> dict[str, Any]:
    """Return a row with its infinities as numbers."""
    numbers = ("alpha", "value", "ci_low", "ci_high", "x", "y")
    return {name: float(value) if name in numbers and value is not None else value for name, value in row.items()}


def _finite(value: Any) -> Any:
    """Return JSON values with null for what JSON has no number for."""
    if isinstance(value, dict):
        return {str(name): _finite(one) for name, one in value.items()}
    if isinstance(value, list):
        return [_finite(one) for one in value]
    return None if isinstance(value, float) and not math.isfinite(value) else value
