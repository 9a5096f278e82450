"""A written memory goes on living: more frames, fewer frames, two memories made one, an endless stream."""

import pytest
import torch

from memory.zoo import close, normal
from tiny import seeded
from vbmem.memory import CategoricalMemory, GaussianMemory, MixtureMemory, TreeMemory, WrittenMemory

MEMORIES = {
    "gaussian": lambda: GaussianMemory(4, 2),
    "categorical": lambda: CategoricalMemory(4, 3, row_var=60.0),
    "mixture": lambda: MixtureMemory(4, 2, 3, loc_var=60.0),
    "mixture-factorised": lambda: MixtureMemory(4, 2, 3, loc_var=60.0, factorised=True),
    "mixture-cluster": lambda: MixtureMemory(4, 1, 3, noise_var=0.5 + normal(3, 4).square(), loc_var=60.0),
    "mixture-apart": lambda: MixtureMemory(4, 2, 3, loc_var=60 + normal(3), loc_mean=8 * normal(3, 4, seed=7)),
    "tree": lambda: TreeMemory(4, 1, 3, 2, loc_var=60.0),
}
every_memory = pytest.mark.parametrize("kind", MEMORIES)


def groups(frames: int, seed: int = 0) -> torch.Tensor:
    """Frames of three groups that lie far apart."""
    centres = 8 * normal(3, 4, seed=7)
    return centres[torch.arange(frames) % 3] + normal(frames, 4, seed=seed)


def write(kind: str, codes: torch.Tensor) -> WrittenMemory:
    return WrittenMemory.write(MEMORIES[kind](), codes, 30, seeded())


def bound(written: WrittenMemory, codes: torch.Tensor) -> float:
    """Nats a frame."""
    return float(written.empty.bound(codes, written.state, written.address(codes)).total) / len(codes)


@every_memory
def test_a_stream_is_known_as_what_is_written_at_once(kind):
    codes = groups(20)
    at_once = write(kind, codes)
    streamed = WrittenMemory.of_stream(at_once.empty, at_once.state, codes.split(7))
    assert streamed.frames == 20
    close(streamed.sums, at_once.sums)
    for name, tensor in at_once.choice.tensors().items():
        close(streamed.choice.tensors()[name], tensor)


@every_memory
def test_the_sums_are_those_of_the_stored_state(kind):
    codes = groups(20)
    written = write(kind, codes)
    sums, _ = written.empty.local_step(written.state, codes)
    for name in vars(sums):
        close(getattr(written.sums, name), getattr(sums, name))
    close(written.usage, sums.count, rtol=1e-6)


@every_memory
def test_forgetting_takes_out_what_the_frames_added(kind):
    """What is left are the sums of the other frames at the state they were written at."""
    codes = groups(24)
    written = write(kind, codes)
    left = written.forget(codes[18:])
    expected, _ = written.empty.local_step(written.state, codes[:18])
    for name in vars(expected):
        close(getattr(left.sums, name), getattr(expected, name), rtol=1e-5, atol=1e-8)
    assert left.frames == 18
    close(left.usage, expected.count, rtol=1e-5, atol=1e-5)


@every_memory
def test_an_update_and_forgetting_it_restores_the_sums(kind):
    codes = groups(20)
    written = write(kind, codes)
    grown = written.update(more := groups(6, seed=1))
    assert grown.frames == 26
    back = grown.forget(more)
    for name in vars(written.sums):
        close(getattr(back.sums, name), getattr(written.sums, name), rtol=1e-5, atol=1e-6)


@every_memory
def test_no_cluster_gives_away_more_than_it_holds(kind):
    """Frames of an earlier write, which an update has since addressed otherwise."""
    codes, more = groups(40), groups(40, seed=1) + 20
    left = write(kind, codes).update(more).forget(codes)
    assert left.frames == 40
    sums = left._require_sums()
    assert (sums.count >= -1e-6).all()
    assert torch.linalg.eigvalsh(sums.weight_outer).min() > -1e-3
    assert left.score(more).isfinite().all()


@every_memory
def test_an_updated_memory_knows_its_new_frames_nearly_as_a_rewritten_one_does(kind):
    codes, more = groups(60), groups(9, seed=1)
    both = torch.cat([codes, more])
    updated, rewritten = write(kind, codes).update(more), write(kind, both)
    assert bound(updated, both) > bound(rewritten, both) - 0.5


@every_memory
def test_without_some_frames_it_is_nearly_as_if_they_had_never_been(kind):
    codes, gone = groups(60), groups(9, seed=1)
    left, never = write(kind, torch.cat([codes, gone])).forget(gone), write(kind, codes)
    assert bound(left, codes) > bound(never, codes) - 0.5


@pytest.mark.parametrize("kind", ["categorical", "mixture", "mixture-factorised", "tree"])
def test_two_memories_become_one(kind):
    codes, others = groups(40), groups(30, seed=1) + 20
    one, other = write(kind, codes), write(kind, others)
    merged = one.merge(other)
    both = torch.cat([codes, others])
    assert merged.frames == 70
    assert float(merged.usage.sum()) == pytest.approx(70 * merged.empty.partitions, rel=1e-3)
    assert bound(merged, both) > bound(write(kind, both), both) - 0.5
    assert merged.sample(200, seeded()).isfinite().all()
    assert merged.log_predictive(others).mean() > one.log_predictive(others).mean() + 5


def test_a_merged_tree_keeps_what_belongs_together():
    """The parts of a code go together as they did in the memory it comes from."""
    codes = torch.tensor([[-9.0, -9, -9, -9], [9, 9, 9, 9]], dtype=torch.float64).repeat(10, 1)
    one = WrittenMemory.write(TreeMemory(4, 0, 2, 2, loc_var=200.0), codes + 0.1 * normal(20, 4), 10, seeded())
    other = WrittenMemory.write(
        TreeMemory(4, 0, 2, 2, loc_var=200.0), codes * torch.tensor([1, 1, -1, -1]) + 40, 10, seeded()
    )
    drawn = one.merge(other).sample(200, seeded(), sample=False)
    apart = drawn[drawn.mean(-1) < 20]
    assert ((apart[:, 0] - apart[:, 3]).abs() < 3).double().mean() > 0.9


def test_an_endless_stream_is_followed():
    """The stream's mean moves; a memory that forgets moves with it, one that does not lags behind."""
    fading = lasting = write("mixture", groups(12))
    for step in range(1, 31):
        batch = groups(12, seed=step) + step
        fading, lasting = fading.update(batch, keep=0.5), lasting.update(batch)
    last = groups(50, seed=99) + 30
    assert fading.log_predictive(last).mean() > lasting.log_predictive(last).mean() + 1
    assert float(fading.usage.sum()) == pytest.approx(24, abs=1)


@every_memory
def test_a_changed_memory_goes_into_a_file_and_comes_back(kind, tmp_path):
    written = write(kind, groups(20)).update(groups(5, seed=1))
    written.save(tmp_path / "a.memory")
    loaded = WrittenMemory.load(tmp_path / "a.memory")
    again, direct = loaded.update(groups(3, seed=2)), written.update(groups(3, seed=2))
    close(again.state.row_mean, direct.state.row_mean)


def test_what_cannot_be_done_is_told():
    codes = groups(10)
    written = write("mixture", codes)
    with pytest.raises(ValueError, match="this memory holds 10 frames, of which 10 cannot be forgotten"):
        written.forget(codes)
    with pytest.raises(ValueError, match="keep must lie above 0 and not above 1, got 0"):
        written.update(codes, keep=0)
    with pytest.raises(ValueError, match="cannot be merged"):
        written.merge(write("tree", codes))
    with pytest.raises(ValueError, match="cannot be merged"):
        write("gaussian", codes).merge(write("gaussian", codes))
    for memory in (MixtureMemory(4, 2, 3, loc_mean=torch.ones(3, 4)), MixtureMemory(4, 2, 3, loc_var=torch.ones(3))):
        apart = WrittenMemory.write(memory, codes)
        with pytest.raises(ValueError, match="cannot be merged: both must have clusters, and one prior for all"):
            apart.merge(apart)
    with pytest.raises(ValueError, match="NaN or infinity"):
        written.update(codes * float("nan"))


def test_networks_are_fitted_in_inference_mode_too():
    with torch.inference_mode():
        written = WrittenMemory.write(TreeMemory(4, 1, 2, 2), normal(12, 4), generator=seeded())
        assert written.sample(5, seeded(), choice="network").shape == (5, 4)


def test_frames_of_another_type_change_no_memory():
    written = WrittenMemory.write(MixtureMemory(3, 1, 2), normal(12, 3).float(), generator=seeded())
    for change in (written.update, written.forget):
        with pytest.raises(ValueError, match=r"codes are torch.float64 on cpu but the state is torch.float32"):
            change(normal(4, 3))
