"""Run the book's notebooks in place, so that a second run changes nothing but what it must.

One thread for BLAS, a fixed hash seed, no facts about the run, steady widget ids. What a page without a kernel cannot
draw is not stored: the state of ipywidgets' own controls goes, with the views that point to it (an output keeps its text
and HTML instead), while the state of anywidgets stays, and the layouts that they name. A notebook that fails is left as it was.

    >>> find("00").name
    '00_whole_engine.ipynb'
    >>> execute(find("00"))    # doctest: +SKIP
"""

from __future__ import annotations

import hashlib
import json
import os
import re
import time
from dataclasses import dataclass
from importlib import import_module
from pathlib import Path
from queue import Empty
from typing import Any

import nbformat
from jupyter_client.channels import AsyncZMQSocketChannel
from nbclient import NotebookClient
from nbclient.exceptions import CellExecutionError, CellTimeoutError, DeadKernelError
from nbformat import NotebookNode

from labcore.core.errors import LabError
from labcore.lab.environment import ONE_THREAD, ROOT

NOTEBOOKS = ROOT / "notebooks"
STATE = "application/vnd.jupyter.widget-state+json"
VIEW = "application/vnd.jupyter.widget-view+json"
FIXED = {**ONE_THREAD, "PYTHONHASHSEED": "0"}
LANGUAGE = {"name": "python"}
CELL_SECONDS = 300


class NotebookFailed(LabError, RuntimeError):
    """A notebook that is unknown, or that did not run to its end."""


@dataclass(frozen=True, slots=True)
class Execution:
    """One notebook's run."""

    path: Path
    num_cells: int
    seconds: float
    changed: bool  # whether the file is not what it was


def find(name: str, folder: Path = NOTEBOOKS) -> Path:
    """The notebook of a number (`00`), a name (`00_whole_engine`) or a path. Raises NotebookFailed, naming those there are."""
    known = sorted(folder.glob("*.ipynb"))
    for path in known:
        if name in (path.name, path.stem, path.stem.partition("_")[0]):
            return path
    path = Path(name)
    if path.suffix == ".ipynb" and path.is_file():
        return path.resolve()
    raise NotebookFailed(f"no notebook is called {name!r}; known: {', '.join(path.stem for path in known) or 'none'}")


def execute(path: Path) -> Execution:
    """Run every cell from a fresh kernel and store the outputs. Raises NotebookFailed; the file is then as it was."""
    before, begun = path.read_bytes(), time.monotonic()
    steady_channel()
    notebook = _bare(_read(path))
    environment = {name: value for name, value in os.environ.items() if name != "PYTEST_CURRENT_TEST"} | FIXED
    client = NotebookClient(
        notebook,
        timeout=CELL_SECONDS,
        kernel_name="python3",
        record_timing=False,
        coalesce_streams=True,
        extra_arguments=["--log-level=ERROR"],  # a kernel warns that it speaks TCP, each time
        resources={"metadata": {"path": str(path.parent)}},
    )
    try:
        client.execute(env=environment)
    except CellExecutionError as error:
        raise NotebookFailed(f"{path.name}, cell {_last(notebook)}: {error.ename}: {error.evalue}") from None
    except (CellTimeoutError, DeadKernelError) as error:
        raise NotebookFailed(f"{path.name}, cell {_last(notebook)}: {str(error).strip().splitlines()[0]}") from None
    _write(path, _steady(notebook, path.stem))
    num_cells = sum(cell.cell_type == "code" for cell in notebook.cells)
    return Execution(path, num_cells, time.monotonic() - begun, changed=path.read_bytes() != before)


def renew(path: Path) -> bool:
    """Give the stored replays the present look and behaviour, without running a cell; returns whether anything changed.

    That is enough when the .js and .css files of `labcore.widgets` have changed, and not what Python hands to them.
    """
    before, notebook = path.read_bytes(), _read(path)
    for model in notebook.metadata.get("widgets", {}).get(STATE, {"state": {}})["state"].values():
        module, _, kind = model["state"].get("_anywidget_id", "").rpartition(".")
        if module.startswith("labcore.widgets."):
            current = getattr(import_module(module), kind)
            model["state"] |= {"_esm": current._esm, "_css": current._css}
    _write(path, notebook)
    return path.read_bytes() != before


def _write(path: Path, notebook: NotebookNode) -> None:
    """Whole, or not at all."""
    whole = path.with_suffix(".ipynb.part")
    whole.write_text(nbformat.writes(notebook) + "\n", encoding="utf-8", newline="\n")
    os.replace(whole, path)


def _read(path: Path) -> NotebookNode:
    try:
        notebook = nbformat.read(path, as_version=4)
        nbformat.validate(notebook)
    except (ValueError, nbformat.ValidationError) as error:
        raise NotebookFailed(f"{path.name} is not a notebook: {str(error).splitlines()[0]}") from None
    return notebook


def _bare(notebook: NotebookNode) -> NotebookNode:
    """Without outputs and without facts about a run or an editor."""
    notebook.nbformat_minor = 5
    notebook.metadata = nbformat.from_dict(
        {
            "kernelspec": {"display_name": "Python 3", "language": "python", "name": "python3"},
            "language_info": dict(LANGUAGE),
        }
    )
    for i, cell in enumerate(notebook.cells):
        cell.setdefault("id", f"cell-{i}")
        if cell.cell_type == "code":
            cell.outputs, cell.execution_count = [], None
            for fact in ("execution", "collapsed", "scrolled"):
                cell.metadata.pop(fact, None)
    return notebook


def _last(notebook: NotebookNode) -> str:
    """Id of the last cell that ran."""
    return next((cell.id for cell in reversed(notebook.cells) if cell.get("outputs") or cell.get("execution_count")), "(none)")


def _steady(notebook: NotebookNode, seed: str) -> NotebookNode:
    """As a second run would write it."""
    notebook.metadata["language_info"] = dict(LANGUAGE)
    state = notebook.metadata.pop("widgets", {}).get(STATE, {})
    models: dict[str, Any] = state.get("state", {})
    own = {name: model for name, model in models.items() if not model["model_module"].startswith("@jupyter-widgets/")}
    needed = set(re.findall(r"IPY_MODEL_(\w+)", json.dumps(own)))  # without its layout JupyterLab draws no stored widget
    kept = {name: model for name, model in models.items() if name in own or name in needed}
    for cell in notebook.cells:
        for output in cell.get("outputs", []):
            if output.get("data", {}).get(VIEW, {}).get("model_id") not in (None, *kept):
                del output["data"][VIEW]
    if kept:
        notebook.metadata["widgets"] = {STATE: {**state, "state": kept}}
    new = {name: hashlib.sha256(f"{seed}:{i}".encode()).hexdigest()[:32] for i, name in enumerate(models)}
    text = json.dumps(notebook)
    if new:
        text = re.sub("|".join(map(re.escape, new)), lambda match: new[match.group()], text)
    steady = nbformat.from_dict(json.loads(text))
    nbformat.validate(steady)
    return steady


def steady_channel(slice_seconds: float = 0.25) -> None:
    """Let nbclient wait for a kernel in short slices.

    nbclient answers an Output widget on the socket it is waiting on; the wake-up for the reply is then sometimes lost, and
    the cell hangs until its timeout (github.com/jupyter/nbclient/issues/312). Polling anew finds the reply.
    """

    async def get_msg(self: AsyncZMQSocketChannel, timeout: float | None = None) -> dict[str, Any]:
        end = None if timeout is None else time.monotonic() + timeout
        while True:
            left = slice_seconds if end is None else max(0.0, min(slice_seconds, end - time.monotonic()))
            if await self.socket.poll(int(left * 1000)):
                return await self._recv()
            if end is not None and time.monotonic() >= end:
                raise Empty

    AsyncZMQSocketChannel.get_msg = get_msg  # type: ignore[method-assign]
