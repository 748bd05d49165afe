"""Certificates of connected proxies: what they get, when it changes, and that a new CA costs no call."""

import base64
import itertools
from datetime import UTC, datetime, timedelta

import pytest
import structlog
from cryptography import x509
from cryptography.exceptions import InvalidSignature
from hypothesis import given
from hypothesis import strategies as st

from koguma.fleet import mesh_cas
from koguma.fleet.certificates import CHANGED_MAX, Certificates
from koguma.identity import authority
from koguma.identity.rotation import DISTRUST_DELAY, SETTLE_TIME, TRUST_TIMEOUT, CaHolders
from koguma.kinds.mesh import MeshBuiltinCert
from koguma.model.resource import Key, Resource
from koguma.runtime import logs
from koguma.store.log import LogSnapshot
from koguma.store.state import State
from tests.build import mesh
from tests.control_plane import LocalControlPlane

pytestmark = pytest.mark.slow

START = datetime(2026, 11, 15, 12, 0, tzinfo=UTC)
SECOND, HOUR = timedelta(seconds=1), timedelta(hours=1)
IDENTITY, TRUST = "identity_cert:secret:shop", "mesh_ca:secret:shop"
MADE = {name: authority.make("shop", MeshBuiltinCert(), START - HOUR) for name in ("a", "b", "c")}


def encoded(text):
    return base64.b64encode(text.encode()).decode()


def proxy(name):
    return Key("Dataplane", "shop", "east", "", name)


def uris(name):
    return (f"spiffe://shop/{name}", f"kuma://kuma.io/service/{name}")


def builtin(name, **more):
    return {"name": name, "type": "builtin", **more}


def fingerprints(pem):
    return {
        found.fingerprint(found.signature_hash_algorithm)
        for found in x509.load_pem_x509_certificates(pem.encode())
    }


class CertificateSetup:
    """Certificates over a store's state and a clock that is set by hand."""

    def __init__(self, *backends, enabled="a"):
        self.now = START
        self._revision = 0
        self._stored = {}
        self.others = CaHolders()
        for name, pair in MADE.items():
            self.write_ca(name, pair)
        self.write_mesh(*(backends or (builtin("a"),)), enabled=enabled)
        self.now += HOUR  # all of that was long ago
        self.certificates = self.another()

    def another(self):
        """The certificates of another control plane on the same store."""
        return Certificates(lambda: self.state, lambda: self.now, lambda _mesh: self.others)

    def put(self, **fields):
        self._revision += 1
        name = fields["name"]
        time = self.now.strftime("%Y-%m-%dT%H:%M:%SZ")
        made = Resource(core_name=name, modification_time=time, revision=self._revision, **fields)
        self._stored[made.key] = made
        self.state = State(LogSnapshot(self._revision, 0, tuple(self._stored.values())))

    def write_mesh(self, *backends, enabled):
        mtls = {"backends": list(backends), **({"enabledBackend": enabled} if enabled else {})}
        self.put(kind="Mesh", name="shop", spec={"mtls": mtls})

    def write_ca(self, backend, pair):
        names = authority.secret_names("shop", backend)
        for name, text in zip(names, (pair.certificate, pair.key.reveal()), strict=True):
            self.write_secret(name, text)

    def write_secret(self, name, text):
        self.put(kind="Secret", mesh="shop", zone="east", name=name, spec={"data": encoded(text)})

    def delete(self, key):
        self._revision += 1
        del self._stored[key]
        self.state = State(LogSnapshot(self._revision, 0, tuple(self._stored.values())))

    def of(self, name, *tags):
        return self.certificates.of(proxy(name), (*uris(name), *tags))

    def takes(self, name, *, trust=True, leaf=True):
        """Let a proxy take what there is for it, and say so."""
        found = self.of(name)
        moved = False
        if trust and found.trust:
            moved |= self.certificates.acked(proxy(name), TRUST, found.trust.version)
        if leaf and found.identity:
            moved |= self.certificates.acked(proxy(name), IDENTITY, found.identity.version)
        return moved

    def changed_names(self):
        return sorted(key.name for key in self.certificates.changed())


def issuer_of(secrets):
    """The CA that made a proxy's certificate, and those that the proxy trusts, as letters."""
    leaf = x509.load_pem_x509_certificate(secrets.identity.pem.encode())
    return next(
        name for name in MADE if is_by(leaf, x509.load_pem_x509_certificate(MADE[name].certificate.encode()))
    )


def is_by(leaf, ca):
    try:
        leaf.verify_directly_issued_by(ca)
    except (InvalidSignature, ValueError):
        return False
    return True


def shown(secrets):
    """As `a < ab`: issued by a, trusts a and b."""
    trusted = fingerprints(secrets.trust.pem)
    names = [name for name, pair in MADE.items() if fingerprints(pair.certificate) <= trusted]
    return f"{issuer_of(secrets) if secrets.identity else ''} < {''.join(names)}"


# What a proxy gets.


@pytest.mark.parametrize("enabled", ["", None])
def test_without_mtls_there_is_nothing(enabled):
    assert CertificateSetup(enabled=enabled).of("web") is None


def test_without_a_mesh_there_is_nothing():
    setup = CertificateSetup()
    setup.delete(Key("Mesh", "", "", "", "shop"))
    assert setup.of("web") is None
    assert setup.certificates.problems() == ()


def test_a_proxy_gets_its_certificate_and_the_cas_of_its_mesh():
    found = CertificateSetup().of("web")
    assert [secret.name for secret in found] == [TRUST, IDENTITY]
    trust, identity = (secret.data() for secret in found)
    assert trust == {
        "name": TRUST,
        "validation_context": {"trusted_ca": {"inline_string": MADE["a"].certificate}},
    }
    assert identity == {
        "name": IDENTITY,
        "tls_certificate": {
            "certificate_chain": {"inline_string": found.leaf.certificate},
            "private_key": {"inline_string": found.leaf.key.reveal()},
        },
    }
    leaf = x509.load_pem_x509_certificate(found.leaf.certificate.encode())
    names = leaf.extensions.get_extension_for_class(x509.SubjectAlternativeName).value
    assert tuple(names.get_values_for_type(x509.UniformResourceIdentifier)) == uris("web")
    assert shown(found) == "a < a"


def test_nothing_is_made_anew_while_nothing_changes():
    setup = CertificateSetup()
    first = setup.of("web")
    setup.now += SECOND
    assert setup.of("web") is first
    setup.put(kind="Dataplane", mesh="shop", zone="east", name="other")
    assert setup.of("web") is first
    assert setup.changed_names() == []


def test_proxies_share_trust_and_nothing_else():
    setup = CertificateSetup()
    web, api = setup.of("web"), setup.of("api")
    assert web.trust == api.trust
    assert web.identity.version != api.identity.version
    assert web.leaf.key != api.leaf.key


def test_another_name_means_another_certificate():
    setup = CertificateSetup()
    first, second = setup.of("web"), setup.of("web", "kuma://version/2")
    assert second.identity.version != first.identity.version
    assert second.trust is first.trust


def test_another_lifetime_means_another_certificate():
    setup = CertificateSetup()
    first = setup.of("web")
    assert first.leaf.not_after - setup.now == 24 * HOUR
    setup.write_mesh(builtin("a", dpCert={"rotation": {"expiration": "2h"}}), enabled="a")
    assert setup.changed_names() == ["web"]
    second = setup.of("web")
    assert second.leaf.not_after - setup.now == 2 * HOUR
    assert second.identity.version != first.identity.version


def test_two_control_planes_give_the_same_versions():
    setup = CertificateSetup()
    there = setup.another().of(proxy("web"), uris("web"))
    here = setup.of("web")
    assert [secret.version for secret in here] == [secret.version for secret in there]
    assert here.leaf.serial != there.leaf.serial


# Renewal.


def test_a_certificate_is_renewed_in_time_and_only_then():
    setup = CertificateSetup()
    first = setup.of("web")
    due = setup.certificates.due()
    assert setup.now < due <= setup.now + 24 * HOUR * 4 / 5
    setup.now = due - SECOND
    assert setup.changed_names() == []
    assert setup.of("web") is first
    setup.now = due
    assert setup.changed_names() == ["web"]
    second = setup.of("web")
    assert second.identity.version != first.identity.version
    assert second.leaf.not_after == due.replace(microsecond=0) + 24 * HOUR
    assert setup.certificates.due() == due + 24 * HOUR * 4 / 5


def test_what_has_changed_is_told_once():
    setup = CertificateSetup()
    setup.of("web")
    setup.now = setup.certificates.due()
    assert setup.changed_names() == ["web"]
    assert setup.changed_names() == []
    assert setup.certificates.due() is None or setup.certificates.due() > setup.now  # nobody spins
    setup.of("web")
    assert setup.certificates.due() > setup.now


def test_many_changes_are_told_in_portions():
    setup = CertificateSetup()
    names = [f"p{number}" for number in range(CHANGED_MAX + 10)]
    for name in names:
        setup.of(name)
    setup.write_mesh(builtin("a"), builtin("b"), enabled="a")
    first = setup.changed_names()
    assert len(first) == CHANGED_MAX
    assert setup.certificates.due() <= setup.now
    assert sorted({*first, *setup.changed_names()}) == sorted(names)
    assert setup.certificates.due() > setup.now


# A new CA.


def test_add_and_enable_in_one_write_goes_bundle_acks_leaves():
    setup = CertificateSetup()
    for name in ("web", "api"):
        setup.takes(name)
    setup.write_mesh(builtin("a"), builtin("b"), enabled="b")
    assert setup.changed_names() == ["api", "web"]
    assert [shown(setup.of(name)) for name in ("web", "api")] == ["a < ab", "a < ab"]
    assert setup.certificates.due() == setup.now + SETTLE_TIME
    setup.now += SETTLE_TIME
    assert setup.takes("web") is False
    assert setup.changed_names() == []
    assert setup.takes("api") is True
    assert setup.changed_names() == ["api", "web"]
    assert [shown(setup.of(name)) for name in ("web", "api")] == ["b < ab", "b < ab"]


def test_an_old_ca_goes_when_nobody_shows_it_any_more():
    setup = CertificateSetup()
    for name in ("web", "api"):
        setup.takes(name)
    setup.write_mesh(builtin("b"), enabled="b")
    setup.takes("web")
    setup.takes("api")
    setup.now += SETTLE_TIME
    assert setup.changed_names() == ["api", "web"]
    assert setup.takes("web") is False
    setup.now += DISTRUST_DELAY
    assert shown(setup.of("web")) == "b < ab"  # the other one may still show the old one
    assert setup.takes("api") is True
    assert shown(setup.of("web")) == "b < b"
    setup.takes("web")
    setup.takes("api")
    setup.now += HOUR / 60
    assert setup.changed_names() == []


def test_a_proxy_that_does_not_answer_is_waited_for_ten_seconds():
    setup = CertificateSetup()
    setup.of("web")
    setup.write_mesh(builtin("a"), builtin("b"), enabled="b")
    assert shown(setup.of("web")) == "a < ab"
    setup.now += TRUST_TIMEOUT - SECOND
    assert shown(setup.of("web")) == "a < ab"
    setup.now += SECOND
    assert setup.changed_names() == ["web"]
    assert shown(setup.of("web")) == "b < ab"


def test_a_proxy_of_another_control_plane_is_waited_for_like_our_own():
    setup = CertificateSetup()
    setup.takes("web")
    [ca_a] = setup.certificates.states(proxy("web"))[0].trusts
    setup.others = CaHolders(1, {ca_a: 1}, {ca_a: 1})
    setup.write_mesh(builtin("b"), enabled="b")
    setup.takes("web")
    ca_b = next(ca for ca in setup.certificates.states(proxy("web"))[0].trusts if ca != ca_a)
    setup.now += SETTLE_TIME
    assert setup.certificates.others_changed() is False
    assert shown(setup.of("web")) == "a < ab"
    setup.others = CaHolders(1, {ca_a: 1, ca_b: 1}, {ca_a: 1})
    assert setup.certificates.others_changed() is True
    assert setup.changed_names() == ["web"]
    setup.takes("web")
    assert shown(setup.of("web")) == "b < ab"
    setup.now += DISTRUST_DELAY
    assert setup.certificates.others_changed() is False
    assert shown(setup.of("web")) == "b < ab", "the other one may still show the old one"
    setup.others = CaHolders(1, {ca_a: 1, ca_b: 1}, {ca_b: 1})
    assert setup.certificates.others_changed() is True
    assert shown(setup.of("web")) == "b < b"


def test_while_it_is_not_known_what_others_have_no_ca_begins_and_none_leaves():
    setup = CertificateSetup()
    setup.takes("web")
    setup.others = CaHolders(is_known=False)
    setup.write_mesh(builtin("b"), enabled="b")
    setup.takes("web")
    setup.now += HOUR
    setup.certificates.others_changed()
    assert shown(setup.of("web")) == "a < ab"
    setup.others = CaHolders()
    assert setup.certificates.others_changed() is True
    setup.takes("web")
    assert shown(setup.of("web")) == "b < ab"
    setup.others = CaHolders(is_known=False)
    setup.now += DISTRUST_DELAY
    setup.certificates.others_changed()
    assert shown(setup.of("web")) == "b < ab"
    setup.others = CaHolders()
    assert setup.certificates.others_changed() is True
    assert shown(setup.of("web")) == "b < b"


def test_a_mesh_gets_its_first_ca_whatever_is_known_of_others():
    setup = CertificateSetup()
    setup.others = CaHolders(is_known=False)
    assert shown(setup.of("web")) == "a < a"


def test_an_answer_that_is_heard_twice_counts_once():
    setup = CertificateSetup()
    setup.takes("web")
    setup.takes("api")
    setup.write_mesh(builtin("a"), builtin("b"), enabled="b")
    setup.of("api")
    setup.now += SETTLE_TIME
    assert [setup.takes("web") for _ in range(3)] == [False] * 3
    assert shown(setup.of("web")) == "a < ab"


def test_a_proxy_that_leaves_is_not_waited_for():
    setup = CertificateSetup()
    setup.takes("web")
    setup.takes("api")
    setup.write_mesh(builtin("a"), builtin("b"), enabled="b")
    setup.takes("web")
    setup.of("api")
    setup.now += SETTLE_TIME
    assert setup.certificates.forget(proxy("api")) is True
    assert shown(setup.of("web")) == "b < ab"


def test_who_comes_in_the_middle_of_a_change_gets_what_all_trust():
    setup = CertificateSetup()
    setup.takes("web")
    setup.write_mesh(builtin("b"), enabled="b")
    assert shown(setup.of("web")) == "a < ab"
    assert shown(setup.of("new")) == "a < ab"


def test_a_ca_that_is_replaced_in_its_secrets_rotates_like_any_other():
    setup = CertificateSetup()
    setup.takes("web")
    cert, key = authority.secret_names("shop", "a")
    setup.write_secret(cert, MADE["b"].certificate)  # two writes: in between they do not belong together
    assert shown(setup.of("web")) == "a < ab"
    assert ["belong together" in problem.text for problem in setup.certificates.problems()] == [True]
    assert shown(setup.of("new")) == "a < ab"
    setup.write_secret(key, MADE["b"].key.reveal())
    assert setup.certificates.problems() == ()
    setup.now += SETTLE_TIME
    setup.takes("web")
    setup.takes("new")
    assert shown(setup.of("web")) == "b < ab"


def test_the_key_may_also_be_replaced_first():
    setup = CertificateSetup()
    setup.takes("web")
    cert, key = authority.secret_names("shop", "a")
    setup.write_secret(key, MADE["b"].key.reveal())
    assert shown(setup.of("new")) == "a < a"  # with the key that was there before
    setup.write_secret(cert, MADE["b"].certificate)
    assert shown(setup.of("web")) == "a < ab"


def test_a_start_in_the_middle_of_a_change_gives_trust_before_leaves():
    setup = CertificateSetup()
    setup.write_mesh(builtin("a"), builtin("b"), enabled="b")
    assert shown(setup.of("web")) == " < ab"
    setup.now += SETTLE_TIME
    assert setup.takes("web") is True
    assert shown(setup.of("web")) == "b < ab"


def test_switching_off_and_on_begins_anew():
    setup = CertificateSetup()
    setup.takes("web")
    assert setup.certificates.certified() == {proxy("web")}
    setup.write_mesh(builtin("a"), enabled="")
    assert setup.changed_names() == ["web"]
    assert setup.of("web") is None
    assert setup.certificates.certified() == frozenset()
    assert setup.certificates.due() is None
    setup.write_mesh(builtin("b"), enabled="b")
    assert setup.changed_names() == ["web"]
    assert shown(setup.of("web")) == "b < b"


_EVENTS = st.lists(
    st.one_of(
        st.tuples(st.just("write"), st.sampled_from(["a a", "ab a", "ab b", "b b", "bc c", "c c", "abc b"])),
        st.tuples(st.sampled_from(["trust", "identity"]), st.sampled_from(["web", "api", "new"])),
        st.tuples(st.just("wait"), st.sampled_from([1, 2, 5, 8, 25])),
    ),
    max_size=40,
)


class Mesh:
    """Proxies that take each secret when they like, but trust within the patience that they are given."""

    def __init__(self):
        self.setup = CertificateSetup()
        self.taken = {}  # by proxy and part: the secret
        self.offered_at = {}  # by proxy: since when it has another trust than it was offered
        for name, part in itertools.product(("web", "api"), ("trust", "identity")):
            self.take(name, part)

    def take(self, name, part):
        if part == "identity" and (name, "trust") not in self.taken:
            return
        secret = getattr(self.setup.of(name), part)
        self.taken[name, part] = secret
        self.setup.certificates.acked(proxy(name), secret.name, secret.version)

    def write(self, words):
        listed, enabled = words.split()
        self.setup.write_mesh(*(builtin(name) for name in listed), enabled=enabled)

    def wait(self, seconds):
        for _ in range(seconds):
            self.setup.now += SECOND
            self.offer()

    def offer(self):
        for name in {name for name, _ in self.taken}:
            if self.setup.of(name).trust == self.taken[name, "trust"]:
                self.offered_at.pop(name, None)
            elif self.setup.now - self.offered_at.setdefault(name, self.setup.now) >= TRUST_TIMEOUT - SECOND:
                self.take(name, "trust")

    def refusals(self):
        """Which proxies would not be let in by which, now."""
        leaves = {name: secret for (name, part), secret in self.taken.items() if part == "identity"}
        for one, other in itertools.permutations(leaves, 2):
            if not trusts(self.taken[other, "trust"].pem, leaves[one].pem):
                yield one, other


@pytest.mark.property
@given(events=_EVENTS)
def test_no_call_fails_whatever_is_written_as_long_as_proxies_answer(events):
    mesh = Mesh()
    for what, which in events:
        match what:
            case "write":
                mesh.write(which)
            case "wait":
                mesh.wait(which)
            case part:
                mesh.take(which, part)
        mesh.offer()
        assert list(mesh.refusals()) == []


def trusts(bundle, pem):
    leaf = x509.load_pem_x509_certificate(pem.encode())
    return any(is_by(leaf, ca) for ca in x509.load_pem_x509_certificates(bundle.encode()))


# Who is certified, and what is wrong.


def test_a_proxy_is_certified_when_it_has_said_so_and_until_its_certificate_ends():
    setup = CertificateSetup()
    found = setup.of("web")
    assert setup.certificates.certified() == frozenset()
    setup.certificates.acked(proxy("web"), IDENTITY, "another version")
    setup.certificates.acked(proxy("other"), IDENTITY, found.identity.version)
    assert setup.certificates.certified() == frozenset()
    setup.certificates.acked(proxy("web"), IDENTITY, found.identity.version)
    assert setup.certificates.certified() == {proxy("web")}
    setup.now = found.leaf.not_after
    assert setup.certificates.certified() == frozenset()


def test_who_is_forgotten_is_not_certified():
    setup = CertificateSetup()
    setup.takes("web")
    assert setup.certificates.forget(proxy("web")) is False
    assert setup.certificates.certified() == frozenset()
    assert setup.certificates.forget(proxy("web")) is False


def test_a_ca_that_is_missing_is_told_and_given_when_it_comes():
    missing = {"name": "mine", "type": "provided", "conf": {"cert": {"secret": "c"}, "key": {"secret": "k"}}}
    setup = CertificateSetup(missing, enabled="mine")
    assert list(setup.of("web")) == []
    advice = "write it, or for a builtin CA write the Mesh again"
    assert [str(problem) for problem in setup.certificates.problems()] == [
        f'Mesh "shop", mTLS backend "mine": there is no Secret "{name}"; {advice}' for name in ("c", "k")
    ]
    setup.write_secret("c", MADE["a"].certificate)
    setup.write_secret("k", MADE["a"].key.reveal())
    assert setup.changed_names() == ["web"]
    assert shown(setup.of("web")) == "a < a"
    assert setup.certificates.problems() == ()


def test_what_a_proxy_has_is_better_than_nothing():
    setup = CertificateSetup()
    first = setup.of("web")
    for name in authority.secret_names("shop", "a"):
        setup.write_secret(name, "rubbish")
    assert len(setup.certificates.problems()) == 2
    assert setup.of("web") == first
    setup.now = setup.certificates.due()
    assert shown(setup.of("web")) == "a < a"  # the CA is still in memory


def test_a_ca_that_ends_takes_its_leaves_along_and_says_so():
    setup = CertificateSetup()
    setup.write_ca("a", authority.make("shop", MeshBuiltinCert(expiration="10h"), setup.now))
    leaf = setup.of("web").leaf
    assert leaf.not_after == setup.now + 10 * HOUR
    setup.now += 9 * HOUR
    assert ["expires on" in problem.text for problem in setup.certificates.problems()] == [True]
    setup.now += HOUR
    assert ["expired on" in problem.text for problem in setup.certificates.problems()] == [True]
    assert setup.of("web").leaf == leaf


def test_a_ca_in_files_is_looked_at_again(tmp_path):
    def write(pair):
        (tmp_path / "ca.pem").write_text(pair.certificate)
        (tmp_path / "key.pem").write_text(pair.key.reveal())

    write(MADE["a"])
    conf = {"cert": {"file": str(tmp_path / "ca.pem")}, "key": {"file": str(tmp_path / "key.pem")}}
    setup = CertificateSetup({"name": "mine", "type": "provided", "conf": conf}, enabled="mine")
    assert shown(setup.of("web")) == "a < a"
    write(MADE["b"])
    assert shown(setup.of("web")) == "a < a"
    setup.now = setup.certificates.due()
    assert setup.now == START + HOUR + mesh_cas.FILES_INTERVAL
    assert setup.changed_names() == ["web"]
    assert shown(setup.of("web")) == "a < ab"


def test_no_key_is_ever_shown_or_logged():
    logs.configure("info", "json")
    setup = CertificateSetup()
    with structlog.testing.capture_logs() as logged:
        found = setup.of("web")
        setup.write_mesh(builtin("b"), enabled="b")
        setup.of("web")
        setup.write_secret(authority.secret_names("shop", "b")[1], "rubbish")
        setup.of("web")
    assert {line["event"] for line in logged} == {"CAs of a mesh changed", "CA is odd"}
    secrets = [found.leaf.key.reveal(), *(pair.key.reveal() for pair in MADE.values())]
    texts = [repr(found), *map(repr, found), str(found.leaf), *map(repr, logged)]
    for text, secret in itertools.product(texts, secrets):
        assert secret.splitlines()[1] not in text


# With a real control plane.


@pytest.fixture(scope="module")
def plane(tmp_path_factory):
    with LocalControlPlane(tmp_path_factory.mktemp("certificates")) as running:
        yield running


def mesh_with_mtls(name, *backends, enabled=""):
    mtls = {"backends": list(backends), **({"enabledBackend": enabled} if enabled else {})}
    return mesh(name, mtls=mtls, skipCreatingInitialPolicies=["*"])


def cas(plane, name):
    """The CA Secrets of a mesh: data by name."""
    found = plane("GET", f"/meshes/{name}/secrets").json["items"]
    return {each["name"]: each["data"] for each in found if ".ca-builtin-" in each["name"]}


def test_a_builtin_ca_comes_with_the_mesh_and_goes_with_it(plane):
    assert plane("PUT", "/meshes/one", mesh_with_mtls("one", builtin("ca-1"), enabled="ca-1")).status == 201
    found = cas(plane, "one")
    assert sorted(found) == ["one.ca-builtin-cert-ca-1", "one.ca-builtin-key-ca-1"]
    ca = x509.load_pem_x509_certificate(base64.b64decode(found["one.ca-builtin-cert-ca-1"]))
    assert ca.subject.rfc4514_string() == "CN=one,OU=Mesh,O=Kuma"
    assert plane("DELETE", "/meshes/one").status == 200
    assert plane("PUT", "/meshes/one", mesh_with_mtls("one")).status == 201
    assert cas(plane, "one") == {}


def test_a_backend_that_is_added_and_enabled_by_an_update_gets_its_ca_at_once(plane):
    plane("PUT", "/meshes/two", mesh_with_mtls("two", builtin("ca-1"), enabled="ca-1"))
    before = cas(plane, "two")
    both = mesh_with_mtls("two", builtin("ca-1"), builtin("ca-2"), enabled="ca-2")
    answer = plane("PUT", "/meshes/two", both)
    assert answer.status == 200, answer.json
    after = cas(plane, "two")
    assert sorted(set(after) - set(before)) == ["two.ca-builtin-cert-ca-2", "two.ca-builtin-key-ca-2"]
    assert {name: after[name] for name in before} == before
    assert plane("PUT", "/meshes/two", both).status == 200
    assert cas(plane, "two") == after


def test_a_backend_that_goes_and_comes_back_has_its_old_ca(plane):
    plane("PUT", "/meshes/three", mesh_with_mtls("three", builtin("ca-1"), enabled="ca-1"))
    before = cas(plane, "three")
    plane("PUT", "/meshes/three", mesh_with_mtls("three"))
    assert cas(plane, "three") == before
    plane("PUT", "/meshes/three", mesh_with_mtls("three", builtin("ca-1")))
    assert cas(plane, "three") == before


def test_half_a_ca_is_made_anew_as_a_whole(plane):
    plane("PUT", "/meshes/four", mesh_with_mtls("four", builtin("ca-1")))
    before = cas(plane, "four")
    plane("PUT", "/meshes/four", mesh_with_mtls("four"))
    assert plane("DELETE", "/meshes/four/secrets/four.ca-builtin-key-ca-1").status == 200
    plane("PUT", "/meshes/four", mesh_with_mtls("four", builtin("ca-1")))
    after = cas(plane, "four")
    assert sorted(after) == sorted(before)
    assert all(after[name] != before[name] for name in before)


def test_who_brings_the_secrets_along_keeps_them(plane):
    pair = authority.make("five", MeshBuiltinCert(), START)
    names = authority.secret_names("five", "ca-1")
    texts = (pair.certificate, pair.key.reveal())
    secrets = [
        {"type": "Secret", "mesh": "five", "name": name, "data": encoded(text)}
        for name, text in zip(names, texts, strict=True)
    ]
    answer = plane("POST", "/_apply", [mesh_with_mtls("five", builtin("ca-1"), enabled="ca-1"), *secrets])
    assert answer.status == 200, answer.json
    assert cas(plane, "five") == {name: encoded(text) for name, text in zip(names, texts, strict=True)}


def test_a_dry_run_makes_no_ca(plane):
    plane("PUT", "/meshes/six", mesh_with_mtls("six"))
    assert plane("PUT", "/meshes/six?dryRun=All", mesh_with_mtls("six", builtin("ca-1"))).status == 200
    assert cas(plane, "six") == {}


def test_an_unchecked_backend_with_an_impossible_name_is_refused(plane):
    wrong = mesh_with_mtls("seven", builtin("A_b"))
    wrong["mtls"]["skipValidation"] = True
    assert plane("PUT", "/meshes/seven", wrong).status == 400


def test_rsa_bits_make_an_rsa_key(plane):
    plane(
        "PUT",
        "/meshes/eight",
        mesh_with_mtls("eight", builtin("r", conf={"caCert": {"RSAbits": 2048, "expiration": "1y"}})),
    )
    ca = x509.load_pem_x509_certificate(base64.b64decode(cas(plane, "eight")["eight.ca-builtin-cert-r"]))
    assert ca.public_key().key_size == 2048
    assert (ca.not_valid_after_utc - ca.not_valid_before_utc).days == 365


def test_proxies_get_certificates_from_what_a_control_plane_has_stored(plane):
    plane("PUT", "/meshes/nine", mesh_with_mtls("nine", builtin("ca-1"), enabled="ca-1"))
    here = Certificates(lambda: plane.plane.store.state, lambda: datetime.now(UTC))
    found = here.of(Key("Dataplane", "nine", "default", "", "web"), ("spiffe://nine/web",))
    ca = base64.b64decode(cas(plane, "nine")["nine.ca-builtin-cert-ca-1"]).decode()
    assert found.trust.pem == ca
    leaf = x509.load_pem_x509_certificate(found.identity.pem.encode())
    leaf.verify_directly_issued_by(x509.load_pem_x509_certificate(ca.encode()))
    assert [problem for problem in here.problems() if problem.mesh == "nine"] == []


def test_a_zone_proxy_has_a_certificate_in_each_mesh_until_it_leaves_it():
    setup = CertificateSetup()
    egress, certificates = Key("ZoneEgress", "", "east", "", "egress-1"), setup.certificates
    own = ("shop", ("spiffe://shop/zone-egress",))
    secrets = {
        each.name: each for each in certificates.of_zone_proxy(egress, (own, ("other", ("spiffe://o/z",))))
    }
    assert secrets.keys() == {TRUST, IDENTITY}  # the other mesh has no mTLS
    for name, secret in secrets.items():
        certificates.acked(egress, name, secret.version)
    assert certificates.certified() == {egress}
    again = certificates.of_zone_proxy(egress, (own,))
    assert [each.version for each in again] == [secrets[TRUST].version, secrets[IDENTITY].version]
    assert certificates.of_zone_proxy(egress, ()) == []
    assert certificates.certified() == frozenset(), "a rotation does not wait for it any more"
    certificates.of_zone_proxy(egress, (own,))
    certificates.forget(egress)
    assert certificates.changed() == ()


def test_a_caller_of_another_mesh_gets_the_cas_alone_and_is_waited_for():
    setup = CertificateSetup()
    caller, certificates = Key("Dataplane", "office", "east", "", "desk"), setup.certificates
    setup.takes("web")
    (trust,) = certificates.trusted(caller, ("shop", "nowhere"))
    assert trust.name == TRUST
    assert trust.key is None
    certificates.acked(caller, TRUST, trust.version)
    setup.write_mesh(builtin("a"), builtin("b"), enabled="b")
    assert set(certificates.changed()) == {proxy("web"), caller}
    (both,) = certificates.trusted(caller, ("shop",))
    setup.takes("web")
    setup.now += SETTLE_TIME
    assert shown(setup.of("web")) == "a < ab", "the caller would refuse a certificate of b"
    assert certificates.acked(caller, TRUST, both.version) is True
    assert shown(setup.of("web")) == "b < ab"
    assert proxy("web") in certificates.certified()
    assert caller not in certificates.certified()


def test_a_caller_that_calls_another_mesh_no_more_is_not_waited_for():
    setup = CertificateSetup()
    caller, certificates = Key("Dataplane", "office", "east", "", "desk"), setup.certificates
    setup.takes("web")
    certificates.trusted(caller, ("shop",))
    setup.write_mesh(builtin("a"), builtin("b"), enabled="b")
    setup.takes("web")
    setup.now += SETTLE_TIME
    assert shown(setup.of("web")) == "a < ab"
    assert certificates.trusted(caller, ()) == []
    assert shown(setup.of("web")) == "b < ab"
    certificates.trusted(caller, ("shop",))
    certificates.forget(caller)
    assert caller not in certificates.changed()


ALL_TRUST = "mesh_ca:secret:*"


class TwoMeshSetup(CertificateSetup):
    """The mesh shop, and mesh tea with CAs of its own, whose callers a gateway of shop admits."""

    gateway = Key("Dataplane", "shop", "east", "", "edge")
    caller = Key("Dataplane", "tea", "east", "", "web")

    def __init__(self):
        self.tea = {name: authority.make("tea", MeshBuiltinCert(), START - HOUR) for name in ("a", "b")}
        super().__init__()

    def write_tea(self, *backends, enabled="a"):
        for name, pair in self.tea.items():
            names = authority.secret_names("tea", name)
            for secret, text in zip(names, (pair.certificate, pair.key.reveal()), strict=True):
                self.put(kind="Secret", mesh="tea", zone="east", name=secret, spec={"data": encoded(text)})
        mtls = {"backends": list(backends), **({"enabledBackend": enabled} if enabled else {})}
        self.put(kind="Mesh", name="tea", spec={"mtls": mtls})

    def admitting(self):
        """What the gateway is to have, by name."""
        found = self.certificates.trusted(self.gateway, ("*",))
        return {each.name: each for each in (*self.certificates.of(self.gateway, uris("edge")), *found)}

    def domains(self):
        """The CAs that it trusts, by trust domain."""
        data = self.admitting()[ALL_TRUST].data()
        validator = data["validation_context"]["custom_validator_config"]["typed_config"]
        return {each["name"]: each["trust_bundle"]["inline_string"] for each in validator["trust_domains"]}

    def caller_takes(self):
        for each in self.certificates.of(self.caller, ("spiffe://tea/web",)):
            self.certificates.acked(self.caller, each.name, each.version)

    def issuer(self):
        """The CA of the caller's certificate."""
        leaf = x509.load_pem_x509_certificate(
            self.certificates.of(self.caller, ("spiffe://tea/web",)).identity.pem.encode()
        )
        for name, pair in self.tea.items():
            try:
                leaf.verify_directly_issued_by(x509.load_pem_x509_certificate(pair.certificate.encode()))
            except InvalidSignature:
                continue
            return name
        raise AssertionError("nobody issued it")


def test_a_gateway_for_other_meshes_has_the_cas_of_each_apart_and_no_certificate_of_theirs():
    setup = TwoMeshSetup()
    assert setup.admitting().keys() == {IDENTITY, TRUST, ALL_TRUST}
    assert setup.domains().keys() == {"shop"}
    assert setup.certificates.changed() == ()
    setup.write_tea(builtin("a"))
    assert setup.certificates.changed() == (setup.gateway,), "a mesh with mTLS is new"
    assert setup.admitting().keys() == {IDENTITY, TRUST, ALL_TRUST}
    assert setup.domains() == {"shop": MADE["a"].certificate, "tea": setup.tea["a"].certificate}
    assert setup.certificates.changed() == ()
    setup.write_tea(builtin("a"), enabled="")
    assert setup.certificates.changed() == (setup.gateway,), "mTLS was turned off"
    assert setup.domains().keys() == {"shop"}


def test_a_ca_of_another_mesh_issues_when_the_gateway_trusts_it_too():
    setup = TwoMeshSetup()
    setup.write_tea(builtin("a"))
    setup.now += HOUR
    for name, each in setup.admitting().items():
        setup.certificates.acked(setup.gateway, name, each.version)
    setup.caller_takes()
    setup.write_tea(builtin("a"), builtin("b"), enabled="b")
    assert set(setup.certificates.changed()) == {setup.gateway, setup.caller}
    setup.caller_takes()
    setup.now += SETTLE_TIME + SECOND
    assert setup.issuer() == "a", "the gateway would refuse a certificate of b"
    offered = setup.admitting()[ALL_TRUST]
    assert fingerprints(setup.domains()["tea"]) == fingerprints(
        setup.tea["a"].certificate + setup.tea["b"].certificate
    )
    assert setup.certificates.acked(setup.gateway, ALL_TRUST, offered.version)
    assert setup.issuer() == "b"


def test_a_gateway_that_admits_nobody_any_more_holds_up_no_rotation_of_other_meshes():
    setup = TwoMeshSetup()
    setup.write_tea(builtin("a"))
    setup.now += HOUR
    setup.admitting()
    setup.caller_takes()
    assert setup.certificates.trusted(setup.gateway, ()) == []
    setup.write_tea(builtin("a"), builtin("b"), enabled="b")
    assert set(setup.certificates.changed()) == {setup.caller}
    setup.caller_takes()
    setup.now += SETTLE_TIME + SECOND
    assert setup.issuer() == "b"
    setup.admitting()
    setup.certificates.forget(setup.gateway)
    setup.write_tea(builtin("a"), enabled="")
    assert setup.gateway not in setup.certificates.changed()
