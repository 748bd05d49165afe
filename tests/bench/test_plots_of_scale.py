"""Results with many proxies are drawn as SVG that can be read, one drawing for each figure."""

from xml.etree import ElementTree as ET

from bench.plots import drawn, plots

SVG = "{http://www.w3.org/2000/svg}"


def result(proxies: int, ratio: float, planes: int = 1) -> dict:
    numbers = {"ten_cpu_s": 0.1, "endpoint_cpu_s": 0.01, "reconnect_s": 3.0, "kb_per_proxy": 50.0}
    return {
        **numbers,
        "proxies": proxies,
        "planes": planes,
        "all_ratio": ratio,
        "wide_ratio": ratio,
        "parts": {"all": {"p50_s": 0.1, "p99_s": 0.2}},
    }


def test_a_line_goes_through_the_results_in_order_and_the_goal_is_dashed():
    found = {
        plot.name: plot for plot in plots([result(1000, 2.0), result(500, 1.5), result(9, 9.0, planes=2)])
    }
    assert list(found["scale-ratio"].series[0].points) == [(500, 1.5), (1000, 2.0)]
    lines = ET.fromstring(drawn(found["scale-ratio"])).findall(f"{SVG}polyline")
    assert [line.get("stroke-dasharray") for line in lines].count("5,4") == 1


def test_texts_are_escaped_and_nothing_to_draw_is_no_error():
    (plot, *_) = plots([])
    text = drawn(plot._replace(title="a < b"))
    assert "a &lt; b" in text
    assert ET.fromstring(text).tag == f"{SVG}svg"
