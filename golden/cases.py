# SPDX-License-Identifier: Apache-2.0
"""The golden cases: which inputs go to which function or module of transformers.

Inputs are decimals of a few digits, drawn from Python's own generator seeded with the case's name: the same on every
machine, and short in the file. A case's `call` takes the stored tensors, unbatched, in float32 or float64, and returns
the outputs.
"""

import math
import random
import zlib
from collections.abc import Callable
from dataclasses import dataclass
from types import ModuleType
from unittest import mock

import torch
from torch import Tensor, nn
from transformers.cache_utils import DynamicCache, LinearAttentionLayer
from transformers.models.bailing_hybrid import modeling_bailing_hybrid as bailing_hybrid
from transformers.models.bailing_hybrid.configuration_bailing_hybrid import BailingHybridConfig
from transformers.models.glm5_next import modeling_glm5_next as glm5_next
from transformers.models.glm5_next.configuration_glm5_next import Glm5NextTextConfig
from transformers.models.kimi_linear import modeling_kimi_linear as kimi_linear
from transformers.models.kimi_linear.configuration_kimi_linear import KimiLinearConfig
from transformers.models.qwen3_5 import modeling_qwen3_5 as qwen3_5
from transformers.models.qwen3_5.configuration_qwen3_5 import Qwen3_5TextConfig
from transformers.models.qwen3_next import modeling_qwen3_next as qwen3_next
from transformers.models.qwen3_next.configuration_qwen3_next import Qwen3NextConfig
from transformers.models.qwen4_exp import modeling_qwen4_exp as qwen4_exp
from transformers.models.qwen4_exp.configuration_qwen4_exp import Qwen4ExpTextConfig

# Bounds, as fractions of an output's largest element
EXACT = 0  # columns that are only moved
SINGLE = 1e-6  # one operation
ORDINARY = 3e-6  # the delta rule
LAYER = 5e-6  # the output of a whole layer: its norm divides by an output that may be small
HARD = 1e-5  # the delta rule with equal keys and beta near 2, where every step turns the errors of all before it


@dataclass
class Case:
    name: str
    op: str
    module: ModuleType  # the transformers modeling file that is called
    function: str
    seed: int
    params: dict
    inputs: dict[str, Tensor]
    call: Callable[..., dict[str, Tensor]]
    bounds: dict[str, float]  # of each output
    note: str | None = None  # what a reader must know to repeat the call, where that is not plain


class Draw:
    """Random tensors of short decimals; their sequence depends on the case's name alone."""

    def __init__(self, name):
        self.seed = zlib.crc32(name.encode())
        self._random = random.Random(self.seed)

    def _tensor(self, draw, shape, digits=3):
        # + 0.0 turns a rounded -0.0 into 0.0
        return torch.tensor([round(draw(), digits) + 0.0 for _ in range(math.prod(shape))]).reshape(shape)

    def normal(self, *shape, mean=0.0, scale=1.0, digits=3):
        return self._tensor(lambda: self._random.gauss(mean, scale), shape, digits)

    def uniform(self, low, high, *shape):
        return self._tensor(lambda: self._random.uniform(low, high), shape)

    def weak_decay(self, *shape):
        """Log decays: half of them above -0.14, one in ten below -0.9."""
        return self._tensor(lambda: -math.exp(self._random.gauss(-2, 1.5)), shape)

    def choice(self, values, *shape):
        return torch.tensor([self._random.choice(values) for _ in range(math.prod(shape))]).reshape(shape)

    def tokens_of(self, amplitudes, *shape):
        """One token of each amplitude, all with the same number of significant digits."""
        return torch.stack([self.normal(*shape, scale=a, digits=3 - round(math.log10(a or 1))) for a in amplitudes])

    def weight(self, rows, columns):
        return self.normal(rows, columns, scale=columns**-0.5)


# ----------------------------------------------------------------------------------------------------------------------
# The layers of transformers, small

HIDDEN_ACT = {"silu": "silu", "none": "linear"}  # a convolution activation's name there


def kda_layer_of(module, hidden=8, heads=1, dim=8, width=4, activation="silu", lower_bound=None, eps=1e-5):
    """A KDA layer and its configuration."""
    common = {
        "hidden_size": hidden,
        "hidden_act": HIDDEN_ACT[activation],
        "rms_norm_eps": eps,
        "num_hidden_layers": 1,
        "layer_types": ["linear_attention"],
    }
    linear = {"linear_num_heads": heads, "linear_head_dim": dim, "linear_conv_kernel_dim": width}
    if module is glm5_next:
        config = Glm5NextTextConfig(**common, **linear, linear_lower_bound=lower_bound)
        return glm5_next.Glm5NextTextLinearAttention(config, 0), config
    if module is kimi_linear:
        assert lower_bound is None, "kimi_linear has no bounded gate"
        config = KimiLinearConfig(**common, **linear)
        return kimi_linear.KimiLinearDeltaAttention(config, 0), config
    bound = {"kda_safe_gate": False} if lower_bound is None else {"kda_lower_bound": lower_bound}
    linear = {"num_attention_heads": heads, "head_dim": dim, "short_conv_kernel_size": width}
    config = BailingHybridConfig(**common, **linear, **bound)
    return bailing_hybrid.BailingHybridDeltaAttention(config, 0), config


def gdn_layer_of(module, hidden, key_heads, value_heads, key_dim=4, value_dim=4, width=4, activation="silu"):
    """A GDN layer and its configuration. qwen4_exp's gate is a sigmoid, as its released configuration says."""
    layer_class, config_class, options = {
        qwen3_next: (qwen3_next.Qwen3NextGatedDeltaNet, Qwen3NextConfig, {}),
        qwen3_5: (qwen3_5.Qwen3_5GatedDeltaNet, Qwen3_5TextConfig, {}),
        qwen4_exp: (qwen4_exp.Qwen4ExpTextGatedDeltaNet, Qwen4ExpTextConfig, {"output_gate_type": "sigmoid"}),
    }[module]
    config = config_class(
        hidden_size=hidden,
        hidden_act=HIDDEN_ACT[activation],
        rms_norm_eps=1e-6,
        num_hidden_layers=1,
        layer_types=["linear_attention"],
        linear_num_key_heads=key_heads,
        linear_num_value_heads=value_heads,
        linear_key_head_dim=key_dim,
        linear_value_head_dim=value_dim,
        linear_conv_kernel_dim=width,
        **options,
    )
    return layer_class(config, 0), config


# ----------------------------------------------------------------------------------------------------------------------
# Single operations


def l2norm(label, module, amplitudes, heads, dim, eps=1e-6, scale=1.0):
    """scale: a power of two, so that the product with it is exact."""
    draw = Draw(name := f"l2norm-{label}")
    return Case(
        name=name,
        op="l2norm",
        module=module,
        function="l2norm",
        seed=draw.seed,
        params={"eps": eps, "scale": scale},
        inputs={"x": draw.tokens_of(amplitudes, heads, dim)},
        call=lambda x: {"y": module.l2norm(x, dim=-1, eps=eps) * scale},
        bounds={"y": SINGLE},
        note=None if scale == 1 else "the result was multiplied by scale, a power of two",
    )


# Gate inputs, one token each: where a gate bends, and where it is straight
BENT = (-100.0, -20.0, -5.0, -1.0, 0.0, 1.0, 3.0)
BARELY_BENT = (8.0, 10.0, 12.0)
STRAIGHT = (5.0, 19.0, 20.0, 21.0, 100.0)


def gate_inputs(draw, A_log, levels, bias, *sizes):
    """One token near each level, no two elements alike."""
    centre = torch.tensor(levels).reshape(-1, *[1] * len(sizes))
    return {
        "x": centre + draw.normal(len(levels), *sizes, scale=0.5),
        "A_log": torch.tensor(A_log),
        "dt_bias": draw.normal(*sizes, mean=bias, scale=0.5),
    }


def gate_params(lower_bound):
    return {"law": "softplus" if lower_bound is None else "bounded", "lower_bound": lower_bound}


def forget_gate(label, module, A_log, levels=BENT + STRAIGHT, bias=0.0, lower_bound=None, dim=None):
    """The forget gate of a KDA layer, behind its projections.

    dim  channels of a head; None for a gate per head, which is one with heads of one channel
    """
    op = "gate_per_head" if dim is None else "gate_per_channel"
    draw = Draw(name := f"{op}-{label}")
    heads = len(A_log)

    def make():
        gate = kda_layer_of(module, heads=heads, dim=dim or 1, lower_bound=lower_bound)[0].forget_gate
        for projection in {"f_a_proj", "f_b_proj", "f_proj"} & dict(gate.named_children()).keys():
            setattr(gate, projection, nn.Identity())
        return gate

    def call(x, A_log, dt_bias):
        gate = make().to(x.dtype)
        gate.load_state_dict({"A_log": A_log.reshape(gate.A_log.shape), "dt_bias": dt_bias.flatten()})
        return {"g": gate(x.reshape(1, len(x), -1)).reshape(x.shape)}

    return Case(
        name=name,
        op=op,
        module=module,
        function=f"{type(make()).__name__}.forward",
        seed=draw.seed,
        params=gate_params(lower_bound),
        inputs=gate_inputs(draw, A_log, levels, bias, *([heads] if dim is None else [heads, dim])),
        call=call,
        bounds={"g": SINGLE},
        note="its projections replaced by torch.nn.Identity" + (", its heads of one channel" if dim is None else ""),
    )


class Captured(Exception):
    """Carries an argument out of a layer's forward."""


def gdn_gate(label, module, A_log, levels=BENT + STRAIGHT, bias=0.0):
    """The decay of a GDN layer, which has no function of its own: taken from the call that the layer hands it to."""
    draw = Draw(name := f"gate_per_head-{label}")
    heads = len(A_log)

    def capture(*args, g, **kwargs):
        raise Captured(g)

    def call(x, A_log, dt_bias):
        layer = gdn_layer_of(module, hidden=heads, key_heads=heads, value_heads=heads)[0].to(x.dtype)
        layer.in_proj_a = nn.Identity()
        layer.A_log.copy_(A_log)
        layer.dt_bias.copy_(dt_bias)
        with mock.patch.object(module, "torch_chunk_gated_delta_rule", capture):
            try:
                layer(x[None])
            except Captured as captured:
                return {"g": captured.args[0][0]}

    return Case(
        name=name,
        op="gate_per_head",
        module=module,
        function=f"{type(gdn_layer_of(module, heads, heads, heads)[0]).__name__}.forward",
        seed=draw.seed,
        params=gate_params(None),
        inputs=gate_inputs(draw, A_log, levels, bias, heads),
        call=call,
        bounds={"g": SINGLE},
        note="g as handed to torch_chunk_gated_delta_rule; in_proj_a replaced by torch.nn.Identity",
    )


def conv(label, module, width, activation, tokens, channels, fresh=False):
    """A fresh sequence goes the way of a layer's first call, others through causal_conv1d_update.

    transformers keeps `width` columns of state. The oldest is never used: the huge number put there would show.
    """
    draw = Draw(name := f"conv-{label}")

    def call(x, weight, state_in):
        act = {"silu": "silu", "none": None}[activation]
        if fresh:
            cache = LinearAttentionLayer()
            window = cache.update_conv_state(x.T[None], conv_kernel_size=width)
            y = module.causal_conv1d_fn(window, weight, activation=act)[:, :, -tokens:]
            state = cache.conv_states[0]
        else:
            state = nn.functional.pad(state_in.T[None], (1, 0), value=1e6)
            y = module.causal_conv1d_update(x.T[None], state, weight, activation=act)
        return {"y": y[0].T, "state_out": state[0, :, 1:].T}

    return Case(
        name=name,
        op="conv",
        module=module,
        function="causal_conv1d_fn" if fresh else "causal_conv1d_update",
        seed=draw.seed,
        params={"width": width, "activation": activation},
        inputs={
            "x": draw.normal(tokens, channels),
            "weight": draw.normal(channels, width, scale=0.5),
            "state_in": draw.normal(width - 1, channels, scale=0 if fresh else 1),
        },
        call=call,
        bounds={"y": SINGLE, "state_out": EXACT},
        note="after LinearAttentionLayer.update_conv_state, as in a layer's first call" if fresh else None,
    )


def norm_gated(label, module, amplitudes, heads, dim, eps):
    draw = Draw(name := f"norm_gated-{label}")
    norm_class, activation, weight_after_cast = {
        glm5_next: (glm5_next.Glm5NextTextRMSNormGated, "sigmoid", False),
        kimi_linear: (kimi_linear.KimiLinearRMSNormGated, "sigmoid", False),
        qwen3_next: (qwen3_next.Qwen3NextRMSNormGated, "silu", True),
        qwen3_5: (qwen3_5.Qwen3_5RMSNormGated, "silu", True),
        qwen4_exp: (qwen4_exp.Qwen4ExpTextRMSNormGated, "sigmoid", True),
    }[module]
    gate = draw.normal(len(amplitudes), heads, dim, scale=3)
    gate[-1, -1, :4] = torch.tensor([-100.0, 100.0, -30.0, 0.0])

    def call(x, gate, weight):
        norm = norm_class(dim, eps=eps, activation=activation).to(x.dtype)
        assert norm.activation == activation, "most of these classes have a fixed activation"
        norm.weight.copy_(weight)
        return {"y": norm(x, gate)}

    return Case(
        name=name,
        op="norm_gated",
        module=module,
        function=f"{norm_class.__name__}.forward",
        seed=draw.seed,
        params={"eps": eps, "activation": activation, "weight_after_cast": weight_after_cast},
        inputs={
            "x": draw.tokens_of(amplitudes, heads, dim),
            "gate": gate,
            "weight": draw.normal(dim, mean=1, scale=0.3),
        },
        call=call,
        bounds={"y": SINGLE},
    )


# ----------------------------------------------------------------------------------------------------------------------
# The delta rule


def constant(value):
    return lambda draw, *shape: torch.full(shape, value)


def any_of(*values):
    return lambda draw, *shape: draw.choice(values, *shape)


def spikes(value, *tokens):
    """No decay but at these tokens."""

    def decay(draw, *shape):
        g = torch.zeros(shape)
        g[list(tokens)] = value
        return g

    return decay


def delta_rule(
    label,
    module,
    form,
    tokens,
    dims,
    heads=1,
    value_heads=None,
    fresh=False,
    decay=Draw.weak_decay,
    beta=(0.0, 1.0),
    key_spread=None,
    normalize=True,
    scale_factor=None,
    bound=ORDINARY,
):
    """One call of a chunked or recurrent function.

    form          "chunk" or "recurrent"
    dims          (K, V)
    decay         a function of (draw, *shape)
    beta          its range
    key_spread    all keys are one vector plus this much of a random one; None for independent keys
    scale_factor  a power of two, by which the stored scale and o exceed those of the function, whose scale is K^-1/2
    """
    key_dim, value_dim = dims
    value_heads = value_heads or heads
    groups = value_heads // heads
    per_channel = module in (glm5_next, kimi_linear)
    kind = "per_channel" if per_channel else "per_head"
    function = {
        ("per_channel", "chunk"): "chunk_kimi_delta_attention",
        ("per_channel", "recurrent"): "recurrent_kimi_delta_attention",
        ("per_head", "chunk"): "torch_chunk_gated_delta_rule",
        ("per_head", "recurrent"): "torch_recurrent_gated_delta_rule",
    }[kind, form]
    draw = Draw(name := f"delta_rule-{kind}-{label}-{form}-K{key_dim}-V{value_dim}-T{tokens}")
    size = 1.0 if normalize else key_dim**-0.5
    k = draw.normal(tokens, heads, key_dim, scale=size)
    if key_spread is not None:
        k = draw.normal(heads, key_dim, scale=size) + (key_spread * k).round(decimals=6)
    repeat = groups > 1 and per_channel

    def call(q, k, v, g, beta, state_in):
        if repeat:
            q, k = (tensor.repeat_interleave(groups, dim=1) for tensor in (q, k))
        o, state_out = getattr(module, function)(
            q[None],
            k[None],
            v[None],
            g=g[None],
            beta=beta[None],
            initial_state=None if fresh else state_in[None],
            output_final_state=True,
            use_qk_l2norm_in_kernel=normalize,
        )
        return {"o": o[0] * (scale_factor or 1), "state_out": state_out[0]}

    note = None
    if repeat:
        note = "q and k repeated for their value heads with repeat_interleave: the function takes one number of heads"
    if scale_factor:
        note = f"o was multiplied by {scale_factor:g}: the function's own scale is K^-1/2"
    return Case(
        name=name,
        op="delta_rule",
        module=module,
        function=function,
        seed=draw.seed,
        params={"decay": kind, "l2norm": normalize, "scale": scale_factor and scale_factor * key_dim**-0.5},
        inputs={
            "q": draw.normal(tokens, heads, key_dim, scale=size),
            "k": k,
            "v": draw.normal(tokens, value_heads, value_dim),
            "g": decay(draw, tokens, value_heads, *[key_dim] * per_channel),
            "beta": draw.uniform(*beta, tokens, value_heads),
            "state_in": draw.normal(value_heads, key_dim, value_dim, scale=0 if fresh else 0.5),
        },
        call=call,
        bounds={"o": bound, "state_out": bound},
        note=note,
    )


# ----------------------------------------------------------------------------------------------------------------------
# Whole layers, called part by part with one cache


LAYER_BOUNDS = {"y": LAYER, "state_out": ORDINARY, "conv_state_out": SINGLE}


def run_layer(layer, config, hidden_states, splits):
    cache = DynamicCache(config=config)
    y = torch.cat([layer(part[None], cache=cache)[0] for part in hidden_states.split(splits)])
    states = cache.layers[0]
    # transformers keeps one column more than the convolution needs: the oldest is left out
    return {"y": y, "state_out": states.recurrent_states[0][0], "conv_state_out": states.conv_states[0][0, :, 1:].T}


def kda_layer(
    label,
    module,
    splits,
    hidden,
    heads,
    dim,
    lower_bound=None,
    width=4,
    activation="silu",
    eps=1e-5,
    A_log=(0.0, 0.5),
    dt_bias=(-2.0, 2.0),
    full_rank_output=False,
):
    """A KDA layer.

    A_log, dt_bias    mean and spread
    full_rank_output  one projection in place of the output gate's two
    """
    draw = Draw(name := f"kda_layer-{label}-" + "_".join(map(str, splits)))
    channels = heads * dim
    full_rank = module is bailing_hybrid
    theirs = {
        "q_proj": "q_proj.weight",
        "k_proj": "k_proj.weight",
        "v_proj": "v_proj.weight",
        "conv_weight": "conv1d.weight",
        "f_a": "forget_gate.f_a_proj.weight",
        "f_b": "forget_gate.f_b_proj.weight",
        "f": "forget_gate.f_proj.weight",
        "A_log": "forget_gate.A_log",
        "dt_bias": "forget_gate.dt_bias",
        "b_proj": "b_proj.weight",
        "g_a": "g_a_proj.weight",
        "g_b": "g_b_proj.weight",
        "g": "g_proj.weight" if full_rank else "g_b_proj.weight",
        "norm_weight": "o_norm.weight",
        "o_proj": "o_proj.weight",
    }

    def gate_weights(gate, one):
        if one:
            return {gate: draw.weight(channels, hidden)}
        return {f"{gate}_a": draw.weight(dim, hidden), f"{gate}_b": draw.weight(channels, dim)}

    def make():
        layer, config = kda_layer_of(module, hidden, heads, dim, width, activation, lower_bound, eps)
        if full_rank_output:
            layer.g_a_proj = nn.Identity()
            layer.g_b_proj = nn.Linear(hidden, channels, bias=False)
        return layer, config

    def call(hidden_states, **weights):
        layer, config = make()
        layer.to(hidden_states.dtype)
        shapes = {key: tensor.shape for key, tensor in layer.state_dict().items()}
        layer.load_state_dict({theirs[key]: tensor.reshape(shapes[theirs[key]]) for key, tensor in weights.items()})
        return run_layer(layer, config, hidden_states, splits)

    return Case(
        name=name,
        op="kda_layer",
        module=module,
        function=f"{type(make()[0]).__name__}.forward",
        seed=draw.seed,
        params={
            "hidden": hidden,
            "heads": heads,
            "head_dim": dim,
            "conv_width": width,
            "conv_activation": activation,
            **gate_params(lower_bound),
            "rms_eps": eps,
            "splits": splits,
        },
        inputs={
            "hidden_states": draw.normal(sum(splits), hidden),
            "q_proj": draw.weight(channels, hidden),
            "k_proj": draw.weight(channels, hidden),
            "v_proj": draw.weight(channels, hidden),
            "conv_weight": draw.normal(3 * channels, width, scale=0.5),
            **gate_weights("f", full_rank),
            "A_log": draw.normal(heads, mean=A_log[0], scale=A_log[1]),
            "dt_bias": draw.normal(heads, dim, mean=dt_bias[0], scale=dt_bias[1]),
            "b_proj": draw.weight(heads, hidden),
            **gate_weights("g", full_rank or full_rank_output),
            "norm_weight": draw.normal(dim, mean=1, scale=0.3),
            "o_proj": draw.weight(hidden, channels),
        },
        call=call,
        bounds=LAYER_BOUNDS,
        note="g_a_proj replaced by torch.nn.Identity and g_b_proj by a full-rank Linear" if full_rank_output else None,
    )


def gdn_layer(
    label,
    module,
    splits,
    hidden,
    key_heads,
    value_heads,
    key_dim,
    value_dim,
    width=4,
    activation="silu",
):
    """A GDN layer."""
    draw = Draw(name := f"gdn_layer-{label}-" + "_".join(map(str, splits)))
    keys, values = key_heads * key_dim, value_heads * value_dim

    def make():
        return gdn_layer_of(module, hidden, key_heads, value_heads, key_dim, value_dim, width, activation)

    if module is qwen3_next:
        # Its two fused projections are interleaved by key head; its own code takes the weights apart.
        theirs = {
            "in_proj_qkvz.weight": draw.weight(2 * keys + 2 * values, hidden),
            "in_proj_ba.weight": draw.weight(2 * value_heads, hidden),
        }
        parts = make()[0].fix_query_key_value_ordering(*(weight.T[None] for weight in theirs.values()))
        q, k, v, z, b, a = (part.reshape(hidden, -1).T for part in parts)
        ours = {"qkv_proj": torch.cat([q, k, v]), "z_proj": z, "b_proj": b, "a_proj": a}
        note = "the stored projections are in_proj_qkvz and in_proj_ba as fix_query_key_value_ordering takes them apart"
    else:
        ours = {
            "qkv_proj": draw.weight(2 * keys + values, hidden),
            "z_proj": draw.weight(values, hidden),
            "b_proj": draw.weight(value_heads, hidden),
            "a_proj": draw.weight(value_heads, hidden),
        }
        theirs = {f"in_proj_{key.removesuffix('_proj')}.weight": weight for key, weight in ours.items()}
        note = None
    ours |= {
        "conv_weight": draw.normal(2 * keys + values, width, scale=0.5),
        "A_log": draw.normal(value_heads, mean=0.5, scale=0.7),
        "dt_bias": draw.normal(value_heads, mean=-2, scale=1.5),
        "norm_weight": draw.normal(value_dim, mean=1, scale=0.3),
        "o_proj": draw.weight(hidden, values),
    }
    theirs |= {
        "conv1d.weight": ours["conv_weight"][:, None],
        "A_log": ours["A_log"],
        "dt_bias": ours["dt_bias"],
        "norm.weight": ours["norm_weight"],
        "out_proj.weight": ours["o_proj"],
    }

    def call(hidden_states, **_):
        layer, config = make()
        layer.load_state_dict(theirs)  # decimals of float32, exact in either type
        return run_layer(layer.to(hidden_states.dtype), config, hidden_states, splits)

    layer, config = make()
    return Case(
        name=name,
        op="gdn_layer",
        module=module,
        function=f"{type(layer).__name__}.forward",
        seed=draw.seed,
        params={
            "hidden": hidden,
            "key_heads": key_heads,
            "value_heads": value_heads,
            "key_dim": key_dim,
            "value_dim": value_dim,
            "conv_width": width,
            "conv_activation": activation,
            "norm_activation": layer.norm.activation,
            "rms_eps": config.rms_norm_eps,
            "splits": splits,
        },
        inputs={"hidden_states": draw.normal(sum(splits), hidden), **ours},
        call=call,
        bounds=LAYER_BOUNDS,
        note=note,
    )


# ----------------------------------------------------------------------------------------------------------------------
# The list


def operation_cases():
    amplitudes = (1.0, 0.1, 1e-2, 1e-3, 1e-4, 0.0, 1e3)
    yield l2norm("glm-K24", glm5_next, amplitudes, heads=2, dim=24)
    yield l2norm("kimi-K33-eps_1e-5", kimi_linear, amplitudes, heads=1, dim=33, eps=1e-5)
    yield l2norm("qwen-K64-scaled", qwen3_5, amplitudes, heads=1, dim=64, scale=0.125)
    yield l2norm("glm-K1", glm5_next, amplitudes, heads=3, dim=1)

    ordinary = (-4.0, -1.0, 0.0, 1.0)
    published = (0.0, 0.7, 1.4, 2.77)  # softplus gates are initialised between log 1 and log 16
    weak = {"levels": (-3.0, -1.0, 0.0, 0.5, 1.0, 3.0), "bias": -4.0}  # and their dt_bias so that the decay is slight
    yield forget_gate("glm-bounded", glm5_next, ordinary, lower_bound=-5.0, dim=16)
    yield forget_gate("glm-bounded-large_A", glm5_next, (2.77, 5.0, 20.0, 80.0), lower_bound=-5.0, dim=12)
    yield forget_gate("glm-bounded-infinite_A", glm5_next, (89.0, 100.0), (-20.0, -5.0, 5.0), lower_bound=-5.0, dim=5)
    yield forget_gate("glm-bounded-T1", glm5_next, ordinary, (0.5,), lower_bound=-0.5, dim=33)
    yield forget_gate("ling-bounded", bailing_hybrid, ordinary, lower_bound=-2.5, dim=10)
    yield forget_gate("glm-softplus-bent", glm5_next, ordinary, BENT, dim=16)
    yield forget_gate("glm-softplus-barely_bent", glm5_next, (-1.0, 0.0), BARELY_BENT, dim=12)
    yield forget_gate("glm-softplus-straight", glm5_next, published, STRAIGHT, dim=16)
    yield forget_gate("kimi-softplus-weak", kimi_linear, published, **weak, dim=16)
    yield forget_gate("kimi-softplus-large_A", kimi_linear, (5.0, 10.0), dim=9)
    yield forget_gate("ling-softplus-bent", bailing_hybrid, ordinary, BENT, dim=10)
    yield gdn_gate("qwen-softplus-bent", qwen3_5, (*ordinary, 0.3, 0.5), BENT)
    yield gdn_gate("qwen-softplus-barely_bent", qwen3_5, (-1.0, -0.5, 0.0), BARELY_BENT)
    yield gdn_gate("qwen-softplus-straight", qwen3_5, published, STRAIGHT)
    yield gdn_gate("qwen-softplus-weak", qwen3_5, published, **weak)
    yield gdn_gate("qwen4-softplus-large_A", qwen4_exp, (5.0, 10.0, 2.77))
    yield forget_gate("glm-bounded", glm5_next, (-4.0, 0.0, 2.77), lower_bound=-5.0)

    yield conv("W4-silu-T37", glm5_next, 4, "silu", tokens=37, channels=20)
    yield conv("W4-silu-T40-fresh", kimi_linear, 4, "silu", tokens=40, channels=17, fresh=True)
    yield conv("W4-silu-T1", glm5_next, 4, "silu", tokens=1, channels=33)
    yield conv("W4-silu-T1-fresh", qwen3_next, 4, "silu", tokens=1, channels=16, fresh=True)
    yield conv("W4-silu-T2", qwen3_5, 4, "silu", tokens=2, channels=16)
    yield conv("W4-silu-T2-fresh", qwen3_5, 4, "silu", tokens=2, channels=18, fresh=True)
    yield conv("W4-silu-T3", glm5_next, 4, "silu", tokens=3, channels=7)
    yield conv("W4-none-T12", glm5_next, 4, "none", tokens=12, channels=16)
    yield conv("W3-silu-T9", kimi_linear, 3, "silu", tokens=9, channels=24)
    yield conv("W3-none-T1", qwen3_5, 3, "none", tokens=1, channels=16)
    yield conv("W2-silu-T6", qwen3_next, 2, "silu", tokens=6, channels=16)
    yield conv("W2-none-T5-fresh", glm5_next, 2, "none", tokens=5, channels=9, fresh=True)

    amplitudes = (1.0, 0.1, 1e-2, 1e-3, 1e-4, 30.0)
    yield norm_gated("glm-sigmoid-V40", glm5_next, amplitudes, heads=2, dim=40, eps=1e-5)
    yield norm_gated("kimi-sigmoid-V128", kimi_linear, amplitudes, heads=1, dim=128, eps=1e-5)
    yield norm_gated("qwen3_next-silu-V33", qwen3_next, amplitudes, heads=2, dim=33, eps=1e-6)
    yield norm_gated("qwen3_5-silu-V64", qwen3_5, amplitudes, heads=1, dim=64, eps=1e-6)
    yield norm_gated("qwen4-sigmoid-V24", qwen4_exp, amplitudes, heads=2, dim=24, eps=1e-6)


def delta_rule_cases():
    # decay per channel
    yield delta_rule("fresh", glm5_next, "chunk", 37, (24, 40), fresh=True)
    yield delta_rule("state", glm5_next, "recurrent", 37, (24, 40))
    yield delta_rule("state", glm5_next, "chunk", 70, (8, 12), heads=2)
    yield delta_rule("state", kimi_linear, "chunk", 130, (8, 12))
    yield delta_rule("state", kimi_linear, "recurrent", 16, (16, 8), heads=3)
    yield delta_rule("state", glm5_next, "recurrent", 1, (24, 40), heads=2)
    yield delta_rule("fresh", glm5_next, "recurrent", 1, (16, 16), heads=2, fresh=True)
    yield delta_rule("state", glm5_next, "chunk", 1, (16, 24), heads=2)
    yield delta_rule("state", glm5_next, "chunk", 3, (20, 12), heads=2)
    yield delta_rule("state", glm5_next, "chunk", 17, (33, 7))
    yield delta_rule("state", glm5_next, "chunk", 64, (8, 12))
    yield delta_rule("state", glm5_next, "chunk", 65, (12, 8))
    yield delta_rule("state", glm5_next, "recurrent", 9, (128, 24))
    yield delta_rule("state", glm5_next, "recurrent", 20, (1, 3), heads=2)
    yield delta_rule("prenorm", glm5_next, "chunk", 33, (16, 24), normalize=False)
    yield delta_rule("scale", glm5_next, "recurrent", 21, (24, 16), scale_factor=2.0)
    yield delta_rule("R2", glm5_next, "chunk", 19, (12, 16), heads=2, value_heads=4)

    # decay per head, with 1, 2 and 3 value heads for each key head
    yield delta_rule("R1", qwen3_5, "chunk", 37, (24, 40))
    yield delta_rule("R2", qwen3_next, "chunk", 66, (8, 12), heads=2, value_heads=4)
    yield delta_rule("R3-fresh", qwen3_5, "chunk", 37, (12, 16), value_heads=3, fresh=True)
    yield delta_rule("R3", qwen3_next, "recurrent", 21, (12, 8), heads=2, value_heads=6)
    yield delta_rule("R2", qwen3_5, "recurrent", 1, (12, 20), heads=2, value_heads=4)
    yield delta_rule("R2", qwen3_5, "chunk", 3, (12, 8), heads=2, value_heads=4)
    yield delta_rule("R2", qwen3_5, "chunk", 65, (8, 12), value_heads=2)
    yield delta_rule("R1", qwen3_next, "recurrent", 9, (64, 32))
    yield delta_rule("prenorm", qwen3_5, "recurrent", 33, (16, 8), heads=2, normalize=False)

    # hard regimes, in both
    for module in (glm5_next, qwen3_5):
        chunk = {"module": module, "form": "chunk", "dims": (8, 12)}
        yield delta_rule("no_decay", tokens=70, decay=constant(0.0), **chunk)
        yield delta_rule("barely_decay", tokens=140, decay=constant(-1e-4), **chunk)
        yield delta_rule("spikes", tokens=66, decay=spikes(-3.0, 0, 15, 16, 31, 63, 64), **chunk)
        yield delta_rule("decay_27", tokens=67, decay=constant(-27.0), **chunk)
        # from here on the chunked functions of transformers are inexact or NaN: README.md has the numbers
        recurrent = {"module": module, "form": "recurrent", "dims": (8, 12)}
        mixed = any_of(0.0, 0.0, -0.01, -0.01, -27.0, -1e4, -math.inf)
        yield delta_rule("decay_1e4", tokens=20, decay=constant(-1e4), **recurrent)
        yield delta_rule("decay_inf", tokens=20, decay=constant(-math.inf), **recurrent)
        yield delta_rule("mixed_decay", tokens=70, decay=mixed, **recurrent)
        yield delta_rule("middling_decay", tokens=66, decay=any_of(0.0, -2.5, -3.0, -5.0), **recurrent)
        keys = {"beta": (1.9, 2.0), "bound": HARD, **recurrent}
        yield delta_rule("equal_keys", tokens=48, decay=constant(0.0), key_spread=0.0, **keys)
        yield delta_rule("near_keys", tokens=66, decay=constant(-1e-3), key_spread=1e-3, **keys)


def layer_cases():
    bounded = {"lower_bound": -5.0}
    softplus = {"A_log": (1.4, 0.8), "dt_bias": (-4.0, 1.5)}
    yield kda_layer("glm", glm5_next, [37], hidden=20, heads=3, dim=12, **bounded)
    yield kda_layer("glm", glm5_next, [16, 1, 1, 1], hidden=20, heads=2, dim=12, **bounded)
    yield kda_layer("glm", glm5_next, [5, 32, 1], hidden=20, heads=2, dim=12, **bounded)
    yield kda_layer("glm", glm5_next, [2, 1, 1, 30], hidden=16, heads=2, dim=8, **bounded)
    yield kda_layer("glm", glm5_next, [1, 1, 1, 1, 1], hidden=16, heads=2, dim=8, **bounded)
    strong = {**bounded, "A_log": (1.5, 0.5), "dt_bias": (2.0, 1.0)}
    yield kda_layer("glm-strong_decay", glm5_next, [70], hidden=16, heads=2, dim=8, **strong)
    yield kda_layer("glm-unbounded", glm5_next, [18, 1, 1], hidden=16, heads=2, dim=12, **softplus)
    yield kda_layer("kimi", kimi_linear, [37], hidden=20, heads=2, dim=12, **softplus)
    yield kda_layer("kimi", kimi_linear, [16, 1, 1, 1], hidden=16, heads=3, dim=8, **softplus)
    yield kda_layer("kimi-W3", kimi_linear, [4, 29], hidden=16, heads=2, dim=8, width=3, **softplus)
    yield kda_layer("glm-W2-linear", glm5_next, [9, 1, 9], 12, 2, 8, lower_bound=-1.0, width=2, activation="none")
    yield kda_layer("ling-full_rank", bailing_hybrid, [5, 32, 1], hidden=20, heads=2, dim=12, **bounded, eps=1e-6)
    yield kda_layer("ling-full_rank-D64", bailing_hybrid, [20, 1], hidden=8, heads=1, dim=64, **bounded, eps=1e-6)
    yield kda_layer("ling-full_rank-softplus", bailing_hybrid, [17, 1, 1], hidden=16, heads=2, dim=8, **softplus)
    k3 = {**bounded, "full_rank_output": True}
    yield kda_layer("glm-full_rank_output", glm5_next, [19, 1], hidden=20, heads=2, dim=12, **k3)

    yield gdn_layer("qwen3_next-R2", qwen3_next, [37], 20, key_heads=2, value_heads=4, key_dim=8, value_dim=12)
    yield gdn_layer("qwen3_next-R3", qwen3_next, [16, 1, 1, 1], 16, key_heads=2, value_heads=6, key_dim=8, value_dim=12)
    yield gdn_layer("qwen3_next-R1", qwen3_next, [5, 32, 1], 16, key_heads=2, value_heads=2, key_dim=16, value_dim=8)
    yield gdn_layer("qwen3_5-R1", qwen3_5, [70], 16, key_heads=2, value_heads=2, key_dim=12, value_dim=12)
    yield gdn_layer("qwen3_5-R2", qwen3_5, [5, 32, 1], 16, key_heads=2, value_heads=4, key_dim=8, value_dim=12)
    yield gdn_layer("qwen3_5-R3", qwen3_5, [2, 1, 30], 16, key_heads=1, value_heads=3, key_dim=16, value_dim=12)
    yield gdn_layer("qwen3_5-R2", qwen3_5, [1, 1, 1, 1], 16, key_heads=1, value_heads=2, key_dim=16, value_dim=12)
    yield gdn_layer("qwen3_5-W3-linear", qwen3_5, [12, 1], 12, 1, 2, 8, 16, width=3, activation="none")
    yield gdn_layer(
        "qwen4-sigmoid-R3", qwen4_exp, [16, 1, 1, 1], 16, key_heads=1, value_heads=3, key_dim=16, value_dim=12
    )


def all_cases():
    yield from operation_cases()
    yield from delta_rule_cases()
    yield from layer_cases()
