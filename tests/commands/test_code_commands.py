"""write, score, assign and sample of codes on disk, through the parser that the command line uses."""

import csv
import json
import os
import re

import numpy as np
import pytest
import torch
import tyro
from PIL import Image

import vbmem
from tiny import seeded
from vbmem.commands import find_commands
from vbmem.errors import MemoryFileError
from vbmem.memory import TreeMemory
from vbmem.memory.writing import VariationalMemory


def run(name, *arguments):
    tyro.cli(find_commands()[name], prog=f"vbmem {name}", args=[str(argument) for argument in arguments])


def groups(count=300, size=16, scale=0.01, seed=0):
    """Codes in four groups, far from the origin and of a small scale, and their groups."""
    rng = np.random.default_rng(seed)
    label = np.arange(count) % 4
    centres = np.random.default_rng(7).normal(size=(4, size))
    return (scale * (centres[label] + 0.1 * rng.normal(size=(count, size))) + 5).astype(np.float32), label


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    path = tmp_path_factory.mktemp("codes")
    np.save(path / "embeddings.npy", groups()[0])
    run("write", path / "embeddings.npy", "--clusters", 4, "-o", path / "x.memory")
    return path


@pytest.fixture(scope="module")
def memory(folder):
    return folder / "x.memory"


def test_codes_that_are_read_are_not_replaced(folder, memory):
    codes = folder / "embeddings.npy"
    before = codes.read_bytes()
    for command in (("assign", memory, codes), ("score", memory, codes), ("sample", memory)):
        with pytest.raises(ValueError, match="is read by this command, and would be replaced"):
            run(*command, "-o", memory if command[0] == "sample" else codes)
    assert codes.read_bytes() == before


def test_write_needs_no_settings_whatever_the_scale_of_the_codes(folder, capsys):
    run("write", folder / "embeddings.npy", "--clusters", 4, "-o", folder / "again.memory")
    told = capsys.readouterr().out
    assert re.search(r"wrote 300 codes of 16 numbers into .*again.memory, \d+ kB", told)
    assert "codes in the fullest of 4 clusters: 75, in the median one: 75" in told
    written = vbmem.WrittenMemory.load(folder / "again.memory")
    assert (written.model, written.frames, written.usage.shape) == ("", 300, (4,))
    assert torch.equal(written.state.row_mean, vbmem.WrittenMemory.load(folder / "x.memory").state.row_mean)
    drawn = written.sample(500, seeded())
    assert float(drawn.mean()) == pytest.approx(5, abs=0.01)
    assert float(drawn.std(0).mean()) == pytest.approx(float(groups()[0].std(0).mean()), rel=0.2)


def test_write_tells_programs_what_it_left(folder, capsys):
    left = folder / "told.memory"
    run("write", folder / "embeddings.npy", "--clusters", 4, "-o", left, "--json")
    told, written = json.loads(capsys.readouterr().out), vbmem.WrittenMemory.load(left)
    assert told == {"memory": str(left), "frames": 300, "bytes": written.nbytes, "usage": written.usage.tolist()}


def test_write_shows_how_far_it_is_on_a_terminal(folder, tmp_path, capfd, monkeypatch):
    monkeypatch.setenv("FORCE_COLOR", "1")  # rich then takes standard error for a terminal
    run("write", folder / "embeddings.npy", "--clusters", 4, "-o", tmp_path / "x.memory", "--json")
    told, bars = capfd.readouterr()
    assert json.loads(told)["frames"] == 300
    assert bars.index("fitting the prior") < bars.index("writing")


def test_write_takes_shards_and_another_number_of_clusters(tmp_path):
    (shards := tmp_path / "shards").mkdir()
    for number, part in enumerate(np.array_split(groups()[0], 3)):
        np.save(shards / f"{number}.npy", part)
    run("write", shards, "-o", tmp_path / "x.memory", "--start", "kmeans", "--seed", 3)
    written = vbmem.WrittenMemory.load(tmp_path / "x.memory")
    assert (written.frames, written.empty.clusters, written.empty.rows) == (300, 10, 6)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--clusters", 301], "301 clusters need at least as many codes, and .* holds 300"),
        (["--clusters", 0], "clusters must be a whole number of at least 1"),
        (["--model", "cifar10-tree"], "holds codes, which no model encodes; leave out --model"),
        (["--seed", -1], "--seed must be"),
    ],
)
def test_write_refuses_in_one_sentence_and_leaves_nothing(folder, tmp_path, arguments, message):
    with pytest.raises(ValueError, match=message):
        run("write", folder / "embeddings.npy", "-o", tmp_path / "x.memory", *arguments)
    assert not list(tmp_path.iterdir())


@pytest.fixture
def cut_short(monkeypatch):
    """Interrupts writes after so many iterations, as Ctrl-C would, until it is called with None."""
    write_stream, last = VariationalMemory.write_stream, None

    def interrupted(*args, follow, **how):
        def follow_and_stop(done, state):
            follow(done, state)
            if done == last:
                raise KeyboardInterrupt

        return write_stream(*args, follow=follow_and_stop, **how)

    def after(iterations):
        nonlocal last
        last = iterations

    monkeypatch.setattr(VariationalMemory, "write_stream", interrupted)
    return after


def test_a_write_that_was_cut_short_goes_on_to_the_same_memory(folder, tmp_path, capsys, cut_short):
    out, kept = tmp_path / "x.memory", tmp_path / "x.memory.unfinished"
    command = "write", folder / "embeddings.npy", "--clusters", 4, "-o", out
    for iterations, told in [(3, None), (6, 3), (1, 9)]:  # so many at a time; it is lost after the last, before it ends
        cut_short(iterations)
        with pytest.raises(KeyboardInterrupt):
            run(*command)
        assert [path.name for path in tmp_path.iterdir()] == [kept.name]
        going_on = f"vbmem: going on from {kept}, after {told} of 10 iterations\n" * (told is not None)
        again = f"vbmem: {kept} keeps how far the write came; the same command goes on from there\n"
        assert capsys.readouterr() == ("", going_on + again)
    cut_short(None)
    run(*command, "--json")
    told = capsys.readouterr()
    assert json.loads(told.out)["frames"] == 300
    assert told.err == f"vbmem: going on from {kept}, after 9 of 10 iterations\n"
    assert [path.name for path in tmp_path.iterdir()] == ["x.memory"]
    assert out.read_bytes() == (folder / "x.memory").read_bytes()


def test_an_unfinished_write_is_not_taken_for_another(folder, tmp_path, cut_short):
    np.save(codes := tmp_path / "codes.npy", groups()[0])
    command = "write", codes, "--clusters", 4, "-o", tmp_path / "x.memory"
    cut_short(2)
    with pytest.raises(KeyboardInterrupt):
        run(*command)
    kept = (tmp_path / "x.memory.unfinished").read_bytes()
    for options, differs in [
        ("--seed 1", "seed"),
        ("--start data", "start"),
        ("--clusters 3 --seed 1", "clusters, seed"),
    ]:
        message = (
            rf"x.memory.unfinished keeps an unfinished write that differs in {differs}; finish that one, or delete"
        )
        with pytest.raises(MemoryFileError, match=message):
            run(*command, *options.split())
    os.utime(codes, ns=(0, 0))
    with pytest.raises(MemoryFileError, match="differs in codes; finish that one, or delete the file to begin anew"):
        run(*command)
    assert (tmp_path / "x.memory.unfinished").read_bytes() == kept
    for damaged in (kept[:-8], (folder / "x.memory").read_bytes(), b""):
        (tmp_path / "x.memory.unfinished").write_bytes(damaged)
        with pytest.raises(MemoryFileError, match="should keep an unfinished write, but cannot be read; delete it to"):
            run(*command)
    assert not (tmp_path / "x.memory").exists()


def test_codes_of_few_numbers_can_be_written(tmp_path):
    np.save(tmp_path / "codes.npy", groups(size=2)[0])
    run("write", tmp_path / "codes.npy", "-o", tmp_path / "x.memory", "--clusters", 1)
    assert vbmem.WrittenMemory.load(tmp_path / "x.memory").empty.rows == 2


def test_score_ranks_strange_codes_first(memory, tmp_path, capsys):
    codes, _ = groups(200, seed=1)
    codes[[5, 120]] += 0.05
    np.save(tmp_path / "new.npy", codes)
    run("score", memory, tmp_path / "new.npy", "-o", tmp_path / "scores.npy", "--csv", tmp_path / "scores.csv")
    table = capsys.readouterr().out
    assert "20 of 200 rows; --json shows all, and -o FILE.npy keeps them" in table
    assert table.count("new.npy") == 20
    scores = np.load(tmp_path / "scores.npy")
    expected = vbmem.WrittenMemory.load(memory).score(torch.from_numpy(codes))
    np.testing.assert_allclose(scores, expected, rtol=1e-4, atol=1e-3)
    assert set(scores.argsort()[:2]) == {5, 120}
    with (tmp_path / "scores.csv").open() as file:
        rows = list(csv.DictReader(file))
    assert {row["row"] for row in rows[:2]} == {"5", "120"}
    assert len(rows) == 200
    run("score", memory, tmp_path / "new.npy", "--json")
    told = json.loads(capsys.readouterr().out)
    assert told == [{"file": row["file"], "row": int(row["row"]), "score": float(row["score"])} for row in rows]


def test_assign_finds_the_groups(memory, tmp_path, capsys):
    codes, label = groups(120, seed=1)
    (shards := tmp_path / "shards").mkdir()
    np.save(shards / "a.npy", codes[:50])
    np.save(shards / "b.npy", codes[50:].astype(np.float32))
    run("assign", memory, shards, "-o", tmp_path / "clusters.npy")
    assert "20 of 120 rows" in capsys.readouterr().out
    clusters = np.load(tmp_path / "clusters.npy")
    assert clusters.dtype == np.int64
    assert len(set(zip(clusters, label, strict=True))) == len(set(clusters)) == 4
    run("assign", memory, shards, "--json")
    told = json.loads(capsys.readouterr().out)
    assert [row["cluster"] for row in told] == clusters.tolist()
    assert (told[50]["file"], told[50]["row"]) == ("b.npy", 0)
    assert all(0.5 < row["probability"] <= 1 for row in told)


def test_assign_gives_a_cluster_of_every_partition_of_a_tree(tmp_path, capsys):
    codes, _ = groups(40, scale=1)
    np.save(tmp_path / "codes.npy", codes.astype(np.float64))  # the memory decides the precision
    tree = vbmem.WrittenMemory.write(TreeMemory(16, 2, 3, 2, loc_mean=5.0), torch.from_numpy(codes))
    tree.save(tmp_path / "tree.memory")
    run("assign", tmp_path / "tree.memory", tmp_path / "codes.npy", "--json", "-o", tmp_path / "clusters.npy")
    expected = tree.address(torch.from_numpy(codes)).assignment.argmax(-1).T
    assert [row["cluster"] for row in json.loads(capsys.readouterr().out)] == expected.tolist()
    assert np.load(tmp_path / "clusters.npy").shape == (40, 2)


def test_sample_draws_codes(memory, tmp_path, capsys):
    run("sample", memory, "-n", 30, "-o", tmp_path / "new.npy", "--seed", 2)
    assert capsys.readouterr().out == f"30 codes of 16 numbers in {tmp_path / 'new.npy'}\n"
    expected = vbmem.WrittenMemory.load(memory).sample(30, seeded(2))
    assert np.array_equal(np.load(tmp_path / "new.npy"), expected.numpy())


def test_where_nothing_can_be_written_no_work_is_begun(folder, tmp_path):
    for command in (
        ["write", folder / "embeddings.npy"],
        ["assign", "absent.memory", folder / "embeddings.npy"],
        ["sample", "absent.memory"],
        ["score", "absent.memory", folder / "embeddings.npy"],
    ):
        with pytest.raises(OSError, match=f"cannot write {tmp_path}: it is a directory; name a file in it"):
            run(*command, "-o", tmp_path)


def test_a_memory_of_codes_has_no_pictures(memory, tmp_path):
    with pytest.raises(ValueError, match=r"x.memory holds codes that no model .*; `vbmem sample` draws codes from it"):
        run("generate", memory, "-o", tmp_path / "new.png")


def test_a_memory_of_pictures_has_no_codes(folder, tmp_path):
    model = vbmem.load("digits-mixture")
    model.write(np.zeros((3, 1, 8, 8), np.uint8)).save(pictures := tmp_path / "pictures.memory")
    with pytest.raises(ValueError, match="holds pictures, written by 'digits-mixture'; `vbmem assign` is for codes"):
        run("assign", pictures, folder / "embeddings.npy")


def test_codes_of_another_size_are_refused(memory, tmp_path):
    np.save(tmp_path / "codes.npy", groups(size=8)[0])
    for command in ("score", "assign"):
        with pytest.raises(ValueError, match=r"codes.npy has codes of 8 numbers, expected 16 as in the memory"):
            run(command, memory, tmp_path / "codes.npy")


def test_scores_of_pictures_are_kept_in_the_order_of_their_names(tmp_path, capsys):
    (folder := tmp_path / "pictures").mkdir()
    for number in range(3):
        Image.fromarray(np.full((8, 8), 90 * number, np.uint8)).save(folder / f"{number}.png")
    model = vbmem.load("digits-mixture")
    model.write(folder).save(memory := tmp_path / "pictures.memory")
    run("score", memory, folder, "-o", tmp_path / "scores.npy", "--json")
    told = {row["file"]: row["score"] for row in json.loads(capsys.readouterr().out)}
    np.testing.assert_allclose(np.load(tmp_path / "scores.npy"), [told[f"{i}.png"] for i in range(3)], atol=0.01)
