"""Import the model libraries without touching the network, and beside a CPU build of torch."""

from __future__ import annotations

import importlib
import os
from types import ModuleType

import torch

# torchvision's wheel on PyPI is built for CUDA: beside a CPU torch its own library of operators
# does not load, and the import stops at the first operator that it looks up. Declared here, the
# operators exist without a kernel, and no model of ours calls them.
_TORCHVISION_SCHEMAS = (
    ("torchvision::nms", "(Tensor dets, Tensor scores, float iou_threshold) -> Tensor"),
    ("torchvision::qnms", "(Tensor dets, Tensor scores, float iou_threshold) -> Tensor"),
)


def _forbid_downloads() -> None:
    os.environ["HF_HUB_OFFLINE"] = "1"
    os.environ["TRANSFORMERS_OFFLINE"] = "1"
    os.environ["DIFFUSERS_OFFLINE"] = "1"


def _declare_torchvision_operators() -> None:
    if torch.version.cuda is not None:
        return
    for name, schema in _TORCHVISION_SCHEMAS:
        namespace, op = name.split("::")
        if not hasattr(getattr(torch.ops, namespace), op):
            torch.library.define(name, schema)


_MODULES = {
    "torchvision": "torchvision.models",
    "transformers": "transformers",
    "diffusers": "diffusers",
}


def prepare() -> None:
    """What libraries that import torchvision where they find it need before they are imported."""
    _forbid_downloads()
    _declare_torchvision_operators()


def import_library(name: str) -> ModuleType:
    """torchvision's models, transformers or diffusers. The latter two import torchvision where
    they find it, so its operators are declared first for all three."""
    prepare()
    return importlib.import_module(_MODULES[name])
