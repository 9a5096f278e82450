"""The flow carries noise to the density of the data, in many steps or in few."""

import math
from itertools import pairwise

import pytest
import torch
from torch import Tensor, nn

from vbmem.nets.flow import FINEST, flow_errors, follow

CENTRES = torch.tensor([[-1.5, 0.0], [1.0, 1.0]])
SHARES = torch.tensor([0.3, 0.7])
STD = 0.5


def draw(count: int) -> Tensor:
    """A mixture of two round Gaussians in the plane."""
    modes = (torch.rand(count) < SHARES[1]).long()
    return CENTRES[modes] + STD * torch.randn(count, 2)


def log_density(points: Tensor) -> Tensor:
    squares = (points.unsqueeze(-2) - CENTRES).square().sum(-1) / STD**2
    return (SHARES.log() - 0.5 * squares).logsumexp(-1) - math.log(2 * math.pi * STD**2)


def true_velocity(points: Tensor, times: Tensor, lengths: Tensor) -> Tensor:
    """E[x_1 - x_0 | x_t] in closed form: per mode x_t is N(t c, (t^2 STD^2 + (1 - t)^2) I)."""
    t = times[:, None, None]
    var = t**2 * STD**2 + (1 - t) ** 2
    away = points.unsqueeze(-2) - t * CENTRES
    modes = (SHARES.log() - 0.5 * away.square().sum(-1) / var[..., 0] - var[..., 0].log()).softmax(-1)
    each = CENTRES + (t * STD**2 - (1 - t)) / var * away
    return (modes.unsqueeze(-1) * each).sum(-2)


def assert_like_the_data(points: Tensor, share: float, centre: float, nats: float) -> None:
    """As many in each mode, about its centre, and as dense there: E log p is that of the data themselves."""
    modes = torch.cdist(points, CENTRES).argmin(-1)
    assert abs(float(modes.float().mean()) - 0.7) < share
    for mode, expected in enumerate(CENTRES):
        assert (points[modes == mode].mean(0) - expected).norm() < centre
    assert abs(float(log_density(points).mean() - log_density(draw(20_000)).mean())) < nats


class Shortcuts(nn.Module):
    """The same for whatever data of two numbers."""

    def __init__(self) -> None:
        super().__init__()
        widths = [4, 96, 96, 96]
        layers = [layer for a, b in pairwise(widths) for layer in (nn.Linear(a, b), nn.SiLU())]
        self.layers = nn.Sequential(*layers, nn.Linear(96, 2))

    def forward(self, points, times, lengths, *conditions):
        return self.layers(torch.cat([points, times[:, None], lengths[:, None], *conditions], dim=-1))


def elsewhere(count):
    """Noise that is not N(0, I): narrower, and to one side."""
    return torch.tensor([0.5, 1.0]) + 0.6 * torch.randn(count, 2)


@pytest.fixture(scope="module")
def trained():
    return learned(lambda count: torch.randn(count, 2))


def learned(noise, steps=1000):
    torch.manual_seed(0)
    network = Shortcuts()
    optimizer = torch.optim.Adam(network.parameters(), fused=True)
    schedule = torch.optim.lr_scheduler.OneCycleLR(optimizer, 1e-2, total_steps=steps)
    for _ in range(steps):
        optimizer.zero_grad()
        flow_errors(network, draw(512), noise(512)).objective.backward()
        optimizer.step()
        schedule.step()
    return network


def test_the_true_velocity_leads_to_the_density_of_the_data():
    assert_like_the_data(follow(true_velocity, torch.randn(10_000, 2), 200), share=0.02, centre=0.02, nats=0.05)


def test_no_network_errs_less_than_the_true_velocity():
    data = draw(20_000)

    def error(wrong: float) -> float:
        torch.manual_seed(1)
        velocity = flow_errors(lambda *args: true_velocity(*args) + wrong, data, torch.randn_like(data)).velocity
        return float(velocity.mean())

    assert error(0.0) < min(error(-0.1), error(0.1))


def test_what_the_loss_trains_leads_to_the_density_of_the_data(trained):
    assert_like_the_data(follow(trained, torch.randn(10_000, 2), FINEST), share=0.04, centre=0.1, nats=0.25)


def test_wherever_it_begins_it_leads_to_the_density_of_the_data():
    points = follow(learned(elsewhere, steps=400), elsewhere(10_000), FINEST)
    assert_like_the_data(points, share=0.06, centre=0.15, nats=0.5)


@pytest.mark.parametrize(("steps", "nats"), [(4, 0.2), (2, 0.2), (1, 0.3)])
def test_few_steps_lead_where_many_do(trained, steps, nats):
    noise = torch.randn(5_000, 2)
    many, few = follow(trained, noise, FINEST), follow(trained, noise, steps)
    assert (few - many).norm(dim=-1).median() < 0.15
    assert_like_the_data(few, share=0.06, centre=0.2, nats=nats)
    # Without shortcuts, steps as large end elsewhere.
    plain = follow(lambda points, times, lengths: trained(points, times, 0 * lengths), noise, steps)
    assert (few - many).norm(dim=-1).mean() < 0.7 * (plain - many).norm(dim=-1).mean()


def test_conditions_go_with_their_items():
    seen = []

    def shortcuts(points, times, lengths, condition):
        seen.append((points, condition))
        return torch.zeros_like(points)

    condition = torch.arange(8.0)[:, None]
    errors = flow_errors(shortcuts, torch.zeros(8, 2), torch.randn(8, 2), condition)
    assert (len(errors.velocity), len(errors.shortcut)) == (6, 2)
    assert [len(points) for points, _ in seen] == [2, 2, 8]
    assert all(torch.equal(given, condition[: len(points)]) for points, given in seen)
    follow(shortcuts, torch.zeros(8, 2), 3, condition)
    assert len(seen) == 6


def test_one_frame_alone_learns_its_velocity():
    errors = flow_errors(Shortcuts(), torch.zeros(1, 2), torch.randn(1, 2))
    assert (len(errors.velocity), len(errors.shortcut)) == (1, 0)
    assert errors.objective.isfinite()


def test_shortcuts_learn_from_velocities_and_begin_where_a_sampler_takes_them():
    asked = []

    def shortcuts(points, times, lengths):
        asked.append((times, lengths))
        return torch.ones_like(points)

    errors = flow_errors(shortcuts, torch.zeros(4000, 2), torch.randn(4000, 2))
    assert errors.shortcut.abs().max() < 1e-10  # where all directions are the same, two half steps are a whole one
    (first, half), (second, also_half), (times, lengths) = asked
    whole = lengths[:1000]
    assert set(whole.tolist()) == {1, 1 / 2, 1 / 4, 1 / 8, 1 / 16, 1 / 32}
    assert torch.equal(times[:1000] / whole, (times[:1000] / whole).round())
    assert (times[:1000] + whole <= 1).all()
    assert torch.equal(half, also_half)
    assert torch.equal(half, torch.where(whole > 2 / FINEST, whole / 2, 0))
    assert torch.equal(second, first + whole / 2)
    assert not lengths[1000:].any()
