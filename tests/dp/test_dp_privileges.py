"""A proxy that root starts becomes another user, for good."""

import os
import shutil
import subprocess
import sys

import pytest

from koguma.cli import main
from koguma.dp import privileges
from koguma.model.errors import KogumaError
from tests.netns import as_user, readable_by_others

needs_root = pytest.mark.skipif(os.geteuid() != 0, reason="only root can become somebody else")

BECOME = """
import os, sys
from koguma.dp import privileges
privileges.become(privileges.find_account(sys.argv[1]))
print(os.getresuid(), os.getresgid(), os.getgroups(), os.environ.get("HOME"))
open("/dev/stdout", "w").write("stdout is open\\n")
try:
    os.setuid(0)
    print("root again")
except PermissionError:
    print("never root again")
"""


def became(user, *first, code=BECOME):
    command = [*first, sys.executable, "-c", code, user]
    done = subprocess.run(command, capture_output=True, text=True, check=False, timeout=60)
    return done.stdout.splitlines(), done.stderr


@needs_root
@pytest.mark.parametrize("user", ["nobody", "65534", "54321"])
def test_root_becomes_a_user_with_her_groups_and_never_comes_back(user, tmp_path):
    account = privileges.find_account(user)
    lines, errors = became(user, *readable_by_others(tmp_path))
    uid, gid, groups = account.uid, account.gid, sorted(account.groups)
    assert lines == [
        f"{(uid, uid, uid)} {(gid, gid, gid)} {groups} {account.home}",
        "stdout is open",
        "never root again",
    ], errors
    assert uid != 0


def test_a_user_that_is_not_there_is_named():
    with pytest.raises(KogumaError, match='there is no user "nobody-knows"'):
        privileges.find_account("nobody-knows")


@needs_root
def test_others_cannot_become_anybody():
    _, errors = became("1234", *as_user(65534))
    assert "--user: only root can become another user, and this is uid 65534" in errors


@needs_root
def test_a_user_who_cannot_read_the_program_is_told_so(tmp_path):
    tmp_path.chmod(0o700)
    copy = tmp_path / "privileges.py"
    shutil.copy(privileges.__file__, copy)
    code = BECOME.replace("from koguma.dp import", f"sys.path.insert(0, {str(tmp_path)!r})\nimport")
    _, errors = became("65534", *readable_by_others(tmp_path), code=code)
    closed = next(directory for directory in reversed(copy.parents) if not directory.stat().st_mode & 1)
    assert f"--user: nobody cannot read {closed}, in which this program is installed" in errors


@needs_root
def test_root_does_not_run_a_transparent_proxy_by_accident(capsys, monkeypatch):
    monkeypatch.delenv("KOGUMA_DATAPLANE_TOKEN", raising=False)
    assert main(["dp", "run", "--name", "web-1", "--service", "web", "--transparent-proxy"]) == 2
    assert "say with --user who it is to be" in " ".join(capsys.readouterr().err.split())
