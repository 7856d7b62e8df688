"""Fresh parameters by the names of the exported file. The order of creation is the order of random draws."""

import math

import torch
from torch import Tensor, nn

from training.model.shape import CONVOLUTION_WIDTH, Shape

Parameters = dict[str, nn.Parameter]

_STD = 0.02


class _Maker:
    def __init__(self, shape: Shape, device: str) -> None:
        self.shape = shape
        self.device = device
        self.made: Parameters = {}

    def keep(self, name: str, values: Tensor) -> None:
        self.made[name] = nn.Parameter(values.to(self.device))

    def random(self, name: str, *size: int, std: float = _STD) -> None:
        self.keep(name, torch.randn(size) * std)

    def norm(self, name: str, size: int) -> None:
        """The hybrid stores its norms' weights less one."""
        self.keep(name, torch.full((size,), 0.0 if self.shape.is_hybrid else 1.0))


def new_parameters(shape: Shape, device: str) -> Parameters:
    """Float32, drawn from torch's global generator. Projections into the residual stream start smaller."""
    make = _Maker(shape, device)
    make.random("model.embed_tokens.weight", shape.vocab_size, shape.hidden)
    for layer in range(shape.num_layers):
        _layer(make, f"model.layers.{layer}.", attends=shape.attends(layer))
    make.norm("model.norm.weight", shape.hidden)
    return make.made


def new_head_parameters(shape: Shape, device: str) -> Parameters:
    """A multi-token-prediction head of the hybrid, by the names of Qwen3.5's files."""
    make = _Maker(shape, device)
    make.random("mtp.fc.weight", shape.hidden, 2 * shape.hidden)
    for name in ("pre_fc_norm_embedding", "pre_fc_norm_hidden", "norm"):
        make.norm(f"mtp.{name}.weight", shape.hidden)
    _layer(make, "mtp.layers.0.", attends=True)
    return make.made


def _layer(make: _Maker, prefix: str, *, attends: bool) -> None:
    shape = make.shape
    output_std = _STD / math.sqrt(2 * shape.num_layers)
    make.norm(prefix + "input_layernorm.weight", shape.hidden)
    make.norm(prefix + "post_attention_layernorm.weight", shape.hidden)
    if attends:
        _attention(make, prefix + "self_attn.", output_std)
    else:
        _gated_delta(make, prefix + "linear_attn.", output_std)
    make.random(prefix + "mlp.gate_proj.weight", shape.intermediate, shape.hidden)
    make.random(prefix + "mlp.up_proj.weight", shape.intermediate, shape.hidden)
    make.random(prefix + "mlp.down_proj.weight", shape.hidden, shape.intermediate, std=output_std)


def _attention(make: _Maker, prefix: str, output_std: float) -> None:
    """The hybrid's queries come with an output gate of the same width."""
    shape = make.shape
    width = shape.num_heads * shape.head_dim
    make.random(prefix + "q_proj.weight", width * (2 if shape.is_hybrid else 1), shape.hidden)
    make.random(prefix + "k_proj.weight", shape.num_kv_heads * shape.head_dim, shape.hidden)
    make.random(prefix + "v_proj.weight", shape.num_kv_heads * shape.head_dim, shape.hidden)
    make.random(prefix + "o_proj.weight", shape.hidden, width, std=output_std)
    make.norm(prefix + "q_norm.weight", shape.head_dim)
    make.norm(prefix + "k_norm.weight", shape.head_dim)


def _gated_delta(make: _Maker, prefix: str, output_std: float) -> None:
    """Decay rates start spread over time scales: step sizes of 0.001 to 0.1, log-uniform, and rates of 1 to 16."""
    shape = make.shape
    make.random(prefix + "in_proj_qkv.weight", shape.convolution_channels, shape.hidden)
    make.random(prefix + "in_proj_z.weight", shape.state_width, shape.hidden)
    make.random(prefix + "in_proj_b.weight", shape.num_heads, shape.hidden)
    make.random(prefix + "in_proj_a.weight", shape.num_heads, shape.hidden)
    make.random(prefix + "out_proj.weight", shape.hidden, shape.state_width, std=output_std)
    make.random(prefix + "conv1d.weight", shape.convolution_channels, 1, CONVOLUTION_WIDTH, std=0.3)
    make.keep(prefix + "norm.weight", torch.full((shape.head_dim,), 1.0))
    span = math.log(0.1) - math.log(0.001)
    step = torch.exp(torch.rand(shape.num_heads) * span + math.log(0.001))
    make.keep(prefix + "dt_bias", step + torch.log(-torch.expm1(-step)))
    make.keep(prefix + "A_log", torch.log(torch.rand(shape.num_heads) * 15 + 1))


__all__ = ("Parameters", "new_head_parameters", "new_parameters")
