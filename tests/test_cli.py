"""The command line as a person meets it."""

import json
import subprocess
import sys
from pathlib import Path

import pytest

from vbmem import __version__ as version


def vbmem(*arguments: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run([sys.executable, "-m", "vbmem", *arguments], capture_output=True, text=True, timeout=120)


def test_figure2_runs_and_says_where_the_pictures_are(tmp_path: Path) -> None:
    result = vbmem("figure2", "--out", str(tmp_path), "--rows", "8", "--code-sizes", "50")
    assert result.returncode == 0, result.stderr
    assert "figure2a.png" in result.stdout
    assert (tmp_path / "figure2b.png").exists()


def test_a_bad_value_is_one_sentence_and_a_failing_exit() -> None:
    result = vbmem("figure2", "--out", "unused", "--rows", "0")
    assert result.returncode == 2
    assert "must be at least 1" in result.stderr
    assert "Traceback" not in result.stderr


def test_an_unwritable_directory_is_reported() -> None:
    result = vbmem("figure2", "--out", "/proc/nowhere", "--rows", "8", "--code-sizes", "50")
    assert result.returncode == 2
    assert "/proc/nowhere" in result.stderr
    assert "Traceback" not in result.stderr


TINY = ["--stages.0.epochs", "1", "--model.filters", "4", "--model.code-size", "4"]


def test_train_then_evaluate_gives_the_bound_and_every_term_as_json(tmp_path: Path) -> None:
    run = str(tmp_path / "run")
    trained = vbmem("train", "digits-categorical", "--run-dir", run, *TINY)
    assert trained.returncode == 0, trained.stderr
    assert f"vbmem evaluate {run}" in trained.stdout.replace("\n", "")
    evaluated = vbmem("evaluate", run)
    assert evaluated.returncode == 0, evaluated.stderr
    result = json.loads(evaluated.stdout)
    divergences = [value for name, value in result.items() if name.startswith("kl_")]
    assert result["elbo_per_frame"] == pytest.approx(result["log_likelihood"] - sum(divergences), rel=1e-5)
    assert result["standard_error"] > 0
    assert result["split"] == "test"
    again = vbmem("train", "digits-categorical", "--run-dir", run, *TINY)
    assert again.returncode == 2
    assert "add --resume to go on, or choose another --run-dir" in again.stderr


def test_unknown_presets_and_options_name_the_near_ones() -> None:
    preset = vbmem("train", "digits-mixtur")
    assert preset.returncode == 2
    assert "digits-mixture" in preset.stderr
    option = vbmem("train", "digits-vae", "--data.batchsize", "3")
    assert option.returncode == 2
    assert "--data.batch-size" in option.stdout + option.stderr


def test_presets_and_help_list_what_there_is() -> None:
    assert "celeba-tree" in vbmem("presets").stdout
    text = vbmem("--help").stdout
    for command in (
        "demo",
        "write",
        "generate",
        "read",
        "score",
        "models",
        "train",
        "presets",
        "evaluate",
        "export",
        "table1",
        "metrics",
    ):
        assert command in text


def test_the_help_fits_a_screen() -> None:
    lines = vbmem("--help").stdout.splitlines()
    assert len(lines) <= 24
    assert max(map(len, lines)) <= 80


def test_the_version_is_that_of_the_package() -> None:
    assert vbmem("--version").stdout.strip() == f"vbmem {version}"


def test_without_a_command_the_commands_are_listed_and_the_exit_fails() -> None:
    result = vbmem()
    assert result.returncode == 2
    assert "generate" in result.stdout


def test_debug_shows_where_an_error_comes_from(tmp_path: Path) -> None:
    arguments = ("write", str(tmp_path / "nothing"), "-o", str(tmp_path / "a.memory"))
    quiet, loud = vbmem(*arguments), vbmem(*arguments, "--debug")
    assert quiet.returncode == 2
    assert "Traceback" not in quiet.stderr
    assert "Traceback" in loud.stderr


def test_the_doctor_finds_the_models_and_passes_its_own_test() -> None:
    result = vbmem("doctor", "--json")
    assert result.returncode == 0, result.stderr
    found = json.loads(result.stdout)
    assert found["self-test"] == "passed"
    assert "cifar10-mixture" in found["models"]
    assert found["vbmem"] == version


def test_a_directory_that_is_no_run_is_refused_in_one_sentence(tmp_path: Path) -> None:
    result = vbmem("evaluate", str(tmp_path))
    assert result.returncode == 2
    assert "config.json" in result.stderr
    assert "Traceback" not in result.stderr


def test_a_reader_that_has_seen_enough_is_no_error_to_report() -> None:
    command = f"{sys.executable} -m vbmem presets | head -n 1"
    result = subprocess.run(command, shell=True, capture_output=True, text=True, timeout=120)
    assert len(result.stdout.splitlines()) == 1
    assert result.stderr == ""
