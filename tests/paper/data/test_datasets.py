from __future__ import annotations

import shutil
import subprocess
import sys

import numpy as np
import pytest

from rcgp_paper.data import DataError, load, names, unavailable
from rcgp_paper.data.datasets import SOURCES, numbers_checksum

SHAPES = {
    "synthetic": (300, 1),
    "boston": (506, 13),
    "energy": (768, 8),
    "yacht": (308, 6),
    "kin8nm": (8192, 8),
    "protein": (45730, 9),
    "flash_crash": (202, 1),
    "flash_crash_two_days": (800, 1),
    "well_log": (4050, 1),
    "mcycle": (133, 1),
    "stackloss": (21, 3),
    "stars_cyg": (47, 1),
    "telef": (24, 1),
}


def test_every_offered_data_set_has_a_shape_to_check():
    assert set(names()) == set(SHAPES)


@pytest.mark.parametrize("name", sorted(SHAPES))
def test_a_data_set_has_its_shape_names_and_finite_numbers(name, data_home):
    data = load(name, home=data_home)
    assert data.name == name
    assert data.X.shape == SHAPES[name]
    assert data.y.shape == SHAPES[name][:1]
    assert len(data.feature_names) == SHAPES[name][1]
    assert data.X.dtype == data.y.dtype == np.float64
    assert np.isfinite(data.X).all()
    assert np.isfinite(data.y).all()
    assert (data.truth is None) == (name != "synthetic")


def test_the_first_row_of_boston_is_that_of_the_file(data_home):
    data = load("boston", home=data_home)
    assert data.feature_names[0] == "CRIM"
    assert data.X[0].tolist() == [0.00632, 18, 2.31, 0, 0.538, 6.575, 65.2, 4.09, 1, 296, 15.3, 396.9, 4.98]
    assert data.y[0] == 24
    assert SOURCES["boston"].sha256 in data.source


def test_the_variant_of_boston_differs_in_191_cells_and_is_not_offered(data_home):
    right, wrong = load("boston", home=data_home), load("boston_readfwf", home=data_home)
    assert (right.X != wrong.X).sum() == 191
    assert "boston_readfwf" not in names()


def test_the_flash_crash_has_minutes_as_inputs(data_home):
    data = load("flash_crash", home=data_home)
    assert data.feature_names == ("minute_of_day",)
    assert data.X[:2, 0].tolist() == [571, 573]
    assert set(np.argsort(np.diff(data.y))[:2]) <= {107, 108, 109}  # the sell-off just before rows 109 and 110


def test_the_minutes_of_two_days_start_again_on_the_second(data_home):
    data = load("flash_crash_two_days", home=data_home)
    assert data.feature_names == ("minute_of_day",)
    (morning,) = np.flatnonzero(np.diff(data.X[:, 0]) < 0) + 1
    assert (data.X[morning - 1, 0], data.X[morning, 0]) == (974, 570)  # 16:14 and 09:30
    lowest = int(data.y[morning:].argmin())
    assert data.X[morning + lowest, 0] == 789  # 13:09 on the second day


def test_the_folder_can_be_named_by_the_environment(data_home, monkeypatch, tmp_path):
    shutil.copy(data_home / "telef.csv", tmp_path)
    monkeypatch.setenv("RCGP_DATA_HOME", str(tmp_path))
    assert load("telef").X.shape == (24, 1)
    with pytest.raises(DataError, match=r"put yacht\.csv into '.*'"):
        load("yacht")


def test_a_folder_given_as_home_wins_over_the_environment(data_home, monkeypatch, tmp_path):
    monkeypatch.setenv("RCGP_DATA_HOME", str(tmp_path / "nowhere"))
    assert load("telef", home=data_home).X.shape == (24, 1)


@pytest.mark.usefixtures("no_network")
def test_a_missing_file_is_named_with_its_place():
    with pytest.raises(DataError, match=r"put yacht\.csv into the folder named by RCGP_DATA_HOME$"):
        load("yacht")


@pytest.mark.usefixtures("no_network")
def test_without_a_network_the_error_names_the_file():
    with pytest.raises(DataError, match=r"OpenML data 531 \(.*no network.*\): put boston\.csv into the folder"):
        load("boston")


@pytest.mark.usefixtures("no_network")
def test_unavailable_data_are_reported_with_a_remedy(data_home, tmp_path):
    shutil.copy(data_home / "telef.csv", tmp_path)
    (tmp_path / "mcycle.csv").write_text("times,accel\n1,2\n")
    wanted = ["yacht", "synthetic", "telef", "boston", "yacht", "mcycle"]
    reasons = unavailable(iter(wanted), home=tmp_path)
    assert list(reasons) == ["yacht", "boston", "mcycle"]
    for name, reason in reasons.items():
        with pytest.raises(DataError) as raised:
            load(name, home=tmp_path)
        assert reason == str(raised.value)
    with pytest.raises(ValueError, match="there is no data set 'moon'"):
        unavailable(["moon"])


def test_a_folder_that_does_not_exist_raises(monkeypatch, tmp_path):
    with pytest.raises(DataError, match=r"home names '.*nowhere', which is not a folder"):
        load("boston", home=tmp_path / "nowhere")
    monkeypatch.setenv("RCGP_DATA_HOME", str(tmp_path / "nowhere"))
    with pytest.raises(DataError, match=r"RCGP_DATA_HOME names '.*nowhere', which is not a folder"):
        load("boston")


def test_a_file_with_one_changed_digit_raises_with_both_checksums(data_home, tmp_path):
    content = (data_home / "telef.csv").read_bytes().replace(b"0.44", b"0.45", 1)
    (tmp_path / "telef.csv").write_bytes(content)
    with pytest.raises(
        DataError, match=rf"telef\.csv' has SHA-256 [0-9a-f]{{64}} instead of {SOURCES['telef'].sha256}"
    ):
        load("telef", home=tmp_path)


def test_a_truncated_file_raises(data_home, tmp_path):
    (tmp_path / "telef.csv").write_bytes((data_home / "telef.csv").read_bytes()[:-9])
    with pytest.raises(DataError, match="SHA-256"):
        load("telef", home=tmp_path)


def test_a_folder_in_place_of_a_file_raises_a_data_error(tmp_path):
    (tmp_path / "telef.csv").mkdir()
    with pytest.raises(DataError, match="cannot be read"):
        load("telef", home=tmp_path)


def test_an_unknown_name_raises_with_the_known_ones():
    with pytest.raises(ValueError, match=r"no data set 'bostn': name one of synthetic, boston, "):
        load("bostn")


class TestOpenML:
    """Data of OpenML are used only if they equal the file."""

    @pytest.fixture
    def serve(self, monkeypatch):
        """Makes fetch_openml return these columns, and keeps its arguments."""

        def serve(columns, categories=None):
            def fetch_openml(**arguments):
                requested.update(arguments)
                return {
                    "data": np.column_stack(list(columns.values())),
                    "feature_names": list(columns),
                    "categories": categories or {},
                }

            requested = {}
            monkeypatch.delenv("RCGP_DATA_HOME", raising=False)
            monkeypatch.setattr("sklearn.datasets.fetch_openml", fetch_openml)
            return requested

        return serve

    @pytest.fixture
    def boston(self, data_home):
        """The right columns, in another order."""
        data = load("boston", home=data_home)
        return {"MEDV": data.y, **{name: data.X[:, column] for column, name in enumerate(data.feature_names)}}

    def test_the_same_numbers_make_the_same_data_set(self, serve, boston, data_home):
        requested = serve(boston)
        fetched, read = load("boston"), load("boston", home=data_home)
        assert requested["data_id"] == 531
        assert np.array_equal(fetched.X, read.X)
        assert np.array_equal(fetched.y, read.y)
        assert fetched.feature_names == read.feature_names
        assert fetched.source == "OpenML data set 531"

    def test_categories_come_as_codes_and_are_decoded(self, serve, boston, data_home):
        values = sorted(set(boston["RAD"]), reverse=True)
        codes = np.array([float(values.index(value)) for value in boston["RAD"]])
        serve({**boston, "RAD": codes}, {"RAD": [f"{value:g}" for value in values]})
        assert np.array_equal(load("boston").X, load("boston", home=data_home).X)

    def test_a_column_too_many_is_left_out(self, serve, data_home):
        data = load("energy", home=data_home)
        columns = {name: data.X[:, column] for column, name in enumerate(data.feature_names)}
        serve({**columns, "heating_load": data.y, "cooling_load": data.y + 1})
        assert np.array_equal(load("energy").y, data.y)

    def test_another_row_order_raises(self, serve, boston):
        serve({name: column[::-1] for name, column in boston.items()})
        with pytest.raises(DataError, match=r"531 does not hold the numbers of data set 'boston': put boston\.csv"):
            load("boston")

    def test_a_missing_column_raises(self, serve, boston):
        serve({name: column for name, column in boston.items() if name != "TAX"})
        with pytest.raises(DataError, match="does not hold the numbers"):
            load("boston")

    def test_the_file_is_preferred(self, data_home, monkeypatch):
        monkeypatch.setattr("sklearn.datasets.fetch_openml", None)
        assert load("kin8nm", home=data_home).X.shape == (8192, 8)


def test_the_checksum_of_numbers_is_the_same_for_minus_zero():
    zeros = np.zeros((2, 2))
    assert numbers_checksum(zeros) == numbers_checksum(-zeros) != numbers_checksum(zeros + 1e-300)


class TestSynthetic:
    def test_it_is_equispaced_with_the_noise_of_the_authors(self):
        data = load("synthetic")
        random = np.random.RandomState(321)
        random.standard_normal(300)  # spent on f
        assert np.array_equal(data.X[:, 0], np.linspace(0, 20, 300))
        np.testing.assert_allclose(data.y - data.truth, random.normal(scale=0.1, size=300), atol=1e-13)

    def test_its_truth_is_the_draw_of_numpy_up_to_the_signs_of_singular_vectors(self):
        data = load("synthetic")
        K = np.exp(-0.5 * (data.X - data.X.T) ** 2)
        drawn = np.random.RandomState(321).multivariate_normal(np.zeros(300), K)
        vectors = np.linalg.eigh(K)[1][:, ::-1]
        np.testing.assert_allclose(np.abs(vectors.T @ data.truth)[:41], np.abs(vectors.T @ drawn)[:41], atol=1e-6)
        np.testing.assert_allclose((vectors.T @ data.truth)[41:], 0, atol=1e-6)

    def test_the_global_generator_is_left_alone(self):
        before = np.random.get_state()[1].copy()
        load("synthetic")
        assert np.array_equal(np.random.get_state()[1], before)


def test_the_room_needs_neither_torch_nor_pandas_nor_sklearn():
    code = (
        "import sys, types, importlib.util as u\n"
        "path = u.find_spec('rcgp').submodule_search_locations\n"
        "package = types.ModuleType('rcgp'); package.__path__ = list(path); sys.modules['rcgp'] = package\n"
        "import rcgp_paper.data; rcgp_paper.data.prepare('synthetic', 'uniform')\n"
        "sys.exit(sum(name in sys.modules for name in ('torch', 'pandas', 'sklearn', 'gpytorch', 'rcgp.core')))"
    )
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0
