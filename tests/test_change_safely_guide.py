"""The guide to changing a mesh safely, run as it is written against the demo."""

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

from tests.demo_run import Demo
from tests.test_kubectl_guide import see, steps

pytestmark = pytest.mark.slow

ROOT = Path(__file__).parent.parent
GUIDE = ROOT / "docs" / "change-safely.md"
SHOWN = "84"  # the revision that the guide takes back
EXIT_CODE = re.compile(r"# exit code (\d)$")


def test_every_command_of_the_guide_does_what_it_says(tmp_path):
    (tmp_path / "examples").symlink_to(ROOT / "examples")
    path = f"{Path(sys.executable).parent}:{os.environ['PATH']}"
    n_commands, revision = 0, SHOWN
    with Demo() as demo:
        demo.shows(r"v1 █+ [89]\d%")
        variables = {**os.environ, **demo.exported, "PATH": path, "XDG_CONFIG_HOME": str(tmp_path)}
        for name, text in steps(GUIDE):
            n_commands += 1
            done = subprocess.run(
                ["bash", "-o", "pipefail", "-c", name[2:].replace(f"undo {SHOWN}", f"undo {revision}")],
                cwd=tmp_path,
                env=variables,
                capture_output=True,
                text=True,
                check=False,
                timeout=60,
            )
            said = (name, done.stdout, done.stderr)
            code = EXIT_CODE.search(name)
            assert done.returncode == (int(code[1]) if code else 0), said
            if "koguma history" in name:
                revision = done.stdout.splitlines()[1].split()[0]
            see(re.sub(rf"\b{SHOWN}\b", revision, text), done.stdout + done.stderr, said)
        assert demo.end() == 0
    assert n_commands > 10
    assert "Traceback" not in demo.text
