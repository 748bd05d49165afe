"""KRI: built and parsed by the founding document's rules."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from koguma.model import kri
from koguma.model.kri import InvalidKri, Kri, SecretName


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        (
            "kri_msvc_mesh-1_us-east-2_kuma-demo_backend_",
            Kri("msvc", "mesh-1", "us-east-2", "kuma-demo", "backend"),
        ),
        (
            "kri_msvc_mesh-1_us-east-2_kuma-demo_backend_http-port",
            Kri("msvc", "mesh-1", "us-east-2", "kuma-demo", "backend", "http-port"),
        ),
        (
            "kri_mt_mesh-1__kuma-system_global-timeouts_",
            Kri("mt", "mesh-1", "", "kuma-system", "global-timeouts"),
        ),
        ("kri_m____default_", Kri("m", "", "", "", "default")),
        (
            "kri_dp_default_test-zone__dp-1_main-port",
            Kri("dp", "default", "test-zone", "", "dp-1", "main-port"),
        ),
        ("kri_zi__us-east-2_kuma-system_zi1_", Kri("zi", "", "us-east-2", "kuma-system", "zi1")),
        (
            "kri_dp_mesh-1_us-east-2_kuma-demo_backend-app_8080",
            Kri("dp", "mesh-1", "us-east-2", "kuma-demo", "backend-app", "8080"),
        ),
    ],
)
def test_the_documents_examples_read_and_write(text, expected):
    assert kri.parse(text) == expected
    assert str(expected) == text


@pytest.mark.parametrize(
    ("text", "message", "hint"),
    [
        ("invalid-kri", 'invalid identifier string: "invalid-kri"', "six underscores"),
        (
            "id_dp_default_test-zone__dp-1_main-port",
            "identifier must start with 'kri': \"id_dp_default_test-zone__dp-1_main-port\"",
            '"id" is an unknown format version',
        ),
        ("kri_nope____x_", 'unknown short name of resource type: "nope"', "GET /_resources"),
        ("kri_mt_a_b_c_d_e_f", 'invalid identifier string: "kri_mt_a_b_c_d_e_f"', "no part may contain one"),
    ],
)
def test_what_is_no_identifier_is_refused_in_known_words(text, message, hint):
    with pytest.raises(InvalidKri) as caught:
        kri.parse(text, {"mt", "dp"})
    assert caught.value.detail == message
    assert hint in caught.value.violations[0].message


@pytest.mark.parametrize(
    ("parts", "component"),
    [
        (("m1", "default", "", "", "a", ""), "type"),
        (("mt", "1mesh", "", "", "a", ""), "mesh"),
        (("mt", "my.mesh", "", "", "a", ""), "mesh"),
        (("mt", "m" * 64, "", "", "a", ""), "mesh"),
        (("mt", "default", "Zone", "", "a", ""), "zone"),
        (("mt", "default", "9", "", "a", ""), "zone"),
        (("mt", "default", "", "-ns", "a", ""), "namespace"),
        (("mt", "default", "", "n.s", "a", ""), "namespace"),
        (("mt", "default", "", "", "", ""), "name"),
        (("mt", "default", "", "", "A", ""), "name"),
        (("mt", "default", "", "", "a" * 254, ""), "name"),
        (("mt", "default", "", "", "a.", ""), "name"),
        (("mt", "default", "", "", "a", "x.y"), "section"),
        (("mt", "default", "", "", "a", "x" * 64), "section"),
        (("mt", "default", "", "", "a\n", ""), "name"),
    ],
)
def test_each_component_has_its_rule_and_the_error_names_it(parts, component):
    with pytest.raises(InvalidKri) as caught:
        Kri(*parts)
    (violation,) = caught.value.violations
    assert violation.field == component
    value = dict(zip(("type", "mesh", "zone", "namespace", "name", "section"), parts, strict=True))[component]
    assert f'"{value}" must be' in violation.message


label = st.from_regex(r"[a-z0-9]([a-z0-9-]{0,61}[a-z0-9])?", fullmatch=True)
letter_label = st.from_regex(r"[a-z]([a-z0-9-]{0,61}[a-z0-9])?", fullmatch=True)
name = st.from_regex(r"[a-z0-9]([a-z0-9.-]{0,251}[a-z0-9])?", fullmatch=True)
kris = st.builds(
    Kri,
    short=st.from_regex(r"[a-zA-Z]{1,12}", fullmatch=True),
    mesh=st.just("") | letter_label,
    zone=st.just("") | letter_label,
    namespace=st.just("") | label,
    name=name,
    section=st.just("") | label,
)


@pytest.mark.property
@given(kris)
def test_every_legal_identifier_survives_the_round_trip(identifier):
    assert kri.parse(str(identifier)) == identifier
    assert kri.is_kri(str(identifier))


@pytest.mark.property
@given(
    st.text(max_size=300)
    | st.lists(st.text(max_size=20), min_size=6, max_size=8).map(lambda p: "kri_" + "_".join(p))
)
def test_any_text_is_parsed_back_to_itself_or_refused(text):
    try:
        parsed = kri.parse(text)
    except InvalidKri:
        return
    assert str(parsed) == text


def test_envoy_secrets_keep_their_own_form():
    assert str(kri.parse_secret_name("identity_cert:secret:default")) == "identity_cert:secret:default"
    assert kri.parse_secret_name("cert.rsa:inline:a.com:b.com") == SecretName(
        "cert.rsa", "inline", "a.com:b.com"
    )
    for bad in ("identity_cert:secret", "nope:secret:x", "mesh_ca:nowhere:x", "mesh_ca:secret:"):
        with pytest.raises(InvalidKri):
            kri.parse_secret_name(bad)
