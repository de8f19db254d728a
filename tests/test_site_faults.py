"""Sites as processes on machines of their own, under faults: nobody hangs, the rest go on, nothing is wrong in the end.

The machines are network namespaces, which the tests make; they are skipped where that is not possible.
"""

import contextlib
import dataclasses
import math
import random
import shutil
import subprocess
import time
from concurrent.futures import ThreadPoolExecutor

import pytest
import torch

from proxdasa.engines.products import ExactProduct
from proxdasa.exit_codes import Code
from tests.namespaces import roads
from tests.processes import LINUX, commands, until
from tests.site_processes import NAMES, RING, SiteProcesses, objective, solution, tracking_error

pytestmark = LINUX
PATIENCE = 3.0
TRACKING = 1e-12
"""How far the mean of u may be from that of v in the end, relative to their size."""
MARGIN = 1e-6
"""How far the objective may be from that of the undisturbed run in the end, relative to it."""
OTHER_VERSION = "from proxdasa.sites import study\nstudy.version = lambda _: '0.0'\n"


def undisturbed(sites, _):
    sites.start()


def one_after_another(sites, links):
    """A site is killed, a disk is full, a link is cut, and a site stands still."""
    rng = random.Random(16)
    with small_disk(sites.folder / "dresden") as disk:
        sites.start().together()
        kill_and_start(sites, rng)
        sites.together()
        fill(sites, disk)
        cut_for_long(sites, links, ("aachen", "berlin"))
        sites.together()
        stand_still(sites, "celle")
        sites.together()
        assert set(sites.end().values()) == {0}
        keep(sites, "dresden")


def strangers(sites, _):
    """One site has another study file, another one another version: neither gets in, and the other two go on."""
    other = sites.folder / "other.toml"
    other.write_text(sites.file.read_text().replace("weight = 0.01", "weight = 0.02"))
    sites.start("aachen", "berlin").start("celle", file=other).start("dresden", more=OTHER_VERSION)
    codes = sites.end()
    assert codes == {"aachen": 0, "berlin": 0, "celle": Code.REFUSED, "dresden": Code.REFUSED}
    assert "refused: celle and berlin do not have the same study file" in sites.text("berlin") + sites.text("celle")
    assert "refused: dresden and aachen do not have the same version of proxdasa" in sites.text("aachen")
    assert "no neighbour of celle connected" in sites.text("celle")


def kill_and_start(sites, rng, most=1):
    """Kill sites at a random moment, and start them again after a random time."""
    time.sleep(rng.uniform(0, 1.0))
    victims = rng.sample(NAMES, rng.randint(1, most))
    sites.kill(*victims)
    time.sleep(rng.uniform(0, 2.0))
    sites.start(*victims)


def cut_for_long(sites, links, *cut):
    """Cut links until both ends have noticed and gone on, and for longer than patience."""
    began = time.monotonic()
    for link in cut:
        links.cut(*link)
    for a, b in cut:
        until(lambda a=a, b=b: sites.status(a)["neighbours"][b] != "counts" != sites.status(b)["neighbours"][a])
    sites.go_on(*NAMES)
    time.sleep(max(0.0, began + 1.2 * PATIENCE - time.monotonic()))
    for link in cut:
        links.restore(*link)


def stand_still(sites, name):
    with sites.freeze(name):
        others = [other for other in NAMES if other != name]
        until(lambda: all(sites.status(other)["neighbours"].get(name) != "counts" for other in others))
        sites.go_on(*others)


@contextlib.contextmanager
def small_disk(folder):
    """A file system of its own, with room for little more than what a site writes."""
    folder.mkdir()
    subprocess.run(["mount", "-t", "tmpfs", "-o", "size=512k", "proxdasa-test", folder], check=True)
    try:
        yield folder
    finally:
        subprocess.run(["umount", "--lazy", folder], check=True)


def fill(sites, disk):
    """Fill the disk of a site until it has said so; it goes on, which its neighbours see, and then there is room."""
    filler = disk / "filler"
    with contextlib.suppress(OSError), filler.open("wb", buffering=0) as file:
        while True:
            file.write(bytes(4096))
    until(lambda: "No space left on device; the site goes on" in sites.text(disk.name))
    sites.go_on("aachen", "celle")
    neighbours = sites.status("aachen")["neighbours"]
    filler.unlink()
    assert neighbours[disk.name] == "counts"
    sites.go_on(disk.name)


def keep(sites, name):
    """Move the results of a site from a file system that will be gone."""
    shutil.copytree(sites.folder / name, sites.folder / f"{name}-kept")
    sites.places[name] = sites.folder / f"{name}-kept"


# Further stories, each about one fault, for ``make slow``.


def killed_at_random(seed):
    def story(sites, _):
        rng = random.Random(seed)
        sites.start().together()
        for _ in range(5):
            kill_and_start(sites, rng, most=2)
        sites.together()

    story.__name__ = f"killed_at_random_{seed}"
    return story


def power_cut(sites, _):
    """All sites are killed while one of them is away, so that nobody knows which rounds were counted."""
    sites.start().together()
    sites.kill("celle")
    sites.go_on("aachen", "berlin", "dresden", steps=20)
    sites.kill("aachen", "berlin", "dresden")
    sites.start().together()


def cut(sites, links):
    sites.start().together()
    cut_for_long(sites, links, ("celle", "dresden"))
    sites.together()


def halves(sites, links):
    sites.start().together()
    cut_for_long(sites, links, ("aachen", "berlin"), ("celle", "dresden"))
    sites.together()


def late(sites, _):
    sites.start("aachen", "berlin", "celle")
    until(lambda: sites.iteration("berlin") > 10)
    sites.start("dresden").together()


def slow_link(sites, links):
    """A link that takes about a tenth of a second for a row."""
    links.limit("berlin", "celle", "24kbit")
    sites.start().together()
    sites.go_on(*NAMES)


def stopped(sites, _):
    sites.start().together()
    for name in ("berlin", "aachen"):
        stand_still(sites, name)
        sites.together()


def never_there(sites, _):
    sites.start("aachen", "berlin", "celle")
    until(lambda: sites.iteration("berlin") > 10)


def wrong_clock(sites, links):
    """The clock of a whole process, TLS included, is hours ahead; one that is hours behind is refused with a reason."""
    library = build_clock(sites.folder)
    ahead, behind = ({"LD_PRELOAD": str(library), "PROXDASA_TEST_SKEW": str(hours * 3600)} for hours in (5, -5))
    sites.start("dresden", env=behind, fork=False)
    assert sites.running["dresden"].wait() == Code.REFUSED
    assert "is this clock slow?" in sites.text("dresden")
    sites.start("dresden", env=ahead, fork=False)
    sites.start("aachen", "berlin", "celle").together()
    assert sites.status("dresden")["at"] > time.time() + 4 * 3600


def full_in_the_end(sites, _):
    """There is no room for the model of a site when it is done, but a little later there is."""
    with small_disk(sites.folder / "dresden") as disk:
        sites.start().together()
        filler = disk / "filler"
        with contextlib.suppress(OSError), filler.open("wb", buffering=0) as file:
            while True:
                file.write(bytes(4096))
        codes = sites.end("aachen", "berlin", "celle")
        assert set(codes.values()) == {0}
        until(lambda: "make room" in sites.text("dresden"))
        filler.unlink()
        assert sites.end() == dict.fromkeys(NAMES, 0)
        keep(sites, "dresden")


CLOCK = """
#define _GNU_SOURCE
#include <dlfcn.h>
#include <stdlib.h>
#include <sys/time.h>
#include <time.h>
static long skew(void) { const char *text = getenv("PROXDASA_TEST_SKEW"); return text ? atol(text) : 0; }
int clock_gettime(clockid_t clock, struct timespec *at) {
    static int (*right)(clockid_t, struct timespec *);
    if (!right) right = dlsym(RTLD_NEXT, "clock_gettime");
    int code = right(clock, at);
    if (!code && clock == CLOCK_REALTIME) at->tv_sec += skew();
    return code;
}
int gettimeofday(struct timeval *at, void *zone) {
    struct timespec now;
    int code = clock_gettime(CLOCK_REALTIME, &now);
    at->tv_sec = now.tv_sec;
    at->tv_usec = now.tv_nsec / 1000;
    return code;
}
time_t time(time_t *at) {
    struct timespec now;
    clock_gettime(CLOCK_REALTIME, &now);
    if (at) *at = now.tv_sec;
    return now.tv_sec;
}
"""
"""A library that shifts the clock of a process, as the system's own functions tell it."""


def build_clock(folder):
    if not shutil.which("cc"):
        pytest.skip("a clock that is wrong for TLS too needs a C compiler")
    (folder / "clock.c").write_text(CLOCK)
    command = ["cc", "-shared", "-fPIC", "-o", folder / "clock.so", folder / "clock.c", "-ldl"]
    subprocess.run(command, check=True)
    return folder / "clock.so"


STORIES = {
    undisturbed: {"iterations": 20, "hold": 20, "patience": 60.0, "pause": 0.0},
    one_after_another: {"iterations": 200, "hold": 40, "pause": 0.08},
    strangers: {"wait": 8.0, "iterations": 90, "hold": 20},
}
"""What is always tested."""
ALONE = {
    killed_at_random(1): {}, killed_at_random(2): {}, power_cut: {}, cut: {}, halves: {}, late: {"wait": 6.0},
    slow_link: {}, stopped: {}, wrong_clock: {}, full_in_the_end: {},
}  # fmt: skip
"""Stories for ``make slow`` in which all end together."""
MORE = {**ALONE, never_there: {"wait": 6.0}}


@dataclasses.dataclass
class Told:
    """The sites of a story, and what went wrong."""

    sites: SiteProcesses | None = None
    error: BaseException | None = None


def tell(stories, folder, at_once=3):
    """All stories, some at once: they mostly wait."""
    with ThreadPoolExecutor(at_once) as pool:
        found = {story: pool.submit(tell_one, story, settings, folder) for story, settings in stories.items()}
    return {story: future.result() for story, future in found.items()}


def tell_one(story, settings, folder):
    told, place = Told(), folder / story.__name__
    place.mkdir()
    label = "".join(word[0] for word in story.__name__.split("_")) + story.__name__[-1]
    try:
        with roads(label, RING) as links, commands(place) as start:
            addresses = {name: f"{address}:7443" for name, address in links.addresses.items()}
            settings = {"patience": PATIENCE, "networks": links.namespaces, **settings}
            told.sites = SiteProcesses(place, start, addresses, **settings)
            story(told.sites, links)
            told.sites.end()
    except BaseException as error:
        told.error = error
    return told


@pytest.fixture(scope="module")
def told(tmp_path_factory):
    return tell(STORIES, tmp_path_factory.mktemp("faults"))


@pytest.fixture(scope="module")
def told_more(tmp_path_factory):
    return tell(MORE, tmp_path_factory.mktemp("more-faults"))


def ended(told, story):
    """The sites of a story that was told to its end."""
    if isinstance(told[story].error, OSError) and told[story].sites is None:
        pytest.skip(str(told[story].error))
    if told[story].error:
        raise told[story].error
    return told[story].sites


def check_end(sites, *names):
    """The sites, by default all, have made their last iteration, and agree on the solution of their problem."""
    names, K = names or NAMES, sites.study.setup.iterations
    logs = "\n".join(f"{name}:\n{sites.text(name)}" for name in names)
    assert {name: sites.running[name].poll() for name in names} == dict.fromkeys(names, 0), logs
    assert [result.iterations for result in sites.results(*names)] == [K] * len(names), logs
    assert tracking_error(sites, *names) <= TRACKING, logs
    best = objective(sites, solution(sites, *names), *names)
    for x in sites.state("x", *names):
        assert objective(sites, x, *names) == pytest.approx(best, rel=MARGIN), logs


def test_undisturbed_sites_on_four_machines_have_the_bits_of_the_simulator(told):
    sites = ended(told, undisturbed)
    setup = sites.study.setup
    expected = dataclasses.replace(setup, exact=True).run().state
    x, W = expected["x"], ExactProduct(setup.network.W, torch.float64)
    for _ in range(math.ceil(math.log(sites.study.agreement) / math.log(setup.network.rho))):
        x = W(x)  # the last rounds
    assert torch.equal(sites.state("x"), x[0])
    for name in ("z", "u", "v"):
        assert torch.equal(sites.state(name), expected[name][0]), name


def test_several_faults_one_after_another(told):
    check_end(ended(told, one_after_another))


def test_sites_with_another_file_or_version_are_refused_and_the_others_go_on(told):
    check_end(ended(told, strangers), "aachen", "berlin")


@pytest.mark.slow
@pytest.mark.parametrize("story", ALONE, ids=lambda story: story.__name__)
def test_one_fault(told_more, story):
    check_end(ended(told_more, story))


@pytest.mark.slow
def test_a_site_that_never_comes(told_more):
    check_end(ended(told_more, never_there), "aachen", "berlin", "celle")
