"""write, generate, read, score, models and export, through the parser that the command line uses."""

import csv
import json
import re
from dataclasses import replace
from pathlib import Path
from typing import get_args

import numpy as np
import pytest
import torch
import tyro
from PIL import Image

import vbmem
from tiny import MODELS, seeded, tiny_model, tiny_run, tiny_trainer
from vbmem.commands import find_commands
from vbmem.data.examples import photograph_crops
from vbmem.data.settings import DataConfig
from vbmem.errors import DataError, NumericalError
from vbmem.memory.starting import Start
from vbmem.memory.written import ChosenBy
from vbmem.models.directory import save_model
from vbmem.sheets import MARGIN, TITLE, grid, save_picture, titled


def run(name: str, *arguments: object) -> None:
    tyro.cli(find_commands()[name], prog=f"vbmem {name}", args=[str(argument) for argument in arguments])


def size_of(path: Path) -> tuple[int, int]:
    with Image.open(path) as image:
        assert image.format == "PNG"
        return image.size


def sheet(columns: int, rows: int, size: int = 32, scale: int = 2) -> tuple[int, int]:
    """The size of so many pictures, without the words around them."""
    return scale * (MARGIN + columns * (size + MARGIN)), scale * (MARGIN + rows * (size + MARGIN))


def words(path: Path, columns: int, rows: int) -> tuple[int, int]:
    """How much wider and higher a sheet is than its pictures, which are at the right and below."""
    (width, height), (across, down) = size_of(path), sheet(columns, rows)
    return width - across, height - down


@pytest.fixture(scope="module")
def pictures(tmp_path_factory) -> Path:
    """A folder of twelve crops, some in a subfolder."""
    folder = tmp_path_factory.mktemp("data") / "pictures"
    (folder / "more").mkdir(parents=True)
    for index, pixels in enumerate(photograph_crops("china", 12, 32)):
        Image.fromarray(pixels).save(folder / ("more" if index % 3 == 0 else "") / f"{index:02}.png")
    return folder


@pytest.fixture(scope="module")
def memory(pictures) -> Path:
    path = pictures.parent / "my.memory"
    run("write", pictures, "-o", path)
    return path


@pytest.fixture(scope="module")
def run_dir(tmp_path_factory) -> Path:
    """A tiny training run on squares of 8 x 8 pixels."""
    path = tmp_path_factory.mktemp("runs") / "my-run"
    tiny_trainer(tiny_run(MODELS["mixture"], epochs=1), path).run()
    return path


# --- write ----------------------------------------------------------------------------------------------------------


def test_write_says_what_it_did_and_leaves_the_memory(pictures, tmp_path, capsys):
    run("write", pictures, "-o", tmp_path / "my.memory", "--seed", 3)
    out = capsys.readouterr().out
    assert re.search(r"wrote 12 pictures into .*my\.memory, \d+ kB: \d+ ms to encode, \d+ ms to write", out)
    usage = re.search(r"pictures in each cluster: ([\d ]+)", out)
    assert usage is not None
    assert sum(map(int, usage[1].split())) == pytest.approx(12, abs=1)
    model, written = vbmem.load("cifar10-mixture"), vbmem.WrittenMemory.load(tmp_path / "my.memory")
    expected = model.write(pictures, generator=seeded(3))
    assert torch.equal(written.state.loc_mean, expected.state.loc_mean)
    assert (written.model, written.frames) == ("cifar10-mixture", 12)


def test_write_tells_programs_what_it_left(pictures, tmp_path, capsys):
    left = tmp_path / "tree.memory"
    run("write", pictures, "-o", left, "--model", "cifar10-tree", "--json")
    told, written = json.loads(capsys.readouterr().out), vbmem.WrittenMemory.load(left)
    assert told == {"memory": str(left), "frames": 12, "bytes": written.nbytes, "usage": written.usage.tolist()}


def test_write_with_another_model_and_more_clusters(pictures, tmp_path, capsys):
    run("write", pictures, "--out", tmp_path / "tree.memory", "--model", "cifar10-tree", "--clusters", 5)
    assert capsys.readouterr().out.count("pictures in each cluster") == 2  # partitions
    assert vbmem.WrittenMemory.load(tmp_path / "tree.memory").usage.shape == (2, 5)


@pytest.mark.parametrize("start", get_args(Start))
def test_write_starts_where_it_is_told(run_dir, pictures, tmp_path, start):
    run("write", pictures, "-o", tmp_path / "my.memory", "--model", run_dir, "--start", start)
    written = vbmem.WrittenMemory.load(tmp_path / "my.memory")
    expected = vbmem.load(run_dir).write(pictures, start=start, generator=seeded())
    assert torch.equal(written.state.row_mean, expected.state.row_mean)
    assert written.threshold == expected.threshold


def test_write_takes_a_single_picture(pictures, tmp_path, capsys):
    run("write", pictures / "01.png", "-o", tmp_path / "one.memory")
    assert "wrote 1 picture into" in capsys.readouterr().out


def test_pictures_may_be_given_one_by_one(pictures, memory, tmp_path, capsys):
    one_by_one = [pictures / "01.png", pictures / "more" / "00.png", pictures / "02.png"]
    run("write", *one_by_one, "-o", tmp_path / "my.memory")
    written = vbmem.WrittenMemory.load(tmp_path / "my.memory")
    expected = vbmem.load("cifar10-mixture").write(one_by_one, generator=seeded())
    assert torch.equal(written.state.row_mean, expected.state.row_mean)
    capsys.readouterr()
    run("score", memory, *one_by_one, "--json")
    assert {row["file"] for row in json.loads(capsys.readouterr().out)} == {str(path) for path in one_by_one}
    run("read", memory, *one_by_one, "--steps", 1, "-o", tmp_path / "read.png")
    assert words(tmp_path / "read.png", 2, 3)[1] == TITLE
    with pytest.raises(ValueError, match=r"01\.png is read by this command"):
        run("score", memory, *one_by_one, "--csv", one_by_one[0])


@pytest.mark.parametrize(
    ("given", "message"),
    [
        ([], "no pictures were given; give the folder they are in, or the pictures one by one"),
        (["01.png", "more"], "more is given among others, which must all be pictures"),
        (["01.png", "codes.npy"], r"codes\.npy is given among others, which must all be pictures"),
        (["01.png", "99.png"], r"there is no picture .*99\.png"),
    ],
)
def test_what_cannot_be_given_one_by_one_is_refused(pictures, tmp_path, given, message):
    with pytest.raises((ValueError, DataError), match=message):
        run("write", *(pictures / name for name in given), "-o", tmp_path / "my.memory")
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--model", "cifar10-mixtur"], "did you mean 'cifar10-mixture'"),
        (["--model", "cifar10-vae"], "has no memory to write; choose a memory model"),
        (["--clusters", 0], "clusters must be a whole number of at least 1"),
        (["--seed", -1], "--seed must be"),
        (["--seed", 2**70], "--seed must be"),
    ],
)
def test_write_refuses_in_one_sentence_and_leaves_nothing(pictures, tmp_path, arguments, message):
    with pytest.raises(ValueError, match=message):
        run("write", pictures, "-o", tmp_path / "my.memory", *arguments)
    assert not list(tmp_path.iterdir())


def test_write_refuses_folders_without_pictures(tmp_path):
    with pytest.raises(ValueError, match="holds no pictures"):
        run("write", tmp_path, "-o", tmp_path / "my.memory")
    with pytest.raises(ValueError, match=r"there is no picture .*absent"):
        run("write", tmp_path / "absent", "-o", tmp_path / "my.memory")
    assert not list(tmp_path.iterdir())


# --- generate -------------------------------------------------------------------------------------------------------


def test_generate_draws_a_sheet(memory, tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    run("generate", memory, "--mean-pictures")  # in the same places as crisp ones, and sooner
    assert words(Path("generated.png"), 8, 8) == (0, TITLE)
    assert "64 pictures in generated.png" in capsys.readouterr().out
    run("generate", memory, "-n", 5, "-o", "five.png")
    assert words(Path("five.png"), 3, 2) == (0, TITLE)
    run("generate", memory, "-n", 2, "--by-cluster", "-o", "clusters.png")
    left, top = words(Path("clusters.png"), 2, 10)
    assert (left > 80, top) == (True, 0)


def test_generate_follows_its_seed_and_can_show_means(memory, tmp_path):
    contents = []
    for index, options in enumerate(["", "", "--seed 1", "--means"]):
        run("generate", memory, "-n", 4, "-o", tmp_path / f"{index}.png", *options.split())
        contents.append((tmp_path / f"{index}.png").read_bytes())
    assert contents[0] == contents[1]
    assert len(set(contents)) == 3
    model, written = vbmem.load("cifar10-mixture"), vbmem.WrittenMemory.load(memory)
    means = model.generate(written, 4, sample=False, generator=seeded())
    save_picture(titled(grid(means, 2, scale=2), "4 new, from my.memory"), tmp_path / "means.png")
    assert (tmp_path / "means.png").read_bytes() == contents[3]


def test_generate_chooses_clusters_and_draws_pixels_as_told(pictures, tmp_path):
    run("write", pictures, "-o", tmp_path / "tree.memory", "--model", "cifar10-tree")
    model, written = vbmem.load("cifar10-tree"), vbmem.WrittenMemory.load(tmp_path / "tree.memory")
    shown = set()
    for choice in get_args(ChosenBy):
        options = ["-n", 4, "-o", tmp_path / "a.png", "--choice", choice, "--sample-pixels"]
        run("generate", tmp_path / "tree.memory", *options)
        drawn = model.generate(written, 4, choice=choice, sample_pixels=True, generator=seeded())
        save_picture(titled(grid(drawn, 2, scale=2), "4 new, from tree.memory"), tmp_path / "b.png")
        assert (tmp_path / "a.png").read_bytes() == (tmp_path / "b.png").read_bytes()
        shown.add((tmp_path / "a.png").read_bytes())
    assert len(shown) > 1  # networks choose much as the counts they were fitted to


def test_generate_refuses_in_one_sentence_and_keeps_the_old_picture(memory, tmp_path):
    out = tmp_path / "generated.png"
    out.write_bytes(b"precious")
    for arguments, message in (
        (["-n", 0], "count must be a whole number of at least 1, got 0"),
        (["--model", "cifar10-tree"], "written by the model 'cifar10-mixture'"),
        (["--choice", "network"], "is not a tree, which alone has networks; choose 'usage' or 'prior'"),
        (["--own", "FOLDER"], "the codes of cifar10-mixture have no part of their own"),
    ):
        with pytest.raises(ValueError, match=message):
            run("generate", memory, "-o", out, *arguments)
    with pytest.raises(ValueError, match="damaged or not a memory file"):
        run("generate", out, "-o", tmp_path / "other.png")
    with pytest.raises(FileNotFoundError, match="there is no memory file"):
        run("generate", tmp_path / "none.memory", "-o", out)
    assert out.read_bytes() == b"precious"


# --- read -----------------------------------------------------------------------------------------------------------


def test_read_shows_every_picture_and_every_step(memory, pictures, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    run("read", memory, pictures)
    left, top = words(Path("read.png"), 1 + 2, 12)
    assert (left > 40, top) == (True, TITLE)
    run("read", memory, pictures / "01.png", "--steps", 2, "-o", "one.png")
    one = words(Path("one.png"), 3, 1)
    for name, corner, row, file in (
        ("one.png", one, 0, "01.png"),
        ("read.png", (left, top), 1, "02.png"),
        ("read.png", (left, top), 8, "more/00.png"),
    ):
        x, y = corner[0] + 2, corner[1] + 2 + 66 * row
        with Image.open(name) as image, Image.open(pictures / file) as picture:
            shown = image.crop((x, y, x + 64, y + 64)).resize((32, 32), Image.Resampling.NEAREST)
            assert np.abs(np.asarray(shown).astype(int) - np.asarray(picture)).max() <= 1
    run("read", memory, pictures / "01.png", "--steps", 2, "--means", "-o", "means.png")
    assert Path("means.png").read_bytes() != Path("one.png").read_bytes()
    run("read", memory, pictures / "01.png", "--steps", 2, "--sample-pixels", "-o", "drawn.png")
    model, written = vbmem.load("cifar10-mixture"), vbmem.WrittenMemory.load(memory)
    chain = model.read(written, pictures / "01.png", 2, sample_pixels=True, generator=seeded())
    save_picture(grid(chain.flatten(0, 1), 2, scale=2), Path("steps.png"))
    with Image.open("drawn.png") as drawn, Image.open("steps.png") as steps:
        assert np.array_equal(np.asarray(drawn)[one[1] :, one[0] + 66 :], np.asarray(steps))
    with pytest.raises(ValueError, match="steps must be"):
        run("read", memory, pictures, "--steps", 0)


# --- score ----------------------------------------------------------------------------------------------------------


def test_score_ranks_files_from_the_least_to_the_most_familiar(memory, pictures, tmp_path, capsys):
    run("score", memory, pictures, "--csv", tmp_path / "scores.csv")
    table = capsys.readouterr().out
    with (tmp_path / "scores.csv").open(newline="") as file:
        rows = list(csv.DictReader(file))
    scores = [float(row["score"]) for row in rows]
    assert scores == sorted(scores)
    assert {row["file"] for row in rows} == {str(p.relative_to(pictures)) for p in pictures.rglob("*.png")}
    shown = re.findall(r"(\S+\.png)\s*│\s*(-?[\d.,]+)\s*│\s*(\w*)", table)
    assert [name for name, _, _ in shown] == [row["file"] for row in rows]
    assert [verdict for _, _, verdict in shown] == [row["verdict"] for row in rows]


def test_score_gives_every_file_its_own_score_and_verdict(memory, pictures, capsys):
    run("score", memory, pictures, "--json")
    ranked = json.loads(capsys.readouterr().out)
    model, written = vbmem.load("cifar10-mixture"), vbmem.WrittenMemory.load(memory)
    assert written.threshold is not None
    for row in (ranked[0], ranked[-1]):
        alone = float(model.score(written, pictures / row["file"]))
        assert row["score"] == pytest.approx(alone, abs=0.5)
    for row in ranked:
        assert row["verdict"] == ("known" if row["score"] >= written.threshold else "new")
    assert ranked[-1]["verdict"] == "known"


def test_a_memory_without_a_threshold_gives_scores_alone(pictures, tmp_path, capsys):
    run("write", pictures / "01.png", "-o", tmp_path / "one.memory")
    run("score", tmp_path / "one.memory", pictures, "--json")
    out = capsys.readouterr().out
    assert {row["verdict"] for row in json.loads(out[out.index("[") :])} == {""}


def test_score_of_a_single_file_with_a_name_of_brackets(memory, pictures, tmp_path, capsys):
    name = tmp_path / "[red]a.png"
    name.write_bytes((pictures / "01.png").read_bytes())
    run("score", memory, name)
    assert "[red]a.png" in capsys.readouterr().out


def test_scores_that_are_not_numbers_are_an_error(memory, pictures, monkeypatch):
    monkeypatch.setattr(vbmem.Model, "score", lambda *_: torch.tensor([1.0] * 11 + [torch.nan]))
    with pytest.raises(NumericalError, match=r"some scores under .*my\.memory are not numbers"):
        run("score", memory, pictures)


# --- What cannot be done is told before the work --------------------------------------------------------------------


@pytest.fixture
def some_broken(pictures, tmp_path) -> Path:
    """A folder of two pictures that can be read and two that cannot."""
    folder = tmp_path / "some broken"
    folder.mkdir()
    for name in ("01.png", "02.png"):
        (folder / name).write_bytes((pictures / name).read_bytes())
    (folder / "00.png").write_bytes(b"no picture")
    (folder / "03.jpg").write_bytes(b"")
    return folder


def test_broken_pictures_can_be_left_out_and_are_counted(some_broken, memory, tmp_path, capsys):
    with pytest.raises(DataError, match=r"00\.png cannot be read as a picture .*, or add --skip-broken$"):
        run("write", some_broken, "-o", tmp_path / "a.memory")
    run("write", some_broken, "-o", tmp_path / "a.memory", "--skip-broken")
    out, err = capsys.readouterr()
    assert "wrote 2 pictures" in out
    assert err.endswith("vbmem: left out 2 of 4 pictures that cannot be read: 00.png, 03.jpg\n")
    run("score", memory, some_broken, "--skip-broken", "--json")
    assert {row["file"] for row in json.loads(capsys.readouterr().out)} == {"01.png", "02.png"}
    run("read", memory, some_broken, "--skip-broken", "--steps", 1, "-o", tmp_path / "read.png")
    assert words(tmp_path / "read.png", 2, 2)[1] == TITLE


def test_broken_pictures_given_one_by_one_can_be_left_out(some_broken, tmp_path, capsys):
    given = [some_broken / name for name in ("00.png", "01.png", "02.png")]
    with pytest.raises(DataError, match=r"00\.png cannot be read as a picture .*, or add --skip-broken$"):
        run("write", *given, "-o", tmp_path / "a.memory")
    run("write", *given, "-o", tmp_path / "a.memory", "--skip-broken")
    out, err = capsys.readouterr()
    assert "wrote 2 pictures" in out
    assert err.endswith(f"vbmem: left out 1 of 3 pictures that cannot be read: {given[0]}\n")
    with pytest.raises(DataError, match="none of the pictures can be read"):
        run("write", given[0], given[0], "-o", tmp_path / "b.memory", "--skip-broken")


def test_a_folder_of_nothing_but_broken_pictures_is_refused(some_broken, tmp_path):
    for name in ("01.png", "02.png"):
        (some_broken / name).unlink()
    with pytest.raises(DataError, match=r"none of the 2 pictures in .* can be read"):
        run("write", some_broken, "-o", tmp_path / "a.memory", "--skip-broken")


def test_more_pictures_than_a_sheet_holds_are_refused(memory, pictures, tmp_path):
    for arguments in (["generate", memory, "-n", 1_000_000], ["generate", memory, "-n", 10_000, "--by-cluster"]):
        with pytest.raises(ValueError, match=r"0 pictures are too many for one sheet, .* give a smaller --count"):
            run(*arguments, "-o", tmp_path / "new.png")
    with pytest.raises(ValueError, match=r"too many for one sheet, .* give a smaller --steps"):
        run("read", memory, pictures, "--steps", 1_000_000, "-o", tmp_path / "new.png")


def test_a_memory_larger_than_the_machine_is_refused(pictures, tmp_path):
    with pytest.raises(ValueError, match=r"a memory of 1000000000 clusters takes \d+ GB, and this machine has"):
        run("write", pictures, "-o", tmp_path / "a.memory", "--clusters", 10**9)


def test_a_file_that_cannot_be_written_is_told_before_the_work(memory, pictures, tmp_path, monkeypatch):
    monkeypatch.setattr(vbmem, "load", lambda *_: pytest.fail("the work was begun"))
    (tmp_path / "file").touch()
    for out in ("/dev/null", tmp_path, tmp_path / "file" / "below", tmp_path / ("x" * 300)):
        for arguments in (["write", pictures], ["generate", memory], ["read", memory, pictures]):
            with pytest.raises(OSError, match=f"cannot write {out}: "):
                run(*arguments, "-o", out)
        with pytest.raises(OSError, match=f"cannot write {out}: "):
            run("score", memory, pictures, "--csv", out)


def test_a_picture_is_not_left_under_the_name_of_another_format(memory, pictures, tmp_path):
    for out in (tmp_path / "new.jpg", tmp_path / "new"):
        for arguments in (["generate", memory, "-o"], ["read", memory, pictures, "-o"], ["few-shot", "--picture"]):
            with pytest.raises(ValueError, match=f"{out} would hold a PNG picture; give it a name that ends in .png"):
                run(*arguments, out)
    assert not list(tmp_path.iterdir())
    run("generate", memory, "-n", 1, "-o", tmp_path / "NEW.PNG")
    assert words(tmp_path / "NEW.PNG", 1, 1)[1] == TITLE


def test_names_need_not_be_utf_8(pictures, tmp_path, request):
    called = request.getfixturevalue("run")  # as from a shell
    folder = tmp_path / "any\udcff"
    folder.mkdir()
    (folder / "a\udcff.png").write_bytes((pictures / "01.png").read_bytes())
    path = tmp_path / "any\udcff.memory"
    model = vbmem.load("digits-mixture")
    replace(model, name="any\udcff").save(tmp_path / "model\udcff")
    options = ["--model", str(tmp_path / "model\udcff")]
    code, out, _ = called("write", str(folder), "-o", str(path), *options)
    assert (code, "any\\udcff.memory" in out) == (0, True)
    code, _, err = called("score", str(path), str(folder), "--csv", str(tmp_path / "scores\udcff.csv"), *options)
    assert (code, err) == (0, "")
    assert (tmp_path / "scores\udcff.csv").read_bytes().splitlines()[1].startswith(b"a\xff.png,")


# --- models and export ----------------------------------------------------------------------------------------------


def test_models_lists_what_is_shipped(capsys):
    run("models")
    out = capsys.readouterr().out
    for part in ("cifar10-mixture", "cifar10-tree", "cifar10-vae", "32 x 32 x 3", "1,323,798", "tree", "test bound"):
        assert part in out


def test_models_are_listed_without_their_weights(monkeypatch, capsys):
    monkeypatch.setattr("vbmem.models.directory.read_weights", lambda directory: pytest.fail("weights were read"))
    run("models")
    assert "1,323,798" in capsys.readouterr().out


def test_export_makes_a_model_directory_of_a_run(run_dir, tmp_path, capsys):
    run("export", run_dir, "-o", tmp_path / "model")
    assert f"exported my-run to {tmp_path / 'model'}" in capsys.readouterr().out.replace("\n", "")
    assert vbmem.load(tmp_path / "model").fingerprint == vbmem.load(run_dir).fingerprint
    run("export", run_dir, "-o", tmp_path / "half", "--half", "--name", "small")
    half = vbmem.load(tmp_path / "half")
    assert (half.name, half.card) == ("small", vbmem.load(run_dir).card)
    weights = [tmp_path / name / "model.safetensors" for name in ("half", "model")]
    assert weights[0].stat().st_size < 0.8 * weights[1].stat().st_size


def test_a_reference_memory_belongs_to_the_weights_as_they_were_exported(tmp_path):
    save_model(full := replace(tiny_model(channels=1), data=DataConfig("digits")), tmp_path / "full")
    run("export", tmp_path / "full", "-o", tmp_path / "half", "--half")
    half = vbmem.load(tmp_path / "half")
    assert half.fingerprint != full.fingerprint
    assert half.reference is not None
    assert half.reference.fingerprint == half.fingerprint


def test_export_puts_what_is_known_on_the_card(run_dir, tmp_path):
    evaluation = tmp_path / "evaluation.json"
    evaluation.write_text(json.dumps({"split": "test", "elbo_per_frame": -12.345, "standard_error": 0.6}))
    metrics, row = tmp_path / "metrics.json", {"codes precision": {"mean": 0.8, "error": 0.1}}
    metrics.write_text(json.dumps({"samples": {"samples": row}, "crisp samples": {"4 reads": row}}))
    facts = ["commit=1a2b3c", "hardware=one GPU"]
    files = ["--evaluation", evaluation, "--metrics", metrics]
    run("export", run_dir, "-o", tmp_path / "model", *files, "--facts", *facts)
    card = vbmem.load(tmp_path / "model").card
    assert card["test bound, nats a frame"] == "-12.3 +- 0.6"
    assert card["precision and coverage, samples"] == "0.80 (codes precision)"
    assert card["precision and coverage, crisp pictures, 4 reads"] == "0.80 (codes precision)"
    assert (card["commit"], card["hardware"]) == ("1a2b3c", "one GPU")
    assert "- hardware: one GPU" in (tmp_path / "model" / "README.md").read_text()
    with pytest.raises(ValueError, match="a fact must be NAME=VALUE, got 'commit'"):
        run("export", run_dir, "-o", tmp_path / "other", "--facts", "commit")
    assert not (tmp_path / "other").exists()


def test_export_never_overwrites_a_run(run_dir):
    before = (run_dir / "config.json").read_bytes()
    with pytest.raises(ValueError, match=r"is the directory of a run, whose config\.json would be lost"):
        run("export", run_dir, "-o", run_dir)
    assert (run_dir / "config.json").read_bytes() == before


@pytest.mark.parametrize("name", ["README.md", "config.json", "decoder.safetensors"])
def test_a_model_replaces_a_model_and_nobodys_files(name, run_dir, tmp_path):
    (mine := tmp_path / name).write_text("{}")
    with pytest.raises(ValueError, match=f"is no model directory, and its {name} would be lost; choose another"):
        run("export", run_dir, "-o", tmp_path)
    assert {file.name: file.read_text() for file in tmp_path.iterdir()} == {mine.name: "{}"}
    mine.unlink()
    for _ in range(2):
        run("export", run_dir, "-o", tmp_path)


def test_saving_never_overwrites_a_run(run_dir):
    before = (run_dir / "config.json").read_bytes()
    with pytest.raises(ValueError, match="is the directory of a run"):
        vbmem.load(run_dir).save(run_dir)
    assert (run_dir / "config.json").read_bytes() == before


def test_codes_beside_pictures_and_tables_of_numbers_are_not_passed_over_in_silence(pictures, tmp_path, capsys):
    (tmp_path / "a.png").write_bytes((pictures / "01.png").read_bytes())
    np.save(tmp_path / "codes.npy", np.zeros((5, 3), np.float32))
    run("write", tmp_path, "-o", tmp_path / "a.memory")
    assert "holds pictures, which are written, and 1 file of codes, which are not" in capsys.readouterr().err
    (table := tmp_path / "codes.csv").write_text("1,2\n3,4\n")
    with pytest.raises(ValueError, match=r"is no picture, and codes are read from \.npy, \.safetensors, \.parquet"):
        run("write", table, "-o", tmp_path / "b.memory")


def test_nothing_that_is_read_is_replaced(pictures, tmp_path):
    (folder := tmp_path / "mine").mkdir()
    (picture := folder / "a.png").write_bytes((pictures / "01.png").read_bytes())
    run("write", folder, "-o", memory := folder / "a.memory")
    run("write", folder, "-o", memory)  # a memory beside its pictures is none of them
    before = {file: file.read_bytes() for file in folder.iterdir()}
    for command in (
        ("write", folder, "-o", picture),
        ("write", picture, "-o", picture),
        ("generate", memory, "-o", memory),
        ("read", memory, picture, "-o", picture),
        ("read", memory, folder, "-o", tmp_path / "mine" / ".." / "mine" / "a.png"),
        ("score", memory, folder, "--csv", memory),
    ):
        with pytest.raises(ValueError, match="is read by this command, and would be replaced; name another file"):
            run(*command)
    with pytest.raises(ValueError, match="is named twice"):
        run("score", memory, folder, "--csv", tmp_path / "s", "-o", tmp_path / "s")
    assert {file: file.read_bytes() for file in folder.iterdir()} == before


def test_a_memory_of_a_model_that_is_not_shipped_needs_its_directory(run_dir, pictures, tmp_path, capsys):
    run("export", run_dir, "-o", tmp_path / "model")
    path = tmp_path / "my.memory"
    run("write", pictures, "-o", path, "--model", tmp_path / "model")
    with pytest.raises(ValueError, match=r"my\.memory was written by 'my-run'.*give --model DIRECTORY"):
        run("generate", path, "-o", tmp_path / "generated.png")
    for model in (run_dir, tmp_path / "model"):
        run("generate", path, "-n", 4, "-o", tmp_path / "generated.png", "--model", model)
        assert size_of(tmp_path / "generated.png")[1] == sheet(2, 2, 8, 8)[1] + TITLE
        run("score", path, pictures, "--model", model, "--json")
        run("read", path, pictures / "01.png", "--steps", 1, "-o", tmp_path / "read.png", "--model", model)


def test_files_that_are_no_pictures_are_counted(tmp_path, capsys):
    Image.new("RGB", (32, 32)).save(tmp_path / "a.png")
    (tmp_path / "IMG_1.HEIC").write_bytes(b"")
    run("write", tmp_path, "-o", tmp_path / "a.memory", "--model", "digits-mixture")
    assert "left out 1 file whose names are not those of pictures: IMG_1.HEIC" in capsys.readouterr().err


def test_a_memory_of_pictures_takes_no_codes(memory, tmp_path):
    np.save(tmp_path / "codes.npy", np.zeros((3, 4), np.float32))
    with pytest.raises(ValueError, match=r"codes.npy holds codes, and the memory is one of pictures"):
        run("score", memory, tmp_path / "codes.npy")


def test_numbers_are_not_left_under_the_name_of_another_format(memory, pictures, tmp_path):
    with pytest.raises(ValueError, match=r"scores.csv would hold a NumPy array; give it a name that ends in .npy"):
        run("score", memory, pictures, "-o", tmp_path / "scores.csv")
