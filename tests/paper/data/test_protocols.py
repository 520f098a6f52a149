from __future__ import annotations

import dataclasses

import numpy as np
import pytest
from scipy.linalg import cho_factor, cho_solve
from scipy.optimize import minimize

from rcgp_paper.data import PROTOCOLS, Burst, Dataset, Uniform, load, prepare, protocol_data, split

ARRAYS = ("train_X", "train_y", "test_X", "test_y", "train_rows", "test_rows", "mask")


def same(first, second):
    return [bool(np.array_equal(getattr(first, name), getattr(second, name))) for name in ARRAYS]


def dataset(n=100, d=2, name="own"):
    random = np.random.default_rng(0)
    return Dataset(name, random.normal(3, 5, size=(n, d)), random.normal(-2, 4, size=n), ("a", "b")[:d], "drawn")


class TestPaper:
    def test_a_tenth_tests_and_every_row_is_used_once(self):
        parts = split(dataset(304))
        assert parts.test_y.size == 30
        assert sorted([*parts.train_rows, *parts.test_rows]) == list(range(304))

    def test_rows_keep_the_order_of_the_data_set(self):
        parts = split(dataset())
        assert (np.diff(parts.train_rows) > 0).all()
        assert (np.diff(parts.test_rows) > 0).all()

    def test_the_whole_data_set_is_standardised_before_it_is_split(self):
        data = dataset()
        parts = split(data, "paper", 3)
        y = np.empty(100)
        y[parts.train_rows], y[parts.test_rows] = parts.train_y, parts.test_y
        np.testing.assert_allclose([y.mean(), y.std()], [0, 1], atol=1e-12)
        np.testing.assert_allclose(y, (data.y - data.y.mean()) / data.y.std())
        np.testing.assert_allclose(parts.train_X[0], ((data.X - data.X.mean(0)) / data.X.std(0))[parts.train_rows[0]])

    def test_a_constant_column_becomes_zero(self):
        data = dataset()
        data.X[:, 1] = 4.0
        assert (split(data).train_X[:, 1] == 0).all()

    def test_the_synthetic_data_keep_their_units_and_their_noise(self):
        data = load("synthetic")
        parts = split(data)
        assert np.array_equal(parts.train_X, data.X[parts.train_rows])
        assert np.array_equal(parts.test_y, data.y[parts.test_rows])

    def test_each_index_has_a_split_of_its_own_and_all_contaminations_share_it(self):
        first, second = (prepare("synthetic", "clean", "paper", index) for index in (0, 1))
        assert not np.array_equal(first.test_rows, second.test_rows)
        for name in ("uniform", "asymmetric", "focused", "student_t", "constant", "burst"):
            assert np.array_equal(prepare("synthetic", name, "paper", 1).test_rows, second.test_rows)

    def test_only_training_rows_are_contaminated(self):
        clean, dirty = (prepare("synthetic", name, "paper", 2) for name in ("clean", "asymmetric"))
        assert np.array_equal(clean.test_y, dirty.test_y)
        assert np.array_equal(clean.train_y != dirty.train_y, dirty.mask)
        assert dirty.mask.sum() == 27
        assert not clean.mask.any()
        assert dirty.initial is None

    def test_a_custom_contamination_is_used_unchanged(self):
        assert prepare("synthetic", Burst(share=0.3)).mask.sum() == 81


class TestPublished:
    """The authors' experiment, written down once more without the code under test."""

    @pytest.mark.parametrize("kind", ["clean", "uniform", "asymmetric", "focused"])
    @pytest.mark.parametrize("name", ["yacht", "boston_readfwf", "synthetic"])
    def test_every_draw_is_that_of_the_authors(self, name, kind, data_home):
        data = load(name, home=data_home)
        X, y = data.X.copy(), data.y.copy()
        if name != "synthetic":
            X, y = (X - X.mean(0)) / (X.std(0) + 1e-6), (y - y.mean()) / (y.std() + 1e-6)
        n = y.size
        rng = np.random.default_rng(20220722)
        rows = rng.permutation(n)
        test, train = rows[: round(0.1 * n)], rows[round(0.1 * n) :]
        test_X, test_y, X, y = X[test], y[test], X[train], y[train]
        mask = np.zeros(y.size, dtype=bool)
        if kind != "clean":
            outliers = np.arange(y.size)
            rng.shuffle(outliers)
            ratio = 0.2 if (name, kind) == ("synthetic", "asymmetric") else 0.1
            outliers = outliers[: int(ratio * y.size)]
            mask[outliers] = True
            contaminate(kind, X, y, outliers, rng)
        problem = prepare(name, kind, "published", 0, home=data_home)
        np.testing.assert_allclose(problem.train_X, X, rtol=1e-12, atol=1e-12)
        np.testing.assert_allclose(problem.train_y, y, rtol=1e-12, atol=1e-12)
        np.testing.assert_allclose(problem.test_X, test_X, rtol=1e-12, atol=1e-12)
        np.testing.assert_allclose(problem.test_y, test_y, rtol=1e-12, atol=1e-12)
        assert np.array_equal(problem.mask, mask)

    def test_ties_are_broken_alike_on_every_processor(self, data_home):
        # 4σ below the median of y over the middle rows; -0.49587 is that median where the sort is NumPy's plain one.
        clean, dirty = (prepare("yacht", kind, "published", home=data_home) for kind in ("clean", "focused"))
        highest = dirty.train_y[dirty.mask].max() + 4 * clean.train_y.std()
        assert -0.4959 - 0.01 < highest < -0.4958

    def test_the_index_varies_the_start_only(self, data_home):
        first, second = (prepare("yacht", "uniform", "published", index, home=data_home) for index in (0, 1))
        assert all(same(first, second))
        assert first.initial["variance"] != second.initial["variance"]

    def test_the_start_is_drawn_in_the_order_variance_lengthscales_noise(self, data_home):
        rng = np.random.default_rng(20220721 + 4)
        drawn = rng.gamma(5.0, 0.2, size=8)
        initial = prepare("yacht", "clean", "published", 4, home=data_home).initial
        assert initial["variance"] == drawn[0]
        assert np.array_equal(initial["lengthscales"], drawn[1:7])
        assert initial["noise"] == drawn[7]

    @pytest.mark.parametrize(
        ("contamination", "mae", "rmse"),
        [
            ("clean", 0.089718, 0.108805),
            ("asymmetric", 1.148534, 1.236985),
            ("focused", 0.195196, 0.468401),
        ],
        ids=["clean", "asymmetric", "focused"],
    )
    def test_an_ordinary_gp_has_the_errors_that_the_authors_published(self, contamination, mae, rmse):
        problem = prepare("synthetic", contamination, "published", 0)
        errors = problem.test_y - ordinary_gp(problem.train_X, problem.train_y, problem.test_X)
        np.testing.assert_allclose(np.abs(errors).mean(), mae, rtol=1e-4)
        np.testing.assert_allclose(np.sqrt(np.square(errors).mean()), rmse, rtol=1e-4)

    def test_it_knows_the_paper_s_contaminations_only(self):
        with pytest.raises(ValueError, match="the published protocol has no contamination 'burst'"):
            prepare("synthetic", "burst", "published")


def contaminate(kind, X, y, outliers, rng):
    """The authors' three contaminations, in place."""
    sd, d = np.std(y), X.shape[1]
    if kind == "focused":
        u = rng.uniform(size=(outliers.size, d))
        v = rng.uniform(size=outliers.size)
        middle = [np.argsort(X[:, j].astype(object))[y.size // 2] for j in range(d)]
        centre = [X[middle[j], j] for j in range(d)]
        target = np.median(y[middle])
        mad = [np.median(np.abs(X[:, j] - np.median(X[:, j]))) for j in range(d)]
        mad_y = np.median(np.abs(y - np.median(y)))
        for i, row in enumerate(outliers):
            y[row] = target - 4 * sd - 0.1 * mad_y * v[i]
            for j in range(d):
                X[row, j] = centre[j] + mad[j] * 0.1 * d * (u[i, j] - 0.5)
        return
    u = rng.uniform(0, 12 * sd, size=outliers.size)
    if kind == "asymmetric":
        shift = [-value / 2 - 3 * sd for value in u]
        if rng.uniform() > 0.5:
            shift = [-value for value in shift]
    else:
        shift = [-value - 3 * sd for value in u if value < 6 * sd]
        shift += [value - 6 * sd + 3 * sd for value in u if value >= 6 * sd]
    for row, value in zip(outliers, shift, strict=True):
        y[row] += value


def ordinary_gp(X, y, new):
    """Predictions of a zero-mean GP with squared exponential kernel, fitted by the marginal likelihood."""

    def kernel(first, second, logs):
        return np.exp(logs[0] - 0.5 * np.square((first - second.T) / np.exp(logs[1])))

    def factor(logs):
        return cho_factor(kernel(X, X, logs) + (np.exp(logs[2]) + 1e-6) * np.eye(y.size), lower=True)

    def loss(logs):
        L = factor(logs)
        return 0.5 * y @ cho_solve(L, y) + np.log(np.diag(L[0])).sum()

    logs = minimize(loss, np.log([1.0, 1.0, 0.5]), method="L-BFGS-B", options={"ftol": 1e-13, "gtol": 1e-6}).x
    return kernel(new, X, logs) @ cho_solve(factor(logs), y)


@pytest.mark.parametrize("protocol", ["paper", "published"])
@pytest.mark.parametrize("kind", ["clean", "uniform", "asymmetric", "focused"])
def test_the_same_arguments_give_the_same_problem(protocol, kind):
    assert all(same(prepare("synthetic", kind, protocol, 3), prepare("synthetic", kind, protocol, 3)))


def test_data_given_as_such_are_not_changed():
    data = dataset()
    X, y = data.X.copy(), data.y.copy()
    problem = prepare(data, "focused")
    problem.train_X[:] = 0
    problem.test_y[:] = 0
    assert np.array_equal(data.X, X)
    assert np.array_equal(data.y, y)


def test_a_problem_names_the_source_of_its_data():
    assert prepare(dataset(), Uniform()).source == "drawn"


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (("synthetic", "unifrom"), "no contamination 'unifrom': name one of clean, uniform"),
        (("synthetic", "uniform", "papper"), "no protocol 'papper': name one of paper, published"),
        (("synthetic", "uniform", "paper", -1), "index must be a whole number, 0 or more, got -1"),
        (("synthetic", "uniform", "paper", 1.5), "index must be a whole number, 0 or more, got 1.5"),
        (("boston_readfwf", "uniform", "paper"), "for the published protocol only: use 'boston'"),
        (("nothing", "uniform"), "no data set 'nothing'"),
    ],
)
def test_a_wrong_argument_is_named(arguments, message):
    with pytest.raises(ValueError, match=message):
        prepare(*arguments)


def test_too_few_rows_for_a_test_part_raise():
    data = dataset(5)
    with pytest.raises(ValueError, match="has 5 rows"):
        split(data)
    assert split(dataset(6)).test_y.size == 1


def test_a_problem_is_a_split_with_more_in_it():
    problem, parts = prepare("synthetic", "clean"), split(load("synthetic"))
    for field in dataclasses.fields(parts):
        assert np.array_equal(getattr(problem, field.name), getattr(parts, field.name))


def test_data_and_contaminations_of_another_kind_are_named():
    with pytest.raises(TypeError, match=r"dataset must be a name or an rcgp_paper.data.Dataset, got tuple"):
        prepare((np.zeros((3, 1)), np.zeros(3)), "uniform")
    with pytest.raises(TypeError, match=r"contamination must be a name or a contamination such as Uniform\(\)"):
        prepare("synthetic", Uniform)


def test_a_protocol_maps_names_to_data_sets():
    assert [protocol_data("boston", protocol) for protocol in PROTOCOLS] == ["boston", "boston_readfwf"]
    assert [protocol_data("yacht", protocol) for protocol in PROTOCOLS] == ["yacht", "yacht"]


def test_the_published_boston_is_what_the_authors_reader_left(data_home):
    published, paper = (prepare("boston", "clean", protocol, home=data_home) for protocol in ("published", "paper"))
    assert "readfwf" in published.source
    assert "readfwf" not in paper.source
