"""A crisp decoder is shown codes of the encoder, codes read back from memories, and blends of the two."""

import pytest
import torch

from models.zoo import frames
from tiny import MODELS, OWN_MODELS, tiny_network
from vbmem.train.codes import CodesToCome

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


def test_a_third_is_encoded_a_third_is_read_and_the_others_lie_between():
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
