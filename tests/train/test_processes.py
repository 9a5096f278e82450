"""Processes that share every batch train as one does, stop as one, and end as one."""

import socket
from contextlib import ExitStack
from unittest.mock import Mock

import pytest
import torch
from torch import nn
from torch.multiprocessing.spawn import start_processes

from tiny import CPU, squares, tiny_network, tiny_trainer
from train import ranks
from train.runs import assert_same_remains, log_lines
from vbmem.errors import DataError
from vbmem.files import read_tensors
from vbmem.train.batch_norm import SharedBatchNorm, share_batch_norm
from vbmem.train.checkpoint import load_checkpoint
from vbmem.train.processes import Processes


def free_ports(count: int) -> list[int]:
    with ExitStack() as stack:
        servers = [stack.enter_context(socket.create_server(("localhost", 0))) for _ in range(count)]
        return [server.getsockname()[1] for server in servers]


def test_several_processes_train_as_one_and_end_as_one(tmp_path, processes):
    """One test of all, since processes take some time to start."""
    squares().save(tmp_path / "squares.npz")
    given, method = (tmp_path, free_ports(3)), processes.get_start_method()
    started = start_processes(ranks.work, given, ranks.RANKS, join=False, start_method=method)
    with ranks.in_doubles_without_draws():
        for name, config in ranks.CERTAIN.items():
            tiny_trainer(config, tmp_path / f"{name} alone", ranks.IMAGES).run()
    while not started.join():
        pass
    first, second = (torch.load(tmp_path / f"{rank}.pt", weights_only=False) for rank in range(ranks.RANKS))
    for name in ranks.CERTAIN:
        assert_same_but_for_rounding(tmp_path / name, tmp_path / f"{name} alone")
    assert (first["quiet"], second["quiet"]) == (False, True)
    assert not list(tmp_path.glob("*-unwritten"))

    assert first["stopped"] == second["stopped"] == "after 6 steps"
    assert_same_remains(tmp_path / "undisturbed", tmp_path / "resumed")

    for name, case in (("mixture", "skipped"), ("vae", "not finite")):
        assert log_lines(tmp_path / f"bad {name}")[0]["skipped_steps"] == 1
        assert first[case] == second[case]

    status, output, errors = first["command"]
    assert (status, errors) == (0, "")
    assert "best validation bound" in output
    assert second["command"] == (0, "", "")
    for status, output, errors in (first["uneven"], second["uneven"]):
        assert (status, output) == (2, "")
        assert errors.startswith(
            "vbmem: a batch of 1 episodes has no equal shares for 2 processes; choose a batch_size"
        )
    assert not (tmp_path / "uneven").exists()

    status, output, errors = first["lost"]
    assert status == 2
    assert errors.startswith("vbmem: another process of the group failed or was lost, so training cannot go on")
    assert errors.count("\n") == 1
    assert load_checkpoint(tmp_path / "lost" / "last.safetensors")[1].epoch == 0
    left = {"config.json", "last.safetensors", "log.jsonl", "tensorboard"}
    assert {path.name for path in (tmp_path / "lost").iterdir()} <= left


def assert_same_but_for_rounding(together, alone):
    [theirs, ours] = [read_tensors(run_dir / "last.safetensors", CPU)[0] for run_dir in (together, alone)]
    del theirs["random: cpu"], ours["random: cpu"]
    torch.testing.assert_close(theirs, ours, rtol=1e-6, atol=1e-9)
    for line, other in zip(log_lines(together), log_lines(alone), strict=True):
        assert (line["epoch"], line["skipped_steps"]) == (other["epoch"], 0)
        for part in ("train", "valid"):
            assert line[part] == pytest.approx(other[part], rel=1e-7)


def of_several(rank=0):
    processes = Processes()
    processes.count, processes.rank = 2, rank
    return processes


def test_every_process_has_its_episodes_of_every_batch():
    batches = torch.arange(24).view(2, 4, 3)
    assert torch.equal(torch.cat([of_several(rank).share(batches) for rank in (0, 1)], dim=1), batches)
    assert torch.equal(Processes().share(batches), batches)


def test_episodes_that_cannot_be_shared_out_evenly_are_refused():
    of_several().check_batch(4)
    with pytest.raises(DataError, match="a batch of 5 episodes has no equal shares for 2 processes"):
        of_several().check_batch(5)


def test_a_stranger_to_the_group_is_refused(monkeypatch):
    for name in ("get_rank", "get_world_size"):
        monkeypatch.setattr(torch.distributed, name, lambda group: -1)
    with pytest.raises(ValueError, match="this process is not one of the group"):
        Processes(Mock())


def test_draws_follow_from_the_key_and_the_process():
    def drawn(processes, *key):
        processes.seed(*key)
        return float(torch.rand(()))

    first, second = of_several(), of_several(1)
    assert drawn(first, 0, 7) == drawn(first, 0, 7)
    assert len({drawn(first, 0, 7), drawn(second, 0, 7), drawn(first, 0, 8), drawn(first, 1, 7)}) == 4


def test_one_process_on_its_own_draws_on_and_agrees_with_itself():
    before, alone = torch.get_rng_state(), Processes()
    alone.seed(0, 7)
    assert torch.equal(torch.get_rng_state(), before)
    assert (alone.any(True), alone.any(False), alone.of_first(2.5)) == (True, False, 2.5)


@pytest.mark.parametrize("name", ["vae", "mixture"])
def test_shared_batch_norm_keeps_weights_and_outputs(name):
    network = tiny_network(name)
    frames = torch.rand(1, 4, 3, 8, 8)
    before, embeddings = network.state_dict(), network.embed(frames)
    normed = any(isinstance(module, nn.BatchNorm2d) for module in network.modules())
    assert share_batch_norm(network, of_several()) == normed == (name == "vae")
    torch.testing.assert_close(network.state_dict(), before, rtol=0, atol=0)
    torch.testing.assert_close(network.embed(frames), embeddings, rtol=0, atol=0)


def test_shared_batch_norm_is_that_of_the_parts_together(monkeypatch):
    """Two processes that have the same part, so that what one has is what the other has."""
    features, norm = torch.randn(3, 4, 5, 5, generator=torch.Generator().manual_seed(0)), nn.BatchNorm2d(4)
    shared = SharedBatchNorm(norm, of_several())
    monkeypatch.setattr(Processes, "gather", lambda processes, tensor: torch.stack([tensor, tensor]))
    expected = norm(torch.cat([features, features]))[:3]
    torch.testing.assert_close(shared(features), expected, rtol=1e-5, atol=1e-5)
    torch.testing.assert_close(shared.state_dict(), norm.state_dict(), rtol=1e-5, atol=1e-6)
