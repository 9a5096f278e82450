"""Write, generate, read: shapes, randomness, and that each is what it says it is."""

import inspect
from dataclasses import replace
from typing import get_args

import pytest
import torch

import vbmem
from tiny import KINDS, as_bytes, seeded, tiny_model, waves
from vbmem.memory.choice import WeightedChoice
from vbmem.memory.prefixes import PrefixNetworks
from vbmem.memory.starting import Start
from vbmem.memory.writing import VariationalMemory
from vbmem.nets import CodePosterior
from vbmem.pretrained import picture_model


@pytest.fixture(params=KINDS)
def model(request):
    return tiny_model(request.param)


@pytest.fixture
def memory(model):
    return model.write(waves(20, 8), generator=seeded())


def test_a_model_and_a_memory_print_in_a_line_what_they_are(model, memory):
    parameters = sum(weights.numel() for weights in model.network.parameters())
    frame = "FrameFormat(size=8, channels=3, likelihood='gaussian')"
    assert repr(model) == f"<Model {model.name!r}: {model.memory!r}, {frame}, {parameters:,} parameters>"
    facts = f"{model.memory!r}, {memory.nbytes:,} bytes"
    assert repr(memory) == f"<WrittenMemory of 20 frames: {facts}, written by {model.name!r}>"
    assert repr(replace(memory, model="")) == f"<WrittenMemory of 20 frames: {facts}>"


# --- Shapes and gradients -------------------------------------------------------------------------------------------


def test_shapes_and_ranges(model, memory):
    assert model.generate(memory, 7).shape == (7, 3, 8, 8)
    assert model.generate(memory, 2, cluster=memory.empty.layout[0] - 1).shape == (2, 3, 8, 8)
    assert model.read(memory, waves(4, 8), 3).shape == (3, 4, 3, 8, 8)
    assert model.score(memory, waves(4, 8)).shape == (4,)
    assert model.bound(memory, waves(4, 8)).shape == (4,)
    assert model.decode(torch.zeros(2, 5, model.memory.code_size)).shape == (2, 5, 3, 8, 8)
    assert model.decode(torch.zeros(model.memory.code_size)).shape == (3, 8, 8)
    for pictures in (model.generate(memory, 7, sample_pixels=True), model.read(memory, waves(4, 8), 2)):
        assert 0 <= pictures.min() <= pictures.max() <= 1


def test_every_frame_is_counted_once(memory):
    assert memory.frames == 20
    assert memory.usage.shape == memory.state.loc_var.shape
    torch.testing.assert_close(memory.usage.sum(-1), torch.full_like(memory.usage[..., 0], 20))


def test_nothing_carries_gradients(model):
    model.network.requires_grad_(True)
    memory = model.write(waves(4, 8).requires_grad_())
    results = [model.generate(memory, 2), model.read(memory, waves(2, 8), 2), model.score(memory, waves(2, 8))]
    results.append(model.bound(memory, waves(2, 8)))
    tensors = [
        memory.state.row_mean,
        memory.state.row_cov,
        *memory.choice.counts,
        *results,
        model.encode(waves(2, 8)).mean,
    ]
    assert not any(tensor.requires_grad for tensor in tensors)


def test_a_loaded_models_weights_are_frozen_and_in_evaluation_mode(shipped_model):
    assert not any(parameter.requires_grad for parameter in shipped_model.network.parameters())
    assert not any(module.training for module in shipped_model.network.modules())


@pytest.mark.parametrize("frames", [1, 2, 70])
def test_shipped_models_write_episodes_of_any_length(shipped_model, frames):
    memory = shipped_model.write(waves(frames), generator=seeded())
    assert memory.frames == frames
    pictures = shipped_model.generate(memory, 3, generator=seeded())
    assert pictures.shape == (3, 3, 32, 32)
    assert pictures.isfinite().all()
    assert shipped_model.score(memory, waves(1)).isfinite().all()


def test_trust_is_the_memorys_share_in_the_code_that_is_decoded(model, memory):
    frames = waves(4, 8)
    q = model.encode(frames).mean
    content = model.network.content(q)
    for trust in (0.0, 0.5, 1.0):
        codes = q.clone()
        codes[:, : content.shape[-1]] = (1 - trust) * content + trust * memory.read(content, sample=False)
        read = model.read(memory, frames, 1, trust=trust, sample=False)[0]
        torch.testing.assert_close(read, model.decode(codes))


@pytest.mark.parametrize("trust", [-0.1, 1.5, float("nan")])
def test_trust_is_a_share(trust):
    model = tiny_model("mixture")
    memory = model.write(waves(6, 8), generator=seeded())
    with pytest.raises(ValueError, match=f"trust must lie between 0 and 1, got {trust}"):
        model.read(memory, waves(2, 8), 1, trust=trust)


# --- Randomness -----------------------------------------------------------------------------------------------------


def test_all_randomness_comes_from_the_generator(model):
    def everything(seed):
        generator = seeded(seed)
        memory = model.write(waves(20, 8), generator=generator)
        draws = {"sample": True, "sample_pixels": True, "generator": generator}
        return [
            memory.state.row_mean,
            memory.state.loc_mean,
            model.generate(memory, 5, **draws),
            model.generate(memory, 2, cluster=0, **draws),
            model.read(memory, waves(3, 8), 2, **draws),
            model.bound(memory, waves(3, 8), samples=2, generator=generator),
        ]

    before = torch.get_rng_state()
    one, again, other = everything(0), everything(0), everything(1)
    assert torch.equal(torch.get_rng_state(), before)
    assert all(torch.equal(a, b) for a, b in zip(one, again, strict=True))
    assert not any(torch.equal(a, b) for a, b in zip(one[2:], other[2:], strict=True))


# --- Writing --------------------------------------------------------------------------------------------------------


def test_a_write_is_that_of_the_mean_codes(model):
    frames = waves(9, 8)
    codes = model.network.infer(frames.unsqueeze(0)).mean[0]
    state, _ = model.memory.write(codes, model.network.iterations, generator=seeded())
    memory = model.write(frames, generator=seeded())
    torch.testing.assert_close(memory.state.row_mean, state.row_mean)
    torch.testing.assert_close(memory.state.row_cov, state.row_cov)
    torch.testing.assert_close(memory.usage, memory.address(codes).assignment.sum(-2))
    assert vars(model.write_codes(codes, generator=seeded()).state).keys() == vars(state).keys()


@pytest.mark.parametrize("start", get_args(Start))
def test_a_write_starts_where_it_is_told(start):
    model, frames = tiny_model(), waves(9, 8)
    state, _ = model.memory.write(model.encode(frames).mean, 4, start, generator=seeded())
    for memory in (
        model.write(frames, start=start, generator=seeded()),
        model.write_codes(model.encode(frames).mean, start=start, generator=seeded()),
    ):
        torch.testing.assert_close(memory.state.row_mean, state.row_mean)


def test_iterations_are_the_models_unless_given():
    model, frames = tiny_model(), waves(9, 8)
    default = model.write(frames, generator=seeded())
    assert torch.equal(model.write(frames, iterations=4, generator=seeded()).state.loc_mean, default.state.loc_mean)
    assert not torch.equal(model.write(frames, iterations=1, generator=seeded()).state.loc_mean, default.state.loc_mean)


def test_six_hundred_frames_in_chunks_have_the_codes_of_one_batch(monkeypatch):
    model, frames = tiny_model(), waves(600, 8)
    q = model.encode(frames)
    monkeypatch.setattr(picture_model, "PIXELS", 600 * 64)
    whole = model.encode(frames)
    for a, b in ((q.mean, whole.mean), (q.var, whole.var), (q.mean, model.network.infer(frames.unsqueeze(0)).mean[0])):
        torch.testing.assert_close(a, b, rtol=1e-4, atol=1e-5)


def test_chunks_are_seen_in_order_by_reading_scoring_and_decoding(monkeypatch):
    model, frames = tiny_model(), waves(10, 8)
    memory = model.write(frames, generator=seeded())
    codes = model.encode(frames).mean
    monkeypatch.setattr(CodePosterior, "rsample", lambda q, generator: q.mean)

    def results():
        return model.read(memory, frames, 2, sample=False), model.decode(codes), model.bound(memory, frames)

    whole = results()
    monkeypatch.setattr(picture_model, "PIXELS", 3 * 64)
    for one, other in zip(whole, results(), strict=True):
        torch.testing.assert_close(one, other, rtol=1e-4, atol=1e-4)


# --- Generating -----------------------------------------------------------------------------------------------------


def residual(codes, state, cluster, piece):
    """What is left of codes [n, C] without a cluster's location and rows, as long as the longest code."""
    offsets = codes[:, piece] - state.loc_mean[cluster]
    rows = state.factor_mean[cluster]
    explained = torch.linalg.lstsq(rows.mT, offsets.mT).solution if len(rows) else rows.new_zeros(0, len(codes))
    return (offsets - explained.mT @ rows).norm(dim=-1).max() / codes.norm(dim=-1).max()


@pytest.mark.parametrize("name", ["cifar10-mixture", "cifar10-tree"])
def test_mean_codes_lie_in_the_cluster_they_were_drawn_from(name):
    model = vbmem.load(name)
    memory = model.write(waves(64), generator=seeded())
    state = memory.state.map(lambda tensor: tensor[0]) if memory.empty.partitions > 1 else memory.state
    piece = slice(0, 200 // memory.empty.partitions)
    for cluster in range(10):
        codes = memory.sample(4, seeded(), cluster=cluster, sample=False)
        sampled = memory.sample(4, seeded(), cluster=cluster)
        assert codes.shape == (4, 200)
        assert residual(codes, state, cluster, piece) < 1e-4
        assert residual(codes, state, (cluster + 1) % 10, piece) > 0.1
        assert residual(sampled, state, cluster, piece) > 0.1


def test_without_samples_only_the_weights_are_drawn(memory):
    """A categorical memory has none, so its codes are the clusters' locations."""
    codes = memory.sample(50, seeded(), sample=False)
    assert not torch.allclose(memory.sample(50, seeded()), codes)
    if memory.empty.kind == "categorical":
        assert all((memory.state.loc_mean == code).all(-1).any() for code in codes)


def test_clusters_are_drawn_as_often_as_the_episode_used_them():
    """The codes of a categorical memory's mean tell their cluster."""
    model = tiny_model("categorical")
    memory = model.write(waves(20, 8), generator=seeded())
    codes = memory.sample(4000, seeded(), sample=False)
    shares = torch.stack([(codes == location).all(-1).float().mean() for location in memory.state.loc_mean])
    torch.testing.assert_close(shares, memory.usage / 20, rtol=0, atol=0.04)
    assert memory.usage.std() > 0.5


@pytest.fixture
def chosen(monkeypatch):
    """The clusters of codes that a memory samples, [G, count]."""
    seen = []
    sample = VariationalMemory.sample

    def record(memory, state, n, generator, **options):
        seen.append(options["clusters"])
        return sample(memory, state, n, generator, **options)

    monkeypatch.setattr(VariationalMemory, "sample", record)

    def choose(memory, count, **options):
        memory.sample(count, seeded(), **options)
        return seen.pop().reshape(-1, count)

    return choose


@pytest.mark.parametrize("kind", ["categorical", "mixture", "tree", "tree of one partition"])
def test_by_the_prior_all_clusters_are_alike_and_partitions_choose_apart(kind, chosen):
    model = tiny_model(kind)
    memory, clusters = model.write(waves(20, 8), generator=seeded()), 3
    drawn = chosen(memory, 9000, choice="prior")
    joint = (drawn * clusters ** torch.arange(len(drawn)).unsqueeze(-1)).sum(0)
    shares = joint.bincount(minlength=clusters ** len(drawn)) / 9000
    torch.testing.assert_close(shares, torch.full_like(shares, clusters ** -len(drawn)), rtol=0, atol=0.02)
    first, *others = chosen(memory, 9000, choice="prior", cluster=1)
    assert (first == 1).all()
    assert all(part.bincount(minlength=clusters).min() > 2800 for part in others)


def test_a_prior_with_weights_is_followed(chosen):
    memory = tiny_model().write(waves(20, 8), generator=seeded())
    weighted = replace(memory, empty=memory.empty.with_prior(choice=WeightedChoice([1.0, 2.0, 5.0])))
    shares = chosen(weighted, 9000, choice="prior")[0].bincount() / 9000
    torch.testing.assert_close(shares, torch.tensor([1.0, 2.0, 5.0]) / 8, rtol=0, atol=0.02)


def test_networks_choose_for_a_tree_also_from_a_file(chosen, tmp_path):
    model = tiny_model("tree")
    memory = model.write(waves(20, 8), generator=seeded())
    memory.save(tmp_path / "a.memory")
    loaded, networks = vbmem.WrittenMemory.load(tmp_path / "a.memory"), PrefixNetworks.fit(memory.choice)
    for written in (memory, loaded):
        assert torch.equal(chosen(written, 50, choice="network"), networks.sample(50, seeded()))
        first = torch.full((50,), 2)
        given = chosen(written, 50, choice="network", cluster=2)
        assert torch.equal(given, networks.sample(50, seeded(), first=first))
    pictures = [model.generate(m, 3, choice="network", generator=seeded()) for m in (memory, loaded)]
    assert torch.equal(*pictures)


def test_generated_pictures_are_the_decoded_codes(model, memory):
    codes = memory.sample(6, seeded())
    assert torch.equal(model.generate(memory, 6, reads=0, generator=seeded()), model.network.decode(codes).mean)
    drawn = model.generate(memory, 6, reads=0, generator=seeded())
    assert torch.equal(
        model.generate(memory, 6, reads=3, generator=seeded()), model.read(memory, drawn, 3, sample=False)[-1]
    )
    generator = seeded()
    codes = memory.sample(6, generator)
    sampled = model.network.decode(codes).sample(generator)
    assert torch.equal(model.generate(memory, 6, reads=0, sample_pixels=True, generator=seeded()), sampled)
    assert not torch.equal(sampled, model.network.decode(codes).mean)


def test_binary_pictures_are_zeros_and_ones_when_sampled():
    model = tiny_model("mixture", "bernoulli", 1)
    memory = model.write(waves(6, 8, 1))
    assert set(model.generate(memory, 5, sample_pixels=True).unique().tolist()) == {0, 1}
    assert model.generate(memory, 5).unique().numel() > 2


# --- Reading --------------------------------------------------------------------------------------------------------


def test_a_step_encodes_reads_and_decodes(model, memory):
    frames = waves(4, 8, seed=1)
    steps = model.read(memory, frames, 2, sample=False)
    for given, step in zip((frames, steps[0]), steps, strict=True):
        codes = memory.read(model.encode(given).mean, sample=False)
        torch.testing.assert_close(step, model.decode(codes))


def test_reading_means_draws_nothing_and_reading_samples_does(model, memory):
    frames = waves(4, 8, seed=1)
    means = [model.read(memory, frames, 2, sample=False, generator=seeded(seed)) for seed in (0, 1)]
    assert torch.equal(*means)
    for draws in ({"sample": True}, {"sample": False, "sample_pixels": True}):
        assert not torch.allclose(model.read(memory, frames, 2, generator=seeded(), **draws), means[0])


def test_the_same_flags_have_the_same_defaults_everywhere(model, memory):
    verbs = [model.generate, model.read, memory.sample, memory.read, memory.empty.sample, memory.empty.read]
    flags = [inspect.signature(verb).parameters for verb in verbs]
    assert {f["sample"].default for f in flags} == {True}
    assert {f["sample_pixels"].default for f in flags if "sample_pixels" in f} == {False}


def test_damaged_pictures_settle_near_what_was_written(mixture, china):
    written = mixture.write(china.transpose(0, 3, 1, 2), generator=seeded())
    intact = torch.from_numpy(china[:16]).movedim(-1, 1).float() / 255
    noisy = (intact + 0.4 * torch.randn(intact.shape, generator=seeded())).clamp(0, 1)
    recalled = mixture.read(written, noisy, 8, sample=False, every_step=False)
    assert (recalled - intact).square().mean() < 0.3 * (noisy - intact).square().mean()


# --- Reading pictures with missing pixels ---------------------------------------------------------------------------


def mean_picture(model, memory):
    """That of the clusters' locations, weighed by how many frames each holds: [1, channels, H, W]."""
    states, usages = memory.state.loc_mean, memory.usage
    if memory.empty.kind != "tree":
        states, usages = states.unsqueeze(0), usages.unsqueeze(0)
    parts = [
        sum(float(n) / memory.frames * loc for n, loc in zip(usage, locs, strict=True))
        for usage, locs in zip(usages, states, strict=True)
    ]
    return model.decode(torch.cat(parts)).unsqueeze(0)


def test_missing_pixels_start_at_the_mean_picture_and_known_ones_are_put_back(model, memory):
    frames, known = waves(4, 8, seed=1), torch.rand(4, 1, 8, 8, generator=seeded()) < 0.5
    steps = model.read(memory, frames, 3, known=known, sample=False)
    filled = torch.where(known, frames, mean_picture(model, memory))
    for step in steps:
        torch.testing.assert_close(step, model.read(memory, filled, 1, sample=False)[0])
        filled = torch.where(known, frames, step)


def test_what_is_under_the_mask_does_not_matter(model, memory):
    frames, known = waves(4, 8, seed=1), torch.ones(8, 8, dtype=torch.bool)
    known[:, 4:] = False
    steps = [
        model.read(memory, torch.where(known, frames, colour), 2, known=known, sample=False) for colour in (0.0, 1.0)
    ]
    assert torch.equal(*steps)
    nothing = model.read(memory, frames, 2, known=torch.tensor(False), sample=False)
    torch.testing.assert_close(nothing, nothing[:, :1].expand_as(nothing))
    everything = model.read(memory, frames, 2, known=torch.tensor(True), sample=False)
    assert torch.equal(everything, model.read(memory, frames, 1, sample=False).expand_as(everything))


@pytest.mark.parametrize("known", [torch.ones(4, 3, 8, 8), torch.ones(5, 1, 8, 8) > 0, torch.ones(2, 4, 3, 8, 8) > 0])
def test_a_mask_that_is_none_is_refused(known):
    model = tiny_model()
    with pytest.raises(ValueError, match=r"known must be boolean and broadcastable to \[4, 3, 8, 8\], got torch"):
        model.read(model.write(waves(4, 8)), waves(4, 8), 2, known=known)


def test_the_missing_half_is_filled_in(shipped_model, china):
    frames = torch.from_numpy(china).movedim(-1, 1).float() / 255
    memory = shipped_model.write(frames, generator=seeded())
    known = torch.ones(32, 32, dtype=torch.bool)
    known[:, 16:] = False
    right = (..., slice(16, None))
    filled = shipped_model.read(memory, frames, 4, known=known, sample=False, every_step=False)
    guess = mean_picture(shipped_model, memory)
    assert (filled - frames)[right].square().mean() < 0.6 * (guess - frames)[right].square().mean()


# --- Resizing -------------------------------------------------------------------------------------------------------


def test_a_resized_model_keeps_its_networks_prior_and_fingerprint(mixture, china):
    frames = china.transpose(0, 3, 1, 2)
    wide = mixture.resize(clusters=20, rows=3)
    assert (wide.memory.clusters, wide.memory.rows) == (20, 3)
    assert wide.network is mixture.network
    assert wide.fingerprint == mixture.fingerprint
    assert wide.memory.noise_var == mixture.memory.noise_var
    memory = wide.write(frames, generator=seeded())
    assert memory.usage.shape == (20,)
    assert memory.state.factor_mean.shape == (20, 3, 200)
    # Each can use what the other wrote.
    assert mixture.generate(memory, 1, cluster=19).shape == (1, 3, 32, 32)
    read = [model.read(memory, frames[:4], 2, sample=False) for model in (mixture, wide)]
    torch.testing.assert_close(*read)
    assert torch.equal(
        mixture.bound(memory, frames[:4], generator=seeded()), wide.bound(memory, frames[:4], generator=seeded())
    )
    assert wide.generate(mixture.write(frames), 2).shape == (2, 3, 32, 32)
    assert mixture.memory.clusters == 10


# --- What is refused ------------------------------------------------------------------------------------------------


def test_a_memory_of_another_model_is_refused(mixture):
    model = tiny_model()
    memory = model.write(waves(4, 8))
    for use in (mixture.generate, mixture.read, mixture.score, mixture.bound):
        with pytest.raises(ValueError, match=r"written by the model 'tiny' \(\w{16}\), not by 'cifar10-mixture'"):
            use(memory, 2 if use == mixture.generate else waves(2))


def test_a_memory_on_another_device_is_refused():
    model = tiny_model()
    memory = model.write(waves(4, 8))
    elsewhere = replace(memory, state=memory.state.to("meta"))
    with pytest.raises(ValueError, match="this memory is on meta, the model on cpu; load one of them"):
        model.generate(elsewhere, 2)


@pytest.mark.parametrize(
    ("use", "message"),
    [
        (lambda model, memory: model.generate(memory, 1, reads=-1), "reads must be .* at least 0, got -1"),
        (lambda model, memory: model.generate(memory, 0), "count must be a whole number of at least 1, got 0"),
        (lambda model, memory: model.generate(memory, -1, cluster=0), "count must be .* got -1"),
        (lambda model, memory: model.generate(memory, 1, cluster=3), r"cluster must lie in 0 \.\. 2, got 3"),
        (lambda model, memory: model.generate(memory, 1, choice="any"), "one of usage, prior, network, got 'any'"),
        (
            lambda model, memory: model.generate(memory, 1, choice="network"),
            r"^a MixtureMemory\(.*\) is not a tree, which alone has networks; choose 'usage' or 'prior'$",
        ),
        (lambda model, memory: model.write(waves(2, 8), start="here"), "start must be one of prior, .* got 'here'"),
        (lambda model, memory: model.read(memory, waves(2, 8), 0), "steps must be .* got 0"),
        (lambda model, memory: model.bound(memory, waves(2, 8), samples=0), "samples must be .* got 0"),
        (lambda model, memory: model.write(waves(2, 8), iterations=0), "iterations must be .* got 0"),
        (lambda model, memory: model.write_codes(torch.zeros(2, 3, 4)), r"one episode, \[T, C\], got \[2, 3, 4\]"),
        (lambda model, memory: model.write_codes(torch.full((3, 4), torch.nan)), "codes hold NaN"),
        (lambda model, memory: model.decode(torch.zeros(2, 5)), r"codes must have the shape \[.., 4\], got \[2, 5\]"),
        (lambda model, memory: model.resize(clusters=0), "clusters must be .* got 0"),
        (lambda model, memory: model.resize(code_size=8), "cannot change 'code_size'; it has rows and clusters"),
    ],
)
def test_impossible_requests_are_refused_in_one_sentence(use, message):
    model = tiny_model()
    with pytest.raises(ValueError, match=message):
        use(model, model.write(waves(4, 8)))


def test_progress_is_shown_for_long_work_on_a_terminal_only(monkeypatch, capfd):
    model = tiny_model()
    monkeypatch.setattr(picture_model, "LONG", 1)
    model.encode(as_bytes(waves(3, 8)).transpose(0, 3, 1, 2))
    assert capfd.readouterr() == ("", "")
    monkeypatch.setenv("FORCE_COLOR", "1")  # rich then takes standard error for a terminal
    model.encode(waves(3, 8))
    out, err = capfd.readouterr()
    assert "encoding" in err
    assert not out
