"""Noise that varies in time, against its formula in plain loops; and what follows it: the fit, forecasts, streams."""

import copy
import math
import struct
from dataclasses import replace
from functools import partial

import numpy as np
import pytest
import torch

from rcgp import RCGP, RCGPSeries, SavedModelError, StateSpaceRCGP, fit_robust, load
from rcgp.estimator import NoiseLawWarning
from rcgp.models.local_noise import choose_average
from rcgp.report.series import series_html, series_rows
from rcgp.report.text import number
from rcgp.saving import read_archive, write_archive
from rcgp.series import Stream
from rcgp.series.local_noise import PRIOR_ROWS, NoiseInTime, average_in_time, timescales
from rcgp.series.process import SeriesProcess
from rcgp.series.step import judge, law_numbers, quantile


def make_local(timescale=1.5, n=30, seed=0):
    random = np.random.default_rng(seed)
    times = np.sort(random.uniform(0.0, 12.0, n))
    times[7] = times[8] = times[9]
    squares, counts = random.exponential(1.0, n), random.uniform(0.0, 1.0, n)
    return NoiseInTime(*map(torch.from_numpy, (times, squares, counts)), timescale)


def by_hand(local, t, without=None):
    above = below = PRIOR_ROWS
    for j, (time, square, count) in enumerate(zip(local.times, local.squares, local.counts, strict=True)):
        if j != without:
            near = math.exp(-abs(t - float(time)) / local.timescale)
            above, below = above + near * float(square), below + near * float(count)
    return above / below


@pytest.mark.parametrize("timescale", [1e-3, 1.5, 1e9])
def test_the_factor_is_the_moving_average(timescale):
    local = make_local(timescale)
    new = torch.from_numpy(np.random.default_rng(1).uniform(-5.0, 20.0, (2, 3, 1)))
    new[0, 0, 0] = local.times[8]
    expected = [by_hand(local, t) for t in new.reshape(-1).tolist()]
    assert local(new).shape == (2, 3)
    np.testing.assert_allclose(local(new).reshape(-1), expected, rtol=1e-12)
    np.testing.assert_allclose(local(new.float()).reshape(-1), expected, rtol=1e-4)


@pytest.mark.parametrize("timescale", [1e-3, 1.5, 1e9])
def test_a_row_is_left_out_of_its_own_average(timescale):
    local = make_local(timescale)
    expected = [by_hand(local, t, without=i) for i, t in enumerate(local.times.tolist())]
    np.testing.assert_allclose(local.at_rows(), expected, rtol=1e-12)


def test_far_from_all_rows_and_of_equal_noise_the_factor_is_one():
    local = make_local()
    assert local(torch.tensor([[-1e300], [1e5]], dtype=torch.float64)).tolist() == [1.0, 1.0]
    same = replace(local, squares=local.counts)
    torch.testing.assert_close(same(same.times.unsqueeze(-1)), torch.ones(30, dtype=torch.float64))
    one = NoiseInTime(*(torch.ones(1, dtype=torch.float64) for _ in range(3)), 1.0)
    assert one.at_rows().tolist() == [1.0]


def test_timescales_go_from_five_gaps_to_the_span():
    assert timescales(np.arange(101.0)) == [5.0, 20.0, 80.0]
    assert timescales(np.repeat(np.arange(11.0), 3)) == [5.0]
    assert timescales(np.zeros(3)) == timescales(np.zeros(1)) == [1.0]


def test_the_timescale_has_the_largest_expected_density_of_the_noise():
    """With prior rows at the harmonic mean m of the local variances τ, found by iteration."""
    random = np.random.default_rng(2)
    times, loud = np.arange(400.0), np.repeat([1.0, 9.0, 1.0, 9.0], 100)
    order = torch.from_numpy(random.permutation(400))
    squares, counts = (torch.empty(400, dtype=torch.float64) for _ in range(2))
    c = torch.from_numpy(random.uniform(0.5, 1.0, 400))
    t = c * torch.from_numpy(loud * random.standard_normal(400) ** 2)
    squares[order], counts[order] = t, c
    values = []
    for timescale in timescales(times):
        m = 1.0
        for _ in range(30):
            candidate = NoiseInTime(torch.from_numpy(times), t / m, c, timescale)
            tau = m * candidate.at_rows()
            m = float(c.sum() / (c / tau).sum())
        values.append(float(-0.5 * (c * tau.log() + t / tau).sum()))
    averages = [partial(average_in_time, order, times, timescale) for timescale in timescales(times)]
    assert choose_average(averages, squares, counts, free=True) == values.index(max(values)) == 0
    local, h = averages[0](squares, counts)
    torch.testing.assert_close(h[order], local.at_rows())


def test_equal_noise_is_not_local():
    random = np.random.default_rng(3)
    squares, ones = torch.from_numpy(random.standard_normal(400) ** 2), torch.ones(400, dtype=torch.float64)
    averages = [partial(average_in_time, torch.arange(400), np.arange(400.0), tau) for tau in (5.0, 20.0, 80.0)]
    assert choose_average(averages, 7.0 * squares, ones, free=True) is None
    # A fixed level that is wrong everywhere is no reason for local noise.
    assert choose_average(averages, 0.1 * squares, ones, free=False) is None


# The fit --------------------------------------------------------------------------------------------------------------


def make_loud(n=400, seed=0):
    """Times, values and standard deviations of noise that is loud in the second half."""
    random = np.random.default_rng(seed)
    t = np.sort(random.uniform(0.0, n / 10.0, n))
    std = np.where(t < n / 20.0, 0.05, 0.4)
    y = np.sin(t / 3.0) + std * random.standard_normal(n)
    y[[n // 10, 5 * n // 8]] += 8.0
    return t, y, std


@pytest.fixture(scope="module")
def loud():
    t, y, _ = make_loud()
    model = StateSpaceRCGP(torch.from_numpy(t), torch.from_numpy(y))
    assert fit_robust(model).local_noise
    return model


@pytest.fixture(scope="module")
def series():
    t, y, _ = make_loud()
    y[20] = np.nan
    return RCGPSeries().fit(t, y)


class DenseSolver(StateSpaceRCGP):
    latent_leave_one_out = RCGP.latent_leave_one_out
    signal_evidence = RCGP.signal_evidence


def test_the_fit_is_that_of_the_dense_solver():
    t, y, _ = make_loud(150)
    ours, theirs = (cls(torch.from_numpy(t), torch.from_numpy(y)) for cls in (StateSpaceRCGP, DenseSolver))
    reports = fit_robust(ours), fit_robust(theirs)
    assert reports[0].local_noise
    assert ours.local_noise.timescale == theirs.local_noise.timescale
    for name, value in reports[0].hyperparameters.items():
        np.testing.assert_allclose(value, reports[1].hyperparameters[name], rtol=1e-4)
    torch.testing.assert_close(ours.weights(), theirs.weights(), rtol=1e-4, atol=1e-6)


def test_intervals_and_flags_follow_the_noise(loud):
    t, _, std = make_loud()
    x = torch.from_numpy(t)
    found = (loud.noise_law.variance * loud.noise_scale(x.unsqueeze(-1))).sqrt().numpy()
    for half in (std == 0.05, std == 0.4):
        assert 0.6 * std[half].mean() < np.median(found[half]) < 1.6 * std[half].mean()
    latent, observed = loud.posterior(x), loud.posterior(x, observation_noise=True)
    np.testing.assert_allclose((observed.variance - latent.variance).sqrt(), found, rtol=1e-9)
    assert np.flatnonzero(loud.outlier_probability() > 0.5).tolist() == [40, 250]


def test_the_order_of_rows_does_not_matter(loud):
    t, y, _ = make_loud()
    order = np.random.default_rng(0).permutation(len(t))
    model = StateSpaceRCGP(torch.from_numpy(t[order]), torch.from_numpy(y[order]))
    fit_robust(model)
    torch.testing.assert_close(model.weights(), loud.weights()[order], rtol=1e-6, atol=1e-9)


def test_without_local_noise_and_with_equal_noise_there_is_one_level(series):
    t, y, _ = make_loud()
    with pytest.warns(NoiseLawWarning, match="heavy-tailed noise"):  # what the loud parts look like
        same = RCGPSeries(local_noise=False).fit(t, y)
    assert same.models_[0].local_noise is None
    assert np.ptp(same.noise_std(t)) == 0.0 < np.ptp(series.noise_std(t))
    assert not same.stream().settings.local_noise
    with pytest.raises(TypeError, match="local_noise must be True or False"):
        RCGPSeries(local_noise=1).fit(t, y)


def test_a_forecast_starts_at_the_last_level_and_goes_to_the_global_one(series):
    ahead = series.forecast(4000)
    noise = series.noise_std(ahead.times)
    assert noise[0] == pytest.approx(series.noise_std([series.last_])[0], rel=0.05)
    assert (np.diff(noise) <= 0.0).all()
    law, variance = series.noise_law_, series.noise_variance_
    assert noise[-1] == pytest.approx(math.sqrt(law.variance * variance), rel=1e-6)
    assert np.ptp(series.predict_interval([2.0, 38.0]), axis=0)[1] > 3.0 * np.ptp(series.predict_interval([2.0]))


def test_a_saved_model_has_the_same_noise_to_the_bit(series, tmp_path):
    series.save(tmp_path / "series.rcgp")
    other, new = load(tmp_path / "series.rcgp"), np.linspace(-5.0, 60.0, 40)
    assert np.array_equal(series.noise_std(new), other.noise_std(new))
    assert np.array_equal(series.predict_interval(new), other.predict_interval(new))
    assert other.stream().update(40.5, 0.3) == series.stream().update(40.5, 0.3)


@pytest.mark.parametrize(
    "spoil",
    [
        lambda d, t: d["outputs"][0].update(local_timescale=-1.0),
        lambda d, t: d["outputs"][0].update(local_timescale="nan"),
        lambda d, t: t.pop("outputs.0.local.counts"),
        lambda d, t: t["outputs.0.local.squares"].fill_(torch.nan),
        lambda d, t: t["outputs.0.local.counts"].fill_(-1.0),
        lambda d, t: t["outputs.0.local.times"].neg_(),
        lambda d, t: t.update({"outputs.0.local.times": torch.zeros(0, dtype=torch.float64)}),
    ],
)
def test_nonsense_about_the_noise_is_a_clear_error(series, tmp_path, spoil):
    path = tmp_path / "series.rcgp"
    series.save(path)
    description, tensors = read_archive(path)
    spoil(description, tensors)
    write_archive(path, description, tensors)
    with pytest.raises(SavedModelError, match=r"series\.rcgp"):
        load(path)


def test_the_page_follows_the_noise(series):
    t, y, _ = make_loud()
    y[20] = np.nan
    rows = series_rows(series, t, y, range(len(y)))
    place = np.flatnonzero(~np.isnan(y))
    variance = np.minimum(series.noise_std(t), series.loo_std_)[place] ** 2
    np.testing.assert_allclose(rows.noise, variance / series.noise_law_.variance)
    html = series_html(series, t, y, target="level")
    low, high = (number(end(series.noise_std(t[place]))) for end in (np.min, np.max))
    assert f"The noise varies: its standard deviation is {low} to {high}" in html


# The stream -----------------------------------------------------------------------------------------------------------


def test_a_stream_goes_on_from_the_level_of_the_model(loud):
    """The first interval is the model's; the second has the squared noise of the first value in its average."""
    stream, last, n = loud.stream(), float(loud.train_X.max()), len(loud.train_y)
    law, noise, mean = loud.noise_law, loud.noise.item(), float(loud.mean(loud.train_X[:1]))

    def interval(found, variance, h):
        half = law.quantile(*(torch.tensor(part).double() for part in (0.975, variance, noise * h)))
        assert found.upper - found.expected == pytest.approx(float(half), rel=1e-6)

    at = torch.tensor([[last + 0.2]], dtype=torch.float64)
    posterior, h = loud.posterior(at), float(loud.local_noise(at))
    assert h > 1.3
    found = stream.update(last + 0.2, 0.4)
    interval(found, float(posterior.variance), h)
    e, numbers = 0.4 - mean, law_numbers(law, noise * h, 0.95)
    _, _, precision, slope, squares, count = judge(e, float(posterior.mean) - mean, float(posterior.variance), numbers)
    process = loud.process()
    z, w = np.append(process.z, e - noise * h * slope), np.append(process.w, precision / (noise * h))
    times = np.append(process.times, last + 0.2)
    longer = SeriesProcess(process.prior_mean, process.kernel, process.harmonics, times, z, w)
    grown = (torch.cat([old, torch.tensor([new]).double()]) for old, new in zip(
        (loud.local_noise.times, loud.local_noise.squares, loud.local_noise.counts),
        (last + 0.2, h * squares, count), strict=True,
    ))  # fmt: skip
    ahead = torch.tensor([[last + 0.9]], dtype=torch.float64)
    h = float(NoiseInTime(*grown, loud.local_noise.timescale)(ahead))
    interval(stream.update(last + 0.9, math.nan), float(longer.variance(ahead)), h)
    assert len(times) == n + 1


def test_intervals_of_a_stream_follow_quiet_and_loud_stretches(loud):
    random, last = np.random.default_rng(7), float(loud.train_X.max())
    t = last + 0.1 * np.arange(1, 1201)
    std = np.where(np.arange(1200) // 300 % 2, 0.4, 0.05)
    y = np.sin(t / 3.0) + std * random.standard_normal(1200)
    found = loud.stream().update_many(t, y)
    width, settled = found.upper - found.lower, np.arange(1200) % 300 >= 100
    assert width[settled & (std == 0.4)].mean() > 2.5 * width[settled & (std == 0.05)].mean()
    inside = (y >= found.lower) & (y <= found.upper)
    assert 0.92 < inside.mean() < 0.98
    assert found.outlier.mean() < 0.01


def test_a_saved_stream_has_the_same_noise_to_the_bit(loud, tmp_path):
    stream, last = loud.stream(), float(loud.train_X.max())
    values = np.random.default_rng(0).standard_normal(40)
    for i in range(20):
        stream.update(last + 0.1 * (i + 1), values[i])
    stream.save(tmp_path / "stream.rcgp")
    others = Stream.load(tmp_path / "stream.rcgp"), stream.copy(), copy.deepcopy(stream)
    for i in range(20, 40):
        expected = stream.update(last + 0.1 * (i + 1), values[i])
        for other in others:
            assert struct.pack("4d2?", *other.update(last + 0.1 * (i + 1), values[i])) == struct.pack("4d2?", *expected)


@pytest.mark.parametrize("ratio", [1e-3, 1.0, 24.9, 25.1, 1e3])
def test_the_mass_of_outliers_is_that_of_the_law(loud, ratio):
    law = replace(loud.noise_law, width=ratio * 4.0 * math.sqrt(2.0))
    expected = math.log(1.0 - float(torch.special.erfcx(torch.tensor(ratio, dtype=torch.float64))))
    assert law_numbers(law, 1.0, 0.95)[2] == pytest.approx(expected, rel=1e-9, abs=1e-12)
    assert math.isfinite(quantile(0.0, law_numbers(law, 1.0, 0.95)))
