"""Several machines on one: network namespaces with links between them, for tests and benchmarks."""

import contextlib
import os
import shutil
import subprocess

ADDRESSES = ("10.77.0.1", "10.77.0.2")
"""Addresses that exist only within the namespaces."""


def ip(*words):
    subprocess.run(["ip", *words], check=True, capture_output=True, text=True, timeout=60)


def handle(name):
    """An open file that names the namespace."""
    return os.open(f"/run/netns/{name}", os.O_RDONLY)


@contextlib.contextmanager
def machines(rate=None, delay=None):
    """The names of two namespaces that the interfaces veth0 join, with a limited rate, such as ``100mbit``.

    With a delay, such as ``20ms``, every packet arrives that much later, which not every kernel supports. Raises
    OSError, with the reason, if the namespaces cannot be made.
    """
    names = [f"proxdasa-{os.getpid()}-{message}" for message in "ab"]
    with _namespaces(names):
        _explain(_join, names, rate, delay)
        yield names


@contextlib.contextmanager
def _namespaces(names):
    """Namespaces with these names, which are removed at the end."""
    if os.geteuid() != 0 or not shutil.which("ip"):
        raise OSError("network namespaces are made by root, with the program ip")
    try:
        for name in names:
            _explain(ip, "netns", "add", name)
        yield
    finally:
        for name in names:
            with contextlib.suppress(subprocess.CalledProcessError):
                ip("netns", "delete", name)


def _explain(act, *words):
    try:
        act(*words)
    except subprocess.CalledProcessError as error:
        raise OSError(f"network namespaces with such links cannot be made here: {error.stderr.strip()}") from error


def _join(names, rate, delay):
    ip("-n", names[0], "link", "add", "veth0", "type", "veth", "peer", "name", "veth0", "netns", names[1])
    for name, address in zip(names, ADDRESSES, strict=True):
        ip("-n", name, "address", "add", f"{address}/24", "dev", "veth0")
        for interface in ("lo", "veth0"):
            ip("-n", name, "link", "set", interface, "up")
        if rate:
            _limit(name, "veth0", rate, delay)


def _limit(name, interface, rate, delay=None):
    limit = ("tbf", "rate", rate, "burst", "64kb", "latency", "200ms")
    if delay:
        limit = ("netem", "rate", rate, "delay", delay)
    ip("netns", "exec", name, "tc", "qdisc", "add", "dev", interface, "root", *limit)


@contextlib.contextmanager
def roads(label, links):
    """Machines with the names in the links, each with its own address; raises OSError if they cannot be made.

    There is a pair of interfaces for each link, and no other connection: only neighbours can reach each other.
    """
    names = sorted({name for link in links for name in link})
    made = Roads({name: f"proxdasa-{os.getpid()}-{label}-{name}" for name in names})
    with _namespaces(made.namespaces.values()):
        _explain(made.build, links)
        yield made


class Roads:
    """Links between machines, which can be cut."""

    def __init__(self, namespaces):
        self.namespaces = namespaces
        """The network namespaces by the names of the machines."""
        self.addresses = {name: f"10.77.1.{number}" for number, name in enumerate(namespaces, 1)}

    def build(self, links):
        for name, address in self.addresses.items():
            self._ip(name, "address", "add", f"{address}/32", "dev", "lo")
            self._ip(name, "link", "set", "lo", "up")
        for a, b in links:
            peer = ("peer", "name", f"to-{a}", "netns", self.namespaces[b])
            self._ip(a, "link", "add", f"to-{b}", "type", "veth", *peer)
            self.restore(a, b)

    def cut(self, a, b):
        """Take down the interface of one end; the other end only notices silence."""
        self._ip(a, "link", "set", f"to-{b}", "down")

    def restore(self, a, b):
        """Bring up the interfaces of both ends, and the routes, which an end loses with its interface."""
        for here, there in ((a, b), (b, a)):
            self._ip(here, "link", "set", f"to-{there}", "up")
        for here, there in ((a, b), (b, a)):
            ends = ("dev", f"to-{there}", "src", self.addresses[here])
            self._ip(here, "route", "replace", f"{self.addresses[there]}/32", *ends)

    def limit(self, a, b, rate):
        """Limit the rate of a link in each direction, such as ``100kbit``."""
        for here, there in ((a, b), (b, a)):
            _limit(self.namespaces[here], f"to-{there}", rate)

    def _ip(self, name, *words):
        ip("-n", self.namespaces[name], *words)
