"""The bound on log p(z | memory) of every frame by itself."""

import pytest
import torch

from memory.zoo import close, every_memory, make_problem, over_sizes


def term_by_term(memory, state, codes, code_var=None):
    """Each frame an episode of its own, its terms from the general bound; what the memory itself costs is left out."""
    frames = []
    for code, var in zip(codes.split(1, -2), (codes if code_var is None else code_var).split(1, -2), strict=True):
        addresses = memory.address(state, code)
        terms = memory.bound(code, state, addresses, None if code_var is None else var).terms()
        first = terms["log_likelihood"] if code_var is None else -terms["kl_codes"]
        frames.append(first - terms["kl_assignments"] - terms["kl_weights"])
    return torch.stack(frames, -1)


@every_memory
@over_sizes
def test_it_is_the_general_bound_of_each_frame_alone(name, sizes):
    problem = make_problem(name, sizes)
    memory, state, codes = problem.memory, problem.state, problem.codes
    close(memory.local_bound(state, codes), term_by_term(memory, state, codes))
    code_var = torch.rand_like(codes) + 0.1
    actual, expected = memory.local_bound(state, codes, code_var), term_by_term(memory, state, codes, code_var)
    if name.endswith("cluster"):  # the best assignments then depend on the variance, which `address` does not know
        assert (actual >= expected - 1e-10).all()
    else:
        close(actual, expected)


@every_memory
def test_one_state_serves_many_episodes(name):
    problem = make_problem(name)
    memory, state = problem.memory, problem.state
    codes = torch.stack([problem.codes, 2 * problem.codes])
    expected = torch.stack([memory.local_bound(state, episode) for episode in codes])
    close(memory.local_bound(state, codes), expected)


def test_a_variance_must_be_positive():
    problem = make_problem("mixture")
    with pytest.raises(ValueError, match="code_var must be positive"):
        problem.memory.local_bound(problem.state, problem.codes, torch.zeros_like(problem.codes))
