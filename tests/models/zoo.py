"""Other people's models beyond the demo's: architectures of transformers and torchvision, made
small, with random weights and inputs.

    python -m tests.models.zoo mamba swin_t     # these; without names, all of them
    python -m tests.models.zoo --sizes mamba    # called at four sizes: how many compile anything
    python -m tests.models.zoo --gradients      # gradients of all parameters, by a sum of results
    python -m tests.models.zoo --train          # the same in training mode: with dropout
    python -m tests.models.zoo --device cuda --mode reduce-overhead --jobs 12
"""

from __future__ import annotations

import argparse
import copy
import dataclasses
import functools
import inspect
import logging
import math
import multiprocessing
import sys
import warnings
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import ProcessPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any, final

import torch
from benchmarks.accuracy import Accuracy, Float64Everywhere, compare, move_parameters
from benchmarks.offline import import_library
from torch import nn

import braze
from braze.report.explain import summarise
from tests.recorded import recorded

TEXT = tuple(
    """albert bart bert big_bird bigbird_pegasus blenderbot bloom camembert canine codegen cohere
    convbert ctrl deberta deberta-v2 deepseek_v3 distilbert electra ernie ernie4_5 esm exaone4
    falcon falcon_mamba flaubert fnet fsmt gemma gemma2 gemma3_text glm gpt2 gpt_bigcode gpt_neo
    gpt_neox gpt_neox_japanese gptj granite granitemoe ibert jamba layoutlm led llama longformer
    luke m2m_100 mamba mamba2 marian mbart megatron-bert mistral mixtral mobilebert modernbert
    mpnet mpt mra mt5 mvp nystromformer olmo olmo2 olmoe openai-gpt opt pegasus persimmon phi phi3
    plbart prophetnet qwen2 qwen2_moe qwen3 qwen3_moe recurrent_gemma rembert roberta roc_bert
    roformer rwkv smollm3 squeezebert stablelm starcoder2 switch_transformers t5 umt5 xglm xlm
    xlm-roberta xlnet yoso zamba2""".split()
)
IMAGE = tuple(
    """beit bit convnext convnextv2 cvt data2vec-vision deit dinov2 dpt focalnet glpn hiera ijepa
    levit mobilenet_v1 mobilenet_v2 mobilevit mobilevitv2 poolformer pvt pvt_v2 regnet resnet
    segformer swin swinv2 vit vit_mae vit_msn yolos""".split()
)
TORCHVISION = tuple(
    f"torchvision/{name}"
    for name in """alexnet convnext_tiny deeplabv3_resnet50 densenet121 efficientnet_b0
    efficientnet_v2_s fcn_resnet50 googlenet inception_v3 maxvit_t mnasnet1_0 mobilenet_v2
    mobilenet_v3_small regnet_x_400mf regnet_y_400mf resnet50 resnext50_32x4d shufflenet_v2_x1_0
    squeezenet1_1 swin_t swin_v2_t vgg11_bn vit_b_32""".split()
)
ALL = (*TEXT, *IMAGE, *TORCHVISION)

# Why a model's forward pass is more than one graph, by name; all others are one graph.
BREAKS: dict[str, str] = {
    "flaubert": "compares a tensor's maximum",
    "led": "asks whether the attention is global anywhere",
    "longformer": "asks whether the attention is global anywhere",
    "xlm": "compares a tensor's maximum",
}

# Why eager has no gradients of a model, by name.
NO_GRADIENTS: dict[str, str] = {
    "bit": "rounding decides them: eager's own errors are 1e-6 of them, or 1e-2",
    "levit": "keeps a tensor of the first call's history for the second",
    "rwkv": "writes to what its backward reads",
}

# Why a model's training is more than one graph, by name, where its inference is one.
BREAKS_IN_TRAINING: dict[str, str] = {
    "ibert": "asks whether the ranges of its activations are known yet",
    "m2m_100": "leaves a layer out where a random number says so",
}

# Why a model's training shows nothing, by name.
NO_TRAINING: dict[str, str] = {
    **NO_GRADIENTS,
    **dict.fromkeys(
        ("regnet", "torchvision/mnasnet1_0", "torchvision/regnet_x_400mf"),
        "statistics of eight values: an image that is 1e-7 off moves gradients by 3%",
    ),
    "torchvision/inception_v3": "its second classifier takes larger images",
    "torchvision/regnet_y_400mf": "as the other one: eager's own gradients are 3e-3 off",
}

# (batch, tokens) of calls; of images (batch, how much larger a side is). The last is no extreme.
_TEXT_SIZES = ((2, 16), (3, 24), (5, 56), (4, 40))
_IMAGE_SIZES = ((2, 0), (3, 32), (5, 96), (4, 64))
VARYING = 2  # dimensions in which these calls differ

# Why a model compiles more often than its varying dimensions ask for, by name.
COMPILES_AT_EACH: dict[str, str] = {
    "falcon_mamba": "associative_scan halves a length",
    "jamba": "associative_scan halves a length",
    "mamba": "associative_scan halves a length",
    "recurrent_gemma": "a loop over its tokens",
    "rwkv": "a loop over its tokens",
    "torchvision/swin_v2_t": "asks of each stage whether it is one window, and if it is padded",
}

# Fields of a configuration that make a model small, where it has them.
_SMALL: dict[str, int] = {
    **dict.fromkeys(("hidden_size", "d_model", "n_embd", "dim", "emb_dim", "embedding_size"), 64),
    **dict.fromkeys(("word_embed_proj_dim", "hidden_dim"), 64),
    **dict.fromkeys(("num_hidden_layers", "num_layers", "n_layer", "n_layers"), 2),
    **dict.fromkeys(("encoder_layers", "decoder_layers", "num_encoder_layers"), 2),
    **dict.fromkeys(("num_decoder_layers", "num_key_value_heads"), 2),
    **dict.fromkeys(("num_attention_heads", "n_head", "n_heads", "num_heads"), 4),
    **dict.fromkeys(("encoder_attention_heads", "decoder_attention_heads"), 4),
    **dict.fromkeys(("num_local_experts", "num_experts", "n_routed_experts"), 4),
    **dict.fromkeys(("intermediate_size", "encoder_ffn_dim", "decoder_ffn_dim", "d_ff"), 128),
    **dict.fromkeys(("ffn_dim", "n_inner", "ffn_hidden_size", "vocab_size"), 128),
    **dict.fromkeys(("max_position_embeddings", "n_positions"), 128),
    **dict.fromkeys(("head_dim", "d_kv"), 16),
    "moe_intermediate_size": 32,
    "attention_window": 8,
    "pad_token_id": 0,
    "decoder_start_token_id": 1,
}
_HEADS = {"num_attention_heads": 4, "num_key_value_heads": 4}
_EXPERTS = {**_HEADS, "num_experts_per_tok": 2, "num_hidden_layers": 2}
# What else an architecture needs, whose sizes depend on each other.
_OWN_SIZES: dict[str, dict[str, Any]] = {
    "codegen": {"rotary_dim": 8},
    "gptj": {"rotary_dim": 8},
    "gpt_neo": {"attention_types": [[["global", "local"], 1]]},
    "deepseek_v3": {
        **_EXPERTS,
        "n_group": 2,
        "topk_group": 1,
        "q_lora_rank": 32,
        "kv_lora_rank": 32,
        "head_dim": 8,  # what is rotated of each
        "qk_rope_head_dim": 8,
        "qk_nope_head_dim": 16,
        "v_head_dim": 16,
    },
    "esm": {"vocab_size": 128, "mask_token_id": 32, "pad_token_id": 1},
    "jamba": {
        "num_hidden_layers": 4,
        "attn_layer_period": 2,
        "attn_layer_offset": 1,
        "use_mamba_kernels": False,
    },
    "mamba2": {"num_heads": 8, "head_dim": 16, "state_size": 16, "n_groups": 1, "chunk_size": 16},
    "olmoe": {**_EXPERTS, "num_experts": 8},
    "qwen3_moe": {**_EXPERTS, "num_experts": 8},
    "recurrent_gemma": {"num_hidden_layers": 3, "lru_width": 64},
    "zamba2": {
        **_HEADS,
        "num_hidden_layers": 3,
        "layer_types": ["mamba", "hybrid", "mamba"],
        "hybrid_layer_ids": [1],
        "mamba_d_state": 16,
        "n_mamba_heads": 4,
        "mamba_headdim": 32,
        "mamba_ngroups": 1,
        "kv_channels": 16,
        "chunk_size": 16,
    },
}
_TORCHVISION_SIDES = {"swin_t": 64, "maxvit_t": 224, "vit_b_32": 224, "inception_v3": 96}
_NEARBY = 6


@final
@dataclass(frozen=True, slots=True)
class Sizes:
    """Of a call. images: of transformers' models, of the size that those are made for; batch, side:
    of torchvision's."""

    texts: int = 2
    tokens: int = 32
    images: int = 1
    batch: int = 2
    side: int = 64


SMALL = Sizes()


@final
@dataclass(frozen=True, slots=True)
class Verdict:
    """What a model's two calls, eagerly and compiled, showed."""

    name: str
    graphs: int
    breaks: int
    fallbacks: tuple[str, ...]
    accuracy: Accuracy


@final
@dataclass(frozen=True, slots=True)
class SizesVerdict:
    """What calls of one model at several sizes showed.

    compiling: how many of the calls compiled anything, be it a part behind a graph break.
    sizes: what the calls were made with. wrong: at which of these a result was wrong.
    causes: what specialised a size behind the second call, and which guards failed there.
    """

    name: str
    compiling: int
    sizes: tuple[tuple[int, int], ...]
    wrong: tuple[tuple[int, int], ...]
    fallbacks: tuple[str, ...]
    causes: tuple[str, ...]


def build(name: str, device: str = "cpu", sizes: Sizes = SMALL) -> tuple[nn.Module, dict[str, Any]]:
    """A model in eval mode and the keyword arguments of a call ("": a positional one)."""
    model, given = _build(name, sizes)
    return model.to(device), {key: value.to(device) for key, value in given.items()}


def _build(name: str, sizes: Sizes) -> tuple[nn.Module, dict[str, Any]]:
    torch.manual_seed(0)
    library, _, model = name.rpartition("/")
    if library:
        models = import_library(library)
        side = max(sizes.side, _TORCHVISION_SIDES.get(model, 0))
        without = {"weights_backbone": None} if model.startswith(("deeplab", "fcn")) else {}
        made = models.get_model(model, weights=None, **without)
        return made.eval(), {"": torch.rand(sizes.batch, 3, side, side)}
    return _build_transformer(name, sizes)


def _build_transformer(name: str, sizes: Sizes) -> tuple[nn.Module, dict[str, Any]]:
    transformers = import_library("transformers")
    config = transformers.AutoConfig.for_model(name)
    wanted = {"num_hidden_layers": 2} if name in IMAGE else _SMALL
    small = {field: size for field, size in wanted.items() if type(vars(config).get(field)) is int}
    config = type(config)(**{**small, **_OWN_SIZES.get(name, {})})
    model = transformers.AutoModel.from_config(config).eval()
    if name in IMAGE:
        side = getattr(config, "image_size", None) or SMALL.side
        return model, {"pixel_values": torch.rand(sizes.images, 3, *_pair(side))}
    return model, _tokens(model, sizes.texts, sizes.tokens)


def _pair(side: Any) -> tuple[int, int]:
    return (side, side) if isinstance(side, int) else tuple(side)


def tensors_in(output: Any, seen: frozenset[int] = frozenset()) -> list[torch.Tensor]:
    """Every tensor that can be reached from a model's output, caches of any class included."""
    if isinstance(output, torch.Tensor):
        return [output]
    if id(output) in seen or isinstance(output, (type, torch.dtype, torch.device, str)):
        return []
    seen = seen | {id(output)}
    parts: Any = vars(output).values() if hasattr(output, "__dict__") else ()
    if isinstance(output, Mapping):
        parts = output.values()
    elif isinstance(output, Sequence):
        parts = output
    return [tensor for part in parts for tensor in tensors_in(part, seen)]


def judge(
    name: str,
    device: str = "cpu",
    mode: str | None = None,
    calls: int = 1,
    gradients: bool = False,
    verify_replays: bool = False,
    trains: bool = False,
) -> Verdict:
    """Build a model, call it eagerly and compiled with the same random numbers, and compare. calls:
    each with other inputs, the largest error counts; a mode may record the second. gradients: of
    the parameters are compared, too. trains: in training mode, gradients and all."""
    model, given = build(name, device)
    model.train(trains)
    gradients |= trains
    if trains:
        with torch.no_grad():  # Griffin keeps a state, BigBird draws the weights of an attention
            _call(model, given)
    untouched = copy.deepcopy(model)
    with torch.set_grad_enabled(gradients):
        with recorded() as journal:
            options: dict[str, Any] = {"suppress_errors": False, "verify_replays": verify_replays}
            compiled = braze.compile(model, options=options | ({"mode": mode} if mode else {}))
        found = []
        for number in range(calls):
            varied = {key: _varied(value, number) for key, value in given.items()}
            if gradients:
                varied = {key: _two(value) for key, value in varied.items()}
            found.append(_compared(model, compiled, varied, untouched))
    worst = max(found, key=lambda one: (not one.right, one.largest_error))
    summary = summarise("", journal, None)
    return Verdict(name, summary.graph_count, summary.break_count, summary.fallbacks, worst)


def _varied(value: torch.Tensor, number: int) -> torch.Tensor:
    """Another one of its kind; masks stay."""
    if value.is_floating_point():
        return value if not number else value.flip(-1) * (1 - number / 16)
    return value.roll(number, -1)


def _two(value: torch.Tensor) -> torch.Tensor:
    """Two images: of one, eager's gradients of batch norms on the CPU may be wrong (README)."""
    return torch.cat([value, value.flip(-1)]) if len(value) == 1 else value


def _compared(
    model: nn.Module, compiled: Any, given: Mapping[str, Any], untouched: nn.Module
) -> Accuracy:
    """A compiled call beside an eager one; where they differ by more than rounding, both are
    compared with a float64 run of the model as it was before."""
    eager = _results(model, model, given)
    outputs = _results(compiled, model, given)
    accuracy = compare(outputs, eager)
    if accuracy.right:
        return accuracy
    if outputs[0].is_cuda and torch.is_grad_enabled():
        # Where one finds zero and the other the number next to it gradients differ, batch norms of
        # few values amplify, and where a model draws float64 draws other numbers.
        near = max(_distance(_results(m, m, given), eager) for m in _nearby(untouched))
        right = _distance(outputs, eager) <= 2 * near
        if right or untouched.training:
            return dataclasses.replace(accuracy, right=right)
    wide = {key: _widened(value) for key, value in given.items()}
    exactly = copy.deepcopy(untouched).double()
    if hasattr(exactly, "set_experts_implementation"):
        exactly.set_experts_implementation("eager")  # grouped products take no float64
    with Float64Everywhere():
        exact = _results(exactly, exactly, wide)
    accuracy = compare(outputs, eager, exact)
    # Of some hundred gradients one has its greatest error where eager happens to have none.
    close = torch.is_grad_enabled() and _distance(outputs, exact) <= 2 * _distance(eager, exact)
    return dataclasses.replace(accuracy, right=accuracy.right or close)


def _nearby(model: nn.Module) -> Iterator[nn.Module]:
    """Copies whose parameters are rounded otherwise: eager's own results are this far apart."""
    for draw in range(_NEARBY):
        near = copy.deepcopy(model)
        move_parameters(near, draw)
        yield near


def _distance(tensors: Sequence[torch.Tensor], exact: Sequence[torch.Tensor]) -> float:
    """The root of the squares of all differences."""
    pairs = [(a, b) for a, b in zip(tensors, exact, strict=True) if a.is_floating_point()]
    return math.hypot(*[float((a.double() - b).norm()) for a, b in pairs])


def _results(call: Any, model: nn.Module, given: Mapping[str, Any]) -> list[torch.Tensor]:
    """What a call gives, and the gradients of the model's parameters, where those are computed."""
    results = _call(call, given)
    losses = [r for r in results if r.requires_grad and r.is_floating_point()]
    if not torch.is_grad_enabled() or not losses:
        return results
    parameters = [p for p in model.parameters() if p.requires_grad]
    found = torch.autograd.grad(
        [_weighted(loss) for loss in losses], parameters, allow_unused=True, materialize_grads=True
    )
    return [*[result.detach() for result in results], *found]


def _weighted(result: torch.Tensor) -> torch.Tensor:
    """A number that each element counts in, differently and unlike its neighbours: a norm in front
    of weights that are nearly the same leaves next to nothing of their gradient."""
    places = torch.arange(result.numel(), dtype=torch.float64, device=result.device)
    return (result * places.mul(12.9898).sin().to(result.dtype).view(result.shape)).sum()


def judge_sizes(name: str) -> SizesVerdict:
    """Build a model and call it at several sizes, each beside eager: how often it compiles, whether
    every result is right, and what kept the sizes from being symbols."""
    model, first = build(name)
    untouched = copy.deepcopy(model)
    calls = _calls_of_sizes(name, model, first)
    compiling, wrong, causes = 0, [], []
    with torch.no_grad(), recorded() as journal:
        compiled = braze.compile(model, options={"suppress_errors": False})
        for place, (sizes, given) in enumerate(calls):
            before = len(journal.records())
            with _size_notes() as notes:
                accuracy = _compared(model, compiled, given, untouched)
            compiling += len(journal.records()) > before
            wrong += [] if accuracy.right else [sizes]
            causes += notes if place else []
    found = summarise("", journal, None)
    made = tuple(sizes for sizes, _ in calls)
    counted = tuple(dict.fromkeys(causes))
    return SizesVerdict(name, compiling, made, tuple(wrong), found.fallbacks, counted)


def _calls_of_sizes(
    name: str, model: nn.Module, first: Mapping[str, Any]
) -> list[tuple[tuple[int, int], dict[str, Any]]]:
    """(sizes, keyword arguments) of each call. A model that asserts the size of its image, which
    eager says, is called with other batches only."""
    if "input_ids" in first:
        return [(sizes, _tokens(model, *sizes)) for sizes in _TEXT_SIZES]
    ((key, image),) = first.items()
    sides = image.shape[2:]
    try:
        _call(model, {key: torch.rand(1, 3, *(side + _IMAGE_SIZES[1][1] for side in sides))})
        made = _IMAGE_SIZES
    except (RuntimeError, ValueError, AssertionError):
        made = tuple((batch, 0) for batch, _ in _IMAGE_SIZES)
    return [(s, {key: torch.rand(s[0], 3, *(side + s[1] for side in sides))}) for s in made]


def _tokens(model: nn.Module, batch: int, length: int) -> dict[str, Any]:
    tokens = torch.randint(3, 100, (batch, length))
    given = {"input_ids": tokens, "attention_mask": torch.ones_like(tokens)}
    if "decoder_input_ids" in inspect.signature(model.forward).parameters:
        given["decoder_input_ids"] = tokens[:, : length // 2]
    return given


@contextmanager
def _size_notes() -> Iterator[list[str]]:
    """What the logs say meanwhile of sizes that became numbers and of guards that failed."""
    notes: list[str] = []
    handler = logging.Handler()
    handler.emit = lambda record: notes.append(record.getMessage())  # type: ignore[method-assign]
    loggers = [logging.getLogger(f"braze.{name}") for name in ("dynamic", "recompiles")]
    levels = [logger.level for logger in loggers]
    for logger in loggers:
        logger.addHandler(handler)
        logger.setLevel(logging.INFO)
    try:
        yield notes
    finally:
        for logger, level in zip(loggers, levels):
            logger.removeHandler(handler)
            logger.setLevel(level)
    notes[:] = [note for note in notes if " now)" not in note]  # a size that became a symbol


def _call(model: Any, given: Mapping[str, Any]) -> list[torch.Tensor]:
    torch.manual_seed(1)
    named = {key: value for key, value in given.items() if key}
    unnamed = [given[""]] if "" in given else []
    return [tensor.clone() for tensor in tensors_in(model(*unnamed, **named))]


def _widened(value: torch.Tensor) -> torch.Tensor:
    return value.double() if value.is_floating_point() else value


def main(arguments: Sequence[str] | None = None) -> int:
    """Judge models and print a line each; 1 if one is wrong, breaks or compiles unexpectedly, or
    raises."""
    options = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else "")
    options.add_argument("names", nargs="*", help="models (default: all)")
    options.add_argument("--sizes", action="store_true", help="call each at several sizes")
    options.add_argument("--gradients", action="store_true", help="compare gradients, too")
    options.add_argument("--train", action="store_true", help="in training mode, gradients too")
    options.add_argument("--device", default="cpu", help="where the models are")
    options.add_argument("--mode", help="that they are compiled in; then each is called four times")
    options.add_argument("--jobs", type=int, default=1, help="processes")
    chosen = options.parse_args(arguments)
    of_calls = functools.partial(
        _report,
        device=chosen.device,
        mode=chosen.mode,
        gradients=chosen.gradients,
        trains=chosen.train,
    )
    report: Callable[[str], bool] = _report_sizes if chosen.sizes else of_calls
    without = NO_TRAINING if chosen.train else NO_GRADIENTS if chosen.gradients else ()
    names = chosen.names or [name for name in ALL if name not in without]
    if chosen.jobs == 1:
        return int(len(names) != sum(map(report, names)))
    context = multiprocessing.get_context("spawn")
    with ProcessPoolExecutor(chosen.jobs, context) as processes:
        return int(len(names) != sum(processes.map(report, names)))


def _report(name: str, device: str, mode: str | None, gradients: bool, trains: bool) -> bool:
    warnings.filterwarnings("ignore")
    torch.backends.cudnn.allow_tf32 = False
    calls = 1 if device == "cpu" and mode is None else 4
    try:
        found = judge(name, device, mode, calls, gradients, trains=trains)
    except Exception as error:
        print(f"WRONG {name:32} {type(error).__name__}: {str(error).splitlines()[:1]}", flush=True)
        return False
    expected = found.graphs == 1 or name in BREAKS or (trains and name in BREAKS_IN_TRAINING)
    right = found.accuracy.right and expected and not found.fallbacks
    print(
        f"{'right' if right else 'WRONG'} {name:32} graphs {found.graphs} breaks "
        f"{found.breaks} error {found.accuracy.largest_error:.1e} {found.fallbacks or ''}",
        flush=True,
    )
    return right


def _report_sizes(name: str) -> bool:
    warnings.filterwarnings("ignore")
    try:
        found = judge_sizes(name)
    except Exception as error:
        print(f"WRONG {name:32} {type(error).__name__}: {str(error).splitlines()[0][:120]}")
        return False
    settled = found.compiling <= 1 + VARYING
    right = not found.wrong and not found.fallbacks and (settled or name in COMPILES_AT_EACH)
    print(
        f"{'right' if right else 'WRONG'} {name:32} {found.compiling} of {len(found.sizes)} calls "
        f"compile; wrong at {found.wrong or 'none'} {found.fallbacks or ''}",
        *(f"    {line}" for cause in found.causes if not settled for line in cause.split("\n")),
        sep="\n",
        flush=True,
    )
    return right


if __name__ == "__main__":
    sys.exit(main())
