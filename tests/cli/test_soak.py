"""`labcore soak`: what it saw, what it refuses, and how it ends when something is wrong."""

from __future__ import annotations

import json

import pytest

from labcore.cli.main import main
from labcore.lab.faults import NoCapOnTheHit


def test_it_says_what_it_saw(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["soak", "--workloads", "4", "--seed", "3", "--threads", "1", "--json"]) == 0
    told = json.loads(capsys.readouterr().out)
    assert told["num_workloads"] == 4 and told["answers"] > 4 and told["steps"] > 4
    assert main(["soak", "--workloads", "2"]) == 0
    assert capsys.readouterr().out.endswith("no violation\n")


def test_a_violation_is_told_with_its_workload(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    monkeypatch.setattr("labcore.engine.llm_engine.PagedCache", NoCapOnTheHit)
    assert main(["soak", "--workloads", "200", "--threads", "1"]) == 1
    assert "violation in workload " in capsys.readouterr().out


@pytest.mark.parametrize("bad", [["--minutes", "nan"], ["--minutes", "0"], ["--workloads", "0"], ["--seed", "-1"]])
def test_bad_input(bad: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["soak", *bad]) == 2
    assert "expected minutes above 0" in capsys.readouterr().err
