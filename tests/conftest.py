"""Settings and fixtures that tests share, and the browser for tests of HTML pages."""

import contextlib
import functools
import gc
import importlib
import itertools
import os
import shutil
import signal
import warnings
from pathlib import Path

import pytest

from tests import forks

# `proxdasa.sites.connections` sets this too, but in some workers another library has imported grpc by then.
os.environ["GRPC_SSL_CIPHER_SUITES"] = "ECDHE-PSK-CHACHA20-POLY1305"
# Otherwise Hypothesis imports trio, which selenium installs, in every worker.
os.environ["HYPOTHESIS_NO_PLUGINS"] = "1"

WAITING = (
    "faults", "site_faults", "launching", "hosts", "soak", "full_disk", "processes", "exits", "studies_of_sites",
    "watching", "sites", "doctor", "optim", "jobs",
)  # fmt: skip
"""The modules whose tests mostly wait for processes, the longest first."""
LONG = (
    *WAITING,
    "federation", "examples", "docs", "site", "browser", "compiled", "blocks", "convergence", "experiments",
    "torch_internals", "comparison", "tuning", "testing", "stopping", "cli", "foreign_folders", "fuzz", "budget",
    "frozen", "resumption", "figures", "data", "divergence", "distribution", "module_checks", "config", "checkpoints",
    "checkpoint_rows", "probes",
    "supervised", "architectures", "imports", "reference", "estimators", "halving", "conditions", "changing_networks",
    "own_code", "running_statistics", "message_noise", "robustness", "site_security", "site_agreement", "site_results",
    "site_endings", "solutions", "uneven", "pruning", "model_regularizers", "frames", "csv_parquet", "torch_datasets",
    "every", "compression", "stale_messages", "rates", "study", "devices", "large_states",
    "checkpoint_damage", "equal_budgets", "starting", "unix_sockets", "runner", "plans", "observing", "page",
)  # fmt: skip
"""The modules that ``--quick`` leaves out, in the order in which they run. `test_federation` is the first of those that
compute, because its tests share a slow set-up: pytest-xdist may move the last tests of a worker to another one, which
would have to repeat it."""
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
        if not config.option.quick:  # quick tests need little of what the fork server would take seconds to import
            forks.share(workers=True)
            config.option.tx = [forks.WORKER for _ in config.option.tx]
    else:
        prepare(config.getoption("--hypothesis-profile", None))


def register_examples():
    """Register the profiles of Hypothesis: the same examples every time, without a time limit.

    `make quick` takes few examples, `make slow` many; `tests.laws` has the numbers for laws that need more or fewer.
    """
    from hypothesis import settings  # noqa: PLC0415

    for name, examples in (("few", 10), ("some", 50), ("many", 250)):
        settings.register_profile(name, derandomize=True, deadline=None, database=None, max_examples=examples)


def prepare(profile=None):
    """Prepare a process that runs tests."""
    import torch  # noqa: PLC0415
    from hypothesis import settings  # noqa: PLC0415

    settings.load_profile(profile or "some")
    # The suite runs beside other processes; small tensors gain nothing from more threads.
    torch.set_num_threads(1)
    signal.signal(signal.SIGINT, signal.default_int_handler)  # which the background jobs of a shell ignore
    forks.keep_command_line()


@pytest.hookimpl(tryfirst=True)
def pytest_collection(session):
    """Import a share of the test modules before the others, if there are several workers.

    pytest rewrites the assertions of each module that it imports, and stores the code on disk. If all workers imported
    the modules in the same order, each of them would rewrite all of them.
    """
    workers = int(os.environ.get("PYTEST_XDIST_WORKER_COUNT", "1"))
    if workers == 1 or session.config.option.quick:
        return
    gc.disable()  # until the tests are collected: nearly everything that is made until then is kept
    paths = sorted(Path(__file__).parent.glob("test_*.py"), key=lambda path: path.stat().st_size)
    for path in paths[int(os.environ["PYTEST_XDIST_WORKER"].removeprefix("gw")) :: workers]:
        # If a library is missing, pytest reports it when it collects the module, which `make oldest` need not do.
        with contextlib.suppress(pytest.skip.Exception, ImportError):
            importlib.import_module(f"tests.{path.stem}")


def pytest_sessionstart(session):
    """Let a worker of pytest-xdist send two messages about a test that passes, and not six.

    Sending, receiving and printing them takes a fiftieth of the suite's time. The others say that a test begins and
    ends, and that it was set up and torn down, which only ``--verbose`` and ``--durations`` show.
    """
    options = session.config.option
    if options.verbose > 0 or options.durations:
        return
    for worker in session.config.pluginmanager.get_plugins():
        if type(worker).__name__ == "WorkerInteractor":
            worker.sendevent = functools.partial(send_if_telling, worker.sendevent)


def send_if_telling(send, name, **content):
    report = content.get("data", {})
    smooth = report.get("outcome") == "passed" and report.get("when") in ("setup", "teardown")
    if name not in ("logstart", "logfinish") and not smooth:
        send(name, **content)


def pytest_ignore_collect(collection_path, config):
    return (config.option.quick and collection_path in PLACES) or None


@pytest.hookimpl(trylast=True)  # after deselected tests have been removed
def pytest_collection_modifyitems(items):
    """Run long tests first, so that no worker is still busy with one of them when the others are done."""
    items.sort(key=lambda item: PLACES.get(item.path, len(PLACES)))
    items[:] = deal(items, int(os.environ.get("PYTEST_XDIST_WORKER_COUNT", "1")))


def deal(items, workers):
    """Order the tests for pytest-xdist, which gives each of the workers one of as many equal, consecutive parts.

    Long modules come first in each part. Modules that mostly wait go into every other part, so that the tests of the
    remaining parts have the cores meanwhile.
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
    """Exclude all objects that exist now from garbage collections, and collect rarely.

    With Python's usual thresholds, collecting takes a twentieth of the suite's time.
    """
    gc.freeze()
    gc.set_threshold(50_000, 20, 100)
    gc.enable()


@pytest.fixture
def store(tmp_path, monkeypatch):
    """An empty data folder."""
    monkeypatch.setenv("PROXDASA_DATA", str(tmp_path))
    return tmp_path


@pytest.fixture
def drawn(monkeypatch):
    """The figures that a test saves, as matplotlib objects; they are not rendered, which takes most of the time."""
    from matplotlib.figure import Figure  # noqa: PLC0415

    made = []
    monkeypatch.setattr(Figure, "savefig", lambda figure, *_, **__: made.append(figure))
    return made


@pytest.fixture
def laid_out(monkeypatch):
    """Figures that a test saves are laid out, with all their numbers and texts, but not rendered."""
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
    with warnings.catch_warnings(action="ignore"):  # selenium leaves sockets open
        browser.quit()


def screen(browser, size, scheme):
    """Set the size of the screen, and a light or dark colour scheme."""
    metrics = {"width": size[0], "height": size[1], "deviceScaleFactor": 1, "mobile": size == PHONE}
    browser.execute_cdp_cmd("Emulation.setDeviceMetricsOverride", metrics)
    features = [{"name": "prefers-color-scheme", "value": scheme}]
    browser.execute_cdp_cmd("Emulation.setEmulatedMedia", {"features": features})
