"""Series with bad values: accuracy, flags, level shifts and one-step forecasts, and speed beside celerite2.

python benchmarks/series.py accuracy --half judge    # errors, flags and coverage; records in results/series.jsonl
python benchmarks/series.py speed                    # a million points, one thread
python benchmarks/series.py page                     # the tables of docs/series.md, from the records

Half of the functions is for tuning, the other for judging.
"""

from __future__ import annotations

import argparse
import json
import resource
import time
import warnings
import zlib
from collections.abc import Callable
from pathlib import Path

import numpy as np
import torch
from numpy.typing import NDArray

from rcgp import RCGPSeries
from rcgp.weights.noise_law import FLAGGED
from rcgp_paper.baselines.filter_centred import FilterCentredGP

Array = NDArray[np.float64]
Problem = tuple[Array, Array, Array, NDArray[np.bool_]]

RECORDS = Path(__file__).parents[1] / "results" / "series.jsonl"
PAGE = Path(__file__).parents[1] / "docs" / "series.md"
ROWS, HISTORY, NOISE = 2000, 1000, 0.1
SEEDS = {"tune": range(5), "judge": range(100, 105)}


def _ou(t: Array, scale: float, random: np.random.Generator) -> Array:
    """A sample of the Ornstein–Uhlenbeck process of variance one."""
    f = np.empty(len(t))
    f[0] = random.standard_normal()
    for i in range(1, len(t)):
        a = np.exp(-(t[i] - t[i - 1]) / scale)
        f[i] = a * f[i - 1] + np.sqrt(1.0 - a * a) * random.standard_normal()
    return f


def _smooth(t: Array, random: np.random.Generator) -> Array:
    phases = random.uniform(0.0, 2.0 * np.pi, 3)
    f: Array = np.sin(t / 4.0 + phases[0]) + 0.6 * np.sin(t / 11.0 + phases[1]) + 0.01 * t
    return f


def _integrated(t: Array, random: np.random.Generator) -> Array:
    f: Array = np.cumsum(_ou(t, 6.0, random) * np.diff(t, prepend=t[0]))
    return f


def _season(t: Array, random: np.random.Generator) -> Array:
    turn = 2.0 * np.pi * t / 20.0 + random.uniform(0.0, 6.0)
    f: Array = np.sin(turn) + 0.4 * np.sin(2.0 * turn + 1.0) + 0.5 * _ou(t, 60.0, random)
    return f


def _sensor(t: Array, random: np.random.Generator) -> Array:
    return _ou(t, 25.0, random)


def _steps(t: Array, random: np.random.Generator) -> Array:
    """Smooth decay between plateaus, as of a heater that is switched."""
    target, f = 0.0, np.empty(len(t))
    value = 0.0
    for i in range(len(t)):
        if random.random() < 0.005:
            target = random.normal()
        gap = t[i] - t[i - 1] if i else 0.0
        value += (target - value) * (1.0 - np.exp(-gap / 3.0))
        f[i] = value
    return f


FUNCTIONS: dict[str, dict[str, Callable[[Array, np.random.Generator], Array]]] = {
    "tune": {"smooth": _smooth, "integrated": _integrated},
    "judge": {"season": _season, "sensor": _sensor, "heater": _steps},
}


def scattered(y: Array, random: np.random.Generator) -> tuple[Array, NDArray[np.bool_]]:
    bad = random.random(len(y)) < 0.10
    errors = random.choice([-1.0, 1.0], len(y)) * random.uniform(3.0, 9.0, len(y)) * y.std()
    return np.where(bad, y + errors, y), bad


def bursts(y: Array, random: np.random.Generator) -> tuple[Array, NDArray[np.bool_]]:
    """A tenth of the values in bursts of 1 to 20, each burst off by one and the same amount."""
    y, bad, spread = y.copy(), np.zeros(len(y), dtype=bool), y.std()
    while bad.mean() < 0.10:
        start, length = random.integers(len(y)), random.integers(1, 21)
        rows = slice(start, start + length)
        if not bad[rows].any():
            y[rows] += random.choice([-1.0, 1.0]) * random.uniform(3.0, 9.0) * spread
            bad[rows] = True
    return y, bad


def stuck(y: Array, random: np.random.Generator) -> tuple[Array, NDArray[np.bool_]]:
    """A tenth of the values stuck: stretches of 10 to 30 equal ones. The first of each is right."""
    y, bad = y.copy(), np.zeros(len(y), dtype=bool)
    while bad.mean() < 0.10:
        start, length = random.integers(1, len(y)), random.integers(10, 31)
        rows = slice(start + 1, start + length)
        if not bad[start : start + length].any():
            y[rows] = y[start]
            bad[rows] = True
    return y, bad


def shifts(y: Array, random: np.random.Generator) -> tuple[Array, NDArray[np.bool_]]:
    """Two level shifts of the second half, each of 3 to 6 standard deviations; and scattered errors."""
    y, spread = y.copy(), y[: len(y) // 2].std()
    for start in (int(0.6 * len(y)), int(0.8 * len(y))):
        y[start:] += random.choice([-1.0, 1.0]) * random.uniform(3.0, 6.0) * spread
    bad = random.random(len(y)) < 0.05
    errors = random.choice([-1.0, 1.0], len(y)) * random.uniform(3.0, 9.0, len(y)) * spread
    return np.where(bad, y + errors, y), bad


KINDS = {"none": lambda y, random: (y, np.zeros(len(y), dtype=bool)), "scattered": scattered, "bursts": bursts,
         "stuck": stuck, "shifts": shifts}  # fmt: skip


def problem(half: str, name: str, kind: str, seed: int) -> Problem:
    """Times, values, function and mask of the bad values."""
    key = zlib.crc32(name.encode())
    random = np.random.default_rng([seed, key])
    t = np.sort(random.uniform(0.0, ROWS / 10.0, ROWS))
    f = FUNCTIONS[half][name](t, random)
    f = (f - f.mean()) / f.std()
    clean = f + NOISE * random.standard_normal(ROWS)
    y, bad = KINDS[kind](clean, np.random.default_rng([seed, key, zlib.crc32(kind.encode())]))
    if kind == "shifts":
        f = f + (np.where(bad, np.nan, y) - clean)
        f[np.isnan(f)] = np.interp(t[np.isnan(f)], t[~np.isnan(f)], f[~np.isnan(f)])
    return t, y, f, bad


def rolling_median(y: Array, width: int = 21, threshold: float = 3.0) -> tuple[Array, NDArray[np.bool_]]:
    """What people use, Hampel's filter: a centred median, and flags beyond three robust standard deviations from it."""
    padded = np.pad(y, width // 2, mode="edge")
    windows = np.lib.stride_tricks.sliding_window_view(padded, width)
    centre = np.median(windows, axis=1)
    spread = np.median(np.abs(windows - centre[:, None]), axis=1) / 0.6745
    return centre, np.abs(y - centre) > threshold * np.maximum(spread, 1e-12)


def _fit(t: Array, y: Array, weight: str) -> RCGPSeries:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        return RCGPSeries(weight=weight, stuck=True).fit(t, y)


def precision_recall(flags: NDArray[np.bool_], bad: NDArray[np.bool_]) -> tuple[float, float]:
    hits = float((flags & bad).sum())
    return hits / max(flags.sum(), 1), hits / max(bad.sum(), 1)


def judge(half: str, name: str, kind: str, seed: int) -> list[dict[str, object]]:
    """Each method on one problem: a record for each."""
    t, y, f, bad = problem(half, name, kind, seed)
    base = {"half": half, "function": name, "kind": kind, "seed": seed}
    records: list[dict[str, object]] = []
    clean = problem(half, name, "none", seed)[1] if kind != "shifts" else np.where(bad, np.nan, y)
    for method in ("clean GP", "GP", "learned law"):
        began = time.perf_counter()
        model = _fit(t, clean if method == "clean GP" else y, "learned" if method == "learned law" else "constant")
        seconds = time.perf_counter() - began
        record = {**base, "method": method, "error": float(np.abs(model.predict(t) - f).mean()), "seconds": seconds}
        if method != "clean GP":
            record["precision"], record["recall"] = precision_recall(model.outliers_, bad)
        records.append(record)
    centred = FilterCentredGP(torch.from_numpy(t), torch.from_numpy(y), mean="median")
    centred.fit()
    mean = centred.posterior(torch.from_numpy(t)).mean.numpy()
    records.append({**base, "method": "ST-RCGP's rule", "error": float(np.abs(mean - f).mean())})
    centre, flags = rolling_median(y)
    precision, recall = precision_recall(flags, bad)
    records.append({**base, "method": "rolling median", "error": float(np.abs(centre - f).mean()),
                    "precision": precision, "recall": recall})  # fmt: skip
    records.append({**base, "method": "stream", **_stream(t, y, bad, kind)})
    return records


def _stream(t: Array, y: Array, bad: NDArray[np.bool_], kind: str) -> dict[str, object]:
    """A model of the first half, fed with the second: coverage, flags, and how long level shifts take."""
    stream = _fit(t[:HISTORY], y[:HISTORY], "learned").stream()
    found = stream.update_many(t[HISTORY:], y[HISTORY:])
    new, wrong = y[HISTORY:], bad[HISTORY:]
    settled = np.ones(len(new), dtype=bool)
    delays = []
    if kind == "shifts":
        for start in (int(0.6 * ROWS) - HISTORY, int(0.8 * ROWS) - HISTORY):
            settled[start : start + 10] = False
            inside = (new >= found.lower) & (new <= found.upper) & ~wrong
            run = [i for i in range(start, len(new) - 3) if inside[i : i + 3].sum() + wrong[i : i + 3].sum() == 3]
            delays.append(run[0] - start if run else len(new))
    good = settled & ~wrong
    precision, recall = precision_recall((found.probability > FLAGGED)[settled], wrong[settled])
    coverage = float(((new >= found.lower) & (new <= found.upper))[good].mean())
    return {"precision": precision, "recall": recall, "coverage": coverage, "delays": delays,
            "shifts": int(found.shift.sum())}  # fmt: skip


def accuracy(half: str) -> None:
    done = [json.loads(line) for line in RECORDS.read_text().splitlines()] if RECORDS.exists() else []
    known = {(r["half"], r["function"], r["kind"], r["seed"]) for r in done}
    for name in FUNCTIONS[half]:
        for kind in KINDS:
            for seed in SEEDS[half]:
                if (half, name, kind, seed) in known:
                    continue
                records = judge(half, name, kind, seed)
                with RECORDS.open("a") as file:
                    file.writelines(json.dumps(record) + "\n" for record in records)
                done += records
    print(table([r for r in done if r["half"] == half]))


def table(records: list[dict[str, object]]) -> str:
    """Geometric mean of errors over the clean GP's, and means of the rest, for each kind and method."""
    own = {(r["function"], r["kind"], r["seed"]): r["error"] for r in records if r["method"] == "clean GP"}
    lines = ["| errors | method | error | worst | precision | recall | coverage | longest delay |",
             "|---|---|---:|---:|---:|---:|---:|---:|"]  # fmt: skip
    for kind in KINDS:
        for method in ("learned law", "GP", "ST-RCGP's rule", "rolling median", "stream"):
            rows = [r for r in records if r["kind"] == kind and r["method"] == method]
            if not rows:
                continue
            ratios = [float(r["error"]) / float(own[r["function"], r["kind"], r["seed"]]) for r in rows if "error" in r]  # type: ignore[arg-type]
            cells = [f"{np.exp(np.mean(np.log(ratios))):.3f}", f"{max(ratios):.2f}"] if ratios else ["", ""]
            for key in ("precision", "recall", "coverage"):
                values = [float(r[key]) for r in rows if key in r]  # type: ignore[arg-type]
                cells.append(f"{np.mean(values):.3f}" if values and (kind != "none" or key == "coverage") else "")
            delays = [d for r in rows for d in r.get("delays", [])]  # type: ignore[attr-defined]
            cells.append(str(max(delays)) if delays else "")
            lines.append(f"| {kind} | {method} | {' | '.join(cells)} |")
    return "\n".join(lines)


def speed() -> None:
    """A million irregular points: evidence with gradient beside celerite2, a robust fit, a stream. One thread."""
    import celerite2
    import gpytorch

    from rcgp import StateSpaceRCGP, fit_robust
    from rcgp.training.objectives import marginal

    torch.set_num_threads(1)
    n = 10**6
    random = np.random.default_rng(0)
    t = np.sort(random.uniform(0.0, n / 10.0, n))
    f = np.sin(t / 2.0) + 0.5 * np.sin(t / 7.0 + 1.0)
    clean = f + 0.1 * random.standard_normal(n)
    y = clean.copy()
    bad = random.random(n) < 0.1
    y[bad] += random.choice([-1.0, 1.0], bad.sum()) * random.uniform(1.0, 6.0, bad.sum())

    small = StateSpaceRCGP(torch.from_numpy(t[:500]), torch.from_numpy(y[:500]))
    fit_robust(small)
    robust = StateSpaceRCGP(torch.from_numpy(t), torch.from_numpy(y))
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    began = time.perf_counter()
    fit_robust(robust)
    seconds = time.perf_counter() - began
    flags = (robust.outlier_probability() > FLAGGED).numpy()
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    precision, recall = precision_recall(flags, bad)
    print(
        f"robust fit: {seconds:.1f} s, peak {peak / 1e6:.2f} GB, {before / 1e6:.2f} GB with libraries and data before"
    )
    print(f"precision {precision:.4f}, recall {recall:.4f}")

    kernel = gpytorch.kernels.ScaleKernel(gpytorch.kernels.MaternKernel(nu=1.5)).double()
    model = StateSpaceRCGP(torch.from_numpy(t), torch.from_numpy(clean), kernel=kernel)
    process = celerite2.GaussianProcess(celerite2.terms.Matern32Term(sigma=1.0, rho=1.0))

    def celerite() -> None:
        process.compute(t, yerr=0.1)
        process.log_likelihood(clean)

    def ours() -> None:
        torch.autograd.grad(marginal(model), list(model.parameters()), allow_unused=True)

    def value() -> None:
        with torch.no_grad():
            marginal(model)

    times = {}
    ours()
    for name, call in (("celerite2, value", celerite), ("value", value), ("value and gradient", ours)):
        runs = []
        for _ in range(9):
            began = time.perf_counter()
            call()
            runs.append(time.perf_counter() - began)
        times[name] = min(runs)
        print(f"{name}: {times[name]:.4f} s, {times[name] / times['celerite2, value']:.2f} of celerite2's value")
    stream = robust.stream()
    pairs = list(zip((t[-1] + 0.1 * np.arange(1, 200_001)).tolist(), y[:200_000].tolist(), strict=True))
    stream.update(*pairs[0])
    began = time.perf_counter()
    for pair in pairs[1:]:
        stream.update(*pair)
    print(f"stream: {(len(pairs) - 1) / (time.perf_counter() - began):.0f} updates in a second")


def page() -> None:
    """Put the table of the judging half into the page of series."""
    records = [json.loads(line) for line in RECORDS.read_text().splitlines()]
    text = PAGE.read_text()
    start, end = "<!-- table: accuracy -->\n", "<!-- end -->"
    head, rest = text.split(start)
    tail = rest.split(end, 1)[1]
    PAGE.write_text(head + start + table([r for r in records if r["half"] == "judge"]) + "\n" + end + tail)


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("what", choices=["accuracy", "speed", "page"])
    parser.add_argument("--half", choices=["tune", "judge"], default="tune")
    arguments = parser.parse_args()
    if arguments.what == "accuracy":
        torch.set_num_threads(1)
        accuracy(arguments.half)
    elif arguments.what == "speed":
        speed()
    else:
        page()
