"""Two machines on one: network namespaces with a link between them, for tests and benchmarks."""

import contextlib
import os
import shutil
import subprocess

ADDRESSES = ("10.77.0.1", "10.77.0.2")
"""They exist within the namespaces only."""


def ip(*words):
    subprocess.run(["ip", *words], check=True, capture_output=True, text=True, timeout=60)


def handle(name):
    """An open file that names the namespace."""
    return os.open(f"/run/netns/{name}", os.O_RDONLY)


@contextlib.contextmanager
def machines(rate=None):
    """The names of two namespaces that are joined by the interfaces veth0, at most so fast, such as ``100mbit``.

    OSError says why there are none.
    """
    if os.geteuid() != 0 or not shutil.which("ip"):
        raise OSError("network namespaces are made by root, with the program ip")
    names = [f"proxdasa-{os.getpid()}-{letter}" for letter in "ab"]
    try:
        try:
            _join(names, rate)
        except subprocess.CalledProcessError as error:
            raise OSError(f"no network namespaces can be made here: {error.stderr.strip()}") from error
        yield names
    finally:
        for name in names:
            with contextlib.suppress(subprocess.CalledProcessError):
                ip("netns", "delete", name)


def _join(names, rate):
    for name in names:
        ip("netns", "add", name)
    ip("-n", names[0], "link", "add", "veth0", "type", "veth", "peer", "name", "veth0", "netns", names[1])
    for name, address in zip(names, ADDRESSES, strict=True):
        ip("-n", name, "address", "add", f"{address}/24", "dev", "veth0")
        for interface in ("lo", "veth0"):
            ip("-n", name, "link", "set", interface, "up")
        if rate:
            limit = ("tbf", "rate", rate, "burst", "64kb", "latency", "200ms")
            ip("netns", "exec", name, "tc", "qdisc", "add", "dev", "veth0", "root", *limit)
