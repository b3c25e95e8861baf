"""Plain readers of lines of JSON: texts with labels, and rows to predict."""

import json
import re

import numpy as np

from helpers.naive_rows import BadLine

# float32 rounds larger numbers to infinity.
LIMIT = 2.0**128 - 2.0**103


def parsed(data, row_of):
    """What a function makes of each line; it raises ValueError for a line that is none."""
    rows = []
    for number, line in enumerate(data.split(b"\n"), 1):
        if not line.strip():
            continue
        try:
            rows.append(row_of(line))
        except (ValueError, OverflowError, RecursionError):
            raise BadLine(number) from None
    return rows


def need(condition):
    if not condition:
        raise ValueError


def names_once(pairs):
    need(len(dict(pairs)) == len(pairs))
    return dict(pairs)


def document(line):
    """A text, and its labels without repeats."""
    row = json.loads(line, object_pairs_hook=names_once)
    need(isinstance(row, dict) and isinstance(row.get("text"), str))
    labels = row.get("labels")
    labels = [] if labels is None else labels
    need(isinstance(labels, list) and all(type(label) in (str, int) for label in labels))
    found = []
    for label in map(str, labels):
        if label not in found:
            found.append(label)
    "".join([row["text"], *found]).encode()
    return row["text"], found


def number_of(name):
    """The number that a name without names stands for."""
    if isinstance(name, str):
        need(re.fullmatch(r"-?\d+", name))
        return int(name)
    need(type(name) is int)
    return name


def added_up(pairs):
    """Pairs without repeated names: numbers are added, other values stand once."""
    found = {}
    for name, value in pairs:
        if name in found:
            need(all(isinstance(each, int | float) for each in (value, found[name])))
            value = float(value) + float(found[name])
        found[name] = value
    return list(found.items())


def prediction_row(features, labels):
    """A function of a line: (labels, pairs) of a model of so many features and labels, unnamed."""
    unknown = []

    def row_of(line):
        row = json.loads(line, object_pairs_hook=Pairs)
        need(isinstance(row, Pairs))
        row = dict(added_up(row))
        given, named = row.get("features"), row.get("labels")
        need(isinstance(given, list))  # Of names, or of pairs.
        need(named is None or type(named) is list)
        pairs = [(each, 1.0) for each in given]
        if isinstance(given, Pairs):
            pairs = added_up(given)
        sums = {}
        for name, value in pairs:
            need(isinstance(value, int | float) and abs(value) < LIMIT)
            index = number_of(name)
            need(0 <= index < features)
            sums[index] = sums.get(index, 0.0) + value
        need(all(abs(value) < LIMIT for value in sums.values()))
        own = []
        for name in named or []:
            index = number_of(name)
            if not 0 <= index < labels:
                if str(name) not in unknown:
                    unknown.append(str(name))
                index = labels + unknown.index(str(name))
            if index not in own:
                own.append(index)
        return own, [(index, np.float32(value)) for index, value in sums.items()]

    return row_of


class Pairs(list):
    """The names and values of an object of JSON, in order."""
