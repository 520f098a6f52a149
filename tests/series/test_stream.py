"""A stream predicts, judges and takes in values; it goes on from the filter of the model, and follows level shifts."""

import copy
import math
import pickle
import struct

import gpytorch
import numpy as np
import pytest
import torch

from rcgp import RCGPSeries, SavedModelError, StateSpaceRCGP, fit_robust, load
from rcgp.saving import read_archive, write_archive
from rcgp.series import Stream
from rcgp.series.process import SeriesProcess
from rcgp.series.step import judge, law_numbers, quantile
from rcgp.weights import NoiseLaw
from rcgp.weights.noise_law import SCALES, responsibilities

LAW = NoiseLaw((0.8, 0.06, 0.03, 0.01), 0.1, 6.0)


def make_series(n=600, seed=0, noise=0.1):
    random = np.random.default_rng(seed)
    t = np.sort(random.uniform(0.0, n / 10.0, n))
    return t, np.sin(t / 2.0) + noise * random.standard_normal(n)


@pytest.fixture(scope="module")
def model():
    t, y = make_series(300)
    y[[40, 90, 200]] += 5.0
    found = StateSpaceRCGP(torch.from_numpy(t), torch.from_numpy(y))
    fit_robust(found)
    return found


@pytest.mark.parametrize("e", [0.3, -2.0, 40.0, 1e300])
@pytest.mark.parametrize("f", [0.1, -0.5])
@pytest.mark.parametrize("v", [0.0, 0.02, 3.0])
def test_a_value_is_judged_as_the_noise_law_judges_rows(e, f, v):
    noise = 0.04
    parts = (torch.tensor([part], dtype=torch.float64) for part in (e, f, v, noise))
    rows = responsibilities(*parts, LAW.log_shares(torch.zeros(1).double()).unsqueeze(0), torch.tensor([6.0]).double())
    found = judge(e, f, v, law_numbers(LAW, noise, 0.95))
    squares, count = 0.0, float(1.0 - rows.outlier)
    for share, scale in zip(rows.share[0].tolist(), SCALES, strict=False):
        gain = noise * scale**2 / (v + noise * scale**2)
        squares += share * ((gain * (e - f)) ** 2 + gain * v) / noise if share > 0.0 else 0.0
    expected = (rows.log_density, rows.outlier_probability, rows.precision, rows.slope, squares / LAW.variance, count)
    np.testing.assert_allclose(found, [float(part) for part in expected], rtol=1e-10, atol=1e-12)


@pytest.mark.parametrize("law", [LAW, NoiseLaw.normal()])
@pytest.mark.parametrize("v", [1e-8, 0.02, 30.0])
def test_the_interval_is_that_of_the_noise_law(law, v):
    found = quantile(v, law_numbers(law, 0.04, 0.9))
    parts = (torch.tensor(part, dtype=torch.float64) for part in (0.95, v, 0.04))
    assert found == pytest.approx(float(law.quantile(*parts)), rel=1e-9)


def test_the_first_value_is_predicted_as_the_model_predicts_it(model):
    for gap in (0.0, 0.3, 7.0):
        t = float(model.train_X.max()) + gap
        posterior, found = model.posterior(torch.tensor([t], dtype=torch.float64)), model.stream().update(t, 0.2)
        half = model.noise_law.quantile(torch.tensor(0.975).double(), posterior.variance, model.noise.detach())
        assert found.expected == pytest.approx(float(posterior.mean), abs=1e-9)
        assert found.upper - found.expected == pytest.approx(float(half), rel=1e-6)


def test_values_are_taken_in_as_pseudo_data(model):
    """After one value the stream predicts as a model does that has the value as one more row of that weight."""
    stream, last = model.stream(), float(model.train_X.max())
    law = law_numbers(stream.law, model.noise.item(), 0.95)
    posterior = model.posterior(torch.tensor([last + 0.2], dtype=torch.float64))
    mean, e = float(model.mean(model.train_X[:1])), 0.4
    density, probability, precision, slope, _, _ = judge(
        e - mean, float(posterior.mean) - mean, float(posterior.variance), law
    )
    assert math.isfinite(density)
    found = stream.update(last + 0.2, e)
    assert found.probability == pytest.approx(probability, abs=1e-9)
    process = model.process()
    noise = model.noise.item()
    z = np.append(process.z, e - mean - noise * slope)
    w = np.append(process.w, precision / noise)
    longer = SeriesProcess(
        process.prior_mean, process.kernel, process.harmonics, np.append(process.times, last + 0.2), z, w
    )
    ahead = torch.tensor([[last + 0.5]], dtype=torch.float64)
    assert stream.update(last + 0.5, math.nan).expected == pytest.approx(float(longer.mean(ahead)), abs=1e-9)


def test_outliers_are_flagged_and_move_nothing(model):
    first, second = model.stream(), model.stream()
    last = float(model.train_X.max())
    flagged = first.update(last + 0.1, 1e6)
    second.update(last + 0.1, math.nan)
    assert flagged.outlier
    assert flagged.probability > 0.99
    assert first.update(last + 0.2, 0.0).expected == pytest.approx(second.update(last + 0.2, 0.0).expected, abs=1e-6)


def test_intervals_cover_and_bad_values_are_found():
    t, y = make_series(3000, seed=3)
    random = np.random.default_rng(5)
    bad = random.random(len(y)) < 0.1
    y[bad] += random.choice([-1.0, 1.0], bad.sum()) * random.uniform(1.0, 6.0, bad.sum())
    model = StateSpaceRCGP(torch.from_numpy(t[:1000]), torch.from_numpy(y[:1000]))
    fit_robust(model)
    found, new, wrong = model.stream().update_many(t[1000:], y[1000:]), y[1000:], bad[1000:]
    inside = (new >= found.lower) & (new <= found.upper)
    assert 0.92 < inside[~wrong].mean() < 0.97
    assert (found.outlier & wrong).sum() > 0.95 * max(wrong.sum(), found.outlier.sum())
    assert not found.shift.any()


@pytest.mark.parametrize("size", [-4.0, 3.0, 50.0, 1e9])
def test_a_level_shift_is_followed_within_ten_values_and_kept(model, size):
    last = float(model.train_X.max())
    t = last + 0.1 * np.arange(1, 201)
    y = np.sin(t / 2.0) + 0.1 * np.random.default_rng(1).standard_normal(200)
    y[80:] += size
    found = model.stream().update_many(t, y)
    (when,) = np.flatnonzero(found.shift)
    assert 80 <= when < 90
    assert not found.outlier[when:].any()
    inside = (y >= found.lower) & (y <= found.upper)
    assert inside[91:].mean() > 0.9


@pytest.mark.parametrize("size", [5.0, 100.0, 1e6])
@pytest.mark.parametrize("share", [0.0, 0.05])
def test_a_level_that_returns_is_followed_back(size, share):
    t, y = make_series(1600, seed=4)
    random = np.random.default_rng(6)
    bad = random.random(len(y)) < share
    y[bad] += random.choice([-1.0, 1.0], bad.sum()) * random.uniform(1.0, 6.0, bad.sum())
    y[1000:1300] += size
    model = StateSpaceRCGP(torch.from_numpy(t[:700]), torch.from_numpy(y[:700]))
    fit_robust(model)
    found = model.stream().update_many(t[700:], y[700:])
    settled = np.r_[310:600, 610:900]
    assert (found.outlier & ~bad[700:])[settled].mean() < 0.01
    if share:
        assert found.outlier[settled][bad[700:][settled]].mean() > 0.9


def test_two_sentinels_in_a_row_do_not_end_a_stream(model):
    t = float(model.train_X.max()) + 0.1 * np.arange(1, 101)
    y = np.sin(t / 2.0) + 0.1 * np.random.default_rng(2).standard_normal(100)
    y[50] = y[51] = -999.0
    found = model.stream().update_many(t, y)
    assert not found.outlier[60:].any()
    assert np.abs(found.expected - y)[60:].max() < 1.0


def test_errors_of_one_size_are_no_level_shift_unless_they_persist():
    t, y = make_series(1500, seed=7)
    random = np.random.default_rng(8)
    bad = random.random(len(y)) < 0.1
    y[bad] = -4.0
    model = StateSpaceRCGP(torch.from_numpy(t[:700]), torch.from_numpy(y[:700]))
    fit_robust(model)
    found = model.stream().update_many(t[700:], y[700:])
    assert found.shift.sum() <= 2
    assert (found.outlier & ~bad[700:]).mean() < 0.01


def test_a_single_value_is_no_level_shift_however_far_it_is(model):
    last = float(model.train_X.max())
    for size in (10.0, 1e6, 1e99, 1e300):
        stream = model.stream()
        assert stream.update(last + 0.1, size).outlier
        found = stream.update_many(last + 0.2 + 0.1 * np.arange(5), np.sin((last + 0.2 + 0.1 * np.arange(5)) / 2.0))
        assert not found.shift.any()
        assert not found.outlier.any()


def test_an_error_before_a_level_shift_does_not_hide_it(model):
    t = float(model.train_X.max()) + 0.1 * np.arange(1, 101)
    y = np.sin(t / 2.0) + 0.1 * np.random.default_rng(2).standard_normal(100)
    y[50:] += 4.0
    y[49] -= 6.0
    assert 50 < np.flatnonzero(model.stream().update_many(t, y).shift)[0] < 60


def test_errors_after_a_level_shift_do_not_start_the_test_again(model):
    t = float(model.train_X.max()) + 0.1 * np.arange(1, 101)
    y = np.sin(t / 2.0) + 0.1 * np.random.default_rng(2).standard_normal(100)
    y[50:] += 4.0
    plain = int(np.flatnonzero(model.stream().update_many(t, y).shift)[0])
    y[52] -= 9.0  # after two values at the new level
    assert np.flatnonzero(model.stream().update_many(t, y).shift)[0] == plain + 1


def test_two_equal_errors_before_a_level_shift_do_not_hide_it(model):
    t = float(model.train_X.max()) + 0.1 * np.arange(1, 101)
    y = np.sin(t / 2.0) + 0.1 * np.random.default_rng(2).standard_normal(100)
    y[50:] += 4.0
    plain = int(np.flatnonzero(model.stream().update_many(t, y).shift)[0])
    y[48:50] = -99.0
    assert np.flatnonzero(model.stream().update_many(t, y).shift)[0] <= plain + 1


def test_a_model_of_clean_values_still_flags_outliers():
    t, y = make_series(200)
    model = StateSpaceRCGP(torch.from_numpy(t), torch.from_numpy(y))
    fit_robust(model)
    assert model.noise_law.is_normal
    stream = model.stream()
    assert stream.law.outlier_share == pytest.approx(1.0 / 213.0)
    assert stream.update(t[-1] + 0.1, 8.0).outlier


def test_stuck_values_of_a_stream_are_flagged():
    t, y = make_series(400)
    stream = RCGPSeries(stuck=True).fit(t[:300], y[:300]).stream()
    values = y[300:].copy()
    values[20:40] = values[20]
    found = stream.update_many(t[300:], values)
    assert found.outlier[24:40].all()
    assert not found.outlier[:21].any()
    assert not found.outlier[42:].any()


def test_a_saved_stream_goes_on_to_the_bit(model, tmp_path):
    stream, last = model.stream(coverage=0.9), float(model.train_X.max())
    values = np.random.default_rng(0).standard_normal(60)
    values[30:] += 5.0  # in the middle of a level shift
    for i in range(32):
        stream.update(last + 0.1 * (i + 1), values[i])
    stream.save(tmp_path / "stream.rcgp")
    others = [
        Stream.load(tmp_path / "stream.rcgp"),
        stream.copy(),
        copy.deepcopy(stream),
        pickle.loads(pickle.dumps(stream)),
    ]
    for i in range(32, 60):
        expected = stream.update(last + 0.1 * (i + 1), values[i])
        for other in others:
            found = other.update(last + 0.1 * (i + 1), values[i])
            assert struct.pack("4d2?", *found) == struct.pack("4d2?", *expected)


def test_files_that_are_no_streams_are_refused(model, tmp_path):
    with pytest.raises(SavedModelError, match=r"missing\.rcgp"):
        Stream.load(tmp_path / "missing.rcgp")
    t, y = make_series(60)
    RCGPSeries().fit(t, y).save(tmp_path / "series.rcgp")
    with pytest.raises(SavedModelError, match="'RCGPSeries', not a Stream"):
        Stream.load(tmp_path / "series.rcgp")
    model.stream().save(tmp_path / "stream.rcgp")
    with pytest.raises(SavedModelError, match=r"holds a Stream: read it with rcgp\.series\.Stream\.load"):
        load(tmp_path / "stream.rcgp")


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("_window", torch.zeros(2, dtype=torch.float64)),
        ("_run", torch.zeros(0, dtype=torch.float64)),
        ("_sum", torch.zeros(2, dtype=torch.float32)),
        ("_law", torch.ones(3, dtype=torch.float64)),
        ("_kinds", torch.tensor([10**9])),
        ("_ends", torch.tensor([5])),
        ("_thetas", torch.zeros(0, dtype=torch.float64)),
        ("_coefficients", torch.zeros(7, dtype=torch.float64)),
    ],
)
def test_a_stream_whose_parts_do_not_fit_is_refused(model, tmp_path, name, value):
    """The compiled step does not check the lengths of its arguments."""
    model.stream().save(tmp_path / "stream.rcgp")
    description, tensors = read_archive(tmp_path / "stream.rcgp")
    write_archive(tmp_path / "stream.rcgp", description, {**tensors, name: value})
    with pytest.raises(SavedModelError, match=r"stream\.rcgp"):
        Stream.load(tmp_path / "stream.rcgp")


def test_bad_input_is_refused_and_changes_nothing(model):
    stream, last = model.stream(), float(model.train_X.max())
    for t, y, message in [
        (last - 1.0, 0.0, "must not decrease"),
        (math.nan, 0.0, "finite time"),
        (last + 1.0, math.inf, "must be a number"),
        *((last + 1.0, y, "must be a number") for y in ([1.0], "1.0", True, np.True_, 1j, [[1.0], []], {})),
    ]:
        with pytest.raises(ValueError, match=message):
            stream.update(t, y)
    with pytest.raises(ValueError, match="must not decrease"):
        stream.update_many([last + 2.0, last + 1.0], [0.0, 0.0])
    with pytest.raises(ValueError, match="one length"):
        stream.update_many([last + 1.0], [0.0, 0.0])
    assert stream.update(last + 0.1, 0.3) == model.stream().update(last + 0.1, 0.3)
    with pytest.raises(ValueError, match="coverage"):
        model.stream(coverage=1.0)


def test_missing_values_of_a_stream_are_those_of_a_fit(model):
    pandas = pytest.importorskip("pandas")
    t = float(model.train_X.max()) + 0.1
    expected = model.stream().update(t, math.nan)
    for missing in (None, pandas.NA, np.float32("nan")):
        assert str(model.stream().update(t, missing)) == str(expected)
        assert model.stream().update_many([t], [missing]).expected == expected.expected
    for one in (1, np.float32(1.0), np.int64(1), np.array(1.0), torch.tensor(1.0)):
        assert model.stream().update(t, one) == model.stream().update(t, 1.0)


def test_a_stream_needs_a_constant_mean():
    t, y = make_series(60)
    model = StateSpaceRCGP(torch.from_numpy(t), torch.from_numpy(y), mean="linear")
    with pytest.raises(ValueError, match="a trend belongs in the kernel"):
        model.stream()


def recent(model, n=150, noise=0.3):
    """Values after those of the model, rougher and with outliers, and a few more."""
    random = np.random.default_rng(9)
    t = float(model.train_X.max()) + np.sort(random.uniform(0.0, n / 10.0, n))
    y = 4.0 + np.sin(2.0 * t) + noise * random.standard_normal(n)
    y[[30, 70]] -= 9.0
    y[20] = np.nan
    return t[:-10], y[:-10], t[-10:], y[-10:]


def assert_same_answers(first, second, times, values):
    for t, y in zip(times, values, strict=True):
        assert struct.pack("4d2?", *first.update(t, y)) == struct.pack("4d2?", *second.update(t, y))


@pytest.mark.parametrize("restored", [False, True])
def test_a_refitted_stream_is_that_of_a_model_of_these_values(model, tmp_path, restored):
    t, y, new_t, new_y = recent(model)
    stream = model.stream(coverage=0.9)
    stream.update_many(t, y)
    if restored:
        stream.save(tmp_path / "stream.rcgp")
        stream = Stream.load(tmp_path / "stream.rcgp")
    order = np.random.default_rng(0).permutation(len(t))
    report = stream.refit(t[order], y[order])
    t, y = t[order], y[order]
    twin = StateSpaceRCGP(torch.from_numpy(t), torch.from_numpy(y), kernel=copy.deepcopy(model.kernel))
    assert report.hyperparameters == fit_robust(twin).hyperparameters
    assert stream.law == twin.noise_law != model.noise_law
    assert stream.last_time == t.max()
    assert_same_answers(stream, twin.stream(coverage=0.9), new_t, new_y)


@pytest.mark.filterwarnings("ignore:.*they are treated as errors:rcgp.estimator.NoiseLawWarning")
@pytest.mark.parametrize("dates", [False, True])
def test_a_refitted_stream_of_an_estimator_is_that_of_a_new_fit(tmp_path, dates):
    t, y = make_series(160)
    y[100:108] = y[100]
    if dates:
        t = np.datetime64("2025-03-01T00:00", "ns") + (t * 60e9).astype("timedelta64[ns]")
    settings = {"mean": "zero", "stuck": True, "random_state": 3, "n_restarts": 1}
    RCGPSeries(**settings).fit(t[:60], y[:60]).save(tmp_path / "series.rcgp")
    stream = load(tmp_path / "series.rcgp").stream()
    stream.update_many(t[60:130], y[60:130])
    stream.save(tmp_path / "stream.rcgp")
    stream = Stream.load(tmp_path / "stream.rcgp")
    stream.refit(t[70:140], y[70:140])  # among them some that it has not seen yet
    twin = RCGPSeries(**settings).fit(t[70:140], y[70:140]).stream()
    assert stream.last_time == twin.last_time == t[139]
    assert stream.repetition == twin.repetition
    assert_same_answers(stream, twin, t[140:], y[140:])


def test_a_fixed_noise_and_a_mean_of_ones_own_are_kept(model):
    t, y, *_ = recent(model)
    mean = gpytorch.means.ConstantMean().double()
    own = StateSpaceRCGP(model.train_X, model.train_y, noise=0.25, mean=mean)
    own.raw_noise.requires_grad_(False)
    stream = own.stream()
    report = stream.refit(t, y)
    assert report.hyperparameters["noise"] == pytest.approx([0.25])
    assert report.hyperparameters["mean.constant"] == pytest.approx([4.0], abs=0.5)
    assert mean.constant.item() == 0.0  # the caller's module is not touched


def test_a_refit_that_fails_changes_nothing(model, monkeypatch):
    t, y, new_t, new_y = recent(model)
    stream, twin = model.stream(), model.stream()
    for each in (stream, twin):
        each.update_many(t, y)
    for times, values, message in [
        (t[:-1], y[:-1], "must reach the last one of the stream"),
        ([], [], "must reach the last one of the stream"),
        (t, y[:-1], "one length"),
        (np.where(t == t[3], np.inf, t), y, "finite"),
        (t, np.where(t == t[3], np.inf, y), "must be numbers"),
        (t, np.full(len(t), np.nan), "no observation"),
    ]:
        with pytest.raises(ValueError, match=message):
            stream.refit(times, values)

    def interrupt(*_):
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        stream.refit(t, y, progress=interrupt)
    assert_same_answers(stream, twin, new_t, new_y)


def test_a_stream_of_dates_is_refitted_with_dates():
    t = np.datetime64("2025-03-01T00:00") + np.arange(60).astype("timedelta64[h]")
    y = np.sin(np.arange(60) / 4.0)
    stream = RCGPSeries(mean="zero").fit(t, y).stream()
    with pytest.raises(ValueError, match="must be dates, as in the fit"):
        stream.refit(np.arange(60.0), y)


def test_a_stream_is_refitted_with_a_series_of_pandas():
    pandas = pytest.importorskip("pandas")
    times = pandas.date_range("2025-03-01", periods=60, freq="h", tz="Europe/Berlin")
    series = pandas.Series(np.sin(np.arange(60) / 4.0), times)
    one, other = (RCGPSeries(mean="zero").fit(series[:40]).stream() for _ in range(2))
    report = one.refit(series)
    assert report.hyperparameters == other.refit(times, series.to_numpy()).hyperparameters
    (lengthscale,) = report.hyperparameters["kernel.kernels.2.base_kernel.lengthscale"]
    assert f"lengthscale  {lengthscale / 86400.0:.4g} D" in str(report)
    assert one.last_time == times[-1]
    with pytest.raises(ValueError, match="y is missing"):
        one.refit(times)
