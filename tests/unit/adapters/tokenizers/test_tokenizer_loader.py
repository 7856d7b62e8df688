"""Loading tokenizers: what a folder tells of its vocabulary and end tokens, and failures that name their cause."""

import json
import resource
import subprocess
import sys
from pathlib import Path

import pytest
from tokenizers import decoders, processors
from transformers import AutoConfig

from adapters.huggingface.model_folder import EMBEDDED_IDS, embedded_folder
from adapters.tokenizers.library import open_files_limit_kept
from adapters.tokenizers.loader import HfTokenizerLoader
from domain.errors import ModelLoadFailed
from domain.ids import ModelId
from domain.models.model_card import ModelSource
from tests.support.mlx.tiny_tokenizers import CHATML, byte_level, load_folder, sentence_piece, write_folder


@pytest.mark.parametrize("id", EMBEDDED_IDS)
def test_embedded_models_have_what_a_server_needs(id: ModelId) -> None:
    tokenizer = HfTokenizerLoader().load(ModelSource(id, str(embedded_folder(id))))
    assert tokenizer.vocab_size == 4096
    assert tokenizer.eos_token_ids == {0, 2}
    assert tokenizer.template_features is not None
    assert tokenizer.decode(tokenizer.encode("Hi 😀 <|im_end|>").token_ids) == "Hi 😀 <|im_end|>"


def test_end_tokens_come_from_all_files(tmp_path: Path) -> None:
    folder = write_folder(tmp_path, byte_level(), None)
    (folder / "config.json").write_text('{"eos_token_id": 9, "text_config": {"eos_token_id": [7, 8]}}')
    (folder / "generation_config.json").write_text('{"eos_token_id": [3, 4]}')
    assert load_folder(folder).eos_token_ids == {2, 3, 4, 7, 8, 9}


def test_the_special_token_that_the_template_writes_behind_an_answer_ends_it(tmp_path: Path) -> None:
    tokenizer = load_folder(write_folder(tmp_path, byte_level(), CHATML))
    assert tokenizer.eos_token_ids == {2, tokenizer.special_tokens["<|im_end|>"]}


def test_what_stands_between_the_messages_of_one_answer_does_not_end_it(tmp_path: Path) -> None:
    """As of gpt-oss: reasoning and answer are messages, and some templates end the last one like the others."""
    tokenizer = byte_level()
    tokenizer.add_special_tokens(["<|start|>", "<|end|>", "<|message|>", "<|channel|>", "<|return|>"])
    template = (
        "{% for message in messages %}<|start|>{{ message.role }}<|channel|>final<|message|>{{ message.content }}"
        "<|end|>{% endfor %}{% if add_generation_prompt %}<|start|>assistant{% endif %}"
    )
    loaded = load_folder(write_folder(tmp_path, tokenizer, template, eos_token="<|return|>"))
    assert loaded.eos_token_ids == {loaded.special_tokens["<|return|>"]}


@pytest.mark.parametrize("content", ["{", "[1]", "\ud800", '{"eos_token_id": "x"}'])
def test_a_generation_config_that_cannot_be_read_ends_nothing(tmp_path: Path, content: str) -> None:
    folder = write_folder(tmp_path, byte_level(), None)
    (folder / "generation_config.json").write_bytes(content.encode("utf-8", "surrogatepass"))
    loaded = load_folder(folder)
    assert loaded.eos_token_ids == {2}
    assert ("generation_config.json is left out" in loaded.note) == (content in ("{", "\ud800"))


@pytest.mark.parametrize("name", ["LlamaTokenizer", "Qwen2Tokenizer", "GemmaTokenizer", "T5Tokenizer"])
def test_a_folder_without_its_vocabulary_is_refused(tmp_path: Path, name: str) -> None:
    """transformers makes a tokenizer of a few special tokens, by which every text is empty."""
    folder = write_folder(tmp_path, byte_level(), tokenizer_class=name)
    (folder / "tokenizer.json").unlink()
    with pytest.raises(ModelLoadFailed, match=r"has no vocabulary, such as a tokenizer\.json"):
        load_folder(folder)


def test_a_byte_level_vocabulary_is_decoded_as_one(tmp_path: Path) -> None:
    tokenizer = byte_level()
    tokenizer.decoder = decoders.Sequence(
        [decoders.Replace("▁", " "), decoders.ByteFallback(), decoders.Fuse(), decoders.Strip(" ", 1, 0)]
    )
    loaded, text = load_folder(write_folder(tmp_path, tokenizer)), "Two  spaces, naïve 漢字 😀"
    assert loaded.decode(loaded.encode(text).token_ids) == text
    assert loaded.has_token_bytes


def test_raw_text_starts_with_the_special_token_the_model_expects_and_has_no_end(tmp_path: Path) -> None:
    tokenizer = byte_level()
    tokenizer.post_processor = processors.TemplateProcessing(
        single="<s> $A </s>", special_tokens=[("<s>", 1), ("</s>", 2)]
    )
    loaded = load_folder(write_folder(tmp_path, tokenizer))
    assert loaded.decode(loaded.encode("The code").token_ids) == "<s>The code"
    assert loaded.encode("").token_ids == (1,)


def test_truncation_saved_with_a_tokenizer_does_not_shorten_prompts(tmp_path: Path) -> None:
    tokenizer = byte_level()
    tokenizer.enable_truncation(4)
    tokenizer.enable_padding(length=16)
    loaded = load_folder(write_folder(tmp_path, tokenizer))
    text = "The quick brown fox jumps over the lazy dog."
    assert loaded.decode(loaded.encode(text).token_ids) == text


def test_vocabulary_size_counts_added_tokens(tmp_path: Path) -> None:
    tokenizer = sentence_piece()
    size = tokenizer.get_vocab_size()
    tokenizer.add_tokens(["<tool_call>"])
    assert load_folder(write_folder(tmp_path, tokenizer)).vocab_size == size + 1


@pytest.mark.parametrize("content", ["{", "{}", '{"model": {"type": "unheard of"}}'])
def test_a_broken_tokenizer_is_a_failure_that_names_the_model(tmp_path: Path, content: str) -> None:
    (tmp_path / "tokenizer.json").write_text(content)
    with pytest.raises(ModelLoadFailed, match="tiny: its tokenizer could not be loaded"):
        load_folder(tmp_path)


def test_code_in_the_folder_is_not_run(tmp_path: Path) -> None:
    config = {"tokenizer_class": "Own", "auto_map": {"AutoTokenizer": ["own.Own", None]}}
    (tmp_path / "tokenizer_config.json").write_text(json.dumps(config))
    (tmp_path / "own.py").write_text("raise SystemExit('ran')")
    with pytest.raises(ModelLoadFailed):
        load_folder(tmp_path)


def test_code_beside_a_tokenizer_that_needs_none_is_not_run(tmp_path: Path) -> None:
    own = {"AutoTokenizer": ["own.Own", "own.Own"], "AutoConfig": "own.Config"}
    folder = write_folder(tmp_path, byte_level(), tokenizer_class="Own", auto_map=own, trust_remote_code=True)
    config = {"model_type": "own", "auto_map": own, "trust_remote_code": True}
    (folder / "config.json").write_text(json.dumps(config))
    (folder / "own.py").write_text(f"from pathlib import Path\nPath({str(folder / 'ran')!r}).touch()\n")
    loaded = load_folder(folder)
    assert loaded.decode(loaded.encode("Hello").token_ids) == "Hello"
    assert not (folder / "ran").exists()


def test_a_folder_that_is_not_there(tmp_path: Path) -> None:
    with pytest.raises(ModelLoadFailed, match="is not a folder"):
        load_folder(tmp_path / "absent")


def test_the_limit_of_open_files_survives_an_import_that_lowers_it() -> None:
    soft, hard = before = resource.getrlimit(resource.RLIMIT_NOFILE)
    with open_files_limit_kept():
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft - 1, hard))
    assert resource.getrlimit(resource.RLIMIT_NOFILE) == before


def test_loading_is_quiet_and_needs_neither_torch_nor_mlx() -> None:
    folder = embedded_folder(EMBEDDED_IDS[0])
    script = (
        "import sys\n"
        "from adapters.tokenizers.loader import HfTokenizerLoader\n"
        "from domain.models.model_card import ModelSource\n"
        "assert 'transformers' not in sys.modules\n"
        f"HfTokenizerLoader().load(ModelSource('demo', {str(folder)!r}))\n"
        "assert not {'torch', 'mlx', 'mlx_lm'} & sys.modules.keys()\n"
    )
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=False)
    assert (done.returncode, done.stdout, done.stderr) == (0, "", "")


def test_a_config_that_only_mlx_lm_understands_does_not_matter(tmp_path: Path) -> None:
    folder = write_folder(tmp_path, byte_level())
    refused_by_transformers = {"model_type": "gemma3_text", "query_pre_attn_scalar": 16.5, "eos_token_id": 7}
    (folder / "config.json").write_text(json.dumps(refused_by_transformers))
    with pytest.raises(Exception, match="query_pre_attn_scalar"):
        AutoConfig.from_pretrained(folder)
    tokenizer = load_folder(folder)
    assert tokenizer.decode(tokenizer.encode("Hello").token_ids) == "Hello"
    assert tokenizer.eos_token_ids == {2, 4, 7}
    assert tokenizer.template_features is not None
