"""What a person sees and does: the pages in headless Chromium, on a desk, on a phone, and by keyboard."""

from __future__ import annotations

import io
import shutil
import socket
import threading
import time
import urllib.request
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pandas as pd
import pytest
import uvicorn
from fastapi import FastAPI
from made_runs import make_run

from evaluation.pages.folders import FolderRuns
from evaluation.pages.router import add_pages

webdriver = pytest.importorskip("selenium.webdriver", reason="selenium is not installed")
CHROMIUM, DRIVER = shutil.which("chromium"), shutil.which("chromedriver")
pytestmark = [
    pytest.mark.browser,
    pytest.mark.skipif(not (CHROMIUM and DRIVER), reason="needs chromium and chromedriver (apt: chromium-driver)"),
]

FIRST, SECOND, THIRD = "20261201-first", "20261202-second", "20261203-<b>third</b>"
FLAGS = (
    "--headless",
    "--no-sandbox",
    "--disable-gpu",
    "--disable-quic",
    "--no-first-run",
    "--disable-background-networking",
    "--disable-component-update",
    "--disable-sync",
)
PHONE, DESK = (360, 740), (1280, 900)
OVERFLOWING = """
return [...document.querySelectorAll('body *')].filter(one => {
  if (one.closest('.scroll, .picture, .skip')) return false;
  return one.getBoundingClientRect().right > document.documentElement.clientWidth + 1;
}).map(one => one.tagName + '.' + one.className + ' ' + one.textContent.slice(0, 40))
"""


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    home = tmp_path_factory.mktemp("home")
    few = ("retrain", "fine-tuning", "federaser", "ga", "prune")
    make_run(home, FIRST, created=1796126400.0, methods=few)
    make_run(home, SECOND, created=1796202000.0, methods=("retrain", "ga"), shift=0.06, settings={"lr": 0.02})
    make_run(home, THIRD.replace("/", "⁄"), created=1796302000.0, methods=("retrain",))
    yield from serving(home)


def serving(home: Path) -> Iterator[str]:
    app = FastAPI()
    add_pages(app, FolderRuns(home))
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    running = uvicorn.Server(uvicorn.Config(app, port=port, log_level="error"))
    thread = threading.Thread(target=running.run, daemon=True)
    thread.start()
    wait(lambda: running.started)
    yield f"http://127.0.0.1:{port}"
    running.should_exit = True
    thread.join(10)


@pytest.fixture(scope="module")
def chromium(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Any]:
    options = webdriver.ChromeOptions()
    options.binary_location = CHROMIUM
    for flag in (*FLAGS, f"--user-data-dir={tmp_path_factory.mktemp('profile')}"):
        options.add_argument(flag)
    options.set_capability("goog:loggingPrefs", {"browser": "ALL"})
    driver = webdriver.Chrome(options=options, service=webdriver.ChromeService(DRIVER))
    yield driver
    driver.quit()


class Browser:
    """A browser that a test drives, and what is on its screen."""

    def __init__(self, driver: Any, server: str) -> None:
        self.driver, self.server = driver, server

    def open(self, path: str, size: tuple[int, int] = DESK, scheme: str = "light") -> None:
        about = {"width": size[0], "height": size[1], "deviceScaleFactor": 1, "mobile": size == PHONE}
        self.driver.execute_cdp_cmd("Emulation.setDeviceMetricsOverride", about)
        wishes = {"prefers-color-scheme": scheme, "prefers-reduced-motion": "reduce"}
        media = {"features": [{"name": name, "value": value} for name, value in wishes.items()]}
        self.driver.execute_cdp_cmd("Emulation.setEmulatedMedia", media)
        self.driver.get(self.server + path)

    def all(self, selector: str) -> list[Any]:
        return list(self.driver.find_elements("css selector", selector))

    def one(self, selector: str) -> Any:
        return self.driver.find_element("css selector", selector)

    def texts(self, selector: str) -> list[str]:
        return [found.text for found in self.all(selector)]

    def run(self, script: str, *arguments: object) -> Any:
        return self.driver.execute_script(script, *arguments)

    def go(self, selector: str, keys: str = "") -> None:
        """Click what leads to another page, or type into it, and wait for that page."""
        self.run("window.left = false")
        found = self.one(selector)
        found.send_keys(keys) if keys else found.click()
        wait(lambda: self.run("return window.left === undefined && document.readyState === 'complete'"))

    def press_tab(self) -> None:
        self.driver.switch_to.active_element.send_keys("\ue004")

    def focused(self) -> str:
        return str(self.run("const e = document.activeElement; return e.getAttribute('aria-label') || e.innerText"))

    def errors(self) -> list[str]:
        return [line["message"] for line in self.driver.get_log("browser") if "favicon" not in line["message"]]

    def have(self, link: Any) -> bytes:
        with urllib.request.urlopen(link.get_attribute("href")) as answer:
            return bytes(answer.read())


@pytest.fixture
def browser(chromium: Any, server: str) -> Iterator[Browser]:
    found = Browser(chromium, server)
    found.errors()  # whatever an earlier test left
    yield found


def wait(until: Any, seconds: float = 30) -> None:
    end = time.monotonic() + seconds
    while not until():
        assert time.monotonic() < end, "it took too long"
        time.sleep(0.05)


PAGES = ("/", "/about", f"/run/{FIRST}", f"/run/{FIRST}/paper", f"/compare?run={FIRST}&run={SECOND}")


@pytest.mark.parametrize("path", PAGES)
def test_nothing_sticks_out_on_a_phone_and_the_console_is_silent(browser: Browser, path: str) -> None:
    for scheme in ("light", "dark"):
        browser.open(path, PHONE, scheme)
        assert browser.run("return document.documentElement.scrollWidth") <= PHONE[0]
        assert browser.run(OVERFLOWING) == []
    assert browser.errors() == []
    assert len(browser.all("h1")) == 1


def test_names_without_a_blank_stick_out_nowhere_and_none_is_turned_around(tmp_path: Path, chromium: Any) -> None:
    long = make_run(tmp_path, "long", methods=("retrain", "ga"), settings={"dataset": "w" * 400}, requests=("x" * 400,))
    make_run(tmp_path, "abc\u202efed", methods=("retrain",))
    server = serving(tmp_path)
    browser = Browser(chromium, next(server))
    for path in ("/", f"/run/{long.name}", f"/run/{long.name}/paper", f"/compare?run={long.name}&run={long.name}"):
        browser.open(path, (320, 640))
        assert browser.run("return document.documentElement.scrollWidth") <= 320, path
        assert browser.run(OVERFLOWING) == [], path
    browser.open("/", PHONE)
    assert "\u202e" not in browser.run("return document.documentElement.outerHTML")
    assert "abc\ufffdfed" in browser.run("return document.body.innerText")
    next(server, None)


def test_what_one_presses_on_a_phone_is_large_enough(browser: Browser) -> None:
    browser.open("/", PHONE)
    small = "return [...document.querySelectorAll('button, input[type=search]')].map(e => e.offsetHeight)"
    assert min(browser.run(small)) >= 44


def test_the_dark_is_dark_and_the_light_is_light(browser: Browser) -> None:
    grounds = []
    for scheme in ("light", "dark"):
        browser.open("/about", scheme=scheme)
        grounds.append(browser.run("return getComputedStyle(document.body).backgroundColor"))
    light, dark = (sum(map(int, ground.strip("rgb()").split(","))) for ground in grounds)
    assert light > 700
    assert dark < 100


def test_runs_are_found_by_words_and_opened(browser: Browser) -> None:
    browser.open("/")
    assert browser.texts(".runs h2")[1:] == [SECOND, FIRST]
    assert "<b>third<⁄b>" in browser.texts(".runs h2")[0]
    browser.go("#q", "fedEraser\n")
    assert browser.texts(".runs h2") == [FIRST]
    assert "1 of 3 runs" in browser.one("[role=status]").text
    browser.go(".runs h2 a")
    assert browser.texts("h1") == [FIRST]


def test_two_ticked_runs_are_compared(browser: Browser) -> None:
    browser.open("/")
    for tick in browser.all(".tick")[1:]:
        tick.click()
    browser.go("button.main")
    assert browser.texts("h1") == ["Two runs side by side"]
    assert browser.texts(".two a") == [SECOND, FIRST]
    assert browser.texts("#settings tbody tr") == ["lr 0.02 0.01"]
    assert any("federaser" in line for line in browser.texts("#only li"))
    assert any("−0.060" in cell for cell in browser.texts(".change.beyond"))
    assert browser.texts("tr.gold th")[0] == "retrain"
    browser.go(".swap a")
    assert browser.texts(".two a") == [FIRST, SECOND]
    assert any("+0.060" in cell for cell in browser.texts(".change.beyond"))


def test_one_tick_is_answered_with_what_to_do(browser: Browser) -> None:
    browser.open("/")
    browser.one(".tick").click()
    browser.go("button.main")
    assert "go back and tick two" in browser.one(".lead").text


def test_a_run_marks_gold_and_what_is_not_ok(browser: Browser) -> None:
    browser.open(f"/run/{FIRST}")
    headings = browser.texts("main h2")
    assert headings == ["What was asked", "bloodmnist, dirichlet 0.1: client:site-0", "Training curves"]
    table = "table[id$=-unlearned]"
    gold, row = browser.all(f"{table} tr.gold"), browser.all(f"{table} tbody tr:not(.gold)")[-1]
    assert [line.find_element("css selector", "th").text for line in gold] == ["retrain"]
    ground = "return getComputedStyle(arguments[0].children[1]).backgroundColor"
    assert browser.run(ground, gold[0]) != browser.run(ground, row)
    assert {line.text.split()[0] for line in browser.all(f"{table} tr.bad")} == {"ga"}
    assert "<script>alert(1)</script>" in browser.one("main").text  # as words
    assert browser.texts("nav.contents a") == headings
    assert browser.texts(".jumps a") == browser.texts("main section:nth-of-type(2) h3")
    browser.all(".jumps a")[-1].click()
    top = "return document.querySelector('h3[id$=figures]').getBoundingClientRect().top"
    wait(lambda: -1 <= browser.run(top) < 100)


def test_figures_are_drawn_and_their_files_are_what_they_say(browser: Browser) -> None:
    browser.open(f"/run/{SECOND}")
    browser.run("document.querySelectorAll('img').forEach(one => one.loading = 'eager')")
    wait(lambda: browser.run("return [...document.images].every(one => one.complete)"))
    assert len(browser.all("figure img")) >= 8
    assert min(browser.run("return [...document.images].map(one => one.naturalWidth)")) > 300
    assert all(len(image.get_attribute("alt")) > 40 for image in browser.all("figure img"))
    figure = browser.one("figure[id$=plane]")
    png, svg, csv = (browser.have(link) for link in figure.find_elements("css selector", ".files a"))
    assert png.startswith(b"\x89PNG")
    assert b"<svg" in svg
    assert set(pd.read_csv(io.BytesIO(csv))["model"]) == {"original", "retrain", "ga"}
    assert browser.errors() == []


def test_a_tables_files_have_its_numbers(browser: Browser) -> None:
    browser.open(f"/run/{SECOND}")
    table = browser.one("table[id$=-unlearned]")
    shown = table.find_element("css selector", "tr.bad td data").get_attribute("value")
    links = {link.text: link for link in browser.all(".scroll:has(table[id$=-unlearned]) + p.note .files a")}
    assert set(links) == {"CSV", "Markdown", "LaTeX"}
    assert shown.encode() in browser.have(links["CSV"])
    assert b"| ga |" in browser.have(links["Markdown"])
    assert rb"\toprule" in browser.have(links["LaTeX"])
    results, *_ = browser.all(".downloads a")
    assert browser.have(results).startswith(b"cell,experiment,task")


def test_a_lone_svg_is_shown_and_runs_nothing(browser: Browser) -> None:
    browser.open(f"/run/{SECOND}")
    browser.driver.get(browser.one("figure img").get_attribute("src"))
    assert browser.run("return document.documentElement.tagName") == "svg"
    assert browser.errors() == []


def test_the_first_tab_skips_to_the_contents_and_the_order_is_that_of_the_page(browser: Browser) -> None:
    browser.open("/")
    order = []
    for _ in range(7):
        browser.press_tab()
        order.append(browser.focused())
    assert order[:4] == ["To the contents", "Lethe", "Runs", "How to read"]
    assert browser.run("return document.activeElement.tagName") == "A"
    assert order[5:] == ["Filter", browser.texts(".runs h2")[0]]
    browser.press_tab()
    assert browser.focused().startswith("Compare ")
    browser.driver.switch_to.active_element.send_keys(" ")
    assert browser.all(".tick input")[0].is_selected()


def test_the_skip_link_is_seen_when_focused_and_leads_past_the_head(browser: Browser) -> None:
    browser.open("/about")
    browser.press_tab()
    link = browser.driver.switch_to.active_element
    assert link.rect["x"] >= 0
    link.send_keys("\n")
    browser.press_tab()
    assert browser.run("return !!document.activeElement.closest('main, footer')")


def test_a_wide_table_is_scrolled_by_keyboard_and_keeps_its_names_in_sight(browser: Browser) -> None:
    browser.open(f"/run/{FIRST}", PHONE)
    table = next(one for one in browser.all(".scroll") if one.find_elements("css selector", "tr.gold"))
    assert table.get_attribute("tabindex") == "0"
    browser.run("arguments[0].focus()", table)
    for _ in range(4):
        table.send_keys("\ue014")
    wait(lambda: browser.run("return arguments[0].scrollLeft", table) > 50)
    name = table.find_element("css selector", "tr.gold th")
    assert 0 <= name.rect["x"] < 60


def test_a_phone_has_figures_it_can_read(browser: Browser) -> None:
    browser.open(f"/run/{SECOND}", PHONE)
    assert browser.one("figure img").size["width"] >= 480


def test_the_paper_page_has_both_numbers_and_what_is_missing(browser: Browser) -> None:
    browser.open(f"/run/{FIRST}/paper")
    row = next(line.text for line in browser.all("table.paper tbody tr") if line.text.startswith("federaser forget"))
    assert "0.445" in row
    assert browser.texts("table.paper thead th")[:4] == [
        "method",
        "metric",
        "published",
        "held-out records, after recovery",
    ]
    folded = browser.one("#theirs details")
    assert not folded.find_element("css selector", "table").is_displayed()
    folded.find_element("css selector", "summary").click()
    assert folded.find_element("css selector", "table").is_displayed()


@pytest.mark.parametrize("path", ["/nothing", "/run/nothing", "/run/%3Cscript%3Ealert(1)%3C%2Fscript%3E"])
def test_a_wrong_address_leads_back_to_the_runs(browser: Browser, path: str) -> None:
    browser.open(path)
    assert browser.texts("h1") == ["There is no such page"]
    browser.go("main a")
    assert browser.texts("h1") == ["Runs"]
