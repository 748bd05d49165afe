"""What the incremental engine costs: per answer, per read, and per change in a small and in a large mesh.

    python -m bench.incremental

Each proxy is watched; what it gets is its class's answer (shared by all proxies of the class) and its own. A
change that touches ten proxies should cost the same in both meshes.
"""

import statistics
from collections.abc import Callable
from time import perf_counter

import msgspec

from koguma.core.incremental import Db, question
from koguma.core.inputs import Index, Input
from koguma.model.kri import Kri

SIZES = (500, 5000)
ROUNDS = 30
TOUCHED = 10


class Proxy(msgspec.Struct, frozen=True):
    label: str
    address: int


class Policy(msgspec.Struct, frozen=True):
    selects: str
    seconds: int


PROXIES: Input[Kri, Proxy] = Input("proxies")
POLICIES: Input[Kri, Policy] = Input("policies")
BY_LABEL = Index(POLICIES, lambda _kri, policy: [policy.selects])
UNRELATED: Input[int, int] = Input("unrelated")


@question
def label(db: Db, kri: Kri) -> str:
    proxy = PROXIES.get(db, kri)
    return proxy.label if proxy else ""


@question
def is_strict(db: Db) -> bool:
    """What every proxy of the mesh reads."""
    policy = POLICIES.get(db, policy_kri("mesh"))
    return policy is not None and policy.seconds < 60


@question
def outbounds(db: Db, of: str) -> tuple[int, ...]:
    """What the proxies of a class share."""
    return tuple(policy.seconds for _, policy in BY_LABEL.items(db, of))


@question
def snapshot(db: Db, kri: Kri) -> tuple[object, ...]:
    proxy = PROXIES.get(db, kri)
    return proxy, is_strict(db), outbounds(db, label(db, kri))


def proxy_kri(number: int) -> Kri:
    return Kri("dp", "default", "zone-1", "demo", f"proxy-{number}")


def policy_kri(name: str) -> Kri:
    return Kri("mt", "default", "", "demo", name)


def mesh(size: int) -> Db:
    """Classes of ten proxies each, with a policy for each class and one for all."""
    db = Db()
    with db.change() as change:
        change.set(POLICIES, policy_kri("mesh"), Policy("", 10))
        for number in range(size):
            its = f"class-{number // TOUCHED}"
            change.set(PROXIES, proxy_kri(number), Proxy(its, 0))
            change.set(POLICIES, policy_kri(its), Policy(its, 1))
    for number in range(size):
        db.watch(snapshot, proxy_kri(number))
    return db


def own_rows_of_ten(db: Db, number: int) -> None:
    with db.change() as change:
        for proxy in range(TOUCHED):
            change.set(PROXIES, proxy_kri(proxy), Proxy("class-0", number))


def policy_of_one_class(db: Db, number: int) -> None:
    db.set(POLICIES, policy_kri("class-0"), Policy("class-0", number))


def shared_without_effect(db: Db, number: int) -> None:
    db.set(POLICIES, policy_kri("mesh"), Policy("", number))


def unrelated(db: Db, number: int) -> None:
    db.set(UNRELATED, 0, number)


def one_comes_and_goes(db: Db, number: int) -> None:
    kri = proxy_kri(1_000_000 + number)
    db.set(PROXIES, kri, Proxy("class-0", number))
    db.watch(snapshot, kri)
    db.remove(PROXIES, kri)
    db.unwatch(snapshot, kri)


def effect_on_all(db: Db, number: int) -> None:
    db.set(POLICIES, policy_kri("mesh"), Policy("", 10 if number % 2 else 90))


CHANGES: tuple[Callable[[Db, int], None], ...] = (
    own_rows_of_ten,
    policy_of_one_class,
    shared_without_effect,
    unrelated,
    one_comes_and_goes,
    effect_on_all,
)


def cost_us(db: Db, change: Callable[[Db, int], None]) -> tuple[float, dict[str, int]]:
    """The median time of a change with all that follows from it, and what ran in the last round."""
    times = []
    for number in range(1, ROUNDS + 1):
        db.reset_counts()
        start = perf_counter()
        change(db, number)
        db.changed()
        times.append(perf_counter() - start)
    return statistics.median(times) * 1e6, {name.rpartition(".")[2]: n for name, n in db.runs.items()}


@question
def many_reads(db: Db, size: int, _again: int) -> None:
    for number in range(size):
        label(db, KRIS[number])


@question
def many_rows(db: Db, size: int, _again: int) -> None:
    for number in range(size):
        PROXIES.get(db, KRIS[number])


KRIS = [proxy_kri(number) for number in range(SIZES[0])]


def each_us(function: Callable[[int], object]) -> float:
    """The median time per proxy of something that is done for each."""
    times = []
    for number in range(ROUNDS):
        start = perf_counter()
        function(number)
        times.append(perf_counter() - start)
    return statistics.median(times) / SIZES[0] * 1e6


def main() -> None:
    meshes = {}
    for size in SIZES:
        start = perf_counter()
        meshes[size] = mesh(size)
        seconds, n_memos = perf_counter() - start, meshes[size].n_memos
        print(
            f"{size} proxies: {n_memos} memos made in {seconds:.2f} s ({seconds / n_memos * 1e6:.1f} us each)"
        )
    db = meshes[SIZES[0]]
    print(f"an answer from memory      {each_us(lambda _: [label(db, kri) for kri in KRIS]):6.2f} us")
    print(f"a recorded read of it      {each_us(lambda again: many_reads(db, SIZES[0], again)):6.2f} us")
    print(f"a recorded read of a row   {each_us(lambda again: many_rows(db, SIZES[0], again)):6.2f} us")
    db.collect()
    print(f"\n{'change':24}" + "".join(f"{size:>9} proxies" for size in SIZES) + "   ratio  ran")
    for change in CHANGES:
        costs = [cost_us(meshes[size], change) for size in SIZES]
        columns = "".join(f"{us:14.0f} us" for us, _ in costs)
        print(f"{change.__name__:24}{columns}{costs[1][0] / costs[0][0]:8.2f}  {costs[1][1]}")


if __name__ == "__main__":
    main()
