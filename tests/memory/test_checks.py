"""Bad input is refused at the boundary, with a sentence that says what was wrong and what was expected."""

from typing import Any

import numpy as np
import pytest
import torch

from memory.zoo import every_memory, make_problem, normal
from vbmem import load_memory, save_memory
from vbmem.memory import (
    CategoricalMemory,
    GaussianMemory,
    KanervaMemory,
    MemoryState,
    MixtureMemory,
    ShiftedGaussianMemory,
    TreeMemory,
)

MIXTURE = MixtureMemory(3, 2, 2)
CODES = normal(5, 3)
STATE = MIXTURE.prior_state(dtype=torch.float64)
ALL = torch.ones(5, dtype=torch.bool)

BAD_CODES = {
    "wrong code size": (normal(5, 4), r"shape \[\.\., frames, 3\] for code_size=3, got \[5, 4\]"),
    "a single code": (normal(3), r"shape \[\.\., frames, 3\].* got \[3\]"),
    "no frames": (normal(2, 0, 3), r"at least one frame, got codes of shape \[2, 0, 3\]"),
    "NaN": (torch.full((5, 3), torch.nan), "codes hold NaN or infinity"),
    "infinity": (torch.tensor([[1.0, torch.inf, 0.0]]), "codes hold NaN or infinity"),
    "integers": (torch.ones(5, 3, dtype=torch.int64), r"float32 or float64, got torch\.int64"),
    "half": (torch.ones(5, 3, dtype=torch.bfloat16), r"float32 or float64, got torch\.bfloat16"),
    "a list": ([[1.0, 2.0, 3.0]], r"must be a torch\.Tensor, got list"),
    "an array": (normal(5, 3).numpy(), r"must be a torch\.Tensor, got ndarray; torch\.as_tensor"),
}


@pytest.mark.parametrize(("codes", "message"), BAD_CODES.values(), ids=list(BAD_CODES))
def test_bad_codes_are_refused_everywhere(codes, message):
    for use in (MIXTURE.write, lambda z: MIXTURE.address(STATE, z), lambda z: MIXTURE.log_predictive(STATE, z)):
        with pytest.raises(ValueError, match=message):
            use(codes)
    with pytest.raises(ValueError, match=message):
        KanervaMemory(3, 2).write(codes)


BAD_MASKS = {
    "of another length": (ALL[:4], r"mask must have the shape \[5\], one entry a frame, got \[4\]"),
    "of other batches": (ALL.expand(2, 5), r"mask must have the shape \[5\], one entry a frame, got \[2, 5\]"),
    "of whole numbers": (ALL.long(), r"mask must be boolean.* or weights of type torch\.float64, got torch\.int64"),
    "of another precision": (ALL.float(), r"or weights of type torch\.float64, got torch\.float32"),
    "a list": ([True] * 5, r"mask must be a torch\.Tensor, got list"),
    "of negative weights": (-ALL.double(), "the weights of frames must be finite and not negative"),
    "of infinite weights": (ALL / torch.zeros(5).double(), "the weights of frames must be finite and not negative"),
    "of weights that are NaN": (ALL * torch.tensor(torch.nan).double(), "the weights of frames must be finite"),
    "on another device": (ALL.to("meta"), "codes are on cpu but the mask is on meta"),
}


@pytest.mark.parametrize(("mask", "message"), BAD_MASKS.values(), ids=list(BAD_MASKS))
def test_bad_masks_are_refused(mask, message):
    with pytest.raises(ValueError, match=message):
        MIXTURE.write(CODES, mask=mask)
    with pytest.raises(ValueError, match=message):
        MIXTURE.address(STATE, CODES, mask)


@pytest.mark.parametrize("dtype", [torch.bool, torch.float64])
def test_non_finite_codes_are_refused_where_they_are_not_masked(dtype):
    codes = CODES.clone()
    codes[1] = torch.nan
    mask = ALL.to(dtype)
    mask[2] = False
    with pytest.raises(ValueError, match="mask those frames out"):
        MIXTURE.write(codes, mask=mask)


OTHER = MixtureMemory(3, 2, 4).prior_state(dtype=torch.float64)
UNLOCATED = MemoryState(STATE.row_mean, STATE.row_cov, located=False)
SMALL = MemoryState(STATE.row_mean, STATE.factor_cov)
BAD_STATES = {
    "of another memory": (OTHER, r"another memory: its rows have the shape \[4, 3, 3\], expected \[2, 3, 3\]"),
    "without locations": (UNLOCATED, r"another memory.* \(clusters, rows with the location, code size\)"),
    "with other covariances": (SMALL, r"row_cov must have the shape \[\.\., 2, 3, 3\], got \[2, 2, 2\]"),
    "of another dtype": (STATE.to(torch.float32), r"codes are torch\.float64 on cpu but the state is torch\.float32"),
    "on another device": (STATE.to("meta"), r"codes are .* on cpu but the state is .* on meta"),
}


@pytest.mark.parametrize(("state", "message"), BAD_STATES.values(), ids=list(BAD_STATES))
def test_bad_states_are_refused(state, message):
    addresses = MIXTURE.address(STATE, CODES)
    for use in (
        lambda: MIXTURE.write(CODES, start=state),
        lambda: MIXTURE.write_stream([CODES], start=state),
        lambda: MIXTURE.address(state, CODES),
        lambda: MIXTURE.bound(CODES, state, addresses),
        lambda: MIXTURE.reconstruct(state, CODES),
        lambda: MIXTURE.log_predictive(state, CODES),
    ):
        with pytest.raises(ValueError, match=message):
            use()


def test_a_state_of_another_batch_is_refused():
    with pytest.raises(ValueError, match="state"):
        MIXTURE.write(CODES.expand(3, 5, 3), start=MIXTURE.prior_state((2,), dtype=torch.float64))


ONE_AND_A_HALF: Any = 1.5
WHOLE = "must be a whole number of at least 1, got"
BAD_MEMORIES = {
    "no rows": (lambda: GaussianMemory(3, 0), f"rows {WHOLE} 0"),
    "negative clusters": (lambda: MixtureMemory(3, 2, -1), f"clusters {WHOLE} -1"),
    "no code": (lambda: CategoricalMemory(0, 2), f"code_size {WHOLE} 0"),
    "half a row": (lambda: ShiftedGaussianMemory(3, ONE_AND_A_HALF), f"rows {WHOLE} 1.5"),
    "true rows": (lambda: GaussianMemory(3, True), f"rows {WHOLE} True"),
    "no partitions": (lambda: TreeMemory(4, 2, 2, 0), f"partitions {WHOLE} 0"),
    "partitions that do not divide": (
        lambda: TreeMemory(4, 2, 2, 3),
        "partitions=3 does not divide code_size=4; choose a divisor",
    ),
    "negative noise": (
        lambda: GaussianMemory(3, 2, noise_var=-1.0),
        r"noise_var must be positive and finite, got -1\.0",
    ),
    "no noise": (lambda: GaussianMemory(3, 2, noise_var=torch.tensor(0.0)), "noise_var must be positive and finite"),
    "noise that is NaN": (lambda: GaussianMemory(3, 2, noise_var=float("nan")), "noise_var must be positive"),
    "infinite locations": (lambda: MixtureMemory(3, 2, 2, loc_var=float("inf")), "loc_var must be positive"),
    "negative rows": (lambda: CategoricalMemory(3, 2, row_var=torch.tensor([1.0, -1.0])), "row_var must be positive"),
    "negative rows in a batch": (
        lambda: CategoricalMemory(3, 2, row_var=torch.tensor([[[1.0, -1.0]], [[1.0, 1.0]]])),
        "row_var must be positive",
    ),
    "noise of another size": (
        lambda: MixtureMemory(3, 2, 4, noise_var=torch.ones(4)),
        r"noise_var must be one number, or a tensor of shape \[3\] or \[4, 3\], got a tensor of shape \[4\]",
    ),
    "noise of other clusters": (
        lambda: CategoricalMemory(3, 2, noise_var=torch.ones(3, 3)),
        r"noise_var must be .* of shape \[3\] or \[2, 3\], got a tensor of shape \[3, 3\]",
    ),
    "noise by episode": (
        lambda: MixtureMemory(3, 2, 4, noise_var=torch.ones(5, 4, 3)),
        r"noise_var must be .* got a tensor of shape \[5, 4, 3\]",
    ),
    "no noise of one feature": (
        lambda: MixtureMemory(3, 2, 2, noise_var=torch.tensor([1.0, 0.0, 1.0])),
        "noise_var must be positive and finite, got 0 in it",
    ),
    "noise by feature of the DKM": (
        lambda: KanervaMemory(3, 2, noise_var=torch.ones(3)),
        r"noise_var must be one number, got a tensor of shape \[3\]",
    ),
    "rows of other scales": (
        lambda: MixtureMemory(3, 2, 2, row_var=torch.ones(3)),
        r"row_var must have the shape \[\.\., 2\], got \[3\]",
    ),
    "U_0 of another size": (
        lambda: MixtureMemory(3, 2, 2, row_var=torch.eye(3)),
        r"row_var must have the shape \[\.\., 2, 2\], got \[3, 3\]",
    ),
    "a full U_0 for a categorical memory": (
        lambda: CategoricalMemory(3, 4, row_var=torch.eye(4)),
        r"row_var must be a number, or .* \[4\], or \[\.\., 1, 4\] for a batch .* no full matrix, got \[4, 4\]",
    ),
    "a batch of variances that could pass for U_0": (
        lambda: CategoricalMemory(3, 4, row_var=torch.ones(5, 4)),
        r"row_var must be .* for a batch of memories, since U_0 is diagonal here and no full matrix, got \[5, 4\]",
    ),
    "R_0 of another size": (
        lambda: GaussianMemory(3, 2, row_mean=torch.zeros(3, 2)),
        r"row_mean must have the shape \[\.\., 2, 3\], got \[3, 2\]",
    ),
    "a location of another size": (
        lambda: ShiftedGaussianMemory(3, 2, loc_mean=torch.zeros(2)),
        r"loc_mean must be a number, or a tensor of shape \[3\], or \[\.\., 1, 3\] .*, got \[2\]",
    ),
    "locations of other clusters": (
        lambda: MixtureMemory(3, 2, 4, loc_mean=torch.zeros(5, 3)),
        r"loc_mean must be .* \[\.\., 4, 3\] with one for every cluster, or \[\.\., 1, 3\] .*, got \[5, 3\]",
    ),
    "rows of other means for a categorical memory": (
        lambda: CategoricalMemory(3, 2, row_mean=torch.zeros(4, 3)),
        r"row_mean must be .* \[\.\., 2, 3\] with one for every cluster.*, got \[4, 3\]",
    ),
    "variances of other clusters": (
        lambda: TreeMemory(4, 2, 3, 2, loc_var=torch.ones(2)),
        r"loc_var must be a number, or a tensor of shape \[\.\., 3\] with a variance for every cluster.*, got \[2\]",
    ),
    "a full Sigma_b0": (
        lambda: ShiftedGaussianMemory(3, 2, loc_var=torch.eye(3)),
        r"loc_var must be .* since Sigma_b0 is a number times I and no full matrix, got \[3, 3\]",
    ),
    "a full Sigma_b0 that could pass for a batch": (
        lambda: MixtureMemory(3, 2, 3, loc_var=torch.ones(2, 3, 3)),
        r"loc_var must be .* and no full matrix, got \[2, 3, 3\]",
    ),
    "no variance of one cluster": (
        lambda: MixtureMemory(3, 2, 2, loc_var=torch.tensor([1.0, 0.0])),
        "loc_var must be positive and finite, got 0 in it",
    ),
    "negative address variance": (lambda: KanervaMemory(3, 2, -0.3), "address_var must be positive"),
    "no rows of the DKM": (lambda: KanervaMemory(3, 0), f"rows {WHOLE} 0"),
}


@pytest.mark.parametrize(("make", "message"), BAD_MEMORIES.values(), ids=list(BAD_MEMORIES))
def test_bad_sizes_and_priors_are_refused(make, message):
    with pytest.raises(ValueError, match=message):
        make()


@pytest.mark.parametrize(
    ("memory", "name", "has"),
    [
        (GaussianMemory(3, 2), "clusters", "rows"),
        (CategoricalMemory(3, 2), "partitions", "rows"),
        (MIXTURE, "code_size", "rows and clusters"),
        (TreeMemory(4, 2, 2, 2), "partitions", "rows and clusters"),
    ],
    ids=repr,
)
def test_a_memory_cannot_change_a_size_it_does_not_have(memory, name, has):
    with pytest.raises(ValueError, match=f"{type(memory).__name__} cannot change '{name}'; it has {has}$"):
        memory.resize(**{name: 2})


def test_resizing_against_the_prior_is_refused():
    with pytest.raises(ValueError, match=r"row_var must have the shape \[\.\., 3, 3\], got \[2, 2\]"):
        GaussianMemory(3, 2, row_var=torch.eye(2)).resize(rows=3)


@pytest.mark.parametrize(("name", "shape"), [("loc_mean", (2, 3)), ("loc_var", (2,))])
def test_a_prior_for_every_cluster_is_of_that_number_of_clusters(name, shape):
    prior: dict[str, Any] = {name: torch.ones(shape)}
    memory = MixtureMemory(3, 1, 2, **prior)
    assert memory.resize(rows=3, clusters=2).rows == 3
    with pytest.raises(ValueError, match=f"has a {name} for every cluster, so their number cannot change; make it"):
        memory.resize(clusters=4)


@every_memory
@pytest.mark.parametrize("count", [0, -1, 1.5])
def test_counts_are_whole_and_positive(name, count):
    problem = make_problem(name)
    memory = problem.memory
    with pytest.raises(ValueError, match=f"iterations {WHOLE} {count}"):
        memory.write(problem.codes, count)
    with pytest.raises(ValueError, match=f"iterations {WHOLE} {count}"):
        memory.write_stream([problem.codes], count)
    with pytest.raises(ValueError, match=f"starts {WHOLE} {count}"):
        memory.write(problem.codes, starts=count)
    with pytest.raises(ValueError, match=f"n {WHOLE} {count}"):
        memory.sample(problem.state, count)


# --- Streams --------------------------------------------------------------------------------------------------------


def test_a_stream_that_can_be_read_only_once_is_refused():
    for chunks in ((chunk for chunk in [CODES]), iter([CODES])):
        with pytest.raises(ValueError, match=r"gone through only once.*a function that returns a fresh iterator"):
            MIXTURE.write_stream(chunks)


def test_a_factory_that_returns_a_spent_iterator_is_refused():
    spent = iter([CODES, CODES])
    with pytest.raises(ValueError, match="fresh iterator"):
        MIXTURE.write_stream(lambda: spent)


@pytest.mark.parametrize(
    "chunks", [[], lambda: iter(()), CODES[:0], CODES[:0].numpy()], ids=["list", "factory", "tensor", "array"]
)
def test_an_empty_stream_is_refused(chunks):
    with pytest.raises(ValueError, match="the stream holds no chunks"):
        MIXTURE.write_stream(chunks)


@pytest.mark.parametrize(
    ("chunk", "message"),
    [
        (normal(4, 2), "code_size=3"),
        (normal(0, 3), "at least one frame"),
        (torch.full((2, 3), torch.nan, dtype=torch.float64), "NaN"),
        (normal(2, 3).numpy().astype("int64"), r"float32 or float64, got torch\.int64"),
        (normal(2, 3).float(), r"float32.*float64|float64.*float32"),
    ],
    ids=["another size", "no frames", "NaN", "integers", "another dtype"],
)
@pytest.mark.parametrize("start", ["prior", "kmeans++"])
def test_a_bad_chunk_late_in_a_stream_is_refused(chunk, message, start):
    with pytest.raises(ValueError, match=message):
        MIXTURE.write_stream([CODES, chunk], start=start)


def test_whole_numbers_of_numpy_are_sizes_and_its_reals_are_scales(tmp_path):
    sizes: Any = np.array([3, 2, 4])
    noise_var: Any = np.float32(0.5)
    memory = MixtureMemory(*sizes, noise_var=noise_var)
    assert {type(size) for size in (memory.code_size, memory.rows, memory.clusters)} == {int}
    save_memory(tmp_path / "memory.safetensors", memory, memory.prior_state())
    assert load_memory(tmp_path / "memory.safetensors")[0].noise_var == 0.5


@pytest.mark.parametrize(
    ("act", "message"),
    [
        (lambda m: m.local_step(m.prior_state(), torch.zeros(5, 7)), "codes must have the shape"),
        (lambda m: m.local_step(m.prior_state(), torch.zeros(5, 3, dtype=torch.int64)), "float32 or float64"),
        (lambda m: m.local_step(MixtureMemory(3, 1, 5).prior_state(), torch.zeros(5, 3)), "another memory"),
        (lambda m: m.write_stream([torch.zeros(2, 5, 3)]), r"a chunk must hold frames of one episode, \[n, 3\]"),
        (lambda m: m.fit_prior([torch.zeros(5, 3)], mask=torch.ones(5)), "a mask goes with a tensor of codes"),
        (lambda m: m.write(np.zeros((5, 3)), starts=2), "codes must be a torch.Tensor"),
        (lambda m: m.write(1e5 * torch.ones(3)), "codes must have the shape"),
        (lambda m: MixtureMemory.for_codes([], 1, 2), "the stream holds no chunks"),
    ],
)
def test_what_cannot_be_taken_is_told_in_a_sentence(act, message):
    with pytest.raises(ValueError, match=message):
        act(MixtureMemory(3, 1, 2))
