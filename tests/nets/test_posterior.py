"""Code posteriors and the two kinds of head."""

import pytest
import torch
from torch import nn

from vbmem.nets import CodeHead, CodePosterior


def test_samples_have_the_stated_mean_and_variance():
    mean, var = torch.tensor([-1.0, 0.0, 3.0]), torch.tensor([0.1, 1.0, 4.0])
    samples = CodePosterior(mean.expand(40_000, 3), var.expand(40_000, 3)).rsample()
    torch.testing.assert_close(samples.mean(0), mean, rtol=0, atol=0.05)
    torch.testing.assert_close(samples.var(0), var, rtol=0.05, atol=0)


def test_a_generator_makes_samples_repeatable():
    posterior = CodePosterior(torch.zeros(4, 3), torch.ones(4, 3))
    first, again = (posterior.rsample(torch.Generator().manual_seed(7)) for _ in range(2))
    assert torch.equal(first, again)


def test_samples_are_differentiable_in_mean_and_variance():
    mean, var = torch.zeros(3, requires_grad=True), torch.full((3,), 4.0, requires_grad=True)
    sample = CodePosterior(mean, var).rsample()
    sample.sum().backward()
    torch.testing.assert_close(mean.grad, torch.ones(3))
    torch.testing.assert_close(var.grad, sample.detach() / 8)  # d sqrt(v) noise / dv = sample / 2v


def test_the_free_head_exponentiates_its_second_half():
    head, embeddings = CodeHead(10, 4, nn.ReLU), torch.randn(2, 5, 10)
    outputs = head.layers(embeddings)
    posterior = head(embeddings)
    torch.testing.assert_close(posterior.mean, outputs[..., :4])
    torch.testing.assert_close(posterior.var.sqrt(), outputs[..., 4:].exp())


def test_variances_have_limits_whatever_a_network_says_and_nothing_is_pushed_beyond_them():
    log_std = torch.tensor([-1000.0, -4.5, 0.3, 1000.0], requires_grad=True)
    var = CodePosterior.from_network(torch.cat([torch.zeros(4), log_std])).var
    assert torch.equal(var[1:3], torch.exp(2 * log_std[1:3]))
    assert torch.allclose(var[[0, 3]].log(), torch.tensor([-14.0, 6.0]))
    (gradient,) = torch.autograd.grad(var.sum(), log_std)
    assert torch.equal(gradient, 2 * var * torch.tensor([0.0, 1.0, 1.0, 0.0]))


def test_the_fixed_head_has_one_constant_variance():
    head = CodeHead(10, 4, nn.SiLU, fixed_var=0.6)
    posterior = head(torch.randn(2, 5, 10))
    assert posterior.mean.shape == (2, 5, 4)
    torch.testing.assert_close(posterior.var, torch.full((2, 5, 4), 0.6))


@pytest.mark.parametrize("fixed_var", [None, 0.6])
def test_the_hidden_layer_has_a_bias_and_the_output_none(fixed_var):
    hidden, _, output = CodeHead(10, 4, nn.ReLU, fixed_var=fixed_var).layers
    assert hidden.out_features == 8
    assert hidden.bias is not None
    assert output.bias is None


def test_float64_stays_float64():
    head = CodeHead(10, 4, nn.ReLU).double()
    assert head(torch.randn(2, 10).double()).var.dtype == torch.float64


def test_what_is_cut_is_joined_again():
    posterior = CodePosterior(torch.randn(2, 5), torch.rand(2, 5))
    first, rest = posterior.cut(3)
    joined = first.joined(rest)
    assert torch.equal(joined.mean, posterior.mean)
    assert torch.equal(joined.var, posterior.var)


def test_a_product_has_the_density_of_both_but_for_a_constant():
    one, other = (CodePosterior(torch.randn(1), torch.rand(1) + 0.1) for _ in range(2))
    points = torch.linspace(-2, 2, 9)
    logs = [torch.distributions.Normal(q.mean, q.var.sqrt()).log_prob(points) for q in (one, other, one.product(other))]
    left = logs[0] + logs[1] - logs[2]
    torch.testing.assert_close(left, left[:1].expand(9), rtol=1e-4, atol=1e-4)
