"""One model behind five memories, and what must not matter: order, offset, batching, masking, chunking, sharding."""

import itertools
from operator import itemgetter
from typing import Any

import numpy as np
import pytest
import torch
from torch.utils.data import DataLoader

from memory.zoo import (
    MEMORIES,
    Sizes,
    close,
    every_located_memory,
    every_memory,
    every_start,
    make_problem,
    normal,
    over_sizes,
    random_state,
    variances,
)
from vbmem.memory import (
    CategoricalMemory,
    GaussianMemory,
    MemoryState,
    MixtureMemory,
    TreeMemory,
    engine,
)

# --- The five are one -----------------------------------------------------------------------------------------------


def prior_arguments(name: str, *names: str) -> dict[str, Any]:
    config = make_problem(name).memory.config()
    return {key: config[key] for key in names}


def test_gaussian_is_a_mixture_of_one_cluster_whose_location_cannot_move():
    prior = prior_arguments("gaussian-general", "noise_var", "row_var", "row_mean")
    gaussian, mixture = GaussianMemory(3, 2, **prior), MixtureMemory(3, 2, 1, **prior, loc_var=1e-12)
    start, codes = random_state(gaussian), normal(6, 3)
    location = torch.zeros(1, 3, dtype=torch.float64), torch.full((1,), 1e-12, dtype=torch.float64)
    mixture_start = MemoryState.of(start.row_mean, start.row_cov, *location)
    for iterations in (1, 2, 5):
        state, addresses = gaussian.write(codes, iterations, start)
        other_state, other_addresses = mixture.write(codes, iterations, mixture_start, expand=False)
        close(other_state.factor_mean, state.row_mean, atol=1e-9)
        close(other_state.factor_cov, state.row_cov, atol=1e-9)
        close(other_addresses, addresses, atol=1e-9)
        bound = gaussian.bound(codes, state, addresses)
        close(mixture.bound(codes, other_state, other_addresses).total, bound.total, atol=1e-9)


@pytest.mark.parametrize("name", ["shifted", "shifted-general", "shifted-factorised"])
def test_shifted_is_a_mixture_of_one_cluster(name):
    shifted = make_problem(name).memory
    mixture, start, codes = MixtureMemory(clusters=1, **shifted.config()), random_state(shifted), 2 * normal(6, 3)
    written = [memory.write(codes, 5, start) for memory in (shifted, mixture)]
    for one, other in zip(*written, strict=True):
        close(one, other, rtol=0, atol=0)
    close(shifted.bound(codes, *written[0]), mixture.bound(codes, *written[1]), rtol=0, atol=0)


def test_categorical_is_a_mixture_without_rows():
    codes, loc_mean = normal(6, 3), normal(3, seed=3)
    mixture = MixtureMemory(3, 0, 3, noise_var=0.7, loc_var=1.7, loc_mean=loc_mean)
    categorical = CategoricalMemory(3, 3, noise_var=0.7, row_var=1.7, row_mean=loc_mean.expand(3, 3))
    start = random_state(categorical)
    written = [memory.write(codes, 5, start) for memory in (mixture, categorical)]
    for one, other in zip(*written, strict=True):
        close(one, other)
    close(mixture.bound(codes, *written[0]), categorical.bound(codes, *written[1]))


def test_categorical_is_a_mixture_whose_rows_cannot_move():
    codes = normal(6, 3)
    categorical = CategoricalMemory(3, 4, noise_var=0.7, row_var=1.7)
    mixture = MixtureMemory(3, 1, 4, noise_var=0.7, loc_var=1.7, row_var=1e-14)
    start = random_state(categorical)
    rows = torch.zeros(4, 1, 3, dtype=torch.float64), torch.full((4, 1, 1), 1e-14, dtype=torch.float64)
    mixture_start = MemoryState.of(*rows, start.loc_mean, start.loc_var)
    state, addresses = categorical.write(codes, 5, start)
    mixture_state, mixture_addresses = mixture.write(codes, 5, mixture_start, expand=False)
    close(mixture_state.loc_mean, state.loc_mean, atol=1e-9)
    close(mixture_state.loc_var, state.loc_var, atol=1e-9)
    close(mixture_addresses.assignment, addresses.assignment, atol=1e-9)
    close(
        mixture.bound(codes, mixture_state, mixture_addresses).total, categorical.bound(codes, state, addresses).total
    )


@pytest.mark.parametrize("name", ["mixture", "mixture-general", "mixture-factorised", "mixture-cluster"])
@pytest.mark.parametrize("batch", [(), (2,)])
def test_a_tree_of_one_partition_is_a_mixture(name, batch):
    mixture = make_problem(name).memory
    tree = TreeMemory(partitions=1, **mixture.config())
    codes, start = normal(*batch, 6, 3), random_state(mixture, batch)
    state, addresses = mixture.write(codes, 5, start)
    tree_state, tree_addresses = tree.write(codes, 5, start.map(lambda t: t.unsqueeze(len(batch))))
    close(tree_state.map(lambda t: t.squeeze(len(batch))), state)
    close(tree_addresses.map(lambda t: t.squeeze(len(batch))), addresses)
    close(tree.bound(codes, tree_state, tree_addresses), mixture.bound(codes, state, addresses))


def test_a_tree_is_a_mixture_for_every_partition():
    problem = make_problem("tree-general")
    tree: Any = problem.memory
    codes, start = problem.codes, problem.state
    state, addresses = tree.write(codes, 5, start)
    total = torch.zeros((), dtype=torch.float64)
    for g, piece in enumerate((slice(0, 3), slice(3, 6), slice(6, 9))):
        config = tree.config() | {
            "code_size": 3,
            "row_mean": tree.row_mean[:, piece],
            "loc_mean": tree.loc_mean[:, piece],
        }
        config.pop("partitions")
        part = MixtureMemory(**config)
        part_state, part_addresses = part.write(codes[:, piece], 5, start.map(itemgetter(g)))
        close(state.map(itemgetter(g)), part_state)
        close(addresses.map(itemgetter(g)), part_addresses)
        total += part.bound(codes[:, piece], part_state, part_addresses).total
    close(tree.bound(codes, state, addresses).total, total)


# --- What must not matter -------------------------------------------------------------------------------------------


@every_located_memory
@over_sizes
def test_moving_codes_and_prior_moves_the_locations(name, sizes):
    problem = make_problem(name, sizes)
    memory, codes, start = problem.memory, problem.codes, problem.state
    offset = 10 * normal(memory.code_size, seed=8)
    centre = "row_mean" if memory.kind == "categorical" else "loc_mean"
    moved_mean = memory.config()[centre] + (offset.expand(memory.rows, -1) if centre == "row_mean" else offset)
    moved = type(memory)(**(memory.config() | {centre: moved_mean}))
    shift = memory.split(offset.unsqueeze(0))

    state, addresses = memory.write(codes, 3, start)
    moved_state, moved_addresses = moved.write(codes + offset, 3, start.translate(shift))
    close(moved_state, state.translate(shift), atol=1e-10)
    close(moved_addresses, addresses, atol=1e-10)
    close(moved.bound(codes + offset, moved_state, moved_addresses), memory.bound(codes, state, addresses), atol=1e-10)


@every_memory
@over_sizes
def test_the_order_of_frames_does_not_matter(name, sizes):
    problem = make_problem(name, sizes)
    memory, codes, start = problem.memory, problem.codes, problem.state
    order = torch.randperm(sizes.frames, generator=torch.Generator().manual_seed(1))
    state, addresses = memory.write(codes, 3, start)
    other_state, other_addresses = memory.write(codes[..., order, :], 3, start)
    close(other_state, state)
    close(other_addresses.assignment, addresses.assignment[..., order, :])
    close(other_addresses.weight_mean, addresses.weight_mean[..., order, :, :])


@every_memory
@over_sizes
def test_the_order_of_clusters_does_not_matter(name, sizes):
    problem = make_problem(name, sizes)
    memory, codes, start = problem.memory, problem.codes, problem.state
    order = torch.randperm(memory.layout[0], generator=torch.Generator().manual_seed(1))
    clusters, size = memory.layout[0], memory.code_size  # priors may tell the clusters apart
    shapes = {"noise_var": (clusters, size), "loc_mean": (clusters, size), "loc_var": (clusters,)}
    if memory.kind == "categorical":
        shapes |= {"row_mean": (clusters, size), "row_var": (clusters,)}
    config = memory.config()
    moved = {key: config[key][order] for key, shape in shapes.items() if getattr(config.get(key), "shape", ()) == shape}
    other = type(memory)(**(config | moved))

    def permuted(state: MemoryState) -> MemoryState:
        return state.map(lambda tensor: tensor.index_select(-3, order))

    state, addresses = memory.write(codes, 3, start)
    other_state, other_addresses = other.write(codes, 3, permuted(start))
    close(other_state, permuted(state))
    close(other_addresses.assignment, addresses.assignment[..., order])
    close(other.bound(codes, other_state, other_addresses), memory.bound(codes, state, addresses))


@every_memory
@pytest.mark.parametrize("batch", [(3,), (2, 3)])
def test_a_batch_is_a_loop_over_episodes(name, batch):
    problem = make_problem(name, Sizes(batch=batch))
    memory = problem.memory
    state, addresses = memory.write(problem.codes, 3, problem.state)
    bound = memory.bound(problem.codes, state, addresses)
    for index in np.ndindex(*batch):
        one_state, one_addresses = memory.write(problem.codes[index], 3, problem.state.map(itemgetter(index)))
        close(state.map(itemgetter(index)), one_state)
        close(addresses.map(itemgetter(index)), one_addresses)
        close(bound.total[index], memory.bound(problem.codes[index], one_state, one_addresses).total)


@every_memory
def test_one_memory_serves_a_batch_of_episodes(name):
    """A state without batch dimensions is that of every episode."""
    problem = make_problem(name)
    memory, state = problem.memory, problem.state
    codes = normal(2, 4, memory.code_size)
    addresses = memory.address(state, codes)
    reconstruction, density = memory.reconstruct(state, codes), memory.log_predictive(state, codes)
    total = memory.bound(codes, state, addresses).total
    written, _ = memory.write(codes, 2, state)
    for index in range(2):
        one_addresses = memory.address(state, codes[index])
        close(addresses.assignment[index], one_addresses.assignment)
        close(reconstruction[index], memory.reconstruct(state, codes[index]))
        close(density[index], memory.log_predictive(state, codes[index]))
        close(total[index], memory.bound(codes[index], state, one_addresses).total)
        close(written.row_mean[index], memory.write(codes[index], 2, state)[0].row_mean)


PRIORS = [
    (name, argument)
    for name in MEMORIES
    for argument in ("row_mean", "row_var", "loc_mean", "loc_var")
    if name.endswith(("general", "factorised")) and argument in make_problem(name).memory.config()
]


ROW_VARIANCES = ("categorical-general", "row_var")


@pytest.mark.parametrize("batch", [(), (2,)], ids=["one-episode", "two-episodes"])
@pytest.mark.parametrize(("name", "argument"), PRIORS)
def test_a_batch_of_priors_is_a_loop_over_memories(name, argument, batch):
    """Leading dimensions of the prior's tensors broadcast against those of the codes."""
    problem = make_problem(name, Sizes(batch=batch))
    config, codes = problem.memory.config(), problem.codes
    value = torch.as_tensor(config[argument], dtype=torch.float64)
    if (argument, value.ndim) in (("loc_mean", 1), ("loc_var", 0)) or (name, argument) == ROW_VARIANCES:
        value = value.unsqueeze(0)
    values = torch.stack([value, 1.5 * value])
    memory = type(problem.memory)(**(config | {argument: values}))
    state, addresses = memory.write(codes, 3, "prior")
    total = memory.bound(codes, state, addresses).total
    assert total.shape == (2,)
    for index in range(2):
        one = type(memory)(**(config | {argument: values[index]}))
        one_codes = codes[index] if batch else codes
        one_state, one_addresses = one.write(one_codes, 3, "prior")
        close(state.map(itemgetter(index)), one_state)
        close(total[index], one.bound(one_codes, one_state, one_addresses).total)


@every_memory
@pytest.mark.parametrize("filler", [1e6, float("nan")])
def test_masked_frames_are_as_if_removed(name, filler):
    problem = make_problem(name, Sizes(batch=(2,)))
    memory, start = problem.memory, problem.state
    mask = torch.tensor([[1, 1, 0, 1, 0, 1], [0, 1, 1, 0, 0, 0]], dtype=torch.bool)
    codes = problem.codes.where(mask.unsqueeze(-1), filler)
    state, addresses = memory.write(codes, 3, start, mask)
    bound = memory.bound(codes, state, addresses)
    again = memory.address(state, codes, mask)
    for episode in range(2):
        kept = codes[episode, mask[episode]]
        one_state, one_addresses = memory.write(kept, 3, start.map(itemgetter(episode)))
        close(state.map(itemgetter(episode)), one_state)
        close(bound.map(itemgetter(episode)), memory.bound(kept, one_state, one_addresses))
        theta = addresses.assignment[episode]
        close(theta[..., mask[episode], :], one_addresses.assignment)
        assert (theta[..., ~mask[episode], :] == 0).all()
        close(again.assignment[episode][..., mask[episode], :], memory.address(one_state, kept).assignment)


@every_memory
@pytest.mark.parametrize("expand", [False, True])
def test_a_weight_is_how_often_a_frame_is_written(name, expand):
    problem = make_problem(name, Sizes(batch=(2,)))
    memory, codes, start = problem.memory, problem.codes, problem.state
    times = torch.tensor([1, 2, 0, 3, 1, 1])
    weights, repeated = times.double().expand(2, -1), codes.repeat_interleave(times, -2)
    state, addresses = memory.write(codes, 3, start, weights, expand=expand)
    other_state, other_addresses = memory.write(repeated, 3, start, expand=expand)
    close(state, other_state)
    close(
        addresses.assignment.repeat_interleave(times, -2),
        times.repeat_interleave(times)[:, None] * other_addresses.assignment,
    )
    close(memory.bound(codes, state, addresses), memory.bound(repeated, other_state, other_addresses))
    var = variances(*codes.shape)
    close(
        memory.bound(codes, state, addresses, var),
        memory.bound(repeated, other_state, other_addresses, var.repeat_interleave(times, -2)),
    )


@every_memory
def test_a_weight_may_be_any_share_of_a_frame(name):
    """Two halves are a whole, and weights of 1 change nothing."""
    problem = make_problem(name)
    memory, codes, start = problem.memory, problem.codes, problem.state
    expected, _ = memory.write(codes, 3, start)
    close(memory.write(codes, 3, start, torch.ones(6, dtype=torch.float64))[0], expected, rtol=0, atol=0)
    halves = torch.full((12,), 0.5, dtype=torch.float64)
    state, _ = memory.write(torch.cat([codes, codes]), 3, start, halves)
    close(state, expected)
    close(memory.address(state, torch.cat([codes, codes]), halves).assignment.sum((-1, -2)), 6.0)


@every_memory
def test_masked_frames_may_have_any_code_variance(name):
    problem = make_problem(name)
    memory = problem.memory
    mask = torch.tensor([1, 1, 0, 1, 1, 0], dtype=torch.bool)
    state, addresses = memory.write(problem.codes, 3, problem.state, mask)
    code_var = torch.ones_like(problem.codes)
    expected = memory.bound(problem.codes, state, addresses, code_var)
    for filler in (0.0, float("nan")):
        masked_var = code_var.where(mask.unsqueeze(-1), filler)
        close(memory.bound(problem.codes, state, addresses, masked_var), expected)


@every_memory
@every_start
def test_a_masked_write_is_finite_from_every_start(name, start):
    problem = make_problem(name, Sizes(batch=(2,), clusters=5))
    mask = torch.tensor([[1, 1, 0, 1, 0, 1], [0, 1, 1, 0, 0, 0]], dtype=torch.bool)
    codes = problem.codes.where(mask.unsqueeze(-1), float("nan"))
    state, _ = problem.memory.write(codes, 2, start, mask, torch.Generator().manual_seed(0))
    assert state.row_mean.isfinite().all()
    assert state.row_cov.isfinite().all()


@every_memory
@every_start
def test_an_episode_without_frames_leaves_the_prior(name, start):
    problem = make_problem(name, Sizes(batch=(2,)))
    mask = torch.tensor([[True] * 6, [False] * 6])
    state, addresses = problem.memory.write(problem.codes, 2, start, mask)
    close(state.map(lambda t: t[1]), problem.memory.prior_state(dtype=torch.float64))
    bound = problem.memory.bound(problem.codes, state, addresses)
    close(bound.total[1], 0.0, atol=1e-10)
    assert bound.total[0] < -1


# --- Streamed = sharded = in memory ---------------------------------------------------------------------------------


def streams(codes: torch.Tensor, folder) -> dict[str, Any]:
    chunks = list(codes.split([1, 4, 2, 3]))
    np.save(folder / "codes.npy", codes.numpy())
    return {
        "list": chunks,
        "arrays": [chunk.numpy() for chunk in chunks],
        "factory": lambda: iter(chunks),
        "memmap": np.load(folder / "codes.npy", mmap_mode="r"),
        "array": codes.numpy(),
        "tensor": codes,
    }


@every_memory
def test_a_streamed_write_is_the_write_in_memory(name, tmp_path, monkeypatch):
    monkeypatch.setattr("vbmem.memory.streams.CHUNK", 3)
    problem = make_problem(name, Sizes(frames=10))
    memory, codes, start = problem.memory, problem.codes, problem.state
    expected, _ = memory.write(codes, 4, start)
    for chunks in streams(codes, tmp_path).values():
        close(memory.write_stream(chunks, 4, start), expected)
    close(memory.write_stream([codes], 4, "prior"), memory.write(codes, 4, "prior")[0])


def test_a_stream_can_be_a_data_loader():
    problem = make_problem("mixture", Sizes(frames=10))
    codes: Any = problem.codes  # a list of codes is a data set too
    loader = DataLoader(codes, batch_size=3)
    close(
        problem.memory.write_stream(loader, 4, problem.state), problem.memory.write(problem.codes, 4, problem.state)[0]
    )


@every_memory
def test_a_sharded_write_is_the_write_in_memory(name):
    """Each shard makes its local step, the statistics are added, everyone makes the same global step."""
    problem = make_problem(name, Sizes(batch=(2,), frames=10))
    memory, prior = problem.memory, problem.prior
    state = problem.state
    for _ in range(4):
        shards = [
            engine.local_step(memory.split(shard), state, prior)[1] for shard in problem.codes.split([2, 5, 3], dim=-2)
        ]
        state = engine.global_step(shards[0] + shards[1] + shards[2], state, prior)
    close(state, memory.write(problem.codes, 4, problem.state, expand=False)[0])


@pytest.mark.parametrize("name", ["mixture", "tree", "shifted"])
def test_a_masked_frame_does_not_move_the_default_start(name):
    """The number of clusters that start at means follows the frames that count."""
    problem = make_problem(name, Sizes(frames=24, clusters=5))
    codes, mask = problem.codes, torch.arange(24) < 9
    generator = torch.Generator()
    masked, _ = problem.memory.write(codes, 3, None, mask, generator.manual_seed(0))
    removed, _ = problem.memory.write(codes[:9], 3, generator=generator.manual_seed(0))
    close(masked, removed, rtol=1e-8, atol=1e-9)


def test_many_episodes_from_a_batch_of_starts_are_a_loop_over_both():
    """So many frames that episodes would be written in groups."""
    memory = MixtureMemory(200, 5, 4)
    codes = normal(3, 1000, 200) * torch.tensor([1.0, 3.0, 9.0]).reshape(3, 1, 1)
    prior = memory.prior_state(dtype=torch.float64)
    starts = [prior, prior.map(lambda x: 0.5 * x)]
    mean, cov = (torch.stack([getattr(x, name) for x in starts]).unsqueeze(1) for name in ("row_mean", "row_cov"))
    both = MemoryState(mean, cov, located=True)
    states, _ = memory.write(codes, 2, both)
    for start, episode in itertools.product(range(2), range(3)):
        alone, _ = memory.write(codes[episode], 2, starts[start])
        close(states.row_mean[start, episode], alone.row_mean)


@pytest.mark.filterwarnings("ignore:the codes have a mean square")
def test_a_stream_of_large_codes_is_computed_with_in_float64_as_a_write_is():
    memory = GaussianMemory(6, 3, noise_var=1e-4)
    codes = 1000 * normal(90, 6).float()
    start = memory.first_state(codes, generator=torch.Generator().manual_seed(0))
    whole, _ = memory.write(codes, 5, start, expand=False)
    told = []
    streamed = memory.write_stream(codes.split(40), 5, start, follow=lambda _, state: told.append(state))
    assert streamed.row_mean.dtype == torch.float32
    close(streamed.row_mean, whole.row_mean, rtol=1e-4)
    resumed = memory.write_stream(codes.split(40), 3, told[1])
    assert torch.equal(resumed.row_mean, streamed.row_mean)
