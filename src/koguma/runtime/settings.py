"""Settings of a control plane: from flags, the environment, a YAML file, and defaults, in that order.

Every setting is one field here; flag, variable (`KOGUMA_<FIELD>`), key in the file and line in the
reference are derived from it.
"""

import ipaddress
import os
import re
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Annotated, Any, Final, Literal, get_args, get_origin
from urllib.parse import urlsplit

import msgspec

from koguma.model import documents, ip_range, names
from koguma.model.access import BUILTIN_ROLES, Binding, Role
from koguma.model.control_plane_info import ControlPlaneInfo, Mode
from koguma.model.errors import Invalid
from koguma.model.redacted import SHOWN, masked_url
from koguma.model.schema import Checker, Duration, Json, Spec, doc, read
from koguma.model.violation import Violation
from koguma.runtime import allowed_hosts, data_directory, service_addresses

ENV_PREFIX: Final = "KOGUMA_"
ADDRESSES_MIN: Final = 256  # of a range of virtual addresses
IPV6_PREFIX: Final = 96  # of the range in which virtual IPv4 addresses have twins
_NUMBER: Final = re.compile(r"[0-9]+(\.[0-9]+)?|\.[0-9]+")

Network = ipaddress.IPv4Network | ipaddress.IPv6Network
PortNumber = Annotated[int, msgspec.Meta(ge=0, le=65535)]
CaRotation = Literal["none", "begin", "use", "end"]
Share = Annotated[float, msgspec.Meta(ge=0, le=1)]

# Where OpenTelemetry's own variables name a collector; a path is added to the second.
_TRACES_VARIABLE: Final = "OTEL_EXPORTER_OTLP_TRACES_ENDPOINT"
_TELEMETRY_VARIABLE: Final = "OTEL_EXPORTER_OTLP_ENDPOINT"
_TRACES_PATH: Final = "/v1/traces"
_LOGS_PATH: Final = "/v1/logs"


class AccessSettings(Spec):
    """Who may do what, beside the built-in roles admin, edit and view."""

    roles: Annotated[tuple[Role, ...], doc("Roles of your own.")] = ()
    bindings: Annotated[tuple[Binding, ...], doc("Roles given to users and groups.")] = ()


class Settings(Spec):
    """All settings of `koguma cp run`."""

    mode: Annotated[
        Literal["zone", "global"], doc("One zone's control plane, or the Global one above zones.")
    ] = "zone"
    zone_name: Annotated[str, doc("Name of the zone (mode zone).")] = "default"
    global_address: Annotated[
        str, doc("Global that this zone takes part in, as grpcs://HOST:5685; none: the zone is alone.")
    ] = ""
    global_ca: Annotated[
        str, doc("File with the CA of Global's certificate (PEM); the system's CAs by default.")
    ] = ""
    zone_token_file: Annotated[
        str, doc("File with the zone token by which Global knows this zone; its scope has to be cp.")
    ] = ""
    accept_global: Annotated[
        str,
        doc("What `koguma check` names when Global is not the one of before: what that one had is given up."),
    ] = ""
    sync_host: Annotated[str, doc("Address that Global's port for zones listens on; 0.0.0.0 for all.")] = (
        "127.0.0.1"
    )
    sync_port: Annotated[PortNumber, doc("Port of Global for zones, gRPC; 0 takes a free one.")] = 5685
    store: Annotated[
        str,
        doc(
            "sqlite:///FILE, postgresql://USER@HOST,HOST/DB (several hosts: the one that takes writes) or"
            " memory://; SQLite in the data directory by default."
        ),
    ] = ""
    store_key_file: Annotated[
        str,
        doc(
            "File with the keys that encrypt Secrets in the store; by default FILE.key beside an SQLite file,"
            " which is made."
        ),
    ] = ""
    store_key_command: Annotated[str, doc("Command that prints these keys, instead of a file.")] = ""
    store_encryption: Annotated[bool, doc("Whether Secrets are encrypted in the store.")] = True
    data_dir: Annotated[
        str, doc("Directory for keys, certificates, the admin token and the SQLite file.")
    ] = ""
    api_host: Annotated[str, doc("Address that the API listens on; 0.0.0.0 for all.")] = "127.0.0.1"
    api_port: Annotated[PortNumber, doc("Port of the API, http; 0 takes a free one.")] = 5681
    api_tls_port: Annotated[PortNumber, doc("Port of the API, https; 0 takes a free one.")] = 5682
    dp_host: Annotated[str, doc("Address that the ports for proxies listen on; 0.0.0.0 for all.")] = (
        "127.0.0.1"
    )
    peer_host: Annotated[
        str,
        doc(
            "Name or address at which other control planes of the store reach the ports for proxies; by"
            " default dpHost, or this machine's name where that is for all addresses."
        ),
    ] = ""
    dp_port: Annotated[PortNumber, doc("Port where proxies get their bootstrap, https.")] = 5678
    xds_port: Annotated[PortNumber, doc("Port of xDS, gRPC.")] = 5679
    system_namespace: Annotated[str, doc("Namespace whose policies count as the operator's.")] = "kuma-system"
    hostnames: Annotated[tuple[str, ...], doc("More names and addresses for the self-made certificate.")] = ()
    tls_cert_file: Annotated[str, doc("Certificate chain of the API (PEM) instead of a self-made one.")] = ""
    tls_key_file: Annotated[str, doc("Key of that certificate (PEM).")] = ""
    ca_rotation: Annotated[
        CaRotation,
        doc(
            "Step of a rotation of the CA in the store: begin adds one that is only trusted, use lets it"
            " issue, end trusts no other any more."
        ),
    ] = "none"
    localhost_is_admin: Annotated[
        bool,
        doc(
            "Whether requests to the API's ports from this machine are the admin's, where neither a web page"
            " nor a proxy can have made them; without it the admin comes by api.sock in the data directory."
        ),
    ] = False
    history: Annotated[Duration, doc("How long superseded revisions are kept.")] = "720h"
    service_grace: Annotated[
        Duration, doc("How long a generated MeshService stays after its last proxy has gone.")
    ] = "1h"
    mesh_service_cidr: Annotated[str, doc("Range of the virtual addresses of MeshServices.")] = "241.0.0.0/8"
    mesh_external_service_cidr: Annotated[
        str, doc("Range of the virtual addresses of MeshExternalServices.")
    ] = "242.0.0.0/8"
    mesh_multi_zone_service_cidr: Annotated[
        str, doc("Range of the virtual addresses of MeshMultiZoneServices.")
    ] = "243.0.0.0/8"
    virtual_ipv6_cidr: Annotated[
        str,
        doc(
            "Range of IPv6, a /96, in which every virtual IPv4 address has an address too, as fd00:fd00::/96;"
            " none by default."
        ),
    ] = ""
    proxy_stay: Annotated[
        Duration,
        doc(
            "How long a proxy stays before it may be sent to another control plane of the store that has"
            " clearly fewer; 0s for ever."
        ),
    ] = "30m"
    proof_interval: Annotated[
        Duration, doc("How often the engine is checked against a compile from scratch; 0s for never.")
    ] = "10m"
    log_level: Annotated[Literal["debug", "info", "warning", "error"], doc("What is logged.")] = "info"
    log_format: Annotated[
        Literal["auto", "json", "text"], doc("JSON lines, or text; auto is text on a terminal.")
    ] = "auto"
    traces_endpoint: Annotated[
        str,
        doc(
            "Collector that gets a span for each request, OTLP/HTTP, as http://HOST:4318; without it,"
            " OTEL_EXPORTER_OTLP_ENDPOINT."
        ),
    ] = ""
    traces_ratio: Annotated[
        Share, doc("Share of requests that are traced, from 0 to 1, where the caller has not decided.")
    ] = 1
    audit_log: Annotated[
        str,
        doc(
            "File that gets a JSON line for each request to the API: who asked for what, and the result. Or a"
            " collector, OTLP/HTTP, as http://HOST:4318."
        ),
    ] = ""
    audit_level: Annotated[
        Literal["writes", "all"],
        doc("What the audit log has: what may change something and what was refused, or reads too."),
    ] = "writes"
    skip_default_mesh: Annotated[bool, doc("Start a new store without the mesh `default`.")] = False
    skip_hostname_generators: Annotated[bool, doc("Start a new store without host name generators.")] = False
    allow_proxy_data_sources: Annotated[
        bool, doc("Whether policies may make proxies read their files and environment.")
    ] = False
    identity_from_token: Annotated[
        bool,
        doc(
            "Whether a Dataplane that a proxy brings may name only services and workloads that its token"
            " names."
        ),
    ] = True
    outgoing_hosts: Annotated[
        tuple[str, ...],
        doc(
            "Hosts that the control plane may call where stored objects say so (webhooks): names, *.NAME,"
            " addresses and ranges, each with or without :PORT; none by default."
        ),
    ] = ()
    outgoing_services: Annotated[
        tuple[str, ...],
        doc(
            "Where the services are that webhooks and APIServices name: NAMESPACE/NAME=HOST:PORT; none by"
            " default."
        ),
    ] = ()
    service_account_issuer: Annotated[
        str,
        doc(
            "The issuer in tokens of service accounts, the same for all control planes: a URL under which"
            " others find /.well-known/openid-configuration of this API."
        ),
    ] = "https://koguma.local"
    feature_gates: Annotated[str, doc("Gates to switch, as ResourceID=false; also NamespaceContents.")] = ""
    access: Annotated[AccessSettings, doc("Access rules; only in the file.")] = AccessSettings()

    @property
    def control_plane(self) -> ControlPlaneInfo:
        """Which control plane these settings make."""
        is_global = self.mode == "global"
        return ControlPlaneInfo(
            mode=Mode(self.mode),
            zone="" if is_global else self.zone_name,
            federated=bool(self.global_address),
            system_namespace=self.system_namespace,
            allow_proxy_data_sources=self.allow_proxy_data_sources,
        )

    @property
    def store_url(self) -> str:
        """Where objects are stored."""
        return self.store or f"sqlite:///{Path(self.data_dir) / 'koguma.db'}"

    @property
    def traces_url(self) -> str:
        """Where spans are sent; empty: nowhere."""
        return _with_path(self.traces_endpoint, _TRACES_PATH)

    @property
    def audit_url(self) -> str:
        """Where audit events are sent; empty: to no collector."""
        return _with_path(self.audit_log, _LOGS_PATH) if _is_url(self.audit_log) else ""

    def gate(self, name: str) -> bool:
        """Whether a feature gate is on; all are unless switched off."""
        return _gates(self.feature_gates).get(name, True)

    def shown(self) -> Mapping[str, Json]:
        """The settings for people: passwords masked."""
        shown: dict[str, Json] = {
            field.encode_name: msgspec.to_builtins(getattr(self, field.name))
            for field in msgspec.structs.fields(self)
        }
        shown["store"] = masked_url(self.store_url)
        command, *arguments = self.store_key_command.split(maxsplit=1) or [""]
        shown["storeKeyCommand"] = f"{command} {SHOWN}" if arguments else command
        shown["tracesEndpoint"] = masked_url(self.traces_endpoint)
        shown["auditLog"] = masked_url(self.audit_log)
        return shown


GATES: Final = ("NamespaceContents", "ResourceID")
_CHECK: Final = Checker(Settings)


def load(file: str | None, environment: Mapping[str, str], flags: Mapping[str, Any]) -> Settings:
    """The settings: flags over environment over file over defaults; Invalid names each wrong one's source."""
    written = _from_file(file) if file else {}
    origins = {name: f"{file}: {name}" for name in written}
    for field in msgspec.structs.fields(Settings):
        name, flag, variable = field.encode_name, flags.get(field.name), ENV_PREFIX + field.name.upper()
        if variable in environment and name != "access":
            written[name] = _from_text(environment[variable], field.type)
            origins[name] = variable
        if flag is not None and flag != ():
            written[name] = list(flag) if isinstance(flag, tuple) else _from_flag(flag, field.type)
            origins[name] = "--" + field.name.replace("_", "-")
    written.setdefault("dataDir", str(data_directory.default(os.environ)))
    _add_telemetry(written, origins, environment)
    violations = [_named(v, origins) for v in _CHECK(written)]
    if violations:
        raise Invalid(violations, "the settings are not valid")
    settings: Settings = read(Settings, written)
    problems = [_named(v, origins) for v in _rules(settings)]
    if problems:
        raise Invalid(problems, "the settings are not valid")
    return settings


def _named(violation: Violation, origins: Mapping[str, str]) -> Violation:
    name = violation.field.partition(".")[0].partition("[")[0]
    rest = violation.field[len(name) :]
    return Violation(
        f"{origins.get(name, name)}{rest}", violation.message.removeprefix("in body "), violation.rule
    )


def _rules(settings: Settings) -> Iterator[Violation]:
    if settings.mode == "zone" and not names.is_dns1035_label(settings.zone_name):
        yield Violation("zoneName", names.DNS1035_MESSAGE, "name")
    if not names.is_dns_label(settings.system_namespace):
        yield Violation("systemNamespace", "must be a namespace: at most 63 of a-z, 0-9 and '-'", "name")
    if bool(settings.tls_cert_file) != bool(settings.tls_key_file):
        yield Violation("tlsCertFile", "goes with tlsKeyFile: give both or none", "pair")
    if settings.store_key_file and settings.store_key_command:
        yield Violation("storeKeyCommand", "does not go with storeKeyFile: give one of them", "pair")
    yield from _global_violations(settings)
    yield from _collector_violations("tracesEndpoint", settings.traces_endpoint)
    if _is_url(settings.audit_log):
        yield from _collector_violations("auditLog", settings.audit_log)
    yield from _range_violations(settings)
    yield from _outgoing_violations("outgoingHosts", settings.outgoing_hosts, allowed_hosts.parse)
    yield from _outgoing_violations("outgoingServices", settings.outgoing_services, service_addresses.parse)
    roles = {*BUILTIN_ROLES, *(role.name for role in settings.access.roles)}
    for index, binding in enumerate(settings.access.bindings):
        if binding.role not in roles:
            known = ", ".join(sorted(roles))
            field = f"access.bindings[{index}].role"
            yield Violation(field, f'"{binding.role}" is no role; there are {known}', "role")
    if not settings.service_account_issuer.startswith("https://"):
        yield Violation("serviceAccountIssuer", "must be a URL that begins with https://", "address")
    try:
        _gates(settings.feature_gates)
    except ValueError as error:
        yield Violation("featureGates", str(error), "gate")


def _global_violations(settings: Settings) -> Iterator[Violation]:
    """What is wrong with how a zone finds Global."""
    if not settings.global_address:
        for name, value in (("globalCa", settings.global_ca), ("zoneTokenFile", settings.zone_token_file)):
            if value:
                yield Violation(name, "goes with globalAddress: give both or none", "pair")
        return
    if settings.mode == "global":
        yield Violation("globalAddress", "is for mode zone; Global takes part in no other", "pair")
    if not is_global_address(settings.global_address):
        yield Violation("globalAddress", "must be grpcs://HOST:PORT, usually with port 5685", "address")
    if not settings.zone_token_file:
        text = "is needed with globalAddress; make one on Global: koguma token zone --zone NAME --scope cp"
        yield Violation("zoneTokenFile", text, "required")


def is_global_address(text: str) -> bool:
    """Whether this is grpcs://HOST:PORT."""
    parts = urlsplit(text)
    try:
        has_place = bool(parts.hostname and parts.port)
    except ValueError:
        return False
    return parts.scheme == "grpcs" and has_place and not (parts.path.strip("/") or parts.query)


def _is_url(text: str) -> bool:
    """Whether this is an address and no path of a file."""
    return "://" in text


def _with_path(address: str, path: str) -> str:
    """The address of a collector, with OTLP's own path where it has none."""
    has_path = urlsplit(address).path.strip("/") or not address
    return address if has_path else address.rstrip("/") + path


def _collector_violations(setting: str, address: str) -> Iterator[Violation]:
    try:
        parts = urlsplit(address)
        fits = not address or (parts.scheme in ("http", "https") and parts.hostname and parts.port != 0)
    except ValueError:
        fits = False
    if not fits:
        shown = masked_url(address)
        yield Violation(setting, f'"{shown}" is no collector; write http://HOST:4318', "address")


def _outgoing_violations(
    setting: str, entries: tuple[str, ...], parse: Callable[[str], object]
) -> Iterator[Violation]:
    for index, text in enumerate(entries):
        try:
            parse(text)
        except ValueError as error:
            yield Violation(f"{setting}[{index}]", str(error), "host")


def _range_violations(settings: Settings) -> Iterator[Violation]:
    """Ranges of virtual addresses that cannot be used; each is named by its own setting."""
    found: dict[str, Network] = {"what gateways have for other meshes": ip_range.CROSS_MESH}
    for name, text in (
        ("meshServiceCidr", settings.mesh_service_cidr),
        ("meshExternalServiceCidr", settings.mesh_external_service_cidr),
        ("meshMultiZoneServiceCidr", settings.mesh_multi_zone_service_cidr),
    ):
        try:
            network = ipaddress.ip_network(text)
        except ValueError:
            yield Violation(name, f'"{text}" is no range of addresses; write one as 241.0.0.0/8', "network")
            continue
        if network.num_addresses < ADDRESSES_MIN:
            message = f"{network} is too small: at least {ADDRESSES_MIN} addresses are needed, as in a /24"
            yield Violation(name, message, "size")
        for other, taken in found.items():
            if network.version == taken.version and network.overlaps(taken):
                message = f"{network} overlaps {other} ({taken}); give every kind a range of its own"
                yield Violation(name, message, "overlap")
        found[name] = network
    yield from _twin_violations(settings.virtual_ipv6_cidr, found)


def _twin_violations(text: str, found: Mapping[str, Network]) -> Iterator[Violation]:
    name = "virtualIpv6Cidr"
    if not text:
        return
    try:
        network = ipaddress.IPv6Network(text)
    except ValueError:
        network = None
    if network is None or network.prefixlen != IPV6_PREFIX:
        message = (
            f'"{text}" is no range of IPv6 that ends in the 32 bits of IPv4; write one as fd00:fd00::/96'
        )
        yield Violation(name, message, "network")
        return
    for other, taken in found.items():
        if taken.version == network.version and network.overlaps(taken):
            message = f"{network} overlaps {other} ({taken}); give it a range of its own"
            yield Violation(name, message, "overlap")


def _gates(text: str) -> dict[str, bool]:
    gates = {}
    for part in filter(None, (part.strip() for part in text.split(","))):
        name, _, value = part.partition("=")
        if name not in GATES or value not in ("true", "false"):
            raise ValueError(
                f'"{part}" is no gate; write NAME=true or NAME=false with a name of {", ".join(GATES)}'
            )
        gates[name] = value == "true"
    return gates


def _from_file(path: str) -> dict[str, Json]:
    try:
        data = Path(path).read_bytes()
    except OSError as error:
        reason = error.strerror or "cannot be read"
        raise Invalid([Violation(path, reason, "file")], "the settings file cannot be read") from None
    found = documents.load(data, path)
    if len(found) != 1 or not isinstance(found[0].value, dict):
        raise Invalid([Violation(path, "must be one mapping of settings", "file")], "the settings file")
    return dict(found[0].value)


def _add_telemetry(written: dict[str, Json], origins: dict[str, str], environment: Mapping[str, str]) -> None:
    """What OpenTelemetry's variables say, where nothing of ours does."""
    for variable, path in ((_TRACES_VARIABLE, ""), (_TELEMETRY_VARIABLE, _TRACES_PATH)):
        address = environment.get(variable, "").strip()
        if address and "tracesEndpoint" not in written:
            written["tracesEndpoint"] = address.rstrip("/") + path if path else address
            origins["tracesEndpoint"] = variable


def _from_flag(value: Any, type_: Any) -> Json:
    """A flag's value as the JSON that its field takes; a share comes as text."""
    return _from_text(value, type_) if isinstance(value, str) else value


def _from_text(text: str, type_: Any) -> Json:
    """An environment variable's text as the JSON that its field takes; what does not fit stays text."""
    base = type_
    while get_origin(base) is Annotated:
        base = get_args(base)[0]
    if base is bool:
        return {"true": True, "1": True, "false": False, "0": False}.get(text.lower(), text)
    if base is int:
        return int(text) if text.isascii() and text.isdigit() else text
    if base is float:
        return float(text) if _NUMBER.fullmatch(text) else text
    if get_origin(base) is tuple:
        return [part.strip() for part in text.split(",") if part.strip()]
    return text
