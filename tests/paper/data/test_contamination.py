from __future__ import annotations

import dataclasses

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from rcgp_paper.data import CONTAMINATIONS, Asymmetric, Burst, Clean, Constant, Focused, StudentT, Uniform

N, D = 2000, 3
PUBLISHED = [Uniform(published=True), Asymmetric(published=True), Focused(published=True)]
EVERY = [make() for make in CONTAMINATIONS.values()] + PUBLISHED


@pytest.fixture
def data():
    random = np.random.default_rng(5)
    X = random.normal(size=(N, D)) * [1.0, 10.0, 0.1]
    return X, 7.0 + 2.0 * random.normal(size=N)


def shifts(contamination, data, seed=0):
    """Shifts of the altered rows in units of σ."""
    X, y = data
    result = contamination(X, y, np.random.default_rng(seed))
    return (result.y - y)[result.mask] / y.std()


@pytest.mark.parametrize("contamination", EVERY, ids=repr)
class TestEvery:
    def test_only_masked_rows_differ_and_inputs_stay(self, contamination, data):
        X, y = data
        copies = X.copy(), y.copy()
        result = contamination(X, y, np.random.default_rng(1))
        assert np.array_equal(X, copies[0])
        assert np.array_equal(y, copies[1])
        assert not np.shares_memory(result.X, X)
        assert not np.shares_memory(result.y, y)
        assert np.array_equal(result.X[~result.mask], X[~result.mask])
        assert np.array_equal(result.y[~result.mask], y[~result.mask])
        assert (result.y != y)[result.mask].all()

    def test_the_share_of_altered_rows_is_the_given_one(self, contamination, data):
        assert contamination(*data, np.random.default_rng(1)).mask.sum() == (0 if contamination == Clean() else N // 10)
        if contamination != Clean():
            more = dataclasses.replace(contamination, share=0.25)
            assert more(*data, np.random.default_rng(1)).mask.sum() == N // 4

    def test_the_same_seed_gives_the_same_and_another_seed_another_result(self, contamination, data):
        first, again, other = (contamination(*data, np.random.default_rng(seed)) for seed in (3, 3, 4))
        assert np.array_equal(first.X, again.X)
        assert np.array_equal(first.y, again.y)
        assert np.array_equal(first.mask, again.mask)
        assert np.array_equal(first.y, other.y) == (contamination == Clean())

    def test_it_does_not_depend_on_the_units_of_y(self, contamination, data):
        X, y = data
        result = contamination(X, y, np.random.default_rng(2))
        scaled = contamination(X, 1000 * y - 50, np.random.default_rng(2))
        np.testing.assert_allclose(scaled.y, 1000 * result.y - 50, rtol=1e-9, atol=1e-6)

    @pytest.mark.parametrize("n", [1, 2, 3, 9, 10, 11])
    def test_few_rows_raise_no_error(self, contamination, n):
        X, y = np.arange(2.0 * n).reshape(n, 2), np.arange(float(n))
        result = contamination(X, y, np.random.default_rng(0))
        assert result.mask.sum() == (0 if contamination == Clean() else n // 10)

    def test_constant_data_stay_finite(self, contamination):
        result = contamination(np.ones((50, 2)), np.ones(50), np.random.default_rng(0))
        assert np.isfinite(result.X).all()
        assert np.isfinite(result.y).all()

    def test_it_is_frozen_and_compares_by_value(self, contamination):
        assert contamination == dataclasses.replace(contamination)
        if contamination != Clean():
            with pytest.raises(dataclasses.FrozenInstanceError):
                contamination.share = 0.5


@given(n=st.integers(1, 60), share=st.floats(0, 1), seed=st.integers(0, 2**32), which=st.sampled_from(EVERY[1:]))
@settings(max_examples=150)
def test_any_share_of_any_number_of_rows_is_altered_exactly(n, share, seed, which):
    random = np.random.default_rng(seed)
    X, y = random.normal(size=(n, 2)), random.normal(size=n)
    result = dataclasses.replace(which, share=share)(X, y, random)
    assert result.mask.sum() == int(n * share)
    assert np.array_equal(result.y[~result.mask], y[~result.mask])


class TestUniform:
    def test_one_half_goes_up_and_the_other_down_by_3_to_9_deviations(self, data):
        shift = shifts(Uniform(), data)
        assert (shift > 0).sum() == (shift < 0).sum() == 100
        check_spread(np.abs(shift), 3, 9)

    def test_of_an_odd_number_the_odd_one_goes_up(self, data):
        shift = shifts(Uniform(share=0.0505), data)
        assert (shift > 0).sum() - (shift < 0).sum() == 1

    def test_the_published_sides_are_equal_on_average_only(self, data):
        ups = [(shifts(Uniform(published=True), data, seed) > 0).sum() for seed in range(200)]
        assert len(set(ups)) > 5
        assert abs(np.mean(ups) - 100) < 4 * np.sqrt(50 / 200)
        check_spread(np.abs(shifts(Uniform(published=True, share=0.5), data)), 3, 9)


class TestAsymmetric:
    def test_all_go_down_by_3_to_9_deviations(self, data):
        for seed in range(20):
            assert (shifts(Asymmetric(), data, seed) < 0).all()
        check_spread(-shifts(Asymmetric(), data), 3, 9)

    def test_the_published_ones_all_go_to_the_side_of_one_coin(self, data):
        sides = []
        for seed in range(100):
            shift = shifts(Asymmetric(published=True), data, seed)
            assert (shift > 0).all() or (shift < 0).all()
            sides.append(shift[0] > 0)
            rng = np.random.default_rng(seed)
            rng.shuffle(np.arange(N))
            rng.uniform(size=shift.size)
            assert sides[-1] == (rng.uniform() > 0.5)
        assert 30 < sum(sides) < 70
        check_spread(np.abs(shifts(Asymmetric(published=True), data)), 3, 9)


class TestFocused:
    def test_the_cluster_is_where_the_appendix_puts_it(self, data):
        X, y = data
        result = Focused()(X, y, np.random.default_rng(0))
        outliers = result.X[result.mask]
        median = np.median(X, axis=0)
        for column in range(D):
            spread = 0.1 * np.median(np.abs(X[:, column] - median[column]))
            check_spread((outliers[:, column] - median[column]) / spread, 0, 1)
        spread = 0.1 * np.median(np.abs(y - np.median(y)))
        check_spread((result.y[result.mask] - np.median(y) + 3 * y.std()) / spread, 0, 1)

    def test_the_published_cluster_surrounds_the_medians_and_lies_lower(self, data):
        X, y = data
        result = Focused(published=True)(X, y, np.random.default_rng(0))
        middle = np.argsort(X, axis=0)[N // 2]  # without ties, every sort gives the same order
        for column in range(D):
            spread = 0.1 * D * np.median(np.abs(X[:, column] - np.median(X[:, column])))
            check_spread((result.X[result.mask, column] - X[middle[column], column]) / spread, -0.5, 0.5)
        spread = 0.1 * np.median(np.abs(y - np.median(y)))
        check_spread((np.median(y[middle]) - 3 * y.std() - result.y[result.mask]) / spread, 0, 1)

    def test_the_columns_are_jittered_independently(self, data):
        outliers = Focused(share=0.5)(*data, np.random.default_rng(0))
        correlation = np.corrcoef(outliers.X[outliers.mask], outliers.y[outliers.mask], rowvar=False)
        assert np.abs(correlation - np.eye(D + 1)).max() < 0.15

    @pytest.mark.parametrize("published", [False, True])
    def test_depth_moves_the_cluster_by_deviations(self, data, published):
        three, four = (Focused(published=published, depth=depth)(*data, np.random.default_rng(0)) for depth in (3, 4))
        assert np.array_equal(three.X, four.X)
        np.testing.assert_allclose((three.y - four.y)[three.mask], data[1].std())


class TestOthers:
    def test_student_noise_has_the_quartiles_of_its_distribution(self, data):
        shift = shifts(StudentT(share=1.0, df=2.0), data)
        # The quartiles of Student's t with 2 degrees of freedom are ±√(2/3) = ±0.816.
        np.testing.assert_allclose(np.quantile(shift, [0.25, 0.5, 0.75]), [-0.816, 0, 0.816], atol=0.12)
        assert np.abs(shift).max() > 9

    def test_a_stuck_sensor_repeats_its_last_reading(self, data):
        for seed in range(20):
            result = Constant()(*data, np.random.default_rng(seed))
            rows = np.flatnonzero(result.mask)
            check_consecutive(rows)
            assert (result.y[rows] == data[1][rows[0] - 1]).all()

    def test_a_stuck_sensor_can_report_a_given_value(self, data):
        result = Constant(value=-3.5)(*data, np.random.default_rng(0))
        assert (result.y[result.mask] == -3.5).all()

    def test_a_sensor_has_one_reading_at_least_before_it_sticks(self):
        X, y = np.zeros((4, 1)), np.arange(4.0)
        starts = {int(Constant(share=0.5)(X, y, np.random.default_rng(seed)).mask.argmax()) for seed in range(40)}
        assert starts == {1, 2}

    def test_a_sensor_stuck_from_the_start_repeats_its_first_reading(self, data):
        result = Constant(share=1.0)(*data, np.random.default_rng(0))
        assert (result.y == data[1][0]).all()

    def test_a_burst_is_one_run_to_one_side(self, data):
        starts, sides = [], []
        for seed in range(60):
            result = Burst()(*data, np.random.default_rng(seed))
            rows = np.flatnonzero(result.mask)
            check_consecutive(rows)
            shift = shifts(Burst(), data, seed)
            assert (shift > 0).all() or (shift < 0).all()
            check_spread(np.abs(shift), 3, 9)
            starts.append(rows[0])
            sides.append(shift[0] > 0)
        assert min(starts) < N / 5
        assert max(starts) > 0.7 * N
        assert 15 < sum(sides) < 45

    def test_clean_draws_nothing(self, data):
        random, untouched = np.random.default_rng(9), np.random.default_rng(9)
        Clean()(*data, random)
        assert random.random() == untouched.random()


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: Uniform(share=1.5), "share must lie in"),
        (lambda: Burst(share=float("nan")), "share must lie in"),
        (lambda: StudentT(df=0), "df must be a positive number"),
        (lambda: Constant(value=float("inf")), "value must be a finite number or None"),
        (lambda: Focused(depth=float("nan")), "depth must be a finite number"),
    ],
)
def test_arguments_out_of_range_are_named(make, message):
    with pytest.raises(ValueError, match=message):
        make()


@pytest.mark.parametrize(
    ("X", "y", "message"),
    [
        (np.zeros(3), np.zeros(3), "X must have n rows and d columns"),
        (np.zeros((0, 2)), np.zeros(0), "X must have n rows and d columns"),
        (np.zeros((3, 1)), np.zeros(2), r"y must have shape \(3,\)"),
        (np.zeros((3, 1)), np.zeros((3, 1)), r"y must have shape \(3,\)"),
        (np.array([[0.0], [np.nan], [0.0]]), np.zeros(3), "X must be finite: it is not in row 1"),
        (np.zeros((3, 1)), np.array([0, 0, np.inf]), "y must be finite: it is not in row 2"),
    ],
)
def test_data_that_cannot_be_contaminated_raise(X, y, message):
    with pytest.raises(ValueError, match=message):
        Uniform()(X, y, np.random.default_rng(0))


def test_a_seed_in_place_of_a_generator_raises():
    with pytest.raises(TypeError, match=r"rng must be a numpy\.random\.Generator, got int"):
        Uniform()(np.zeros((3, 1)), np.zeros(3), 0)


def check_spread(values, low, high):
    """Values that look uniform on [low, high]: inside, near both ends, and with its mean."""
    width = high - low
    assert values.min() >= low - 1e-9
    assert values.max() <= high + 1e-9
    assert values.min() < low + 0.1 * width
    assert values.max() > high - 0.1 * width
    assert abs(values.mean() - (low + high) / 2) < 5 * width / np.sqrt(12 * values.size)


def check_consecutive(rows):
    assert (np.diff(rows) == 1).all()
