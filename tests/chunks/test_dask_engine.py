from __future__ import annotations

import _thread
import gc
import os
import signal
import subprocess
import sys
import threading
import time
from pathlib import Path

import numpy as np
import pytest
import torch

from optional_parts import local_cluster
from rcgp.chunks import Serial, chunks_of, engine_for
from rcgp.chunks import dask as dask_room


@pytest.fixture
def blocks(da, table):
    """The table in ten blocks: inputs, observations, weights."""
    return [da.from_array(values, chunks=(100, *values.shape[1:])) for values in table]


def slow(task, folder=None, seconds=0.1):
    """The task, slowed down, which writes a file to the folder when it begins."""

    def slowly(chunk):
        import time
        from pathlib import Path

        if folder is not None:
            Path(folder, str(chunk.first)).touch()
        time.sleep(seconds)
        return task(chunk)

    return slowly


def when_begun(folder, action):
    """Do something as soon as the first task has begun."""

    def watch():
        while not os.listdir(folder):
            time.sleep(0.01)
        action()

    thread = threading.Thread(target=watch, daemon=True)
    thread.start()
    return thread


def until(condition, seconds=30):
    end = time.monotonic() + seconds
    while not condition() and time.monotonic() < end:
        time.sleep(0.05)
    return condition()


@pytest.mark.slow
@pytest.mark.parametrize("size", [1, 31, 100, 450, 1000])
def test_any_blocks_give_the_same_sums(client, da, table, sums, expected, size):
    if size == 1:  # a task for each row takes long
        table = [values[:30] for values in table]
        wanted = Serial().reduce(sums, chunks_of(*table)).numpy()
    else:
        wanted = expected(weighted=True)
    X, y, w = (da.from_array(values, chunks=size) for values in table)
    chunks = chunks_of(X, y, w, rows=60)
    engine = engine_for(chunks, client=client)
    total = engine.reduce(sums, chunks)
    np.testing.assert_allclose(total.numpy(), wanted, rtol=1e-12, atol=1e-10)
    assert torch.equal(engine.reduce(sums, chunks), total)
    assert torch.equal(engine_for(chunks, client=client).reduce(sums, chunks), total)


def test_results_are_collected_in_the_order_of_the_rows(client, blocks, table):
    chunks = chunks_of(*blocks, rows=60)
    found = engine_for(chunks, client=client).collect(lambda chunk: (chunk.first, chunk.y), chunks)
    assert [first for first, _ in found] == sorted([*range(0, 1000, 100), *range(60, 1000, 100)])
    assert len(found) == len(list(chunks))
    assert np.array_equal(torch.cat([y for _, y in found]).numpy(), table[1])


def test_data_frames_and_unknown_sizes(client, dd, pd, table, sums, expected):
    X, y, w = table
    frame = pd.DataFrame(X, columns=["a", "b", "c"]).assign(y=y, w=w)
    parts = dd.from_pandas(pd.concat([frame, frame + 100], ignore_index=True), npartitions=6)
    parts = parts[parts["w"] < 50]
    chunks = chunks_of(parts[["a", "b", "c"]], parts["y"], parts["w"])
    got = engine_for(chunks, client=client).reduce(sums, chunks)
    np.testing.assert_allclose(got.numpy(), expected(weighted=True), rtol=1e-12, atol=1e-10)


def test_parquet_files_are_read_by_the_workers(client, pq, pd, tmp_path, table, sums, expected):
    X, y, w = table
    path = tmp_path / "table.parquet"
    pd.DataFrame(X, columns=["a", "b", "c"]).assign(y=y, w=w).to_parquet(path, row_group_size=130)
    chunks = chunks_of(path, "y", "w", rows=50)
    engine = engine_for(chunks, client=client)
    np.testing.assert_allclose(engine.reduce(sums, chunks).numpy(), expected(weighted=True), rtol=1e-12, atol=1e-10)
    path.unlink()  # they hold the rows now
    np.testing.assert_allclose(engine.reduce(sums, chunks).numpy(), expected(weighted=True), rtol=1e-12, atol=1e-10)


def test_rows_are_computed_once_and_freed_with_the_engine(client, blocks, tmp_path, sums):
    def note(block):
        import uuid
        from pathlib import Path

        Path(tmp_path, uuid.uuid4().hex).touch()
        return block

    noted = blocks[0].map_blocks(note, dtype=float, meta=np.empty((0, 0)))
    # Once with sizes that are known, and once where they have to be counted first.
    for X, y in ((noted, blocks[1]), (noted[noted[:, 0] < 1e9], blocks[1])):
        chunks = chunks_of(X, y)
        engine = engine_for(chunks, client=client)
        for _ in range(3):
            engine.reduce(sums, chunks)
        engine.collect(sums, chunks)
        assert len(os.listdir(tmp_path)) == 10
        assert sum(map(len, client.has_what().values())) >= 10
        for file in tmp_path.iterdir():
            file.unlink()
        del engine, chunks
        gc.collect()
        assert until(lambda: not any(client.has_what().values()))


def test_a_large_task_is_sent_without_a_warning(client, blocks):
    large = torch.ones(3, 1_000_000, dtype=torch.float64)  # 24 MB, above Dask's limit of a large graph
    chunks = chunks_of(*blocks)
    total = engine_for(chunks, client=client).reduce(lambda chunk: (chunk.X @ large[:, :1]).sum() * large[0, 5], chunks)
    assert float(total) == pytest.approx(float(blocks[0].sum().compute()), rel=1e-10)


def test_a_task_has_one_torch_thread_and_restores_their_number(client, blocks):
    client.run(torch.set_num_threads, 3)
    try:
        chunks = chunks_of(*blocks)
        seen = engine_for(chunks, client=client).collect(lambda chunk: torch.get_num_threads(), chunks)
        assert set(seen) == {1}
        assert set(client.run(torch.get_num_threads).values()) == {3}
    finally:
        client.run(torch.set_num_threads, 1)


@pytest.mark.parametrize("where", ["task", "rows"])
def test_an_error_on_a_worker_arrives_as_it_was_raised(client, blocks, sums, da, table, where):
    def fails(chunk):
        if chunk.first == 600:
            raise ValueError("no inverse in row 640")
        return sums(chunk)

    X = table[0].copy()
    X[640, 2] = np.nan
    good = chunks_of(*blocks)
    chunks, task, message = {
        "task": (good, fails, r"^no inverse in row 640$"),
        "rows": (chunks_of(da.from_array(X, chunks=100), blocks[1]), sums, "^X has NaN in row 640, column 2;"),
    }[where]
    engine = engine_for(chunks, client=client)
    for method in (engine.reduce, engine.collect):
        with pytest.raises(ValueError, match=message):
            method(task, chunks)
    assert len(engine.collect(sums, good)) == 10  # and the engine works on


@pytest.mark.parametrize("method", ["reduce", "collect"])
@pytest.mark.parametrize("known", [True, False])
def test_the_first_of_several_bad_blocks_is_named(client, blocks, sums, da, table, method, known):
    X, y = table[0].copy(), table[1].copy()
    X[[340, 820], 1], y[[240, 930]] = np.nan, np.nan

    def late(block, block_info=None):  # so that later blocks fail first
        import time

        time.sleep(0.5 if block_info[0]["chunk-location"] == (2,) else 0.0)
        return block

    observed = da.from_array(y, chunks=100).map_blocks(late, dtype=float, meta=np.empty(0))
    inputs = da.from_array(X, chunks=(100, 3))
    chunks = chunks_of(inputs if known else inputs[~(inputs[:, 0] > 1e9)], observed)
    messages = []
    for engine in (Serial(), engine_for(chunks, client=client)):
        with pytest.raises(ValueError, match=r"^y has NaN in row 240;") as caught:
            getattr(engine, method)(sums, chunks)
        messages.append(str(caught.value))
    assert messages[0] == messages[1]


def test_the_first_bad_row_group_of_a_file_is_named(client, pq, pd, tmp_path, table, sums):
    path = tmp_path / "table.parquet"
    frame = pd.DataFrame(table[0], columns=["a", "b", "c"]).assign(y=table[1])
    frame.loc[[80, 640, 641, 940], "y"] = np.nan
    frame.loc[5, "a"] = np.nan
    frame.to_parquet(path, row_group_size=40)
    chunks = chunks_of(path, "y")
    for _ in range(3):
        with pytest.raises(ValueError, match=r"^X has NaN in row 5, column 'a';"):
            engine_for(chunks, client=client).collect(sums, chunks)


def test_a_timeout_error_of_a_task_is_reported(client, blocks):
    def fails(chunk):
        raise TimeoutError("no answer from the data base")

    chunks = chunks_of(*blocks)
    with pytest.raises(TimeoutError, match="no answer from the data base"):
        engine_for(chunks, client=client).reduce(fails, chunks)


def test_an_interrupt_cancels_running_tasks(client, blocks, sums, tmp_path):
    chunks = chunks_of(*blocks)
    engine = engine_for(chunks, client=client)
    # A shell that starts tests in the background has interrupts ignored.
    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    try:
        when_begun(tmp_path, _thread.interrupt_main)
        with pytest.raises(KeyboardInterrupt):
            engine.reduce(slow(sums, tmp_path, seconds=1.0), chunks)
    finally:
        signal.signal(signal.SIGINT, before)
    assert until(lambda: not any(client.processing().values()), seconds=10)
    assert len(os.listdir(tmp_path)) < 10
    assert torch.equal(engine.reduce(sums, chunks), engine.reduce(sums, chunks))


@pytest.mark.slow
@pytest.mark.parametrize(("method", "known"), [("reduce", True), ("collect", True), ("reduce", False)])
def test_a_worker_that_is_killed_changes_nothing(client, blocks, sums, tmp_path, method, known):
    X, y, w = blocks
    chunks = chunks_of(X, y, w) if known else chunks_of(X[X[:, 0] < 1e9], y, w)
    work = getattr(engine_for(chunks, client=client), method)
    wanted = work(sums, chunks)
    victim = next(iter(client.run(os.getpid).values()))
    killing = when_begun(tmp_path, lambda: os.kill(victim, signal.SIGKILL))
    got = work(slow(sums, tmp_path, seconds=0.3), chunks)
    killing.join()
    assert len(got) == len(wanted)
    assert all(map(torch.equal, got, wanted))  # the chunks of a list, or the rows of a sum
    client.wait_for_workers(2, timeout=60)
    assert victim not in client.run(os.getpid).values()


def test_the_default_client_is_found(client, blocks, sums, table):
    chunks = chunks_of(*blocks)
    assert isinstance(engine_for(chunks), Serial)
    with client.as_current():
        assert type(engine_for(chunks)).__name__ == "DaskEngine"
        assert isinstance(engine_for(chunks_of(*table)), Serial)


def test_rows_of_this_process_are_not_sent_to_a_cluster(client, table, sums):
    chunks = chunks_of(*table)
    with pytest.raises(TypeError, match=r"client= is for rows in Dask .* use dask.array.from_array\(X\)"):
        engine_for(chunks, client=client).reduce(sums, chunks)
    with pytest.raises(TypeError, match=r"client must be a distributed.Client"):
        engine_for(chunks, client="tcp://127.0.0.1:8786")


def test_a_closed_client_raises_a_clear_error(client, blocks, sums):
    from distributed import Client

    closed = Client(client.scheduler.address, set_as_default=False)
    closed.close()
    chunks = chunks_of(*blocks)
    with pytest.raises(RuntimeError, match=r"^the Dask scheduler is gone: the client is closed$"):
        engine_for(chunks, client=closed).reduce(sums, chunks)


@pytest.mark.slow
@pytest.mark.parametrize("moment", ["in the middle", "before"])
def test_a_cluster_without_workers_raises_in_time(blocks, sums, tmp_path, moment, monkeypatch):
    from distributed import Client

    patience = 8  # as it is, and once less: two tests need not wait so long
    if moment == "before":
        patience = 2
        monkeypatch.setattr(dask_room, "_DESERTED", 2.0)
    with local_cluster(2) as cluster, Client(cluster, set_as_default=False) as client:
        chunks = chunks_of(*blocks)
        engine = engine_for(chunks, client=client)
        engine.reduce(sums, chunks)
        workers = list(client.run(os.getpid).values())
        lost = []

        async def nothing():
            pass

        def kill():
            for nanny in cluster.workers.values():
                nanny.instantiate = nothing  # which else starts another worker
            for worker in workers:
                os.kill(worker, signal.SIGKILL)
            lost.append(time.monotonic())

        kill() if moment == "before" else when_begun(tmp_path, kill)
        message = rf"^the Dask cluster has lost all its workers: .* none for {patience} seconds"
        with pytest.raises(RuntimeError, match=message):
            engine.reduce(slow(sums, tmp_path, seconds=1.0), chunks)
        assert time.monotonic() - lost[0] < patience + 4


@pytest.mark.slow
def test_a_cluster_is_given_time_for_its_first_workers(blocks, sums, expected, monkeypatch):
    from distributed import Client

    monkeypatch.setattr(dask_room, "_DESERTED", 0.5)
    with local_cluster(0) as cluster, Client(cluster, set_as_default=False) as client:
        chunks = chunks_of(*blocks)
        threading.Timer(2.0, cluster.scale, (1,)).start()
        got = engine_for(chunks, client=client).reduce(sums, chunks)
    np.testing.assert_allclose(got.numpy(), expected(weighted=True), rtol=1e-12, atol=1e-10)


# A scheduler that goes away is another program, which the test ends.

CLUSTER = """
import sys
from distributed import LocalCluster
if __name__ == "__main__":
    arguments = dict(processes=False, protocol="tcp", host="127.0.0.1", dashboard_address=None)
    with LocalCluster(n_workers=1, threads_per_worker=1, **arguments) as cluster:
        print(cluster.scheduler_address, flush=True)
        sys.stdin.read()
"""


@pytest.fixture
def other_cluster(da, tmp_path):
    """A client of a cluster in another process, and that process."""
    from distributed import Client

    script = Path(tmp_path, "cluster.py")
    script.write_text(CLUSTER)
    with (
        subprocess.Popen(
            [sys.executable, str(script)],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            text=True,
        ) as process,
        Client(process.stdout.readline().strip(), set_as_default=False, timeout=8) as client,
    ):
        yield client, process
        process.kill()


@pytest.mark.slow
@pytest.mark.parametrize("moment", ["in the middle", "before", "long before"])
def test_a_lost_scheduler_raises_in_time(other_cluster, blocks, sums, tmp_path, moment):
    client, process = other_cluster
    address = client.scheduler.address
    folder = tmp_path / "begun"
    folder.mkdir()
    chunks = chunks_of(*blocks)
    engine = engine_for(chunks, client=client)
    engine.reduce(sums, chunks)
    if moment == "in the middle":
        when_begun(folder, process.kill)
    else:
        process.kill()
        process.wait()
        if moment == "long before":
            assert until(lambda: client.status == "closed")
    begin = time.monotonic()
    with pytest.raises(RuntimeError, match=f"^the Dask scheduler at {address} is gone: ") as caught:
        engine.reduce(slow(sums, folder, seconds=1.0), chunks)
    assert time.monotonic() - begin < 10
    assert caught.value.__cause__ is None
    assert caught.value.__suppress_context__ or caught.value.__context__ is None
