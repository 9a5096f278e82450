"""The command line as a person meets it."""

import json
import subprocess
import sys
from pathlib import Path

import pytest
from PIL import Image

from vbmem import __version__ as version
from vbmem.train.evaluation import SHARES
from vbmem.train.loop import Trainer


def test_figure2_runs_and_says_where_the_pictures_are(run, tmp_path: Path) -> None:
    code, out, _ = run("figure2", "--out", str(tmp_path), "--rows", "8", "--code-sizes", "50")
    assert code == 0
    assert "figure2a.png" in out
    assert (tmp_path / "figure2b.png").exists()


@pytest.mark.parametrize("option", ["--rows", "--episode-length"])
def test_a_bad_value_is_one_sentence_and_a_failing_exit(run, option) -> None:
    code, _, err = run("figure2", "--out", "unused", option, "0")
    assert code == 2
    assert "must be at least 1" in err


@pytest.mark.parametrize("option", ["code-size", "filters", "clusters", "iterations"])
def test_a_size_that_must_be_positive_is_refused_in_one_sentence(run, option, tmp_path: Path) -> None:
    code, _, err = run("train", "digits-mixture", "--run-dir", str(tmp_path / "run"), f"--model.{option}", "0")
    assert code == 2
    assert f"{option.replace('-', '_')} must be at least 1, got 0" in err
    assert not (tmp_path / "run").exists()


def test_an_unwritable_directory_is_reported(run) -> None:
    code, _, err = run("figure2", "--out", "/proc/nowhere", "--rows", "8", "--code-sizes", "50")
    assert code == 2
    assert "/proc/nowhere" in err


TINY = ["--stages.0.epochs", "1", "--model.filters", "4", "--model.code-size", "4"]


def test_train_then_evaluate_gives_the_bound_and_every_term_as_json(run, tmp_path: Path) -> None:
    directory = str(tmp_path / "run")
    code, out, _ = run("train", "digits-categorical", "--run-dir", directory, *TINY)
    assert code == 0
    assert f"vbmem evaluate {directory}" in out.replace("\n", "")
    code, out, _ = run("evaluate", directory)
    assert code == 0
    result = json.loads(out)
    divergences = [value for name, value in result.items() if name.startswith("kl_")]
    assert result["elbo_per_frame"] == pytest.approx(result["log_likelihood"] - sum(divergences), rel=1e-5)
    assert result["standard_error"] > 0
    assert result["split"] == "test"
    code, _, err = run("train", "digits-categorical", "--run-dir", directory, *TINY)
    assert code == 2
    assert "add --resume to go on, or choose another --run-dir" in err


def test_a_broken_picture_in_a_folder_is_named_or_left_out_and_counted(run, tmp_path: Path) -> None:
    folder, directory = tmp_path / "pictures", str(tmp_path / "run")
    folder.mkdir()
    for number in range(24):
        Image.new("L", (8, 8), 10 * number).save(folder / f"{number:02}.png")
    (folder / "24.png").write_bytes(b"no picture")
    data = ["--data.dataset", str(folder), "--data.image-size", "8", "--data.episode-length", "2"]
    train = ["train", "digits-categorical", "--run-dir", directory, *TINY, *data, "--data.batch-size", "1"]
    export = ["export", directory, "-o", str(tmp_path / "model"), "--reference"]
    for command in (train, ["evaluate", directory, "--split", "valid"], export):
        code, _, err = run(*command)
        assert code == 2
        assert err.strip().endswith("or add --skip-broken")
        assert "24.png cannot be read as a picture" in err
        code, _, err = run(*command, "--skip-broken")
        assert code == 0, err
        assert "left out 1 of 25 pictures that cannot be read: 24.png" in err


DIGITS = ["evaluate", "digits-mixture", "--device", "cpu"]


def test_evaluate_says_the_settings_it_used_and_takes_others(run) -> None:
    code, out, _ = run(*DIGITS)
    assert code == 0
    trained = json.loads(out)
    sizes = {"rows": 2, "clusters": 8, "iterations": 10, "start": "the memory's own"}
    data = {"dataset": "digits", "episodes": "shuffled", "episode_length": 32, "batch_size": 4}
    assert trained["settings"].items() >= (sizes | data | {"seed": 0}).items()
    others = {"episodes": "by-label", "labels_per_episode": 2, "episode_length": 96}
    others |= {"clusters": 20, "rows": 1, "iterations": 2, "seed": 5}
    options = [word for name, value in others.items() for word in (f"--{name.replace('_', '-')}", str(value))]
    code, out, _ = run(*DIGITS, *options)
    assert code == 0
    changed = json.loads(out)
    assert changed["settings"].items() >= others.items()
    assert changed["episodes"] == 3
    assert changed["elbo_per_frame"] != trained["elbo_per_frame"]


@pytest.mark.parametrize(("refine", "shares"), [("0.3", {0.3}), ("auto", set(SHARES))])
def test_evaluate_reports_the_refined_bound_beside_the_plain_one(run, refine, shares) -> None:
    _, out, _ = run(*DIGITS)
    plain = json.loads(out)
    code, out, _ = run(*DIGITS, "--refine", refine)
    assert code == 0
    both = json.loads(out)
    refined = both.pop("refined")
    assert both == plain
    assert refined.pop("share") in shares
    assert refined.keys() == plain.keys() - {"model", "split", "settings"}


@pytest.mark.parametrize(
    ("options", "reason"),
    [
        (["--refine", "2"], "refine must lie between 0 and 1"),
        (["--episode-length", "100000"], "needs as many pictures"),
        (["--episode-length", "0"], "at least 1"),
        (["--batch-size", "0"], "must all be positive"),
        (["--batch-size", "1000"], "lower batch_size"),
        (["--clusters", "0"], "at least 1"),
        (["--start", "nowhere"], "nowhere"),
    ],
)
def test_evaluate_refuses_what_makes_no_sense_in_one_sentence(run, options, reason) -> None:
    code, _, err = run(*DIGITS, *options)
    assert code == 2
    assert reason in err


@pytest.mark.parametrize(
    "arguments", [[*DIGITS, "--subset", "five-each"], ["train", "digits-vae", "--data.subset", "five-each"]]
)
def test_a_subset_asked_of_a_set_that_has_none_is_refused_in_one_sentence(run, arguments) -> None:
    code, _, err = run(*arguments)
    assert code == 2
    assert "digits has no subset 'five-each'" in err


def test_evaluate_refuses_another_memory_for_a_model_without_one(run) -> None:
    code, _, err = run("evaluate", "cifar10-vae", "--clusters", "3")
    assert code == 2
    assert "a VAE has no memory" in err


def test_an_interrupted_run_says_which_option_goes_on(run, tmp_path: Path, monkeypatch) -> None:
    def stop(trainer: Trainer) -> float:
        (trainer.run_dir / "last.safetensors").touch()
        raise KeyboardInterrupt

    monkeypatch.setattr(Trainer, "run", stop)
    code, out, err = run("train", "digits-categorical", "--run-dir", str(tmp_path / "run"), *TINY)
    assert (code, err) == (130, "")
    assert out == "the same command with --resume goes on from there\n"


def test_unknown_presets_and_options_name_the_near_ones(run) -> None:
    code, _, err = run("train", "digits-mixtur")
    assert code == 2
    assert "digits-mixture" in err
    code, out, err = run("train", "digits-vae", "--data.batchsize", "3")
    assert code == 2
    assert "--data.batch-size" in out + err


def test_presets_and_help_list_what_there_is(run) -> None:
    assert "celeba-tree" in run("presets")[1]
    text = run("--help")[1]
    for command in (
        "demo",
        "app",
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


def test_the_help_fits_a_screen(run) -> None:
    lines = run("--help")[1].splitlines()
    assert len(lines) <= 30
    assert max(map(len, lines)) <= 80


def test_the_version_is_that_of_the_package() -> None:
    command = [sys.executable, "-m", "vbmem", "--version"]
    assert subprocess.run(command, capture_output=True, text=True, timeout=120).stdout.strip() == f"vbmem {version}"


def test_without_a_command_the_commands_are_listed_and_the_exit_fails(run) -> None:
    code, out, _ = run()
    assert code == 2
    assert "generate" in out


def test_debug_shows_where_an_error_comes_from(run, tmp_path: Path) -> None:
    arguments = ("write", str(tmp_path / "nothing"), "-o", str(tmp_path / "a.memory"))
    assert run(*arguments)[0] == 2
    with pytest.raises((ValueError, OSError)):
        run(*arguments, "--debug")


def test_the_doctor_finds_the_models_and_passes_its_own_test(run) -> None:
    code, out, _ = run("doctor", "--json")
    assert code == 0
    found = json.loads(out)
    assert found["self-test"] == "passed"
    assert "cifar10-mixture" in found["models"]
    assert found["vbmem"] == version


def test_a_directory_that_is_no_run_is_refused_in_one_sentence(run, tmp_path: Path) -> None:
    code, _, err = run("evaluate", str(tmp_path))
    assert code == 2
    assert "config.json" in err


def test_a_reader_that_has_seen_enough_is_no_error_to_report() -> None:
    command = f"{sys.executable} -m vbmem presets | head -n 1"
    result = subprocess.run(command, shell=True, capture_output=True, text=True, timeout=120)
    assert len(result.stdout.splitlines()) == 1
    assert result.stderr == ""
