"""Roots follow content and settings, never names; the salt stays secret."""

from dataclasses import replace

from adapters.fake import ATTENTION, HYBRID, FakeEngine, FakeOptions
from domain.ids import ModelId
from domain.models.model_card import LoadOptions, ModelDescription, ModelSource
from domain.prefix.fingerprint import Fingerprint, shares_tenant, tenant_salt
from domain.prefix.prompt_content import BlockGrid
from tests.support.engines.finish_load import finish_load

BASE = Fingerprint(b"weights", "sliced=KV", "bfloat16", BlockGrid(256, 512), "mlx-lm 0.32")


def description(name: str, options: FakeOptions) -> ModelDescription:
    return finish_load(FakeEngine(default=options).load(ModelSource(ModelId(name), "p"), LoadOptions())).description


def root(model: ModelDescription) -> bytes:
    return Fingerprint.of(model, BlockGrid(256, 512)).namespace()


def test_every_part_changes_the_root() -> None:
    variants = [
        replace(BASE, weights=b"other"),
        replace(BASE, layout="recurrent=KV"),
        replace(BASE, dtype="float32"),
        replace(BASE, grid=BlockGrid(128, 512)),
        replace(BASE, grid=BlockGrid(256, 1024)),
        replace(BASE, runtime="mlx-lm 0.33"),
        replace(BASE, grid=BlockGrid(256, 512, is_exact=True)),
        replace(BASE, salt="tenant"),
        replace(BASE, salt="tenant 2"),
    ]
    roots = {fingerprint.namespace() for fingerprint in (BASE, *variants)}
    assert len(roots) == len(variants) + 1
    assert all(len(found) == 32 for found in roots)


def test_names_do_not_enter_but_weights_and_layout_do() -> None:
    one = description("one", FakeOptions(weights=1))
    assert root(one) == root(description("another name", FakeOptions(weights=1)))
    assert root(one) != root(description("one", FakeOptions(weights=2)))
    assert root(one) != root(description("one", FakeOptions(weights=1, layout=HYBRID)))
    assert one.layout is ATTENTION


def test_what_must_agree_to_the_bit_is_not_shared_between_libraries_that_round_otherwise() -> None:
    model = description("one", FakeOptions())
    builtin, openblas = (replace(model, arithmetic=found) for found in ("built-in BLAS", "OpenBLAS 0.3.21"))

    def exact_root(described: ModelDescription) -> bytes:
        return Fingerprint.of(described, BlockGrid(256, 512, is_exact=True)).namespace()

    assert exact_root(builtin) != exact_root(openblas)
    assert exact_root(builtin) == exact_root(replace(builtin, id=ModelId("two")))
    assert root(builtin) == root(openblas) == root(model)


def test_tenants_never_share_a_salt_by_spelling_it() -> None:
    pairs = [("", "a"), ("a", ""), ("a", "b"), ("ab", ""), ("", "ab"), ("b", "a"), ('a", "b', ""), ("", 'a", "b')]
    pairs += [("a\0", "b"), ("a", "\0b"), ("", "\udc80"), ("", "x" * 100_000)]
    salts = {tenant_salt(configured, requested) for configured, requested in pairs}
    assert len(salts) == len(pairs)
    assert {len(salt) for salt in salts} == {64}
    assert tenant_salt("", "") == ""
    roots = {replace(BASE, salt=salt).namespace() for salt in salts}
    assert len(roots) == len(pairs)


def test_the_salt_is_shown_as_a_digest_only() -> None:
    salted = replace(BASE, salt="hunter2")
    assert "hunter2" not in salted.canonical_json()
    assert shares_tenant(salted.canonical_json(), salted.salt_digest)
    assert not shares_tenant(salted.canonical_json(), BASE.salt_digest)
    assert shares_tenant(BASE.canonical_json(), "")
    assert not shares_tenant("not json", "")
    assert not shares_tenant("[]", "")
