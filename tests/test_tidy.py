"""Tidiness: names that say what things are, documents that fit the code, nothing left over."""

import ast
import re
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

import msgspec
import pytest
import yaml
from msgspec import inspect as shape

from docs import generate
from docs.writing.fields import description
from koguma.core import admission
from koguma.kinds import KINDS
from koguma.model import forms
from koguma.model.control_plane_info import ControlPlaneInfo
from koguma.model.kind import Kind
from koguma.policies import POLICIES
from koguma.runtime.settings import Settings

ROOT = Path(__file__).parent.parent
SOURCE = ROOT / "src" / "koguma"
MODULES = sorted(SOURCE.rglob("*.py"))
ALL_KINDS = sorted((*KINDS, *POLICIES), key=lambda kind: kind.name)
FOLDERS = ("src", "tests", "docs", "examples", "bench", "requirements", ".ci")
WRITTEN = sorted(
    file
    for file in (*ROOT.glob("*"), *(path for name in FOLDERS for path in (ROOT / name).rglob("*")))
    if file.is_file() and "__pycache__" not in file.parts
)
PAGES = [file for file in WRITTEN if file.suffix == ".md"]

FUNCTION_LINES_MAX = 70
GENERIC_WORDS = "A duration as Go writes it."  # those of the type, which say nothing about the field
# Put together here, so that this file holds none of them.
MARKERS = tuple(first + second for first, second in (("TO", "DO"), ("FIX", "ME"), ("XX", "X"), ("HA", "CK")))
MACHINE_PATHS = tuple("/" + rest for rest in ("work/", "root/", "home/runner", "Users/", "mnt/"))


def in_repository(file: Path) -> str:
    return str(file.relative_to(ROOT))


def by_name(kind: Kind) -> str:
    return kind.name


@pytest.fixture(scope="module")
def trees() -> dict[Path, ast.Module]:
    """Every module of the package, parsed once."""
    return {file: ast.parse(file.read_text()) for file in MODULES}


@pytest.fixture(scope="module")
def nodes(trees) -> dict[Path, list[ast.AST]]:
    """Everything in these modules, found once."""
    return {file: list(ast.walk(tree)) for file, tree in trees.items()}


def test_every_module_begins_with_a_sentence_that_says_what_it_is(trees):
    silent = [
        in_repository(file)
        for file, tree in trees.items()
        if not (ast.get_docstring(tree) or "").partition("\n")[0].endswith(".")
    ]
    assert silent == []


def test_every_public_function_and_class_has_words(trees):
    kinds = (ast.FunctionDef, ast.AsyncFunctionDef, ast.ClassDef)
    silent = [
        f"{in_repository(file)}:{node.lineno} {node.name}"
        for file, tree in trees.items()
        for node in tree.body
        if isinstance(node, kinds) and not node.name.startswith("_") and not ast.get_docstring(node)
    ]
    assert silent == []


# Names that say nothing to who has not seen the module, and metaphors: no class or module is called so.
VAGUE_WORDS = {
    *("About", "Asked", "Found", "Given", "Going", "Heard", "Kept", "Laid", "Made", "Meant", "Ruled", "Said"),
    *("Seen", "Shown", "Step", "Told", "Wanted", "Written", "Wrong"),
}
METAPHORS = {"Door", "House", "Room", "Speech"}


def classes(nodes: dict[Path, list[ast.AST]]) -> Iterator[tuple[Path, str]]:
    """Every class of the package and its module."""
    for file, within in nodes.items():
        for node in within:
            if isinstance(node, ast.ClassDef):
                yield file, node.name


def test_a_class_name_stands_once(nodes):
    """One word for each thing: who reads a name in a log, a trace or an import knows which class it is."""
    counts = Counter(name for _, name in classes(nodes))
    assert [name for name, count in counts.items() if count > 1] == []


def test_names_of_classes_and_modules_say_what_they_are(nodes):
    """The words of Envoy, xDS, Kuma, Kubernetes and Python, which people search for."""
    vague = {
        name
        for _, name in classes(nodes)
        if name.strip("_") in VAGUE_WORDS or METAPHORS & set(re.findall("[A-Z][a-z]*", name))
    }
    words = {word.lower() for word in VAGUE_WORDS | METAPHORS}
    vague |= {file.stem for file in nodes if words & set(file.stem.split("_"))}
    assert sorted(vague) == []


def test_no_function_is_longer_than_a_screen(nodes):
    long = [
        f"{in_repository(file)}:{node.lineno} {node.name}"
        for file, within in nodes.items()
        for node in within
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef)
        and (node.end_lineno or 0) - node.lineno >= FUNCTION_LINES_MAX
    ]
    assert long == []


@pytest.mark.parametrize("kind", ALL_KINDS, ids=by_name)
def test_a_page_begins_with_a_sentence(kind: Kind):
    first = kind.doc.strip().partition("\n")[0]
    assert first.endswith(".")
    assert first[0].isupper()


@pytest.mark.parametrize("kind", [k for k in ALL_KINDS if not k.read_only], ids=by_name)
def test_the_example_of_a_page_is_admitted(kind: Kind):
    examples = re.findall(r"^```yaml\n(.*?)^```$", kind.doc, re.DOTALL | re.MULTILINE)
    assert examples, "a kind that people write has an example"
    for example in examples:
        document = yaml.safe_load(example)
        assert document["type"] == kind.name
        admitted = admission.admitted(
            forms.read_plain(document, kind), None, ControlPlaneInfo()
        )  # Invalid lists violations
        assert admitted.warnings == ()
        assert admitted.resource.kri(kind.short) is not None or not kind.short


def wordless(info: shape.Type, path: str, visited: set[type]) -> Iterator[str]:
    """Fields below a type that nobody has explained."""
    match info:
        case shape.StructType(cls=cls, fields=fields) if cls not in visited:
            visited.add(cls)
            for field in fields:
                at = f"{path}.{field.encode_name}"
                if description(field.type) in ("", GENERIC_WORDS):
                    yield at
                yield from wordless(field.type, at, visited)
        case shape.Metadata(type=inner):
            yield from wordless(inner, path, visited)
        case shape.ListType(item_type=inner) | shape.VarTupleType(item_type=inner):
            yield from wordless(inner, f"{path}[]", visited)
        case shape.DictType(value_type=inner):
            yield from wordless(inner, f"{path}.*", visited)
        case shape.UnionType(types=types):
            for member in types:
                yield from wordless(member, path, visited)


@pytest.mark.parametrize("kind", ALL_KINDS, ids=by_name)
def test_every_field_has_words(kind: Kind):
    types = [kind.spec, *([kind.status] if kind.status else [])]
    visited: set[type] = set()
    assert [at for type_ in types for at in wordless(shape.type_info(type_), type_.__name__, visited)] == []


def test_every_setting_has_words_and_is_in_the_reference():
    assert list(wordless(shape.type_info(Settings), "Settings", set())) == []
    page = (ROOT / "docs" / "reference" / "settings.md").read_text()
    for field in msgspec.structs.fields(Settings):
        assert f"`{field.encode_name}`" in page
        assert field.name == "access" or f"`KOGUMA_{field.name.upper()}`" in page


def test_the_reference_says_what_the_code_says():
    assert generate.differences() == [], "run `make docs`"


def test_the_check_names_what_differs_and_writing_mends_it(tmp_path):
    assert len(generate.write(tmp_path)) > len(ALL_KINDS)
    (tmp_path / "settings.md").write_text("something else")
    (tmp_path / "kinds" / "Mesh.md").unlink()
    (tmp_path / "kinds" / "Gone.md").write_text("a kind that is no more")
    assert generate.write(tmp_path) == ["kinds/Gone.md", "kinds/Mesh.md", "settings.md"]
    assert generate.differences(tmp_path) == []


def test_nothing_is_left_over_and_no_machine_is_named():
    words = re.compile(r"\b(" + "|".join(MARKERS) + r")\b")
    places = []
    for file in WRITTEN:
        try:
            lines = file.read_text().splitlines()
        except UnicodeDecodeError:
            continue  # data of a test about bytes that are no text
        places += [
            f"{in_repository(file)}:{number}"
            for number, line in enumerate(lines, 1)
            if words.search(line) or any(path in line for path in MACHINE_PATHS)
        ]
    assert places == []


def texts(nodes: list[ast.AST]) -> Iterator[tuple[int, str]]:
    """The texts of a module that are no docstrings, each with its line."""
    docstrings = {node.value for node in nodes if isinstance(node, ast.Expr)}
    for node in nodes:
        if isinstance(node, ast.Constant) and isinstance(node.value, str) and node not in docstrings:
            yield node.lineno, node.value


def test_the_core_names_no_policy(nodes):
    """What the core needs to know of a policy stands in its record; `model/target_ref` names the routes."""
    policy = re.compile(r"\b(" + "|".join(kind.name for kind in POLICIES) + r")\b")
    core = {file: within for file, within in nodes.items() if SOURCE / "core" in file.parents}
    named = [
        f"{in_repository(file)}:{line}: {text}"
        for file, within in core.items()
        for line, text in texts(within)
        if policy.search(text)
    ]
    assert named == []


def links(page: Path) -> Iterator[str]:
    """Where a page leads within the house; what stands in code is no link."""
    text = re.sub(r"^```.*?^```$", "", page.read_text(), flags=re.DOTALL | re.MULTILINE)
    for target in re.findall(r"\]\(([^)\s]+)\)", re.sub(r"`[^`\n]*`", "code", text)):
        if not re.match(r"[a-z]+:", target):
            yield target


def anchors(page: Path) -> set[str]:
    """The headings of a page, as links spell them."""
    headings = re.findall(r"^#+ +(.*)$", page.read_text(), re.MULTILINE)
    return {re.sub(r"[^\w\- ]", "", heading.lower()).replace(" ", "-") for heading in headings}


@pytest.mark.parametrize("page", PAGES, ids=in_repository)
def test_links_lead_somewhere(page: Path):
    broken = []
    for link in links(page):
        path, _, anchor = link.partition("#")
        target = (page.parent / path).resolve() if path else page
        if not target.exists() or (anchor and anchor not in anchors(target)):
            broken.append(link)
    assert broken == []


def test_no_page_shows_a_password_on_a_command_line():
    """Whoever may list processes reads it; a variable, a file or standard input keeps it."""
    shown = re.compile(r"^\$ (?!export ).*://[^\s/:@]+:[^\s@]+@", re.MULTILINE)
    pages = [ROOT / "README.md", *(ROOT / "docs").rglob("*.md")]
    assert [
        f"{in_repository(page)}: {command}" for page in pages for command in shown.findall(page.read_text())
    ] == []


def test_the_changelog_is_open_for_the_next_line():
    text = (ROOT / "CHANGELOG.md").read_text()
    unreleased = re.search(r"^## Unreleased\n(.*?)(?=^## |\Z)", text, re.DOTALL | re.MULTILINE)
    assert unreleased, "the changelog has a section Unreleased"
    assert all(line.startswith(("- ", "  ")) for line in unreleased[1].splitlines() if line)


def test_whoever_watches_a_database_has_a_watcher_of_its_own(nodes):
    """News are told once: two parts that asked one watcher for them would take them from each other."""
    deeds = {"watch", "unwatch", "changed"}
    shared = [
        f"{in_repository(file)}:{node.lineno}"
        for file, within in nodes.items()
        if file.name != "incremental.py"
        for node in within
        if isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute) and node.func.attr in deeds
        if ast.unparse(node.func.value).rpartition(".")[2].strip("_") == "db"
    ]
    assert shared == []


# Who starts tasks without the supervisor, and waits for their ends itself; dp ends with its tasks.
TASK_STARTERS = (
    "runtime/background.py",
    "dp/",
    "xds/write_scheduler.py",
    "store/notifications.py",
    "store/postgres_hosts.py",
    "reconcile/following.py",
    "sync/connection.py",
    "sync/questions.py",  # an error of its sending task is one of the connection
)
FORKS = ("fork", "forkpty", "preexec_fn", "multiprocessing")
# asyncio itself starts processes with vfork; only a control plane runs on uvloop.
FORKS_OF_UVLOOP = ("create_subprocess_exec", "create_subprocess_shell")


def test_every_task_of_a_control_plane_is_started_where_its_failure_is_seen(nodes):
    """A task that nobody waits for ends unseen, and what it did is left undone for ever."""
    unseen = [
        f"{in_repository(file)}:{node.lineno}"
        for file, within in nodes.items()
        if not str(file.relative_to(SOURCE)).startswith(TASK_STARTERS)
        for node in within
        if isinstance(node, ast.Attribute) and node.attr in ("create_task", "ensure_future", "TaskGroup")
    ]
    assert unseen == []


def named_by(node: ast.AST) -> str | None:
    """The attribute, argument, variable or module that a node names, if it does."""
    if isinstance(node, ast.Name):
        return node.id
    if isinstance(node, ast.Attribute):
        return node.attr
    if isinstance(node, ast.arg | ast.keyword):
        return node.arg
    return node.module if isinstance(node, ast.ImportFrom) else None


def test_no_process_of_ours_is_ever_forked(nodes):
    """gRPC's threads do not survive it: the child aborts sooner or later. `subprocess` alone uses vfork."""
    forking = []
    for file, within in nodes.items():
        forbidden = {*FORKS, *(() if file.is_relative_to(SOURCE / "dp") else FORKS_OF_UVLOOP)}
        forking += [f"{in_repository(file)}:{node.lineno}" for node in within if named_by(node) in forbidden]
    assert forking == []


ARCHITECTURE_LINES_MAX = 250


def test_the_map_is_short_and_names_what_exists():
    """ARCHITECTURE.md leads through named functions; one that was renamed would lead nowhere."""
    text = (ROOT / "ARCHITECTURE.md").read_text()
    assert len(text.splitlines()) <= ARCHITECTURE_LINES_MAX
    missing = [
        f"{path} {name}"
        for path, name in re.findall(r"`([\w/]+\.py)` `([\w.]+)`", text)
        if not _is_defined(SOURCE / path, name)
    ]
    packages = {folder.name for folder in SOURCE.iterdir() if (folder / "__init__.py").exists()}
    assert (missing, sorted(name for name in packages if f"`{name}/`" not in text)) == ([], [])


def _is_defined(file: Path, name: str) -> bool:
    """Whether a module has a class or function, or a class one of its methods."""
    nodes: list[ast.AST] = [ast.parse(file.read_text())] if file.exists() else []
    for part in name.split("."):
        nodes = [
            node
            for parent in nodes
            for node in getattr(parent, "body", ())
            if getattr(node, "name", "") == part
        ]
    return bool(nodes)
