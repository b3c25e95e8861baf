"""Random damage to the bytes of files.

``SLIDE_FUZZ=20`` makes twenty times as many files, and others in each run. At their end the tests
say which ``SLIDE_FUZZ_SEED`` draws them again. Without ``SLIDE_FUZZ`` all runs draw the same.
"""

import os
import random
import re

import hypothesis

COMPILED = os.environ.get("NUMBA_DISABLE_JIT", "0") == "0"
REPEAT = float(os.environ.get("SLIDE_FUZZ", "1" if COMPILED else "0.1"))
SEED = 0
if REPEAT > 1:  # In the environment, because processes that share the tests must draw the same.
    drawn = str(random.SystemRandom().randrange(1 << 32))
    SEED = int(os.environ.setdefault("SLIDE_FUZZ_SEED", drawn))
SNIPPETS = [
    *(
        b"\0",
        b"\xff",
        b"\xef\xbb\xbf",
        "é".encode(),
        "\uff11".encode(),
        b"\xc2\xa0",
        b"\v",
        b"\x1a",
    ),
    *(b"\r\n", b"\n", b"\r", b" ", b"\t", b"\n\n", b" \n"),
    *(b",", b":", b"-", b"+", b".", b"e", b"#"),
    *(b"9" * 30, b"0" * 400, b"1" * 5000, b"2147483647", b"2147483648", b"4294967296", b"-1"),
    *(b"1e39", b"1e-400", b"nan", b"-inf", b"0x10", b"1_0", b" 1:1", b" 0:0", b"1,", b" # x"),
]

JSON_SNIPPETS = [
    *(b'"', b"{", b"}", b"[", b"]", b"[]", b"{}", b"null", b"true,", b'"1"', b'"01": 3e38, '),
    *(b'"1": 2, ', b'"labels": null, ', b'"text": "", ', b"\\ud800", b"\\u0661", b"[" * 3000),
    *(b"-", b"NaN", b"1e400", b"9" * 5000, b"0.5, ", b'"red", ', b"\xed\xa0\x80"),
]


def rng_of(*names):
    """Random numbers of a file, or of a test."""
    return random.Random(" ".join(map(str, (SEED, *names))))


def fuzzed(examples):
    """Hypothesis tries so many examples in a run of usual length."""

    def decorate(test):
        options = {"max_examples": max(5, int(examples * REPEAT)), "derandomize": REPEAT <= 1}
        checks = [hypothesis.HealthCheck.function_scoped_fixture]
        kept = {"deadline": None, "database": None, "suppress_health_check": checks}
        test = hypothesis.settings(**options, **kept)(test)
        return hypothesis.seed(SEED)(test) if REPEAT > 1 else test

    return decorate


def flip(rng, data):
    at = rng.randrange(len(data))
    return data[:at] + bytes([data[at] ^ 1 << rng.randrange(8)]) + data[at + 1 :]


def piece(rng, data):
    """Where a short piece begins and ends."""
    begin = rng.randrange(len(data))
    return begin, begin + rng.choice([1, 1, 2, 5, 30])


def delete(rng, data):
    begin, end = piece(rng, data)
    return data[:begin] + data[end:]


def duplicate(rng, data):
    begin, end = piece(rng, data)
    return data[:end] + data[begin:]


def move(rng, data):
    begin, end = piece(rng, data)
    at = rng.randrange(len(data))
    return data[:at] + data[begin:end] + data[at:]


def truncate(rng, data):
    return data[: rng.randrange(len(data))]


def insert(rng, data):
    at = rng.randrange(len(data) + 1)
    return data[:at] + rng.choice(SNIPPETS) + data[at:]


def insert_json(rng, data):
    at = rng.randrange(len(data) + 1)
    return data[:at] + rng.choice(JSON_SNIPPETS) + data[at:]


def replace_number(rng, data):
    at = rng.choice([match.span() for match in re.finditer(rb"\d+", data)] or [(0, 0)])
    other = rng.choice([b"0", b"1", b"59", b"60", b"39", b"40", b"12", b"13", b"-1", b"9" * 12])
    return data[: at[0]] + other + data[at[1] :]


def move_line(rng, data):
    lines = data.splitlines(keepends=True)
    line = lines.pop(rng.randrange(len(lines)))
    lines.insert(rng.randrange(len(lines) + 1), line)
    return b"".join(lines)


def change_line_ends(rng, data):
    return data.replace(b"\n", rng.choice([b"\r\n", b"\r", b"\n\n", b" \n"]))


BINARY = [flip, flip, delete, duplicate, move, truncate, insert]
TEXTUAL = [*BINARY, insert, insert, replace_number, replace_number, move_line, change_line_ends]
JSON = [*TEXTUAL, *[insert_json] * 6]


def damage(rng, data, ways):
    for _ in range(rng.choice([1, 1, 1, 2, 4])):
        data = rng.choice(ways)(rng, data) if data else data
    return data
