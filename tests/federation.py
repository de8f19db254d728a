"""Sites of a study within one process, over relays that a test can cut."""

import dataclasses
import socket
import threading
import time

from proxdasa.sites import keys
from proxdasa.sites.connections import Credentials
from proxdasa.sites.rehearsal import HOST, free_ports
from proxdasa.sites.site import Site
from proxdasa.sites.study import read_study


class Relay:
    """Passes bytes on unless it is cut, after a delay if there is one, and keeps a copy if ``remember`` says so."""

    def __init__(self, target, remember=True, delay=0.0):
        self.target, self.cut, self.seen, self.remember, self.delay = target, False, bytearray(), remember, delay
        self._server = socket.create_server((HOST, 0))
        self.port = self._server.getsockname()[1]
        self._open = [self._server]
        threading.Thread(target=self._accept, daemon=True).start()

    def close(self):
        for each in self._open:
            each.close()

    def _accept(self):
        while True:
            caller = None
            try:
                caller, _ = self._server.accept()
                self._wait()
                answerer = socket.create_connection((HOST, self.target))
            except OSError:
                if caller:
                    caller.close()
                if self._server.fileno() < 0:
                    return
                continue
            self._open += [caller, answerer]
            for pair in ((caller, answerer), (answerer, caller)):
                threading.Thread(target=self._pump, args=pair, daemon=True).start()

    def _pump(self, source, sink):
        try:
            while data := source.recv(2**16):
                self.seen += data if self.remember else b""
                time.sleep(self.delay)
                self._wait()
                sink.sendall(data)
        except OSError:
            pass
        for each in (source, sink):
            each.close()

    def _wait(self):
        while self.cut:
            time.sleep(0.01)


def _wait(happened, timeout=30):
    until = time.monotonic() + timeout
    while not happened() and time.monotonic() < until:
        time.sleep(0.005)


class Killed(BaseException):
    """Ends a site without a checkpoint, and without telling its neighbours."""


def make_keys(folder, names):
    keys.make_authority(folder / "authority")
    (folder / keys.CERTIFICATE).write_bytes((folder / "authority" / keys.CERTIFICATE).read_bytes())
    for name in names:
        keys.sign(folder / "authority", keys.make_request(name, folder)[1])


def credentials(folder, name):
    return Credentials(folder / f"{name}.crt", folder / f"{name}.key", folder / keys.CERTIFICATE)


STUDY = """
iterations = {iterations}
{more}
seed = 3
dtype = "float64"
algorithm = {{ name = "{method}", gamma = 0.4, alpha = 0.6 }}
regularizer = {{ name = "L1", weight = 0.01 }}
network = {{ name = "ring", agents = {n} }}
observe_every = {observe_every}
[problem]
name = "Quadratic"
A = {A}
b = {b}
[sites]
patience = {patience}
wait = {wait}
[sites.addresses]
{addresses}
"""


def write_study(path, addresses, iterations, patience, wait, method="ProxDASAGT", more="", observe_every=50):
    """Write a study in which the sites are a ring, and their quadratics differ."""
    n = len(addresses)
    lines = "\n".join(f'{name} = "{address}"' for name, address in addresses.items())
    A = [[[1.0 + 0.3 * i, 0.1], [0.1, 1.5 - 0.2 * i]] for i in range(n)]
    b = [[3.0 * i, 1.0 - i] for i in range(n)]
    settings = {"iterations": iterations, "patience": patience, "wait": wait, "method": method, "more": more}
    settings["observe_every"] = observe_every
    path.write_text(STUDY.format(n=n, A=A, b=b, addresses=lines, **settings))
    return path


SELDOM = 60.0
"""Seconds between checkpoints; a test that needs one asks for it (`Federation.wait_for_checkpoint`)."""


class Federation:
    """The sites of a ring, whose quadratics differ, each in a thread."""

    def __init__(
        self, folder, iterations=300, names=("aachen", "berlin", "celle", "dresden"), patience=1.0, wait=20.0,
        method="ProxDASAGT", more="", delay=0.0,
    ):  # fmt: skip
        """``delay`` is how many seconds a link takes each way."""
        self.folder, self.names = folder, names
        folder.mkdir()
        make_keys(folder, names)
        self.ports = dict(zip(names, free_ports(len(names)), strict=True))
        addresses = {name: f"{HOST}:{port}" for name, port in self.ports.items()}
        self.file = write_study(folder / "study.toml", addresses, iterations, patience, wait, method, more)
        self.study = read_study(self.file)
        self.relays = {(a, b): Relay(self.ports[b], delay=delay) for a in names for b in self.study.weights(a)}
        self.sites, self.results, self.errors, self.pauses = {}, {}, {}, {}
        self._threads, self._doomed = {}, set()
        self.data = dict.fromkeys(names)

    def start(self, *names):
        for name in names or self.names:
            self._threads[name] = threading.Thread(target=self._run, args=(name,), name=name, daemon=True)
            self._threads[name].start()
        return self

    def kill(self, name):
        self._doomed.add(name)
        self._threads[name].join(20)
        self._doomed.discard(name)

    def cut(self, *links, restore=False):
        for link in links:
            self.relays[link].cut = self.relays[link[::-1]].cut = not restore

    def wait_for(self, k, name="aachen", timeout=30):
        _wait(lambda: name in self.sites and self.sites[name].links.k >= k, timeout)

    def wait_for_checkpoint(self, name):
        """Have a site that will be killed save a checkpoint, and wait until it has made iterations after it.

        So it can go on, but its neighbours have counted rounds of which it will know nothing.
        """
        _wait(lambda: name in self.sites)
        site = self.sites[name]
        site.checkpoint_every = 0.0
        _wait(lambda: any((self.folder / name).glob("checkpoints/*/state.safetensors")))
        site.checkpoint_every = SELDOM
        k = site.links.k
        _wait(lambda: site.links.k >= k + 3)

    def slow_down(self):
        """Let the sites take longer over an iteration, so that enough are left even if this thread has to wait.

        They become slow one after another, and wait for each other for a quarter of their patience.
        """
        self.pauses = dict.fromkeys(self.names, self.study.patience / 8)

    def wait_for_links(self, *links):
        """Wait until both ends count these links; all sites are slow meanwhile, so that iterations are left.

        If only some were slow, the others would lose patience and leave them behind.
        """
        self.slow_down()
        _wait(lambda: all(self._counts(a, b) and self._counts(b, a) for a, b in links))
        self.pauses = {}

    def _counts(self, a, b):
        links = self.sites[a].links
        return links.counts(links.all[b])

    def join(self, timeout=60):
        """Wait for all sites; the names of those that do not end."""
        until = time.monotonic() + timeout
        for thread in self._threads.values():
            thread.join(max(0.0, until - time.monotonic()))
        for relay in self.relays.values():
            relay.cut = False
            relay.close()
        return [name for name, thread in self._threads.items() if thread.is_alive()]

    def state(self, variable):
        """A variable of all sites that finished, ``[sites, d]``, in the order of their names."""
        import torch  # noqa: PLC0415

        return torch.cat([self.results[name].state[variable][:, 0] for name in self.names if name in self.results])

    def make(self, name):
        addresses = dict(self.study.addresses)
        addresses |= {other: f"{HOST}:{relay.port}" for (a, other), relay in self.relays.items() if a == name}
        study = dataclasses.replace(read_study(self.file, self.data[name]), addresses=addresses)

        def watch(_k, _iterations):
            time.sleep(self.pauses.get(name, 0.002))
            if name in self._doomed:
                raise Killed

        place, listen = self.folder / name, f"{HOST}:{self.ports[name]}"
        return Site(study, name, credentials(self.folder, name), place, listen, SELDOM, watch)

    def _run(self, name):
        try:
            self.sites[name] = self.make(name)
            self.results[name] = self.sites[name].run()
        except Killed:
            pass
        except Exception as error:
            self.errors[name] = error
