"""Secrets are encrypted in every log, history included; keys can be changed, and none is ever made up."""

import base64
import os
import stat

import pytest
from store_cases import Clock, contents, deletes, key, make_resource, puts

from koguma.store import Store, StoreUnusable, open_store
from koguma.store.keys import KeyCommand, KeyFile
from koguma.store.sealing import Sealing

pytestmark = pytest.mark.slow

PAYLOAD = "cGFzc3dvcmQgb2YgdGhlIGRhdGFiYXNl"
KINDS = ("Secret", "GlobalSecret")


def a_key(letter: str) -> str:
    return base64.b64encode(letter.encode() * 32).decode()


def key_file(path, *keys: str):
    path.write_text("\n".join(keys) + "\n")
    path.chmod(0o600)
    return path


def secret(name: str = "ca", value: object = PAYLOAD):
    return make_resource(name, value, kind="Secret")


@pytest.fixture
async def opened(backend):
    """Opens a store on the test's backend with a sealing; only one at a time."""
    stores: list[Store] = []

    async def open_one(sealing: Sealing) -> Store:
        while stores:
            await stores.pop().close()
        store = Store(backend.log(sealing), Clock())
        await store.open()
        stores.append(store)
        return store

    yield open_one
    for store in stores:
        await store.close()


def sealing(path, *, is_on: bool = True) -> Sealing:
    return Sealing(KINDS, KeyFile(path), is_on=is_on)


def readable(backend) -> list[bool]:
    return [PAYLOAD.encode() in body for body in backend.bodies()]


async def test_no_revision_of_a_secret_can_be_read_in_the_log(backend, opened, tmp_path) -> None:
    keys = key_file(tmp_path / "keys", a_key("a"))
    store = await opened(sealing(keys))
    await store.write(puts(make_resource("plain", PAYLOAD), secret()))
    await store.write(puts(secret(value=[PAYLOAD])))
    await store.write(puts(make_resource("global", PAYLOAD, kind="GlobalSecret", mesh="")))
    await store.write(deletes(key("ca", kind="Secret")))
    assert readable(backend) == [True, False, False, False, False]
    history = [change.resource.spec for change in await store.history(key("ca", kind="Secret"))]
    assert history == [{"value": [PAYLOAD]}, {"value": [PAYLOAD]}, {"value": PAYLOAD}]
    assert (await store.change_at(2)).resource.spec == {"value": PAYLOAD}
    before = contents(store)
    again = await opened(sealing(keys))
    assert contents(again) == before
    assert again.state.unreadable == {}


async def test_what_was_stored_plain_is_encrypted_at_the_next_start(backend, opened, tmp_path) -> None:
    store = await opened(Sealing(KINDS, None, is_on=False))
    await store.write(puts(secret()))
    await store.write(puts(secret(value=[PAYLOAD])))
    before = contents(store)
    assert readable(backend) == [True, True]
    again = await opened(sealing(key_file(tmp_path / "keys", a_key("a"))))
    assert readable(backend) == [False, False]
    assert contents(again) == before


async def test_a_new_key_seals_and_old_keys_open_until_all_is_written_anew(backend, opened, tmp_path) -> None:
    file = key_file(tmp_path / "keys", a_key("a"))
    store = await opened(sealing(file))
    await store.write(puts(secret()))
    before, of_old = contents(store), backend.bodies()
    key_file(file, a_key("b"), a_key("a"))
    again = await opened(sealing(file))
    assert contents(again) == before
    assert backend.bodies() != of_old
    key_file(file, a_key("b"))  # nothing needs the old one any more
    assert contents(await opened(sealing(file))) == before


async def test_encryption_that_is_switched_off_gives_the_secrets_back(backend, opened, tmp_path) -> None:
    file = key_file(tmp_path / "keys", a_key("a"))
    await (await opened(sealing(file))).write(puts(secret()))
    store = await opened(sealing(file, is_on=False))
    assert readable(backend) == [True]
    file.unlink()
    assert contents(await opened(Sealing(KINDS, None, is_on=False))) == contents(store)


async def test_a_wrong_or_missing_key_refuses_the_start_and_changes_nothing(
    backend, opened, tmp_path
) -> None:
    file = key_file(tmp_path / "keys", a_key("a"))
    store = await opened(sealing(file))
    await store.write(puts(secret()))
    before, bodies = contents(store), backend.bodies()
    await store.close()
    wrong = key_file(tmp_path / "wrong", a_key("b"))
    default = tmp_path / "default"
    for source, words in (
        (
            KeyFile(wrong),
            [str(wrong), "does not have it", "put the key back", "nothing was changed"],
        ),
        (KeyFile(tmp_path / "nowhere"), [str(tmp_path / "nowhere"), "is not there"]),
        (KeyFile(default, is_default=True), [str(default), "does not have it", "put the key back"]),
        (None, ["no key file was given", "put the key back"]),
    ):
        for is_on in (True, False):
            with pytest.raises(StoreUnusable) as refusal:
                await opened(Sealing(KINDS, source, is_on=is_on))
            assert [word for word in words if word not in refusal.value.detail] == []
    assert not default.exists()
    assert backend.bodies() == bodies
    assert contents(await opened(sealing(file))) == before


async def test_a_body_that_was_moved_or_changed_is_not_believed(backend, opened, tmp_path) -> None:
    file = key_file(tmp_path / "keys", a_key("a"))
    store = await opened(sealing(file))
    await store.write(puts(secret("one"), secret("two", "other")))
    await store.close()
    backend.replace(1, backend.bodies()[1])
    again = await opened(sealing(file))
    [broken] = again.state.unreadable.values()
    assert broken.key == key("one", kind="Secret")
    assert "has been changed since" in broken.error
    assert again.state.get(key("two", kind="Secret")).spec == {"value": "other"}


async def test_without_any_key_a_store_is_refused_with_what_to_do(backend) -> None:
    store = Store(backend.log(Sealing(KINDS, None)), Clock())
    with pytest.raises(StoreUnusable, match="--store-key-file") as refusal:
        await store.open()
    assert "openssl rand -base64 32" in refusal.value.detail
    assert "--no-store-encryption" in refusal.value.detail


async def test_a_new_store_makes_its_key_and_keeps_it(tmp_path) -> None:
    file = tmp_path / "new" / "store.db.key"
    url = f"sqlite:///{tmp_path}/new/store.db"
    store = await open_store(url, Sealing(KINDS, KeyFile(file, is_default=True)))
    await store.write(puts(secret()))
    before = contents(store)
    await store.close()
    assert stat.S_IMODE(file.stat().st_mode) == 0o600
    text = file.read_text()
    assert len(base64.b64decode(text)) == 32
    store = await open_store(url, Sealing(KINDS, KeyFile(file, is_default=True)))
    assert contents(store) == before
    await store.close()
    assert file.read_text() == text


def on_disk(folder) -> bytes:
    return b"".join(file.read_bytes() for file in folder.iterdir() if file.name != "keys")


async def test_no_page_and_no_file_of_the_store_keeps_what_was_plain(tmp_path) -> None:
    url = f"sqlite:///{tmp_path}/store.db"
    store = await open_store(url)
    for number in range(200):
        await store.write(puts(secret(value=f"{number}{PAYLOAD * 50}")))
    await store.close()
    assert PAYLOAD.encode() in on_disk(tmp_path)
    store = await open_store(url, sealing(key_file(tmp_path / "keys", a_key("a"))))
    assert PAYLOAD.encode() not in on_disk(tmp_path)
    await store.close()
    assert PAYLOAD.encode() not in on_disk(tmp_path)


async def test_what_is_deleted_is_overwritten(tmp_path) -> None:
    log = (await open_store(f"sqlite:///{tmp_path}/store.db")).log
    assert (
        await log._database.run(
            lambda: log._database.connection.execute("PRAGMA secure_delete").fetchone()[0]
        )
        == 1
    )
    await log.close()


@pytest.mark.parametrize("content", ["", "# nothing\n\n", "c2hvcnQ=", "§§§", a_key("a")[:-4]])
def test_a_file_without_a_key_is_refused_by_name_and_never_quoted(tmp_path, content) -> None:
    file = key_file(tmp_path / "keys", content)
    with pytest.raises(StoreUnusable) as refusal:
        KeyFile(file).keys(may_make=True)
    assert str(file) in refusal.value.detail
    assert "openssl rand -base64 32" in refusal.value.detail
    assert not content.strip("#\n ") or content.strip() not in refusal.value.detail


def test_keys_may_come_from_a_command(tmp_path) -> None:
    file = key_file(tmp_path / "keys", "# newest first", a_key("b"), a_key("a"))
    assert KeyCommand(f"cat '{file}'").keys(may_make=False) == KeyFile(file).keys(may_make=False)
    for command, words in (
        ("sh -c 'echo no such key >&2; exit 3'", "failed with code 3: no such key"),
        ("/no/such/command --token=secret", "cannot be run: No such file or directory"),
        ("true", "has no key"),
    ):
        with pytest.raises(StoreUnusable, match=words) as refusal:
            KeyCommand(command).keys(may_make=False)
        assert "secret" not in refusal.value.detail


async def test_a_key_that_is_added_while_running_opens_what_others_sealed_with_it(tmp_path, postgres) -> None:
    url = postgres.database()
    mine, theirs = (
        key_file(tmp_path / "mine", a_key("a")),
        key_file(tmp_path / "theirs", a_key("b"), a_key("a")),
    )
    one = await open_store(url, sealing(mine))
    key_file(mine, a_key("a"), a_key("b"))
    os.utime(mine, (1, 1))
    two = await open_store(url, sealing(theirs))
    await two.write(puts(secret()))
    [change] = await one.watch(None, 0).next_batch(30)
    assert (change.error, change.resource.spec) == ("", {"value": PAYLOAD})
    await one.close()
    await two.close()
    postgres.drop(url)
