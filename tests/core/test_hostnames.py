"""Host names: who gets which, and what is reported to who gets none."""

import msgspec
import pytest

from koguma.core import defaults, hostnames, pipeline, problems, statuses
from koguma.model.control_plane_info import ControlPlaneInfo, Mode
from tests.core.destinations import (
    database,
    internal_vip,
    stored,
    stored_external,
    stored_generator,
    stored_multi_zone,
    stored_service,
)

SVC = "{{ .DisplayName }}.svc.mesh.local"


def reported(db, resource):
    """What a status says of names: hostnames, and for each generator its reason and message."""
    reported = hostnames.reported(hostnames.of(db, resource.key))
    generators = {
        each["hostnameGeneratorRef"]["coreName"]: (
            each["conditions"][0]["reason"],
            each["conditions"][0]["message"],
        )
        for each in reported["hostnameGenerators"]
    }
    return [each["hostname"] for each in reported["addresses"]], generators


def names(db, *resources):
    return [reported(db, resource)[0] for resource in resources]


def test_a_name_is_reported_with_who_gave_it():
    web = stored_service("web")
    db = database(web, stored_generator("local", SVC))
    assert hostnames.reported(hostnames.of(db, web.key)) == {
        "addresses": [
            {
                "hostname": "web.svc.mesh.local",
                "origin": "HostnameGenerator",
                "hostnameGeneratorRef": {"coreName": "local"},
            }
        ],
        "hostnameGenerators": [
            {
                "hostnameGeneratorRef": {"coreName": "local"},
                "conditions": [{"type": "Generated", "status": "True", "reason": "Generated", "message": ""}],
            }
        ],
        "conditions": [],
    }


@pytest.mark.parametrize(
    ("template", "expected"),
    [
        ("{{ .Name }}.x", "web.ns.x"),
        ("{{ .DisplayName }}.x", "web.x"),
        ("{{ .Namespace }}.{{ .Mesh }}.{{ .Zone }}", "ns.shop.east"),
        ('{{ label "team" }}.x', "blue.x"),
        ('{{ label "kuma.io/display-name" }}.x', "web.x"),
    ],
)
def test_a_template_knows_the_service(template, expected):
    web = stored_service("web", namespace="ns", labels={"team": "blue"})
    assert names(database(web, stored_generator("g", template)), web) == [[expected]]


@pytest.mark.parametrize(
    ("matches", "is_selected"),
    [
        ({}, True),
        ({"team": "blue"}, True),
        ({"team": "blue", "kuma.io/origin": "zone"}, True),
        ({"kuma.io/display-name": "web"}, True),
        ({"team": "red"}, False),
        ({"owner": "me"}, False),
    ],
)
def test_a_generator_selects_by_labels(matches, is_selected):
    web = stored_service("web", labels={"team": "blue"})
    assert names(database(web, stored_generator("g", SVC, matches=matches)), web) == [
        ["web.svc.mesh.local"] if is_selected else []
    ]


def test_a_generator_is_for_one_kind():
    there = stored_service("a"), stored_external("b"), stored_multi_zone("c")
    db = database(
        *there,
        stored_generator("ms", "{{ .DisplayName }}.ms", "meshService"),
        stored_generator("mes", "{{ .DisplayName }}.mes", "meshExternalService"),
        stored_generator("mmzs", "{{ .DisplayName }}.mmzs", "meshMultiZoneService"),
    )
    assert names(db, *there) == [["a.ms"], ["b.mes"], ["c.mmzs"]]


def test_all_generators_that_select_a_service_give_a_name_in_the_order_of_their_own():
    web = stored_service("web")
    db = database(
        web, stored_generator("b", "{{ .Name }}.b", origin="global"), stored_generator("c", "{{ .Name }}.a")
    )
    assert names(db, web) == [["web.b", "web.a"]]


def test_two_generators_may_give_a_service_one_name():
    web = stored_service("web", status={"vips": [{"ip": "241.0.0.1"}]})
    db = database(web, stored_generator("a", SVC), stored_generator("b", SVC))
    assert names(db, web) == [["web.svc.mesh.local"] * 2]
    assert hostnames.records(db, (web.key,)) == (("web.svc.mesh.local", ("241.0.0.1",)),)


def test_a_generator_with_an_extension_is_left_to_the_plugin():
    web = stored_service("web")
    db = database(web, stored_generator("g", SVC, spec={"extension": {"type": "Lookup"}}))
    assert reported(db, web) == ([], {})


# What gives no name.


@pytest.mark.parametrize(
    ("template", "reason", "message"),
    [
        ('{{ label "team" }}.x', "TemplateError", 'label "team" is missing'),
        ("{{ .Nam }}", "TemplateError", 'unknown field in "{{ .Nam }}"'),
        ("{{ .DisplayName }}_x", "InvalidHostname", '"web_x" is no host name'),
        ("{{ .Namespace }}.x", "InvalidHostname", '".x" is no host name'),
        ("", "InvalidHostname", '"" is no host name'),
        ("a" * 64 + ".x", "InvalidHostname", "at most 63 between two dots"),
        (".".join(["a" * 63] * 4), "InvalidHostname", "at most 253"),
    ],
)
def test_a_generator_that_gives_no_name_is_reported_in_the_status(template, reason, message):
    web = stored_service("web")
    db = database(web, stored_generator("g", template), stored_generator("good", SVC))
    found, generators = reported(db, web)
    assert found == ["web.svc.mesh.local"]
    assert generators["g"][0] == reason
    assert message in generators["g"][1]


def collision(kind, name):
    return ("Collision", f"Hostname collision with {kind}: {name}")


def test_of_two_services_of_one_name_the_older_has_it():
    old, young = stored_service("b", created=1), stored_service("a", created=2)
    db = database(old, young, stored_generator("g", "same.x"))
    assert names(db, old, young) == [["same.x"], []]
    assert reported(db, young)[1] == {"g": collision("MeshService", "b")}


def test_of_two_services_of_one_age_the_first_has_it():
    one, other = stored_service("a"), stored_service("b")
    assert names(database(one, other, stored_generator("g", "same.x")), one, other) == [["same.x"], []]


def only(resource):
    return {"kuma.io/display-name": resource.name}


# Each gives `same.x` to another service; the first in the row wins.
WINS = [
    ("zone-before-global", {"origin": "zone", "created": 9}, {"origin": "global", "created": 1}),
    ("older-first", {"created": 1}, {"created": 2}),
    ("older-first-of-global", {"origin": "global", "created": 1}, {"origin": "global", "created": 2}),
    ("then-by-name", {"name": "a"}, {"name": "b"}),
]


@pytest.mark.parametrize(("first", "second"), [each[1:] for each in WINS], ids=[each[0] for each in WINS])
@pytest.mark.parametrize("kinds", [("meshService", "meshService"), ("meshService", "meshExternalService")])
def test_a_name_goes_to_the_better_generator(first, second, kinds):
    one, other = stored_service("winner", created=9), stored_service("loser", created=1)
    if kinds[1] == "meshExternalService":
        other = stored_external("loser", created=1)
    made = [
        stored_generator(**{"name": name, **how}, template="same.x", selects=kind, matches=only(chosen))
        for name, how, kind, chosen in (("z", first, kinds[0], one), ("y", second, kinds[1], other))
    ]
    db = database(one, other, *made)
    assert names(db, one, other) == [["same.x"], []]
    ((_, told_loser),) = reported(db, other)[1].items()
    assert told_loser == collision("MeshService", "winner")


def test_a_name_belongs_to_one_service_of_each_mesh():
    here, there = stored_service("web"), stored_service("web", mesh="other")
    assert (
        names(database(here, there, stored_generator("g", SVC)), here, there) == [["web.svc.mesh.local"]] * 2
    )


def test_the_default_templates_of_zone_and_global_collide_and_the_zone_wins():
    own, synced = (
        stored_external("db"),
        stored_external("db", zone="", labels={"kuma.io/origin": "global"}, core_name="db-x"),
    )
    made = [
        stored_generator(
            each["name"],
            each["spec"]["template"],
            "meshExternalService",
            origin=control_plane.origin,
            matches=matches,
        )
        for control_plane in (ControlPlaneInfo(zone="east"), ControlPlaneInfo(mode=Mode.GLOBAL, zone=""))
        for each in defaults.hostname_generators(control_plane)
        if (matches := each["spec"]["selector"].get("meshExternalService", {}).get("matchLabels"))
    ]
    assert len(made) == 2
    db = database(own, synced, *made)
    assert names(db, own, synced) == [["db.extsvc.mesh.local"], []]
    assert reported(db, synced)[1] == {"synced-mesh-external-service": collision("MeshExternalService", "db")}


# Names that a MeshExternalService says itself.


def test_a_name_in_the_spec_ranks_before_generated_ones():
    web = stored_service("web", "241.0.0.1")
    status = {"vips": [{"ip": "242.0.0.1", "hostname": "Web.svc.mesh.local."}]}
    own = stored_external("own", "Web.svc.mesh.local.", created=9, status=status)
    db = database(web, own, stored_generator("g", SVC), stored_generator("e", SVC, "meshExternalService"))
    assert reported(db, web) == ([], {"g": collision("MeshExternalService", "own")})
    assert reported(db, own) == ([], {})  # its names stand beside its addresses, and no generator adds one
    assert hostnames.records(db, (own.key, web.key)) == (("web.svc.mesh.local", ("242.0.0.1",)),)


def test_each_name_leads_to_its_own_address():
    vips = [{"ip": "242.0.0.1", "hostname": "a.ext"}, {"ip": "242.0.0.2", "hostname": "b.ext"}]
    one = stored_external("db", "b.ext", "a.ext", status={"vips": vips})
    assert hostnames.records(database(one), (one.key,)) == (
        ("a.ext", ("242.0.0.1",)),
        ("b.ext", ("242.0.0.2",)),
    )


def test_what_cannot_be_a_name_has_no_record():
    vips = [{"ip": "242.0.0.1", "hostname": "*.ext"}]
    one = stored_external("db", "*.ext", status={"vips": vips})
    db = database(one)
    assert hostnames.records(db, (one.key,)) == ()
    assert [claim.reason for claim in hostnames.of(db, one.key)] == ["InvalidHostname"]


def test_domains_that_exist_are_no_names_of_ours():
    one = stored("MeshExternalService", "db", {"match": [internal_vip("example.com", kind="Domain")]})
    assert reported(database(one, stored_generator("g", SVC, "meshExternalService")), one) == ([], {})


# Records.


def test_records_are_of_the_destinations_that_are_asked_for_sorted():
    web, api, new = (
        stored_service("web", "241.0.0.2"),
        stored_service("api", "241.0.0.1"),
        stored_service("new"),
    )
    db = database(web, api, new, stored_generator("g", SVC), stored_generator("h", "x-{{ .Name }}"))
    assert hostnames.records(db, (web.key, api.key, new.key)) == (
        ("api.svc.mesh.local", ("241.0.0.1",)),
        ("web.svc.mesh.local", ("241.0.0.2",)),
        ("x-api", ("241.0.0.1",)),
        ("x-web", ("241.0.0.2",)),
    )
    assert [name for name, _ in hostnames.records(db, (web.key,))] == ["web.svc.mesh.local", "x-web"]


# The names of service tags, as in Kuma 2.13.


@pytest.mark.parametrize("mode", [None, "Disabled", "Everywhere", "ReachableBackends"])
def test_a_service_of_a_tag_has_the_name_of_the_tag(mode):
    web = stored_service("web", "241.0.0.2")
    db = database(web, mode=mode)
    assert hostnames.records(db, (web.key,)) == (("web.mesh", ("241.0.0.2",)),)
    assert hostnames.has_legacy_name(db, web.key)
    assert reported(db, web) == ([], {})


def test_in_mode_exclusive_tags_have_no_names():
    web = stored_service("web", "241.0.0.2")
    db = database(web, mode="Exclusive")
    assert hostnames.records(db, (web.key,)) == ()
    assert not hostnames.has_legacy_name(db, web.key)


def test_only_a_selection_by_the_service_tag_alone_has_its_name():
    chosen = [
        {"dataplaneTags": {"kuma.io/service": "web", "version": "v1"}},
        {"dataplaneLabels": {"matchLabels": {"kuma.io/service": "web"}}},
        {"dataplaneRef": {"name": "web"}},
    ]
    status = {"vips": [{"ip": "241.0.0.2"}]}
    for selector in chosen:
        one = stored("MeshService", "web", {"selector": selector, "ports": [{"port": 80}]}, status=status)
        assert hostnames.records(database(one, mode=None), (one.key,)) == ()


def test_underscores_in_a_service_tag_are_dots_in_its_name():
    selector = {"dataplaneTags": {"kuma.io/service": "web_ns_svc_80"}}
    status = {"vips": [{"ip": "241.0.0.2"}]}
    one = stored("MeshService", "web", {"selector": selector, "ports": [{"port": 80}]}, status=status)
    assert hostnames.records(database(one, mode=None), (one.key,)) == (
        ("web.ns.svc.80.mesh", ("241.0.0.2",)),
    )


def test_the_legacy_name_of_a_tag_ranks_last_and_its_loss_is_not_reported():
    web, other = stored_service("web", "241.0.0.2"), stored_service("other", "241.0.0.3", created=9)
    db = database(
        web, other, stored_generator("g", "web.mesh", matches={"kuma.io/display-name": "other"}), mode=None
    )
    assert hostnames.records(db, (web.key, other.key)) == (
        ("other.mesh", ("241.0.0.3",)),
        ("web.mesh", ("241.0.0.3",)),
    )
    assert statuses.facts(db, web.key).problems == ()


def test_of_two_services_of_a_tag_that_of_this_zone_has_the_name():
    far, near = stored_service("web", "241.0.0.2", zone="west"), stored_service("web", "241.0.0.3", created=9)
    db = database(far, near, mode=None)
    assert hostnames.records(db, (far.key, near.key)) == (("web.mesh", ("241.0.0.3",)),)


# What it costs.


def test_a_changed_status_makes_no_name_again():
    web, api = stored_service("web", "241.0.0.2"), stored_service("api", "241.0.0.1")
    db = database(web, api, stored_generator("g", SVC))
    db.watch(hostnames.records, (web.key, api.key))
    db.reset_counts()
    counted = msgspec.structs.replace(
        web, status={**web.status, "dataplaneProxies": {"total": 3}}, revision=9
    )
    pipeline.take(db, [counted])
    assert db.changed() == []
    assert {name: count for name, count in db.runs.items() if name.startswith("hostnames")} == {
        "hostnames.claims": 1
    }


def test_a_mesh_does_not_ask_about_another():
    web, there = stored_service("web"), stored_service("web", mesh="other")
    db = database(web, there, stored_generator("g", SVC))
    db.watch(hostnames.of_mesh, "shop")
    db.watch(hostnames.of_mesh, "other")
    db.reset_counts()
    pipeline.take(db, [stored_service("new", mesh="other")])
    assert [asked.args for asked in db.changed()] == [("other",)]
    assert db.runs["hostnames.of_mesh"] == db.runs["hostnames.claims"] == 1


def test_a_generator_for_one_kind_asks_nothing_about_another():
    web, db_ = stored_service("web"), stored_external("db")
    db = database(web, db_, stored_generator("g", SVC))
    db.watch(hostnames.of_mesh, "shop")
    db.reset_counts()
    pipeline.take(db, [stored_generator("e", SVC, "meshExternalService")])
    assert len(db.changed()) == 1
    assert db.runs["hostnames.claims"] == 1


def test_a_generator_is_reported_for_names_that_it_takes_and_that_it_does_not_get():
    web, api = stored_service("web", created=1), stored_service("api", created=2)
    taken = stored_generator("taken", "same.x", matches=only(web))
    late = stored_generator("late", "same.x", matches=only(api), created=9)
    aside = stored_generator("aside", "{{ .Name }}.y")
    db = database(web, api, taken, late, aside)
    found = {
        one.name: [each.code for each in problems.of_object(db, one.key)] for one in (taken, late, aside)
    }
    assert found == {"taken": ["KG020"], "late": ["KG020"], "aside": []}
