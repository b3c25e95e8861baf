"""Looped twins of `tests/benchmarks/frequency.py`."""

RANGES = {
    "0": (0, 0),
    "1": (1, 1),
    "2-4": (2, 4),
    "5-9": (5, 9),
    "10-49": (10, 49),
    "50-499": (50, 499),
    "500+": (500, 10**9),
}


def by_frequency(counts, truth, found):
    """For each bin its name, labels, share of true labels, recall and contribution.

    Args:
        counts: how many training rows have each label.
        truth: lists of true labels, one for each row.
        found: lists of answers, one for each row; -1: no more.
    """
    total = sum(len(row) for row in truth)
    answers = sum(len(row) for row in found)
    lines = []
    for name, (least, most) in RANGES.items():
        inside = [label for label, count in enumerate(counts) if least <= count <= most]
        true = hit = 0
        for labels, asked in zip(truth, found, strict=True):
            for label in labels:
                if label in inside:
                    true += 1
                    hit += label in asked
        recall = hit / true if true else None
        lines.append((name, len(inside), true / total, recall, hit / answers))
    return lines
