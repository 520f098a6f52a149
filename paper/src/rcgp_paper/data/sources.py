"""Where each data set comes from: a verified file, or OpenML, and what to say when neither is at hand.

A benchmark on silently different data is worse than none, so nothing is read unchecked: a file must have the SHA-256
checksum listed here, and what OpenML sends must hold the same numbers as that file. No data file is part of the
package.
"""

from __future__ import annotations

import hashlib
import http.client
import io
import os
import warnings
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from types import MappingProxyType
from typing import Any

import numpy as np
import numpy.typing as npt

__all__ = ["HOME_VARIABLE", "SOURCES", "DataError", "Source", "Table", "data_folder", "numbers_checksum", "read_source"]

#: The environment variable that names the folder of data files.
HOME_VARIABLE = "RCGP_DATA_HOME"

FloatArray = npt.NDArray[np.float64]


class DataError(RuntimeError):
    """A data set is not at hand or not what it should be; the message says which file to put where."""


@dataclass(frozen=True, eq=False)
class Table:
    """The numbers of one data set, unscaled and in the source's order.

    Attributes:
        X: ``n x d`` inputs.
        y: ``n`` targets.
        feature_names: ``d`` column names.
        source: where the numbers were found.
    """

    X: FloatArray
    y: FloatArray
    feature_names: tuple[str, ...]
    source: str


@dataclass(frozen=True)
class OpenML:
    """A data set on OpenML that holds the same rows in the same order.

    Attributes:
        data_id: its number there.
        target: the column of targets there.
        features: the columns of inputs there, in the file's order. Other columns are left out.
        numbers: SHA-256 of the file's numbers, ``n x (d + 1)`` with the target last, as little-endian float64.
    """

    data_id: int
    target: str
    features: tuple[str, ...]
    numbers: str


@dataclass(frozen=True)
class Source:
    """One data set's file, and its twin on OpenML where there is one.

    Attributes:
        file: the name of the file: comma separated, one header row, the target last.
        sha256: its checksum.
        openml: the twin, or ``None``.
    """

    file: str
    sha256: str
    openml: OpenML | None = None


#: OpenML also has data sets called yacht and protein; that their rows are these, in this order, is not established.
SOURCES: Mapping[str, Source] = MappingProxyType(
    {
        "boston": Source(
            "boston.csv",
            "6593d69fca6b934b68f21a2f6caeaee5d5dc064928e5874e627e671b0b47339f",
            OpenML(
                data_id=531,
                target="MEDV",
                features=(
                    *("CRIM", "ZN", "INDUS", "CHAS", "NOX", "RM", "AGE"),
                    *("DIS", "RAD", "TAX", "PTRATIO", "B", "LSTAT"),
                ),
                numbers="832e894115c56dd24ec63848d4a3d9bd921d268d0be1bee2a8f4ee5ea318f5f7",
            ),
        ),
        "boston_readfwf": Source(
            "boston_readfwf_variant.csv", "90ff465adc685cc4289bdaa42cdcca750ef6c7812950b1c49347b560dba7c6c3"
        ),
        "energy": Source(
            "energy.csv",
            "198951bc67814f090b5e395f028ab76ec772b50c9da48328972d508b43a9d9d6",
            OpenML(
                data_id=44960,
                target="heating_load",
                features=(
                    *("relative_compactness", "surface_area", "wall_area", "roof_area", "overall_height"),
                    *("orientation", "glazing_area", "glazing_area_distribution"),
                ),
                numbers="3563209cb65c108b72e6ee45f56f12e53c3f346f10b6b30a79ec5b7c0a0a1dd9",
            ),
        ),
        "yacht": Source("yacht.csv", "d99629f436d2d1553ed5f3f45cfdc5851a40ac5e5d669682ef637ec8dcadba8c"),
        "kin8nm": Source(
            "kin8nm.csv",
            "e74acfb93744b300a8bca76890a2a4a2f3dedf0ea6a76a7fb353da44ee91c773",
            OpenML(
                data_id=189,
                target="y",
                features=tuple(f"theta{joint}" for joint in range(1, 9)),
                numbers="7fad37438fc1228ed099177766b084fb5577bf7457d7a6460f8d0389b21681ab",
            ),
        ),
        "protein": Source("protein.csv", "ad38bfd8d43c99eb8d7e3361bb33b97fdb7ff73f9e2933608bcf5a184032939c"),
        "flash_crash": Source(
            "djia_20130423_open_2min.csv", "3dd1e3a3232a84d4225f4cc45430a204fa8c1d0e37d56f4db801e5fd0a50b319"
        ),
        "well_log": Source("well_log.csv", "a920f6030c5ed81f0f7058002bb5cd3e81c35574d00ec908a1e9761ee2df5a76"),
        "mcycle": Source("mcycle.csv", "85bef1944162073060f9dd49d1e9f0c30607a8ac17944c936d95d13eeeb19822"),
        "stackloss": Source("stackloss.csv", "b9385a2b34c4ac28a10261454e16c079150f51ed584483b0a94231aad47a0d2d"),
        "stars_cyg": Source("stars_cyg.csv", "28276596ff9a93786dc69f95a7ba968cba477eabfedbc99d2b680a30b6ca557e"),
        "telef": Source("telef.csv", "99edff4b84058d9c38dfd56633d00a10f64885de6da4cdf350ec26411fc3b6d9"),
    }
)


def data_folder(home: str | os.PathLike[str] | None) -> Path | None:
    """The folder of data files: ``home``, else the one that ``RCGP_DATA_HOME`` names, else ``None``.

    Raises:
        DataError: where a folder is named that does not exist; to look elsewhere instead would hide the mistake.
    """
    named = home if home is not None else os.environ.get(HOME_VARIABLE) or None
    if named is None:
        return None
    folder = Path(named).expanduser()
    if not folder.is_dir():
        origin = "home" if home is not None else f"the environment variable {HOME_VARIABLE}"
        raise DataError(f"{origin} names {str(folder)!r}, which is not a folder: name the one with the data files")
    return folder


def read_source(name: str, folder: Path | None) -> Table:
    """The numbers of the data set ``name``: from its file in ``folder``, else from OpenML.

    Raises:
        DataError: where neither has them, naming the file that is missing and where it belongs.
    """
    source = SOURCES[name]
    if folder is not None and (folder / source.file).exists():
        return _read_file(folder / source.file, source.sha256)
    place = f"into the folder named by {HOME_VARIABLE}" if folder is None else f"into {str(folder)!r}"
    remedy = f"put {source.file} {place}"
    if source.openml is None:
        raise DataError(f"data set {name!r} was not found: {remedy}")
    return _fetch(name, source.openml, remedy)


def _read_file(path: Path, expected: str) -> Table:
    """A file's numbers, once its checksum has been found right."""
    try:
        content = path.read_bytes()
    except OSError as error:
        raise DataError(f"{str(path)!r} cannot be read ({error.strerror}): check that it is a readable file") from error
    found = hashlib.sha256(content).hexdigest()
    if found != expected:
        raise DataError(f"{str(path)!r} has SHA-256 {found} instead of {expected}: replace it by the original file")
    text = content.decode("utf-8")
    header = text.partition("\n")[0].split(",")
    # A column of times is there for people; the same instants are numbers in another column.
    numeric = [column for column, title in enumerate(header) if title != "time"]
    numbers = np.loadtxt(io.StringIO(text), delimiter=",", skiprows=1, usecols=numeric, ndmin=2)
    titles = tuple(header[column] for column in numeric[:-1])
    return Table(numbers[:, :-1].copy(), numbers[:, -1].copy(), titles, f"{path.name} (SHA-256 {expected})")


def _fetch(name: str, twin: OpenML, remedy: str) -> Table:
    """The numbers from OpenML, in scikit-learn's cache from then on, once they are known to be the file's."""
    from sklearn.datasets import fetch_openml

    try:
        with warnings.catch_warnings():
            # Of retries and of versions that OpenML discourages: the numbers are checked below in any case.
            warnings.simplefilter("ignore")
            # This parser needs no pandas; it gives categories as codes, and what the codes mean.
            bunch = fetch_openml(
                data_id=twin.data_id, target_column=None, as_frame=False, parser="liac-arff", n_retries=1
            )
    except (OSError, ValueError, http.client.HTTPException) as error:
        reason = " ".join(str(error).split()) or type(error).__name__
        raise DataError(
            f"data set {name!r} is neither in a folder nor to be had as OpenML data {twin.data_id} ({reason}): {remedy}"
        ) from error
    numbers = _columns(bunch, (*twin.features, twin.target))
    if numbers is None or numbers_checksum(numbers) != twin.numbers:
        raise DataError(f"OpenML data set {twin.data_id} does not hold the numbers of data set {name!r}: {remedy}")
    return Table(numbers[:, :-1].copy(), numbers[:, -1].copy(), twin.features, f"OpenML data set {twin.data_id}")


def _columns(bunch: Any, wanted: tuple[str, ...]) -> FloatArray | None:
    """The wanted columns of an OpenML answer as numbers, ``n x len(wanted)``; ``None`` where one is not there."""
    titles = list(bunch["feature_names"])
    categories: Mapping[str, list[str]] = bunch.get("categories") or {}
    try:
        columns = []
        for title in wanted:
            column = np.asarray(bunch["data"])[:, titles.index(title)].astype(np.float64)
            if title in categories:
                meanings = np.array([float(meaning) for meaning in categories[title]])
                column = meanings[column.astype(np.intp)]
            columns.append(column)
    except (IndexError, ValueError):
        return None
    return np.column_stack(columns)


def numbers_checksum(numbers: FloatArray) -> str:
    """SHA-256 of a table's numbers, which does not depend on how they were written as text."""
    # Adding zero turns −0 into 0, which is the same number in other bytes.
    return hashlib.sha256(np.ascontiguousarray(numbers + 0.0, dtype="<f8").tobytes()).hexdigest()
