"""Programs around models as users of libraries write them, with random weights: generation,
training by a trainer of each library, adapters that are swapped, encoding of sentences.

Each flow is given `compile`, which returns what it is given or a compiled one, and returns tensors
and numbers. Its imports are its own: a library that is missing skips it.
"""

from __future__ import annotations

import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Any, TypeAlias

import pytest
import torch
from benchmarks import offline
from torch import nn
from torch.nn import functional as F
from torch.optim.swa_utils import AveragedModel, get_ema_multi_avg_fn
from torch.utils.data import DataLoader, Dataset, TensorDataset

Compile: TypeAlias = Callable[[Any], Any]
SETTINGS = {"max_new_tokens": 12, "pad_token_id": 0, "eos_token_id": None, "do_sample": False}
LENGTH = 8


def _library(name: str) -> Any:
    """A library, or a skip where it is missing or does not go with this PyTorch."""
    offline.prepare()
    return pytest.importorskip(name, exc_type=ImportError)


def _llama(layers: int = 2) -> Any:
    transformers = _library("transformers")
    config = transformers.LlamaConfig(
        vocab_size=128,
        hidden_size=32,
        intermediate_size=64,
        num_hidden_layers=layers,
        num_attention_heads=4,
        num_key_value_heads=2,
        max_position_embeddings=128,
    )
    return transformers.LlamaForCausalLM(config).eval()


def _prompts(*lengths: int, rows: int = 2) -> list[torch.Tensor]:
    return [torch.arange(3, 3 + n)[None].repeat(rows, 1) for n in lengths]


def _generating(**settings: Any) -> Callable[[Compile], Any]:
    def flow(compile: Compile) -> Any:
        model = _llama()
        model.forward = compile(model.forward)
        torch.manual_seed(1)
        return [model.generate(each, **{**SETTINGS, **settings}) for each in _prompts(6, 9)]

    return flow


def generate_assisted(compile: Compile) -> Any:
    """A smaller model proposes tokens."""
    model, assistant = _llama(), _llama(1)
    model.forward, assistant.forward = compile(model.forward), compile(assistant.forward)
    (prompt,) = _prompts(7, rows=1)
    return model.generate(prompt, assistant_model=assistant, **SETTINGS)


class _Texts(Dataset[dict[str, torch.Tensor]]):
    def __len__(self) -> int:
        return 24

    def __getitem__(self, index: int) -> dict[str, torch.Tensor]:
        ids = torch.randint(3, 128, (10,), generator=torch.Generator().manual_seed(index))
        return {"input_ids": ids, "labels": ids}


def train_by_trainer(compile: Compile) -> Any:
    """transformers' Trainer in bfloat16."""
    transformers, _ = _library("transformers"), _library("accelerate")
    model = _llama()
    with tempfile.TemporaryDirectory() as folder:
        arguments = transformers.TrainingArguments(
            output_dir=folder,
            max_steps=5,
            per_device_train_batch_size=4,
            bf16=True,
            use_cpu=True,
            report_to=[],
            save_strategy="no",
            logging_steps=1,
            disable_tqdm=True,
            learning_rate=1e-2,
        )
        trainer = transformers.Trainer(model=model, args=arguments, train_dataset=_Texts())
        model.forward = compile(model.forward)
        trainer.train()
    return [each["loss"] for each in trainer.state.log_history if "loss" in each]


def _classifier() -> nn.Sequential:
    return nn.Sequential(nn.Linear(6, 16), nn.GELU(), nn.Linear(16, 3))


def _points() -> DataLoader[Any]:
    return DataLoader(TensorDataset(torch.randn(32, 6), torch.randint(0, 3, (32,))), batch_size=8)


def train_by_accelerate(compile: Compile) -> Any:
    """Gradients of two batches are accumulated."""
    accelerator = _library("accelerate").Accelerator(cpu=True, gradient_accumulation_steps=2)
    model = _classifier()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    prepared, optimizer, batches = accelerator.prepare(compile(model), optimizer, _points())
    losses = []
    for x, y in batches:
        with accelerator.accumulate(prepared):
            loss = F.cross_entropy(prepared(x), y)
            accelerator.backward(loss)
            optimizer.step()
            optimizer.zero_grad()
            losses.append(loss.detach())
    return losses, list(model.state_dict().values())


def train_by_lightning(compile: Compile) -> Any:
    """A step of a LightningModule, whose network is compiled."""
    lightning = _library("pytorch_lightning")

    class Task(lightning.LightningModule):  # type: ignore[misc,name-defined]
        def __init__(self) -> None:
            super().__init__()
            self.network = _classifier()
            self.compiled = [compile(self.network)]
            self.losses: list[torch.Tensor] = []

        def training_step(self, batch: Any, number: int) -> torch.Tensor:
            x, y = batch
            loss = F.cross_entropy(self.compiled[0](x), y)
            self.losses.append(loss.detach())
            return loss

        def configure_optimizers(self) -> Any:
            return torch.optim.Adam(self.parameters(), lr=1e-2)

    task = Task()
    trainer = lightning.Trainer(
        max_epochs=2,
        accelerator="cpu",
        logger=False,
        enable_checkpointing=False,
        enable_progress_bar=False,
        enable_model_summary=False,
    )
    trainer.fit(task, _points())
    return task.losses, list(task.network.state_dict().values())


def train_with_average(compile: Compile) -> Any:
    """Images under autocast, an average of the weights, clipped gradients, a schedule."""
    model = nn.Sequential(
        *(nn.Conv2d(3, 8, 3), nn.BatchNorm2d(8), nn.ReLU(), nn.AdaptiveAvgPool2d(1)),
        *(nn.Flatten(), nn.Linear(8, 5)),
    )
    average = AveragedModel(model, multi_avg_fn=get_ema_multi_avg_fn(0.9), use_buffers=True)
    return _trained(compile, model, average, average.update_parameters)


def train_timm(compile: Compile) -> Any:
    """A network of timm's, and its own average."""
    timm = _library("timm")
    utils = _library("timm.utils")
    model = timm.create_model("resnet10t", num_classes=5, in_chans=3)
    average = utils.ModelEmaV3(model, decay=0.9)
    return _trained(compile, model, average, average.update)


def _trained(compile: Compile, model: Any, average: Any, update: Callable[[Any], Any]) -> Any:
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
    schedule = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, 10)
    compiled, losses = compile(model), []
    for _ in range(4):
        x, y = torch.randn(8, 3, 32, 32), torch.randint(0, 5, (8,))
        with torch.autocast("cpu", dtype=torch.bfloat16):
            loss = F.cross_entropy(compiled(x), y, label_smoothing=0.1)
        optimizer.zero_grad()
        loss.backward()
        nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        schedule.step()
        update(model)
        losses.append(loss.detach().float())
    x = torch.randn(4, 3, 32, 32)
    model.eval()
    average.eval()
    with torch.no_grad():
        return losses, [compiled(x).shape, average(x).shape]


def train_adapters(compile: Compile) -> Any:
    """peft: LoRA is trained, disabled, and merged into the weights."""
    peft = _library("peft")
    config = peft.LoraConfig(r=4, lora_alpha=8, target_modules=["q_proj", "v_proj"])
    model = peft.get_peft_model(_llama(), config).train()
    compiled, losses = compile(model), []
    trained = [each for each in model.parameters() if each.requires_grad]
    optimizer = torch.optim.AdamW(trained, lr=1e-2)
    for _ in range(4):
        ids = torch.randint(3, 128, (2, LENGTH))
        loss = compiled(input_ids=ids, labels=ids).loss
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
        losses.append(loss.detach())
    model.eval()
    ids = torch.randint(3, 128, (2, LENGTH))
    with torch.no_grad():
        logits = [compiled(input_ids=ids).logits]
        with model.disable_adapter():
            logits.append(compiled(input_ids=ids).logits)
        logits.append(compiled(input_ids=ids).logits)
        model.merge_adapter()
        logits.append(compiled(input_ids=ids).logits)
    return losses, logits


def swap_adapters(compile: Compile) -> Any:
    """diffusers: a pipeline's loop with one LoRA, another, the first again, and none."""
    diffusers, peft = _library("diffusers"), _library("peft")
    network = diffusers.UNet2DConditionModel(
        sample_size=8,
        layers_per_block=1,
        block_out_channels=(16, 32),
        down_block_types=("CrossAttnDownBlock2D", "DownBlock2D"),
        up_block_types=("UpBlock2D", "CrossAttnUpBlock2D"),
        cross_attention_dim=16,
        norm_num_groups=4,
        attention_head_dim=4,
    ).eval()
    for name in ("one", "other"):
        config = peft.LoraConfig(r=4, target_modules=["to_q", "to_v"], init_lora_weights=False)
        network.add_adapter(config, adapter_name=name)
    compiled, schedule = compile(network), diffusers.DDIMScheduler()
    schedule.set_timesteps(3)
    text, noise = torch.randn(2, 5, 16), torch.randn(1, 4, 8, 8)

    def image() -> torch.Tensor:
        x = noise
        for step in schedule.timesteps:
            made = compiled(torch.cat([x, x]), step, encoder_hidden_states=text).sample
            plain, guided = made.chunk(2)
            x = schedule.step(plain + 3 * (guided - plain), step, x).prev_sample
        return x

    images = []
    with torch.no_grad():
        for name in ("one", "other", "one"):
            network.set_adapter(name)
            images.append(image())
        network.disable_adapters()
        return [*images, image()]


def encode(compile: Compile) -> Any:
    """Sentences of several lengths, padded: the mean of what stands for their words."""
    transformers = _library("transformers")
    config = transformers.BertConfig(
        vocab_size=200,
        hidden_size=32,
        num_hidden_layers=2,
        num_attention_heads=4,
        intermediate_size=64,
    )
    model, made = compile(transformers.BertModel(config).eval()), []
    with torch.inference_mode():
        for rows, length in ((8, 5), (8, 9), (8, 14), (3, 20)):
            ids = torch.randint(3, 200, (rows, length))
            mask = (torch.arange(length) < torch.randint(2, length + 1, (rows, 1))).long()
            words = model(input_ids=ids, attention_mask=mask).last_hidden_state
            mean = (words * mask[..., None]).sum(1) / mask.sum(1, keepdim=True).clamp(min=1e-9)
            made.append(F.normalize(mean, dim=-1).clone())
    return made


def encode_sentences(compile: Compile) -> Any:
    """sentence-transformers: `encode` sorts sentences by length, and batches them."""
    transformers, _ = _library("transformers"), _library("sentence_transformers")
    models = pytest.importorskip("sentence_transformers.models")
    from sentence_transformers import SentenceTransformer

    words = "[PAD] [UNK] [CLS] [SEP] [MASK] the cat sat on a mat and then it slept".split()
    config = transformers.BertConfig(
        vocab_size=len(words),
        hidden_size=32,
        num_hidden_layers=2,
        num_attention_heads=4,
        intermediate_size=64,
    )
    with tempfile.TemporaryDirectory() as folder:
        (Path(folder) / "vocab.txt").write_text("\n".join(words))
        tokenizer = transformers.BertTokenizer(str(Path(folder) / "vocab.txt"))
        tokenizer.save_pretrained(folder)
        transformers.BertModel(config).save_pretrained(folder)
        word = models.Transformer(folder)
        pooling = models.Pooling(32)
    model = SentenceTransformer(modules=[word, pooling, models.Normalize()], device="cpu").eval()
    word.auto_model.forward = compile(word.auto_model.forward)
    texts = [" ".join(words[5 : 5 + n % 9 + 2]) for n in range(20)]
    return [model.encode(texts, batch_size=4, convert_to_tensor=True).clone()]


FLOWS: dict[str, Callable[[Compile], Any]] = {
    "generate": _generating(),
    "generate with a static cache": _generating(cache_implementation="static"),
    "generate by beams": _generating(num_beams=3),
    "generate at random": _generating(do_sample=True, top_k=10),
    **{
        flow.__name__.replace("_", " "): flow
        for flow in (
            generate_assisted,
            train_by_trainer,
            train_by_accelerate,
            train_by_lightning,
            train_with_average,
            train_timm,
            train_adapters,
            swap_adapters,
            encode,
            encode_sentences,
        )
    },
}
