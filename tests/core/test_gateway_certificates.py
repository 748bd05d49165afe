"""Which certificates a gateway's listeners present: the good ones, by secrets that no listener depends on."""

import base64
from datetime import datetime
from typing import Any

import msgspec
import pytest
from building import database, encoder, stored

from koguma.core import pipeline
from koguma.core import problems as lint
from koguma.core.build import gateway_certificates
from koguma.core.build.gateway_certificates import ListenerCertificates
from koguma.core.incremental import Db
from koguma.envoy.snapshot import SECRET, XdsResource
from koguma.model.resource import Key, Resource
from tests import build
from tests.tls_certificates import DAY, NOW, certificate, ecdsa_key, pem, rsa_key, server

SHOP = "443:shop.lan"
GATEWAY = Key("MeshGateway", "default", "east", "", "edge")
ECDSA, RSA = server("shop.lan"), server("shop.lan", key=rsa_key())


def secret(name: str, text: str, **fields: Any) -> dict[str, Any]:
    return build.document("Secret", name, data=base64.b64encode(text.encode()).decode(), **fields)


def gateway(*sources: dict[str, str], hostname: str = "shop.lan") -> dict[str, Any]:
    tls = {"mode": "TERMINATE", "certificates": list(sources)}
    listener = {"port": 443, "protocol": "HTTPS", "hostname": hostname, "tls": tls}
    other = {"port": 80, "protocol": "HTTP"}
    selectors = [{"match": {"kuma.io/service": "edge"}}]
    return build.document("MeshGateway", "edge", selectors=selectors, conf={"listeners": [other, listener]})


def db_of(*documents: dict[str, Any]) -> Db:
    return database([stored(document) for document in (build.mesh(), *documents)])


def of(db: Db, section: str = SHOP) -> ListenerCertificates:
    return gateway_certificates.of(db, GATEWAY, section)


def problems(db: Db) -> list[str]:
    return [f"{problem.path}: {problem}" for problem in of(db).problems]


def contents(db: Db) -> dict[str, tuple[str, str]]:
    """The chain and key of each secret by its name."""
    found = {}
    for resource in gateway_certificates.resources(db, GATEWAY, SHOP):
        assert isinstance(resource, XdsResource)
        assert resource.type == SECRET
        pair = encoder().decoded(resource)["tls_certificate"]
        chain, key = (pair[field]["inline_string"] for field in ("certificate_chain", "private_key"))
        found[resource.name] = chain, key
    return found


AT = "conf.listeners[1].tls.certificates"


def test_each_source_has_a_secret_of_its_own_name():
    sources = [
        ({"secret": "shop"}, "cert:secret:default:shop"),
        ({"inlineString": ECDSA}, "cert:inlineString:default:edge:443:shop.lan:0"),
        ({"inline": base64.b64encode(ECDSA.encode()).decode()}, "cert:inline:default:edge:443:shop.lan:0"),
    ]
    for source, name in sources:
        db = db_of(secret("shop", ECDSA), gateway(source))
        assert of(db) == ListenerCertificates((name,))
        chain, key = contents(db)[name]
        assert key + chain == ECDSA


def test_a_new_certificate_changes_the_secret_alone():
    db = db_of(secret("shop", ECDSA), gateway({"secret": "shop"}))
    before, old = of(db), contents(db)
    for text in (server("shop.lan", key=ecdsa_key(1)), RSA):  # another type of key, too
        pipeline.take(db, [stored(secret("shop", text))])
        assert of(db) is before
        assert contents(db).keys() == old.keys()
        assert contents(db) != old


def test_two_are_presented_if_their_keys_differ_in_type():
    both = db_of(secret("a", ECDSA), secret("b", RSA), gateway({"secret": "a"}, {"secret": "b"}))
    assert of(both) == ListenerCertificates(("cert:secret:default:a", "cert:secret:default:b"))
    same = db_of(secret("a", ECDSA), secret("b", ECDSA), gateway({"secret": "a"}, {"secret": "b"}))
    assert of(same).secrets == ("cert:secret:default:a",)
    text = 'duplicate TLS certificate "cert:secret:default:b": the one before is ECDSA too'
    assert problems(same) == [f'{AT}[1]: Secret "b": {text}']


@pytest.mark.parametrize(
    ("source", "text"),
    [
        (
            {"secret": "nowhere"},
            'Secret "nowhere": there is none of that name in the mesh; write it, or name another one',
        ),
        ({"secret": "bad"}, 'Secret "bad": missing server certificate'),
        (
            {"inlineString": certificate(ecdsa_key(), "shop.lan")},
            "inlineString certificate: missing private key",
        ),
        (
            {"file": "/etc/shop.pem"},
            "file certificate: files of the control plane are not read for gateways; write it into a Secret",
        ),
        ({"secret": "dataplane-token-signing-key-1"}, 'Secret "dataplane-token-signing-key-1": is'),
        ({}, "inline certificate: names no Secret and holds nothing itself"),
    ],
)
def test_a_bad_one_is_left_out_with_its_reason(source: dict[str, str], text: str):
    signing_key = secret("dataplane-token-signing-key-1", ECDSA)
    written = stored(gateway({"secret": "bad"}))
    written.spec["conf"]["listeners"][1]["tls"]["certificates"] = [source, {"secret": "good"}]
    db = db_of(secret("bad", pem(ecdsa_key())), secret("good", RSA), signing_key)
    pipeline.take(db, [written])
    assert of(db).secrets == ("cert:secret:default:good",)
    assert of(db).problem == ""
    assert problems(db)[0].startswith(f"{AT}[0]: {text}")
    assert list(contents(db)) == ["cert:secret:default:good"]


def test_without_any_good_one_there_is_a_reason_until_the_secret_is_mended():
    db = db_of(secret("shop", "nothing"), gateway({"secret": "shop"}))
    assert of(db).secrets == ()
    assert of(db).problem == 'Secret "shop": missing server certificate'
    assert contents(db) == {}
    pipeline.take(db, [stored(secret("shop", ECDSA))])
    assert of(db) == ListenerCertificates(("cert:secret:default:shop",))
    pipeline.take(db, [], [stored(secret("shop", ECDSA)).key])
    assert of(db).problem.startswith('Secret "shop": there is none of that name')


def test_a_listener_that_has_none_or_is_not_there():
    db = db_of(secret("shop", ECDSA), gateway({"secret": "shop"}))
    assert of(db, "444:*") == ListenerCertificates()
    assert of(db, "444:*").problem == "it has no certificate; write one in tls.certificates"
    assert gateway_certificates.of(db, GATEWAY._replace(name="other"), SHOP) == ListenerCertificates()


def test_what_people_may_know_has_no_key():
    db = db_of(secret("shop", ECDSA), gateway({"secret": "shop"}, hostname="*.shop.lan"))
    (known,) = gateway_certificates.presented(db, GATEWAY, "443:*.shop.lan")
    assert (known.key_type, known.names, known.source) == ("ECDSA", ("shop.lan",), 'Secret "shop"')
    assert known.name_problem == 'has no name for "*.shop.lan"; it is for shop.lan'
    assert "PRIVATE" not in repr(known)


def told(db: Db, now: datetime | None = None) -> list[str]:
    return [
        f"{each.path}: {each.message}" for each in lint.of_object(db, GATEWAY, now) if each.code == "KG028"
    ]


WHERE = 'listener 443:shop.lan of MeshGateway "edge" (mesh default zone east)'


def test_lint_names_gateway_listener_secret_and_reason():
    db = db_of(secret("shop", "nothing"), secret("other", RSA), gateway({"secret": "shop"}))
    reason = 'Secret "shop": missing server certificate'
    (text,) = told(db)
    assert text == f"{AT}[0]: {WHERE} refuses every connection, and others work: {reason}"
    pipeline.take(db, [stored(gateway({"secret": "shop"}, {"secret": "other"}))])
    (text,) = told(db)
    assert text == f"{AT}[0]: {WHERE} has one certificate less: {reason}"
    (of_secret,) = lint.of_object(db, stored(secret("shop", "")).key)
    assert of_secret.message == text.removeprefix(f"{AT}[0]: ")
    assert lint.of_object(db, stored(secret("other", "")).key) == ()


def test_lint_warns_of_what_clients_refuse():
    short = server("shop.lan", not_before=NOW, not_after=NOW + DAY)
    db = db_of(secret("shop", short), gateway({"secret": "shop"}))
    before = f'clients of {WHERE} that verify it refuse its certificate: Secret "shop" '
    after = "; it is presented nevertheless"
    assert told(db) == told(db, NOW) == []
    (text,) = told(db, NOW + DAY)
    assert text == f"{AT}[0]: {before}has expired at {NOW + DAY:%Y-%m-%dT%H:%M:%SZ}{after}"
    (text,) = told(db, NOW - DAY)
    assert text == f"{AT}[0]: {before}is not valid before {NOW:%Y-%m-%dT%H:%M:%SZ}{after}"
    pipeline.take(db, [stored(secret("shop", server("other.lan")))])
    (text,) = told(db)
    assert text == f'{AT}[0]: {before}has no name for "shop.lan"; it is for other.lan{after}'


def test_check_warns_before_one_expires():
    short = server("shop.lan", not_before=NOW, not_after=NOW + 10 * DAY)
    db = db_of(secret("shop", short), gateway({"secret": "shop"}))
    assert lint.of_gateways(db, NOW + 7 * DAY) == ()
    (problem,) = lint.of_gateways(db, NOW + 9 * DAY)
    end = f"{NOW + 10 * DAY:%Y-%m-%dT%H:%M:%SZ}"
    assert problem.message == f'the certificate of {WHERE} expires at {end}: Secret "shop"; write a new one'
    (problem,) = lint.of_gateways(db, NOW + 10 * DAY)
    assert "has expired" in problem.message


def test_a_gateway_of_the_gateway_api_presents_kubernetes_secrets_and_others_do_not():
    source = {"kubernetesSecret": "infra/shop"}
    written = stored(gateway({"secret": "shop"}))
    written.spec["conf"]["listeners"][1]["tls"]["certificates"] = [source]
    derived = msgspec.structs.replace(written, name="Gateway/infra/edge", namespace="infra")
    pair = {"tls.crt": certificate(ecdsa_key(), "shop.lan"), "tls.key": pem(ecdsa_key())}
    data = {name: base64.b64encode(text.encode()).decode() for name, text in pair.items()}
    tls = Resource(kind="Secret.core", namespace="infra", name="shop", core_name="shop", spec={"data": data})
    db = db_of()
    pipeline.take(db, [written, derived, tls])
    of_derived = gateway_certificates.of(db, derived.key, SHOP)
    assert of_derived == ListenerCertificates(("cert:secret:default:infra/shop",))
    assert of(db).problem == "inline certificate: names no Secret and holds nothing itself"
    (known,) = gateway_certificates.presented(db, derived.key, SHOP)
    assert (known.source, known.names) == ("Secret infra/shop", ("shop.lan",))
    pipeline.take(db, [msgspec.structs.replace(tls, spec={"data": {**data, "tls.key": ""}})])
    assert (
        gateway_certificates.of(db, derived.key, SHOP).problem
        == "Secret infra/shop: it needs tls.crt and tls.key"
    )
