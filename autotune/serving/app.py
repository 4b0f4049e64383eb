"""The served page (NiceGUI): inputs on the left, the answer on the right."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from importlib.resources import files
from typing import Any

from autotune.pages.html import library
from autotune.serving.answers import Answer, predicted, searched
from simcore.inputs.fields import FIELD
from simcore.inputs.load import model_names, system_names

START = {"model": "llama3-70b", "system": "h100-sxm", "gpus": "64", "tp": "8", "pp": "4"}
NUMBERS = ("gpus", "seq_len", "gbs", "mbs", "tp", "cp", "pp", "vpp", "ep", "etp",
           "recompute_layers")
CHOICES = ("precision", "framework")
LOCAL_HOSTS = ("127.0.0.1", "localhost", "[::1]", "::1")
WAIT_S = 0.25
"""After the last key, so that a number that is being typed is not answered digit by digit."""
WORKERS = 2


class Page:
    """One visitor's page.

    Parameters
    ----------
    ui : module
        ``nicegui.ui``.
    pool : ThreadPoolExecutor
        Where answers are computed, so that the server goes on answering.
    """

    def __init__(self, ui: Any, pool: ThreadPoolExecutor) -> None:
        self.ui, self.pool = ui, pool
        self.values: dict[str, Any] = dict(START)
        self.inputs: dict[str, Any] = {}
        self.asked = 0
        self._build()

    def _build(self) -> None:
        ui = self.ui
        folder = files("autotune.report") / "templates"
        ui.add_css((folder / "page.css").read_text("utf-8") + (folder / "served.css").read_text(
            "utf-8"))
        ui.add_body_html(f"<script>{library()}</script><script>"
                         + (folder / "draw.js").read_text("utf-8")
                         + (folder / "served.js").read_text("utf-8") + "</script>")
        with ui.row(wrap=False).classes("served w-full"):
            with ui.column().classes("choices"):
                ui.label("autotune").classes("text-xl")
                self._select("model", list(model_names()))
                self._select("system", list(system_names()))
                for name in NUMBERS:
                    self._text(name)
                self._text("recompute")
                self._text("zero")
                for name in CHOICES:
                    field = FIELD[name]
                    self._select(name, ["", *(c for c in field.choices
                                              if c not in field.not_modelled)])
                self._text("more", "field=value ...")
                ui.button("Search the best", on_click=self.search).props("id=search no-caps")
            with ui.column().classes("answer"):
                self.found = ui.html("", sanitize=False).props("id=found").classes("w-full")
                self.shown = ui.html("", sanitize=False).props(
                    "id=shown aria-live=polite").classes("w-full")
        ui.timer(0.1, self.predict, once=True)

    def _text(self, name: str, hint: str = "") -> None:
        label = name.replace("_", " ")
        box = self.ui.input(label, value=str(self.values.get(name, "")), placeholder=hint or
                            "default").props(f"dense id=field-{name}").classes("w-full")
        box.on_value_change(lambda event, name=name: self.changed(name, event.value))
        self.inputs[name] = box

    def _select(self, name: str, options: list[str]) -> None:
        box = self.ui.select(options, label=name, value=self.values.get(name, ""),
                             with_input=len(options) > 12).props(
                                 f"dense id=field-{name}").classes("w-full")
        box.on_value_change(lambda event, name=name: self.changed(name, event.value))
        self.inputs[name] = box

    async def changed(self, name: str, value: object) -> None:
        """Take a new value and predict anew, once the typing rests."""
        self.values[name] = value
        self.asked += 1
        mine = self.asked
        await asyncio.sleep(WAIT_S)
        if mine == self.asked:
            await self.predict()

    async def predict(self) -> None:
        """Show the prediction of what is chosen."""
        self.asked += 1
        mine = self.asked
        answer = await self._computed(predicted)
        if mine == self.asked:
            self._show(self.shown, answer)

    async def search(self) -> None:
        """Show the best strategies with what is filled in held fixed, and take the best over."""
        self.found.set_content('<p role="status">Searching ...</p>')
        self._show(self.found, await self._computed(searched))

    async def _computed(self, work: Callable[[dict[str, Any]], Answer]) -> Answer:
        loop = asyncio.get_running_loop()
        return await loop.run_in_executor(self.pool, work, dict(self.values))

    def _show(self, place: Any, answer: Answer) -> None:
        place.set_content(answer.html)
        self.ui.run_javascript(f"autotuneShow({_json(answer.figures)})")


def _json(data: object) -> str:
    import json
    return json.dumps(data, allow_nan=False).replace("<", "\\u003c")


def serve(host: str, port: int, *, allow_hosts: tuple[str, ...] = ()) -> None:
    """Serve the page until the process is stopped.

    Parameters
    ----------
    host : str
        Address to listen on.
    port : int
    allow_hosts : tuple of str
        Names under which others may reach it; requests that name any other host are refused, so
        that no page elsewhere can read this one through a rebound name.
    """
    from nicegui import app, ui
    from starlette.middleware.trustedhost import TrustedHostMiddleware

    pool = ThreadPoolExecutor(WORKERS)

    @ui.page("/", title="autotune")
    def page() -> None:
        Page(ui, pool)

    app.add_middleware(TrustedHostMiddleware, allowed_hosts=[*LOCAL_HOSTS, *allow_hosts])
    ui.run(host=host, port=port, show=False, reload=False, dark=None, title="autotune",
           show_welcome_message=False, uvicorn_logging_level="warning")
