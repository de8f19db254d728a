"""Settings and fixtures shared by tests, and the browser that some of them look at pages with."""

import gc
import itertools
import os
import shutil
import warnings
from pathlib import Path

import pytest

from tests import forks

# What `proxdasa.sites.connections` sets, for workers in which another library imports grpc before.
os.environ["GRPC_SSL_CIPHER_SUITES"] = "ECDHE-PSK-CHACHA20-POLY1305"

WAITING = (
    "faults", "site_faults", "launching", "hosts", "soak", "full_disk", "processes", "exits", "studies_of_sites",
    "watching", "sites", "doctor", "optim", "jobs",
)  # fmt: skip
"""The modules whose tests mostly wait for processes, the longest first."""
LONG = (
    *WAITING,
    "federation", "examples", "docs", "site", "browser", "compiled", "blocks", "convergence", "experiments",
    "comparison", "tuning", "testing", "stopping", "cli", "foreign_folders", "fuzz", "budget", "frozen", "resumption",
    "figures", "data", "divergence", "distribution", "fitting", "config", "checkpoints", "checkpoint_rows", "probes",
    "supervised", "architectures", "imports", "reference", "estimators", "halving", "conditions", "changing_networks",
    "own_code", "running_statistics", "message_noise", "robustness", "site_security", "site_agreement", "site_results",
    "site_endings", "solutions", "uneven", "pruning", "model_regularizers", "frames", "csv_parquet", "torch_datasets",
    "every", "compression", "stale_messages", "rates", "study", "devices",
)  # fmt: skip
"""The modules that ``--quick`` leaves out. They run first, and first of all `test_federation`, whose tests share what
takes long: those of the last modules may be taken over by another worker, which would have to do it again."""
PLACES = {Path(__file__).with_name(f"test_{name}.py"): place for place, name in enumerate(LONG)}

QUIET = (
    "--headless=new", "--no-sandbox", "--disable-gpu", "--disable-background-networking", "--disable-component-update",
    "--disable-sync", "--no-first-run",
)  # fmt: skip
LAPTOP, PHONE = (1280, 800), (375, 812)


def pytest_addoption(parser):
    parser.addoption("--quick", action="store_true", help="leave out modules that start processes, draw or train")


def pytest_configure(config):
    os.environ.setdefault("OMP_NUM_THREADS", "1")  # for NumPy's and SciPy's BLAS, before they are imported
    gone = [path.name for path in PLACES if not path.exists()]
    assert not gone, f"LONG in {__file__} lists {', '.join(gone)}; there is no such file"
    register_examples()
    if config.getoption("numprocesses", None):  # this process only hands out tests, so it does not import torch
        if not config.option.quick:  # which needs too little of what takes time to import
            forks.share(workers=True)
            config.option.tx = [forks.WORKER for _ in config.option.tx]
    else:
        prepare(config.getoption("--hypothesis-profile", None))


def register_examples():
    """Laws are checked on the same examples every time; a slow machine is not a failure.

    `make slow` takes many of them; `tests.laws` has those laws that take another number.
    """
    from hypothesis import settings  # noqa: PLC0415

    for name, examples in (("some", 50), ("many", 250)):
        settings.register_profile(name, derandomize=True, deadline=None, database=None, max_examples=examples)


def prepare(profile=None):
    """Settings of a process that runs tests."""
    import torch  # noqa: PLC0415
    from hypothesis import settings  # noqa: PLC0415

    settings.load_profile(profile or "some")
    # The suite runs beside other processes; small tensors gain nothing from more threads.
    torch.set_num_threads(1)
    forks.keep_command_line()


def pytest_ignore_collect(collection_path, config):
    return (config.option.quick and collection_path in PLACES) or None


@pytest.hookimpl(trylast=True)  # when those that are not to run are gone
def pytest_collection_modifyitems(items):
    """Long tests first, so that no process is left with one of them when the others are done."""
    items.sort(key=lambda item: PLACES.get(item.path, len(PLACES)))
    items[:] = deal(items, int(os.environ.get("PYTEST_XDIST_WORKER_COUNT", "1")))


def deal(items, workers):
    """The tests in an order of which so many workers take an equal part each, one after the other.

    Long modules come first in each part. Those that wait are in every other part, so that the rest have the cores
    meanwhile.
    """
    if workers == 1:
        return items
    sizes = [(len(items) + number) // workers for number in range(workers)]  # as pytest-xdist divides them
    parts, rest = [[] for _ in sizes], []
    turns = {True: itertools.cycle(range(0, workers, 2)), False: itertools.cycle(range(1, workers, 2))}
    for path, module in itertools.groupby(items, key=lambda item: item.path):
        place = PLACES.get(path, len(PLACES))
        part = rest if place == len(PLACES) else parts[next(turns[place < len(WAITING)])]
        part.extend(module)
    rest.extend(item for part, size in zip(parts, sizes, strict=True) for item in part[size:])
    left = iter(rest)
    return [
        item
        for part, size in zip(parts, sizes, strict=True)
        for item in (*part[:size], *itertools.islice(left, max(0, size - len(part))))
    ]


def pytest_collection_finish():
    """Leave what is there for good out of the collections of garbage that pytest makes at the end."""
    gc.freeze()


@pytest.fixture
def store(tmp_path, monkeypatch):
    """An empty data folder."""
    monkeypatch.setenv("PROXDASA_DATA", str(tmp_path))
    return tmp_path


@pytest.fixture
def drawn(monkeypatch):
    """The figures that are saved, as matplotlib knows them; pixels take most of the time, and are not drawn."""
    from matplotlib.figure import Figure  # noqa: PLC0415

    made = []
    monkeypatch.setattr(Figure, "savefig", lambda figure, *_, **__: made.append(figure))
    return made


@pytest.fixture
def laid_out(monkeypatch):
    """Figures that are saved are laid out, with all their numbers and texts, and no pixels are drawn."""
    from matplotlib.figure import Figure  # noqa: PLC0415

    monkeypatch.setattr(Figure, "savefig", lambda figure, *_, **__: figure.draw_without_rendering())


@pytest.fixture(scope="module")
def browser():
    """A Chromium without a window."""
    webdriver = pytest.importorskip("selenium.webdriver", reason="selenium is not installed: pip install .[test]")
    chromium = next(filter(None, map(shutil.which, ("chromium", "chromium-browser", "google-chrome"))), None)
    driver = shutil.which("chromedriver")
    if not (chromium and driver):
        pytest.skip("no Chromium with its driver on this machine; on Debian: apt-get install chromium chromium-driver")
    options = webdriver.ChromeOptions()
    options.binary_location = chromium
    for argument in QUIET:
        options.add_argument(argument)
    options.set_capability("goog:loggingPrefs", {"browser": "ALL"})
    browser = webdriver.Chrome(options=options, service=webdriver.ChromeService(driver))
    yield browser
    with warnings.catch_warnings(action="ignore"):  # sockets of selenium's own
        browser.quit()


def screen(browser, size, scheme):
    """A screen of some size, in light or dark."""
    metrics = {"width": size[0], "height": size[1], "deviceScaleFactor": 1, "mobile": size == PHONE}
    browser.execute_cdp_cmd("Emulation.setDeviceMetricsOverride", metrics)
    features = [{"name": "prefers-color-scheme", "value": scheme}]
    browser.execute_cdp_cmd("Emulation.setEmulatedMedia", {"features": features})
