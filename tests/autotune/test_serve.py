"""`autotune serve`: live answers in a browser, nothing from elsewhere, nothing for strangers."""

from __future__ import annotations

import os
import shutil
import socket
import subprocess
import sys
import time
import urllib.error
import urllib.request

import pytest

from autotune.__main__ import main
from autotune.serving.answers import parse_more, predicted, searched
from simcore.errors import InputError

pytest.importorskip("vl_convert", reason="needs the extra 'serve'")
BASE = {"model": "llama3-8b", "system": "h100-sxm", "gpus": "16", "tp": "2"}


def test_a_prediction_shows_its_figures():
    answer = predicted(BASE)
    assert "tokens/s/GPU" in answer.html
    assert {"memory", "waterfall", "timeline", "roofline"} <= set(answer.figures)


@pytest.mark.parametrize(("changes", "words"), [
    ({"tp": "7"}, "tp"), ({"gpus": "x"}, "gpus"), ({"model": "<b>x</b>"}, "&lt;b&gt;x"),
    ({"more": "tp"}, "field=value"), ({"more": "speed=2"}, "speed"), ({"gpus": ""}, "gpus")])
def test_problems_are_shown_as_text(changes, words):
    answer = predicted({**BASE, **changes})
    assert 'role="alert"' in answer.html
    assert words in answer.html
    assert "<b>x" not in answer.html


def test_a_search_holds_what_is_filled_in():
    answer = searched({**BASE, "pp": "1", "more": "mbs=1"})
    assert answer.strategy is not None
    assert answer.strategy["tp"] == 2
    assert "ranking-table" in answer.html
    assert 'role="alert"' in searched({"model": "llama3-70b", "system": "h100-sxm",
                                       "gpus": "1"}).html


def test_more_fields():
    assert parse_more("zero=3, overlap-p2p=true") == {"zero": "3", "overlap_p2p": "true"}
    with pytest.raises(InputError):
        parse_more("zero")


@pytest.mark.parametrize(("options", "status", "words"), [
    (["--host", "0.0.0.0"], 2, "--allow-remote"), (["--port", "0"], 2, "--port"),
    (["--port", "taken"], 1, "cannot listen")])
def test_addresses_that_are_refused(options, status, words, capsys):
    pytest.importorskip("nicegui", reason="needs the extra 'serve'")
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        given = [str(taken.getsockname()[1]) if o == "taken" else o for o in options]
        assert main(["serve", *given]) == status
    assert words in capsys.readouterr().err


@pytest.fixture(scope="module")
def address(tmp_path_factory):
    """A running server."""
    pytest.importorskip("nicegui", reason="needs the extra 'serve'")
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    folder = tmp_path_factory.mktemp("serve")
    process = subprocess.Popen(
        [sys.executable, "-m", "autotune", "serve", "--port", str(port)], cwd=folder,
        stdout=subprocess.PIPE, stderr=subprocess.STDOUT,
        # NiceGUI has a way of its own of running below pytest, which a process is not.
        env={**{k: v for k, v in os.environ.items() if not k.startswith(("PYTEST", "NICEGUI"))},
             "PYTHONPATH": os.pathsep.join(sys.path)})
    url = f"http://127.0.0.1:{port}"
    for _ in range(300):
        if process.poll() is not None:
            pytest.fail(f"the server ended: {process.stdout.read().decode()[-2000:]}")
        try:
            urllib.request.urlopen(url, timeout=5).read()
            break
        except OSError:
            time.sleep(0.2)
    yield url
    process.terminate()
    process.wait(timeout=20)


def test_other_host_names_are_refused(address):
    request = urllib.request.Request(address, headers={"Host": "evil.example"})
    with pytest.raises(urllib.error.HTTPError) as found:
        urllib.request.urlopen(request, timeout=10)
    assert found.value.code == 400


def test_the_page_in_a_browser(address):
    path = shutil.which("chromium") or shutil.which("google-chrome")
    if path is None:
        pytest.skip("needs Chromium")
    api = pytest.importorskip("playwright.sync_api", reason="needs playwright")
    with api.sync_playwright() as running:
        browser = running.chromium.launch(executable_path=path, args=[
            "--no-sandbox", "--disable-gpu", "--disable-background-networking"])
        page = browser.new_page(viewport={"width": 1300, "height": 900})
        said, asked = [], []
        page.on("console", lambda m: said.append((m.type, m.text)))
        page.on("pageerror", lambda error: said.append(("error", str(error))))
        page.on("request", lambda r: asked.append(r.url))
        page.goto(address)
        page.wait_for_selector("#shown h2")
        page.wait_for_function(
            "document.querySelectorAll('#shown .drawing[data-drawn=yes]').length == 6")
        page.get_by_label("tp", exact=True).fill("4")
        page.wait_for_function("document.querySelector('#shown').innerText.includes('tp4 pp4')")
        page.get_by_label("tp", exact=True).fill("7")
        page.wait_for_selector("#shown [role=alert]")
        page.get_by_label("tp", exact=True).fill("8")
        page.get_by_label("pp", exact=True).fill("")
        page.wait_for_function("!document.querySelector('#shown [role=alert]')")
        page.click("#search")
        page.wait_for_selector("#found table")
        assert page.locator("#found tbody tr").count() == 20
        assert [line for line in said if line[0] in ("error", "warning")] == []
        # The websocket's polls and files come from the server itself; data: is in the page.
        assert {u for u in asked if not u.startswith((address, "data:", "blob:"))} == set()
        browser.close()
