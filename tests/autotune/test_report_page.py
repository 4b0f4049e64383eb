"""`autotune report`: one page, no network, names as text, figures that are drawn."""

from __future__ import annotations

import json
import re
import shutil

import pytest
import yaml

from autotune.__main__ import main

pytest.importorskip("vl_convert", reason="needs the extra 'report'")

HOSTILE = "</script><script>alert(1)</script><img src=x onerror=alert(2)> \u202e\u0416\u6f22"


@pytest.fixture(scope="module")
def found(tmp_path_factory):
    folder = tmp_path_factory.mktemp("report") / "found"
    assert main(["search", "--model", "llama3-8b", "--gpus", "16", "--out", str(folder),
                 "--format", "json"]) == 0
    return folder


@pytest.fixture(scope="module")
def hostile(tmp_path_factory):
    """A strategy file whose model's name is an attack."""
    from simcore.inputs.load import load_model

    folder = tmp_path_factory.mktemp("hostile")
    model = load_model("llama3-8b").model_dump(mode="json", exclude_defaults=True)
    model["name"] = HOSTILE
    (folder / "model.yaml").write_text(yaml.safe_dump(model, allow_unicode=True), "utf-8")
    (folder / "strategy.yaml").write_text(yaml.safe_dump(
        {"model": "model.yaml", "system": "h100-sxm", "strategy": {"gpus": 16, "tp": 2}}))
    return folder / "strategy.yaml"


def write(source, out, *more):
    assert main(["report", str(source), "--out", str(out), "--format", "json", *more]) == 0
    return out.read_text("utf-8")


def test_a_search_has_everything_in_one_file(found, tmp_path, capsys):
    page = write(found, tmp_path / "r.html")
    assert len(page.encode()) < 6e6
    # The library holds links in strings (name spaces, schemas); nothing may be loaded.
    own = page[:page.index('<script type="application/json"')]
    assert not re.search(r"<(script|link|img|iframe)[^>]+(src|href)=", own)
    assert "default-src 'none'" in page
    data = json.loads(re.search(r'id="data">(.*?)</script>', page, re.S)[1])
    assert set(data["figures"]) == {"pareto", "heat_map", "rejected", "memory", "waterfall",
                                    "memory_over_time", "timeline", "roofline", "sensitivity"}
    best = json.loads((found / "summary.json").read_text())["ranked"][0]
    assert f"{best['tokens_per_s_per_gpu']:,.0f} tokens/s/GPU" in page
    assert all(spec["description"] and spec["title"] for spec in data["figures"].values())


def test_hostile_names_are_text(hostile, tmp_path, capsys):
    page = write(hostile, tmp_path / "r.html")
    assert "<img src=x" not in page
    assert "<script>alert" not in page
    assert "&lt;img src=x onerror" in page


def test_figures_as_files(found, tmp_path, capsys):
    write(found, tmp_path / "r.html", "--figures", str(tmp_path / "f"), "--figure-format",
          "svg,png")
    names = sorted(p.name for p in (tmp_path / "f").iterdir())
    assert len(names) == 18
    assert (tmp_path / "f" / "pareto.png").read_bytes().startswith(b"\x89PNG")
    assert (tmp_path / "f" / "memory.svg").read_text().startswith("<svg")


@pytest.mark.parametrize(("arguments", "words"), [
    ([], "SOURCE"), (["nowhere.yaml"], "does not exist"), (["."], "summary.json"),
    (["x", "--figure-format", "gif"], "svg or png")])
def test_bad_input_is_told(arguments, words, tmp_path, capsys, monkeypatch):
    monkeypatch.chdir(tmp_path)
    assert main(["report", *arguments]) == 2
    assert words in capsys.readouterr().err
    assert not list(tmp_path.iterdir())


@pytest.fixture(scope="module")
def browser():
    path = shutil.which("chromium") or shutil.which("google-chrome")
    if path is None:
        pytest.skip("needs Chromium")
    api = pytest.importorskip("playwright.sync_api", reason="needs playwright")
    with api.sync_playwright() as running:
        opened = running.chromium.launch(executable_path=path, args=[
            "--no-sandbox", "--disable-gpu", "--disable-background-networking"])
        yield opened
        opened.close()


def opened(browser, path):
    """Open a page; return it with what it said and asked for."""
    page = browser.new_page(viewport={"width": 1300, "height": 900})
    said, asked = [], []
    page.on("console", lambda message: said.append((message.type, message.text)))
    page.on("pageerror", lambda error: said.append(("error", str(error))))
    page.on("request", lambda request: asked.append(request.url))
    page.goto(path.as_uri())
    page.evaluate("autotune.drawAll()")
    page.wait_for_function(
        "[...document.querySelectorAll('.drawing')].every(d => d.dataset.drawn)")
    return page, said, asked


def test_the_page_in_a_browser(browser, found, tmp_path, capsys):
    write(found, tmp_path / "r.html")
    page, said, asked = opened(browser, tmp_path / "r.html")
    assert said == []
    assert asked == [(tmp_path / "r.html").as_uri()]
    drawn = page.eval_on_selector_all(
        ".drawing", "boxes => boxes.map(b => [b.dataset.drawn, b.querySelectorAll("
                    "'svg path, svg rect').length])")
    assert len(drawn) == 9
    assert all(state == "yes" and marks > 3 for state, marks in drawn)
    column = "#ranking-table tbody tr td:first-child"
    first = page.locator(column).all_inner_texts()
    page.click("#ranking-table thead th:first-child button")
    page.click("#ranking-table thead th:first-child button")
    assert page.locator(column).all_inner_texts() == first[::-1]
    assert page.get_attribute("#ranking-table thead th:first-child", "aria-sort") == "descending"
    page.fill("#field-table-filter", "recompute_lay")
    shown = page.locator("#field-table tbody tr:visible").count()
    assert shown == 1
    assert page.inner_text("#field-table-count").startswith("1 of ")
    page.close()


def test_hostile_names_in_a_browser(browser, hostile, tmp_path, capsys):
    write(hostile, tmp_path / "r.html")
    page, said, asked = opened(browser, tmp_path / "r.html")
    assert said == []
    assert len(asked) == 1
    assert HOSTILE in page.inner_text("h1").replace("\n", " ")
    page.close()
