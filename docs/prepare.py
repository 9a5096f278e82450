"""What the site needs of results/: its files beside the pages, and its numbers in them,
in README, too.

    python docs/prepare.py            # copy results/ here, bring every table up to date
    python docs/prepare.py --check    # only say whether a table is out of date

A table of numbers stands between `<!-- numbers: FILE WHAT -->` and `<!-- end -->`, the
options of the command line likewise, and nothing there is written by hand.
"""

from __future__ import annotations

import re
import shutil
import sys
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

import held
import options
from held import RESULTS, read

DOCS = Path(__file__).parent
sys.path.append(str(DOCS.parent / "benchmarks"))
import plan  # noqa: E402

MARKED = re.compile(
    r"(<!-- (?:numbers|options): (.+?) -->\n).*?(<!-- end -->)", re.DOTALL
)
# Links that lead out of results/.
OUTSIDE = re.compile(r"\[([^\]]+)\]\((?:\.\./)+(?!figure|metrics|table1)[^)]*\)")

MODELS = {
    "vae": "VAE",
    "statistician": "Neural Statistician",
    "dkm": "Dynamic Kanerva Machine",
    "gaussian": "Gaussian memory",
    "categorical": "categorical memory",
}


def table(headings: str, rows: Iterable[Iterable[str]], side: str = "---:") -> str:
    """Markdown, numbers to the right; `---` puts words to the left."""
    names = headings.split(" | ")
    lines = [names, ["---"] + [side] * (len(names) - 1), *rows]
    return "\n".join("| " + " | ".join(line) + " |" for line in lines)


def table1(dataset: str) -> str:
    from vbmem.paper.table1 import FRAME, PAPER, lead_in_words, leads
    from vbmem.train.evaluation import bits_per_dimension

    summary = read("table1.json")
    measured = {row["model"]: row for row in summary.get(dataset, [])}
    rows = []
    for model, paper in PAPER[dataset].items():
        row = measured.get(model, {})
        ways = (row.get("as_in_paper"), row.get("ours"))
        cells = [held.spread(way) if way else "" for way in ways]
        nats = [paper, *(way["mean"] for way in ways if way)]
        bits = ", ".join(f"{bits_per_dimension(value, FRAME):.2f}" for value in nats)
        rows.append([MODELS[model], f"{paper:.1f}", *cells, bits])
    lead = leads(summary)[dataset]
    words = {"as_in_paper": "in the paper's settings", "ours": "in ours"}
    found = [f"{words[way]} {lead_in_words(lead[way])}" for way in lead]
    headings = "model | paper | its settings, here | ours | in bits per dimension"
    return (
        f"{table(headings, rows)}\n\n"
        f"The categorical memory less the VAE: {', '.join(found)}; "
        "by Welch's t-test over seeds."
    )


def figure2() -> str:
    claims = {
        "online": ("DKM online", "2x to 14x"),
        "iterative": ("DKM batched, iterative", "at least 1.64x"),
    }
    rows = []
    for baseline, low, high, ahead in held.ratios("figure2/figure2.json"):
        name, claim = claims[baseline]
        rows.append([name, f"{low:.2f}x to {high:.2f}x", ahead, claim])
    return table("baseline | ratio of the bounds | ours ahead in | paper", rows)


def pair(measured: dict[str, Any], space: str) -> str:
    def value(what: str) -> float:
        found = measured[f"{space} {what}"]
        return float(found["mean"] if isinstance(found, dict) else found)

    return f"{value('precision'):.2f} / {value('coverage'):.2f}"


def samples() -> str:
    mixture, tree = (
        read(f"metrics/cifar10-{kind}.json")["samples"] for kind in ("mixture", "tree")
    )
    rows = [
        [
            way,
            *(
                pair(model[way], space)
                for model in (mixture, tree)
                for space in ("pixels", "codes")
            ),
        ]
        for way in mixture
    ]
    return table(
        "precision / coverage | mixture: pixels | codes | tree: pixels | codes", rows
    )


def crisp_samples() -> str:
    measured = read("metrics/cifar10-mixture.json")["crisp samples"]
    rows = [
        [way, *(pair(row, space) for space in ("pixels", "codes"))]
        for way, row in measured.items()
    ]
    return table("precision / coverage | pixels | codes", rows)


def recall() -> str:
    errors = read("metrics/cifar10-mixture.json")["recall"]["error"]
    ways = [
        "damaged",
        "encoder-decoder",
        "H=10, 2 reads",
        "H=10, half trusted, 1 reads",
        "H=10, half trusted, 2 reads",
        "H=64, 2 reads",
        "H=64, half trusted, 2 reads",
        "nearest frame",
    ]
    rows = [
        [damage, *(f"{error[way]['mean']:.4f}" for way in ways)]
        for damage, error in errors.items()
    ]
    return table("damage | " + " | ".join(ways), rows)


def sizes() -> str:
    rows = [
        [
            f"{cell['frames']}, {cell['clusters']}",
            f"{cell['bound per frame']:.0f}",
            pair(cell["samples"], "codes"),
            pair(cell["reads"], "codes"),
        ]
        for cell in read("metrics/cifar10-mixture.json")["sizes"]
        if cell["clusters"] in (10, 20, 100, 150)
    ]
    return table("T, H | memory's bound, nats a frame | samples | after 12 reads", rows)


def size_of(entry: dict[str, Any]) -> str:
    return ", ".join(str(number) for number in entry["size"].values())


def write() -> str:
    rows = [
        [
            size_of(entry),
            *(
                f"{entry['ratios'][peer]:.3g}x"
                for peer in ("transcription", "sklearn_full", "sklearn_diag")
            ),
            *(
                f"{entry['peak_extra_mb'][who]:.0f} MB"
                for who in ("vbmem", "transcription")
            ),
        ]
        for entry in read("write.json")["cpu"]
    ]
    return table(
        "B, T, H, K, C | transcription | sklearn, full | sklearn, diagonal"
        " | we add | transcription adds",
        rows,
    )


def scaling() -> str:
    rows = []
    for part in ("T", "H"):
        entries = read("write.json")["scaling"][part]
        costs = [entry["us_per_frame_and_cluster"] for entry in entries]
        rows += [
            [f"{entry['T']:,}", str(entry["H"]), f"{cost / costs[0]:.2f}"]
            for entry, cost in zip(entries, costs, strict=True)
        ]
    return table("frames | clusters | cost of a frame and cluster", rows)


def write_cuda() -> str:
    ways = ("eager", "graph", "compiled_graph")
    rows = [
        [size_of(entry), *(f"{entry['us'][way]:,.0f}" for way in ways)]
        for entry in read("write_cuda.json")["cuda"]
    ]
    return table(
        "B, T, H, K, C | eager, µs | CUDA graph, µs | compiled CUDA graph, µs", rows
    )


def short_episodes() -> str:
    rows = [
        [
            f"{entry['size']['B']:,}",
            *(f"{rate:,}" for rate in entry["memories_a_second"].values()),
            f"{entry['peak_mib_beyond_data']['plain']:,} MiB",
        ]
        for entry in read("write_cuda.json")["episodes"]
    ]
    headings = "episodes | memories a second, plain | expanded | as by default"
    return table(f"{headings} | allocated, plain", rows)


def long_episodes() -> str:
    rows = [
        [
            size_of(entry),
            f"{entry['ms_an_iteration']:.1f}",
            f"{entry['ms_at_least']['half_precision']:.1f}",
            f"{entry['ms_at_least']['reading_codes']:.1f}",
            f"{entry['peak_mib_beyond_data']} MiB",
        ]
        for entry in read("write_cuda.json")["long"]
    ]
    headings = "T, H, K, C | ms an iteration | its products at least | reading at least"
    return table(f"{headings} | allocated", rows)


def train_step() -> str:
    rows = [
        [
            f"{number}: {model}",
            f"{timed['ms']:.2f}",
            f"{timed['ratio']:.2f} x {timed['peer']}" if "ratio" in timed else "",
        ]
        for number, run in enumerate(read("train_step.json")["runs"], 1)
        for model, timed in run["models"].items()
    ]
    return table("run: model | ms a step | against its peer", rows)


def estimator() -> str:
    rows = []
    for entry in read("estimator.json")["results"]:
        ours, *peers = (
            entry["estimators"][name]
            for name in ("MemoryMixture", "sklearn full", "sklearn diag")
        )
        rows.append(
            [
                f"{entry['samples']:,} x {entry['features']}",
                *(f"{peer['seconds'] / ours['seconds']:.1f}x" for peer in peers),
                *(f"{way['held_out_log_likelihood']:.2f}" for way in (ours, *peers)),
                f"{entry['truth']:.2f}",
            ]
        )
    headings = (
        "samples x features | full takes | diagonal takes"
        " | ours, nats | full | diagonal | the truth"
    )
    return table(headings, rows)


def better_writes() -> str:
    rows = []
    for write in read("better_writes/test_mixture.json")["writes"]:
        posterior = "factorised" if write.get("factorised") else "joint"
        if not write.get("factorised") and write.get("expand", True):
            posterior = "joint, expanded"
        start = write["start"]
        if "starts" in write:
            start += f", best of {write['starts']}"
        gain = f"{write['gain']:+.1f} ± {write['gain_error']:.1f}"
        numbers = (
            f"{write[name]:.1f}"
            for name in ("memory_bound", "spread_over_seeds", "image_bound")
        )
        rows.append([posterior, start, str(write["iterations"]), *numbers, gain])
    headings = "posterior | start | iterations | memory | spread | pictures | gain"
    return table(headings, rows)


def living() -> str:
    rows = []
    for entry in read("living.json")["living"]:
        names = ("update", "forget", "merge", "merge, as many clusters")
        sizes = [f"{entry['frames']}, {entry['clusters']}", entry["prior"]]
        rows.append([*sizes, *(f"{entry[name]:+.2f}" for name in names)])
    headings = "frames, clusters | prior | update | forget | merge | as many clusters"
    return table(headings, rows)


def tables() -> str:
    """Estimators on real tables: nats a sample in the mean over splits."""
    real = read("estimator.json")["real"]
    names = list(next(iter(real.values())))
    rows = []
    for name in names:
        nats = [entry[name]["nats"] for entry in real.values()]
        rows.append([name, *(f"{sum(each) / len(each):.2f}" for each in nats)])
    return table("estimator | " + " | ".join(real), rows)


def tables_in_short() -> str:
    """The same of ours and of the best other one for each table."""
    ours, best = [], []
    for entry in read("estimator.json")["real"].values():
        nats = {
            name: sum(one["nats"]) / len(one["nats"]) for name, one in entry.items()
        }
        ours.append(f"{nats.pop('MemoryMixture'):.2f}")
        best.append(f"{max(nats.values()):.2f}")
    names = " | ".join(read("estimator.json")["real"])
    rows = [["MemoryMixture", *ours], ["the best of seven peers", *best]]
    return table("estimator | " + names, rows)


def novelty(model: str) -> str:
    names = {"score": "`Model.score`", "bound": "`Model.bound`"}
    names["code term"] = "`WrittenMemory.score`"
    curves = read("novelty.json")["models"][model]["area_under_curve"]
    rows = []
    for detector, row in curves.items():
        cells = [f"{c['mean']:.3f} ± {c['standard_error']:.3f}" for c in row.values()]
        rows.append([names.get(detector, detector), *cells])
    return table("detector | written | class | crops", rows)


def called_known() -> str:
    rows = []
    for model, found in read("novelty.json")["models"].items():
        for question, row in found["called_known"].items():
            cells = [f"{row[kind]['mean']:.1%}" for kind in ("known", "new", "plain")]
            rows.append([f"{model}, {question}", *cells])
    headings = "memory | should be known | should be new | plain colours"
    return table(headings, rows)


def episodes() -> str:
    """When a memory pays: models by what the frames of an episode share."""
    from vbmem.paper.episodes_table import rows

    found = rows(read("episodes/episodes.json"))
    return table(" | ".join(found[0]), (row.values() for row in found))


def views() -> str:
    """Bounds, leads over the best VAE, and what is paid, of networks told of views."""
    from vbmem.paper.training import as_text

    found = read("views/views.json")
    rows = []
    for name, model in found["models"].items():
        lead = model["lead"] if name != found["best VAE"] else None
        error = (lead or {}).get("standard_error")
        cells = [as_text(model["elbo_per_frame"], ".1f"), as_text(lead, "+.1f")]
        cells.append(f"{error:.1f}" if error else "")
        cells += [as_text(model[term], ".0f") for term in ("log_likelihood", "kl")]
        rows.append([f"`{name}`", *cells, str(model["seeds"])])
    headings = "model | bound | lead | its standard error | likelihood | paid | seeds"
    return table(headings, rows)


def characters(binarised: str) -> str:
    """Bounds of episodes of one character, and the leads of the first model."""
    found = read(f"few_shot/{binarised}.json")
    sizes = list(next(iter(found["models"].values()))["bound"])
    rows = [
        [f"`{name}`"]
        + [f"{model['bound'][size]['elbo_per_frame']['mean']:.1f}" for size in sizes]
        for name, model in found["models"].items()
    ]
    rows += [
        [f"ahead of `{pair['other']}`"]
        + [
            f"{pair[size]['mean']:.1f} ± {pair[size]['standard_error']:.1f}"
            for size in sizes
        ]
        for pair in found["differences"]
    ]
    return table("pictures in an episode | " + " | ".join(sizes), rows)


CHARACTER_MODELS = {
    "omniglot-mixture": "memory, `omniglot-mixture`",
    "omniglot-statistician": "Neural Statistician, ours",
    "omniglot-mixed-statistician": "Neural Statistician, trained on four characters",
    "omniglot-vae": "VAE",
    "omniglot-dkm": "Dynamic Kanerva Machine",
}


def characters_in_short() -> str:
    """The same of models trained on the bound alone, and one lead: over the best."""
    found = read("few_shot/rounded.json")
    others = [
        pair for pair in found["differences"] if pair["other"] in CHARACTER_MODELS
    ]
    sizes = list(found["models"]["omniglot-mixture"]["bound"])
    rows = []
    for name, words in CHARACTER_MODELS.items():
        bound = found["models"][name]["bound"]
        cells = [f"{bound[size]['elbo_per_frame']['mean']:.1f}" for size in sizes]
        rows.append([words, *cells])
    leads = ["lead over the best of these"]
    for size in sizes:
        least = min((pair[size] for pair in others), key=lambda lead: lead["mean"])
        leads.append(f"{least['mean']:.1f} ± {least['standard_error']:.1f}")
    return table("pictures in an episode | " + " | ".join(sizes), [*rows, leads])


def classification() -> str:
    """Characters told apart by every model's own rule, beside published numbers."""
    found = read("few_shot/rounded.json")
    tasks = "20-way 1-shot", "20-way 5-shot"
    rows = []
    for name, model in found["models"].items():
        rule, results = next(iter(model["classification"].items()))
        measured = [
            f"{results[task]['mean']:.1f} ± {results[task]['interval']:.1f}"
            for task in tasks
        ]
        rows.append([f"`{name}`", rule, *measured])
    for name, published in found["published"]["classification"].items():
        rows.append([name, "published", *(f"{published[task]:.1f}" for task in tasks)])
    return table(" | ".join(["model", "rule", *tasks]), rows)


def newcomer() -> str:
    steps = read("newcomer.json")["seconds"]
    rows = [[step, f"{seconds:.0f} s"] for step, seconds in steps.items()]
    return table("step | time", rows)


def others() -> str:
    """What a write of the same codes costs and learns elsewhere."""
    scale = read("scale.json")
    ours = scale["sizes"][-1] | {"iterations": scale["size"]["iterations"]}
    entries = {"`write_stream`": ours, **scale["others"]}
    rows = [
        [
            name,
            f"{one['codes']:,}",
            f"{one['us_a_code_and_iteration']:.2f}",
            str(one["iterations"]),
            f"{one['peak_mb']:.0f} MB",
            f"{one['log_likelihood']:.1f}" if "log_likelihood" in one else "none",
            f"{one['quantisation_error']:.1f}",
        ]
        for name, one in entries.items()
    ]
    best = f"{scale['held_out']['log_likelihood_of_source']:.1f}"
    rows.append(["the source itself", "", "", "", "", best, ""])
    headings = (
        "learner | codes | µs a code and iteration | iterations | peak | nats | error"
    )
    return table(headings, rows)


def crisp() -> str:
    """Sharpness as a share of real pictures', and the Frechet distance to them."""
    report = read("crisp/test.json")
    rows = []
    for clusters, ways in report["clusters"].items():
        for way, painted in ways.items():
            cells = [
                f"{row['sharpness'] / report['real']['sharpness']:.2f},"
                f" {row['frechet']:.2f}"
                for row in painted.values()
            ]
            rows.append([f"H={clusters}, {way}", *cells])
    return table(" | ".join(["sharpness, distance", *painted]), rows)


NUMBERS: dict[str, Callable[[], str]] = {
    "what held": lambda: table("claim | place | here | verdict", held.claims(), "---"),
    "results/claims.json": lambda: table(
        "variant | place | of | bound | difference | broke down", held.variants()
    ),
    "results/claims.json starts": lambda: table(
        "trained from | kmeans++ | random | data | kmeans", held.starts()
    ),
    "results/table1.json cifar10": lambda: table1("cifar10"),
    "results/table1.json celeba": lambda: table1("celeba"),
    "results/figure2/figure2.json": figure2,
    "results/metrics samples": samples,
    "results/metrics crisp samples": crisp_samples,
    "results/metrics recall": recall,
    "results/metrics sizes": sizes,
    "results/write.json ratios": write,
    "results/write.json scaling": scaling,
    "results/write_cuda.json": write_cuda,
    "results/write_cuda.json episodes": short_episodes,
    "results/write_cuda.json long": long_episodes,
    "results/train_step.json": train_step,
    "results/better_writes": better_writes,
    "results/living.json": living,
    "results/estimator.json": estimator,
    "results/estimator.json real": tables,
    "results/estimator.json real, in short": tables_in_short,
    "results/novelty.json cifar10-mixture": lambda: novelty("cifar10-mixture"),
    "results/novelty.json called known": called_known,
    "results/newcomer.json": newcomer,
    "results/episodes/episodes.json": episodes,
    "results/views/views.json": views,
    "results/few_shot/rounded.json": lambda: characters("rounded"),
    "results/few_shot/rounded.json in short": characters_in_short,
    "results/few_shot/random.json": lambda: characters("random"),
    "results/few_shot/rounded.json classification": classification,
    "benchmarks/plan.py measured": lambda: table(plan.MEASURED, plan.checked()),
    "benchmarks/plan.py predicted": lambda: table(
        plan.PREDICTED, plan.predicted(10**9, 10**4, 64)
    ),
    "results/scale.json others": others,
    "results/crisp/test.json": crisp,
    "of the command line": options.reference,
}


def refreshed(text: str) -> str:
    """A page with its tables as results/ has them now."""
    return MARKED.sub(
        lambda match: f"{match[1]}\n{NUMBERS[match[2]]()}\n\n{match[3]}", text
    )


def copy_results() -> None:
    """Pictures, numbers, pages; links that lead out of results/ become plain text."""
    copied = DOCS / "results"
    shutil.rmtree(copied, ignore_errors=True)
    for file in sorted(RESULTS.rglob("*")):
        target = copied / file.relative_to(RESULTS)
        if file.suffix in (".png", ".json"):
            target.parent.mkdir(parents=True, exist_ok=True)
            shutil.copyfile(file, target)
        elif file.suffix == ".md":
            target.parent.mkdir(parents=True, exist_ok=True)
            target.write_text(OUTSIDE.sub(r"\1", file.read_text()))


def main() -> None:
    pages = {
        page: page.read_text()
        for page in [DOCS.parent / "README.md", *sorted(DOCS.rglob("*.md"))]
        if "results" not in page.parts[-3:]
    }
    stale = {
        page: new for page, text in pages.items() if (new := refreshed(text)) != text
    }
    if "--check" in sys.argv:
        if stale:
            names = ", ".join(str(page.relative_to(DOCS.parent)) for page in stale)
            sys.exit(f"stale numbers in {names}; run  python docs/prepare.py")
        return
    for page, text in stale.items():
        page.write_text(text)
    copy_results()


if __name__ == "__main__":
    main()
