"""Names that a script might use, on purpose or not, and a pilot that is full of them."""

from __future__ import annotations

from dataclasses import replace

from report import sample

NAMES = (
    "<script>alert(1)</script>",
    "</script><script>alert(2)</script>",
    "<!--",
    "]]>",
    "\"'`onload=alert(3)",
    "{{ 7 * 7 }}{% raw %}",
    "<b>bold</b><img src=x onerror=alert(4)>",
    "[red]markup[/red]",
    "\N{ROCKET}\N{WOMAN}\u200d\N{ROCKET}",
    "שלום\u202e reversed",
    "line\u2028line\u0000nul\x1b[31m",
    "%{x}<br>var(--fail)",
    "var(--fail)",
    "long" * 80,
)


#: A metric with slices: the configuration lets no "/" into it, for the gates' names.
METRIC = "<i onclick=alert(5)>metric"


def pilot():
    """Verdict, runs and ledger with every name in every place that a user can fill."""
    runs, candidates = {}, []
    for place, name in enumerate(NAMES[:4]):
        recipe = name if place else sample.BASELINE
        for seed in sample.SEEDS:
            run = sample.run("bf16", seed, 30)
            result = replace(
                run.result,
                metrics=dict.fromkeys(NAMES, 1.0 + seed / 10),
                slices={other: {METRIC: 1.0 + seed} for other in NAMES},
                kinds=dict.fromkeys(NAMES, 10000),
            )
            steps = replace(
                run.steps,
                applied=(False, *run.steps.applied[1:]),
                culprit=(NAMES[6], *run.steps.culprit[1:]),
                reason=(NAMES[1], *run.steps.reason[1:]),
            )
            runs[recipe, seed] = replace(
                run,
                result=result,
                steps=steps,
                environment={NAMES[1]: NAMES[0], "torch": NAMES[place]},
                plan=run.plan.replace("blocks.0.up.weight", "</script><i>"),
                faults=(NAMES[0],),
            )
        if not place:
            continue
        gates = [
            sample.gate(f"quality.{other}", [0.1, 0.2, 0.4], 0.3, owner=other, reason=other)
            for other in NAMES
        ]
        gates += [
            sample.gate(f"quality.{METRIC}/{other}", [0.1, 0.2, 0.3], 1.0, reason=other)
            for other in NAMES
        ]
        one = sample.candidate("bf16", sample.runs(3))
        candidates.append(replace(one, recipe=recipe, gates=tuple(gates), outcome="inconclusive"))
    candidates.append(replace(candidates[0], recipe="x", outcome=None, error=NAMES[1], gates=()))
    verdict = sample.verdict(
        candidates=tuple(candidates), notes=NAMES, command=NAMES, pilot=sample.PILOT
    )
    entries = [
        sample.entry(1, "override", recipe=NAMES[1], gate=f"quality.{NAMES[0]}", by=other,
                     reason=other)
        for other in NAMES
    ]  # fmt: skip
    return verdict, runs, entries
