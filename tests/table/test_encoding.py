from __future__ import annotations

import json

import pytest

from rcgp.table import Column, Encoding, TableError

ENCODING = Encoding(
    "price",
    (Column("size", "number"), Column("when", "date"), Column("colour", "category", ("blue", "green", "red"))),
)


def test_json_brings_back_the_same_encoding():
    assert Encoding.from_json(json.loads(json.dumps(ENCODING.to_json()))) == ENCODING
    assert ENCODING.feature_names == ["size", "when", "colour=blue", "colour=green", "colour=red"]


def changed(**fields):
    """A valid description with something else in its first column."""
    return {"target": "y", "columns": [{"name": "x", "kind": "number", "levels": []} | fields]}


ODD = {
    "nothing": None,
    "a list": [],
    "no fields": {},
    "a field too many": changed() | {"version": 1},
    "target that is no text": changed() | {"target": 3},
    "target among the columns": changed() | {"target": "x"},
    "no columns": changed() | {"columns": []},
    "columns that are no list": changed() | {"columns": {"x": "number"}},
    "column that is no dictionary": changed() | {"columns": ["x"]},
    "the same column twice": changed() | {"columns": changed()["columns"] * 2},
    "category twice": changed() | {"columns": [{"name": "x", "kind": "category", "levels": [n]} for n in "ab"]},
    "name that is no text": changed(name=None),
    "name that no file can hold": changed(name="\ud800"),
    "unknown kind": changed(kind="colour"),
    "kind that is no text": changed(kind=[]),
    "number with levels": changed(levels=["a"]),
    "category without levels": changed(kind="category"),
    "levels that are no list": changed(kind="category", levels="ab"),
    "level that is no text": changed(kind="category", levels=["a", []]),
    "level that no file can hold": changed(kind="category", levels=["\udfff"]),
    "the same level twice": changed(kind="category", levels=["a", "a"]),
    "too many levels": changed(kind="category", levels=[str(i) for i in range(51)]),
}


@pytest.mark.parametrize("name", ODD)
def test_a_description_that_to_json_cannot_have_written_is_refused(name):
    assert Encoding.from_json(changed()).feature_names == ["x"]
    with pytest.raises(TableError) as caught:
        Encoding.from_json(ODD[name])
    str(caught.value).encode()  # can be printed
