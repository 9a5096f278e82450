"""The numbers beside the pictures: definitions against brute force, and the whole measurement on tiny models."""

import json
import math
from dataclasses import replace
from typing import Any

import pytest
import torch
from rich.console import Console

import vbmem
from tiny import noise, seeded, tiny_network
from vbmem.data import ImageSet
from vbmem.errors import DataError, ModelError
from vbmem.models import CrispConfig, FrameFormat, SavedModel, save_model
from vbmem.paper import metrics as module
from vbmem.paper.metrics import draw_pictures, measures, metrics, neighbours
from vbmem.paper.metrics.measures import Trial, damage
from vbmem.paper.metrics.neighbours import coverage, hit_rate, nearest, precision

FRAME = FrameFormat(8, 3)


@pytest.fixture(scope="module")
def models(tmp_path_factory):
    """Directories of models."""
    root = tmp_path_factory.mktemp("models")
    for name in ("mixture", "tree", "gaussian", "vae"):
        save_model(SavedModel(tiny_network(name), name), root / name)
    save_model(SavedModel(tiny_network("vae", channels=1), "grey"), root / "grey")
    return root


@pytest.fixture(scope="module")
def data_dir(tmp_path_factory):
    """What looks like CIFAR-10, 8 x 8."""
    root = tmp_path_factory.mktemp("data")
    pictures = noise(130)
    ImageSet("cifar10", pictures[:10], x_test=pictures[10:]).save(root / "cifar10.npz")
    return root


@pytest.fixture(autouse=True)
def small(monkeypatch):
    values = {"OTHERS": 41, "STEPS": (1, 2), "CLUSTERS": (2, 5), "LENGTHS": (4, 12), "CELL_SAMPLES": 6, "REPEATS": 2}
    for place in (module, measures):
        for name in values.keys() & vars(place).keys():
            monkeypatch.setattr(place, name, values[name])


def measure(models, data_dir, name="mixture", episodes=2, frames=6, console=None, **options):
    console = console or Console(quiet=True)
    where = {"data_dir": data_dir, "judge": str(models / "vae"), "console": console}
    return metrics(str(models / name), episodes=episodes, frames=frames, **where, **options)


def unjudged(ways, frames):
    return ways


class TestNeighbours:
    def test_nearest_is_that_of_brute_force_across_chunks(self, monkeypatch):
        monkeypatch.setattr(neighbours, "CHUNK", 7)
        queries, references = torch.rand(30, 5, generator=seeded()), torch.rand(50, 5, generator=seeded(1))
        distances = [[float((q - r).double().square().sum()) for r in references] for q in queries]
        assert nearest(queries, references).tolist() == [row.index(min(row)) for row in distances]

    def test_nearest_tells_apart_what_float32_products_cannot(self):
        references = 1000 + torch.arange(3.0).unsqueeze(-1) * 1e-3
        assert nearest(references, references).tolist() == [0, 1, 2]

    def test_precision_and_coverage_are_those_of_brute_force(self):
        queries, episode, others = (torch.rand(n, 3, generator=seeded(n)) for n in (40, 12, 25))
        inside, covered = 0, set()
        for q in queries:
            to_episode = [float((q - x).square().sum()) for x in episode]
            inside += min(to_episode) < min(float((q - x).square().sum()) for x in others)
            covered.add(to_episode.index(min(to_episode)))
        assert precision(queries, episode, others) == pytest.approx(inside / 40)
        assert coverage(queries, episode) == pytest.approx(len(covered) / 12)

    def test_perfect_copies(self):
        episode, others = torch.rand(8, 6, generator=seeded()), torch.rand(20, 6, generator=seeded(1))
        assert precision(episode, episode, others) == coverage(episode, episode) == hit_rate(episode, episode) == 1

    def test_one_frame_again_and_again(self):
        episode, others = torch.rand(8, 6, generator=seeded()), torch.rand(20, 6, generator=seeded(1))
        copies = episode[3:4].expand(8, -1)
        assert precision(copies, episode, others) == 1
        assert coverage(copies, episode) == hit_rate(copies, episode) == 1 / 8

    def test_pictures_far_from_the_episode(self):
        episode, others = torch.rand(8, 6, generator=seeded()), 10 + torch.rand(20, 6, generator=seeded(1))
        assert precision(torch.full((8, 6), 12.0), episode, others) == 0


class TestDamage:
    def test_is_what_it_says(self):
        frames = torch.rand(50, 3, 8, 8, generator=seeded())
        damaged = {name: frame for name, (frame, _) in damage(frames, seeded(1)).items()}
        known: dict[str, Any] = {name: mask for name, (_, mask) in damage(frames, seeded(1)).items()}
        assert all(x.shape == frames.shape and 0 <= x.min() <= x.max() <= 1 for x in damaged.values())
        assert damaged["none"].equal(frames)
        half = damaged["right half grey"]
        assert half[..., :4].equal(frames[..., :4])
        assert bool((half[..., 4:] == 0.5).all())
        assert known.pop("right half grey").tolist() == [True] * 4 + [False] * 4
        assert set(known.values()) == {None}
        inside = (damaged["noise 0.1"] > 0) & (damaged["noise 0.1"] < 1) & (frames > 0.4) & (frames < 0.6)
        assert float((damaged["noise 0.1"] - frames)[inside].std()) == pytest.approx(0.1, rel=0.1)


class TestMeasurement:
    def test_is_reproducible_and_ready_for_json(self, models, data_dir):
        first, again = (measure(models, data_dir, "tree", seed=3) for _ in range(2))
        for result in (first, again):
            result["write"] = {k: v for k, v in result["write"].items() if not k.endswith("ms")}
        assert json.loads(json.dumps(first)) == first == again
        other = measure(models, data_dir, "tree", seed=4, sizes=False)
        assert other["samples"] != first["samples"]
        assert measure(models, data_dir, "tree", seed=3, sizes=False)["recall"] == first["recall"]

    def test_says_where_it_comes_from(self, models, data_dir):
        result = measure(models, data_dir, sizes=False)
        assert (result["model"], result["judge"]["model"]) == ("mixture", "vae")
        assert result["fingerprint"] == vbmem.load(models / "mixture").fingerprint
        assert result["settings"] == {"episodes": 2, "frames": 6, "others": 41, "seed": 0}
        assert result["machine"] == {"threads": torch.get_num_threads(), "torch": torch.__version__}
        assert result["source"].startswith("cifar10")

    def test_has_every_table_for_a_tree(self, models, data_dir):
        console = Console(record=True, width=160)
        result = measure(models, data_dir, "tree", console=console)
        assert list(result["samples"]) == ["samples", "2 reads, sampled", "2 reads, means", "chance", "ceiling"]
        assert list(result["joint assignments"]) == [
            "prefix counts", "prefix networks", "written frames", "independent",
        ]  # fmt: skip
        columns = ["pixels precision", "pixels coverage", "codes precision", "codes coverage"]
        for row in (result["samples"] | result["joint assignments"]).values():
            assert list(row) == columns
            assert all(0 <= x["mean"] <= 1 and x["error"] >= 0 for x in row.values())
        sizes = [(cell["frames"], cell["clusters"], cell["pictures"]) for cell in result["sizes"]]
        assert sizes == [(4, 2, 4), (4, 5, 4), (12, 2, 6), (12, 5, 6)]
        assert all(list(cell[way]) == columns for cell in result["sizes"] for way in ("samples", "reads"))
        assert all(math.isfinite(cell["bound per frame"]) for cell in result["sizes"])
        text = console.export_text()
        for title in ("joint assignments", "recall, hit rate", "sizes, reads", "12 frames, 5 clusters", "write"):
            assert title in text

    def test_tables_that_do_not_apply_are_left_out(self, models, data_dir):
        console = Console(record=True, width=160)
        result = measure(models, data_dir, "gaussian", episodes=1, console=console)
        assert result["joint assignments"] == {}
        assert result["sizes"] == []
        assert result["samples"]["samples"]["pixels precision"]["error"] is None
        text = console.export_text()
        assert "recall, error" in text
        assert not any(title in text for title in ("joint", "sizes", "±"))

    def test_chance_is_another_memory_judged_by_this_episode(self, models):
        model, frames = vbmem.load(models / "mixture"), torch.rand(5, 3, 8, 8, generator=seeded())
        memory, other = model.write(frames, generator=seeded()), model.write(1 - frames, generator=seeded())
        ways: Any = measures.samples(Trial(model, frames, memory, other, unjudged, seeded(7)))
        again = seeded(7)
        assert ways["samples"].equal(model.generate(memory, 5, reads=0, generator=again))
        model.read(memory, ways["samples"], 2, generator=again)
        assert ways["chance"].equal(model.generate(other, 5, reads=0, generator=again))
        assert ways["ceiling"].equal(model.decode(model.encode(frames).mean))

    def test_crisp_samples_are_painted_and_leave_the_other_draws_alone(self, models):
        model, frames = vbmem.load(models / "mixture"), torch.rand(5, 3, 8, 8, generator=seeded())
        painter = CrispConfig(width=8, blocks=1).build(model.frame, model.network.config.code_size).eval()
        painting = replace(model, painter=painter.requires_grad_(False))
        memory, shared = model.write(frames, generator=seeded()), seeded(7)
        trial = Trial(model, frames, memory, memory, unjudged, shared, painting)
        before = shared.get_state()
        ways: Any = measures.crisp_samples(trial)
        assert shared.get_state().equal(before)
        assert list(ways) == ["0 reads", "1 read", "2 reads", "ceiling"]
        assert ways["0 reads"].equal(painting.generate(memory, 5, reads=0, generator=seeded(7)))
        assert not ways["ceiling"].equal(model.decode(model.encode(frames).mean))
        assert measures.crisp_samples(replace(trial, painting=None)) == {}

    def test_the_other_memory_is_that_of_the_next_episode(self, models, data_dir, monkeypatch):
        given, samples = [], measures.samples

        def spy(trial):
            given.append((trial.memory, trial.other))
            return samples(trial)

        monkeypatch.setitem(measures.METRICS, "samples", spy)
        measure(models, data_dir, sizes=False)
        (first, after_first), (second, after_second) = given
        assert after_first is second
        assert after_second is not first

    def test_independent_assignments_follow_the_use_of_clusters_and_written_ones_occurred(self, models, monkeypatch):
        model, frames = vbmem.load(models / "tree"), torch.rand(200, 3, 8, 8, generator=seeded())
        frames[:170] = frames[0]  # in one cluster
        memory, drawn = model.write(frames, generator=seeded()), []
        sample = type(memory.empty).sample

        def spy(self, state, n, generator, *, clusters):
            drawn.append(clusters)
            return sample(self, state, n, generator, clusters=clusters)

        monkeypatch.setattr(type(memory.empty), "sample", spy)
        measures.joint_samples(Trial(model, frames, memory, memory, unjudged, seeded(1)))
        *_, written, independent = drawn
        theta = memory.address(model.encode(frames).mean).assignment
        assert {*map(tuple, written.mT.tolist())} <= {*map(tuple, theta.argmax(-1).mT.tolist())}
        shares = torch.stack([(independent == h).double().mean(-1) for h in range(3)], -1)  # [G, H]
        used = memory.usage / len(frames)
        assert float((shares - used).abs().max()) < 0.12

    def test_recall_compares_each_way_with_the_clean_frames(self, models):
        model, frames = vbmem.load(models / "mixture"), torch.rand(5, 3, 8, 8, generator=seeded())
        memory = model.write(frames, generator=seeded())
        table = measures.recall(Trial(model, frames, memory, memory, unjudged, seeded(2)))
        best, again = model.decode(model.encode(frames).mean), seeded(2)
        model.resize(clusters=5).write(frames, start="data", generator=again)
        for name, (x, known) in damage(frames, again).items():
            by_hand = sum(float((a - b) ** 2) for a, b in zip(x.flatten(), frames.flatten(), strict=True))
            assert table["error"][name]["damaged"] == pytest.approx(by_hand / frames.numel(), rel=1e-4)
            read = model.read(memory, x, 2, known=known, sample=False)[-1]
            assert table["error"][name]["H=3, 2 reads"] == pytest.approx(float((read - frames).square().mean()))
            half = model.read(memory, x, 1, known=known, trust=0.5, sample=False)[-1]
            by_half = table["error"][name]["H=3, half trusted, 1 reads"]
            assert by_half == pytest.approx(float((half - frames).square().mean()))
            from_best = table["error from reconstruction"][name]["H=3, 2 reads"]
            assert from_best == pytest.approx(float((read - best).square().mean()))
        assert (
            table["error"]["none"]["nearest frame"]
            == table["error from reconstruction"]["none"]["encoder-decoder"]
            == 0
        )
        for name in ("none", "right half grey"):  # which pixels are missing is known
            assert table["hit rate"][name]["nearest frame"] == 1

    def test_the_bound_of_a_size_is_the_memorys_own(self, models):
        model, frames = vbmem.load(models / "mixture"), torch.rand(12, 3, 8, 8, generator=seeded())
        cells = measures.size_table(model, lambda ways, _: {}, frames, 41, seeded(5))
        codes = model.encode(frames).mean[:4]
        memory = model.memory.resize(clusters=2)
        state, addresses = memory.write(codes, 3, generator=seeded(5))
        total = memory.bound(codes, state, addresses).total
        assert cells[0]["bound per frame"] >= float(total) / 4 - 1e-4  # addresses are one step better
        assert cells[0]["bound per frame"] == pytest.approx(float(total) / 4, rel=0.02)


class TestPictures:
    def test_no_test_picture_is_drawn_twice(self, data_dir):
        parts = draw_pictures(FRAME, [6, 6, 12], data_dir, seed=0)
        assert [len(x) for x in parts] == [41, 6, 6, 12]
        assert len(torch.cat(parts).flatten(1).unique(dim=0)) == 65
        longer = draw_pictures(FRAME, [6, 6, 12, 3], data_dir, seed=0)
        assert all(x.equal(y) for x, y in zip(parts, longer, strict=False))

    def test_without_data_it_says_that_it_uses_photographs(self, models):
        console = Console(record=True, width=160)
        result = measure(models, None, episodes=1, sizes=False, console=console)
        assert "crops of photographs, not comparable with CIFAR-10" in console.export_text()
        assert result["source"].startswith("crops of photographs")
        assert result["settings"]["others"] == 41

    def test_a_missing_directory_is_one_clear_error(self, models, tmp_path):
        with pytest.raises(
            DataError, match=r"nowhere holds no cifar10\.npz or cifar-10-python\.tar\.gz; name the directory"
        ):
            measure(models, tmp_path / "nowhere")

    def test_too_few_pictures_are_one_clear_error(self, models, data_dir):
        with pytest.raises(DataError, match=r"161 test pictures are needed, CIFAR-10 in .* has 120; choose fewer"):
            measure(models, data_dir, frames=40, sizes=False)

    def test_a_judge_must_look_at_such_pictures(self, models, data_dir):
        with pytest.raises(ModelError, match=r"grey cannot judge .*mixture; choose a model with codes"):
            metrics(str(models / "mixture"), data_dir=data_dir, judge=str(models / "grey"), console=Console(quiet=True))

    def test_there_must_be_an_episode(self, models, data_dir):
        with pytest.raises(ValueError, match="episodes must be a whole number of at least 1, got 0"):
            measure(models, data_dir, episodes=0)
