"""`make demo`, as a newcomer runs it."""

import pytest

from tests.demo_run import Demo


@pytest.mark.slow
def test_the_demo_is_a_live_mesh_and_ends_without_a_trace():
    with Demo() as demo:
        assert any(name.startswith("koguma-demo-") for name in demo.made)
        for made in ("mesh/shop created", "meshtimeout/backend-is-quick", "meshhttproute/backend-split"):
            assert made in demo.text
        for proxy in ("backend-1", "backend-2", "web-1"):
            assert f"koguma dp: {proxy} (mesh shop) is ready" in demo.text
        demo.shows(r"v1 █+ \d+%  v2 █+ \d+%")
        assert demo.end() == 0
        assert demo.made == []
    assert "Traceback" not in demo.text
