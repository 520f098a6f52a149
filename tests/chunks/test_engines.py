from __future__ import annotations

import threading
import time

import numpy as np
import pytest
import torch

from rcgp.chunks import Serial, Threads, chunks_of, engine_for


def test_the_default_is_serial(table):
    chunks = chunks_of(*table)
    assert isinstance(engine_for(chunks), Serial)
    assert isinstance(engine_for(chunks, threads=2), Threads)
    with pytest.raises(ValueError, match="threads must be at least 1, got 0"):
        engine_for(chunks, threads=0)
    with pytest.raises(ValueError, match="client and threads exclude each other"):
        engine_for(chunks, client=object(), threads=2)


@pytest.mark.parametrize("count", [1, 2, 5])
def test_threads_give_the_serial_result_exactly(table, sums, count):
    chunks = chunks_of(*table, rows=37)

    def late_first(chunk):  # so that the last chunks are done first
        time.sleep(0.002 * ((1000 - chunk.first) % 5))
        return sums(chunk)

    assert torch.equal(Threads(count).reduce(late_first, chunks), Serial().reduce(sums, chunks))
    firsts = Threads(count).collect(lambda chunk: chunk.first, chunks)
    assert firsts == Serial().collect(lambda chunk: chunk.first, chunks) == list(range(0, 1000, 37))


def test_threads_work_at_the_same_time(table):
    meeting = threading.Barrier(2, timeout=30)  # which one thread alone would never pass

    def task(chunk):
        meeting.wait()
        return 1

    assert Threads(2).reduce(task, chunks_of(*table, rows=100)) == 10


@pytest.mark.parametrize(("before", "count", "each"), [(4, 2, 2), (3, 2, 1), (1, 2, 1), (2, 8, 1)])
def test_threads_of_torch_are_divided_and_restored(table, before, count, each):
    torch.set_num_threads(before)
    try:
        seen = Threads(count).collect(lambda chunk: torch.get_num_threads(), chunks_of(*table, rows=100))
        assert set(seen) == {each}
        assert torch.get_num_threads() == before

        def fails(chunk):
            raise ZeroDivisionError

        with pytest.raises(ZeroDivisionError):
            Threads(count).reduce(fails, chunks_of(*table, rows=100))
        assert torch.get_num_threads() == before
    finally:
        torch.set_num_threads(1)


@pytest.mark.parametrize("engine", [Serial(), Threads(2)])
def test_only_a_few_results_are_in_memory(engine):
    class Counted:
        alive = most = 0

        def __init__(self):
            Counted.alive += 1
            Counted.most = max(Counted.most, Counted.alive)

        def __add__(self, other):
            return Counted()

        def __del__(self):
            Counted.alive -= 1

    engine.reduce(lambda chunk: Counted(), chunks_of(np.zeros((200, 1)), np.zeros(200), rows=1))
    assert Counted.most <= 8


@pytest.mark.parametrize("engine", [Serial(), Threads(2)])
def test_no_task_starts_after_an_error(engine, table):
    begun = []

    def task(chunk):
        begun.append(chunk.first)
        raise KeyError("no such thing")

    with pytest.raises(KeyError, match="no such thing"):
        engine.collect(task, chunks_of(*table, rows=10))
    assert len(begun) <= 5
