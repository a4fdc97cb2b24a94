#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Checks that golden files follow the format of README.md: keys, kinds, shapes, values, bounds, and the size of all.

Usage: check.py [DIR]   (the default is this folder)

Needs nothing beyond Python 3.9. Prints a line for each file at fault, then `golden format: N files, M failed, B bytes`;
exits with 1 if a file failed, if there is none, or if all together they are too large.
"""

import json
import math
import struct
import sys
from pathlib import Path

SIZE_LIMIT = 3_000_000  # bytes
LOOSEST = 5e-3  # the largest max_rel anything may ask for: that of a half-precision kernel


class Fault(Exception):
    """What is wrong with a file, in one line."""


def require(condition, message):
    if not condition:
        raise Fault(message)


# ----------------------------------------------------------------------------------------------------------------------
# Parameters: each kind is a predicate


def is_number(value):
    return isinstance(value, (int, float)) and not isinstance(value, bool) and math.isfinite(value)


def is_count(value):
    return isinstance(value, int) and not isinstance(value, bool) and value >= 1


def is_eps(value):
    return is_number(value) and value >= 0


def one_of(*values):
    return lambda value: isinstance(value, str) and value in values


def is_flag(value):
    return isinstance(value, bool)


def is_bound(value):
    return value is None or (is_number(value) and value < 0)


def is_scale(value):
    return value is None or is_number(value)


def are_splits(value):
    return isinstance(value, list) and len(value) >= 1 and all(map(is_count, value))


LAW = {"law": one_of("bounded", "softplus"), "lower_bound": is_bound}
LAYER = {"conv_width": is_count, "conv_activation": one_of("silu", "none"), "rms_eps": is_eps, "splits": are_splits}

PARAMS = {
    "l2norm": {"eps": is_eps, "scale": is_number},
    "gate_per_channel": LAW,
    "gate_per_head": LAW,
    "conv": {"width": lambda value: is_count(value) and 2 <= value <= 4, "activation": one_of("silu", "none")},
    "delta_rule": {"decay": one_of("per_channel", "per_head"), "l2norm": is_flag, "scale": is_scale},
    "norm_gated": {"eps": is_eps, "activation": one_of("sigmoid", "silu"), "weight_after_cast": is_flag},
    "kda_layer": {"hidden": is_count, "heads": is_count, "head_dim": is_count, **LAW, **LAYER},
    "gdn_layer": {
        **{key: is_count for key in ("hidden", "key_heads", "value_heads", "key_dim", "value_dim")},
        "norm_activation": one_of("sigmoid", "silu"),
        **LAYER,
    },
}


# ----------------------------------------------------------------------------------------------------------------------
# Tensors: a shape is a list of sizes; a letter takes its value from the first tensor or parameter that has it


def shapes_of(op, params, inputs):
    """The sizes that the parameters fix, the expected inputs and the expected outputs."""
    if op == "l2norm":
        return {}, {"x": "T H K"}, {"y": "T H K"}
    if op == "gate_per_channel":
        return {}, {"x": "T HV K", "A_log": "HV", "dt_bias": "HV K"}, {"g": "T HV K"}
    if op == "gate_per_head":
        return {}, {"x": "T HV", "A_log": "HV", "dt_bias": "HV"}, {"g": "T HV"}
    if op == "conv":
        sizes = {"W": params["width"]}
        return sizes, {"x": "T C", "weight": "C W", "state_in": "W-1 C"}, {"y": "T C", "state_out": "W-1 C"}
    if op == "delta_rule":
        decay = "T HV K" if params["decay"] == "per_channel" else "T HV"
        tensors = {"q": "T H K", "k": "T H K", "v": "T HV V", "g": decay, "beta": "T HV", "state_in": "HV K V"}
        return {}, tensors, {"o": "T HV V", "state_out": "HV K V"}
    if op == "norm_gated":
        return {}, {"x": "T HV V", "gate": "T HV V", "weight": "V"}, {"y": "T HV V"}
    sizes = {"T": sum(params["splits"]), "X": params["hidden"], "W": params["conv_width"]}
    if op == "kda_layer":
        sizes |= {"H": params["heads"], "D": params["head_dim"], "Q": params["heads"] * params["head_dim"]}
        forget = {"f": "Q X"} if "f" in inputs else {"f_a": "D X", "f_b": "Q D"}
        output = {"g": "Q X"} if "g" in inputs else {"g_a": "D X", "g_b": "Q D"}
        projections = {"q_proj": "Q X", "k_proj": "Q X", "v_proj": "Q X", **forget, "b_proj": "H X", **output}
        tensors = {"conv_weight": "3*Q W", "A_log": "H", "dt_bias": "H D", "norm_weight": "D", "o_proj": "X Q"}
        outputs = {"y": "T X", "state_out": "H D D", "conv_state_out": "W-1 3*Q"}
    else:
        sizes |= {key: params[name] for key, name in GDN_SIZES.items()}
        sizes["C"] = 2 * sizes["H"] * sizes["K"] + sizes["HV"] * sizes["V"]
        projections = {"qkv_proj": "C X", "z_proj": "HV*V X", "b_proj": "HV X", "a_proj": "HV X"}
        tensors = {"conv_weight": "C W", "A_log": "HV", "dt_bias": "HV", "norm_weight": "V", "o_proj": "X HV*V"}
        outputs = {"y": "T X", "state_out": "HV K V", "conv_state_out": "W-1 C"}
    return sizes, {"hidden_states": "T X", **projections, **tensors}, outputs


GDN_SIZES = {"H": "key_heads", "HV": "value_heads", "K": "key_dim", "V": "value_dim"}


def require_keys(what, mapping, expected):
    require(isinstance(mapping, dict), f"{what} is not an object")
    missing, extra = sorted(set(expected) - set(mapping)), sorted(set(mapping) - set(expected))
    require(not missing, f"{what} lacks {', '.join(missing)}")
    require(not extra, f"{what} has the unknown {', '.join(extra)}")


def values_of(name, tensor, log_decay):
    """The elements as floats; the string "-inf" is one where the tensor is a log decay."""
    values = []
    for element in tensor["data"]:
        if element == "-inf" and log_decay:
            values.append(-math.inf)
            continue
        require(is_number(element), f"{name} holds {element!r}")
        try:
            struct.pack("<f", element)
        except OverflowError:
            raise Fault(f"{name} holds {element}, beyond float32") from None
        values.append(float(element))
    return values


def check_tensors(what, tensors, expected, sizes, keys, log_decays):
    require_keys(what, tensors, expected)
    for name, letters in expected.items():
        tensor = tensors[name]
        require_keys(f"{what}.{name}", tensor, keys)
        shape = tensor["shape"]
        letters = letters.split()
        require(isinstance(shape, list) and all(map(is_count, shape)), f"{name}: shape {shape}")
        require(len(shape) == len(letters), f"{name}: shape {shape}, expected [{', '.join(letters)}]")
        for size, letter in zip(shape, letters):
            value = sizes.setdefault(letter, size) if letter.isidentifier() else eval(letter, {}, sizes)
            require(size == value, f"{name}: shape {shape}, but {letter} is {value}")
        require(isinstance(tensor["data"], list), f"{name}: data is not a list")
        require(len(tensor["data"]) == math.prod(shape), f"{name}: {len(tensor['data'])} elements for {shape}")
        values = values_of(name, tensor, name in log_decays)
        if name in log_decays:
            require(all(value <= 0 for value in values), f"{name} has a log decay above 0")
        if name == "beta":
            require(all(0 <= value <= 2 for value in values), "beta leaves [0, 2]")
        if what == "outputs":
            require(any(values), f"{name} is zero throughout")
            for limit in ("max_abs", "max_rel"):
                require(is_number(tensor[limit]) and tensor[limit] >= 0, f"{name}: {limit} is {tensor[limit]!r}")
            require(tensor["max_rel"] <= LOOSEST, f"{name}: max_rel is {tensor['max_rel']}, over {LOOSEST}")


# ----------------------------------------------------------------------------------------------------------------------
# Files


def unique(pairs):
    keys = [key for key, _ in pairs]
    for key in keys:
        require(keys.count(key) == 1, f"{key} is there twice")
    return dict(pairs)


def refuse_constant(name):
    raise Fault(f"{name} is not JSON")


def check_file(path):
    try:
        case = json.loads(path.read_text("utf-8"), object_pairs_hook=unique, parse_constant=refuse_constant)
    except ValueError as error:
        raise Fault(f"not JSON: {error}") from None
    require_keys("the file", case, ("format", "version", "name", "op", "origin", "params", "inputs", "outputs"))
    require(case["format"] == "kda-golden", f"format is {case['format']!r}")
    require(is_count(case["version"]) and case["version"] == 1, f"version is {case['version']!r}")
    require(case["name"] == path.stem, f"name is {case['name']!r}")
    op, params = case["op"], case["params"]
    require(isinstance(op, str) and op in PARAMS, f"op is {op!r}")
    require(isinstance(case["origin"], dict), "origin is not an object")
    require_keys("params", params, PARAMS[op])
    for key, is_right in PARAMS[op].items():
        require(is_right(params[key]), f"{key} is {params[key]!r}")
    if "law" in params:
        require((params["law"] == "softplus") == (params["lower_bound"] is None), "law and lower_bound disagree")
    require(isinstance(case["inputs"], dict), "inputs is not an object")

    sizes, inputs, outputs = shapes_of(op, params, case["inputs"])
    input_decays = {"g"} if op == "delta_rule" else set()
    output_decays = {"g"} if op.startswith("gate_") else set()
    check_tensors("inputs", case["inputs"], inputs, sizes, ("shape", "data"), input_decays)
    check_tensors("outputs", case["outputs"], outputs, sizes, ("shape", "data", "max_abs", "max_rel"), output_decays)
    if "H" in sizes and "HV" in sizes:
        require(sizes["HV"] % sizes["H"] == 0, f"{sizes['HV']} value heads for {sizes['H']} key heads")


def main(directory):
    paths = sorted(directory.glob("*.json"))
    size = sum(path.stat().st_size for path in paths)
    failed = 0
    for path in paths:
        try:
            check_file(path)
        except Fault as fault:
            failed += 1
            print(f"{path.name}: {fault}")
    if size > SIZE_LIMIT:
        print(f"{size} bytes are over the limit of {SIZE_LIMIT}")
    print(f"golden format: {len(paths)} files, {failed} failed, {size} bytes")
    return failed == 0 and paths and size <= SIZE_LIMIT


if __name__ == "__main__":
    sys.exit(0 if main(Path(sys.argv[1]) if len(sys.argv) > 1 else Path(__file__).parent) else 1)
