"""The choice of weight files by names and index, on the forms that are found on hubs."""

import json

import pytest

from domain.models.weight_files import INDEX, WeightFiles, weight_files

ONE = "model.safetensors"


def shards(number: int, of: int, prefix: str = "model") -> list[str]:
    return [f"{prefix}-{index:05}-of-{of:05}.safetensors" for index in range(1, number + 1)]


def index_of(*names: object) -> str:
    return json.dumps({"weight_map": {f"layer.{number}": name for number, name in enumerate(names)}})


@pytest.mark.parametrize(
    ("present", "index", "expected"),
    [
        pytest.param([ONE, "config.json"], None, [ONE], id="one file"),
        pytest.param(shards(3, 3), index_of(*shards(3, 3)), shards(3, 3), id="as the index says"),
        pytest.param([ONE, *shards(2, 2)], index_of(*shards(2, 2)), shards(2, 2), id="another conversion beside them"),
        pytest.param(shards(2, 2), None, shards(2, 2), id="no index"),
        pytest.param([ONE], '{"weight_map": {}}', [ONE], id="an empty index"),
        pytest.param(["weights.safetensors"], None, ["weights.safetensors"], id="one file of another name"),
        pytest.param(["consolidated.safetensors", ONE, "adapter_model.safetensors"], None, [ONE], id="other forms"),
    ],
)
def test_the_files_of_a_network(present: list[str], index: str | None, expected: list[str]) -> None:
    assert weight_files(present, index) == WeightFiles(tuple(expected))


@pytest.mark.parametrize("present", [[ONE], shards(2, 2), [ONE, "model-mtp.safetensors"]])
def test_a_whole_set_is_taken_where_the_index_is_of_another_conversion(present: list[str]) -> None:
    found = weight_files(present, index_of(*shards(5, 5)))
    assert found.all == tuple(sorted(present))
    assert shards(1, 5)[0] in found.note
    assert present[0] in found.note


@pytest.mark.parametrize("name", ["mtp.safetensors", "model-mtp.safetensors", "mtp-00.safetensors"])
def test_a_head_is_beside_the_network_s_files_and_not_missed(name: str) -> None:
    assert weight_files([ONE, name], None) == WeightFiles((ONE,), (name,))
    assert weight_files([ONE, name], index_of(ONE, name)) == WeightFiles((ONE,), (name,))
    assert weight_files([ONE], index_of(ONE, name)) == WeightFiles((ONE,))


@pytest.mark.parametrize(
    ("present", "index", "absent"),
    [
        pytest.param(shards(3, 5), index_of(*shards(5, 5)), shards(4, 5)[3], id="an interrupted download"),
        pytest.param(shards(3, 5), None, shards(4, 5)[3], id="without its index"),
        pytest.param([*shards(1, 5), *shards(1, 2)], index_of(*shards(5, 5)), shards(2, 5)[1], id="of two conversions"),
        pytest.param([*shards(2, 5), ONE], index_of(*shards(5, 5)), shards(3, 5)[2], id="an old file beside it"),
        pytest.param([], index_of(ONE), ONE, id="nothing"),
        pytest.param(["model-1-of-999999.safetensors"], None, "model-2-of-999999.safetensors", id="a large number"),
    ],
)
def test_an_absent_file_is_named(present: list[str], index: str | None, absent: str) -> None:
    found = weight_files(present, index)
    assert (found.names, found.missing.startswith(f"weights are missing ({absent}")) == ((), True)


@pytest.mark.parametrize("present", [[], ["consolidated.safetensors"], ["a.safetensors", "b.safetensors"]])
def test_a_folder_without_weights(present: list[str]) -> None:
    assert weight_files(present, None).missing == "it has no weights (model*.safetensors)"


@pytest.mark.parametrize("index", ["", "[]", "{", '{"weight_map": 1}', index_of("../a.safetensors"), index_of(7)])
def test_an_index_that_is_none(index: str) -> None:
    assert weight_files([ONE], index).missing.startswith(f"its {INDEX} ")
