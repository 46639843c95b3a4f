"""The models that are measured and tested: written by others, random weights, a fixed seed.

One row of `MODELS` is one model. `build` makes it in two sizes: BENCHMARK takes 20 to 150 ms a
call in float32 on two CPU cores, TINY serves tests. No weights, tokenizers or data are read.
"""

from __future__ import annotations

import enum
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, TypeAlias, final

import torch
from torch import nn

from benchmarks.offline import import_library

SEED = 20240229

CallArguments: TypeAlias = tuple[tuple[Any, ...], dict[str, Any]]


class Size(enum.Enum):
    """How large a model is built."""

    BENCHMARK = "benchmark"
    TINY = "tiny"


@final
@dataclass(frozen=True, slots=True, eq=False)
class Case:
    """A model in eval mode, what to call it with, and a loss to train it with.

    arguments: makes the arguments of one call; new ones where a call changes them (a key/value
        cache), else the same tensors every time. Its argument is a seed: other seeds give other
        values of the same shapes.
    loss: from the model's output to a scalar tensor, differentiable.
    """

    model: nn.Module
    arguments: Callable[[int], CallArguments]
    loss: Callable[[Any], torch.Tensor]
    changes_arguments: bool = False


@final
@dataclass(frozen=True, slots=True, eq=False)
class ModelSpec:
    """One model: where it comes from and how its parts are made.

    symbol: the name in the library that a model is made with; the libraries load lazily, and
        looking it up is a part of importing.
    construct: (library, size) -> module; inputs: (module, size, generator) -> keyword arguments
    (float32 and on the CPU; the key "" holds a positional argument).
    variant_of: the name of the model that this is another use of, or None.
    """

    name: str
    title: str
    library: str
    symbol: str
    construct: Callable[[Any, Size], nn.Module]
    inputs: Callable[[Any, Size, torch.Generator], dict[str, Any]]
    loss: Callable[[Any], torch.Tensor]
    variant_of: str | None = None
    changes_arguments: bool = False


def build(
    spec: ModelSpec,
    dtype: torch.dtype = torch.float32,
    device: torch.device | str = "cpu",
    size: Size = Size.BENCHMARK,
) -> Case:
    """The model with its weights and inputs cast to `dtype` on `device`, in eval mode."""
    library = import_library(spec.library)
    random_state = torch.get_rng_state()
    torch.manual_seed(SEED)
    model = spec.construct(library, size).eval()
    torch.set_rng_state(random_state)
    model = model.to(device=device, dtype=dtype)

    def make(seed: int) -> CallArguments:
        values = spec.inputs(model, size, torch.Generator().manual_seed(SEED + seed))
        placed = {name: place(value, dtype, device) for name, value in values.items()}
        positional = (placed.pop(""),) if "" in placed else ()
        return positional, placed

    return Case(model, _remembered(make, spec), spec.loss, spec.changes_arguments)


def _remembered(make: Callable[[int], CallArguments], spec: ModelSpec) -> Any:
    """`make`, called once a seed, where calls leave the arguments as they are."""
    if spec.changes_arguments:
        return make
    made: dict[int, CallArguments] = {}

    def arguments(seed: int) -> CallArguments:
        if seed not in made:
            made[seed] = make(seed)
        return made[seed]

    return arguments


def place(value: Any, dtype: torch.dtype, device: torch.device | str) -> Any:
    """`value` with every tensor on `device` and every floating tensor cast to `dtype`."""
    if isinstance(value, torch.Tensor):
        return value.to(device=device, dtype=dtype if value.is_floating_point() else value.dtype)
    if isinstance(value, KeyValues):
        return value.as_cache(lambda tensor: place(tensor, dtype, device))
    return value


def tensors_in(output: Any) -> list[torch.Tensor]:
    """Every tensor of a model's output, in order: what is compared. Key/value caches are opened.

    Raises TypeError for a part that is neither a tensor, a container of them, nor None.
    """
    if output is None or isinstance(output, (bool, int, float, str)):
        return []
    if isinstance(output, torch.Tensor):
        return [output]
    if isinstance(output, Mapping):
        return [tensor for value in output.values() for tensor in tensors_in(value)]
    if isinstance(output, Sequence):
        return [tensor for value in output for tensor in tensors_in(value)]
    if hasattr(output, "self_attention_cache"):
        caches = [output.self_attention_cache, output.cross_attention_cache]
        return [tensor for cache in caches for tensor in tensors_in(cache)]
    if hasattr(output, "layers") and all(hasattr(layer, "keys") for layer in output.layers):
        return [t for layer in output.layers for t in tensors_in([layer.keys, layer.values])]
    raise TypeError(f"do not know the tensors of a {type(output).__name__}")


# --- losses ------------------------------------------------------------------------------------


def _cross_entropy(logits: torch.Tensor) -> torch.Tensor:
    """Against targets that depend on the position only: 0, 1, 2, ... modulo the classes."""
    flat = logits.flatten(0, -2).float()
    targets = torch.arange(flat.shape[0], device=flat.device) % flat.shape[1]
    return nn.functional.cross_entropy(flat, targets)


def _logits_loss(output: Any) -> torch.Tensor:
    return _cross_entropy(output.logits)


def _sample_loss(output: Any) -> torch.Tensor:
    return output.sample.float().square().mean()


# --- inputs ------------------------------------------------------------------------------------


def _images(
    benchmark: tuple[int, int], tiny: tuple[int, int]
) -> Callable[[Any, Size, torch.Generator], dict[str, Any]]:
    def make(model: Any, size: Size, generator: torch.Generator) -> dict[str, Any]:
        batch, side = benchmark if size is Size.BENCHMARK else tiny
        return {"": torch.randn(batch, 3, side, side, generator=generator)}

    return make


def _tokens(
    names: tuple[str, ...], benchmark: tuple[int, int], tiny: tuple[int, int], **fixed: Any
) -> Callable[[Any, Size, torch.Generator], dict[str, Any]]:
    def make(model: Any, size: Size, generator: torch.Generator) -> dict[str, Any]:
        shape = benchmark if size is Size.BENCHMARK else tiny
        tokens = {
            name: torch.randint(0, model.config.vocab_size, shape, generator=generator)
            for name in names
        }
        return {**tokens, **fixed}

    return make


@final
@dataclass(frozen=True, slots=True, eq=False)
class KeyValues:
    """Keys and values of earlier tokens, one pair of [batch, heads, length, width] a layer."""

    layers: tuple[tuple[torch.Tensor, torch.Tensor], ...] = field(default=())

    def as_cache(self, cast: Callable[[torch.Tensor], torch.Tensor]) -> Any:
        """A transformers DynamicCache of them, which a call makes longer."""
        cache = import_library("transformers").DynamicCache
        return cache([(cast(keys), cast(values)) for keys, values in self.layers])


def _next_token(model: Any, size: Size, generator: torch.Generator) -> dict[str, Any]:
    """One new token a sequence, after a prompt whose keys and values are in the cache."""
    config = model.config
    batch, length = (16, 512) if size is Size.BENCHMARK else (2, 8)
    width = config.hidden_size // config.num_attention_heads
    shape = (batch, config.num_key_value_heads, length, width)
    layers = tuple(
        (torch.randn(shape, generator=generator), torch.randn(shape, generator=generator))
        for _ in range(config.num_hidden_layers)
    )
    tokens = torch.randint(0, config.vocab_size, (batch, 1), generator=generator)
    return {"input_ids": tokens, "past_key_values": KeyValues(layers), "use_cache": True}


def _noisy_images(model: Any, size: Size, generator: torch.Generator) -> dict[str, Any]:
    batch, side = (1, 64) if size is Size.BENCHMARK else (1, 16)
    sample = torch.randn(batch, 3, side, side, generator=generator)
    return {"sample": sample, "timestep": torch.full((batch,), 10, dtype=torch.int64)}


# --- modules -----------------------------------------------------------------------------------


def _densenet(library: Any, size: Size) -> nn.Module:
    if size is Size.BENCHMARK:
        return library.densenet121(weights=None)
    return library.DenseNet(growth_rate=4, block_config=(2, 2), num_init_features=8, num_classes=10)


def _resnet(library: Any, size: Size) -> nn.Module:
    if size is Size.BENCHMARK:
        return library.resnet18(weights=None)
    block = library.resnet.BasicBlock
    return library.ResNet(block, [1, 1, 1, 1], num_classes=10, width_per_group=64)


def _vision_transformer(library: Any, size: Size) -> nn.Module:
    large = size is Size.BENCHMARK
    module = library.VisionTransformer(
        image_size=128 if large else 32,
        patch_size=8 if large else 16,
        num_layers=4 if large else 2,
        num_heads=4 if large else 2,
        hidden_dim=256 if large else 32,
        mlp_dim=1024 if large else 64,
        num_classes=1000 if large else 10,
    )
    # torchvision starts the classifier at zero, which would make every output zero.
    nn.init.normal_(module.heads.head.weight, std=0.02)
    return module


# The widths that the four language models share; each names them in its own way.
_LARGE = {"width": 256, "layers": 4, "heads": 4, "inner": 1024, "vocabulary": 8192}
_SMALL = {"width": 32, "layers": 2, "heads": 4, "inner": 64, "vocabulary": 128}


def _sizes(size: Size) -> dict[str, int]:
    return _LARGE if size is Size.BENCHMARK else _SMALL


def _bert(library: Any, size: Size) -> nn.Module:
    sizes = _sizes(size)
    config = library.BertConfig(
        hidden_size=sizes["width"],
        num_hidden_layers=sizes["layers"],
        num_attention_heads=sizes["heads"],
        intermediate_size=sizes["inner"],
        vocab_size=sizes["vocabulary"],
    )
    return library.BertForMaskedLM(config)


def _gpt2(library: Any, size: Size) -> nn.Module:
    sizes = _sizes(size)
    config = library.GPT2Config(
        n_embd=sizes["width"],
        n_layer=sizes["layers"],
        n_head=sizes["heads"],
        vocab_size=sizes["vocabulary"],
        bos_token_id=0,
        eos_token_id=0,
    )
    return library.GPT2LMHeadModel(config)


def _llama(library: Any, size: Size) -> nn.Module:
    sizes = _sizes(size)
    config = library.LlamaConfig(
        hidden_size=sizes["width"],
        num_hidden_layers=sizes["layers"],
        num_attention_heads=sizes["heads"],
        num_key_value_heads=sizes["heads"] // 2,
        intermediate_size=sizes["inner"],
        vocab_size=sizes["vocabulary"],
    )
    return library.LlamaForCausalLM(config)


def _t5(library: Any, size: Size) -> nn.Module:
    sizes = _sizes(size)
    config = library.T5Config(
        d_model=sizes["width"],
        num_layers=sizes["layers"],
        num_heads=sizes["heads"],
        d_kv=sizes["width"] // sizes["heads"],
        d_ff=sizes["inner"],
        vocab_size=sizes["vocabulary"],
        decoder_start_token_id=0,
    )
    return library.T5ForConditionalGeneration(config)


def _unet(library: Any, size: Size) -> nn.Module:
    large = size is Size.BENCHMARK
    channels = (32, 64, 128, 256) if large else (16, 32)
    blocks = len(channels)
    attention = blocks - 2 if large else blocks - 1
    down = ["AttnDownBlock2D" if i == attention else "DownBlock2D" for i in range(blocks)]
    up = ["AttnUpBlock2D" if block.startswith("Attn") else "UpBlock2D" for block in down[::-1]]
    return library.UNet2DModel(
        sample_size=64 if large else 16,
        block_out_channels=channels,
        layers_per_block=2 if large else 1,
        norm_num_groups=8,
        down_block_types=tuple(down),
        up_block_types=tuple([up_block.replace("Down", "Up") for up_block in up]),
    )


# --- the table ---------------------------------------------------------------------------------

MODELS: dict[str, ModelSpec] = {
    spec.name: spec
    for spec in (
        ModelSpec(
            "densenet121",
            "DenseNet-121",
            "torchvision",
            "DenseNet",
            _densenet,
            _images((2, 128), (2, 32)),
            _cross_entropy,
        ),
        ModelSpec(
            "resnet18",
            "ResNet-18",
            "torchvision",
            "ResNet",
            _resnet,
            _images((4, 128), (2, 32)),
            _cross_entropy,
        ),
        ModelSpec(
            "vision_transformer",
            "VisionTransformer",
            "torchvision",
            "VisionTransformer",
            _vision_transformer,
            _images((4, 128), (2, 32)),
            _cross_entropy,
        ),
        ModelSpec(
            "bert",
            "BERT",
            "transformers",
            "BertForMaskedLM",
            _bert,
            _tokens(("input_ids",), (4, 128), (2, 8)),
            _logits_loss,
        ),
        ModelSpec(
            "gpt2",
            "GPT-2",
            "transformers",
            "GPT2LMHeadModel",
            _gpt2,
            _tokens(("input_ids",), (4, 128), (2, 8), use_cache=False),
            _logits_loss,
        ),
        ModelSpec(
            "llama",
            "Llama",
            "transformers",
            "LlamaForCausalLM",
            _llama,
            _tokens(("input_ids",), (4, 128), (2, 8), use_cache=False),
            _logits_loss,
        ),
        ModelSpec(
            "t5",
            "T5",
            "transformers",
            "T5ForConditionalGeneration",
            _t5,
            _tokens(("input_ids", "decoder_input_ids"), (4, 128), (2, 8), use_cache=False),
            _logits_loss,
        ),
        ModelSpec("unet", "UNet2D", "diffusers", "UNet2DModel", _unet, _noisy_images, _sample_loss),
        ModelSpec(
            "llama_prefill",
            "Llama, prefill",
            "transformers",
            "LlamaForCausalLM",
            _llama,
            _tokens(("input_ids",), (4, 128), (2, 8), use_cache=True),
            _logits_loss,
            variant_of="llama",
        ),
        ModelSpec(
            "llama_decode",
            "Llama, decode",
            "transformers",
            "LlamaForCausalLM",
            _llama,
            _next_token,
            _logits_loss,
            variant_of="llama",
            changes_arguments=True,
        ),
    )
}

EIGHT = tuple(name for name, spec in MODELS.items() if spec.variant_of is None)


def find(name: str) -> ModelSpec:
    """The model of that name; a ValueError that lists the names where there is none."""
    if name not in MODELS:
        raise ValueError(f"no model {name!r}; there are: {', '.join(MODELS)}")
    return MODELS[name]
