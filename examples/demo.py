"""`make demo`: a control plane with a small shop in it, and what to try with it."""

import os
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

KOGUMA = str(Path(sys.executable).with_name("koguma"))
SHOP = Path(__file__).with_name("shop")
READY_WORDS = "is ready: "


def main() -> int:
    """Run the demo until Ctrl-C."""
    port = os.environ.get("KOGUMA_API_PORT", "5681")
    tls_port = os.environ.get("KOGUMA_API_TLS_PORT", "5682")
    data = tempfile.mkdtemp(prefix="koguma-demo-")
    command = [KOGUMA, "cp", "run", "--data-dir", data, "--api-port", port, "--api-tls-port", tls_port]
    server = subprocess.Popen([*command, "--log-level", "warning"], stdout=subprocess.PIPE, text=True)
    try:
        address = _address(server)
        if not address:
            return server.wait()
        subprocess.run([KOGUMA, "apply", "--address", address, "-f", str(SHOP)], check=True)
        print(_words(address), flush=True)
        return server.wait()
    except KeyboardInterrupt:
        return 0
    finally:
        server.terminate()
        server.wait(timeout=15)
        shutil.rmtree(data, ignore_errors=True)


def _address(server: "subprocess.Popen[str]") -> str:
    assert server.stdout is not None
    for line in server.stdout:
        print(line, end="", flush=True)
        if READY_WORDS in line:
            return line.partition(READY_WORDS)[2].split()[0]
    return ""


def _words(address: str) -> str:
    koguma = ".venv/bin/koguma"
    prefix = "" if address.endswith(":5681") else f"  export KOGUMA_ADDRESS={address}\n"
    return f"""
The control plane runs, with a small shop in mesh "shop". In another terminal, try:

{prefix}  {koguma} get dataplanes -m shop
  {koguma} get meshtimeouts -m shop -o wide
  {koguma} get kri_mt_shop_default__backend-is-quick_ -o yaml
  {koguma} describe meshhttproute backend-split -m shop

  # watch one thing, change another
  {koguma} get meshtimeouts -m shop -w
  sed 's/5s/7s/' examples/shop/policies.yaml | {koguma} apply -f -
  {koguma} diff -f examples/shop

  # make a mistake, and read what it says
  sed 's/requestTimeout/requestTimout/' examples/shop/policies.yaml | {koguma} apply -f -

  {koguma} check

Ctrl-C ends it; nothing is left behind.
"""


if __name__ == "__main__":
    sys.exit(main())
