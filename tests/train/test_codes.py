"""A crisp decoder is shown codes of the encoder, codes read back from memories, blends of the two, and new ones."""

import pytest
import torch

from models.zoo import frames
from tiny import MODELS, OWN_MODELS, tiny_network
from vbmem.memory.written import WrittenMemory
from vbmem.train.codes import CodesToCome, matched, new_codes

CODED = [name for name in (*MODELS, *OWN_MODELS) if name not in ("dkm", "statistician")]


@pytest.mark.parametrize("name", CODED)
def test_every_frame_has_a_code(name):
    network = tiny_network(name)
    codes = CodesToCome(network, (2, 4))(frames(5, 6, channels=3).float())
    assert codes.shape == (5, 6, network.config.code_size)
    assert codes.isfinite().all()
    assert not codes.requires_grad


def test_without_a_memory_codes_are_the_encoders():
    network = tiny_network("vae")
    given = frames(2, 6, channels=3).float()
    torch.manual_seed(3)
    codes = CodesToCome(network, (2,))(given)
    torch.manual_seed(3)
    assert torch.equal(codes, network.infer(given).rsample())


def test_a_third_of_the_others_is_encoded_a_third_is_read_and_the_rest_lies_between(monkeypatch):
    monkeypatch.setattr("vbmem.train.codes.NEW_SHARE", 0.0)
    network = tiny_network("mixture")
    with torch.no_grad():  # codes far apart, so that noise does not matter
        network.head.layers[-1].weight *= 300
    network.head.fixed_var = 1e-12
    given = frames(20, 30, channels=3).float()
    q = network.infer(given)
    make = CodesToCome(network, (2,))
    state, _ = make.memories[0].write(q.mean, start="prior")  # every cluster alike: what it reads is far from the codes
    make.memories[0].write = lambda *_: (state, make.memories[0].address(state, q.mean))  # type: ignore[method-assign]
    means = make.memories[0].read(state, q.mean, sample=False)
    codes = make(given)
    encoded = (codes - q.mean).norm(dim=-1) < 1e-3 * q.mean.norm(dim=-1)
    assert 0.25 < float(encoded.float().mean()) < 0.42
    read = (codes - means).norm(dim=-1) < 1e-3 * q.mean.norm(dim=-1)
    assert 0.1 < float(read.float().mean()) < 0.24  # half of a third; the other half is drawn


def test_a_quarter_is_new(monkeypatch):
    monkeypatch.setattr("vbmem.train.codes.matched", lambda drawn, codes: drawn + 1e6)
    codes = CodesToCome(tiny_network("mixture"), (2,))(frames(20, 30, channels=3).float())
    assert 0.18 < float((codes[..., 0] > 5e5).float().mean()) < 0.32


@pytest.mark.parametrize("name", ["gaussian", "categorical", "shifted", "mixture", "tree"])
def test_new_codes_are_those_that_a_written_memory_samples(name):
    network = tiny_network(name)
    codes = 2 * torch.randn(12, network.config.code_size)
    with torch.no_grad():
        written = WrittenMemory.write(network.scaled_memory(), codes)
    expected = written.sample(40_000)
    many = written.state.translate(torch.zeros(3_000, *(1 for _ in written.state.row_mean.shape[:-3]), 1, 1))
    found = new_codes(written.empty, many, codes.expand(3_000, -1, -1)).flatten(0, 1)
    assert torch.allclose(found.mean(0), expected.mean(0), atol=0.1)
    assert torch.allclose(found.T.cov(), expected.T.cov(), rtol=0.1, atol=0.3)


def test_matched_codes_are_the_nearest_where_every_one_is_wanted_once():
    codes = 3 * torch.randn(2, 9, 5)
    order = torch.randperm(9)
    near = codes[:, order] + 0.01 * torch.randn(2, 9, 5)
    assert torch.equal(matched(near, codes), near[:, order.argsort()])


def test_matched_codes_are_not_all_the_same_one():
    """One drawn code is nearest to all, and still another one is for half of them."""
    codes = torch.tensor([[1.0, 0.0], [2.0, 0.0]])
    drawn = torch.tensor([[0.0, 0.0], [-3.0, 0.0]])
    found = torch.stack([matched(drawn, codes) for _ in range(200)])
    assert 0.3 < float((found[..., 0] == 0).float().mean()) < 0.7


def test_each_episode_has_a_memory_of_one_of_the_sizes():
    make = CodesToCome(tiny_network("mixture"), (2, 3, 5))
    assert [memory.clusters for memory in make.memories] == [2, 3, 5]
    written = []
    for memory in make.memories:
        original = memory.write

        def noted(codes, *args, memory=memory, original=original):
            written.append((memory.clusters, len(codes)))
            return original(codes, *args)

        memory.write = noted  # type: ignore[method-assign,assignment]
    make(frames(7, 4, channels=3).float())
    assert written == [(2, 3), (3, 2), (5, 2)]


def test_a_memory_without_clusters_has_the_size_it_has():
    make = CodesToCome(tiny_network("gaussian"), (2, 3))
    assert [memory.rows for memory in make.memories] == [2]


def test_the_own_part_is_never_read_from_memory():
    network = tiny_network("own part")
    given = frames(2, 6, channels=3).float()
    copies = given.repeat(20, 1, 1, 1, 1)
    own = torch.cat([CodesToCome(network, ())(copies)[..., -2:].unflatten(0, (20, 2)) for _ in range(20)])
    q = network.infer(given)
    error = own.std(0) / 20
    assert ((own.mean(0) - q.mean[..., -2:]).abs() < 5 * error).all()


def test_sizes_a_memory_cannot_have_are_refused():
    with pytest.raises(ValueError, match="clusters"):
        CodesToCome(tiny_network("mixture"), (0,))
