"""The cases of `benchmarks.models_gpu`: models of common size, and what of them is called."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, TypeAlias, final

import torch
from torch import nn
from torch.nn import functional

from benchmarks.models import SEED
from benchmarks.offline import import_library

# The model, what makes new arguments of a call, and a loss of (output, arguments).
Built: TypeAlias = tuple[nn.Module, Callable[[], dict[str, Any]], Callable[[Any, Any], Any]]
# (compiled, model, arguments, loss) -> what is timed.
MakeCall: TypeAlias = Callable[[Any, nn.Module, Any, Any], Callable[[], object]]


@final
@dataclass(frozen=True, slots=True, eq=False)
class GpuCase:
    """build: makes model, inputs and loss; call: what is timed. function: (model, what makes
    arguments, loss) -> what is compiled, and called without arguments; None: the model is."""

    name: str
    build: Callable[[], Built]
    call: MakeCall
    function: Callable[[nn.Module, Any, Any], Callable[[], object]] | None = None

    def compiled_call(
        self, compile_one: Callable[[Any], Any], own: nn.Module, make: Any, loss: Any
    ) -> Callable[[], object]:
        """What is timed, by what compiles."""
        if self.function is None:
            return self.call(compile_one(own), own, make, loss)
        function: Callable[[], object] = compile_one(self.function(own, make, loss))
        return function


# --- what is called ------------------------------------------------------------------------------


def infer(compiled: Any, model: nn.Module, make: Any, loss: Any) -> Callable[[], object]:
    model.eval()
    given = make()

    def call() -> object:
        with torch.no_grad():
            return compiled(**given)

    return call


def _tutorial(compiled: Any, model: nn.Module, make: Any, loss: Any) -> Callable[[], object]:
    """Train mode, gradients on, no backward, a new input each call; the last result is kept."""
    model.train()
    kept: list[Any] = [None]

    def call() -> object:
        kept[0] = compiled(**make())
        return kept[0]

    return call


def train(compiled: Any, model: nn.Module, make: Any, loss: Any) -> Callable[[], object]:
    model.train()
    given = make()

    def call() -> object:
        for parameter in model.parameters():
            parameter.grad = None
        value = loss(compiled(**given), given)
        value.backward()
        return value.detach()

    return call


def _adam(compiled: Any, model: nn.Module, make: Any, loss: Any) -> Callable[[], object]:
    """The whole step; the model is what is compiled."""
    optimizer = torch.optim.Adam(model.parameters(), lr=1e-4)
    backward = train(compiled, model, make, loss)

    def call() -> object:
        value = backward()
        optimizer.step()
        return value

    return call


def _whole_step(own: nn.Module, make: Any, loss: Any) -> Callable[[], object]:
    """Forward, backward and optimizer as one function, which is what is compiled."""
    own.train()
    optimizer = torch.optim.Adam(own.parameters(), lr=1e-4, capturable=True)
    given = make()

    def step() -> object:
        optimizer.zero_grad()
        value = loss(own(**given), given)
        value.backward()
        optimizer.step()
        return value.detach()

    return step


# --- models --------------------------------------------------------------------------------------


def _vision(name: str, batch: int, side: int, dtype: torch.dtype) -> Callable[[], Built]:
    def build() -> Built:
        torch.manual_seed(SEED)
        model = getattr(import_library("torchvision"), name)(weights=None).to("cuda", dtype)
        targets = torch.arange(batch, device="cuda")

        def make() -> dict[str, Any]:
            return {_INPUT[name]: torch.randn(batch, 3, side, side, device="cuda", dtype=dtype)}

        return model, make, lambda out, _: functional.cross_entropy(out.float(), targets)

    return build


_INPUT = {"densenet121": "x", "resnet50": "x", "vit_b_16": "x"}


def _language(
    kind: str, config: dict[str, Any], batch: int, length: int, **fixed: Any
) -> Callable[[], Built]:
    def build() -> Built:
        library = import_library("transformers")
        torch.manual_seed(SEED)
        made = getattr(library, f"{kind}Config")(**config)
        head = "BertForMaskedLM" if kind == "Bert" else _HEADS[kind]
        model = getattr(library, head)(made).to("cuda", torch.bfloat16)

        def make() -> dict[str, Any]:
            tokens = torch.randint(0, made.vocab_size, (batch, length), device="cuda")
            return {"input_ids": tokens, **fixed}

        def loss(out: Any, given: Any) -> Any:
            return functional.cross_entropy(out.logits.flatten(0, 1), given["input_ids"].flatten())

        return model, make, loss

    return build


_HEADS = {"GPT2": "GPT2LMHeadModel", "Llama": "LlamaForCausalLM"}
_LLAMA = {
    "hidden_size": 1024,
    "num_hidden_layers": 12,
    "num_attention_heads": 16,
    "num_key_value_heads": 8,
    "intermediate_size": 2816,
    "vocab_size": 32000,
}
_densenet = _vision("densenet121", 16, 128, torch.float32)
_models = {
    "resnet50 b32": _vision("resnet50", 32, 224, torch.float32),
    "vit_b_16 bf16 b32": _vision("vit_b_16", 32, 224, torch.bfloat16),
    "bert-base bf16 16x512": _language("Bert", {}, 16, 512),
    "gpt2 bf16 8x512": _language("GPT2", {}, 8, 512, use_cache=False),
    "llama bf16 4x1024": _language("Llama", _LLAMA, 4, 1024, use_cache=False),
}

# What compiles longest last.
CASES: tuple[GpuCase, ...] = (
    *(GpuCase(f"{name} inference", build, infer) for name, build in _models.items()),
    GpuCase("densenet121 b16 inference", _densenet, infer),
    *(GpuCase(f"{name} training", build, train) for name, build in _models.items()),
    GpuCase("densenet121 b16 tutorial", _densenet, _tutorial),
    GpuCase("densenet121 b16 training", _densenet, train),
    GpuCase("densenet121 b16 step, Adam", _densenet, _adam),
    GpuCase("densenet121 b16 whole step, Adam", _densenet, _adam, _whole_step),
)
