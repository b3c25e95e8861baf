"""Looped twins of `slide/report/page.py`."""

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
    """For each bin that has labels: name, labels, and for k of 1, 3, 5 recall and part of P@k."""
    lines = []
    for name, (least, most) in RANGES.items():
        inside = {label for label, count in enumerate(counts) if least <= count <= most}
        if not inside:
            continue
        true = sum(label in inside for labels in truth for label in labels)
        parts = []
        for k in (1, 3, 5):
            hit = sum(
                label in inside and label in labels
                for labels, answers in zip(truth, found, strict=True)
                for label in answers[:k]
            )
            parts.append((hit / true if true else None, hit / (k * len(found))))
        lines.append((name, len(inside), parts))
    return lines


def label_facts(label, truth, found):
    """Rows that have a label, rows where it was found, and rows where it was answered."""
    rows = [label in labels for labels in truth]
    answered = [label in answers for answers in found]
    both = [a and b for a, b in zip(rows, answered, strict=True)]
    return sum(rows), sum(both), sum(answered)
