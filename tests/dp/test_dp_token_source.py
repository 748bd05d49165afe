"""A proxy's token, as its file changes under a running proxy."""

import asyncio
import json
from pathlib import Path

import pytest

from koguma.dp import token_source
from koguma.dp.token_source import TokenSource
from koguma.model.errors import KogumaError
from koguma.model.redacted import SHOWN, Redacted


class File:
    """A token file that may be unreadable at times."""

    def __init__(self, text: str) -> None:
        self.text = text

    def __call__(self) -> Redacted:
        if not self.text:
            raise KogumaError("token: must contain one token")
        return Redacted(self.text)


def test_a_file_that_cannot_be_read_now_leaves_the_token_as_it_was():
    file = File("first")
    source = TokenSource(file)
    file.text = ""
    assert source() == Redacted("first")
    file.text = "second"
    assert source() == Redacted("second")


def test_no_token_that_was_ever_read_is_told():
    file = File("first")
    source = TokenSource(file)
    file.text = "second"
    source()
    assert source.masked("now second, before first") == f"now {SHOWN}, before {SHOWN}"


def test_a_proxy_without_a_token_has_no_file_for_envoy(tmp_path):
    source = TokenSource(lambda: None)
    assert source() is None
    assert source.write(tmp_path / "token.json") is None
    assert list(tmp_path.iterdir()) == []


async def test_envoys_file_is_replaced_as_a_whole_when_the_token_changes(tmp_path, monkeypatch):
    monkeypatch.setattr(token_source, "_POLL_SECONDS", 0.001)
    file, kept = File("first"), tmp_path / "token.json"
    source = TokenSource(file)
    following = asyncio.create_task(source.follow(kept))
    try:
        await until_it_holds(kept, "first")
        before = kept.stat().st_ino
        file.text = "second"
        await source.changed(10)
        await until_it_holds(kept, "second")
        assert kept.stat().st_ino != before  # moved into place, which is what Envoy looks for
        assert kept.stat().st_mode & 0o777 == 0o600
    finally:
        following.cancel()
    with pytest.raises(asyncio.CancelledError):
        await following


async def until_it_holds(kept: Path, token: str) -> None:
    async with asyncio.timeout(60):
        while held(kept) != token:  # noqa: ASYNC110 - another task writes a file
            await asyncio.sleep(0.001)


def held(kept: Path) -> str:
    if not kept.exists():
        return ""
    (secret,) = json.loads(kept.read_text())["resources"]
    return secret["generic_secret"]["secret"]["inline_string"]
