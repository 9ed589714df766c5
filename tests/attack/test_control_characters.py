"""Texts that the other side chooses: no escape sequence, forged line or mark reaches a reader.

Before, a failure's message put raw escape bytes on the label holder's terminal, and a line end in
it forged a line of run.log.
"""

from __future__ import annotations

import io
import json
import logging
from pathlib import Path

import pytest

from colonnade.cli import main as command_line
from colonnade.cli.console import plain_console, say
from colonnade.core.errors import ColonnadeError, IdentityRefused, ProtocolError, StorageError
from colonnade.core.failures import failure_of
from colonnade.core.messages import Batch, Failure, Reply, Summand
from colonnade.core.printable import printable
from colonnade.fabrics.grpc.frames import (
    CallBody,
    FrameKind,
    Hello,
    Notice,
    Opening,
    ReplyBody,
    decode_frames,
    encode_frame,
)
from colonnade.federate.logs import JsonLines
from colonnade.report.markup import text
from colonnade.run.directory import RunDirectory

HOSTILE = {
    "colours and title": "\x1b[31mred\x1b]0;title\x07",
    "cursor up and erase": "\x1b[2A\x1b[2K all is well",
    "a second line": "failed\n2026-01-01 00:00:00,000 INFO stopped by length after exchange 9",
    "carriage return": "failed\rall is well",
    "one-byte CSI": "\x9b31mred",
    "direction marks": "\u202egnp.exe\u2066\u2069",
    "zero width": "te\u200bl\u2060co\ufeff",
    "line separators": "one\u2028two\u2029three\x85four",
    "backspace and null": "telco\b\b\b\b\bbank\x00",
    "tags": "tel\U000e0041co",
}


def is_safe(shown: str) -> bool:
    return all(item.isprintable() for item in shown)


@pytest.mark.parametrize("hostile", HOSTILE.values(), ids=HOSTILE)
class TestEveryPlace:
    def test_failures_and_notices_are_printable_when_they_arrive(self, hostile: str) -> None:
        body = ReplyBody(None, Failure("DataError", hostile), 0.0)
        (frame,) = decode_frames(encode_frame(FrameKind.REPLY, body, id=1))
        assert isinstance(frame.body, ReplyBody)
        assert frame.body.failure is not None
        assert is_safe(frame.body.failure.message)
        (frame,) = decode_frames(encode_frame(FrameKind.REFUSE, Notice("RunError", hostile)))
        assert isinstance(frame.body, Notice)
        assert is_safe(frame.body.message)

    def test_names_that_can_t_be_shown_are_refused(self, hostile: str) -> None:
        bodies = [
            (FrameKind.HELLO, Hello(hostile, 1, 1)),
            (FrameKind.OPEN, Opening(1, hostile)),
            (FrameKind.CALL, CallBody(hostile, (), 0, True)),
            (FrameKind.CALL, CallBody("embed", (Batch(hostile, 0),), 0, True)),
            (FrameKind.CALL, CallBody("embed", ({hostile: 1.0},), 0, True)),
            (FrameKind.CALL, CallBody("embed", (), 0, True, Summand(0, (hostile,)))),
            (FrameKind.REPLY, ReplyBody({hostile: 1.0}, None, 0.0)),
            (FrameKind.REPLY, ReplyBody(None, Failure(hostile, ""), 0.0)),
            (FrameKind.REFUSE, Notice(hostile, "")),
        ]
        for kind, body in bodies:
            with pytest.raises(ProtocolError) as caught:
                list(decode_frames(encode_frame(kind, body)))
            assert is_safe(str(caught.value))

    def test_errors_that_quote_it_are_printable(self, hostile: str) -> None:
        for kind in ("DataError", "Refused", "Diverged", "BudgetSpent", hostile):
            reply = Reply(0, "telco", 3, failure=Failure(kind, hostile))
            assert is_safe(str(failure_of(reply, "embed")))
        for error in (ColonnadeError(hostile), IdentityRefused(hostile), StorageError(hostile)):
            assert is_safe(str(error))
            assert is_safe(error.told())

    @pytest.mark.attack(
        what="Escape sequences, line ends and direction marks in texts",
        has="a party or label holder of the federation",
        before="raw escape bytes on a terminal, forged lines in run.log",
        now="names refused, messages escaped on one line",
    )
    def test_a_line_of_run_log_can_t_be_forged(self, hostile: str, tmp_path: Path) -> None:
        run = RunDirectory(tmp_path / "run", resume=False)
        run.log(f"PartyFailed: {hostile}")
        run.close()
        lines = (tmp_path / "run" / "run.log").read_text("utf-8").split("\n")
        assert len(lines) == 2
        assert is_safe(lines[0])

    def test_a_service_s_log_is_one_object_a_line(self, hostile: str) -> None:
        record = logging.LogRecord(
            "colonnade.agent", logging.INFO, "", 0, "a session begins: %s", (hostile,), None
        )
        record.fields = {"party": hostile}
        line = JsonLines({"party": hostile}).format(record)
        assert is_safe(line)
        assert hostile in json.loads(line)["event"]

    def test_a_terminal_obeys_none_of_it(
        self, hostile: str, capsys: pytest.CaptureFixture[str]
    ) -> None:
        say(hostile)
        plain_console(stderr=True).print(f"error: {hostile}")
        shown = capsys.readouterr()
        assert is_safe(shown.out.replace("\n", ""))
        assert is_safe(shown.err.replace("\n", ""))

    @pytest.mark.parametrize("kind", [StorageError, ValueError])
    def test_a_command_that_fails_says_one_line(
        self,
        hostile: str,
        kind: type[Exception],
        capsys: pytest.CaptureFixture[str],
        monkeypatch: pytest.MonkeyPatch,
    ) -> None:
        def fail(**_: object) -> None:
            raise kind(hostile)

        monkeypatch.setattr(command_line, "app", fail)
        monkeypatch.setattr("sys.argv", ["colonnade", "train"])
        with pytest.raises(SystemExit):
            command_line.main()
        (line, rest) = capsys.readouterr().err.split("\n")
        assert is_safe(line)
        assert not rest

    def test_a_page_shows_it_as_text(self, hostile: str) -> None:
        shown = text(f"<img src=x onerror=alert(1)>{hostile}\"'")
        assert is_safe(shown.replace("\n", "").replace("\t", ""))
        assert not {"<", ">", '"', "'"} & set(shown)


def test_a_long_text_is_cut_and_says_so() -> None:
    shown = str(ColonnadeError("x" * 10_000_000))
    assert len(shown) < 5000
    assert "9996000" in shown


def test_plain_texts_stay_as_they_are() -> None:
    for plain in ("party 'telco'", "größer als 3 × 10⁻⁵", "顧客", ""):
        assert printable(plain) == plain


def test_a_terminal_keeps_own_line_ends() -> None:
    stream = io.StringIO()
    console = plain_console()
    console.file = stream
    console.print("one\ntwo")
    assert stream.getvalue() == "one\ntwo\n"
