"""Alerts by webhook and mail, to real servers: each begin and end once, also through failures and restarts."""

from __future__ import annotations

import json
import os
import random
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import pytest
from aiosmtpd.controller import Controller

from millpond.catalogue import create_job, find_job
from millpond.errors import MillpondError
from millpond.operate.alerts.evaluate import Alert
from millpond.operate.alerts.notify.channels import Mail, Webhook
from millpond.operate.alerts.notify.message import Message
from millpond.operate.alerts.notify.notifier import Notifier
from millpond.operate.config import read_config
from millpond.operate.sample import Sample
from millpond.operate.sample_log import SampleLog
from millpond.settings import SampleSettings
from millpond.storage import open_storage
from millpond.wire.signature import parse_secret, sign
from servers.ports import free_port
from spark_files.checkpoint import WrittenCheckpoint
from suite.programs import started

SECRET = "whsec_MfKQ9r8GKYqrTwjUPD8ILPZIo2LaLaSw"
HOUR = 3_600_000


class Receiver:
    """A web server that takes what is posted, while `status` is 200."""

    def __init__(self) -> None:
        self.status, self.got = 200, list[tuple[dict[str, str], bytes]]()
        outer = self

        class Handler(BaseHTTPRequestHandler):
            def do_POST(self) -> None:
                body = self.rfile.read(int(self.headers["content-length"]))
                if outer.status == 200:
                    outer.got.append((dict(self.headers.items()), body))
                self.send_response(outer.status)
                self.send_header("content-length", "0")
                self.end_headers()

            def log_message(self, *_: object) -> None:
                pass

        self._server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self.url = f"http://127.0.0.1:{self._server.server_port}/hook"
        threading.Thread(target=self._server.serve_forever, daemon=True).start()

    def messages(self) -> list[dict[str, Any]]:
        """The bodies so far."""
        return [json.loads(body) for _, body in self.got]

    def close(self) -> None:
        """End it."""
        self._server.shutdown()
        self._server.server_close()


@pytest.fixture
def receiver() -> Iterator[Receiver]:
    found = Receiver()
    yield found
    found.close()


class Mails:
    """An SMTP server that keeps what it gets."""

    def __init__(self) -> None:
        self.got: list[Any] = []
        self.refuses = False

    async def handle_DATA(self, server: Any, session: Any, envelope: Any) -> str:
        if self.refuses:
            return "451 not now"
        self.got.append(envelope)
        return "250 OK"


@pytest.fixture
def mails() -> Iterator[tuple[Mails, str]]:
    handler = Mails()
    server = Controller(handler, hostname="127.0.0.1", port=free_port())
    server.start()
    yield handler, f"127.0.0.1:{server.port}"
    server.stop()


def alert(job: str, rule: str = "job-down", value: float = 1.0) -> Alert:
    return Alert(
        job=job, rule=rule, title="The job doesn't run.", value=value, threshold=0.0, unit="", since_ms=1_000, advice="Start it."
    )  # fmt: skip


def test_a_webhook_is_signed(receiver: Receiver, monkeypatch: pytest.MonkeyPatch) -> None:
    """As Standard Webhooks say, with the file's secret or the environment's; a redirect isn't followed."""
    message = Message(identity="alerts-1", at_ms=5, began=(alert("jöb\n"),))
    Webhook(url=receiver.url, secret=SECRET, headers={"x-more": "1"}).send(message)
    monkeypatch.setenv("MILLPOND_WEBHOOK_SECRET", SECRET)
    Webhook(url=receiver.url).send(message)
    for headers, body in receiver.got:
        names = {name.lower(): value for name, value in headers.items()}
        expected = sign(parse_secret(SECRET, ""), names["webhook-id"], names["webhook-timestamp"], body)
        assert names["webhook-signature"] == expected
        assert json.loads(body)["began"][0]["job"] == "jöb\n"
    assert [{**headers}.get("x-more") for headers, _ in receiver.got] == ["1", None]
    for status in (301, 404, 500):
        receiver.status = status
        with pytest.raises(MillpondError) as error:
            Webhook(url=receiver.url).send(message)
        assert error.value.condition == "STORAGE_UNAVAILABLE"
        assert "/hook" not in str(error.value)


def test_a_mail(mails: tuple[Mails, str]) -> None:
    """Its subject is one line, whatever a job is called."""
    handler, server = mails
    mail = Mail(server=server, sender="a@example.org", to=["b@example.org", "c@example.org"], security="none")
    mail.check()
    mail.send(Message(identity="a", at_ms=5, began=(alert("jöb\r\nBcc: x@example.org"), alert("other")), ended=(alert("third"),)))
    (envelope,) = handler.got
    from email import message_from_bytes, policy

    found = message_from_bytes(envelope.content, policy=policy.default)
    assert envelope.rcpt_tos == ["b@example.org", "c@example.org"]
    assert found["Subject"] == "[millpond] jöb Bcc: x@example.org: The job doesn't run. And 1 more."
    assert found["Bcc"] is None
    text = found.get_content().replace("\r\n", "\n")
    assert "other: job-down: The job doesn't run.\n  measured 1, threshold 0, since 1970-01-01T00:00:01+00:00\n  Start it." in text
    assert "ended: third: job-down" in text
    handler.refuses = True
    with pytest.raises(MillpondError):
        mail.send(Message(identity="a", at_ms=5, began=(alert("a"),)))


@pytest.mark.long
def test_each_begin_and_end_is_said_once_to_each(receiver: Receiver, mails: tuple[Mails, str], tmp_path: Path) -> None:
    """Random alerts, failures of either channel, and restarts; compared with what an all-knowing reader expects."""
    handler, server = mails
    webhook = Webhook(url=receiver.url)
    mail = Mail(server=server, sender="a@example.org", to=["b@example.org"], security="none")
    storage, draw = open_storage(tmp_path), random.Random(20261126)
    keys = [("a", "job-down"), ("a", "batch-slow"), ("b", "job-down"), ("c", "late-rows")]
    known: dict[tuple[str, str], int] = {}
    notifier = Notifier("pond", [webhook, mail], 4 * 3600, storage)
    firing: set[tuple[str, str]] = set()
    for turn in range(60):
        now = turn * HOUR
        firing = {key for key in keys if (key in firing) != (draw.random() < 0.3)}
        unknown = {"c"} if draw.random() < 0.2 else set()
        if draw.random() < 0.2:
            notifier = Notifier("pond", [webhook, mail], 4 * 3600, storage)
        receiver.status, handler.refuses = (500 if draw.random() < 0.3 else 200), draw.random() < 0.3
        before, mails_before = len(receiver.got), len(handler.got)
        seen = {key for key in firing if key[0] not in unknown}
        notifier.tell([alert(*key, value=turn) for key in sorted(seen)], now, unknown)
        assert notifier.errors.keys() <= {webhook.name, mail.name}

        began = {key for key in seen if key not in known}
        goes_on = {key for key in seen if key in known and now - known[key] >= 4 * HOUR}
        ended = {key for key in known if key not in seen and key[0] not in unknown}
        is_news, is_taken = bool(began or goes_on or ended), receiver.status == 200
        assert len(receiver.got) - before == int(is_news and is_taken)
        if is_news and is_taken:
            said = receiver.messages()[-1]
            for word, expected in (("began", began), ("goes_on", goes_on), ("ended", ended)):
                assert {(each["job"], each["rule"]) for each in said[word]} == expected
            for key in ended:
                del known[key]
            known.update(dict.fromkeys(began | goes_on, now))
        assert (webhook.name in notifier.errors) == (not is_taken and is_news) or not is_news
        assert len(handler.got) - mails_before <= 1
    assert receiver.got
    assert handler.got


def test_what_is_silenced_or_met_again_has_not_ended(receiver: Receiver, tmp_path: Path) -> None:
    """And the same news have the same id when they are said again; names of any bytes can be said."""
    notifier = Notifier("pond", [Webhook(url=receiver.url)], 3600, open_storage(tmp_path))
    odd = alert("j\udcff")
    receiver.status = 500
    notifier.tell([alert("a"), odd], 0)
    receiver.status = 200
    seen: list[str] = []
    post = Webhook.send

    def send(self: Webhook, message: Message) -> None:
        seen.append(message.identity)
        post(self, message)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(Webhook, "send", send)
        receiver.status = 500
        notifier.tell([alert("a"), odd], 60_000)
        receiver.status = 200
        notifier.tell([alert("a"), odd], 120_000)
    assert len(set(seen)) == 1
    notifier.tell([odd], 180_000, kept={("a", "job-down")})
    notifier.tell([alert("a"), odd], 240_000)
    assert [len(said["began"]) for said in receiver.messages()] == [2]
    notifier = Notifier("pond", [Webhook(url=receiver.url)], 3600, open_storage(tmp_path))
    notifier.tell([alert("a"), odd], 300_000)
    assert len(receiver.got) == 1
    receiver.status = 500
    notifier.tell([], 360_000)
    assert notifier.errors
    notifier.tell([alert("a"), odd], 420_000)
    assert not notifier.errors


def test_a_damaged_file_says_all_once_more(receiver: Receiver, tmp_path: Path) -> None:
    """Better twice than never."""
    for _ in range(2):
        notifier = Notifier("pond", [Webhook(url=receiver.url)], 3600, open_storage(tmp_path))
        notifier.tell([alert("a")], 0)
        notifier.tell([alert("a")], 10)
        (file,) = tmp_path.glob("*.json")
        file.write_bytes(file.read_bytes()[:-5])
    assert [len(said["began"]) for said in receiver.messages()] == [1, 1]


@pytest.mark.parametrize(
    "text",
    [
        "repeat = '1s'", "repeat = 'often'", "[[notify.webhooks]]\nurl = 'ftp://x'", "[[notify.webhooks]]\nurl = 'x'",
        "[[notify.webhooks]]\nurl = 'http://x'\nsecret = 'short'", "[[notify.mails]]\nserver = 'x'\nfrom = 'a@x'\nto = ['b@x']",
        "[[notify.mails]]\nserver = 'x:25'\nfrom = 'a@x'\nto = []",
        "[[notify.mails]]\nserver = 'x:25'\nfrom = 'a@x'\nto = ['b @x']",
        "[[notify.mails]]\nserver = 'x:99999'\nfrom = 'a@x'\nto = ['b@x']",
        "[[notify.mails]]\nserver = 'x:25'\nfrom = 'a@x'\nto = ['b@x']\nsecurity = 'some'",
        "[[notify.webhooks]]\nurl = 'http://[x'", "[[notify.webhooks]]\nurl = 'http://x'\nsecret = 'é'",
        "[[notify.webhooks]]\nurl = 'http://x'\nheaders = {a = \"b\\nc\"}",
        "[[notify.webhooks]]\nurl = 'http://x'\nheaders = {a = 'é'}",
        "[[notify.mails]]\nserver = 'x:25'\nfrom = 'a@x'\nto = ['b@x']\nsecurity = 'none'\nuser = 'u'",
        "[[notify.webhooks]]\nurl = 'http://x'\n[[notify.webhooks]]\nurl = 'http://x'",
    ],
)  # fmt: skip
def test_a_wrong_file_is_refused(tmp_path: Path, text: str) -> None:
    """Before anything is watched."""
    file = tmp_path / "alerts.toml"
    file.write_text(f"[notify]\n{text}" if text.startswith("repeat") else text)
    with pytest.raises(MillpondError) as error:
        read_config(file)
    assert error.value.condition == "INVALID_CONFIG"


def test_the_command_watches(receiver: Receiver, tmp_path: Path) -> None:
    """A job whose samples say that it is slow; SIGTERM ends it, and the next start doesn't say the same again."""
    create_job(tmp_path / "pond", "views")
    job = WrittenCheckpoint(tmp_path / "pond/jobs/views/checkpoint", "views")
    job.plan([("k", 1)], snapshot=False)
    job.commit()
    log = SampleLog(find_job(tmp_path / "pond", "views"), SampleSettings(sample_seconds=0))
    begin = int(time.time() * 1000) - 5 * 60_000
    for minute in range(5):
        log.add(Sample(at_ms=begin + minute * 60_000, job_state="running", longest_batch_seconds=75.0))
    config = tmp_path / "alerts.toml"
    config.write_text(f"[[notify.webhooks]]\nurl = '{receiver.url}'\n")
    words = [sys.executable, "-m", "millpond.cli", "alerts", str(tmp_path / "pond"), "--config", str(config), "--watch"]
    environment = {**os.environ, "MILLPOND_HOME": str(tmp_path / "home")}
    for _ in range(2):
        with started(words, stderr=subprocess.PIPE, text=True, env=environment) as command:
            assert command.stderr is not None
            assert "Watching" in command.stderr.readline()
            command.send_signal(signal.SIGTERM)  # it ends after its first look
            _, said = command.communicate(timeout=60)
        assert command.returncode == 0, said
    (message,) = receiver.messages()
    assert [(each["job"], each["rule"]) for each in message["began"]] == [("views", "batch-slow")]
