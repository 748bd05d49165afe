"""Fuzz targets: functions of untrusted bytes; each says which results are allowed.

A target raises `AssertionError` where an answer is wrong, and lets through whatever the code under test
raises that is no refusal. Inputs are at most `SIZE_MAX` long, so that time is spent on shapes, not on size.
"""

import contextlib
import functools
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Final, NamedTuple

import msgspec
from google.protobuf.message import DecodeError

from koguma.application import admission_review
from koguma.core import endpoint_health, traffic
from koguma.dp import dns_message
from koguma.envoy import admin_channel, admin_pages, cluster_hosts, masking, schema, stats
from koguma.envoy.snapshot import TYPE_URLS
from koguma.kube import protobuf, protobuf_writer, selectors
from koguma.main import all_kinds
from koguma.model import documents, duration, forms, json_patch, kri
from koguma.model.errors import KogumaError
from koguma.xds.connect_request import connect_request
from koguma.xds.contract import Offer
from koguma.xds.messages import DeltaRequestDecoder, SotwRequestDecoder
from koguma.xds.protocol.session import DeltaSession
from tests.xds.script_player import snapshot

KINDS: Final = all_kinds()
SIZE_MAX: Final = 4096
CASES: Final = Path(__file__).parent / "cases"


class Target(NamedTuple):
    """One place where input arrives, and inputs to begin with."""

    run: Callable[[bytes], None]
    seeds: tuple[bytes, ...]


def yaml(data: bytes) -> None:
    """A YAML stream: documents whose every field has a place, or a refusal with one."""
    try:
        loaded = documents.load(data)
    except documents.BadDocument as error:
        if not error.violations:
            raise AssertionError("a refusal names the place") from error
        with_refusals(lambda: documents.load(data, repeated=[]))
        return
    repeated: list[documents.RepeatedKey] = []
    assert [each.value for each in documents.load(data, repeated=repeated)] == [each.value for each in loaded]
    assert not repeated
    for document in loaded:
        line, column = document.position("spec.to[0].default")
        assert line >= 1 <= column
        with_refusals(lambda value=document.value: forms.read(value, KINDS))


def json(data: bytes) -> None:
    """A JSON body: what is read is read again from what is written."""
    try:
        value = documents.load_json(data)
    except KogumaError:
        return
    documents.check_depth(value)
    assert documents.load_json(msgspec.json.encode(value)) == value


def kri_texts(data: bytes) -> None:
    """A KRI: parse(format(x)) == x for whatever is accepted."""
    text = data.decode("utf-8", "replace")
    try:
        parsed = kri.parse(text, KINDS.by_short)
    except KogumaError:
        return
    assert str(parsed) == text
    assert kri.parse(str(parsed), KINDS.by_short) == parsed


def durations(data: bytes) -> None:
    """A duration of a policy."""
    text = data.decode("utf-8", "replace")
    if duration.is_duration(text):
        nanoseconds = duration.nanoseconds(text)
        assert duration.nanoseconds(duration.text(nanoseconds)) == nanoseconds


@functools.cache
def decoders() -> tuple[DeltaRequestDecoder, SotwRequestDecoder]:
    loaded = schema.load(schema.find_envoy())
    return DeltaRequestDecoder(loaded), SotwRequestDecoder(loaded)


def first_xds_message(data: bytes) -> None:
    """The first request of an xDS stream, in both variants."""
    for decoder in decoders():
        try:
            incoming = decoder.decode(data)
            connect_request(incoming.node, "token", "ipv4:127.0.0.1:1")
        except (KogumaError, DecodeError):
            continue


OFFERED_SNAPSHOTS: Final = (
    snapshot("cluster:a@1[endpoints:a] endpoints:a@1 listener:l@1[routes:r] routes:r@1[cluster:a]"),
    snapshot("cluster:b@1[endpoints:b] endpoints:b@1 listener:l@2[routes:r] routes:r@2[cluster:b]"),
    snapshot("cluster:a@2[endpoints:a] endpoints:a@2 !cluster:b"),
)


def xds_session(data: bytes) -> None:
    """A delta stream: requests with their length before them, between offers.

    A request that cannot be decoded ends the stream, even if that is found only later.
    """
    session, decoder, at, number = DeltaSession(30.0), decoders()[0], 0, 0
    with contextlib.suppress(DecodeError):
        while at < len(data):
            size = data[at]
            request = decoder.decode(data[at + 1 : at + 1 + size]).request
            if request is not None:
                session.receive(request, float(number))
            offer = Offer(number + 1, OFFERED_SNAPSHOTS[number % len(OFFERED_SNAPSHOTS)])
            if not session.accept_if_held(offer):
                session.offer(offer, float(number))
            session.tick(float(number))
            at, number = at + 1 + size, number + 1
    assert session.status.state in ("connecting", "synced", "nack", "behind"), session.status


def kubernetes_protobuf(data: bytes) -> None:
    """A body of typed Kubernetes clients."""
    with_refusals(lambda: _written_again(data))
    with_refusals(lambda: _written_again(protobuf.MAGIC + data))


def _written_again(data: bytes) -> None:
    """What was read can be answered, and means the same then."""
    document = protobuf.decode(data)
    if protobuf_writer.has_message(document["apiVersion"], document["kind"]):
        assert protobuf.decode(protobuf_writer.encoded(document)) == document


def dns(data: bytes) -> None:
    """A DNS query over UDP: an answer to it is no longer than the asker takes."""
    try:
        query = dns_message.query(data)
    except dns_message.BadMessage:
        return
    addresses = dns_message.records({"a.mesh": ["127.0.0.1", "::1"]})[b"a", b"mesh"]
    reply = dns_message.response(query, addresses, 30, query.udp_bytes)
    assert len(reply) <= max(query.udp_bytes, len(data))
    assert dns_message.is_response(reply, data)


def admin_channel_messages(data: bytes) -> None:
    """What comes over the channel of an agent: frames, greetings, requests; and a page without secrets."""
    text = data.decode("utf-8", "replace")
    for read in (admin_channel.read_request, admin_channel.read_greeting):
        with contextlib.suppress(admin_channel.BadChannelMessage):
            read(text)
    with contextlib.suppress(admin_channel.BadChannelMessage):
        frame = admin_channel.read_frame(data)
        assert admin_channel.encoded(frame) == data
    with contextlib.suppress(admin_pages.UnknownPage):
        path = admin_pages.checked(text)
        assert admin_pages.checked(path) == path
        assert set(path) <= set(map(chr, range(33, 127)))
    with contextlib.suppress(masking.NotJson):
        once = masking.masked_json(data)
        assert masking.masked_json(once) == once


def label_selectors(data: bytes) -> None:
    """A label or field selector of a list."""
    text = data.decode("utf-8", "replace")
    with_refusals(lambda: selectors.labels(text).matches({"app": "web", "tier": "1"}))
    with_refusals(lambda: selectors.fields(text).matches(lambda _path: "web"))


PATCHED: Final = {"labels": {"a": "b"}, "spec": {"to": [{"default": {"idleTimeout": "5s"}}, {"x": [1, 2]}]}}


def patches(data: bytes) -> None:
    """A JSON patch and a merge patch, in every dialect."""
    try:
        patch = documents.load_json(data)
    except KogumaError:
        return
    for dialect in (json_patch.RFC_6902, json_patch.KUBERNETES, json_patch.KUMA):
        with_refusals(lambda dialect=dialect: json_patch.json_patched(PATCHED, patch, dialect))
    with_refusals(lambda: json_patch.merge_patched(PATCHED, patch))
    assert PATCHED["labels"] == {"a": "b"}, "what is stored is never changed in place"


def webhook_answers(data: bytes) -> None:
    """What a webhook answers: an answer, or the reason why it is none."""
    with contextlib.suppress(admission_review.UnreadableReview):
        given = admission_review.answer(data, "1")
        assert given.code == 0 or 400 <= given.code < 600
        assert all(text.isprintable() for text in (given.message, given.reason, *given.warnings))


def with_refusals(ask: Callable[[], object]) -> None:
    with contextlib.suppress(KogumaError):
        ask()


_TIMEOUT: Final = b"""type: MeshTimeout
name: a
mesh: default
spec:
  to:
    - targetRef: {kind: Mesh}
      default: {idleTimeout: 5s}
"""
_NODE: Final = b"\x12\x16\n\x0edefault.web-1a\x1a\x04\n\x02\x08\x01"


def _conversations() -> tuple[bytes, ...]:
    """Real requests to begin with: a first one, one that names versions, an ACK and a NACK."""
    message = schema.load(schema.find_envoy()).message_class(
        "envoy.service.discovery.v3.DeltaDiscoveryRequest"
    )
    requests = [
        message(type_url=TYPE_URLS["cluster"], node={"id": "default.web-1"}),
        message(type_url=TYPE_URLS["endpoints"], resource_names_subscribe=["a", "b"]),
        message(type_url=TYPE_URLS["cluster"], response_nonce="1"),
        message(type_url=TYPE_URLS["cluster"], response_nonce="2", error_detail={"code": 3, "message": "no"}),
        message(type_url=TYPE_URLS["routes"], resource_names_unsubscribe=["r"]),
        message(type_url=TYPE_URLS["cluster"], initial_resource_versions={"a": "1"}),
    ]
    frames = [bytes((len(frame), *frame)) for frame in (request.SerializeToString() for request in requests)]
    return b"".join(frames[:4]), b"".join(frames[5:0:-1])


_REVIEW: Final = (
    b'{"apiVersion": "admission.k8s.io/v1", "kind": "AdmissionReview", "response": {"uid": "1", "allowed":'
    b' false, "status": {"code": 418, "message": "no", "reason": "x"}, "warnings": ["a\\u001b"]}}'
)


def envoy_answers(data: bytes) -> None:
    """Pages of a proxy's Envoy: figures that can be added and shown, or a refusal."""
    with contextlib.suppress(stats.UnreadableAnswer):
        samples = traffic.ProxySamples({}, stats.read(data), 0.1)
        services = traffic.of_services([samples, samples])
        shown = msgspec.json.encode([*services, traffic.of_proxy(samples)])
        assert b"inf" not in shown.lower()
    with contextlib.suppress(stats.UnreadableAnswer):
        for hosts in cluster_hosts.read(data).values():
            looks = [endpoint_health.TwoLooks(hosts[0], host) for host in hosts]
            callers = endpoint_health.callers_word(looks)
            said = [*endpoint_health.of_callers(callers, 1.0)]
            said += [word for look in looks for word in endpoint_health.of_application(look, "x", 1.0)]
            assert endpoint_health.state(said) in endpoint_health.STATES
            msgspec.json.encode(callers)


_STATS: Final = b"""{"stats": [{"name": "cluster.kri_msvc_m_z__b_80.upstream_rq_5xx", "value": 3},
{"histograms": {"details": [{"name": "cluster.kri_msvc_m_z__b_80.upstream_rq_time",
"intervals": [{"lower_bound": 1, "width": 0.1, "count": 2}]}]}}]}"""
_CLUSTERS: Final = b"""{"cluster_statuses": [{"name": "kri_msvc_m_z__b_80", "host_statuses": [{"address":
{"socket_address": {"address": "::1", "port_value": 80}}, "stats": [{"name": "rq_total", "value": "7"},
{"name": "cx_connect_fail", "value": "1"}], "health_status": {"failed_outlier_check": true}}]}]}"""

TARGETS: Final[Mapping[str, Target]] = {
    "yaml": Target(yaml, (_TIMEOUT, b"a: &b [1]\n---\nc: |\n  d\n", b'{"a": "\\u0041"}')),
    "json": Target(json, (b'{"a": [1, 2.5, null, true, "\\u00e9"], "b": {"c": -1e3}}',)),
    "kri": Target(kri_texts, (b"kri_mt_default_east_team-a_slow_", b"kri_msvc_default___backend_8080")),
    "duration": Target(durations, (b"1h2m3.5s", b"100ms", b"0s")),
    "xds": Target(first_xds_message, (_NODE, b"\n" + _NODE)),
    "xds_session": Target(xds_session, _conversations()),
    "protobuf": Target(kubernetes_protobuf, (b"\n\x0b\n\x02v1\x12\x05Event\x12\x08\n\x06\n\x04name",)),
    "dns": Target(dns, (b"\0\1\1\0\0\1\0\0\0\0\0\0\1a\4mesh\0\0\1\0\1",)),
    "selectors": Target(label_selectors, (b"app in (web, api),!tier,x>5", b"metadata.name=web,a!=b")),
    "json_patch": Target(
        patches,
        (
            b'[{"op": "copy", "from": "/spec", "path": "/spec/to/0"}, {"op": "remove", "path": "/labels/a"}]',
            b'{"spec": {"to": null}}',
        ),
    ),
    "admin_channel": Target(
        admin_channel_messages,
        (
            b'{"number": 1, "path": "/stats?usedonly&filter=a.b"}',
            b"\0\0\0\1\1page",
            b"/config_dump?include_eds&resource=dynamic_listeners",
            b'{"private_key": {"inline_string": "-----BEGIN PRIVATE KEY-----"}, "key": "authorization"}',
        ),
    ),
    "webhooks": Target(webhook_answers, (_REVIEW,)),
    "envoy_answers": Target(envoy_answers, (_STATS, _CLUSTERS)),
}


def cases(name: str) -> list[Path]:
    """Inputs that were wrong once, and stay."""
    folder = CASES / name
    return sorted(folder.iterdir()) if folder.is_dir() else []
