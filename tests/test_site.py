"""The site is built without a warning, its links lead somewhere, nothing comes from elsewhere, and search works."""

import contextlib
import gc
import re
import warnings
from html.parser import HTMLParser
from pathlib import Path
from urllib.parse import unquote, urlsplit

import pytest

from tests.conftest import LAPTOP, PHONE, screen

ROOT = Path(__file__).parents[1]
LOADED = {("script", "src"), ("img", "src"), ("iframe", "src"), ("link", "href"), ("source", "src"), ("video", "src")}
"""What a browser fetches without being asked."""
LANGUAGES = ("python", "pycon", "toml", "sh", "markdown", "yaml")
"""What code on the site is coloured as."""


class Page(HTMLParser):
    """What a page links to, what it loads, and the places in it that can be linked to."""

    def __init__(self, path):
        super().__init__()
        self.links, self.loads, self.places = [], [], {""}
        self.feed(path.read_text(encoding="utf-8"))

    def handle_starttag(self, tag, attributes):
        given = {name: value or "" for name, value in attributes}
        self.places.add(given.get("id", ""))
        if tag == "a" and "href" in given:
            self.links.append(given["href"])
        self.loads += [given[name] for kind, name in LOADED if kind == tag and name in given]


@pytest.fixture(scope="module")
def site(tmp_path_factory):
    """The site as `make docs` builds it, without colours and line breaks in code, which take a fifth of the time."""
    pytest.importorskip("material", reason="mkdocs-material is not installed: pip install .[docs]")
    load = pytest.importorskip("mkdocs.config").load_config
    build = pytest.importorskip("mkdocs.commands.build").build
    folder = tmp_path_factory.mktemp("site")
    gc.disable()  # nothing is worth collecting before the end
    try:
        # mkdocs counts the warnings of its log, and only shows those of Python
        with contextlib.chdir(ROOT), warnings.catch_warnings(action="ignore"):
            config = load("mkdocs.yml", strict=True, site_dir=str(folder))
            colourless = [{"name": language, "lang": "text"} for language in LANGUAGES]
            config.mdx_configs["pymdownx.highlight"] = {"extend_pygments_lang": colourless}
            config.plugins["mkdocstrings"].config.handlers["python"]["options"]["line_length"] = 10_000
            config.plugins.on_startup(command="build", dirty=False)
            build(config)
            config.plugins.on_shutdown()
    finally:
        gc.enable()
    return folder


@pytest.fixture(scope="module")
def pages(site):
    return {path: Page(path) for path in site.rglob("*.html") if path.name != "404.html"}


def test_every_page_is_in_the_site(site, pages):
    assert {path.stem for path in (ROOT / "docs").glob("*.md")} <= {path.stem for path in pages}


def test_every_link_leads_somewhere(pages):
    outside = 0
    for path, page in pages.items():
        for link in page.links:
            address = urlsplit(link)
            if address.scheme:
                outside += 1
                continue
            target = (path.parent / unquote(address.path)).resolve() if address.path else path
            target = target / "index.html" if target.is_dir() else target
            assert target.is_file(), f"{path.name}: {link}"
            if target in pages:
                assert unquote(address.fragment) in pages[target].places, f"{path.name}: {link}"
    assert outside < 10, "pages hardly lead elsewhere; links to the project's files are pages of the site"


def test_nothing_is_loaded_from_elsewhere(site, pages):
    for path, page in pages.items():
        for address in page.loads:
            assert not urlsplit(address).netloc, f"{path.name} loads {address}"
            assert (path.parent / urlsplit(address).path).exists(), f"{path.name} loads {address}, which is missing"
    for sheet in site.rglob("*.css"):
        assert not re.search(r"(@import|url\()\s*[\"']?(https?:)?//", sheet.read_text(encoding="utf-8")), sheet.name


def test_equations_are_drawn_and_source_files_are_pages(site, pages):
    methods = (site / "methods.html").read_text(encoding="utf-8")
    fences = (ROOT / "docs" / "methods.md").read_text(encoding="utf-8").count("```math")
    assert methods.count('<div class="equations">') == fences > 10
    assert "x<sub>i</sub>" in methods
    assert "def step(self" in re.sub(
        "<[^>]+>", "", (site / "source/src/proxdasa/algorithms/prox_dasa.py.html").read_text(encoding="utf-8")
    )


def test_it_can_be_read_and_searched_from_a_folder(site, browser):
    grounds = set()
    for size, scheme in ((LAPTOP, "light"), (PHONE, "dark")):
        screen(browser, size, scheme)
        for name in ("index", "methods", "comparison", "gallery"):
            browser.get((site / f"{name}.html").as_uri())
            assert browser.execute_script("return document.documentElement.scrollWidth") <= size[0]
        grounds.add(browser.execute_script("return getComputedStyle(document.body).backgroundColor"))
    assert len(grounds) == 2
    screen(browser, LAPTOP, "light")
    browser.get((site / "index.html").as_uri() + "?q=SONATA")
    found = "return [...document.querySelectorAll('.md-search-result__link')].map(link => link.href)"
    for _ in range(100):
        if links := browser.execute_script(
            f"return new Promise(done => setTimeout(done, 100)).then(() => {{{found}}})"
        ):
            break
    assert any("methods.html" in link for link in links)
    assert browser.get_log("browser") == []
    loaded = browser.execute_script("return performance.getEntriesByType('resource').map(entry => entry.name)")
    assert all(address.startswith("file:") for address in loaded)
