"""Indices of Debian packages, and a twin that reads them word by word."""

from collections import Counter

import numpy as np

from helpers.prepare import command

INDEX = """\
Package: gcc-12
Source: gcc
Version: 12.2
Maintainer: Debian GCC Maintainers <debian-gcc@lists.debian.org>
Depends: cpp-12 (= 12.2), libc6 (>= 2.36), libgcc-12-dev:any | libgcc-dev,
 binutils [amd64] (>> 2.38) <!nocheck>
Pre-Depends: dpkg
Recommends: libc6-dev (>= 2.13-5)|libc-dev
Suggests: gcc-doc
Description: GNU C compiler, the C compiler of GNU
 A line more.
 .
 And an other: one.
Tag: devel::compiler, devel::lang:c,
 role::program
Section: devel

Package: base-files
Maintainer: Santiago Vila
Section: admin
Description: Debian base system

Package: gcc-12
Version: 11.0
Depends: something-else
Description: an older one
"""


def random_index(packages=60, seed=0):
    rng = np.random.default_rng(seed)
    vocabulary = [f"word{i}" for i in range(30)] + ["éclair", "Straße", "x86"]

    def draw(most, names):
        return [str(rng.choice(names)) for _ in range(rng.integers(0, most + 1))]

    names = [f"lib{i}-dev" if i % 3 else f"tool{i}" for i in range(packages)]
    text = []
    for name in names:
        described = " ".join(draw(6, vocabulary)).capitalize()
        text.append(f"Package: {name}\nMaintainer: Team {rng.integers(3)} <t@x.org>\nSection: misc")
        text.append(f"Description: {described}")
        if tags := draw(3, ["a::b", "c::d", "e::f"]):
            text.append("Tag: " + ",\n ".join(tags))
        for field in ("Depends", "Pre-Depends", "Recommends"):
            if needed := draw(3, names):
                text.append(f"{field}: " + rng.choice([", ", " | ", " (>= 1), "]).join(needed))
        text.append("")
    return "\n".join(text)


def naive_rows(index):
    """``[({(field, word): count}, {labels})]`` of the packages that need others."""
    rows = []
    for stanza in index.split("\n\n"):
        fields = dict(
            line.split(": ", 1) for line in stanza.replace(",\n ", ", ").splitlines() if line
        )
        needed = set()
        for field in ("Depends", "Pre-Depends", "Recommends"):
            for part in fields.get(field, "").replace("|", ",").replace("(>= 1)", "").split(","):
                needed |= {part.strip()} - {""}
        counts = Counter()
        for field in ("Package", "Description", "Section"):
            parts = fields.get(field, "").lower().replace("-", " ").split()
            counts.update((field, word) for word in parts)
        team = fields["Maintainer"].split()[:2] if stanza else []
        counts.update(("Maintainer", word.lower()) for word in team)
        counts.update(("Tag", tag) for tag in fields.get("Tag", "").split(", ") if tag)
        if needed:
            rows.append((counts, needed))
    return rows


def build(root, index, **arguments):
    root.mkdir(exist_ok=True)
    path = root.parent / "Packages"
    path.write_bytes(index.encode() if isinstance(index, str) else index)
    command("debian").prepare(root, index=path, **arguments)
