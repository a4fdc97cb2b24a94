# SPDX-License-Identifier: Apache-2.0
"""The file that kda_benchmarks and peers/measure.py write: reading, checking and looking things up."""
import json
import re

ROW = {"peer": (str, type(None)), "op": str, "isa": (str, type(None)), "io": str, "state": str, "layout": (str, type(None)),
       "geometry": str, "threads": int, "N": int, "T": int, "us": (int, float), "us_per_token_head": (int, float),
       "gflops": (int, float, type(None)), "percent_of_fma_peak": (int, float, type(None)), "gbps": (int, float, type(None)),
       "percent_of_bandwidth": (int, float, type(None)), "max_rel_err": (int, float)}
IDENTITY = ("peer", "op", "isa", "io", "state", "layout", "geometry", "threads", "N", "T")  # and products and spec of ours
RATIO = {"what": str, "isa": str, "threads": int, "us": (int, float), "against_us": (int, float), "ratio": (int, float),
         "reach": str}
FLOPS_PER_TOKEN_HEAD = 108e3


class Wrong(Exception):
    pass


def check(data):
    """Raises Wrong unless `data` has every key with a value of its type."""
    def members(x, wanted, where):
        for key, types in wanted.items():
            if key not in x:
                raise Wrong(f"{where} has no {key}")
            if not isinstance(x[key], types) or isinstance(x[key], bool):
                raise Wrong(f"{where}: {key} is {x[key]!r}")
    members(data, {"machine": dict, "results": list, "ratios": list}, "the file")
    members(data["machine"], {"cpu": str, "isas": list, "limits": dict}, "machine")
    members(data["machine"]["limits"], {"peak_gflops": dict, "in_place": list}, "machine.limits")
    if not data["results"]:
        raise Wrong("no results")
    for i, row in enumerate(data["results"]):
        members(row, ROW, f"results[{i}]")
        if row["us"] <= 0:
            raise Wrong(f"results[{i}]: us is {row['us']}")
    for i, row in enumerate(data["ratios"]):
        members(row, RATIO, f"ratios[{i}]")


def put_into(document, sections):
    """Puts each text of {name: text} between the lines <!-- name --> and <!-- end --> of a file."""
    with open(document, encoding="utf-8") as f:
        whole = f.read()
    for name, text in sections.items():
        whole = re.sub(rf"(<!-- {name} -->\n).*?(<!-- end -->)", lambda m, text=text: m[1] + text + m[2], whole, flags=re.DOTALL)
    with open(document, "w", encoding="utf-8") as f:
        f.write(whole)


def best_of(runs, name, time):
    """For each different name(x) of the lists `runs`, the x of the shortest time(x), in order of appearance."""
    best = {}
    for x in (x for run in runs for x in run):
        if name(x) not in best or time(x) < time(best[name(x)]):
            best[name(x)] = x
    return list(best.values())


class Results:
    """One run, or several of the same machine: then of each row the shortest time, of each limit the highest."""

    def __init__(self, *files):
        runs = []
        for file in files:
            with open(file) as f:
                runs.append(json.load(f))
            check(runs[-1])
        self.data = runs[0]
        if len(runs) > 1:
            self.merge(runs)
        self.rows, self.ratios, self.machine = self.data["results"], self.data["ratios"], self.data["machine"]

    def merge(self, runs):
        if len({r["machine"]["cpu"] for r in runs}) > 1:
            raise Wrong("runs of different CPUs")
        limits = [r["machine"]["limits"] for r in runs]
        peaks = limits[0]["peak_gflops"]
        for isa, threads in ((i, t) for m in limits for i in m["peak_gflops"] for t in m["peak_gflops"][i]):
            peaks.setdefault(isa, {})[threads] = max(m["peak_gflops"].get(isa, {}).get(threads, 0) for m in limits)
        limits[0]["in_place"] = best_of([m["in_place"] for m in limits], lambda x: (x["level"], x["bytes"], x["threads"]),
                                        lambda x: -max(x["one_stream_gbps"], x["four_streams_gbps"]))
        self.machine = self.data["machine"]
        self.data["results"] = best_of([r["results"] for r in runs],
                                       lambda x: tuple(x.get(k) for k in (*IDENTITY, "products", "spec")), lambda x: x["us"])
        for x in self.data["results"]:
            if x["gflops"] and x["percent_of_fma_peak"]:
                x["percent_of_fma_peak"] = 100 * x["gflops"] / self.peak(x["isa"], x["threads"])
            if x["percent_of_bandwidth"]:
                x["percent_of_bandwidth"] = 100 * x["gbps"] / self.bandwidth(x["gbps"] * x["us"] * 500, x["threads"])
        cases = {}
        for x in (x for r in runs for x in r["ratios"]):
            y = cases.setdefault((x["what"], x["isa"], x["threads"]), x)
            y["us"], y["against_us"] = min(x["us"], y["us"]), min(x["against_us"], y["against_us"])
            y["ratio"] = y["us"] / y["against_us"]
        self.data["ratios"] = list(cases.values())

    def find(self, **wanted):
        """Rows with these values; `peer` is None unless given."""
        wanted.setdefault("peer", None)
        return [r for r in self.rows if all(r.get(k) == v for k, v in wanted.items())]

    def one(self, **wanted):
        rows = self.find(**wanted)
        return rows[0] if rows else None

    def values(self, key, **wanted):
        """The different values of a key, in order of appearance."""
        return list(dict.fromkeys(r[key] for r in self.find(**wanted)))

    def isas(self):
        """ISAs with results, best first."""
        return [i for i in reversed(self.machine["isas"]) if self.find(isa=i)]

    def peers(self):
        return list(dict.fromkeys(r["peer"] for r in self.rows if r["peer"]))

    def peak(self, isa, threads):
        """Of the best ISA for those who do not say theirs."""
        return self.machine["limits"]["peak_gflops"].get(isa or self.machine["isas"][-1], {}).get(str(threads))

    def bandwidth(self, size, threads):
        """10^9 bytes a second in place: of the measured buffer whose size is nearest."""
        rates = [r for r in self.machine["limits"]["in_place"] if r["threads"] == threads]
        if not rates:
            return None
        nearest = min(rates, key=lambda r: max(r["bytes"], size) / max(1, min(r["bytes"], size)))
        return max(nearest["one_stream_gbps"], nearest["four_streams_gbps"])
