# SPDX-License-Identifier: Apache-2.0
"""Writes the golden files: stored inputs, and what the functions and modules of transformers compute from them.

Usage: generate.sh [OUTPUT_DIR]   (it prepares the environment and calls this file)

Nothing is recomputed here. Every output is a return value, a captured argument or a cache entry of transformers code
running in float32. The same code then runs with every float32 in it read as float64 (`in_double`), which tells how far
the float32 result is from the exact one: the file stores that distance in `origin`, and a case where it exceeds half of
its bound is refused. cases.py holds the cases; README.md describes the format.
"""

import json
import math
import os
import sys
import types
from contextlib import contextmanager
from pathlib import Path
from unittest import mock

ENVIRONMENT = {"ATEN_CPU_CAPABILITY": "default", "MKL_CBWR": "COMPATIBLE", "OMP_NUM_THREADS": "1"}
SIZE_LIMIT = 3_000_000  # bytes, all files together

if any(os.environ.get(name) != value for name, value in ENVIRONMENT.items()):
    sys.exit("generate.py: run generate.sh, which sets " + " ".join(f"{n}={v}" for n, v in ENVIRONMENT.items()))

import numpy  # noqa: E402  (these libraries read the environment when they load)
import torch  # noqa: E402
import transformers  # noqa: E402

from cases import all_cases  # noqa: E402


@contextmanager
def in_double(module):
    """Inside, the code of `module` reads `torch.float32` and `Tensor.float()` as their float64 counterparts."""
    promoted = types.ModuleType("torch")
    promoted.__getattr__ = lambda name: getattr(torch, name)
    promoted.float32 = torch.float64
    with mock.patch.object(module, "torch", promoted), mock.patch.object(torch.Tensor, "float", torch.Tensor.double):
        yield


def run(case):
    """Returns the case's float32 outputs and, for each, its distance from the float64 ones over its largest element."""
    with torch.inference_mode():
        outputs = case.call(**{key: tensor.clone() for key, tensor in case.inputs.items()})
        with in_double(case.module):
            exact = case.call(**{key: tensor.double() for key, tensor in case.inputs.items()})
    errors = {}
    for key, output in outputs.items():
        if output.dtype != torch.float32 or exact[key].dtype != torch.float64:
            raise TypeError(f"{case.name}: {key} came as {output.dtype} and {exact[key].dtype}")
        largest = output.abs().max().item()
        errors[key] = (output.double() - exact[key]).abs().max().item() / largest
        if not errors[key] <= case.bounds[key] / 2:  # a NaN is refused too
            raise ValueError(f"{case.name}: {key} is off by {errors[key]:.1e} of its largest element, {largest:.1e}")
    return outputs, errors


def number_text(value):
    """The shortest decimal that reads back as this float32; minus infinity is a string."""
    if value == -math.inf:
        return '"-inf"'
    text = str(numpy.float32(value))
    if not math.isfinite(value) or numpy.float32(float(text)) != numpy.float32(value):
        raise ValueError(f"{value} cannot be written")
    return text


def tensor_text(tensor, limits=""):
    """One JSON object; a line of its data is one vector along the last axis."""
    rows = tensor.reshape(-1, tensor.shape[-1]).tolist()
    data = ",\n".join(",".join(number_text(value) for value in row) for row in rows)
    return f'{{"shape": {json.dumps(list(tensor.shape))}, {limits}"data": [\n{data}]}}'


def case_text(case, outputs, errors):
    """The whole file."""
    origin = {
        "library": "transformers",
        "library_version": transformers.__version__,
        "torch_version": torch.__version__.split("+")[0],
        "module": case.module.__name__.removeprefix("transformers.models."),
        "function": case.function,
        "seed": case.seed,
        "float32_error": {key: float(f"{error:.1e}") for key, error in errors.items()},
    }
    if case.note:
        origin["note"] = case.note
    head = {
        "format": "kda-golden",
        "version": 1,
        "name": case.name,
        "op": case.op,
        "origin": origin,
        "params": case.params,
    }
    texts = {
        "inputs": {key: tensor_text(tensor) for key, tensor in case.inputs.items()},
        "outputs": {
            key: tensor_text(tensor, f'"max_abs": 0, "max_rel": {case.bounds[key]:g}, ')
            for key, tensor in outputs.items()
        },
    }
    members = [f'"{key}": {json.dumps(value)}' for key, value in head.items()]
    for group, tensors in texts.items():
        members.append(f'"{group}": {{\n' + ",\n".join(f'"{key}": {text}' for key, text in tensors.items()) + "\n}")
    return "{\n" + ",\n".join(members) + "\n}\n"


def main(directory):
    torch.set_num_threads(1)
    torch.use_deterministic_algorithms(True)
    directory.mkdir(parents=True, exist_ok=True)
    files = {}
    for case in all_cases():
        outputs, errors = run(case)
        text = files[f"{case.name}.json"] = case_text(case, outputs, errors)
        print(f"{case.name:60} {len(text):7}  " + "  ".join(f"{k} {e:.1e}" for k, e in errors.items()), flush=True)
    size = sum(map(len, files.values()))
    if size > SIZE_LIMIT:
        sys.exit(f"generate.py: {size} bytes, over the limit of {SIZE_LIMIT}")
    for stale in directory.glob("*.json"):
        stale.unlink()
    for name, text in files.items():
        (directory / name).write_text(text)
    print(f"{len(files)} files, {size} bytes")


if __name__ == "__main__":
    main(Path(sys.argv[1]) if len(sys.argv) > 1 else Path(__file__).parent)
