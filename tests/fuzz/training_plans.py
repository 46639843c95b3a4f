"""Random whole training steps, as data: models, optimizers, and what stands around a backward."""

from __future__ import annotations

import random
from dataclasses import dataclass
from typing import Any, final

LAYERS = ("shared", "tied", "linear", "norm", "tanh", "block")
OPTIMIZERS = (
    *("SGD", "Adam", "AdamW", "NAdam", "RAdam", "Adagrad"),
    *("Adadelta", "Adamax", "RMSprop", "Rprop", "ASGD"),
)
_FUSED = ("Adam", "SGD", "AdamW", "Adagrad")
_BACKENDS = ("braze", "aot_eager", "aot_eager")  # the kernels of a step take most of the time


@final
@dataclass(frozen=True, slots=True)
class TrainingPlan:
    """One model and its step, which follow from a seed.

    layers: kinds of `LAYERS`. is_frozen: its first parameter gets no gradient. groups: of the
    optimizer's parameters. is_scaled: by a GradScaler, which leaves steps out. clips: "norm",
    "max", "value" or "". averages: a moving average of the parameters. checkpoint: "reentrant",
    "plain" or "", of the layer `checkpoint_at`. penalty: on the norm of the input's gradient.
    hooks: a hook on the result. batches: accumulated. schedule: "step", "cosine" or "".
    to_none: what zero_grad does. writes: in place, to an activation. backwards: from one history.
    """

    seed: int
    backend: str
    width: int
    layers: tuple[str, ...]
    is_frozen: bool
    groups: int
    optimizer: str
    options: tuple[tuple[str, Any], ...]
    is_scaled: bool
    clips: str
    averages: bool
    checkpoint: str
    checkpoint_at: int
    penalty: bool
    hooks: bool
    batches: int
    schedule: str
    to_none: bool
    writes: bool
    backwards: int


def plan_training(seed: int) -> TrainingPlan:
    """The plan of a seed."""
    draws = random.Random(seed)
    optimizer = draws.choice(OPTIMIZERS)
    layers = tuple(draws.choice(LAYERS) for _ in range(draws.randint(1, 4)))
    return TrainingPlan(
        seed=seed,
        backend=draws.choice(_BACKENDS),
        width=draws.choice((2, 3, 5)),
        layers=layers,
        is_frozen=draws.random() < 0.2,
        groups=draws.choice((1, 2, 2)),
        optimizer=optimizer,
        options=tuple(_options(draws, optimizer).items()),
        is_scaled=draws.random() < 0.5,
        clips=draws.choice(("", "norm", "max", "value")),
        averages=draws.random() < 0.4,
        checkpoint=draws.choice(("", "reentrant", "plain")),
        checkpoint_at=draws.randrange(min(len(layers), 2)),
        penalty=draws.random() < 0.25,
        hooks=draws.random() < 0.25,
        batches=draws.choice((1, 1, 2)),
        schedule=draws.choice(("", "step", "cosine")),
        to_none=draws.random() < 0.5,
        writes=draws.random() < 0.3,
        backwards=2 if draws.random() < 0.2 else 1,
    )


def _options(draws: random.Random, optimizer: str) -> dict[str, Any]:
    made: dict[str, Any] = {"foreach": draws.choice((True, False, None))}
    if optimizer in _FUSED and draws.random() < 0.3:
        made = {"fused": True}
    if optimizer in ("SGD", "RMSprop") and draws.random() < 0.6:
        made["momentum"] = 0.9
    if optimizer == "SGD" and "momentum" in made and draws.random() < 0.4:
        made["nesterov"] = True
    if optimizer in ("Adam", "AdamW") and draws.random() < 0.3:
        made["amsgrad"] = True
    if optimizer != "Rprop" and draws.random() < 0.4:
        made["weight_decay"] = 0.01
    if optimizer != "ASGD" and draws.random() < 0.2:
        made["maximize"] = True
    return made
