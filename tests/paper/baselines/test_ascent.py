from __future__ import annotations

import itertools
import math

import pytest
import torch

from problems import make_data
from rcgp.core.linalg import NotPositiveDefiniteError
from rcgp_paper.baselines import MixtureGP, StudentTGP, ascent, variational


def hard_model(cls):
    """Little noise, so that the first posteriors are far from the best one."""
    X, y = make_data(30)
    return cls(X, y, noise=0.001)


def watch(monkeypatch, refuse=()):
    """Values of all steps, and of those that were accepted, in the order in which they were taken."""
    values, accepted = [], []
    original, add = ascent.ascend, ascent._Memory.add

    def watched(take, here, *arguments):
        def take_and_note(sites):
            values.append(-math.inf)
            if len(values) in refuse:
                raise NotPositiveDefiniteError("refused")
            step = take(sites)
            values[-1] = step.value
            return step

        return original(take_and_note, here, *arguments)

    def noted(self, step):
        accepted.append(step.value)
        add(self, step)

    monkeypatch.setattr(variational, "ascend", watched)
    monkeypatch.setattr(ascent._Memory, "add", noted)
    return values, accepted


@pytest.mark.parametrize("cls", [StudentTGP, MixtureGP])
def test_the_bound_never_falls_and_the_highest_is_kept(cls, monkeypatch):
    values, accepted = watch(monkeypatch)
    best = hard_model(cls).elbo().item()
    assert len(accepted) > 4
    assert all(later > earlier for earlier, later in itertools.pairwise(accepted))
    assert best == pytest.approx(max(values), abs=1e-9)


@pytest.mark.parametrize("cls", [StudentTGP, MixtureGP])
def test_steps_to_where_there_is_no_posterior_are_shortened(cls, monkeypatch):
    values, accepted = watch(monkeypatch, refuse=(1, 2, 4, 7))
    best = hard_model(cls).elbo().item()
    assert values[0] == values[1] == -math.inf
    assert best == pytest.approx(max(values), abs=1e-9)
    assert all(later > earlier for earlier, later in itertools.pairwise(accepted))


def test_extrapolation_saves_steps_and_finds_the_same(monkeypatch):
    values, _ = watch(monkeypatch)
    X, y = make_data(60)
    fast = StudentTGP(X, y, noise=0.01, degrees_of_freedom=2.1).elbo().item()
    steps = len(values)
    values.clear()
    monkeypatch.setattr(ascent._Memory, "extrapolate", lambda self, step: None)
    assert StudentTGP(X, y, noise=0.01, degrees_of_freedom=2.1).elbo().item() == pytest.approx(fast, abs=1e-5)
    assert steps < 0.9 * len(values)


def test_a_linear_map_is_solved_by_extrapolation_in_as_many_steps_as_it_has_dimensions():
    matrix = torch.tensor([[0.9, 0.2], [0.0, 0.5]], dtype=torch.float64)
    offset = torch.tensor([1.0, 2.0], dtype=torch.float64)
    memory = ascent._Memory(torch.tensor(1.0, dtype=torch.float64))

    def step(x):
        target = matrix @ x + offset
        return ascent.Step(ascent.Sites(x[:1], x[1:]), None, 0.0, ascent.Sites(target[:1], target[1:]))

    x = torch.zeros(2, dtype=torch.float64)
    for _ in range(3):
        here = step(x)
        sites = memory.extrapolate(here) or here.target
        memory.add(here)
        x = torch.cat([sites.precision, sites.shift])
    solution = torch.linalg.solve(torch.eye(2, dtype=torch.float64) - matrix, offset)
    torch.testing.assert_close(x, solution, rtol=0, atol=1e-9)


def test_there_is_no_extrapolation_from_what_is_no_number():
    memory = ascent._Memory(torch.tensor(1.0, dtype=torch.float64))
    sites, broken = (ascent.Sites(torch.full((3,), value), torch.ones(3)) for value in (1.0, math.nan))
    memory.add(ascent.Step(sites, None, 0.0, broken))
    assert memory.extrapolate(ascent.Step(sites, None, 0.0, sites)) is None
