"""The page of mutants.py: what was noticed, and why the rest was not (mutants_judged.json)."""

import json
from pathlib import Path
from typing import Any

from report import table
from rows import Row, origin

# Module, line of code, change: a verdict of `VERDICTS` and a reason, as "verdict: reason".
JUDGED = Path(__file__).with_name("mutants_judged.json")
VERDICTS = {
    "equivalent": "no result is another one",
    "speed": "only time or memory differ",
    "elsewhere": "tests of another run of .ci/run notice it",
    "gap": "a test is missing",
    "open": "not judged yet",
}


def verdict(judged: dict[str, Any], module: str, survivor: dict[str, str]) -> tuple[str, str]:
    """The verdict on a survivor, and its reason."""
    said = judged.get(module, {}).get(survivor["code"], {}).get(survivor["change"], "open")
    word, _, reason = said.partition(": ")
    if word not in VERDICTS:
        raise ValueError(f"{JUDGED.name}: {word!r} is none of {', '.join(VERDICTS)}")
    return word, reason


def percent(part: int, whole: int) -> str:
    """A share in percent; of nothing it is all."""
    return f"{100 * part / whole:.0f} %" if whole else "100 %"


def page(found: dict[str, Any]) -> str:
    """The generated page."""
    judged = json.loads(JUDGED.read_text())
    cells, left, total, counts = [], [], 0, dict.fromkeys(VERDICTS, 0)
    for row in found["rows"]:
        survivors = row["survivors"]
        total += row["tried"]
        cells.append(cell(row, len(survivors)))
        for each in survivors:
            word, reason = verdict(judged, row["module"], each)
            counts[word] += 1
            why = f"{word}: {reason}" if reason else word
            change = " ".join(each["change"].split())
            left.append(f"* `{row['module']}`, `{each['code']}`: `{change}`; {why}")
    same = counts["equivalent"] + counts["speed"]
    words = "; ".join(f"{word} ({text}): {counts[word]}" for word, text in VERDICTS.items())
    return (
        f"# Mutants\n\nOf {total} small changes of the code, {percent(total - len(left), total)} "
        "are noticed by the tests of the changed module; of those that change a result, "
        f"{percent(total - len(left), total - same)}. Kernels ran as plain Python.\n\n"
        f"{table(cells)}\nNot noticed: {words}.\n\n" + "\n".join(left) + "\n"
    ) + origin([row | {"code": row["commit"]} for row in found["rows"]], "module")


def cell(row: Row, survivors: int) -> dict[str, object]:
    """The line of a module."""
    tried = row["tried"]
    sizes = {"module": row["module"], "mutants": row["mutants"], "tried": tried}
    return sizes | {"noticed": percent(tried - survivors, tried)}
