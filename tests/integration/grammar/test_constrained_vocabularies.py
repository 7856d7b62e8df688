"""Every decoding family's tokens reach the grammar as the bytes they spell."""

import json
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path
from random import Random

import pytest

from adapters.llguidance.compiler import LlguidanceCompiler
from adapters.tokenizers.loader import HfTokenizerLoader
from domain.errors import ComputeFailed
from domain.ids import ModelId
from domain.models.model_card import ModelSource
from domain.request.grammar import Marker, Reasoning, choice_grammar, json_schema_grammar
from tests.support.mlx.tiny_tokenizers import FAMILIES, write_folder
from tests.support.patience import PATIENCE_S

PROPERTIES = {"code of Alice": {"type": "string", "maxLength": 8}, "é": {"type": "integer"}}
SCHEMA = {"type": "object", "properties": PROPERTIES}
WITH_ALL_BYTES = ("byte_level", "llama_2", "gemma")


@pytest.mark.parametrize("family", WITH_ALL_BYTES)
def test_what_is_read_is_what_the_grammar_saw(family: str, tmp_path: Path):
    source = ModelSource(ModelId(family), str(write_folder(tmp_path / family, FAMILIES[family]())))
    tokenizer, draw = HfTokenizerLoader().load(source), Random(3)
    start, answered = tokenizer.special_tokens["<|im_start|>"], 0
    grammar = replace(json_schema_grammar(SCHEMA, "x"), reasoning=Reasoning((Marker("<|im_start|>", start),)))
    with ThreadPoolExecutor(1) as workers:
        compiler = LlguidanceCompiler(workers)
        compiler.attach(source.id, tokenizer.vocabulary())
        for _ in range(5):
            constraint, token_ids = compiler.compile(source.id, grammar, tokenizer.eos_token_ids), list[int]()
            constraint.accept(start)
            detokenizer = tokenizer.detokenizer((start,))
            while not constraint.allowed().must_end and len(token_ids) < 400:
                mask = constraint.allowed()
                ids = [id for id in range(tokenizer.vocab_size) if mask.allows(id)]
                assert not {*ids} & {*tokenizer.special_tokens.values()}
                token_ids.append(draw.choice(ids))
                constraint.accept(token_ids[-1])
            if constraint.allowed().must_end:
                text = "".join(map(detokenizer.feed, token_ids)) + detokenizer.flush()
                assert json.loads(text).keys() <= PROPERTIES.keys()
                answered += 1
    assert answered


def test_words_are_spelled_with_their_marks_as_spaces(tmp_path: Path):
    source = ModelSource(ModelId("x"), str(write_folder(tmp_path / "x", FAMILIES["metaspace"]())))
    tokenizer, draw, said = HfTokenizerLoader().load(source), Random(3), list[int]()
    with ThreadPoolExecutor(1) as workers:
        compiler = LlguidanceCompiler(workers)
        compiler.attach(source.id, tokenizer.vocabulary())
        constraint = compiler.compile(source.id, choice_grammar(["the lazy dog"], "x"), tokenizer.eos_token_ids)
        while not (mask := constraint.allowed()).must_end:
            said.append(draw.choice([id for id in range(tokenizer.vocab_size) if mask.allows(id)]))
            constraint.accept(said[-1])
    assert tokenizer.decode(said) == "the lazy dog"


def test_tokens_without_bytes_of_their_own_are_reported(tmp_path: Path):
    source = ModelSource(ModelId("x"), str(write_folder(tmp_path / "x", FAMILIES["word_piece"]())))
    tokenizer = HfTokenizerLoader().load(source)
    assert not tokenizer.has_token_bytes
    assert tokenizer.vocabulary() is None
    with ThreadPoolExecutor(1) as workers:
        compiler = LlguidanceCompiler(workers)
        compiler.attach(source.id, None)
        with pytest.raises(ComputeFailed, match="byte representation"):
            compiler.compile(source.id, choice_grammar(["x"], "x"), tokenizer.eos_token_ids)


def test_a_server_without_grammars_never_imports_the_library():
    code = "import interfaces.composition.container, sys; sys.exit('llguidance' in sys.modules)"
    assert (
        subprocess.run([sys.executable, "-c", code], cwd=Path(__file__).parents[3], timeout=PATIENCE_S).returncode == 0
    )
