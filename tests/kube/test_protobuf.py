"""Protobuf bodies: what clients write, read as the document that they would have written in JSON."""

import base64
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest
import yaml
from google.protobuf import descriptor_pb2, descriptor_pool, json_format, message_factory
from hypothesis import given
from hypothesis import strategies as st

from koguma.kube import protobuf
from koguma.kube.protobuf_tables import DELETE_OPTIONS, KINDS, FieldLabel, ProtobufField, ProtobufType
from koguma.model.errors import BadRequest, KogumaError, TooLarge, UnsupportedMedia
from koguma.model.protobuf_wire import bytes_field, string_field, varint, varint_field

RBAC = "rbac.authorization.k8s.io/v1"


def wire(*fields):
    """A message of (number, value) pairs: text, bytes, numbers, or a message that is already written."""
    encoders = {int: varint_field, str: string_field, bytes: bytes_field}
    return b"".join(encoders[type(value)](number, value) for number, value in fields)


def body(api_version, kind, raw):
    return b"k8s\0" + wire((1, wire((1, api_version), (2, kind))), (2, raw))


KUBECTL = list(yaml.safe_load_all((Path(__file__).parent / "protobuf_bodies.yaml").read_text()))


@pytest.mark.parametrize("sent", KUBECTL, ids=[sent["command"] for sent in KUBECTL])
def test_what_kubectl_sends_is_read_as_it_was_meant(sent):
    assert protobuf.decode(bytes.fromhex(sent["body"])) == sent["document"]


REFERENCE = wire(
    (1, "Pod"), (2, "shop"), (3, "web"), (4, "u-1"), (5, "v1"), (6, "77"), (7, "spec.containers{web}")
)
REFERENCE_JSON = {
    "kind": "Pod",
    "namespace": "shop",
    "name": "web",
    "uid": "u-1",
    "apiVersion": "v1",
    "resourceVersion": "77",
    "fieldPath": "spec.containers{web}",
}
NOON = wire((1, 1_767_268_800), (2, 0))  # 2026-01-01T12:00:00Z
NOON_AND_A_BIT = wire((1, 1_767_268_800), (2, 123_456_789))
META = wire(
    (1, "a"),
    (2, "gen-"),
    (3, "ns"),
    (4, "/self"),
    (5, "u"),
    (6, "12"),
    (7, 3),
    (8, NOON_AND_A_BIT),
    (9, NOON),
    (10, 0),
    (11, wire((1, "app"), (2, "web"))),
    (11, wire((1, "empty"))),
    (12, wire((1, "note"), (2, "hello"))),
    (13, wire((1, "Job"), (3, "j"), (4, "ju"), (5, "batch/v1"), (6, 1), (7, 0))),
    (14, "x.io/one"),
    (14, "x.io/two"),
    (15, "an old field that nobody reads"),
    (
        17,
        wire(
            (1, "kubectl"),
            (2, "Apply"),
            (3, "v1"),
            (4, NOON),
            (6, "FieldsV1"),
            (7, wire((1, '{"f:data":{".":{}}}'))),
            (8, "status"),
        ),
    ),
)
META_JSON = {
    "name": "a",
    "generateName": "gen-",
    "namespace": "ns",
    "selfLink": "/self",
    "uid": "u",
    "resourceVersion": "12",
    "generation": 3,
    "creationTimestamp": "2026-01-01T12:00:00Z",
    "deletionTimestamp": "2026-01-01T12:00:00Z",
    "deletionGracePeriodSeconds": 0,
    "labels": {"app": "web", "empty": ""},
    "annotations": {"note": "hello"},
    "ownerReferences": [
        {
            "kind": "Job",
            "name": "j",
            "uid": "ju",
            "apiVersion": "batch/v1",
            "controller": True,
            "blockOwnerDeletion": False,
        }
    ],
    "finalizers": ["x.io/one", "x.io/two"],
    "managedFields": [
        {
            "manager": "kubectl",
            "operation": "Apply",
            "apiVersion": "v1",
            "time": "2026-01-01T12:00:00Z",
            "fieldsType": "FieldsV1",
            "fieldsV1": {"f:data": {".": {}}},
            "subresource": "status",
        }
    ],
}
CONDITION = wire((1, "Ready"), (2, "True"), (4, NOON), (5, "Because"), (6, "it is"))
OBJECTS = [
    ("v1", "ConfigMap", wire((1, META)), {"metadata": META_JSON}),
    ("v1", "ConfigMap", wire((4, 0)), {"immutable": False}),
    (
        "v1",
        "Secret",
        wire((3, "Opaque"), (4, wire((1, "k"), (2, "v"))), (5, 1), (2, wire((1, "none")))),
        {"type": "Opaque", "stringData": {"k": "v"}, "immutable": True, "data": {"none": ""}},
    ),
    (
        "v1",
        "Namespace",
        wire((2, wire((1, "kubernetes"))), (3, wire((1, "Active"), (2, CONDITION)))),
        {
            "spec": {"finalizers": ["kubernetes"]},
            "status": {
                "phase": "Active",
                "conditions": [
                    {
                        "type": "Ready",
                        "status": "True",
                        "lastTransitionTime": "2026-01-01T12:00:00Z",
                        "reason": "Because",
                        "message": "it is",
                    }
                ],
            },
        },
    ),
    (
        "v1",
        "ServiceAccount",
        wire((2, REFERENCE), (3, wire((1, "pull"))), (4, 0)),
        {
            "secrets": [REFERENCE_JSON],
            "imagePullSecrets": [{"name": "pull"}],
            "automountServiceAccountToken": False,
        },
    ),
    (
        "v1",
        "Event",
        wire(
            (2, REFERENCE),
            (3, "Pulled"),
            (4, "got it"),
            (5, wire((1, "kubelet"), (2, "node"))),
            (6, NOON),
            (7, NOON),
            (8, 4),
            (9, "Normal"),
            (10, NOON_AND_A_BIT),
            (11, wire((1, 2), (2, NOON_AND_A_BIT))),
            (12, "Pull"),
            (13, REFERENCE),
            (14, "kubelet"),
            (15, ""),
        ),
        {
            "involvedObject": REFERENCE_JSON,
            "reason": "Pulled",
            "message": "got it",
            "source": {"component": "kubelet", "host": "node"},
            "firstTimestamp": "2026-01-01T12:00:00Z",
            "lastTimestamp": "2026-01-01T12:00:00Z",
            "count": 4,
            "type": "Normal",
            "eventTime": "2026-01-01T12:00:00.123456Z",
            "series": {"count": 2, "lastObservedTime": "2026-01-01T12:00:00.123456Z"},
            "action": "Pull",
            "related": REFERENCE_JSON,
            "reportingComponent": "kubelet",
            "reportingInstance": "",
        },
    ),
    (
        "events.k8s.io/v1",
        "Event",
        wire(
            (2, NOON_AND_A_BIT),
            (3, wire((1, 2), (2, NOON))),
            (4, "x.io/c"),
            (5, "c-1"),
            (6, "Scale"),
            (7, "Grew"),
            (8, REFERENCE),
            (9, REFERENCE),
            (10, "more of it"),
            (11, "Warning"),
            (12, wire((1, "c"))),
            (13, NOON),
            (14, NOON),
            (15, 9),
        ),
        {
            "eventTime": "2026-01-01T12:00:00.123456Z",
            "series": {"count": 2, "lastObservedTime": "2026-01-01T12:00:00.000000Z"},
            "reportingController": "x.io/c",
            "reportingInstance": "c-1",
            "action": "Scale",
            "reason": "Grew",
            "regarding": REFERENCE_JSON,
            "related": REFERENCE_JSON,
            "note": "more of it",
            "type": "Warning",
            "deprecatedSource": {"component": "c"},
            "deprecatedFirstTimestamp": "2026-01-01T12:00:00Z",
            "deprecatedLastTimestamp": "2026-01-01T12:00:00Z",
            "deprecatedCount": 9,
        },
    ),
    (
        "coordination.k8s.io/v1",
        "Lease",
        wire((2, wire((1, ""), (2, 15), (3, NOON), (4, NOON_AND_A_BIT), (5, 0), (6, "Oldest"), (7, "b")))),
        {
            "spec": {
                "holderIdentity": "",
                "leaseDurationSeconds": 15,
                "acquireTime": "2026-01-01T12:00:00.000000Z",
                "renewTime": "2026-01-01T12:00:00.123456Z",
                "leaseTransitions": 0,
                "strategy": "Oldest",
                "preferredHolder": "b",
            }
        },
    ),
    (
        RBAC,
        "ClusterRole",
        wire(
            (2, wire((1, "get"), (2, "apps"), (3, "pods"), (4, "one"), (5, "/x"))),
            (3, wire((1, wire((2, wire((1, "tier"), (2, "In"), (3, "a"), (3, "b"))))))),
        ),
        {
            "rules": [
                {
                    "verbs": ["get"],
                    "apiGroups": ["apps"],
                    "resources": ["pods"],
                    "resourceNames": ["one"],
                    "nonResourceURLs": ["/x"],
                }
            ],
            "aggregationRule": {
                "clusterRoleSelectors": [
                    {"matchExpressions": [{"key": "tier", "operator": "In", "values": ["a", "b"]}]}
                ]
            },
        },
    ),
    (
        RBAC,
        "RoleBinding",
        wire((2, wire((1, "ServiceAccount"), (3, "bot"), (4, "shop"))), (3, wire((1, ""), (2, "Role")))),
        {
            "subjects": [{"kind": "ServiceAccount", "name": "bot", "namespace": "shop"}],
            "roleRef": {"apiGroup": "", "kind": "Role"},
        },
    ),
    (
        "authorization.k8s.io/v1",
        "SubjectAccessReview",
        wire(
            (
                2,
                wire(
                    (1, wire((8, wire((1, "a=b"))), (9, wire((2, wire((1, "k"), (2, "Exists"))))))),
                    (3, "ann"),
                    (4, "ops"),
                    (5, wire((1, "scopes"), (2, wire((1, "r"), (1, "w"))))),
                    (5, wire((1, "none"))),
                    (6, "42"),
                ),
            ),
            (3, wire((1, 0), (2, "no"), (3, "odd"), (4, 1))),
        ),
        {
            "spec": {
                "resourceAttributes": {
                    "fieldSelector": {"rawSelector": "a=b"},
                    "labelSelector": {"requirements": [{"key": "k", "operator": "Exists"}]},
                },
                "user": "ann",
                "groups": ["ops"],
                "extra": {"scopes": ["r", "w"], "none": []},
                "uid": "42",
            },
            "status": {"allowed": False, "reason": "no", "evaluationError": "odd", "denied": True},
        },
    ),
    (
        "authorization.k8s.io/v1",
        "LocalSubjectAccessReview",
        wire((2, wire((2, wire((1, "/healthz"), (2, "get")))))),
        {"spec": {"nonResourceAttributes": {"path": "/healthz", "verb": "get"}}},
    ),
    (
        "authentication.k8s.io/v1",
        "TokenReview",
        wire(
            (2, wire((1, "t0ken"), (2, "api"))),
            (3, wire((1, 1), (2, wire((1, "ann"), (2, "7"), (3, "ops"))), (3, "late"), (4, "api"))),
        ),
        {
            "spec": {"token": "t0ken", "audiences": ["api"]},
            "status": {
                "authenticated": True,
                "user": {"username": "ann", "uid": "7", "groups": ["ops"]},
                "error": "late",
                "audiences": ["api"],
            },
        },
    ),
    (
        RBAC,
        "DeleteOptions",
        wire((1, 0), (2, wire((1, "u"), (2, "9"))), (3, 0), (4, "Foreground"), (5, "All"), (6, 1)),
        {
            "gracePeriodSeconds": 0,
            "preconditions": {"uid": "u", "resourceVersion": "9"},
            "orphanDependents": False,
            "propagationPolicy": "Foreground",
            "dryRun": ["All"],
            "ignoreStoreReadErrorWithClusterBreakingPotential": True,
        },
    ),
    ("v1", "DeleteOptions", b"", {}),
]


@pytest.mark.parametrize(
    ("api_version", "kind", "raw", "fields"), OBJECTS, ids=[f"{case[0]} {case[1]}" for case in OBJECTS]
)
def test_each_field_of_a_kind_is_read_by_its_number(api_version, kind, raw, fields):
    decoded = protobuf.decode(body(api_version, kind, raw))
    assert decoded == {"apiVersion": api_version, "kind": kind, **fields}


def test_a_field_of_a_newer_client_is_skipped_in_every_form_that_protobuf_has():
    group = varint(99 << 3 | 3) + wire((1, "x")) + varint(5 << 3 | 3) + varint(5 << 3 | 4)
    odd = (
        *(varint(98 << 3 | 1), bytes(8), varint(97 << 3 | 5), bytes(4)),
        *(group, varint(6 << 3 | 1), bytes(8), varint(7 << 3 | 5), bytes(4), varint(99 << 3 | 4)),
    )
    raw = wire((96, "later"), (95, 7)) + b"".join(odd) + wire((2, wire((1, "k"), (2, "v"))))
    assert protobuf.decode(body("v1", "ConfigMap", raw))["data"] == {"k": "v"}


def test_a_message_in_two_parts_is_one_and_the_last_scalar_wins():
    raw = wire((1, wire((1, "old"), (3, "ns"), (14, "a"))), (1, wire((1, "new"), (3, ""), (14, "b"))))
    metadata = protobuf.decode(body("v1", "ConfigMap", raw))["metadata"]
    assert metadata == {"name": "new", "finalizers": ["a", "b"]}


NEITHER = {7: ProtobufField("port", ProtobufType.INT_OR_STRING)}


@pytest.mark.parametrize(
    ("parts", "value"),
    [
        (wire((1, 0), (2, 8080), (3, "")), 8080),
        (wire((1, 1), (2, 0), (3, "http")), "http"),
        (wire((2, -1)), -1),
        (wire((1, 1), (3, "")), None),
    ],
)
def test_a_number_or_text_is_what_its_type_says(parts, value):
    assert protobuf.message(wire((7, parts)), NEITHER).get("port") == value


@pytest.mark.parametrize(("number", "value"), [(-1, -1), (2**31, -(2**31)), (2**63 - 1, -1), (5, 5)])
def test_a_number_of_32_bits_is_the_lower_half(number, value):
    assert protobuf.message(wire((1, number)), {1: ProtobufField("n", ProtobufType.INT32)}) == {"n": value}


def test_a_time_that_nobody_set_is_left_out():
    raw = wire((1, wire((1, "a"), (8, b""))), (10, b""))
    assert protobuf.decode(body("v1", "Event", raw)) == {
        "apiVersion": "v1",
        "kind": "Event",
        "metadata": {"name": "a"},
    }


BROKEN = [
    (b"", BadRequest, "does not begin with"),
    (b"k8s", BadRequest, "does not begin with"),
    (b'{"kind": "Secret"}', BadRequest, "does not begin with"),
    (b"k8s\0", BadRequest, "does not name an apiVersion and a kind"),
    (body("v1", "", b""), BadRequest, "does not name an apiVersion and a kind"),
    (body("v1", "Pod", b""), UnsupportedMedia, "Pod of v1 is not read in protobuf, only ClusterRole, "),
    (body("v2", "Secret", b""), UnsupportedMedia, "Secret of v2"),
    (body("v1", "Secret", wire((1, wire((1, 5))))), BadRequest, "metadata.name of the protobuf body"),
    (body("v1", "Secret", wire((5, "yes"))), BadRequest, "immutable of the protobuf body should be a number"),
    (body("v1", "Secret", wire((2, 5))), BadRequest, "data of the protobuf body"),
    (body("v1", "Secret", varint(5 << 3 | 1) + bytes(8)), BadRequest, "immutable of the protobuf body"),
    (body("v1", "Secret", wire((3, b"\xff"))), BadRequest, "type of the protobuf body is not UTF-8"),
    (body("v1", "Secret", b"\x0a"), BadRequest, "a number does not end"),
    (body("v1", "Secret", b"\xff" * 12), BadRequest, "a number does not end"),
    (body("v1", "Secret", b"\x0a\x05abc"), BadRequest, "5 bytes should follow, and there are 3"),
    (body("v1", "Secret", b"\x00\x00"), BadRequest, "no field number 0"),
    (body("v1", "Secret", varint(2**33) + b"\0"), BadRequest, "no field number"),
    (body("v1", "Secret", b"\x0f"), BadRequest, "impossible form"),
    (body("v1", "Secret", varint(99 << 3 | 4)), BadRequest, "impossible form"),
    (body("v1", "Secret", varint(99 << 3 | 3) + varint(98 << 3 | 4)), BadRequest, "impossible form"),
    (body("v1", "Secret", varint(99 << 3 | 3) * 10_000), BadRequest, "impossible form"),
    (body("v1", "Secret", varint(99 << 3 | 3)), BadRequest, "a number does not end"),
    (body("v1", "Event", wire((6, wire((1, 10**12))))), BadRequest, "no time between the years"),
    (body("v1", "Event", wire((10, wire((2, -1))))), BadRequest, "eventTime of the protobuf body is no time"),
    (
        body("v1", "Event", wire((1, wire((17, wire((7, wire((1, "{oops"))))))))),
        BadRequest,
        "metadata.managedFields.fieldsV1",
    ),
    (
        body("v1", "Event", wire((1, wire((17, wire((7, wire((1, "[" * 100_000))))))))),
        BadRequest,
        "nested deeper",
    ),
    (body("v1", "Secret", b"") + wire((3, "gzip")), UnsupportedMedia, "content encoding"),
    (body("v1", "Secret", b"") + wire((4, "application/json")), UnsupportedMedia, "application/json"),
    (body("v1", "Secret", wire((3, "x")) * protobuf.FIELDS_MAX), TooLarge, "fields; send this object"),
    (body("v1", "Secret", wire((3, bytes(protobuf.SIZE_MAX)))), TooLarge, "at most 3145728 bytes"),
]


@pytest.mark.parametrize(("data", "error", "words"), BROKEN, ids=range(len(BROKEN)))
def test_a_body_that_cannot_be_read_is_refused_with_the_reason(data, error, words):
    with pytest.raises(KogumaError) as refused:
        protobuf.decode(data)
    assert type(refused.value) is error or (error is BadRequest and isinstance(refused.value, BadRequest))
    assert words in str(refused.value)


def test_the_type_of_a_port_is_a_number_or_text():
    with pytest.raises(BadRequest, match="neither a number nor text, but 2"):
        protobuf.message(wire((7, wire((1, 2)))), NEITHER)


# --- against protobuf's own library, whose messages are built from the same tables -------------------------

TEXT = st.text(st.characters(exclude_categories=["Cs"]), max_size=8)
SECONDS = st.integers(-62_135_596_800, 253_402_300_799)
FORMS = {
    ProtobufType.STRING: "STRING",
    ProtobufType.BOOL: "BOOL",
    ProtobufType.INT32: "INT32",
    ProtobufType.INT64: "INT64",
    ProtobufType.BASE64: "BYTES",
}
WRAPPERS = {
    ProtobufType.STRING_LIST: {1: ProtobufField("items", label=FieldLabel.REPEATED)},
    ProtobufType.JSON: {1: ProtobufField("raw", ProtobufType.BASE64)},
    ProtobufType.QUANTITY: {1: ProtobufField("text")},
    ProtobufType.TIME: {
        1: ProtobufField("seconds", ProtobufType.INT64),
        2: ProtobufField("nanos", ProtobufType.INT32),
    },
    ProtobufType.MICRO_TIME: {
        1: ProtobufField("seconds", ProtobufType.INT64),
        2: ProtobufField("nanos", ProtobufType.INT32),
    },
}


def declare(proto, table):
    for number, field in table.items():
        declared = proto.field.add(name=field.name, number=number, json_name=field.name)
        many = field.label in (FieldLabel.REPEATED, FieldLabel.MAP)
        declared.label = declared.LABEL_REPEATED if many else declared.LABEL_OPTIONAL
        of = field.type
        if field.label is FieldLabel.MAP:
            of = {1: ProtobufField("key"), 2: ProtobufField("value", field.type)}
        elif isinstance(of, ProtobufType):
            of = WRAPPERS.get(of, of)
        if isinstance(of, ProtobufType):
            declared.type = getattr(declared, f"TYPE_{FORMS[of]}")
            continue
        nested = proto.nested_type.add(name=f"Of{number}")
        declare(nested, of)
        declared.type = declared.TYPE_MESSAGE
        declared.type_name = nested.name


def message_class(table):
    file = descriptor_pb2.FileDescriptorProto(name="tables.proto", package="t", syntax="proto2")
    declare(file.message_type.add(name="Whole"), table)
    pool = descriptor_pool.DescriptorPool()
    pool.Add(file)
    return message_factory.GetMessageClass(pool.FindMessageTypeByName("t.Whole"))


ALL = {**KINDS, ("meta.k8s.io/v1", "DeleteOptions"): DELETE_OPTIONS}
CLASSES = {key: message_class(table) for key, table in ALL.items()}


@st.composite
def moments(draw, form):
    seconds, nanos = draw(SECONDS), draw(st.integers(0, 999_999_999))
    is_exact = form is ProtobufType.MICRO_TIME
    moment = datetime(1970, 1, 1, tzinfo=UTC) + timedelta(seconds=seconds)
    text = moment.strftime("%m-%dT%H:%M:%S") + (f".{nanos // 1000:06}" if is_exact else "")
    return {"seconds": seconds, "nanos": nanos}, f"{moment.year:04}-{text}Z"


def plain(form):
    """Pairs: what the library is told, and what JSON has."""
    match form:
        case ProtobufType.STRING:
            return TEXT.map(lambda text: (text, text))
        case ProtobufType.BOOL:
            return st.booleans().map(lambda value: (value, value))
        case ProtobufType.INT32:
            return st.integers(-(2**31), 2**31 - 1).map(lambda value: (value, value))
        case ProtobufType.INT64:
            return st.integers(-(2**63), 2**63 - 1).map(lambda value: (value, value))
        case ProtobufType.BASE64:
            return st.binary(max_size=6).map(base64.b64encode).map(bytes.decode).map(lambda b: (b, b))
        case ProtobufType.STRING_LIST:
            return st.lists(TEXT, max_size=2).map(lambda texts: ({"items": texts}, texts))
        case ProtobufType.QUANTITY:
            return TEXT.map(lambda text: ({"text": text}, text or "0"))
        case ProtobufType.JSON:
            return st.just(({"raw": base64.b64encode(b'{"f:a":{}}').decode()}, {"f:a": {}}))
        case _:
            return moments(form)


@st.composite
def values(draw, table):
    sent, meant = {}, {}
    for number in draw(st.sets(st.sampled_from(sorted(table)), max_size=4)):
        field = table[number]
        one = plain(field.type) if isinstance(field.type, ProtobufType) else values(field.type)
        match field.label:
            case FieldLabel.REPEATED:
                pairs = draw(st.lists(one, min_size=1, max_size=2))
                sent[field.name], meant[field.name] = [p[0] for p in pairs], [p[1] for p in pairs]
            case FieldLabel.MAP:
                entries = draw(st.dictionaries(TEXT, one, min_size=1, max_size=2))
                sent[field.name] = [{"key": key, "value": pair[0]} for key, pair in entries.items()]
                meant[field.name] = {key: pair[1] for key, pair in entries.items()}
            case shape:
                sent[field.name], value = draw(one)
                if shape is FieldLabel.EXPLICIT or value not in ("", 0):
                    meant[field.name] = value
    return sent, meant


@pytest.mark.property
@given(st.data())
def test_what_protobufs_own_library_writes_is_read_back(data):
    key = data.draw(st.sampled_from(sorted(ALL)))
    sent, meant = data.draw(values(ALL[key]))
    written = json_format.ParseDict(sent, CLASSES[key]()).SerializeToString()
    assert protobuf.decode(body(*key, written)) == {"apiVersion": key[0], "kind": key[1], **meant}


def read_or_refused(data):
    try:
        decoded = protobuf.decode(data)
    except KogumaError:
        return
    assert decoded["kind"]


@pytest.mark.property
@given(st.binary(max_size=64), st.sampled_from(sorted(ALL)))
def test_noise_is_read_or_refused_and_nothing_else(noise, key):
    read_or_refused(noise)
    read_or_refused(b"k8s\0" + noise)
    read_or_refused(body(*key, noise))


SAMPLES = [bytes.fromhex(sent["body"]) for sent in KUBECTL] + [body(*case[:3]) for case in OBJECTS]


@pytest.mark.property
@given(st.sampled_from(SAMPLES), st.data())
def test_a_damaged_body_is_read_or_refused_and_nothing_else(sample, data):
    at = data.draw(st.integers(0, len(sample)))
    until = data.draw(st.integers(at, min(len(sample), at + 8)))
    read_or_refused(sample[:at] + data.draw(st.binary(max_size=8)) + sample[until:])
    read_or_refused(sample[:at])
