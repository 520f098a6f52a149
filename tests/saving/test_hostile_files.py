"""A stranger's file may carry a correct checksum: any content raises or gives one of the known classes."""

from __future__ import annotations

import copy
import json
import os
import subprocess

import pytest
import torch
from gpytorch import kernels, means, priors
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import nn

from rcgp.saving import SavedModelError, describe, read_archive, rebuild, write_archive
from rcgp.saving.recipes import RECIPES
from rcgp.weights import InverseMultiquadric, LawWeight, NoiseLaw, OneSided, Product


def described():
    base = kernels.RBFKernel(ard_num_dims=2, active_dims=(0, 1), lengthscale_prior=priors.LogNormalPrior(0.0, 1.0))
    return describe(kernels.ScaleKernel(base) + kernels.SpectralMixtureKernel(num_mixtures=2, ard_num_dims=2))


def check_refused(description, tensors, message="makes no sense"):
    with pytest.raises(SavedModelError, match=message) as caught:
        rebuild(description, tensors)
    assert str(caught.value).startswith("the saved model makes no sense: ")
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize(
    "name", ["os.system", "system", "Kernel", "RBFKernel ", "__import__", "", None, 3, ["RBFKernel"]]
)
def test_a_class_outside_the_table_raises(name, tmp_path, monkeypatch):
    def run(*args, **kwargs):
        raise AssertionError("code was run")

    monkeypatch.setattr(os, "system", run)
    monkeypatch.setattr(subprocess, "Popen", run)
    description, tensors = described()
    description["class"] = name
    write_archive(tmp_path / "m", description, tensors)  # with a checksum that is right
    check_refused(*read_archive(tmp_path / "m"), "names the class")


def changed(path, value):
    """The description with one entry replaced, at a path of keys."""
    description, tensors = described()
    entry = description
    for key in path[:-1]:
        entry = entry[key]
    entry[path[-1]] = value
    return description, tensors


RBF = ("parts", 0, "parts", 0)


@pytest.mark.parametrize(
    ("path", "value", "message"),
    [
        (("parts",), [], "as its parts"),
        (("parts",), None, "as its parts"),
        (("parts",), [1, 2], "must be described by"),
        (("parts", 0, "parts"), [], "as its parts"),
        (("parts", 0, "parts", 0), {"same_as": ""}, "which does not exist"),
        (("parts", 0), {"same_as": "kernels.0"}, "which does not exist"),
        (("parts", 1), {"same_as": ["kernels.0"]}, "which does not exist"),
        (("parts", 1), {"same_as": "kernels.0"}, "nothing in it uses the tensor 'kernels.1"),
        ((*RBF, "arguments"), None, "takes the arguments"),
        ((*RBF, "arguments"), {"ard_num_dims": 2}, "takes the arguments"),
        ((*RBF, "arguments", "more"), 1, "takes the arguments"),
        ((*RBF, "arguments", "ard_num_dims"), 3, "must have shape"),
        ((*RBF, "arguments", "ard_num_dims"), 10**15, "must have shape"),
        ((*RBF, "arguments", "ard_num_dims"), -1, "positive integer"),
        ((*RBF, "arguments", "ard_num_dims"), True, "positive integer"),
        ((*RBF, "arguments", "ard_num_dims"), "2", "positive integer"),
        ((*RBF, "arguments", "active_dims"), None, "nothing in it uses the tensor"),
        ((*RBF, "requires_grad"), {}, "requires_grad must be given"),
        ((*RBF, "requires_grad", "raw_lengthscale"), 1, "true or false"),
        ((*RBF, "constraints"), {}, "a constraint is missing"),
        ((*RBF, "constraints"), [], "by name"),
        ((*RBF, "constraints", "forward_constraint"), {"class": "Positive", "transform": None}, "does not belong"),
        ((*RBF, "constraints", "raw_lengthscale_constraint"), "Positive", "a class and a transform"),
        ((*RBF, "constraints", "raw_lengthscale_constraint", "class"), "eval", "'eval' is not one of"),
        ((*RBF, "constraints", "raw_lengthscale_constraint", "transform"), "os.system", "'os.system' is not one of"),
        ((*RBF, "constraints", "raw_lengthscale_constraint", "class"), "Between", "does not take the transform"),
        ((*RBF, "priors"), None, "by name"),
        ((*RBF, "priors", "forward_prior"), {"class": "GammaPrior", "validate_args": True}, "has no parameter"),
        ((*RBF, "priors", "_prior"), {"class": "GammaPrior", "validate_args": True}, "has no parameter"),
        ((*RBF, "priors", "lengthscale_prior", "class"), "Prior", "'Prior' is not one of"),
        ((*RBF, "priors", "lengthscale_prior", "class"), "GammaPrior", "is missing"),
        ((*RBF, "priors", "lengthscale_prior", "validate_args"), "yes", "true or false"),
        ((*RBF, "priors", "lengthscale_prior"), {}, "a class and validate_args"),
        (("parts", 1, "arguments", "num_mixtures"), 10**9, "must have shape"),
        (("extra",), 1, "must be described by"),
    ],
)
def test_invalid_values_in_a_description_raise(path, value, message):
    check_refused(*changed(path, value), message)


@pytest.mark.parametrize("description", [None, [], "RBFKernel", {}, {"same_as": ""}, 1.5])
def test_invalid_descriptions_raise(description):
    check_refused(description, {})


LENGTHSCALE = "kernels.0.base_kernel.raw_lengthscale"


@pytest.mark.parametrize(
    ("name", "value", "message"),
    [
        (LENGTHSCALE, torch.zeros(1, 3), r"must have shape \(1, 2\), got \(1, 3\)"),
        (LENGTHSCALE, torch.zeros(2), "must have shape"),
        (LENGTHSCALE, torch.zeros(1, 2, dtype=torch.int64), "must hold real numbers"),
        (LENGTHSCALE, torch.zeros(1, 2, dtype=torch.bool), "must hold real numbers"),
        (f"{LENGTHSCALE}_constraint.lower_bound", torch.tensor(torch.inf), "do not make an interval"),
        (f"{LENGTHSCALE}_constraint.lower_bound", torch.tensor(torch.nan), "do not make an interval"),
        (f"{LENGTHSCALE}_constraint.lower_bound", torch.zeros(5, 1, 2), "do not make an interval"),
        (f"{LENGTHSCALE}_constraint.upper_bound", torch.ones(1, 3), "do not make an interval"),
        ("kernels.0.base_kernel.active_dims", torch.tensor([0, -1]), "must hold columns"),
        ("kernels.0.base_kernel.active_dims", torch.tensor([0.0, 1.0]), "must hold columns"),
        ("kernels.0.base_kernel.active_dims", torch.tensor([0]), "must have shape"),
        ("kernels.0.base_kernel.lengthscale_prior.scale", torch.tensor(-1.0), "scale"),
        ("kernels.0.base_kernel.lengthscale_prior.scale", torch.ones(5), "makes no sense"),
        ("kernels.0.base_kernel.lengthscale_prior.scale", torch.tensor(1), "must hold real numbers"),
        ("kernels.0.base_kernel.lengthscale_prior._buffered_scale", torch.ones(3), "shape"),
        ("more", torch.zeros(1), "nothing in it uses the tensor 'more'"),
    ],
)
def test_misshapen_mistyped_and_surplus_tensors_raise(name, value, message):
    description, tensors = described()
    check_refused(description, {**tensors, name: value}, message)


def test_every_missing_tensor_raises():
    description, tensors = described()
    rebuild(description, tensors)
    for name in tensors:
        check_refused(description, {key: value for key, value in tensors.items() if key != name}, "is missing")


def test_parts_must_be_of_their_kind():
    description, _ = describe(kernels.RBFKernel() + kernels.RBFKernel())
    description["parts"] = [describe(means.ZeroMean())[0]]
    check_refused(description, {}, "every part of AdditiveKernel must be a kernel")
    description, _ = describe(OneSided(InverseMultiquadric(), "above"))
    description["parts"] = [describe(means.ZeroMean())[0]]
    check_refused(description, {}, "must be a weight")


@pytest.mark.parametrize(
    ("key", "value"),
    [("threshold", "both"), ("threshold", ["rule"]), ("threshold", "fixed"), ("epsilon", 1.5), ("epsilon", "0")],
)
def test_invalid_weights_raise(key, value):
    description, tensors = describe(InverseMultiquadric())
    description["arguments"][key] = value
    check_refused(description, tensors)


@pytest.mark.parametrize(
    ("key", "value"),
    [
        ("shares", [0.5, 0.5, 0.5, 0.5]),
        ("shares", [1.5, -0.5, 0.0, 0.0]),
        ("shares", [0.5, 0.5]),
        ("shares", [1, 0, 0, 0]),
        ("shares", "1000"),
        ("shares", [float("nan"), 0.5, 0.5, 0.0]),
        ("width", 0.0),
        ("width", -1.0),
        ("width", "wide"),
        ("width", float("nan")),
        ("rows", 3),
        ("rows", 10**12),
        ("rows", 0),
    ],
)
def test_invalid_noise_laws_raise(key, value):
    zeros = torch.zeros(4, dtype=torch.float64)
    description, tensors = describe(LawWeight(NoiseLaw((0.7, 0.1, 0.05, 0.05), 0.1, 2.0), zeros, zeros + 1.0))
    description["arguments"][key] = value
    check_refused(description, tensors)


def test_priors_and_constraints_on_a_weight_raise():
    description, tensors = describe(InverseMultiquadric(1.0, trainable=True))
    description["priors"] = {"log_c_prior": {"class": "NormalPrior", "validate_args": False}}
    check_refused(description, tensors, "neither constraints nor priors")


@pytest.mark.parametrize(("degree", "d"), [(2, 10**6), (0, 3), (1, 4)])
def test_a_polynomial_with_the_wrong_number_of_terms_raises_before_it_is_made(degree, d):
    arguments = {"degree": degree, "input_size": d, "terms": 4}
    description = {"class": "PolynomialMean", "arguments": arguments, "requires_grad": {}, "parts": []}
    tensors = {"centre": torch.zeros(d), "scale": torch.ones(d), "coefficients": torch.zeros(4)}
    check_refused({**description, "constraints": {}, "priors": {}}, tensors, "does not have 4 terms")


def test_a_small_file_cannot_describe_a_huge_tree():
    constant, _ = describe(Product(InverseMultiquadric(), InverseMultiquadric()))
    node = constant["parts"][0]
    for depth in range(60):
        path = ".".join(["weights.0"] * (60 - depth))
        node = {**copy.deepcopy(constant), "parts": [node, {"same_as": path}]}
    check_refused(node, {}, "more than 100000 parts")


def test_a_description_nested_too_deeply_raises():
    description, _ = describe(OneSided(InverseMultiquadric(), "above"))
    node = description["parts"][0]
    for _ in range(5000):
        node = {**description, "parts": [node]}
    check_refused(node, {}, "nested too deeply")


def nodes(node):
    """Every dict and list in a description, with what can be replaced in it."""
    entries = node.items() if isinstance(node, dict) else enumerate(node) if isinstance(node, list) else ()
    for key, value in list(entries):
        yield node, key
        yield from nodes(value)


words = st.sampled_from([*RECIPES, "GammaPrior", "UniformPrior", "LessThan", "exp", "kernels.0", "lengthscale_prior"])
anything = st.recursive(
    st.none() | st.booleans() | st.integers(-3, 10**12) | st.floats() | words,
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(words, inner, max_size=3),
    max_leaves=5,
)


@given(position=st.floats(0, 1, exclude_max=True), value=anything, second=st.floats(0, 1, exclude_max=True))
@settings(max_examples=300, deadline=None)
def test_any_change_to_a_description_raises_or_gives_a_listed_module(position, value, second):
    description, tensors = described()
    for share in (position, second):
        places = list(nodes(description))
        if places:
            node, key = places[int(share * len(places))]
            node[key] = value
    try:
        module = rebuild(description, tensors)
    except SavedModelError:
        return
    assert isinstance(module, nn.Module)
    assert type(module) is RECIPES[type(module).__name__].cls
    assert json.dumps(describe(module)[0]) == json.dumps(describe(rebuild(*describe(module)))[0])
