"""Tables: from a file with bad values to numbers for a regressor, or to one clear sentence.

``encoding``  kept with a model: :class:`Encoding`, :class:`CsvFormat`; the one exception, :class:`TableError`.
``reading``   a CSV or Parquet file to a table: :func:`read_table`.
``cells``     the cells of one column: what is missing, what kind of column it is, its numbers or days.
``features``  a table to features and target: :func:`learn_encoding` on the training table, :func:`encode` on any;
``suspicion`` inputs that are probably mistakes: :func:`suspicious_inputs`.
``series``    a table to times and values, some of them missing: :func:`read_series`.

It imports pandas, pyarrow and numpy, but no models::

    table = read_table("houses.csv")
    encoding, notices = learn_encoding(table, target="price")
    houses = encode(table, encoding)
    model.fit(houses.X, houses.y)
"""

from rcgp.table.encoding import Column, CsvFormat, Encoding, TableError
from rcgp.table.features import Encoded, Missing, encode, learn_encoding, row_names
from rcgp.table.reading import read_table
from rcgp.table.series import TimeSeries, read_series
from rcgp.table.suspicion import suspicious_inputs, suspicious_targets

__all__ = [
    "Column",
    "CsvFormat",
    "Encoded",
    "Encoding",
    "Missing",
    "TableError",
    "TimeSeries",
    "encode",
    "learn_encoding",
    "read_series",
    "read_table",
    "row_names",
    "suspicious_inputs",
    "suspicious_targets",
]
