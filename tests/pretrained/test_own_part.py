"""Models whose codes have a part of their own: the memory knows the content alone, pictures have both."""

import pytest
import torch
from torch.distributions import Normal

import vbmem
from tiny import OWN_MODELS, seeded, tiny_model, waves
from vbmem.models.base import normal_kl
from vbmem.nets import CodePosterior
from vbmem.paper.metrics.measures import Trial, joint_samples, samples, size_table
from vbmem.pretrained.timing import timed_write

FRAMES = waves(12, 8)


@pytest.fixture(params=OWN_MODELS)
def model(request):
    return tiny_model(request.param)


@pytest.fixture
def memory(model):
    return model.write(FRAMES, generator=seeded())


@pytest.fixture
def decoded(monkeypatch):
    """The codes that a model decodes, as it is asked to."""
    seen = []
    decode = vbmem.Model.decode

    def noted(model, codes, **options):
        seen.append(codes)
        return decode(model, codes, **options)

    monkeypatch.setattr(vbmem.Model, "decode", noted)
    return seen


def test_a_write_is_that_of_the_contents(model, memory):
    codes = model.encode(FRAMES).mean
    assert codes.shape == (12, 6)
    assert memory.empty.code_size == memory.mean_code.shape[-1] == 4
    state, _ = model.memory.write(codes[:, :4], model.network.iterations, generator=seeded())
    torch.testing.assert_close(memory.state.row_mean, state.row_mean)
    again = model.write_codes(codes, generator=seeded())
    assert torch.equal(again.state.row_mean, memory.state.row_mean)
    assert again.threshold == memory.threshold
    _, written, _ = timed_write(model, FRAMES)
    assert torch.equal(written, codes[:, :4])


def test_memories_and_models_travel_by_file(model, memory, tmp_path):
    model.save(tmp_path / "model")
    memory.save(tmp_path / "a.memory")
    loaded, again = vbmem.load(tmp_path / "model"), vbmem.WrittenMemory.load(tmp_path / "a.memory")
    assert again.fingerprint == loaded.fingerprint == model.fingerprint
    pictures = [m.generate(a, 3, generator=seeded()) for m, a in ((model, memory), (loaded, again))]
    assert torch.equal(*pictures)


def test_scores_are_of_the_content(model, memory):
    codes = model.encode(FRAMES).mean
    expected = memory.score(codes[:, :4])
    assert torch.equal(model.score(memory, FRAMES), expected)
    assert torch.equal(model.score_codes(memory, codes), expected)
    referenced = model.with_reference(FRAMES)
    assert referenced.reference.empty.code_size == 4
    assert referenced.score(referenced.write(FRAMES), FRAMES).isfinite().all()


def test_the_own_part_of_new_pictures_is_drawn_from_its_prior(model, memory, decoded):
    model.generate(memory, 2000, reads=0, generator=seeded())
    (codes,) = decoded
    assert torch.equal(codes[:, :4], memory.sample(2000, seeded()))
    prior = model.network.own_prior(codes[:, :4])
    whitened = (codes[:, 4:] - prior.mean) / prior.var.sqrt()
    assert whitened.mean().abs() < 0.1
    assert abs(whitened.std() - 1) < 0.05


def test_without_samples_it_is_the_mean_of_its_prior(model, memory, decoded):
    model.generate(memory, 5, reads=0, sample=False, generator=seeded())
    (codes,) = decoded
    assert torch.equal(codes[:, 4:], model.network.own_prior(codes[:, :4]).mean)
    assert torch.equal(codes, model.complete(codes[:, :4], sample=False))


@pytest.mark.parametrize("count", [1, 3])
def test_this_content_that_pose(model, memory, decoded, count):
    """The own part of given pictures, or of their codes: one for each, or one for all."""
    pictures = FRAMES[:count]
    given = model.encode(pictures, memory).mean
    model.generate(memory, 3, reads=0, own=pictures, generator=seeded())
    model.generate(memory, 3, reads=0, own=given, generator=seeded())
    for codes in decoded:
        assert torch.equal(codes[:, :4], memory.sample(3, seeded()))
        torch.testing.assert_close(codes[:, 4:], given[:, 4:].expand(3, -1))


def test_reading_changes_the_content_alone(model, memory, decoded):
    model.generate(memory, 3, reads=2, own=FRAMES[:1], generator=seeded())
    first, *_, last = decoded
    assert len(decoded) == 3
    assert not torch.equal(first[:, :4], last[:, :4])
    assert torch.equal(first[:, 4:], last[:, 4:])


def test_one_code_may_be_given_without_a_dimension_for_it(model, memory):
    code = model.encode(FRAMES).mean[0]
    pictures = [model.generate(memory, 3, own=own, generator=seeded()) for own in (code, code[None])]
    assert torch.equal(*pictures)


def test_own_parts_that_fit_nothing_are_refused(model, memory):
    with pytest.raises(ValueError, match="own must be of one picture, or of one for each of the 3, got 2"):
        model.generate(memory, 3, own=FRAMES[:2])
    with pytest.raises(ValueError, match="own"):
        model.generate(memory, 3, own=torch.zeros(3, 4))
    plain = tiny_model()
    with pytest.raises(ValueError, match="the codes of tiny have no part of their own that could be given"):
        plain.generate(plain.write(FRAMES), 3, own=FRAMES[:1])


def test_reading_reads_the_content_and_keeps_the_own_part(model, memory, decoded):
    steps = model.read(memory, FRAMES[:4], 2, sample=False)
    for given, codes in zip((FRAMES[:4], steps[0]), decoded, strict=True):
        q = model.encode(given, memory)
        torch.testing.assert_close(codes[:, :4], memory.read(q.mean[:, :4], sample=False))
        torch.testing.assert_close(codes[:, 4:], q.mean[:, 4:])


def test_reading_samples_draws_the_own_part(model, memory, decoded):
    q = model.encode(FRAMES[:1], memory)
    model.read(memory, FRAMES[:1].expand(4000, -1, -1, -1), 1, generator=seeded())
    drawn = decoded[0][:, 4:]
    torch.testing.assert_close(drawn.std(0), q.var[0, 4:].sqrt(), rtol=0.1, atol=0)


def test_missing_pixels_start_at_a_mean_picture(model, memory, decoded):
    model.read(memory, FRAMES[:2], 1, known=torch.zeros(1, 1, 8, 8, dtype=torch.bool), sample=False)
    assert torch.equal(decoded[0], model.complete(memory.mean_code, sample=False))


def test_the_bound_pays_for_the_own_part(model, memory):
    q = model.encode(FRAMES[:3], memory)
    z = q.mean + q.var.sqrt() * torch.randn(3, 6, generator=seeded())
    pixels = model.network.decode(z)
    expected = Normal(pixels.mean, pixels.std).log_prob(FRAMES[:3]).sum((1, 2, 3))
    expected = expected + memory.score(q.mean[:, :4], q.var[:, :4])
    own = CodePosterior(q.mean[:, 4:], q.var[:, 4:])
    expected = expected - normal_kl(own, model.network.own_prior(z[:, :4]))
    torch.testing.assert_close(model.bound(memory, FRAMES[:3], generator=seeded()), expected, rtol=1e-4, atol=1e-2)


def test_only_a_model_that_sees_recall_encodes_otherwise_with_a_memory(model, memory):
    alone, recalled = model.encode(FRAMES), model.encode(FRAMES, memory)
    assert torch.equal(alone.mean, recalled.mean) != model.network.config.sees_recall
    with pytest.raises(ValueError, match="this memory was written by the model"):
        model.encode(FRAMES, tiny_model().write(FRAMES))


def test_metrics_can_be_taken(monkeypatch):
    monkeypatch.setattr("vbmem.paper.metrics.measures.LENGTHS", (4,))
    monkeypatch.setattr("vbmem.paper.metrics.measures.CLUSTERS", (2,))
    model = tiny_model("sees recall")
    memory = model.write(FRAMES, generator=seeded())

    def count(made, _):
        return {way: {"pictures": len(x)} for way, x in made.items()}

    trial = Trial(model, FRAMES, memory, memory, count, seeded())
    for metric in (joint_samples, samples):
        assert all(row == {"pictures": 12} for row in metric(trial).values())
    assert len(size_table(model, lambda *_: {}, FRAMES, 1, seeded())) == 1
