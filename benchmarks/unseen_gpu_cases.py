"""The cases of `benchmarks.models_gpu --suite unseen`: models that nobody looks at while tuning.

Drawn from what users of transformers, diffusers and torchvision run, and from papers' layers that
people write by hand. A figure of this suite says where to look for a *kind* of slowness; it is
never the program on which a change is tried.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional

from benchmarks.models import SEED
from benchmarks.models_gpu_cases import Built, GpuCase, infer, train
from benchmarks.offline import import_library

_BF16 = torch.bfloat16
_Make = Callable[[], dict[str, Any]]


def _first(output: Any) -> Tensor:
    """The first tensor of a model's output."""
    if isinstance(output, Tensor):
        return output
    values = output.values() if isinstance(output, dict) else output
    return next(_first(value) for value in values if value is not None)


def _square(output: Any, _: Any) -> Tensor:
    return _first(output).float().square().mean()


def _likelihood(output: Any, given: Any) -> Tensor:
    tokens = given.get("decoder_input_ids", given.get("input_ids"))
    return functional.cross_entropy(output.logits.flatten(0, 1).float(), tokens.flatten())


def _built(make_model: Callable[[], tuple[nn.Module, _Make]], dtype: torch.dtype, loss: Any) -> Any:
    def build() -> Built:
        torch.manual_seed(SEED)
        with torch.device("cuda"):  # its random weights are drawn there
            model, make = make_model()
        return model.to("cuda", dtype), make, loss

    return build


def _images(batch: int, side: int, dtype: torch.dtype, name: str = "pixel_values") -> _Make:
    return lambda: {name: torch.randn(batch, 3, side, side, device="cuda", dtype=dtype)}


def _tokens(batch: int, length: int, vocabulary: int, **fixed: Any) -> _Make:
    def make() -> dict[str, Any]:
        tokens = torch.randint(0, vocabulary, (batch, length), device="cuda")
        return {"input_ids": tokens, **fixed}

    return make


# --- transformers --------------------------------------------------------------------------------


def _text(head: str, config: str, batch: int, length: int, **settings: Any) -> Callable[[], Built]:
    """A language model of transformers on random tokens, bfloat16."""
    no_cache = {} if "Masked" in head else {"use_cache": False}

    def make_model() -> tuple[nn.Module, _Make]:
        library = import_library("transformers")
        made = getattr(library, config)(**settings)
        return getattr(library, head)(made), _tokens(batch, length, made.vocab_size, **no_cache)

    loss = _likelihood if "LM" in head else _square
    return _built(make_model, _BF16, loss)  # type: ignore[no-any-return]


def _picture(
    head: str, config: str, batch: int, side: int, dtype: torch.dtype = _BF16, **settings: Any
) -> Callable[[], Built]:
    """A vision model of transformers on random pixels."""

    def make_model() -> tuple[nn.Module, _Make]:
        library = import_library("transformers")
        made = getattr(library, config)(**settings)
        return getattr(library, head)(made), _images(batch, side, dtype)

    return _built(make_model, dtype, _square)  # type: ignore[no-any-return]


def _whisper() -> tuple[nn.Module, _Make]:
    library = import_library("transformers")
    sizes = {f"{side}_{name}": n for side in ("encoder", "decoder") for name, n in _WHISPER.items()}
    config = library.WhisperConfig(d_model=512, **sizes)

    def make() -> dict[str, Any]:
        tokens = torch.randint(0, config.vocab_size, (4, 64), device="cuda")
        sound = torch.randn(4, 80, 3000, device="cuda", dtype=_BF16)
        return {"input_features": sound, "decoder_input_ids": tokens, "use_cache": False}

    return library.WhisperForConditionalGeneration(config), make


_WHISPER = {"layers": 6, "attention_heads": 8, "ffn_dim": 2048}


def _sound() -> tuple[nn.Module, _Make]:
    library = import_library("transformers")
    model = library.Wav2Vec2Model(library.Wav2Vec2Config(layerdrop=0.0, mask_time_prob=0.0))
    return model, lambda: {"input_values": torch.randn(4, 32000, device="cuda", dtype=_BF16)}


def _translate() -> tuple[nn.Module, _Make]:
    library = import_library("transformers")
    model = library.T5ForConditionalGeneration(library.T5Config(decoder_start_token_id=0))

    def make() -> dict[str, Any]:
        tokens = torch.randint(0, 32128, (8, 256), device="cuda")
        return {"input_ids": tokens, "decoder_input_ids": tokens[:, :64], "use_cache": False}

    return model, make


def _decode(compiled: Any, model: nn.Module, make: Any, _: Any) -> Callable[[], object]:
    """One token behind 512 others in a static cache, again and again at the same place."""
    library = import_library("transformers")
    model.eval()
    cache = library.StaticCache(config=model.config, max_cache_len=1024)
    prompt = torch.randint(0, 32000, (1, 512), device="cuda")
    place = torch.tensor([512], device="cuda")
    with torch.no_grad():
        model(
            input_ids=prompt, past_key_values=cache, cache_position=torch.arange(512, device="cuda")
        )
    token = prompt[:, :1]

    def call() -> object:
        with torch.no_grad():
            return compiled(
                input_ids=token,
                past_key_values=cache,
                cache_position=place,
                position_ids=place[None],
            ).logits

    return call


# --- diffusers and torchvision -------------------------------------------------------------------


def _denoiser() -> tuple[nn.Module, _Make]:
    library = import_library("diffusers")
    widths = (160, 320, 640)
    model = library.UNet2DConditionModel(
        sample_size=32,
        block_out_channels=widths,
        cross_attention_dim=512,
        down_block_types=("CrossAttnDownBlock2D", "CrossAttnDownBlock2D", "DownBlock2D"),
        up_block_types=("UpBlock2D", "CrossAttnUpBlock2D", "CrossAttnUpBlock2D"),
    )

    def make() -> dict[str, Any]:
        return {
            "sample": torch.randn(2, 4, 32, 32, device="cuda", dtype=_BF16),
            "timestep": torch.tensor(500, device="cuda"),
            "encoder_hidden_states": torch.randn(2, 77, 512, device="cuda", dtype=_BF16),
            "return_dict": False,
        }

    return model, make


def _decoder_of_images() -> tuple[nn.Module, _Make]:
    library = import_library("diffusers")
    whole = library.AutoencoderKL(
        block_out_channels=(64, 128, 256, 256),
        down_block_types=("DownEncoderBlock2D",) * 4,
        up_block_types=("UpDecoderBlock2D",) * 4,
        layers_per_block=2,
    )
    return whole.decoder, lambda: {"sample": torch.randn(1, 4, 64, 64, device="cuda", dtype=_BF16)}


def _vision(
    name: str, batch: int, side: int, dtype: torch.dtype = torch.float32, argument: str = "x"
) -> Callable[[], Built]:
    def make_model() -> tuple[nn.Module, _Make]:
        models = import_library("torchvision")
        found = models
        for part in name.split("."):
            found = getattr(found, part)
        is_dense = name.startswith("segmentation")
        extra = {"weights_backbone": None} if is_dense else {}
        return found(weights=None, **extra), _images(batch, side, dtype, argument)

    return _built(make_model, dtype, _square)  # type: ignore[no-any-return]


def _under_autocast(call: Any) -> Any:
    """Training under autocast to bfloat16, the model's weights in float32."""

    def make_call(compiled: Any, model: nn.Module, make: Any, loss: Any) -> Callable[[], object]:
        def forward(**given: Any) -> object:
            with torch.autocast("cuda", _BF16):
                return compiled(**given)

        return call(forward, model, make, loss)  # type: ignore[no-any-return]

    return make_call


# --- written by hand -----------------------------------------------------------------------------


class _Tagger(nn.Module):
    """Words to labels by a bidirectional LSTM."""

    def __init__(self) -> None:
        super().__init__()
        self.words = nn.Embedding(30000, 256)
        self.recurrent = nn.LSTM(256, 256, 2, batch_first=True, bidirectional=True)
        self.labels = nn.Linear(512, 40)

    def forward(self, x: Tensor) -> Tensor:
        return self.labels(self.recurrent(self.words(x))[0])  # type: ignore[no-any-return]


class _Recommender(nn.Module):
    """Bags of categories and numbers to one click rate, by products of pairs."""

    def __init__(self) -> None:
        super().__init__()
        self.bags = nn.ModuleList(nn.EmbeddingBag(20000, 64, mode="sum") for _ in range(20))
        self.numbers = nn.Sequential(nn.Linear(13, 256), nn.ReLU(), nn.Linear(256, 64), nn.ReLU())
        self.top = nn.Sequential(nn.Linear(64 + 210, 256), nn.ReLU(), nn.Linear(256, 1))
        self.register_buffer("pairs", torch.tril_indices(21, 21, -1), persistent=False)

    def forward(self, x: Tensor, categories: Tensor) -> Tensor:
        parts = [self.numbers(x), *(bag(c) for bag, c in zip(self.bags, categories, strict=True))]
        stacked = torch.stack(parts, 1)
        products = stacked @ stacked.mT
        return self.top(torch.cat((parts[0], products[:, self.pairs[0], self.pairs[1]]), 1))  # type: ignore[no-any-return]


class _GraphAttention(nn.Module):
    """Two layers of attention over the edges of a graph (GAT)."""

    def __init__(self, heads: int = 8, width: int = 32) -> None:
        super().__init__()
        self.heads, self.width = heads, width
        self.linear = nn.ModuleList(nn.Linear(heads * width, heads * width) for _ in range(2))
        self.score = nn.ParameterList(torch.randn(2, heads, width) / 8 for _ in range(2))

    def forward(self, x: Tensor, source: Tensor, target: Tensor) -> Tensor:
        count = x.shape[0]
        for linear, score in zip(self.linear, self.score, strict=True):
            value = linear(x).view(count, self.heads, self.width)
            left, right = (value * score[0]).sum(-1), (value * score[1]).sum(-1)
            raw = functional.leaky_relu(left[source] + right[target], 0.2)
            index = target[:, None].expand_as(raw)
            most = torch.full_like(left, -math.inf).scatter_reduce(0, index, raw, "amax")
            power = (raw - most[target]).exp()
            total = torch.zeros_like(left).index_add(0, target, power)
            message = value[source] * (power / total[target])[..., None]
            x = functional.elu(torch.zeros_like(value).index_add(0, target, message).flatten(1))
        return x


class _HashGrid(nn.Module):
    """Points to densities by hashed grids of eight resolutions (instant NGP)."""

    def __init__(self) -> None:
        super().__init__()
        self.tables = nn.Parameter(torch.randn(8, 2**16, 2) * 0.01)
        self.net = nn.Sequential(nn.Linear(16, 64), nn.ReLU(), nn.Linear(64, 4))
        corners = torch.cartesian_prod(*[torch.tensor([0, 1])] * 3)
        self.register_buffer("corners", corners, persistent=False)
        self.register_buffer("primes", torch.tensor([1, 2654435761, 805459861]), persistent=False)

    def forward(self, x: Tensor) -> Tensor:
        found = []
        for level in range(8):
            scaled = x * (16 * 1.5**level)
            low = scaled.floor()
            part = scaled - low
            corner = low.long()[:, None] + self.corners
            hashed = corner * self.primes
            index = (hashed[..., 0] ^ hashed[..., 1] ^ hashed[..., 2]) % 2**16
            near = torch.where(self.corners.bool(), part[:, None], 1 - part[:, None]).prod(-1)
            found.append((self.tables[level][index] * near[..., None]).sum(1))
        return self.net(torch.cat(found, -1))  # type: ignore[no-any-return]


class _ConformerBlock(nn.Module):
    def __init__(self, width: int) -> None:
        super().__init__()
        self.norms = nn.ModuleList(nn.LayerNorm(width) for _ in range(5))
        self.feeds = nn.ModuleList(
            nn.Sequential(nn.Linear(width, 4 * width), nn.SiLU(), nn.Linear(4 * width, width))
            for _ in range(2)
        )
        self.attention = nn.MultiheadAttention(width, 4, batch_first=True)
        self.before = nn.Conv1d(width, 2 * width, 1)
        self.depthwise = nn.Conv1d(width, width, 31, padding=15, groups=width)
        self.batch_norm = nn.BatchNorm1d(width)
        self.behind = nn.Conv1d(width, width, 1)

    def forward(self, x: Tensor) -> Tensor:
        x = x + 0.5 * self.feeds[0](self.norms[0](x))
        y = self.norms[1](x)
        x = x + self.attention(y, y, y, need_weights=False)[0]
        y = functional.glu(self.before(self.norms[2](x).mT), 1)
        x = x + self.behind(functional.silu(self.batch_norm(self.depthwise(y)))).mT
        x = x + 0.5 * self.feeds[1](self.norms[3](x))
        return self.norms[4](x)  # type: ignore[no-any-return]


class _Conformer(nn.Sequential):
    def __init__(self) -> None:
        super().__init__(*(_ConformerBlock(256) for _ in range(8)))

    def forward(self, x: Tensor) -> Tensor:
        return super().forward(x)  # type: ignore[no-any-return]


class _Waves(nn.Module):
    """Samples of sound by gated, dilated convolutions (WaveNet)."""

    def __init__(self) -> None:
        super().__init__()
        self.first = nn.Conv1d(1, 64, 1)
        self.gates = nn.ModuleList(
            nn.Conv1d(64, 128, 3, dilation=2**n, padding=2**n) for n in range(8)
        )
        self.skips = nn.ModuleList(nn.Conv1d(64, 128, 1) for _ in range(8))
        self.last = nn.Conv1d(64, 256, 1)

    def forward(self, x: Tensor) -> Tensor:
        x, total = self.first(x), 0
        for gate, skip in zip(self.gates, self.skips, strict=True):
            a, b = gate(x).chunk(2, 1)
            residual, kept = skip(torch.tanh(a) * torch.sigmoid(b)).chunk(2, 1)
            x, total = x + residual, total + kept
        return self.last(functional.relu(total))  # type: ignore[arg-type, no-any-return]


def _own(
    model: Callable[[], nn.Module], dtype: torch.dtype = torch.float32, **made: Callable[[], Tensor]
) -> Callable[[], Built]:
    def make_model() -> tuple[nn.Module, _Make]:
        return model(), lambda: {name: value().to("cuda") for name, value in made.items()}

    return _built(make_model, dtype, _square)  # type: ignore[no-any-return]


# --- the suite -----------------------------------------------------------------------------------

_SMALL = {
    "hidden_size": 768,
    "intermediate_size": 2048,
    "num_hidden_layers": 8,
    "num_attention_heads": 12,
    "num_key_value_heads": 4,
    "vocab_size": 32000,
}
_EXPERTS = {**_SMALL, "num_hidden_layers": 4, "num_experts_per_tok": 2, "head_dim": 64}
_WINDOW = {"head_dim": 64, "sliding_window": 256}

_models: dict[str, Callable[[], Built]] = {
    "gemma3 4x512": _text("Gemma3ForCausalLM", "Gemma3TextConfig", 4, 512, **_SMALL, **_WINDOW),
    "qwen3 moe 2x512": _text(
        "Qwen3MoeForCausalLM",
        "Qwen3MoeConfig",
        *(2, 512),
        **{**_EXPERTS, "num_experts": 8, "moe_intermediate_size": 768},
    ),
    "gpt-oss 2x256": _text(
        "GptOssForCausalLM",
        "GptOssConfig",
        *(2, 256),
        **{**_EXPERTS, "num_local_experts": 8, "sliding_window": 128},
    ),
    "phi3 4x512": _text(
        "Phi3ForCausalLM", "Phi3Config", 4, 512, **_SMALL, pad_token_id=0, eos_token_id=1
    ),
    "bloom 4x256": _text(
        "BloomForCausalLM",
        "BloomConfig",
        4,
        256,
        hidden_size=768,
        n_layer=8,
        n_head=12,
        vocab_size=32000,
    ),
    "modernbert 16x256": _text(
        "ModernBertForMaskedLM",
        "ModernBertConfig",
        *(16, 256),
        num_hidden_layers=12,
        attn_implementation="sdpa",
        reference_compile=False,
    ),
    "deberta 8x256": _text(
        "DebertaV2Model",
        "DebertaV2Config",
        *(8, 256),
        hidden_size=768,
        num_attention_heads=12,
        intermediate_size=3072,
        num_hidden_layers=6,
        relative_attention=True,
        pos_att_type=["p2c", "c2p"],
    ),
    "segformer 4x512": _picture(
        "SegformerForSemanticSegmentation", "SegformerConfig", 4, 512, depths=[2, 2, 2, 2]
    ),
    "convnextv2 16x224": _picture("ConvNextV2Model", "ConvNextV2Config", 16, 224),
    "dinov2 8x224": _picture(
        "Dinov2WithRegistersModel", "Dinov2WithRegistersConfig", 8, 224, num_hidden_layers=8
    ),
    "swinv2 8x256": _picture("Swinv2Model", "Swinv2Config", 8, 256, image_size=256),
    "mobilevitv2 8x256": _picture("MobileViTV2Model", "MobileViTV2Config", 8, 256),
    "whisper 4x3000": _built(_whisper, _BF16, _likelihood),
    "wav2vec2 4x32000": _built(_sound, _BF16, _square),
    "t5 8x256": _built(_translate, _BF16, _likelihood),
    "sd unet 2x32": _built(_denoiser, _BF16, _square),
    "vae decoder 64": _built(_decoder_of_images, _BF16, _square),
    "efficientnet v2 16x224": _vision("efficientnet_v2_s", 16, 224),
    "mobilenet v3 32x224": _vision("mobilenet_v3_large", 32, 224),
    "maxvit 4x224": _vision("maxvit_t", 4, 224),
    "deeplab 4x256": _vision("segmentation.deeplabv3_resnet50", 4, 256, argument="x"),
    "lstm tagger 32x64": _own(_Tagger, x=lambda: torch.randint(0, 30000, (32, 64))),
    "dlrm 2048": _own(
        _Recommender,
        x=lambda: torch.randn(2048, 13),
        categories=lambda: torch.randint(0, 20000, (20, 2048, 4)),
    ),
    "gat 10000": _own(
        _GraphAttention,
        x=lambda: torch.randn(10000, 256),
        source=lambda: torch.randint(0, 10000, (80000,)),
        target=lambda: torch.randint(0, 10000, (80000,)),
    ),
    "hash grid 65536": _own(_HashGrid, x=lambda: torch.rand(65536, 3)),
    "conformer 8x400": _own(_Conformer, _BF16, x=lambda: torch.randn(8, 400, 256, dtype=_BF16)),
    "wavenet 4x8000": _own(_Waves, x=lambda: torch.randn(4, 1, 8000)),
}
_TRAINED = (
    "lstm tagger 32x64",
    "dlrm 2048",
    "gat 10000",
    "hash grid 65536",
    "wavenet 4x8000",
    "conformer 8x400",
    "gemma3 4x512",
    "qwen3 moe 2x512",
    "modernbert 16x256",
    "convnextv2 16x224",
    "segformer 4x512",
    "whisper 4x3000",
)
_llama = _text("LlamaForCausalLM", "LlamaConfig", 1, 512, **_SMALL)

# What compiles longest last.
UNSEEN: tuple[GpuCase, ...] = (
    GpuCase("llama decode inference", _llama, _decode),
    *(GpuCase(f"{name} inference", build, infer) for name, build in _models.items()),
    *(GpuCase(f"{name} training", _models[name], train) for name in _TRAINED),
    GpuCase(
        "efficientnet v2 16x224 autocast training",
        _models["efficientnet v2 16x224"],
        _under_autocast(train),
    ),
)
