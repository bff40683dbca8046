"""Tests of the output of `make up`, on a terminal and elsewhere."""

import io

from embedded.display import Display, Line


class Terminal(io.StringIO):
    def isatty(self):
        return True


class ClosedTerminal(io.StringIO):
    def write(self, text):
        raise OSError("Input/output error")


def test_without_a_terminal_each_change_is_one_line():
    out = io.StringIO()
    display = Display(out)
    web, worker = Line("web", "starting"), Line("worker", "running", "pid 7")
    display.show([web, worker])
    display.show([web, worker])
    display.show([Line("web", "running", "pid 8"), worker])
    assert [line.split() for line in out.getvalue().splitlines()] == [
        ["web", "starting"],
        ["worker", "running", "pid", "7"],
        ["web", "running", "pid", "8"],
    ]


def test_on_a_terminal_the_block_is_redrawn_in_place_below_messages(monkeypatch):
    monkeypatch.setenv("COLUMNS", "30")
    out = Terminal()
    display = Display(out)
    display.show([Line("web", "starting"), Line("worker", "running", "x" * 100)])
    before = len(out.getvalue())
    display.say("something happened")
    redrawn = out.getvalue()[before:]
    assert redrawn.startswith("\x1b[2A\x1b[J" + "something happened\n")
    assert redrawn.count("\n") == 3
    assert all(len(line) < 30 for line in redrawn.splitlines()[1:]), "a wrapped line spoils the counting"


def test_a_terminal_that_went_away_does_not_stop_the_stop():
    display = Display(ClosedTerminal())
    display.say("one")
    display.show([Line("web", "stopped")])
