"""Selectors: what they choose, and what they say about text that is none."""

import contextlib

import pytest
from hypothesis import given
from hypothesis import strategies as st

from koguma.kube import selectors
from koguma.model.errors import BadRequest

WEB = {"app": "web", "tier": "front", "level": "5", "empty": "", "x.io/team": "blue"}


@pytest.mark.parametrize(
    ("text", "chosen"),
    [
        ("", True),
        (" \t\n", True),
        ("app", True),
        ("!app", False),
        ("missing", False),
        ("!missing", True),
        ("! missing", True),
        ("app=web", True),
        ("app==web", True),
        ("app = web", True),
        ("app=", False),
        ("empty=", True),
        ("empty==,app", True),
        ("missing=", False),
        ("app!=web", False),
        ("app!=api", True),
        ("missing!=web", True),
        ("empty!=", False),
        ("app in (web)", True),
        ("app in(api,web)", True),
        ("app in ( api , job )", False),
        ("missing in (web)", False),
        ("empty in ()", True),
        ("empty in (,)", True),
        ("empty in (a,)", True),
        ("app in ()", False),
        ("app notin (api,job)", True),
        ("app notin (api,web)", False),
        ("missing notin (web)", True),
        ("level>4", True),
        ("level > 5", False),
        ("level<6", True),
        ("level<5", False),
        ("app>1", False),
        ("missing<1", False),
        ("x.io/team=blue", True),
        ("app=web,tier=front", True),
        ("app=web,tier=back", False),
        ("app, !missing ,tier in (front,back),level>1", True),
    ],
)
def test_a_label_selector_chooses(text, chosen):
    assert selectors.labels(text).matches(WEB) is chosen


def test_the_words_of_the_grammar_are_names_too():
    selector = selectors.labels("in in (in,notin),notin=notin,!exists")
    assert selector.matches({"in": "notin", "notin": "notin"})
    assert not selector.matches({"in": "other", "notin": "notin"})


# The words are those that kubectl 1.33 gave for the same text.
@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("a in", "unable to parse requirement: found '' expected: '('"),
        ("a in (", "unable to parse requirement: found '', expected: ',', ')' or identifier"),
        ("a in (b", "unable to parse requirement: found '', expected: ',' or ')'"),
        ("a in (b,", "unable to parse requirement: found '', expected: ',', or identifier"),
        ("a in (b c)", "unable to parse requirement: found 'c', expected: ',' or ')'"),
        ("a in (=)", "unable to parse requirement: found '=', expected: ',', ')' or identifier"),
        ("a in (b,=)", "unable to parse requirement: found '=', expected: ',', or identifier"),
        ("a in (!", "unable to parse requirement: found '!', expected: ',', ')' or identifier"),
        ("a in (b))", "found ')', expected: ',' or 'end of string'"),
        ("a notin b", "unable to parse requirement: found 'b' expected: '('"),
        (",", "found ',', expected: !, identifier, or 'end of string'"),
        ("(a)", "found '(', expected: !, identifier, or 'end of string'"),
        ("=a", "found '=', expected: !, identifier, or 'end of string'"),
        ("a=b,", "found '', expected: identifier after ','"),
        ("a=b,,c=d", "found ',', expected: identifier after ','"),
        ("a b", "unable to parse requirement: found 'b', expected: in, notin, =, ==, !=, gt, lt"),
        ("a!", "unable to parse requirement: found '!', expected: in, notin, =, ==, !=, gt, lt"),
        ("!", "unable to parse requirement: found '', expected: identifier"),
        ("!!a", "unable to parse requirement: found '!', expected: identifier"),
        ("!a=b", "found '=', expected: ',' or 'end of string'"),
        ("a=b c=d", "found 'c', expected: ',' or 'end of string'"),
        ("a==b==c", "found '==', expected: ',' or 'end of string'"),
        ("a===b", "unable to parse requirement: found '=', expected: identifier"),
        ("a=(b)", "unable to parse requirement: found '(', expected: identifier"),
        ("a=!b", "unable to parse requirement: found '!', expected: identifier"),
        ("a<=1", "unable to parse requirement: found '=', expected: identifier"),
        ("/a=b", 'unable to parse requirement: <nil>: Invalid value: "/a": prefix part must be non-empty'),
    ],
)
def test_a_label_selector_that_cannot_be_read_is_refused_in_kubectls_words(text, words):
    with pytest.raises(BadRequest) as refused:
        selectors.labels(text)
    assert str(refused.value) == words


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("a>x", "values[0]: Invalid value: \"x\": for 'Gt', 'Lt' operators, the value must be an integer"),
        ("a>", "values[0]: Invalid value: \"\": for 'Gt', 'Lt' operators, the value must be an integer"),
        ("a>1_0", "values[0]: Invalid value: \"1_0\": for 'Gt'"),
        ("a<9223372036854775808", "values[0]: Invalid value: \"9223372036854775808\": for 'Gt'"),
        ("a>+5", 'values[0][a]: Invalid value: "+5": a valid label must be'),
        ("a=@", 'values[0][a]: Invalid value: "@": a valid label must be'),
        ("a in (b,c;d)", 'values[1][a]: Invalid value: "c;d": a valid label must be'),
        ('a=="b"', 'values[0][a]: Invalid value: "\\"b\\"": a valid label must be'),
        ("_=b", '<nil>: Invalid value: "_": name part must consist of'),
        ("x/y/z=a", '<nil>: Invalid value: "x/y/z": a qualified name must consist of'),
        ("a" * 64, "name part must be no more than 63 characters"),
        ("a=" + "b" * 64, "must be no more than 63 characters"),
    ],
)
def test_a_name_or_value_that_no_label_can_have_is_refused(text, words):
    with pytest.raises(BadRequest, match=r"^unable to parse requirement: ") as refused:
        selectors.labels(text)
    assert words in str(refused.value)


def test_only_a_selector_without_conditions_is_everything():
    assert selectors.labels("").is_everything
    assert not selectors.labels("a").is_everything
    assert selectors.fields("").is_everything
    assert selectors.fields(",,").is_everything
    assert not selectors.fields("metadata.name=a").is_everything


def test_the_same_text_is_read_once():
    assert selectors.labels("app=web,a in (b,c)") is selectors.labels("app=web,a in (b,c)")
    assert selectors.fields("spec.x=1", ("spec.x",)) is selectors.fields("spec.x=1", ("spec.x",))


OBJECT = {"metadata.name": "web", "metadata.namespace": "shop", "spec.note": "a,b=c\\d"}
SUPPORTED = ("spec.note", "status.phase")


@pytest.mark.parametrize(
    ("text", "chosen"),
    [
        ("", True),
        ("metadata.name=web", True),
        ("metadata.name==web", True),
        ("metadata.name!=web", False),
        ("metadata.name=web,metadata.namespace=shop", True),
        ("metadata.name=web,metadata.namespace!=shop", False),
        (",metadata.name=web,,", True),
        ("status.phase=", True),
        ("status.phase!=Done", True),
        ("metadata.name= web", False),
        (r"spec.note=a\,b\=c\\d", True),
        (r"spec.note!=a\,b\=c\\d", False),
        (r"spec.note=a\,b", False),
        ("metadata.name=a,metadata.name=web", False),
        ("metadata.name=!web", False),
    ],
)
def test_a_field_selector_chooses(text, chosen):
    selector = selectors.fields(text, SUPPORTED)
    assert selector.matches(lambda path: OBJECT.get(path, "")) is chosen


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("x", "invalid selector: 'x'; can't understand 'x'"),
        ("metadata.name=b,x", "invalid selector: 'metadata.name=b,x'; can't understand 'x'"),
        ("metadata.name!b", "invalid selector: 'metadata.name!b'; can't understand 'metadata.name!b'"),
        ("metadata.name=b=c", "invalid field selector: unescaped character in value: ="),
        ("metadata.name=b\\", "invalid field selector: invalid escape sequence: \\"),
        ("metadata.name=b\\x", "invalid field selector: invalid escape sequence: \\x"),
        ("spec.size=1", "field label not supported: spec.size"),
        ("=a", "field label not supported: "),
        (" metadata.name=a", "field label not supported:  metadata.name"),
        ("metadata.name\\=b", "field label not supported: metadata.name\\"),
    ],
)
def test_a_field_selector_that_cannot_be_read_is_refused(text, words):
    with pytest.raises(BadRequest) as refused:
        selectors.fields(text, SUPPORTED)
    assert str(refused.value) == words


def test_a_name_that_has_to_be_equal_is_known_before_looking():
    selector = selectors.fields("metadata.namespace!=a,metadata.name=web")
    assert selector.exact("metadata.name") == "web"
    assert selector.exact("metadata.namespace") is None


ESCAPED = str.maketrans({"\\": "\\\\", ",": "\\,", "=": "\\="})


@pytest.mark.property
@given(st.text(max_size=20))
def test_any_escaped_value_is_found(value):
    selector = selectors.fields(f"metadata.name={value.translate(ESCAPED)}")
    assert selector.exact("metadata.name") == value


KEYS = st.sampled_from(["a", "b", "in", "x.io/c"])
VALUES = st.sampled_from(["", "1", "2", "notin", "v"])
CONDITIONS = st.one_of(
    KEYS,
    KEYS.map("!{}".format),
    st.builds("{}{}{}".format, KEYS, st.sampled_from(["=", "==", "!="]), VALUES),
    st.builds("{} in ({})".format, KEYS, st.lists(VALUES, min_size=1).map(",".join)),
)


@pytest.mark.property
@given(st.lists(CONDITIONS, max_size=4), st.dictionaries(KEYS, VALUES))
def test_conditions_hold_together_in_any_order(conditions, found):
    together = selectors.labels(",".join(conditions)).matches(found)
    assert together == all(selectors.labels(condition).matches(found) for condition in conditions)
    assert together == selectors.labels(" , ".join(reversed(conditions))).matches(found)


@pytest.mark.property
@given(KEYS, st.lists(VALUES, min_size=1), st.dictionaries(KEYS, VALUES))
def test_notin_is_the_opposite_of_in(key, values, found):
    those = f"({','.join(values)})"
    is_in = selectors.labels(f"{key} in {those}").matches(found)
    assert selectors.labels(f"{key} notin {those}").matches(found) is not is_in


@pytest.mark.property
@given(st.text(st.sampled_from("ab=!<>(), \\\t.0-inot"), max_size=24) | st.text(max_size=12))
def test_any_text_is_a_selector_or_refused(text):
    with contextlib.suppress(BadRequest):
        assert selectors.labels(text).matches(WEB) in (True, False)
    with contextlib.suppress(BadRequest):
        assert selectors.fields(text).matches(str) in (True, False)
