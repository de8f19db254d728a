"""Downloads of data sets, and the commands data fetch and data list."""

import bz2
import dataclasses
import gzip
import hashlib
import http.server
import re
import socketserver
import threading

import pytest
from typer.testing import CliRunner

from proxdasa import cli, data
from proxdasa.data import sources
from proxdasa.data.sources import File, Source

CLOSED = "http://127.0.0.1:9/"  # the discard port, where nobody listens
IMAGES = sources.MNIST.files[0].name


# downloads, from this machine to itself


@pytest.fixture
def server(monkeypatch):
    """A server on this machine: what it has, by path, as bytes or as an error code, and what it was asked for."""
    pages, asked = {}, []

    class Handler(http.server.BaseHTTPRequestHandler):
        def do_GET(self):
            asked.append(self.path)
            page = pages.get(self.path, 404)
            if isinstance(page, int):
                self.send_error(page)
                return
            body, announced = page if isinstance(page, tuple) else (page, len(page))
            self.send_response(200)
            self.send_header("Content-Length", str(announced))
            self.end_headers()
            self.wfile.write(body)

        def log_message(self, *_):
            """Quiet."""

    monkeypatch.setenv("no_proxy", "127.0.0.1")
    with socketserver.TCPServer(("127.0.0.1", 0), Handler) as listening:
        listening.timeout = 5
        thread = threading.Thread(target=listening.serve_forever, kwargs={"poll_interval": 0.01}, daemon=True)
        thread.start()
        try:
            yield f"http://127.0.0.1:{listening.server_address[1]}", pages, asked
        finally:
            listening.shutdown()
            thread.join(timeout=60)
    assert not thread.is_alive()


PLAIN, PACKED = b"1 1:1\n" * 40_000, gzip.compress(b"second")


@pytest.fixture
def tiny(server, monkeypatch, tmp_path):
    """A source of two files, one plain and one compressed, on two mirrors of the server."""
    address, pages, asked = server
    files = (
        File("one", 40_000, hashlib.sha256(PLAIN).hexdigest(), len(PLAIN)),
        File("two", 1, hashlib.sha256(b"second").hexdigest(), len(PACKED), ".gz", hashlib.md5(PACKED).hexdigest()),
    )
    monkeypatch.setitem(sources.SOURCES, "tiny", Source("tiny", (f"{address}/a/", f"{address}/b/"), files))
    pages.update({"/a/one": PLAIN, "/a/two.gz": PACKED, "/b/one": PLAIN, "/b/two.gz": PACKED})
    return tmp_path / "new" / "folder", pages, asked


def test_fetch_stores_and_then_keeps(tiny):
    folder, _, asked = tiny
    calls = []
    paths = data.fetch("tiny", folder, lambda *call: calls.append(call))
    assert paths == [folder / "tiny" / "one", folder / "tiny" / "two.gz"]
    assert [path.read_bytes() for path in paths] == [PLAIN, PACKED]
    assert sorted(path.name for path in (folder / "tiny").iterdir()) == ["one", "two.gz"]
    assert asked == ["/a/one", "/a/two.gz"]
    assert [call for call in calls if call[1] == call[2]] == [
        ("one", len(PLAIN), len(PLAIN)),
        ("two.gz", len(PACKED), len(PACKED)),
    ]
    assert [call[1] for call in calls if call[0] == "one"] == sorted({call[1] for call in calls if call[0] == "one"})
    assert len(calls) > 2
    assert data.fetch("tiny", folder) == paths
    assert len(asked) == 2


def test_fetch_into_the_data_folder(tiny, store):
    assert data.fetch("tiny") == [store / "tiny" / "one", store / "tiny" / "two.gz"]


def test_right_files_in_another_form_are_kept_and_wrong_ones_replaced(tiny):
    folder, _, asked = tiny
    place = folder / "tiny"
    place.mkdir(parents=True)
    (place / "one.bz2").write_bytes(bz2.compress(PLAIN))
    (place / "two").write_bytes(b"damaged")
    assert data.fetch("tiny", folder) == [place / "one.bz2", place / "two.gz"]
    assert asked == ["/a/two.gz"]
    # The damaged plain file would be read before the good one.
    assert sorted(path.name for path in place.iterdir()) == ["one.bz2", "two.gz"]
    (place / "one.bz2").write_bytes(bz2.compress(PLAIN)[:-9])
    (place / "two.gz").write_bytes(PACKED[:-2])
    assert data.fetch("tiny", folder) == [place / "one", place / "two.gz"]
    assert sorted(path.name for path in place.iterdir()) == ["one", "two.gz"]
    assert (place / "two.gz").read_bytes() == PACKED


@pytest.mark.parametrize(
    ("answer", "reason"),
    [
        (404, "HTTP 404 Not Found"),
        (503, "HTTP 503 Service Unavailable"),
        (b"x" * len(PLAIN), "wrong checksum, sha256 [0-9a-f]{64} instead of [0-9a-f]{64}"),
        (PLAIN[:1000], f"ended after 1000 of {len(PLAIN)} bytes"),
        ((PLAIN[:1000], len(PLAIN)), f"ended after 1000 of {len(PLAIN)} bytes|broke off"),
        (b"", "ended after 0 of"),
        (PLAIN + b"x", f"sends more than the {len(PLAIN)} bytes"),
    ],
)
def test_the_second_mirror_helps_and_without_it_nothing_is_left(tiny, answer, reason):
    folder, pages, asked = tiny
    pages["/a/one"] = answer
    assert data.fetch("tiny", folder)[0].read_bytes() == PLAIN
    assert asked == ["/a/one", "/b/one", "/a/two.gz"]
    (folder / "tiny" / "one").unlink()
    pages["/b/one"] = 500
    target = folder / "tiny" / "one"
    with pytest.raises(
        data.FetchError, match=rf"/a/one: ({reason}).*; .*/b/one: HTTP 500 .*by hand at {re.escape(str(target))}$"
    ):
        data.fetch("tiny", folder)
    assert [path.name for path in (folder / "tiny").iterdir()] == ["two.gz"]


def test_a_wrong_md5_is_refused(tiny):
    folder, pages, _ = tiny
    pages["/a/two.gz"] = pages["/b/two.gz"] = PACKED[:-1] + b"?"
    with pytest.raises(data.FetchError, match="wrong checksum, md5"):
        data.fetch("tiny", folder)


def test_a_damaged_file_stays_until_there_is_a_better_one(tiny):
    folder, pages, _ = tiny
    target = data.fetch("tiny", folder)[0]
    target.write_bytes(b"damaged")
    pages["/a/one"] = pages["/b/one"] = 500
    with pytest.raises(data.FetchError):
        data.fetch("tiny", folder)
    assert target.read_bytes() == b"damaged"


def test_no_network_and_no_such_data_set(monkeypatch, tmp_path):
    monkeypatch.setenv("no_proxy", "127.0.0.1")
    for name in ("a9a", "mnist"):
        monkeypatch.setitem(sources.SOURCES, name, dataclasses.replace(sources.SOURCES[name], mirrors=(CLOSED,)))
    with pytest.raises(
        data.FetchError, match=rf"no connection.*by hand at {re.escape(str(tmp_path / 'a9a' / 'a9a'))}$"
    ):
        data.fetch("a9a", tmp_path)
    with pytest.raises(data.FetchError, match=rf"{IMAGES}.gz could not be downloaded"):
        data.fetch("mnist", str(tmp_path))
    with pytest.raises(ValueError, match="no data set 'iris' to download; accepted: a9a, mnist"):
        data.fetch("iris", tmp_path)


def test_an_interrupted_download_leaves_nothing(tiny):
    folder, _, _ = tiny

    def interrupt(*_):
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        data.fetch("tiny", folder, interrupt)
    assert list((folder / "tiny").iterdir()) == []


# the command line


def call(*arguments):
    return CliRunner().invoke(cli.app, ["data", *map(str, arguments)])


def test_fetch_from_the_command_line(tiny):
    folder, pages, _ = tiny
    one = folder / "tiny" / "one"
    result = call("fetch", "tiny", "--folder", folder)
    assert (result.exit_code, result.stdout.splitlines()[0]) == (0, f"{one}: downloaded, checksum correct")
    result = call("fetch", "tiny", "--folder", folder)
    assert (result.exit_code, result.stdout.splitlines()[0]) == (0, f"{one}: already there, checksum correct")
    one.unlink()
    pages["/a/one"] = pages["/b/one"] = 503
    result = call("fetch", "tiny", "--folder", folder)
    assert result.exit_code == 2
    assert len(result.stderr.splitlines()) == 1
    assert result.stderr.startswith("error: one could not be downloaded")
    assert result.stderr.strip().endswith(str(one))
    result = call("fetch", "iris")
    assert (result.exit_code, result.stderr) == (
        2,
        "error: there is no data set 'iris' to download; accepted: a9a, mnist, tiny\n",
    )


def test_a_folder_that_cannot_be_made(tiny, tmp_path):
    (tmp_path / "file").write_text("")
    result = call("fetch", "tiny", "--folder", tmp_path / "file")
    assert result.exit_code == 2
    assert len(result.stderr.splitlines()) == 1
    assert str(tmp_path / "file") in result.stderr


def test_list_says_what_is_there_and_what_is_missing(store):
    (store / "a9a").mkdir()
    (store / "a9a" / "a9a.bz2").write_bytes(b"")
    result = call("list")
    lines = result.stdout.splitlines()
    assert result.exit_code == 0
    assert lines[0].startswith(f"data folder: {store} ")
    assert lines[1] == f"a9a: {store / 'a9a' / 'a9a.bz2'}"
    assert lines[2] == f"a9a: {store / 'a9a' / 'a9a.t'} is missing (proxdasa data fetch a9a)"
    assert lines[3] == f"mnist: {store / 'mnist' / IMAGES}.gz is missing (proxdasa data fetch mnist)"
    assert len(lines) == 8
    assert lines[7].startswith("digits, breast_cancer: ")
    elsewhere = call("list", "--folder", store / "other").stdout.splitlines()
    assert elsewhere[0] == f"data folder: {store / 'other'}"
    assert "is missing" in elsewhere[1]
