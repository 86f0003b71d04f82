"""`labcore notebooks run`: the same bytes again, nothing stored that a page cannot draw, a failing notebook left alone."""

from __future__ import annotations

import asyncio
import json
from pathlib import Path
from queue import Empty
from typing import Any

import nbformat
import pytest
from jupyter_client.channels import AsyncZMQSocketChannel
from nbformat.v4 import new_code_cell, new_notebook

from labcore.cli.main import main
from labcore.lab import notebooks
from labcore.lab.notebooks import STATE, VIEW, NotebookFailed, execute, find, renew, steady_channel
from labcore.widgets.block_pool import BlockPool

CONTROL = "import ipywidgets\nipywidgets.IntSlider(value=3)"
REPLAY = """\
import anywidget, traitlets
class Replay(anywidget.AnyWidget):
    _esm = "export default {render() {}}"
    step = traitlets.Int(2).tag(sync=True)
    def __repr__(self):
        return "Replay()"
Replay()"""
PICTURE = "from matplotlib import pyplot as plt\n_ = plt.plot([1, 2])\nplt.show()"
FACTS = """\
import os
print({name: os.environ.get(name) for name in ("OMP_NUM_THREADS", "PYTHONHASHSEED", "PYTEST_CURRENT_TEST")})
print("more")"""


def write(path: Path, *sources: str, **metadata: Any) -> Path:
    cells = [new_code_cell(source, id=f"c{i}", metadata={"execution": {"x": "now"}}) for i, source in enumerate(sources)]
    nbformat.write(new_notebook(cells=cells, metadata=metadata), path)
    return path


@pytest.fixture(scope="module")
def runs(tmp_path_factory: pytest.TempPathFactory) -> tuple[bytes, bytes, Any]:
    """A notebook with all kinds of output, run twice: the bytes of each run, and the notebook."""
    path = write(
        tmp_path_factory.mktemp("notebooks") / "05_all_kinds.ipynb", CONTROL, REPLAY, PICTURE, FACTS,
        kernelspec={"name": "python3", "display_name": "My own"}, language_info={"name": "python", "version": "3.0"},
    )  # fmt: skip
    first = execute(path)
    assert (first.changed, first.num_cells) == (True, 4)
    bytes_of_first = path.read_bytes()
    assert not execute(path).changed
    return bytes_of_first, path.read_bytes(), nbformat.read(path, as_version=4)


def test_a_second_run_writes_the_same_bytes(runs: tuple[bytes, bytes, Any]) -> None:
    assert runs[0] == runs[1]


def test_no_facts_about_the_run_are_stored(runs: tuple[bytes, bytes, Any]) -> None:
    notebook = runs[2]
    assert all(cell.metadata == {} for cell in notebook.cells)
    assert notebook.metadata.kernelspec == {"display_name": "Python 3", "language": "python", "name": "python3"}
    assert notebook.metadata.language_info == {"name": "python"}
    assert [cell.execution_count for cell in notebook.cells] == [1, 2, 3, 4]


def test_the_kernel_has_a_fixed_environment_and_streams_are_one(runs: tuple[bytes, bytes, Any]) -> None:
    [output] = runs[2].cells[3].outputs
    facts = {"OMP_NUM_THREADS": "1", "PYTHONHASHSEED": "0", "PYTEST_CURRENT_TEST": None}
    assert output.text == f"{facts}\nmore\n"


def test_only_what_a_page_can_draw_is_stored(runs: tuple[bytes, bytes, Any]) -> None:
    """A control of ipywidgets leaves its text; an anywidget leaves its view, and the state of itself and of its layout."""
    control, replay = (runs[2].cells[i].outputs[0].data for i in (0, 1))
    assert set(control) == {"text/plain"}
    state = runs[2].metadata.widgets[STATE].state
    own = state[replay[VIEW].model_id].state
    assert own.step == 2
    assert set(state) == {replay[VIEW].model_id, own.layout.removeprefix("IPY_MODEL_")}


def test_renew_changes_the_look_of_stored_replays_and_nothing_else(tmp_path: Path) -> None:
    path = write(tmp_path / "replay.ipynb")
    known = {"_anywidget_id": "labcore.widgets.block_pool.BlockPool", "_esm": "old", "_css": "old", "step": 3}
    other = {"_anywidget_id": "elsewhere.Thing", "_esm": "its own"}
    models = {name: {"model_module": "anywidget", "state": state} for name, state in {"a": known, "b": other}.items()}
    notebook = nbformat.read(path, as_version=4)
    notebook.metadata["widgets"] = {STATE: {"state": models, "version_major": 2, "version_minor": 0}}
    nbformat.write(notebook, path)
    assert renew(path) and not renew(path)
    state = nbformat.read(path, as_version=4).metadata.widgets[STATE].state
    assert state.a.state == {**known, "_esm": BlockPool._esm, "_css": BlockPool._css}
    assert state.b.state == other


def test_a_notebook_that_fails_is_named_and_left_as_it_was(tmp_path: Path) -> None:
    path = write(tmp_path / "bad.ipynb", "x = 1", "1 / 0", "print('not reached')")
    before = path.read_bytes()
    with pytest.raises(NotebookFailed, match=r"bad\.ipynb, cell c1: ZeroDivisionError: division by zero"):
        execute(path)
    assert path.read_bytes() == before
    assert [p.name for p in tmp_path.iterdir()] == ["bad.ipynb"]


def test_what_is_no_notebook_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "no.ipynb"
    path.write_text("{}")
    with pytest.raises(NotebookFailed, match=r"no\.ipynb is not a notebook"):
        execute(path)


def test_find_takes_a_number_a_name_or_a_path(tmp_path: Path) -> None:
    path = write(tmp_path / "07_tokens.ipynb")
    for name in ("07", "07_tokens", "07_tokens.ipynb", str(path)):
        assert find(name, tmp_path) == path
    for name in ("7", "tokens", "", "07_tokens.py", str(tmp_path)):
        with pytest.raises(NotebookFailed, match="known: 07_tokens"):
            find(name, tmp_path)


def test_an_unknown_name_is_one_line(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    monkeypatch.setattr(notebooks, "execute", lambda path: pytest.fail("it ran"))
    assert main(["notebooks", "run", "00", "99"]) == 2
    out, err = capsys.readouterr()
    assert (out, err.count("\n")) == ("", 1) and err.startswith("labcore: no notebook is called '99'; known: 00_")


def test_json_is_one_document(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    done = notebooks.Execution(Path("00_x.ipynb"), 3, 1.234, changed=False)
    monkeypatch.setattr(notebooks, "execute", lambda path: done)
    assert main(["notebooks", "run", "00", "--json"]) == 0
    document = json.loads(capsys.readouterr().out)
    assert document == {"notebooks": [{"name": "00_whole_engine", "cells": 3, "seconds": 1.23, "changed": False}]}


class Socket:
    """A socket that overlooks its message so many times."""

    def __init__(self, overlooks: int) -> None:
        self.overlooks, self.waits = overlooks, []  # type: ignore[var-annotated]

    async def poll(self, milliseconds: int) -> bool:
        self.waits.append(milliseconds)
        await asyncio.sleep(0)
        return len(self.waits) > self.overlooks


def test_a_lost_wake_up_is_found_by_polling_anew() -> None:
    steady_channel()
    channel = object.__new__(AsyncZMQSocketChannel)
    channel.socket = Socket(overlooks=3)  # type: ignore[assignment]

    async def receive() -> dict[str, Any]:
        return {"found": True}

    channel._recv = receive  # type: ignore[method-assign, assignment]
    assert asyncio.run(channel.get_msg(timeout=60)) == {"found": True}
    assert len(channel.socket.waits) == 4 and max(channel.socket.waits) <= 250  # type: ignore[union-attr]
    channel.socket = Socket(overlooks=10**9)  # type: ignore[assignment]
    with pytest.raises(Empty):
        asyncio.run(channel.get_msg(timeout=0.01))
