"""What a model's sequence holds is what the ledger charges for it, also where prompts come in pieces off any grid."""

from adapters.mlx.loading.assembly import assemble
from adapters.mlx.loading.network import ModelFacts
from domain.ids import ModelId, SequenceId
from tests.support.engines.finish_load import finish_load
from tests.support.mlx.tiny_models import build, config_of


def test_prefill_leaves_the_buffers_that_the_length_says() -> None:
    """mlx-lm's own would be of 812 slots and not of 768: so much more than 300, which is no multiple of its step."""
    model, id = finish_load(assemble(build("llama"), ModelId("llama"), ModelFacts(config_of("llama")))), SequenceId(0)
    model.open(id)
    for _ in range(2):
        model.prefill(id, [5] * 300)
    left = model.leave(id)
    assert left is not None
    assert left.size_bytes == model.description.memory.state_bytes(600)
