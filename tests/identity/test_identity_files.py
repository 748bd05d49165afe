"""Private files: their modes, their atomic writing, and the credentials that a first start makes."""

import os
import stat
from datetime import timedelta
from pathlib import Path

import pytest

from koguma.identity import certificates, files, signing_keys, tokens
from koguma.identity.certificates import UnusableCertificate
from koguma.identity.claims import USER, UserClaims
from koguma.identity.files import read_private, server_credentials, write_private
from koguma.model.redacted import Redacted

YEAR = timedelta(days=365)


def _mode(path: Path) -> int:
    return stat.S_IMODE(path.stat().st_mode)


def _names(directory: Path) -> list[str]:
    return sorted(path.name for path in directory.iterdir())


@pytest.fixture(params=[0o022, 0o000, 0o277])
def _umask(request):
    before = os.umask(request.param)
    yield
    os.umask(before)


@pytest.mark.usefixtures("_umask")
def test_a_private_file_is_its_owners_alone_whatever_the_umask(tmp_path) -> None:
    path = tmp_path / "a" / "secret"
    path.parent.mkdir(mode=0o700)
    path.parent.chmod(0o700)
    assert write_private(path, Redacted("hunter2"))
    assert _mode(path) == 0o600
    assert read_private(path).text.reveal() == "hunter2"


def test_the_directory_is_made_and_its_owners_alone(tmp_path) -> None:
    write_private(tmp_path / "new" / "deep" / "secret", "x")
    assert _mode(tmp_path / "new" / "deep") == 0o700


def test_a_write_replaces_the_whole_file_and_leaves_nothing_beside_it(tmp_path) -> None:
    path = tmp_path / "secret"
    path.write_text("a long text that was here before")
    path.chmod(0o644)
    write_private(path, "new")
    assert path.read_text() == "new"
    assert _mode(path) == 0o600
    assert _names(tmp_path) == ["secret"]


def test_a_reader_with_the_old_file_open_still_reads_the_old_content(tmp_path) -> None:
    path = tmp_path / "secret"
    write_private(path, "old")
    with path.open() as reader:
        write_private(path, "new")
        assert reader.read() == "old"


def test_a_symbolic_link_is_replaced_and_not_followed(tmp_path) -> None:
    target, path = tmp_path / "target", tmp_path / "secret"
    target.write_text("untouched")
    path.symlink_to(target)
    write_private(path, "new")
    assert target.read_text() == "untouched"
    assert not path.is_symlink()


def test_a_write_that_fails_leaves_nothing_beside_it(tmp_path) -> None:
    path = tmp_path / "secret"
    path.mkdir()
    with pytest.raises(OSError, match="secret"):
        write_private(path, "x")
    assert _names(tmp_path) == ["secret"]


def test_what_must_not_be_replaced_stays(tmp_path) -> None:
    path = tmp_path / "secret"
    assert write_private(path, "first", replace=False)
    assert not write_private(path, "second", replace=False)
    assert path.read_text() == "first"
    assert _names(tmp_path) == ["secret"]


@pytest.mark.parametrize("mode", [0o640, 0o604, 0o644, 0o620, 0o666])
def test_a_file_that_is_open_to_others_comes_with_a_warning(mode, tmp_path) -> None:
    path = tmp_path / "secret"
    write_private(path, "hunter2")
    path.chmod(mode)
    found = read_private(path)
    assert found.warning == f'"{path}" is open to others (mode {mode:04o}); run: chmod 600 "{path}"'
    assert found.text.reveal() == "hunter2"
    assert "hunter2" not in repr(found)


@pytest.mark.parametrize("mode", [0o600, 0o400, 0o700])
def test_a_file_of_its_owner_alone_comes_without_warning(mode, tmp_path) -> None:
    path = tmp_path / "secret"
    write_private(path, "x")
    path.chmod(mode)
    assert read_private(path).warning == ""


def test_a_file_that_is_not_there_is_an_error_and_bytes_that_are_no_text_are_not(tmp_path) -> None:
    with pytest.raises(FileNotFoundError):
        read_private(tmp_path / "nothing")
    (tmp_path / "bytes").write_bytes(b"\xff\x00")
    assert read_private(tmp_path / "bytes").text.reveal() == "\ufffd\x00"


def test_a_first_start_makes_everything_and_keeps_it_private(tmp_path, now) -> None:
    made = server_credentials(tmp_path / "data", ["cp.example"], now)
    for name in ("ca.pem", "ca-key.pem", "tls.pem", "tls-key.pem"):
        assert _mode(tmp_path / "data" / name) == 0o600
    assert _mode(tmp_path / "data") == 0o700
    assert made.warnings == ()
    assert made.ca == made.ca_path.read_text()
    assert made.certificate == made.certificate_path.read_text()
    assert made.key.reveal() == made.key_path.read_text()
    assert certificates.is_issued_by(made.certificate, made.ca)
    assert certificates.covers(made.certificate, ["localhost", "127.0.0.1", "::1", "cp.example"])
    assert list(certificates.problems(made.certificate, made.key, now)) == []


def test_a_second_start_changes_nothing(tmp_path, now) -> None:
    first = server_credentials(tmp_path, [], now)
    assert server_credentials(tmp_path, [], now + timedelta(days=200)) == first


def test_the_server_certificate_is_renewed_in_time_and_the_ca_stays(tmp_path, now) -> None:
    first = server_credentials(tmp_path, [], now)
    second = server_credentials(tmp_path, [], now + timedelta(days=300))
    assert second.certificate != first.certificate
    assert second.ca == first.ca
    assert certificates.expires_at(second.certificate) == now + timedelta(days=300) + YEAR
    assert second.certificate == second.certificate_path.read_text()


def test_a_new_name_makes_a_new_server_certificate(tmp_path, now) -> None:
    first = server_credentials(tmp_path, ["a.example"], now)
    second = server_credentials(tmp_path, ["b.example"], now)
    assert certificates.covers(second.certificate, ["b.example"])
    assert second.ca == first.ca
    assert server_credentials(tmp_path, ["b.example", "localhost"], now) == second


@pytest.mark.parametrize("name", ["tls.pem", "tls-key.pem"])
@pytest.mark.parametrize("content", [None, "", "hunter2", "other"])
def test_half_a_server_certificate_is_made_anew(name, content, tmp_path, now) -> None:
    first = server_credentials(tmp_path / "data", [], now)
    path = tmp_path / "data" / name
    if content is None:
        path.unlink()
    elif content == "other":
        server_credentials(tmp_path / "other", [], now)
        path.write_text((tmp_path / "other" / name).read_text())
    else:
        path.write_text(content)
    second = server_credentials(tmp_path / "data", [], now)
    assert list(certificates.problems(second.certificate, second.key, now)) == []
    assert second.ca == first.ca
    assert certificates.is_issued_by(second.certificate, first.ca)


def test_a_start_that_ended_between_key_and_ca_goes_on_with_that_key(tmp_path, now) -> None:
    key = certificates.make_key()
    write_private(tmp_path / "ca-key.pem", key)
    made = server_credentials(tmp_path, [], now)
    assert list(certificates.problems(made.ca, key, now)) == []
    assert (tmp_path / "ca-key.pem").read_text() == key.reveal()


@pytest.mark.parametrize("name", ["ca.pem", "ca-key.pem"])
def test_a_spoilt_ca_is_named_and_never_overwritten(name, tmp_path, now) -> None:
    server_credentials(tmp_path, [], now)
    (tmp_path / name).write_text("hunter2")
    with pytest.raises(UnusableCertificate, match=r"cannot be used: .* Repair the two files") as refused:
        server_credentials(tmp_path, [], now)
    assert str(tmp_path / name) in refused.value.detail
    assert "hunter2" not in refused.value.detail
    assert (tmp_path / name).read_text() == "hunter2"


def test_a_spoilt_key_without_a_ca_is_named_and_never_overwritten(tmp_path, now) -> None:
    (tmp_path / "ca-key.pem").write_text("hunter2")
    with pytest.raises(UnusableCertificate, match="cannot be used"):
        server_credentials(tmp_path, [], now)
    assert _names(tmp_path) == ["ca-key.pem"]


def test_a_ca_that_ended_is_refused_and_one_that_will_is_told(tmp_path, now) -> None:
    server_credentials(tmp_path, [], now)
    (warning,) = server_credentials(tmp_path, [], now + 9 * YEAR).warnings
    assert "plan to give clients a new one" in warning
    with pytest.raises(UnusableCertificate, match="expired"):
        server_credentials(tmp_path, [], now + 11 * YEAR)


def test_the_key_of_the_ca_may_be_kept_elsewhere_until_it_is_needed(tmp_path, now) -> None:
    first = server_credentials(tmp_path, [], now)
    (tmp_path / "ca-key.pem").unlink()
    assert server_credentials(tmp_path, [], now) == first
    with pytest.raises(UnusableCertificate, match="put the CA's key back"):
        server_credentials(tmp_path, [], now + YEAR)
    assert not (tmp_path / "ca-key.pem").exists()


@pytest.mark.parametrize("name", ["ca-key.pem", "tls-key.pem"])
def test_a_key_that_is_open_to_others_is_told(name, tmp_path, now) -> None:
    server_credentials(tmp_path, [], now)
    (tmp_path / name).chmod(0o644)
    (warning,) = server_credentials(tmp_path, [], now).warnings
    assert str(tmp_path / name) in warning


class TestAdminToken:
    def test_it_is_made_once_and_is_an_admins(self, tmp_path, user_ring, now) -> None:
        made = files.admin_token(tmp_path / "data", user_ring, now)
        path = tmp_path / "data" / "admin-token"
        assert (_mode(path), path.read_text()) == (0o600, made.text.reveal())
        claims = tokens.verify(user_ring, made.text.reveal(), now + 9 * YEAR)
        assert (claims.name, claims.groups) == ("mesh-system:admin", ("mesh-system:admin",))
        assert files.admin_token(tmp_path / "data", user_ring, now) == made

    def test_one_that_no_longer_holds_is_replaced(self, tmp_path, user_ring, other_key_data, now) -> None:
        first = files.admin_token(tmp_path, user_ring, now)
        ring = signing_keys.key_ring(USER, {"user-token-signing-key-2": other_key_data})
        second = files.admin_token(tmp_path, ring, now)
        assert second != first
        assert tokens.verify(ring, second.text.reveal(), now)

    def test_one_of_a_lesser_user_is_replaced(self, tmp_path, user_ring, now) -> None:
        lesser = tokens.issue(user_ring, UserClaims(name="alice"), YEAR, now)
        write_private(tmp_path / "admin-token", lesser)
        assert files.admin_token(tmp_path, user_ring, now).text != lesser

    def test_a_line_end_after_it_does_not_matter(self, tmp_path, user_ring, now) -> None:
        made = files.admin_token(tmp_path, user_ring, now)
        write_private(tmp_path / "admin-token", made.text.reveal() + "\n")
        assert files.admin_token(tmp_path, user_ring, now) == made

    def test_one_that_is_open_to_others_is_told(self, tmp_path, user_ring, now) -> None:
        files.admin_token(tmp_path, user_ring, now)
        (tmp_path / "admin-token").chmod(0o644)
        assert "chmod 600" in files.admin_token(tmp_path, user_ring, now).warning
