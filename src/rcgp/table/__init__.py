"""Tables: from a file with bad values in it to numbers for a regressor, or to one clear sentence.

``errors``    :class:`TableError`, the only exception that comes out of this room.
``format``    how a CSV file is written: :class:`CsvFormat`.
``reading``   a CSV or Parquet file to a table: :func:`read_table`.
``cells``     the cells of one column: what is missing, what kind of column it is, its numbers.
``dates``     dates to days since 1970-01-01.
``encoding``  what is kept with a model: :class:`Encoding`, to and from JSON.
``features``  a table to features and target: :func:`learn_encoding` on the training table, :func:`encode` on any.
``suspicious`` inputs that are probably mistakes: :func:`suspicious_inputs`.

The room knows pandas, pyarrow and numpy, and nothing of the models::

    table = read_table("houses.csv")
    encoding, notices = learn_encoding(table, target="price")
    houses = encode(table, encoding)
    model.fit(houses.X, houses.y)
"""

from rcgp.table.encoding import Column, Encoding
from rcgp.table.errors import TableError
from rcgp.table.features import Encoded, Missing, encode, learn_encoding, row_names
from rcgp.table.format import CsvFormat
from rcgp.table.reading import read_table
from rcgp.table.suspicious import suspicious_inputs

__all__ = [
    "Column",
    "CsvFormat",
    "Encoded",
    "Encoding",
    "Missing",
    "TableError",
    "encode",
    "learn_encoding",
    "read_table",
    "row_names",
    "suspicious_inputs",
]
