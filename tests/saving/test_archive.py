from __future__ import annotations

import errno
import json
import math
import os
import pickle
import signal
import stat
import subprocess
import sys
import zipfile

import pytest
import safetensors.torch
import torch
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from rcgp.saving import SavedModelError, archive, read_archive, write_archive
from rcgp.saving.archive import raw_bytes

DESCRIPTION = {
    "name": "é ☃ \ud800",
    "numbers": [1, -0.1, 1e-308, 5e-324, 0.1 + 0.2],
    "nested": {"none": None, "yes": True},
}


def tensors():
    return {
        "a.real": torch.tensor([[0.1, math.nan], [-0.0, math.inf]], dtype=torch.float64),
        "a.scalar": torch.tensor(0.1),
        "empty": torch.zeros(0, 3),
        "flags": torch.tensor([True, False, True]),
        "columns": torch.tensor([3, -1]),
        "half": torch.tensor([0.1], dtype=torch.bfloat16),
    }


@pytest.fixture
def saved(tmp_path):
    path = tmp_path / "model.rcgp"
    write_archive(path, DESCRIPTION, tensors())
    return path


@pytest.fixture
def whole(saved):
    return saved.read_bytes()


def check_content(path, description, expected):
    read, found = read_archive(path)
    assert json.dumps(read) == json.dumps(description)  # 1, 1.0 and True differ
    assert found.keys() == expected.keys()
    for name, value in expected.items():
        assert (found[name].dtype, found[name].shape) == (value.dtype, value.shape)
        assert raw_bytes(found[name]) == raw_bytes(value)


def rewritten(path, change):
    """The file with its metadata changed, as another program could."""
    with safetensors.safe_open(path, framework="pt") as file:
        metadata = file.metadata()
    content = safetensors.torch.load(path.read_bytes())
    change(metadata, content)
    path.write_bytes(safetensors.torch.save(content, metadata=metadata))
    return path


def signed(metadata, content):
    metadata["sha256"] = archive._digest(metadata, content)


def test_everything_is_restored_exactly(saved):
    check_content(saved, DESCRIPTION, tensors())


def test_loaded_tensors_are_ordinary(saved):
    for value in read_archive(saved)[1].values():
        assert value.is_contiguous()
        assert value.data_ptr() % value.element_size() == 0
        assert value.untyped_storage().resizable()  # torch's own memory, not a buffer borrowed from elsewhere
        assert value.untyped_storage().nbytes() == value.numel() * value.element_size()
        value.zero_()
    check_content(saved, DESCRIPTION, tensors())


def test_views_shared_memory_and_parameters_can_be_written(tmp_path):
    base = torch.arange(12.0).reshape(3, 4)
    parameter = torch.nn.Parameter(base[0])
    views = {"base": base, "transposed": base.T, "row": base[1], "expanded": base[:1].expand(3, 4), "own": parameter}
    write_archive(tmp_path / "m", {}, views)
    check_content(tmp_path / "m", {}, {name: value.detach() for name, value in views.items()})


def test_a_file_without_tensors_can_be_written(tmp_path):
    write_archive(tmp_path / "m", {"only": "text"}, {})
    check_content(tmp_path / "m", {"only": "text"}, {})


def test_the_file_is_plain_safetensors(saved):
    assert safetensors.torch.load_file(saved)["columns"].tolist() == [3, -1]


@pytest.mark.parametrize(
    "description",
    [
        {"x": math.nan},
        {"x": [math.inf]},
        {1: "key"},
        {"x": (1, 2)},
        {"x": {1, 2}},
        {"x": torch.zeros(1)},
        [1],
        {"x": print},
    ],
    ids=repr,
)
def test_descriptions_beyond_json_raise_before_anything_is_written(tmp_path, description):
    with pytest.raises(SavedModelError, match="description"):
        write_archive(tmp_path / "m", description, {})
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize(
    "bad",
    [
        {"x": torch.zeros(1, dtype=torch.complex128)},
        {"x": torch.eye(2).to_sparse()},
        {"x": [1.0]},
        {"__metadata__": torch.zeros(1)},
        {3: torch.zeros(1)},
    ],
    ids=["complex", "sparse", "list", "reserved name", "number as name"],
)
def test_anything_but_named_dense_tensors_raises(tmp_path, bad):
    with pytest.raises(SavedModelError, match=r"tensor"):
        write_archive(tmp_path / "m", {}, bad)
    assert list(tmp_path.iterdir()) == []


# --- reading what is not a saved model


def test_a_missing_file_a_folder_and_a_pipe_raise_clear_errors(tmp_path):
    with pytest.raises(SavedModelError, match=r"there is no file .*nothing'"):
        read_archive(tmp_path / "nothing")
    with pytest.raises(SavedModelError, match="is not a file"):
        read_archive(tmp_path)
    os.mkfifo(tmp_path / "pipe")
    with pytest.raises(SavedModelError, match="is not a file"):
        read_archive(tmp_path / "pipe")
    with pytest.raises(SavedModelError, match="null"):
        read_archive("zero\0byte")
    with pytest.raises(SavedModelError, match="null"):
        write_archive("zero\0byte", {}, {})


def test_a_file_that_may_not_be_read_raises_a_clear_error(saved, monkeypatch):
    def refuse(*args, **kwargs):
        raise PermissionError(errno.EACCES, "Permission denied")

    monkeypatch.setattr("builtins.open", refuse)  # the tests may run as root, for whom every file is open
    with pytest.raises(SavedModelError, match=r"model.rcgp' could not be read: Permission denied"):
        read_archive(saved)


class RunsCode:
    def __reduce__(self):
        return os.system, ("touch executed",)


def test_foreign_files_are_named_as_such_and_run_no_code(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    path = tmp_path / "m"
    path.write_bytes(b"")
    with pytest.raises(SavedModelError, match="is empty"):
        read_archive(path)
    path.write_text("x,y\n")
    with pytest.raises(SavedModelError, match="is too short"):
        read_archive(path)
    path.write_text("a table,of numbers\n1,2\n" * 100)
    with pytest.raises(SavedModelError, match=r"is not a saved model$"):
        read_archive(path)
    path.write_text('{"json": "perhaps"}')
    with pytest.raises(SavedModelError, match=r"is not a saved model$"):
        read_archive(path)
    path.write_bytes(bytes(8) + b'{"__metadata__":{}}')
    with pytest.raises(SavedModelError, match=r"is not a saved model$"):
        read_archive(path)
    path.write_bytes(pickle.dumps(RunsCode()))
    with pytest.raises(SavedModelError, match="pickle"):
        read_archive(path)
    torch.save(RunsCode(), path)
    with pytest.raises(SavedModelError, match="zip archive"):
        read_archive(path)
    with zipfile.ZipFile(path, "w") as file:
        file.writestr("a", "b")
    with pytest.raises(SavedModelError, match="zip archive"):
        read_archive(path)
    assert not (tmp_path / "executed").exists()


def test_a_safetensors_file_of_another_program_raises_a_clear_error(tmp_path):
    for metadata in (None, {"format": "pt"}):
        safetensors.torch.save_file({"weight": torch.zeros(3)}, tmp_path / "m", metadata=metadata)
        with pytest.raises(SavedModelError, match="another program"):
            read_archive(tmp_path / "m")


def test_a_newer_format_names_its_version_and_the_remedy(saved):
    def change(metadata, content):
        metadata.update(format_version="3", rcgp_version="9.1")
        signed(metadata, content)

    with pytest.raises(SavedModelError, match=r"rcgp 9.1 in format 3, and this rcgp reads format 2 only: upgrade"):
        read_archive(rewritten(saved, change))


def test_an_older_format_names_the_version_that_reads_it(saved):
    def change(metadata, content):
        metadata.update(format_version="1", rcgp_version="0.0.9")
        signed(metadata, content)

    message = r"model.rcgp' was written by rcgp 0.0.9 in format 1, .* read it with rcgp 0.1.0, or fit the model again"
    with pytest.raises(SavedModelError, match=message):
        read_archive(rewritten(saved, change))


@pytest.mark.parametrize("version", ["", "0", "-1", "one", "1.5", "²"])
def test_an_invalid_version_raises_a_clear_error(saved, version):
    with pytest.raises(SavedModelError, match="damaged"):
        read_archive(rewritten(saved, lambda metadata, content: metadata.update(format_version=version)))


@pytest.mark.parametrize("key", ["sha256", "description", "rcgp_version"])
def test_missing_metadata_raise_a_clear_error(saved, key):
    with pytest.raises(SavedModelError, match="checksum"):
        read_archive(rewritten(saved, lambda metadata, content: metadata.pop(key)))


@pytest.mark.parametrize("text", ["", "{", "[1]", "null", "[" * 100_000], ids=["empty", "cut", "list", "null", "deep"])
def test_a_description_that_is_no_json_object_raises_a_clear_error_even_when_signed(saved, text):
    def change(metadata, content):
        metadata["description"] = text
        signed(metadata, content)

    with pytest.raises(SavedModelError, match="description is not"):
        read_archive(rewritten(saved, change))


def test_changed_added_renamed_or_retyped_tensors_are_detected(saved):
    original = saved.read_bytes()

    def check(change):
        saved.write_bytes(original)
        with pytest.raises(SavedModelError, match="checksum"):
            read_archive(rewritten(saved, lambda metadata, content: change(content)))

    check(lambda content: content["a.real"].mul_(2))
    check(lambda content: content.update(more=torch.zeros(1)))
    check(lambda content: content.pop("empty"))
    check(lambda content: content.update(other=content.pop("empty")))
    check(lambda content: content.update(flags=content["flags"].to(torch.uint8)))
    check(lambda content: content.update({"empty": torch.zeros(0, 4)}))


def test_every_truncation_is_reported_as_one(saved, whole):
    for size in (*range(9, len(whole), 5), len(whole) - 1):
        saved.write_bytes(whole[:size])
        with pytest.raises(SavedModelError, match=f"is truncated: it ends after {size} bytes"):
            read_archive(saved)


def test_bytes_after_the_end_raise_a_clear_error(saved):
    saved.write_bytes(saved.read_bytes() + b"x")
    with pytest.raises(SavedModelError, match="damaged"):
        read_archive(saved)


@given(damage=st.lists(st.tuples(st.floats(0, 1, exclude_max=True), st.integers(1, 255)), min_size=1, max_size=3))
@settings(max_examples=200, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
def test_flipped_bytes_give_an_error_and_never_other_content(saved, whole, damage):
    content = bytearray(whole)
    for position, flip in damage:
        content[int(position * len(content))] ^= flip
    saved.write_bytes(content)
    try:
        read_archive(saved)
    except SavedModelError:
        return
    check_content(saved, DESCRIPTION, tensors())  # the blanks between header and data carry nothing


def test_a_flipped_bit_is_detected_anywhere(saved, whole):
    header = whole[: 8 + int.from_bytes(whole[:8], "little")]
    for position in range(len(whole)):
        if len(header.rstrip()) <= position < len(header):
            continue  # blanks that fill up the header: another kind of blank is the same file
        damaged = bytearray(whole)
        damaged[position] ^= 1 << position % 8
        saved.write_bytes(damaged)
        with pytest.raises(SavedModelError):
            read_archive(saved)


# --- writing


def leftovers(folder):
    return [path.name for path in folder.iterdir() if path.name.startswith(".rcgp")]


@pytest.mark.parametrize("function", ["replace", "fsync", "chmod", "fdopen"])
@pytest.mark.parametrize("error", [OSError(errno.ENOSPC, "No space left on device"), KeyboardInterrupt()], ids=repr)
def test_a_save_that_fails_leaves_the_old_file_intact(saved, monkeypatch, function, error):
    def fail(*args, **kwargs):
        raise error

    with monkeypatch.context() as patch:
        patch.setattr(archive.os, function, fail)
        expected = SavedModelError if isinstance(error, OSError) else KeyboardInterrupt
        with pytest.raises(expected, match="No space left" if isinstance(error, OSError) else None):
            write_archive(saved, {"new": 1}, {})
    check_content(saved, DESCRIPTION, tensors())
    assert leftovers(saved.parent) == []


def test_a_full_disk_raises_a_clear_error_and_leaves_the_old_file_intact(saved):
    script = f"""
import resource, torch
from rcgp.saving import SavedModelError, write_archive
resource.setrlimit(resource.RLIMIT_FSIZE, (5000, resource.getrlimit(resource.RLIMIT_FSIZE)[1]))
try:
    write_archive({str(saved)!r}, {{}}, {{"large": torch.zeros(100_000)}})
except SavedModelError as error:
    print(error)
"""
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True)
    assert "could not be written: File too large" in done.stdout
    check_content(saved, DESCRIPTION, tensors())
    assert leftovers(saved.parent) == []


KILLED = """
import os, random, signal, sys, time, torch
from rcgp.saving import read_archive, write_archive
path, rounds = sys.argv[1], int(sys.argv[2])
torch.set_num_threads(1)
for attempt in range(rounds):
    child = os.fork()
    if child == 0:
        number = 0
        while True:
            number += 1
            write_archive(path, {"number": number}, {"x": torch.full((20_000,), float(number))})
    time.sleep(random.Random(attempt).uniform(0.005, 0.1))
    os.kill(child, signal.SIGKILL)
    os.waitpid(child, 0)
    description, tensors = read_archive(path)
    assert (tensors["x"] == description["number"]).all() and len(tensors["x"]) == 20_000
    print(description["number"])
"""


@pytest.mark.skipif(not hasattr(signal, "SIGKILL") or not hasattr(os, "fork"), reason="needs fork and SIGKILL")
@pytest.mark.slow
def test_a_process_killed_while_saving_leaves_a_file_that_reads(tmp_path):
    path = tmp_path / "m"
    write_archive(path, {"number": 0}, {"x": torch.zeros(20_000)})
    done = subprocess.run([sys.executable, "-c", KILLED, str(path), "20"], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    numbers = [int(line) for line in done.stdout.split()]
    assert len(numbers) == 20
    assert max(numbers) > 1  # some saves did happen before the kill


def test_paths_that_cannot_be_written_raise_clear_errors(tmp_path, saved, monkeypatch):
    with pytest.raises(SavedModelError, match=r"missing.*its folder does not exist"):
        write_archive(tmp_path / "missing" / "m", {}, {})
    with pytest.raises(SavedModelError, match="it is a folder"):
        write_archive(tmp_path, {}, {})
    with pytest.raises(SavedModelError, match="Not a directory"):
        write_archive(saved / "m", {}, {})
    os.mkfifo(tmp_path / "pipe")
    with pytest.raises(SavedModelError, match="not a regular file"):
        write_archive(tmp_path / "pipe", {}, {})
    with pytest.raises(SavedModelError, match="File name too long"):
        write_archive(tmp_path / ("m" * 300), {}, {})
    # The tests may run as root, who may write everywhere.
    monkeypatch.setattr(archive.os, "access", lambda path, mode: False)
    with pytest.raises(SavedModelError, match="write-protected"):
        write_archive(saved, {}, {})
    check_content(saved, DESCRIPTION, tensors())
    assert leftovers(tmp_path) == []


def test_a_link_stays_a_link_and_its_target_is_replaced(tmp_path, saved):
    elsewhere = tmp_path / "elsewhere"
    elsewhere.mkdir()
    link, dangling = elsewhere / "link", elsewhere / "dangling"
    link.symlink_to(saved)
    dangling.symlink_to(tmp_path / "not yet")
    for path in (link, dangling):
        write_archive(path, {"new": 1}, {})
        assert path.is_symlink()
        check_content(path.resolve(), {"new": 1}, {})
    circle = elsewhere / "circle"
    circle.symlink_to(circle)
    with pytest.raises(SavedModelError, match="could not be written"):
        write_archive(circle, {}, {})


@pytest.mark.parametrize("mode", [0o600, 0o644, 0o664])
def test_permissions_of_the_replaced_file_are_kept(saved, mode):
    saved.chmod(mode)
    write_archive(saved, {}, {})
    assert stat.S_IMODE(saved.stat().st_mode) == mode


def test_a_new_file_has_the_permissions_of_any_new_file(tmp_path):
    (tmp_path / "plain").write_text("")
    write_archive(tmp_path / "m", {}, {})
    assert (tmp_path / "m").stat().st_mode == (tmp_path / "plain").stat().st_mode


def test_a_path_can_be_text_and_relative(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    write_archive("m", {"x": 1}, {})
    check_content("m", {"x": 1}, {})


json_values = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False, allow_infinity=False) | st.text(),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(), inner, max_size=3),
    max_leaves=8,
)


@given(description=st.dictionaries(st.text(), json_values, max_size=4))
@settings(max_examples=50, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
def test_any_json_is_restored(tmp_path, description):
    write_archive(tmp_path / "m", description, {})
    check_content(tmp_path / "m", description, {})
