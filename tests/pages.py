"""A browser for tests of pages (Chromium through Playwright, or a skip that says what is missing), and a JupyterLab."""

from __future__ import annotations

import contextlib
import os
import shutil
import socket
import subprocess
import sys
import time
import urllib.request
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

PICTURES = Path(__file__).resolve().parents[1] / "_build" / "replays"
FLAGS = ["--no-sandbox", "--disable-gpu", "--disable-quic", "--no-first-run", "--disable-background-networking"]
FLAGS += ["--disable-component-update", "--disable-sync", "--disable-dev-shm-usage"]


@contextlib.contextmanager
def chromium() -> Iterator[Any]:
    """A running Chromium. LAB_CHROMIUM names another one. Close it before a test that runs an event loop of its own."""
    found = os.environ.get("LAB_CHROMIUM") or shutil.which("chromium") or shutil.which("chromium-browser")
    if not found or not Path(found).exists():
        pytest.skip("no Chromium here: `apt install chromium`, or let LAB_CHROMIUM name one")
    sync_api = pytest.importorskip("playwright.sync_api", reason="the package playwright is missing: `labcore up` installs it")
    with sync_api.sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=found, args=FLAGS)
        try:
            yield browser
        finally:
            browser.close()


def keep_picture(element: Any, name: str) -> None:
    """A picture of it to look at, in _build/replays."""
    element.scroll_into_view_if_needed()
    element.screenshot(path=PICTURES / f"{name}.png", animations="disabled")


class Seen:
    """What a page asked for outside its origin, and what went wrong in it."""

    def __init__(self, page: Any, origin: str) -> None:
        self.foreign: list[str] = []
        self.errors: list[str] = []
        own = (origin, "data:", "blob:")
        page.on("request", lambda request: None if request.url.startswith(own) else self.foreign.append(request.url))
        page.on("requestfailed", lambda request: self.errors.append(f"failed: {request.url}"))
        page.on("response", lambda reply: self.errors.append(f"{reply.status}: {reply.url}") if reply.status >= 400 else None)
        page.on("pageerror", lambda error: self.errors.append(str(error)))
        page.on("console", lambda message: self.errors.append(message.text) if message.type == "error" else None)


@contextlib.contextmanager
def jupyterlab(folder: Path) -> Iterator[str]:
    """A JupyterLab of its own on a folder, with nothing of the user's settings."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    own = {name: str(folder / name) for name in ("JUPYTER_CONFIG_DIR", "JUPYTER_DATA_DIR", "JUPYTER_RUNTIME_DIR", "IPYTHONDIR")}
    settings = folder / "JUPYTER_CONFIG_DIR" / "labconfig" / "default_setting_overrides.json"
    settings.parent.mkdir(parents=True)
    settings.write_text('{"@jupyterlab/apputils-extension:notification": {"fetchNews": "false", "checkForUpdates": false}}')
    environment = {name: value for name, value in os.environ.items() if name != "PYTEST_CURRENT_TEST"} | own
    argv = [sys.executable, "-m", "jupyterlab", "--no-browser", "--allow-root", "--ip=127.0.0.1", f"--port={port}"]
    argv += ["--ServerApp.port_retries=0", "--IdentityProvider.token=", "--LabApp.expose_app_in_browser=True"]
    argv += [f"--ServerApp.root_dir={folder}"]
    with open(folder / "lab.log", "w") as log:
        server = subprocess.Popen(argv, env=environment, stdout=log, stderr=log)
    url = f"http://127.0.0.1:{port}"
    try:
        for _ in range(600):
            with contextlib.suppress(OSError):
                urllib.request.urlopen(f"{url}/api/status", timeout=1)
                break
            time.sleep(0.1)
        else:
            pytest.fail((folder / "lab.log").read_text())
        yield url
    finally:
        server.terminate()
        server.wait(20)
