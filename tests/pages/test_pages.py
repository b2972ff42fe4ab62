"""The pages of a server as a program sees them: what they say, what they refuse, and their headers."""

from __future__ import annotations

import io
import json
import math
import re
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pandas as pd
import pytest
from fastapi import FastAPI
from fastapi.responses import JSONResponse
from fastapi.testclient import TestClient
from made_runs import HOSTILE, PLACES, make_run

from evaluation.pages.folders import FolderRuns
from evaluation.pages.frame import address
from evaluation.pages.router import add_pages
from evaluation.pages.style import SHEET
from evaluation.pages.together import Together
from evaluation.report.drawing import Plot
from evaluation.runs import Run
from evaluation.service.access import Head
from evaluation.service.sources import RunInfo
from evaluation.trials import no_trials
from flower_apps.cli import main
from partitions.errors import BadInput

FIRST, SECOND = "20261201-first", "20261202-second"
ODD = '<script>alert(2)<script> "a" & b'
BROWSER = {"accept": "text/html"}


@pytest.fixture(scope="module")
def home(tmp_path_factory: pytest.TempPathFactory) -> Path:
    home = tmp_path_factory.mktemp("home")
    make_run(home, FIRST, created=1796126400.0, requests=("client:site-0", "class:2"))
    make_run(home, SECOND, created=1796202000.0, shift=0.06, settings={"lr": 0.02}, methods=("retrain", "ga"))
    make_run(home, ODD, created=1796000000.0, experiment=HOSTILE, settings={"dataset": HOSTILE})
    damaged = home / "runs" / "damaged"
    damaged.mkdir()
    (damaged / "run.json").write_text("{")
    (home / "secret.txt").write_text("secret")
    (home / "runs" / "link").symlink_to(home)
    return home


@pytest.fixture(scope="module")
def app(home: Path) -> FastAPI:
    app = FastAPI()
    add_pages(app, FolderRuns(home))
    app.add_middleware(Head)  # as the evaluator's server has it
    return app


@pytest.fixture(scope="module")
def client(app: FastAPI) -> Iterator[TestClient]:
    with TestClient(app, headers=BROWSER) as client:
        yield client


@pytest.fixture(scope="module")
def ids(home: Path) -> dict[str, str]:
    return {run.name: run.id for run in FolderRuns(home).runs()}


def pages(ids: dict[str, str]) -> list[str]:
    every = ["/", "/about", "/compare?run=" + FIRST + "&run=" + SECOND, "/nothing"]
    return every + [address("run", id, *more) for id in ids.values() for more in ((), ("paper",))]


# ---------------------------------------------------------------------- runs
def test_runs_are_listed_newest_first_and_damaged_ones_are_there(client: TestClient) -> None:
    text = client.get("/").text
    places = [text.index(name) for name in (SECOND, FIRST, "&lt;script&gt;alert(2)")]
    assert places == sorted(places)
    assert "damaged: its record cannot be read" in text
    assert "2 December 2026" in text


@pytest.mark.parametrize(
    ("words", "found"),
    [("first", [FIRST]), ("CLASS:2 bloodmnist", [FIRST]), ("fedquit", [FIRST, ODD]), ("fedquit nothing", [])],
)
def test_the_filter_wants_every_word_somewhere(client: TestClient, words: str, found: list[str]) -> None:
    text = client.get("/", params={"q": words}).text
    listed = re.findall(r"<li><h2><a [^>]*>([^<]*)</a>", text)
    assert [
        one.replace("&lt;", "<").replace("&gt;", ">").replace("&quot;", '"').replace("&amp;", "&") for one in listed
    ] == found


def test_ticked_runs_stay_though_the_filter_leaves_them_out(client: TestClient) -> None:
    text = client.get("/", params={"q": "first", "run": SECOND}).text
    assert re.search(rf'value="{SECOND}" checked', text)
    assert "1 of 4 runs" in text


def test_without_runs_the_page_says_how_to_make_one(tmp_path: Path) -> None:
    app = FastAPI()
    add_pages(app, FolderRuns(tmp_path / "nowhere"))
    assert "lethe run" in TestClient(app).get("/").text


def test_many_runs_are_turned_page_by_page_and_keep_what_was_asked() -> None:
    class Many:
        def runs(self) -> list[RunInfo]:
            return [RunInfo(f"r{n}", f"run {n}", 1e9 - n, ("e",), 3, "done") for n in range(120)]

        def open(self, id: str) -> Any:
            raise BadInput("run", id, "one of them")

    app = FastAPI()
    add_pages(app, Many())
    client = TestClient(app)
    text = client.get("/?q=run&run=r0&page=2").text
    assert "run 50" in text
    assert "run 49<" not in text
    assert 'href="/?q=run&amp;run=r0&amp;page=3"' in text
    assert client.get("/?q=run&run=r0&page=3").text.count("<li><h2>") == 21


# ---------------------------------------------------------------------- one run
def test_a_run_has_every_request_every_model_and_its_training(client: TestClient) -> None:
    text = client.get(f"/run/{FIRST}").text
    assert text.count(">Before recovery</h3>") == text.count(">After recovery</h3>") == 2
    for name in PLACES:
        assert f'<th scope="row">{name}</th>' in text
    assert "training-01-" in text
    assert "&lt;script&gt;alert(1)&lt;/script&gt;" in text


def test_every_link_and_image_of_every_page_leads_somewhere(client: TestClient, ids: dict[str, str]) -> None:
    shown = {f"/run/{FIRST}", f"/run/{FIRST}/paper", f"/compare?run={FIRST}&run={SECOND}", "/", "/about"}
    found: set[str] = set()
    for page in shown:
        text = client.get(page).text
        marks = set(re.findall(r'id="?([\w.-]+)', text))
        links = [link.replace("&amp;", "&") for link in re.findall(r'(?:href|src)="([^"]*)"', text)]
        assert {link[1:] for link in links if link.startswith("#")} <= marks
        found |= {link for link in links if link.startswith("/") and "figures" not in link}
    assert {link: client.get(link).status_code for link in found if "damaged" not in link} == dict.fromkeys(
        [link for link in found if "damaged" not in link], 200
    )


def test_a_figure_is_had_in_all_three_kinds(client: TestClient) -> None:
    name = re.findall(r"figures/([\w.-]+-plane)\.svg", client.get(f"/run/{FIRST}").text)[0]
    found = {kind: client.get(f"/run/{FIRST}/figures/{name}.{kind}") for kind in ("png", "svg", "csv")}
    assert found["png"].content.startswith(b"\x89PNG")
    assert b"<svg" in found["svg"].content
    assert set(pd.read_csv(io.BytesIO(found["csv"].content))["model"]) == set(PLACES) - {"prune"}
    assert found["svg"].headers["content-type"].startswith("image/svg+xml")


def test_an_unchanged_figure_is_not_sent_again_and_a_versioned_one_kept(client: TestClient) -> None:
    link = re.findall(r'src="(/run/[^"]*-plane\.svg\?v=[^"]*)"', client.get(f"/run/{FIRST}").text)[0]
    first = client.get(link)
    assert "immutable" in first.headers["cache-control"]
    assert client.get(link.split("?")[0]).headers["cache-control"] == "private, no-cache"
    again = client.get(link, headers={"if-none-match": first.headers["etag"]})
    assert (again.status_code, again.content) == (304, b"")
    assert client.get(link, headers={"if-none-match": '"other"'}).status_code == 200


def test_a_figure_is_drawn_once_and_again_when_its_numbers_change(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    drawn: list[str] = []
    draw = Plot.drawn
    monkeypatch.setattr(Plot, "drawn", lambda self, kind: drawn.append(self.name) or draw(self, kind))
    make_run(tmp_path, "one", methods=("retrain", "ga"))
    app = FastAPI()
    add_pages(app, FolderRuns(tmp_path))
    client = TestClient(app)

    def load() -> str:
        link = re.findall(r'src="(/run/[^"]*-plane\.svg\?v=[^"]*)"', client.get("/run/one").text)[0]
        assert client.get(link).status_code == 200
        return link

    first = load()
    assert load() == first
    assert len(drawn) == 1
    make_run(tmp_path, "one", methods=("retrain", "ga"), shift=0.1)
    assert load() != first
    assert len(drawn) == 2


def test_figures_asked_for_at_once_are_the_same_as_one_by_one(app: FastAPI, home: Path) -> None:
    links = re.findall(r'src="(/run/[^"?]*\.svg)', TestClient(app).get(f"/run/{SECOND}").text)[:4]
    fresh = FastAPI()
    add_pages(fresh, FolderRuns(home))
    with TestClient(fresh) as client, ThreadPoolExecutor(8) as pool:
        found = list(pool.map(lambda link: client.get(link).content, links * 2))
    with TestClient(app) as client:
        assert found == [client.get(link).content for link in links * 2]


@pytest.mark.parametrize("kind", ["csv", "md", "tex"])
def test_tables_are_had_one_by_one_and_together(client: TestClient, kind: str) -> None:
    whole = client.get(f"/run/{FIRST}/tables.{kind}")
    slugs = re.findall(r'id="table-([^"]+)"', client.get(f"/run/{FIRST}").text)
    every = [client.get(f"/run/{FIRST}/tables/{slug}.{kind}") for slug in slugs]
    assert {answer.status_code for answer in (whole, *every)} == {200}
    assert sum(slug.endswith("unlearned") for slug in slugs) == 2
    assert all("fedquit" in one.text for slug, one in zip(slugs, every, strict=True) if slug.endswith("unlearned"))
    assert len(whole.text) > 3 * len(every[1].text)


def test_a_tables_csv_has_exact_values(client: TestClient) -> None:
    found = pd.read_csv(io.StringIO(client.get(f"/run/{FIRST}/tables.csv").text))
    results = pd.read_csv(io.StringIO(client.get(f"/run/{FIRST}/results.csv").text))
    row = found[(found["model"] == "fedquit") & found["table"].str.endswith("site-0-unlearned")].iloc[0]
    own = results[(results["method"] == "fedquit") & (results["checkpoint"] == "unlearned")]
    own = own[own["request"] == "client:site-0"].set_index("metric")["value"]
    assert row["forget"] == own["forget_accuracy"]
    assert row["forget difference"] == own["delta_forget_accuracy"]
    assert row["KL"] == own["retrain_gap_kl_forget"]


def test_results_and_curves_are_those_of_the_run(client: TestClient, home: Path) -> None:
    for name in ("results.csv", "curves.csv"):
        assert client.get(f"/run/{FIRST}/{name}").text == (home / "runs" / FIRST / name).read_text()


def test_names_of_hosts_and_folders_stay_where_they_are(client: TestClient, ids: dict[str, str], home: Path) -> None:
    for page in pages(ids):
        text = client.get(page).text
        assert not [one for one in ("my-host", "/secret", str(home)) if one in text], page


# ---------------------------------------------------------------------- two runs, and published tables
def test_comparing_starts_with_the_settings_that_differ_and_names_what_one_lacks(client: TestClient) -> None:
    text = client.get("/compare", params={"run": [FIRST, SECOND]}).text
    assert text.index('<th scope="row">lr</th><td>0.01</td><td>0.02</td>') < text.index('id="only"')
    assert "request bloodmnist, dirichlet 0.1: class:2" in text
    assert "federaser unlearned" in text
    assert re.search(r'<span class="change beyond"><data value="0.0[56][^"]*">\+0.060</data>', text)


def test_the_comparison_is_had_as_csv(client: TestClient) -> None:
    found = pd.read_csv(io.StringIO(client.get("/compare.csv", params={"run": [FIRST, SECOND]}).text))
    assert set(found["verdict"]) <= {"beyond", "within", "unknown", "missing"}
    assert (found["verdict"] == "beyond").any()


@pytest.mark.parametrize("ticked", [[], [FIRST], [FIRST, SECOND, "x"]])
def test_other_than_two_ticks_are_told_how_to_go_on(client: TestClient, ticked: list[str]) -> None:
    answer = client.get("/compare", params={"run": ticked})
    assert answer.status_code == 400
    assert "go back and tick two" in answer.text


def test_the_paper_page_says_what_has_a_counterpart_and_what_has_none(client: TestClient) -> None:
    text = client.get(f"/run/{FIRST}/paper").text
    assert "The studies do not say on which records they report" in text
    assert "Table lethe 3: bloodmnist, client, concentration 0.1" in text
    assert re.search(r"\d+ of \d+ published numbers have a counterpart", text)
    assert re.search(r"[1-9]\d* published numbers, and why", text)


def test_a_run_that_no_study_is_about_says_so(client: TestClient, ids: dict[str, str]) -> None:
    assert "None of the" in client.get(f"/run/{ids[ODD]}/paper").text


# ---------------------------------------------------------------------- hostile names, wrong addresses, faults
def test_no_page_has_markup_from_a_run(client: TestClient, ids: dict[str, str]) -> None:
    for page in pages(ids):
        text = client.get(page).text
        assert "<script" not in text, page
        assert "alert(2)<" not in text, page


def test_an_odd_name_has_an_address_of_its_own(client: TestClient, ids: dict[str, str]) -> None:
    assert re.fullmatch(r"[a-z0-9.-]+", ids[ODD])
    assert "&lt;script&gt;alert(2)&lt;script&gt; &quot;a&quot; &amp; b" in client.get(f"/run/{ids[ODD]}").text


@pytest.mark.parametrize(
    "path",
    ["/run/%2e%2e", "/run/../secret.txt", "/run/..%2Fsecret.txt", "/run/%2e%2e%2fsecret.txt", "/run/link", "/run/.",
     f"/run/{FIRST}/figures/..%2f..%2fresults.csv", f"/run/{FIRST}/figures/../run.json", f"/run/{FIRST}/run.json",
     f"/run/{FIRST}/tables/x.csv", f"/run/{FIRST}/tables.exe", f"/run/{FIRST}/figures/x.png", "/run/", "/static/x",
     "/run/%00", "/run/" + "x" * 3000],
)  # fmt: skip
def test_an_address_of_nothing_is_a_page_that_says_so(client: TestClient, path: str) -> None:
    answer = client.get(path)
    assert answer.status_code == 404
    assert "All runs" in answer.text
    assert "secret" not in answer.text.replace("secret.txt", "")
    assert "Traceback" not in answer.text


def test_a_damaged_run_is_told_from_a_missing_one(client: TestClient) -> None:
    damaged, missing = client.get("/run/damaged"), client.get("/run/missing")
    assert (damaged.status_code, missing.status_code) == (409, 404)
    assert "damaged" in damaged.text


def test_a_program_that_asks_for_json_has_its_own_404(app: FastAPI) -> None:
    answer = TestClient(app).get("/nothing", headers={"accept": "application/json"})
    assert (answer.status_code, answer.json()) == (404, {"detail": "Not Found"})


def test_a_fault_is_a_page_and_a_line_in_the_log_never_a_traceback(caplog: pytest.LogCaptureFixture) -> None:
    class Broken:
        def runs(self) -> list[RunInfo]:
            raise RuntimeError("the database is <gone>")

        def open(self, id: str) -> Any:
            raise RuntimeError("gone")

    app = FastAPI()
    add_pages(app, Broken())
    client = TestClient(app, raise_server_exceptions=False)
    for path in ("/", "/run/x", "/run/x/results.csv"):
        answer = client.get(path)
        assert answer.status_code == 500
        assert "This page could not be made" in answer.text
        assert "gone" not in answer.text
    assert "the database is <gone>" in caplog.text


def test_every_answer_is_guarded(client: TestClient, ids: dict[str, str]) -> None:
    for page in [*pages(ids), "/style.css", "/icon.svg", f"/run/{FIRST}/results.csv", f"/run/{FIRST}/figures/x.svg"]:
        headers = client.get(page).headers
        assert headers["x-content-type-options"] == "nosniff"
        policy = headers["content-security-policy"]
        assert "default-src 'none'" in policy
        assert "unsafe" not in policy
        assert "script-src" not in policy


def test_pages_have_neither_scripts_nor_styles_of_their_own_nor_anything_from_elsewhere(
    client: TestClient, ids: dict[str, str]
) -> None:
    for page in pages(ids):
        text = client.get(page).text
        assert not re.search(r"<(script|style|iframe|object)|\sstyle=|\son\w+=|https?://|src=\"data:", text), page


def test_json_that_is_no_record_is_a_damaged_run(tmp_path: Path) -> None:
    for name, record in {
        "a": {"cells": [{"cell": 1, "method": [], "checkpoints": 3}]},
        "b": {"cells": "x"},
        "c": [],
    }.items():
        folder = tmp_path / "runs" / name
        folder.mkdir(parents=True)
        (folder / "run.json").write_text(json.dumps(record))
    assert {run.status for run in FolderRuns(tmp_path).runs()} == {"damaged"}


def test_a_run_that_goes_on_is_read_anew(tmp_path: Path) -> None:
    runs = FolderRuns(tmp_path)
    make_run(tmp_path, "one", methods=("retrain",))
    first = runs.open("one")
    assert runs.open("one") is first
    make_run(tmp_path, "one", methods=("retrain", "ga"))
    assert runs.open("one") is not first
    assert runs.runs()[0].methods == ("original", "retrain", "ga")


class Kept:
    """A source of made-up runs."""

    def __init__(self, *runs: RunInfo, opened: Any = None) -> None:
        self.found, self.opened = list(runs), opened

    def runs(self) -> list[RunInfo]:
        return self.found

    def open(self, id: str) -> Any:
        if id not in [run.id for run in self.found]:
            raise BadInput("run", id, "one of them")
        return self.opened


def test_several_sources_are_one_and_what_both_have_is_the_firsts() -> None:
    one = Kept(RunInfo("a", "mine", 1.0, (), 1, "done"), RunInfo("b", "b", math.nan, (), 1, "done"), opened="first")
    two = Kept(RunInfo("a", "theirs", 2.0, (), 1, "done"), RunInfo("c", "c", 3.0, (), 1, "done"), opened="second")
    found = Together(one, two)
    assert [run.name for run in found.runs()] == ["c", "mine", "b"]
    assert (found.open("a"), found.open("c")) == ("first", "second")
    with pytest.raises(BadInput):
        found.open("d")


def test_a_run_without_a_record_and_without_rounds_is_shown_all_the_same(home: Path) -> None:
    """A server's store may have been given results alone."""
    run = Run(home / "runs" / SECOND)
    rounds = pd.DataFrame({"method": ["original"], "round": [1], "site": ["site-0"]})  # as older runs posted them
    given = {"results": run.results, "curves": run.curves, "trials": no_trials(), "rounds": rounds}
    bare = SimpleNamespace(name="bare", manifest={}, **given)
    app = FastAPI()
    add_pages(app, Kept(RunInfo("x", "bare", math.nan, (), 1, "scoring"), opened=bare))
    client = TestClient(app)
    assert "No rounds of a training are left to show" in client.get("/run/x").text
    assert "start unknown" in client.get("/compare?run=x&run=x").text
    assert "No setting differs" in client.get("/compare?run=x&run=x").text


def test_a_run_that_nothing_of_is_scored_yet_says_so(home: Path) -> None:
    run = Run(home / "runs" / SECOND)
    given = {"results": run.results[:0], "curves": run.curves, "trials": no_trials(), "rounds": pd.DataFrame()}
    empty = SimpleNamespace(name="e", manifest={}, **given)
    app = FastAPI()
    add_pages(app, Kept(RunInfo("x", "e", math.nan, (), 0, "empty"), opened=empty))
    answer = TestClient(app).get("/run/x")
    assert answer.status_code == 409
    assert "a run with results" in answer.text


@pytest.mark.parametrize("path", ["/?page=x", "/?page=-3", "/compare?" + "run=a&" * 200, "/?q=" + "x" * 300])
def test_an_address_that_cannot_be_read_is_a_page_too(client: TestClient, path: str) -> None:
    answer = client.get(path)
    assert answer.status_code == (200 if "-3" in path else 400)
    assert answer.headers["content-type"].startswith("text/html")


# ---------------------------------------------------------------------- colours
def luminance(colour: str) -> float:
    digits = colour.lstrip("#")
    digits = "".join(2 * one for one in digits) if len(digits) == 3 else digits
    parts = [int(digits[at : at + 2], 16) / 255 for at in (0, 2, 4)]
    red, green, blue = (part / 12.92 if part <= 0.04045 else ((part + 0.055) / 1.055) ** 2.4 for part in parts)
    return 0.2126 * red + 0.7152 * green + 0.0722 * blue


@pytest.mark.parametrize("scheme", [0, 1], ids=["light", "dark"])
@pytest.mark.parametrize("ink", ["ink", "soft", "bad", "link"])
@pytest.mark.parametrize("ground", ["page", "card", "gold"])
def test_text_has_a_contrast_of_seven_to_one(scheme: int, ink: str, ground: str) -> None:
    colours = dict(re.findall(r"--(\w+): (#\w+)", SHEET.split(":root {")[scheme + 1].split("}")[0]))
    dark, light = sorted((luminance(colours[ink]), luminance(colours[ground])))
    assert (light + 0.05) / (dark + 0.05) >= 7


def test_a_run_that_may_not_be_read_is_listed_as_damaged_and_hides_no_other(
    tmp_path: Path, forbid: Callable[[Path], None], capsys: pytest.CaptureFixture[str]
) -> None:
    make_run(tmp_path, "mine", methods=("retrain",))
    theirs = make_run(tmp_path, "theirs", methods=("retrain",), created=1.8e9)
    app = FastAPI()
    add_pages(app, FolderRuns(tmp_path))
    client = TestClient(app, headers=BROWSER)
    forbid(theirs)
    assert {run.name: run.status for run in FolderRuns(tmp_path).runs()} == {"mine": "done", "theirs": "damaged"}
    assert client.get("/").status_code == client.get("/run/mine").status_code == 200
    for page in ("/run/theirs", "/run/theirs/paper", "/run/theirs/results.csv", "/compare?run=mine&run=theirs"):
        answer = client.get(page)
        assert (answer.status_code, str(tmp_path) in answer.text) == (409, False)
        assert "see that you may read it" in answer.text
    for command in (["report", "theirs"], ["report", str(theirs)], ["rank", "theirs"], ["rank", str(theirs)]):
        assert main([*command, "--home", str(tmp_path)]) == 2
        assert "Permission denied" in capsys.readouterr().err


@pytest.mark.parametrize("name", ["results.csv", "curves.csv"])
def test_a_table_that_may_not_be_read_is_a_page_that_says_so(
    tmp_path: Path, forbid: Callable[[Path], None], name: str
) -> None:
    run = make_run(tmp_path, "one", methods=("retrain",))
    app = FastAPI()
    add_pages(app, FolderRuns(tmp_path))
    client = TestClient(app, headers=BROWSER)
    forbid(run / name)
    assert client.get("/").status_code == 200
    assert client.get("/run/one").status_code == 409
    assert main(["report", "one", "--home", str(tmp_path)]) == 2
    assert main(["rank", "one", "--home", str(tmp_path)]) == (2 if name == "results.csv" else 0)


@pytest.mark.parametrize("created", ["1e300", "-1e18", "Infinity", "1" + "0" * 400, '"yesterday"', "[" * 200_000])
def test_one_damaged_record_leaves_the_list_of_runs_whole(tmp_path: Path, created: str) -> None:
    make_run(tmp_path, "good", methods=("retrain",))
    (tmp_path / "runs" / "bad").mkdir()
    (tmp_path / "runs" / "bad" / "run.json").write_text(f'{{"created": {created}, "cells": []}}')
    app = FastAPI()
    add_pages(app, FolderRuns(tmp_path))
    client = TestClient(app, headers=BROWSER)
    text = client.get("/").text
    assert "damaged: its record cannot be read" in text
    assert "good" in text
    assert client.get("/run/bad").status_code == 409


def test_every_page_and_file_answers_head_as_get_does(client: TestClient) -> None:
    for path in ("/", "/about", f"/run/{FIRST}", f"/run/{FIRST}/results.csv", "/style.css", "/run/none"):
        head, get = client.head(path), client.get(path)
        assert head.status_code == get.status_code
        assert head.headers["content-type"] == get.headers["content-type"]


def test_a_browser_is_refused_with_a_page_and_a_program_as_before() -> None:
    app = FastAPI()

    class Closed:
        def __init__(self, app: Any) -> None:
            self._app = app

        async def __call__(self, scope: Any, receive: Any, send: Any) -> None:
            if scope["type"] == "http" and scope["path"] == "/run/closed":
                answer = JSONResponse({"field": "Authorization"}, 401, headers={"www-authenticate": "Basic"})
                await answer(scope, receive, send)
            else:
                await self._app(scope, receive, send)

    app.add_middleware(Closed)
    add_pages(app, FolderRuns("nowhere"))
    client = TestClient(app)
    page = client.get("/run/closed", headers=BROWSER)
    assert (page.status_code, page.headers["www-authenticate"]) == (401, "Basic")
    assert "A token is needed" in page.text
    assert page.headers["content-security-policy"]
    assert client.get("/run/closed").json() == {"field": "Authorization"}
    page = client.post("/about", headers=BROWSER)
    assert (page.status_code, "That cannot be done here" in page.text) == (405, True)
    assert page.headers["content-type"].startswith("text/html")
    assert page.headers["allow"]
    assert client.post("/about").json() == {"detail": "Method Not Allowed"}
    assert client.get("/about", headers=BROWSER).status_code == 200


def test_control_characters_and_those_that_turn_text_around_are_marks(tmp_path: Path) -> None:
    make_run(tmp_path, "a\u202eb\x07c\u2066", methods=("retrain",))
    app = FastAPI()
    add_pages(app, FolderRuns(tmp_path))
    client = TestClient(app, headers=BROWSER)
    id = FolderRuns(tmp_path).runs()[0].id
    for path in ("/", f"/run/{id}", f"/run/{id}/paper", f"/compare?run={id}&run={id}"):
        text = client.get(path).text
        assert "a\ufffdb\ufffdc\ufffd" in text
        assert not set("\u202e\x07\u2066") & set(text)
