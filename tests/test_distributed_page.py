"""The benchmark of several processes: its model of a step, its page, and what it measures."""

import subprocess
import sys
import time

import pytest
import torch

from slide.distributed import Group

NETWORK = {"network": "A small network", "row_bytes": 24}
CASE = {"features": 200, "labels": 300, "batch": 8, "warm": 1, "steps": 2}


def run(processes, link=None, **more):
    """Steps of 40 ms shared and 2 ms common work; 2 messages of 0.5 ms and 131 KB at 1 GB/s."""
    exchange = 0.0 if processes == 1 else 2 * 0.5 + 2 * 0.131072
    found = {"case": "a", "link": link, "processes": processes, "exchange_ms": exchange}
    found |= {"compute_ms": 2 + 40 / processes, "memory": 2**30 / processes}
    found["step_ms"] = found["compute_ms"] + exchange
    found |= {"samples_s": 256e3 / found["step_ms"], "calls": 2, "bytes_sent": 262_144}
    found |= {
        "apart": False,
        "hiding_ms": 0.0,
        "rounds": [0.9 * found["samples_s"], 1.1 * found["samples_s"]],
    }
    messages = {"1": 0.5, "32768": 0.5 + 4 * 32767 / 1e6}
    return {**found, "message_ms": messages, **more}


@pytest.fixture
def work(bench):
    return bench("distributed").fit(run(1), run(2))


def test_the_model_finds_the_work_that_runs_were_made_of(work):
    assert work.shared == pytest.approx(40)
    assert work.common == pytest.approx(2)
    assert work.handling == 0.5
    assert work.copying == pytest.approx(1)  # Milliseconds a megabyte.


def test_it_says_what_it_was_fitted_to(bench, work):
    for processes in (1, 2):
        said = bench("distributed").step_ms(work, processes)
        assert said == pytest.approx(run(processes)["step_ms"], rel=1e-6)
    crowded = bench("distributed").step_ms(work, 4, cores=2)
    assert crowded == pytest.approx(2 * 12 + bench("distributed").exchange_ms(work, 4))


def test_it_knows_what_two_processes_wait_for_each_other(bench):
    late = run(2, exchange_ms=run(2)["exchange_ms"] + 3)
    work = bench("distributed").fit(run(1), late)
    assert work.waiting == pytest.approx(3)
    for processes in (2, 4):
        plain = work._replace(waiting=0.0)
        more = bench("distributed").step_ms(work, processes) - bench("distributed").step_ms(
            plain, processes
        )
        assert more == pytest.approx(3)
    assert bench("distributed").exchange_ms(work, 1) == 0


def test_a_link_adds_delays_and_bytes(bench, work):
    link = bench("links").Link("slow", bits=1e9, delay=5e-4)
    extra = bench("distributed").exchange_ms(work, 4, link) - bench("distributed").exchange_ms(
        work, 4
    )
    # 2 messages are passed on 6 times; each process sends 1.5 times the bytes.
    assert extra == pytest.approx(2 * 6 * 0.5 + 8 * 1.5 * 262_144 / 1e6)


def test_work_hides_one_message(bench, work):
    """The gradient of the weight takes 0.4 ms of one process, and less of each of several."""
    shorter = run(2)["exchange_ms"] - 0.2
    beside = bench("distributed").fit(run(1), run(2, hiding_ms=0.2, exchange_ms=shorter))
    ms, link = bench("distributed").exchange_ms, bench("links").Link("slow", bits=1e9, delay=5e-4)
    assert beside.hiding == pytest.approx(0.4)
    for processes in (2, 4):
        for way in (None, link):
            saved = ms(work, processes, way) - ms(beside, processes, way)
            assert saved == pytest.approx(0.4 / processes)
    long = beside._replace(hiding=100.0)  # It cannot hide the other message.
    assert ms(long, 4, link) == pytest.approx(ms(work, 4, link) / 2)
    assert ms(long, 1) == 0


def test_the_work_that_hides_a_message_is_measured(bench):
    group = Group.alone()
    found = bench("rank_steps").watch(group)
    end = group.begin_all_reduce(torch.ones(2))
    assert found == []
    time.sleep(0.01)
    assert end().tolist() == [1, 1]
    assert 0.01 <= found[0] < 10


def test_where_it_stops_paying(bench):
    assert bench("distributed").pays_until([(1, 100), (2, 52), (4, 40), (8, 39), (16, 10)]) == 4
    assert bench("distributed").pays_until([(1, 100), (2, 99)]) == 1


@pytest.mark.parametrize("reason", ["", "this needs root"])
def test_the_page(bench, tmp_path, reason):
    link = bench("links").LINKS[0]
    apart = run(2, apart=True, samples_s=10_000, exchange_ms=0.0)
    runs = [run(1), run(2), apart, *([] if reason else [run(2, link.name)])]
    found = {"cases": {"a": {"batch": 256}}, "runs": runs, "cores": 2, "steps": 3}
    found |= {"no_links": reason, "commit": "abc"} | NETWORK
    text = bench("distributed").page(found)
    assert ("were not measured: this needs root" in text) == bool(reason)
    assert "| a | 2 | 11,005 | 1.81 | 1.62 to 1.99 |" in text
    assert "| a | 2, a network each | 10,000 | 1.64 |" in text
    assert text.count("| a | this machine | 2 |") == 1  # The model says nothing of networks apart.
    assert "Nothing here is measured" in text
    bench("distributed").draw_curves(found, tmp_path / "plot.png")
    assert (tmp_path / "plot.png").stat().st_size > 10_000
    titles = ("points are measured", "there are no measured points")
    assert [each in bench("distributed").title(found) for each in titles] == [
        not reason,
        bool(reason),
    ]
    assert text.count(titles[bool(reason)]) == 1
    assert titles[not reason] not in text


def test_the_page_anew(bench, tmp_path, monkeypatch):
    found = {"cases": {"a": {"batch": 256}}, "runs": [run(1), run(2)], "cores": 2, "steps": 3}
    found |= {"no_links": "", **NETWORK, "commit": "abc", "date": "2020-02-02"}
    bench("distributed").write(found, tmp_path)
    made = (tmp_path / "distributed.md").read_text()
    assert "2020-02-02" in made
    assert " 1 machines" not in made
    (tmp_path / "distributed.md").unlink()
    monkeypatch.setattr("sys.argv", ["distributed.py", "--render", "--results", str(tmp_path)])
    bench("distributed").main()
    assert (tmp_path / "distributed.md").read_text() == made


def test_a_row_has_the_medians_of_its_rounds(bench):
    tried = [{"samples_s": speed, "message_ms": {"1": speed / 2}} for speed in (4, 1, 2)]
    wanted = {"samples_s": 2, "message_ms": {"1": 1}, "rounds": [4, 1, 2]}
    assert bench("distributed").middle(tried) == wanted


def test_machines_of_a_killed_run_are_removed(bench, monkeypatch):
    said, there = [], "slide-1\nslide-0 (id: 1)\nslide-x\nvpn\n"
    monkeypatch.setattr(bench("links"), "_run", lambda *words: said.append(words[2:]) or there)
    bench("links").clear()
    assert [words[0] for words in said] == ["list", "del", "del"]
    assert {words[1] for words in said[1:]} == {"slide-0", "slide-1"}


def test_a_wire_has_a_rate_and_a_delay(bench):
    """1,000 bytes at 8 Mbit/s: a millisecond each, one after the other."""
    wire = bench("links").Wire(bits=8e6, delay=0.5)
    assert wire.take(now=9.0) is None
    packets = [bytes([i]) * 1000 for i in range(3)]
    for packet, now in zip(packets, (10.0, 10.0, 20.0), strict=True):
        wire.put(packet, now)
    for packet, leaves in zip(packets, (10.501, 10.502, 20.501), strict=True):
        assert wire.due() == pytest.approx(leaves)
        assert wire.take(leaves - 1e-4) is None
        assert wire.take(leaves + 1e-4) == packet
    assert wire.due() == float("inf")


def test_packets_find_their_machine(bench):
    to = bytes([0x45, *range(15), 10, 77, 0, 3])
    assert bench("links").receiver(to) == 2
    assert bench("links").receiver(b"\x60" + to[1:]) == -1  # IPv6
    assert bench("links").receiver(to[:19]) == -1


SERVE = "import socket; s = socket.create_server(('10.77.0.1', 7000)); print('up', flush=True)\n"
ECHO = "c, _ = s.accept()\nwhile data := c.recv(1): c.sendall(data)\n"
ASK = """
import socket, time
c, times = socket.create_connection(("10.77.0.1", 7000)), []
c.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
for _ in range(20):
    begin = time.perf_counter()
    c.sendall(b"a")
    c.recv(1)
    times.append(time.perf_counter() - begin)
print(sorted(times)[10])
"""


def test_machines_have_links_between_them(bench):
    reason = bench("links").missing()
    if reason:
        pytest.skip(reason)
    with bench("links").machines(2, bench("links").Link("slow", 1e8, 0.02)) as places:
        server = [*places[0], sys.executable, "-c", SERVE + ECHO]
        with subprocess.Popen(server, stdout=subprocess.PIPE, text=True) as serving:
            assert serving.stdout.readline() == "up\n"
            ask = [*places[1], sys.executable, "-c", ASK]
            said = subprocess.run(ask, check=True, capture_output=True, text=True, timeout=60)
    assert 0.04 <= float(said.stdout) < 0.4  # There and back.
    assert not bench("links").machines_there()


def test_it_measures_steps(bench):
    found = bench("rank_steps").measure(CASE, Group.alone())
    assert found["step_ms"] >= found["compute_ms"] > 0
    assert found["exchange_ms"] == found["bytes_sent"] == 0
    assert bench("distributed").together([found], samples=8)["processes"] == 1
